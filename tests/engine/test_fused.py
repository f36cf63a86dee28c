"""The fused engine: what it hands to FlexAttention means what was asked. Its numbers here are torch's definition of
that call on the CPU, and the kernels torch makes for the CPU; those for other devices run where there is one."""

import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

import regard
from regard import mask, score, weigh
from regard.attention import IN_ORDER
from regard.engine import fused
from regard.engine.fused import Fused, block_mask, compiled
from regard.engine.native import builds, reason_without_core
from regard.engine.tiled import Tiled
from regard.errors import EngineError, SpecError
from regard.plan.blocks import Tiles, blocks
from regard.plan.choose import choose
from regard.spec.closure import Closures
from regard.spec.read import read
from regard.spec.term import variable

BATCH, HEADS, KEY_HEADS, N_Q, N_K, WIDTH, VALUES = 2, 4, 2, 150, 270, 8, 5  # more than one block each way
CLOSE = dict(rtol=1e-4, atol=1e-5)  # float32: sums of some hundred terms
IDS = torch.arange(N_K) // 50

MASKS = {
    "causal": mask.causal(),
    "window": mask.window(30, 5),
    "causal window": mask.causal() & mask.window(30),
    "dilated": mask.dilated(7, 3),
    "blocks": mask.blocks(40, look_back=1),
    "strided": mask.strided(20),
    "fixed": mask.fixed(20, 2),
    "padding": mask.padding([N_K, 100]),
    "left padding": mask.padding([N_K, 100], side="left"),
    "documents": mask.documents(IDS[:N_Q], IDS),
    "documents by batch": mask.documents(torch.stack([IDS[:N_Q], IDS[:N_Q] * 2]), torch.stack([IDS, IDS])),
    "prefix": mask.causal() | mask.prefix([20, 200]),
    "tokens": mask.tokens([0, 7]) | mask.window(4),
    "random blocks": mask.random_blocks(32, 2),
    "longformer": mask.longformer(20, [0, 3]),
    "bigbird": mask.bigbird(32),
    "tensor": mask.tensor(torch.rand(BATCH, HEADS, N_Q, N_K, generator=torch.Generator().manual_seed(0)) < 0.3),
    "none of it": mask.causal() & ~mask.causal(),
    "function": mask.where(lambda b, h, i, j: (i * 3 + j + h) % 5 != b),
    "floats decide": mask.where(lambda b, h, i, j: (i / 3 - j / 7).abs() < 11.5),
}


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


SCORES = {
    "alibi": score.alibi(),
    "softcap": score.softcap(2.0),
    "bias": score.bias(normal(HEADS, N_Q, N_K, seed=5)),
    "bias that hides": score.bias(torch.where(normal(N_Q, N_K, seed=6) > 0.5, -torch.inf, 0.3)),
    "relative": score.relative(normal(32, HEADS, seed=7)),
    "shaw": score.shaw_keys(normal(9, WIDTH, seed=8)),
    "cosine": score.cosine(4.0),
    "multiplicative": score.multiplicative(normal(WIDTH, WIDTH, seed=9) / WIDTH),
    "branches": score.rule(lambda s, b, h, i, j: torch.where((i + j) % 2 == 0, torch.sigmoid(s), torch.exp(s * 0.1))),
}


def inputs(dtype: torch.dtype = torch.float32, n_q: int = N_Q, n_k: int = N_K) -> list[Tensor]:
    shapes = (BATCH, HEADS, n_q, WIDTH), (BATCH, KEY_HEADS, n_k, WIDTH), (BATCH, KEY_HEADS, n_k, VALUES)
    return [normal(*shape, seed=n).to(dtype).requires_grad_() for n, shape in enumerate(shapes)]


def answers(engine: str, tensors: list[Tensor], **options: object) -> list[Tensor]:
    """Output, lse, and the gradients of both together."""
    found = regard.attend(*tensors, engine=engine, **options)
    seen = torch.where(found.lse.isinf(), 0.0, found.lse)
    pull = normal(*found.output.shape, seed=11).to(found.output), normal(*seen.shape, seed=12)
    return [found.output, found.lse, *torch.autograd.grad([found.output, seen], tensors, pull)]


def same(**options: object) -> None:
    """As `reference` computes it, in float64."""
    for got, expected in zip(
        answers("fused", inputs(), **options), answers("reference", inputs(), **options), strict=True
    ):
        torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("start", [None, 0, [3, 200]], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_means_the_same(name, start):
    same(mask=MASKS[name], start=start)


@pytest.mark.parametrize("start", [None, [3, 60]], ids=str)
@pytest.mark.parametrize("name", SCORES)
def test_a_score_means_the_same(name, start):
    same(score=SCORES[name], start=start, mask=mask.window(100))


def test_without_mask_and_rule_it_is_plain_attention():
    same()


def test_a_sink_is_taken_off_afterwards_and_learned():
    logit = torch.tensor([0.5, -1.0, 2.0, 0.0], requires_grad=True)
    tensors = [*inputs(), logit]

    found, expected = (
        torch.autograd.grad(
            regard.attention(*tensors[:3], weigh=weigh.sink(logit), mask=mask.causal(), engine=engine).square().sum(),
            tensors,
        )
        for engine in ("fused", "reference")
    )

    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)  # the logit's is a sum over all queries


@pytest.mark.parametrize("n_q, n_k", [(1, 1), (1, 300), (300, 1), (127, 129), (128, 128), (256, 257)])
def test_lengths_around_a_block(n_q, n_k):
    expected = answers("reference", inputs(n_q=n_q, n_k=n_k), mask=mask.causal())
    for got, want in zip(answers("fused", inputs(n_q=n_q, n_k=n_k), mask=mask.causal()), expected, strict=True):
        torch.testing.assert_close(got, want, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scoring", [None, score.cosine(4.0)], ids=["scaled dot", "prepared in float32"])
def test_halves_come_back_as_halves(dtype, scoring):
    found = answers("fused", inputs(dtype), score=scoring, mask=mask.causal())
    exact = answers("reference", inputs(dtype), score=scoring, mask=mask.causal())

    assert [x.dtype for x in found] == [dtype, torch.float32, dtype, dtype, dtype]
    for got, want in zip(found, exact, strict=True):
        torch.testing.assert_close(got.float(), want.float(), rtol=0, atol=0.02)  # weights and values of 8 bits


def test_a_query_that_sees_nothing_is_zero_and_moves_nothing():
    q, k, v = tensors = inputs()
    nothing = regard.attend(q, k, v, mask=mask.padding([0, 100]), engine="fused")

    found = torch.autograd.grad(nothing.output.sum(), tensors)

    assert not nothing.output[0].any() and bool((nothing.lse[0] == -torch.inf).all())
    assert not any(x[0].any() for x in found)
    assert nothing.output[1].any() and found[2][1].any()


def test_captured_tensors_get_their_gradients():
    table = normal(HEADS, 2 * N_K, seed=3).requires_grad_()
    rule = score.rule(lambda s, b, h, i, j: s + table[h, i - j])

    found, expected = (
        torch.autograd.grad(regard.attention(*inputs(), score=rule, engine=engine).square().sum(), table)[0]
        for engine in ("fused", "reference")
    )

    assert found.any()
    torch.testing.assert_close(found, expected, **CLOSE)


def test_what_is_hidden_may_hold_anything_and_changes_no_bit():
    clean, spoilt = inputs(), inputs()
    with torch.no_grad():
        spoilt[1][0, :, 200:] = torch.nan
        spoilt[2][0, :, 200:] = torch.inf
        spoilt[0][1, :, 3] = torch.nan  # a query that sees nothing
    seen = mask.padding([200, N_K]) & mask.where(lambda b, h, i, j: (b == 0) | (i != 3))

    found, expected = (answers("fused", x, mask=seen) for x in (spoilt, clean))

    for got, want in zip(found, expected, strict=True):
        assert torch.equal(got, want)


def test_what_is_not_finite_reaches_those_who_see_it_and_nobody_else():
    clean, spoilt = inputs(), inputs()
    with torch.no_grad():
        spoilt[2][0, 0, 260, 1] = torch.nan

    found, expected = (answers("fused", x, mask=mask.causal()) for x in (spoilt, clean))

    sees = torch.arange(N_Q) + N_K - N_Q >= 260
    assert torch.equal(found[0].isnan()[0, :2, :, 1], sees.expand(2, -1))  # two heads share those values
    for got, want in zip(found[:3], expected, strict=False):  # output, lse, the gradient of q
        assert torch.equal(got[:, :, ~sees], want[:, :, ~sees])


def test_a_rule_that_is_infinitely_steep_where_it_hides_spoils_no_gradient():
    rule = score.rule(lambda s, b, h, i, j: torch.log(s * (s > 0)))  # the slope at 0 is infinite times 0

    found, expected = (answers(engine, inputs(), score=rule) for engine in ("fused", "tiled"))

    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, **CLOSE)
        assert bool(torch.isfinite(got).all())


def test_a_look_up_that_leaves_its_tensor_is_refused_where_it_is_seen():
    table = torch.zeros(100)

    with pytest.raises(SpecError, match="must stay inside its tensor wherever the mask lets a query see"):
        regard.attention(*inputs(), score=lambda s, b, h, i, j: s + table[j], engine="fused")
    same(score=lambda s, b, h, i, j: s + table[j], mask=lambda b, h, i, j: j < 100)


@pytest.mark.parametrize("name", MASKS)
def test_blocks_are_partial_full_or_left_out(name):
    question = read(*inputs(), mask=MASKS[name])
    spec, tensors, device = question.spec, question.captured(), torch.device("cpu")
    seen = MASKS[name].dense(N_Q, N_K, batch=BATCH, heads=HEADS)

    found = block_mask(
        blocks(spec, tensors, question.start, Tiles(32, 64, 1)),
        Closures(tensors, spec.lengths, question.start, device).mask(spec.mask),
        (N_Q, N_K),
        device,
    )

    rows, columns = -(-N_Q // 32), -(-N_K // 64)
    listed = [_dense(found.kv_num_blocks, found.kv_indices), _dense(found.full_kv_num_blocks, found.full_kv_indices)]
    partial, full = (x.expand(BATCH, HEADS, rows, columns) for x in listed)
    assert found.shape == (*listed[0].shape[:2], N_Q, N_K) and not bool((partial & full).any())
    for row in range(rows):
        for column in range(columns):
            block = seen[..., row * 32 : (row + 1) * 32, column * 64 : (column + 1) * 64].flatten(2)
            assert bool((block.all(-1) | ~full[..., row, column]).all())
            assert bool((~block.any(-1) | (partial | full)[..., row, column]).all())
    assert torch.equal(found.to_dense().bool(), listed[0] | listed[1])


def _dense(counts: Tensor, columns: Tensor) -> Tensor:
    listed = torch.arange(columns.shape[-1]) < counts.unsqueeze(-1)
    return torch.zeros(columns.shape, dtype=torch.int64).scatter_add(-1, columns.long(), listed.long()) > 0


# What it may refuse.


@pytest.mark.parametrize(
    "options, dtype, said",
    [
        (dict(), torch.float64, "the scores are computed in float64, and it knows float32"),
        (dict(score=score.custom(lambda q, k: q @ k.mT)), torch.float32, "the score is custom, and it knows products"),
        (dict(weigh=weigh.sigmoid()), torch.float32, "the weighing is sigmoid, and it knows softmax"),
        (dict(dropout=0.1, seed=1), torch.float32, "weights are dropped, and it keeps all"),
        (dict(score=lambda s, b, h, i, j: i - j), torch.float32, "no slope in the score, and FlexAttention wants one"),
        (dict(score=lambda s, b, h, i, j: torch.where(s > 0, 1.0, 0.0)), torch.float32, "the rule has no slope"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_it_cannot_do_it_says(options, dtype, said):
    with pytest.raises(EngineError, match=said):
        regard.attention(*inputs(dtype), engine="fused", **options)


@pytest.mark.parametrize("n_q, n_k", [(0, 4), (4, 0)])
def test_it_refuses_to_compute_nothing(n_q, n_k):
    with pytest.raises(EngineError, match="nothing is to be computed"):
        regard.attention(*inputs(n_q=n_q, n_k=n_k), engine="fused")


def there(device: str = "cuda", width: int = 16, **options: object):
    """The spec of a call on another device."""
    shape = (1, 2, 300, width)
    return replace(read(shape, shape, shape, **options).spec, device=device)


@pytest.mark.parametrize(
    "spec, said",
    [
        (there("mps"), "the tensors are on mps, and it knows cpu, cuda, xpu"),
        (there(width=8), "a row is 8 wide, and its kernels know 16 and more"),
        (
            there(mask=MASKS["floats decide"]),
            "what decides must be the same number everywhere, and its div of floats is its own",
        ),
        (
            there(score=lambda s, b, h, i, j: s + 2 ** (j % 3)),
            "a whole number is raised to a power that differs by pair, and its kernels know fixed powers",
        ),
    ],
    ids=["mps", "narrow", "floats decide", "powers"],
)
def test_what_kernels_cannot_do_it_says(spec, said):
    plan = choose(spec, IN_ORDER)

    assert plan.engine == "tiled"
    assert plan.objections["fused"] == (said,)


@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_on_another_device_it_comes_first_and_needs_linear_memory(device):
    plan = choose(there(device, mask=mask.causal(), score=score.alibi()), IN_ORDER)

    assert plan.engine == "fused" and plan.linear_memory
    elsewhere = f"the tensors are on {device}, and it runs on the CPU"
    assert plan.objections["native"] == (elsewhere if builds() else reason_without_core(),)


def test_on_the_cpu_it_runs_only_when_asked_for():
    question = (1, 2, 300, 16), (1, 2, 300, 16), (1, 2, 300, 16)

    plan = regard.explain(*question, dropout=0.1, weigh=weigh.sigmoid())
    asked = regard.explain(*question, engine="fused")

    assert plan.engine == "tiled"
    assert plan.objections["fused"][0] == "it keeps every pair in memory, so it runs only when asked for by name"
    assert "not fused: it keeps every pair in memory, so it runs only when asked for by name; the weig" in str(plan)
    assert asked.engine == "fused" and not asked.linear_memory


# The way to a kernel, as far as a CPU can go it.


def _compiled_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch trace the very functions that it makes kernels of, forward and backward, and then run them."""
    monkeypatch.setattr(flex, "_validate_device", lambda *x: None)  # it refuses gradients on the CPU
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    kernels: dict[object, object] = {}

    def defined(changed, seen, scale, q, k, v):
        kind = (changed.__code__, seen.mask_mod.__code__, scale)
        kernel = kernels.setdefault(kind, compiled(fused._called, str(len(kernels))))
        return kernel(changed, seen, scale, q, k, v)

    monkeypatch.setattr(fused, "_defined", defined)


def test_torch_traces_the_functions_forward_and_backward(monkeypatch):
    _compiled_everywhere(monkeypatch)

    same(mask=MASKS["documents"] & mask.causal(), score=SCORES["bias"], start=[3, 60])


def test_decoding_step_after_step_is_soon_done_with_compiling(monkeypatch):
    traced: list[object] = []

    def backend(graph, _):
        traced.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    kernel = compiled(fused._called, "decoding")
    for n_k in (200, 201, 202, 300, 301, 700):
        q, k, v = (x.detach() for x in inputs(n_q=1, n_k=n_k))
        question = read(q, k, v, mask=mask.causal() & mask.window(30))
        spec, start = question.spec, question.start
        closures = Closures((), spec.lengths, start, q.device)
        seen = block_mask(blocks(spec, (), start, Tiles(128, 128, 1)), closures.mask(spec.mask), (1, n_k), q.device)

        with torch.no_grad():
            output, _ = kernel(closures.score(variable("s"), torch.float32), seen, spec.scale, q, k, v)

        expected = regard.attention(q, k, v, mask=mask.causal() & mask.window(30), engine="reference")
        torch.testing.assert_close(output, expected, **CLOSE)

    assert len(traced) == 3  # for the first length, for any other, and for any number of blocks


needs_a_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch makes kernels for the CPU with g++")


def _without_lse(changed, seen, scale, q, k, v):
    return flex.flex_attention(q, k, v, changed, seen, scale, enable_gqa=True)  # there is none in kernels for the CPU


@needs_a_compiler
@pytest.mark.parametrize("name, cap", [("causal", 2.0), ("documents", 3.0)])  # a number that differs is no variable
def test_a_kernel_visits_the_blocks_that_are_listed(name, cap):
    q, k, v = (x.detach() for x in inputs())
    asked = dict(mask=MASKS[name], score=score.softcap(cap))
    question = read(q, k, v, **asked)
    spec, tensors, start = question.spec, question.captured(), question.start
    closures = Closures(tensors, spec.lengths, start, q.device)
    found = blocks(spec, tensors, start, Fused(Tiled()).tiles(spec))
    seen = block_mask(found, closures.mask(spec.mask), (N_Q, N_K), q.device)
    changed = closures.score(spec.rule, torch.float32)

    with torch.no_grad():
        output = compiled(_without_lse, name)(changed, seen, spec.scale, q, k, v)

    torch.testing.assert_close(output, regard.attention(q, k, v, **asked, engine="reference"), **CLOSE)


def test_other_lengths_are_no_other_kind_of_kernel_and_other_formulas_are():
    one, longer, wider = (
        fused._kind(read(*shapes, mask=mask.causal()).spec)
        for shapes in (
            [(2, 4, 300, 16)] * 3,
            [(5, 4, 700, 16), (5, 4, 900, 16), (5, 4, 900, 16)],
            [(2, 4, 300, 32)] * 3,
        )
    )

    assert fused._kernel(one) is fused._kernel(longer)
    assert fused._kernel(one) is not fused._kernel(wider)
    assert fused._kernel(one) is not fused._kernel(fused._kind(there(mask=mask.window(9))))


# On a device.

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def on_the_device(tensors: list[Tensor]) -> list[Tensor]:
    wide = [torch.cat([x] * 4, dim=-1).detach() for x in tensors]  # kernels want 16 numbers a row
    return [x.cuda().requires_grad_() for x in wide]


@on_cuda
@pytest.mark.parametrize("name", [n for n in MASKS if n != "floats decide"])
def test_a_mask_means_the_same_on_a_device(name):
    tensors = on_the_device(inputs())

    found = answers("fused", tensors, mask=MASKS[name])

    for got, want in zip(found, answers("tiled", tensors, mask=MASKS[name]), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@on_cuda
@pytest.mark.parametrize("name", ["alibi", "softcap", "bias", "bias that hides", "branches"])
def test_a_rule_means_the_same_on_a_device(name):
    tensors = on_the_device(inputs())

    found = answers("fused", tensors, score=SCORES[name], mask=mask.causal())

    for got, want in zip(found, answers("tiled", tensors, score=SCORES[name], mask=mask.causal()), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@on_cuda
def test_a_device_gives_the_same_bits_twice():
    tensors = on_the_device(inputs())

    one, other = (answers("fused", tensors, mask=mask.causal()) for _ in range(2))

    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
