"""The flex backend: calls that are lowered to FlexAttention agree with the reference.

On the CPU these tests run torch's definition of the operator, and the kernels that torch compiles for the CPU. Tests of
other devices run only if there is one.
"""

import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

import regard
from regard import mask, normalizer, score
from regard.backends.flex import backend as flex_backend
from regard.backends.flex.backend import FlexBackend, block_mask, compile_copy
from regard.backends.flex.lowering import FlexLowering
from regard.backends.native.backend import builds
from regard.backends.native.missing_core import missing_core_reason
from regard.backends.registry import BACKENDS
from regard.backends.tiled import TiledBackend
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.errors import ArgumentError, BackendError
from regard.expr.ir import variable
from regard.plan.choose import choose_backend
from regard.plan.tiling import Tiling, call_coverage

BATCH, HEADS, KV_HEADS, N_Q, N_K, HEAD_DIM, VALUES = 2, 4, 2, 150, 270, 8, 5  # more than one block in both dimensions
CLOSE = dict(rtol=1e-4, atol=1e-5)  # float32: sums of about a hundred terms
IDS = torch.arange(N_K) // 50

MASKS = {
    "causal": mask.causal(),
    "window": mask.sliding_window(30, 5),
    "causal window": mask.causal() & mask.sliding_window(30),
    "dilated": mask.dilated(7, 3),
    "chunked": mask.chunked(40, look_back=1),
    "strided": mask.strided(20),
    "fixed": mask.fixed(20, 2),
    "padding": mask.padding([N_K, 100]),
    "left padding": mask.padding([N_K, 100], side="left"),
    "documents": mask.document(IDS[:N_Q], IDS),
    "documents by batch": mask.document(torch.stack([IDS[:N_Q], IDS[:N_Q] * 2]), torch.stack([IDS, IDS])),
    "prefix": mask.causal() | mask.prefix([20, 200]),
    "global tokens": mask.global_tokens([0, 7]) | mask.sliding_window(4),
    "random blocks": mask.random_blocks(32, 2),
    "longformer": mask.longformer(20, [0, 3]),
    "bigbird": mask.bigbird(32),
    "tensor": mask.tensor(torch.rand(BATCH, HEADS, N_Q, N_K, generator=torch.Generator().manual_seed(0)) < 0.3),
    "all hidden": mask.causal() & ~mask.causal(),
    "function": mask.from_function(lambda b, h, i, j: (i * 3 + j + h) % 5 != b),
    "comparison of floats": mask.from_function(lambda b, h, i, j: (i / 3 - j / 7).abs() < 11.5),
}


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


SCORES = {
    "alibi": score.alibi(),
    "softcap": score.softcap(2.0),
    "bias": score.bias(normal(HEADS, N_Q, N_K, seed=5)),
    "bias with -inf": score.bias(torch.where(normal(N_Q, N_K, seed=6) > 0.5, -torch.inf, 0.3)),
    "t5 bias": score.t5_bias(normal(32, HEADS, seed=7)),
    "shaw": score.shaw_keys(normal(9, HEAD_DIM, seed=8)),
    "cosine": score.cosine(4.0),
    "bilinear": score.bilinear(normal(HEAD_DIM, HEAD_DIM, seed=9) / HEAD_DIM),
    "branches": score.modifier(
        lambda s, b, h, i, j: torch.where((i + j) % 2 == 0, torch.sigmoid(s), torch.exp(s * 0.1))
    ),
}


def inputs(dtype: torch.dtype = torch.float32, n_q: int = N_Q, n_k: int = N_K) -> list[Tensor]:
    shapes = (BATCH, HEADS, n_q, HEAD_DIM), (BATCH, KV_HEADS, n_k, HEAD_DIM), (BATCH, KV_HEADS, n_k, VALUES)
    return [normal(*shape, seed=n).to(dtype).requires_grad_() for n, shape in enumerate(shapes)]


def run(backend: str, tensors: list[Tensor], **options: object) -> list[Tensor]:
    """The output, the lse, and the gradients of both together."""
    actual = regard.attention_with_weights(*tensors, backend=backend, **options)
    visible = torch.where(actual.lse.isinf(), 0.0, actual.lse)
    d_output = normal(*actual.output.shape, seed=11).to(actual.output), normal(*visible.shape, seed=12)
    return [actual.output, actual.lse, *torch.autograd.grad([actual.output, visible], tensors, d_output)]


def assert_agrees_with_reference(**options: object) -> None:
    """Compare with the reference backend, which computes in float64."""
    for got, expected in zip(run("flex", inputs(), **options), run("reference", inputs(), **options), strict=True):
        torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("query_offset", [None, 0, [3, 200]], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_mask_agrees_with_reference(name, query_offset):
    assert_agrees_with_reference(mask=MASKS[name], query_offset=query_offset)


@pytest.mark.parametrize("query_offset", [None, [3, 60]], ids=str)
@pytest.mark.parametrize("name", SCORES)
def test_score_agrees_with_reference(name, query_offset):
    assert_agrees_with_reference(score=SCORES[name], query_offset=query_offset, mask=mask.sliding_window(100))


def test_no_mask_and_no_score_modifier_agree_with_reference():
    assert_agrees_with_reference()


def test_sink_logit_gets_its_gradient():
    logit = torch.tensor([0.5, -1.0, 2.0, 0.0], requires_grad=True)
    tensors = [*inputs(), logit]

    actual, expected = (
        torch.autograd.grad(
            regard.attention(*tensors[:3], normalizer=normalizer.sink(logit), mask=mask.causal(), backend=backend)
            .square()
            .sum(),
            tensors,
        )
        for backend in ("flex", "reference")
    )

    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(
            got, want, rtol=1e-4, atol=1e-4
        )  # the gradient of the logit is a sum over all queries


@pytest.mark.parametrize("n_q, n_k", [(1, 1), (1, 300), (300, 1), (127, 129), (128, 128), (256, 257)])
def test_lengths_around_a_block_agree_with_reference(n_q, n_k):
    expected = run("reference", inputs(n_q=n_q, n_k=n_k), mask=mask.causal())
    for got, want in zip(run("flex", inputs(n_q=n_q, n_k=n_k), mask=mask.causal()), expected, strict=True):
        torch.testing.assert_close(got, want, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scoring", [None, score.cosine(4.0)], ids=["scaled dot", "prepared in float32"])
def test_half_precision_inputs_give_half_precision_results(dtype, scoring):
    actual = run("flex", inputs(dtype), score=scoring, mask=mask.causal())
    exact = run("reference", inputs(dtype), score=scoring, mask=mask.causal())

    assert [x.dtype for x in actual] == [dtype, torch.float32, dtype, dtype, dtype]
    for got, want in zip(actual, exact, strict=True):
        torch.testing.assert_close(got.float(), want.float(), rtol=0, atol=0.02)  # weights and values have 8 bits


def test_fully_masked_query_has_zero_output_and_zero_gradients():
    q, k, v = tensors = inputs()
    nothing = regard.attention_with_weights(q, k, v, mask=mask.padding([0, 100]), backend="flex")

    actual = torch.autograd.grad(nothing.output.sum(), tensors)

    assert not nothing.output[0].any() and bool((nothing.lse[0] == -torch.inf).all())
    assert not any(x[0].any() for x in actual)
    assert nothing.output[1].any() and actual[2][1].any()


def test_captured_tensors_get_their_gradients():
    table = normal(HEADS, 2 * N_K, seed=3).requires_grad_()
    score_mod = score.modifier(lambda s, b, h, i, j: s + table[h, i - j])

    actual, expected = (
        torch.autograd.grad(regard.attention(*inputs(), score=score_mod, backend=backend).square().sum(), table)[0]
        for backend in ("flex", "reference")
    )

    assert actual.any()
    torch.testing.assert_close(actual, expected, **CLOSE)


def test_nonfinite_hidden_keys_change_no_bit():
    clean, spoilt = inputs(), inputs()
    with torch.no_grad():
        spoilt[1][0, :, 200:] = torch.nan
        spoilt[2][0, :, 200:] = torch.inf
        spoilt[0][1, :, 3] = torch.nan  # a fully masked query
    visible = mask.padding([200, N_K]) & mask.from_function(lambda b, h, i, j: (b == 0) | (i != 3))

    actual, expected = (run("flex", x, mask=visible) for x in (spoilt, clean))

    for got, want in zip(actual, expected, strict=True):
        assert torch.equal(got, want)


def test_nonfinite_value_reaches_only_the_queries_that_attend_to_it():
    clean, spoilt = inputs(), inputs()
    with torch.no_grad():
        spoilt[2][0, 0, 260, 1] = torch.nan

    actual, expected = (run("flex", x, mask=mask.causal()) for x in (spoilt, clean))

    sees = torch.arange(N_Q) + N_K - N_Q >= 260
    assert torch.equal(actual[0].isnan()[0, :2, :, 1], sees.expand(2, -1))  # two heads share those values
    for got, want in zip(actual[:3], expected, strict=False):  # output, lse, the gradient of q
        assert torch.equal(got[:, :, ~sees], want[:, :, ~sees])


def test_infinite_derivative_at_a_hidden_pair_leaves_gradients_finite():
    score_mod = score.modifier(lambda s, b, h, i, j: torch.log(s * (s > 0)))  # the derivative at 0 is infinity times 0

    actual, expected = (run(backend, inputs(), score=score_mod) for backend in ("flex", "tiled"))

    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, **CLOSE)
        assert bool(torch.isfinite(got).all())


def test_lookup_out_of_range_at_a_visible_pair_raises_error():
    table = torch.zeros(100)

    with pytest.raises(ArgumentError, match="must be in range for every pair that the mask allows"):
        regard.attention(*inputs(), score=lambda s, b, h, i, j: s + table[j], backend="flex")
    assert_agrees_with_reference(score=lambda s, b, h, i, j: s + table[j], mask=lambda b, h, i, j: j < 100)


@pytest.mark.parametrize("name", MASKS)
def test_block_mask_lists_every_partial_and_full_block(name):
    call = parse_call(AttentionCall(*inputs(), mask=MASKS[name]))
    spec, tensors, device = call.spec, call.captured_tensors(), torch.device("cpu")
    visible = MASKS[name].to_dense(N_Q, N_K, batch_size=BATCH, num_heads=HEADS)

    actual = block_mask(
        call_coverage(spec, tensors, call.query_offset, Tiling(32, 64, 1)),
        FlexLowering(tensors, spec.score_shape, call.query_offset, device).mask_mod(spec.mask),
        (N_Q, N_K),
        device,
    )

    rows, columns = -(-N_Q // 32), -(-N_K // 64)
    block_lists = [
        _dense(actual.kv_num_blocks, actual.kv_indices),
        _dense(actual.full_kv_num_blocks, actual.full_kv_indices),
    ]
    partial, full = (x.expand(BATCH, HEADS, rows, columns) for x in block_lists)
    assert actual.shape == (*block_lists[0].shape[:2], N_Q, N_K) and not bool((partial & full).any())
    for row in range(rows):
        for column in range(columns):
            block = visible[..., row * 32 : (row + 1) * 32, column * 64 : (column + 1) * 64].flatten(2)
            assert bool((block.all(-1) | ~full[..., row, column]).all())
            assert bool((~block.any(-1) | (partial | full)[..., row, column]).all())
    assert torch.equal(actual.to_dense().bool(), block_lists[0] | block_lists[1])


def _dense(counts: Tensor, columns: Tensor) -> Tensor:
    block_lists = torch.arange(columns.shape[-1]) < counts.unsqueeze(-1)
    return torch.zeros(columns.shape, dtype=torch.int64).scatter_add(-1, columns.long(), block_lists.long()) > 0


# Unsupported calls.


@pytest.mark.parametrize(
    "options, dtype, message",
    [
        (dict(), torch.float64, "it computes scores in float32, and this call needs float64"),
        (
            dict(score=score.custom(lambda q, k: q @ k.mT)),
            torch.float32,
            "it supports dot-product scores, not custom scores",
        ),
        (dict(normalizer=normalizer.sigmoid()), torch.float32, "it does not support the sigmoid normalizer"),
        (dict(dropout=0.1, seed=1), torch.float32, "it does not support dropout"),
        (
            dict(score=lambda s, b, h, i, j: i - j),
            torch.float32,
            "it needs a score modifier with a derivative in the score",
        ),
        (
            dict(score=lambda s, b, h, i, j: torch.where(s > 0, 1.0, 0.0)),
            torch.float32,
            "it needs a score modifier with a derivative",
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_it_cannot_do_it_says(options, dtype, message):
    with pytest.raises(BackendError, match=message):
        regard.attention(*inputs(dtype), backend="flex", **options)


@pytest.mark.parametrize("n_q, n_k", [(0, 4), (4, 0)])
def test_empty_tensors_raise_error(n_q, n_k):
    with pytest.raises(BackendError, match="it does not support empty tensors"):
        regard.attention(*inputs(n_q=n_q, n_k=n_k), backend="flex")


def spec_on_device(device: str = "cuda", head_dim: int = 16, **options: object):
    """The spec of a call on another device."""
    shape = (1, 2, 300, head_dim)
    return replace(parse_call(AttentionCall(shape, shape, shape, **options)).spec, device=device)


@pytest.mark.parametrize(
    "spec, message",
    [
        (spec_on_device("mps"), "it runs on cpu, cuda, xpu, and the tensors are on mps"),
        (spec_on_device(head_dim=8), "its kernels need a head dimension of at least 16, not 8"),
        (
            spec_on_device(mask=MASKS["comparison of floats"]),
            "its div may round differently from torch's, and a comparison depends on it",
        ),
        (
            spec_on_device(score=lambda s, b, h, i, j: s + 2 ** (j % 3)),
            "its kernels support constant powers of integers only",
        ),
    ],
    ids=["mps", "narrow", "comparison of floats", "powers"],
)
def test_plan_names_what_flex_kernels_do_not_support(spec, message):
    plan = choose_backend(spec, BACKENDS)

    assert plan.backend == "tiled"
    assert plan.unsupported_reasons["flex"] == (message,)


@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_flex_is_chosen_first_on_another_device(device):
    plan = choose_backend(spec_on_device(device, mask=mask.causal(), score=score.alibi()), BACKENDS)

    assert plan.backend == "flex" and plan.has_linear_memory
    elsewhere = f"it runs on the CPU, and the tensors are on {device}"
    assert plan.unsupported_reasons["native"] == (elsewhere if builds() else missing_core_reason(),)


def test_flex_runs_on_the_cpu_only_if_requested_by_name():
    call = (1, 2, 300, 16), (1, 2, 300, 16), (1, 2, 300, 16)

    plan = regard.explain(*call, dropout=0.1, normalizer=normalizer.sigmoid())
    options = regard.explain(*call, backend="flex")

    assert plan.backend == "tiled"
    assert plan.unsupported_reasons["flex"][0] == "it stores every score, so it runs only if it is requested by name"
    assert (
        "not flex: it stores every score, so it runs only if it is requested by name; it does not support the sig"
        in str(plan)
    )
    assert options.backend == "flex" and not options.has_linear_memory


# Compilation, as far as it runs on a CPU.


def _compiled_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch trace the functions that it compiles kernels from, forward and backward, and run the traces."""
    monkeypatch.setattr(flex, "_validate_device", lambda *x: None)  # torch rejects gradients on the CPU
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    kernels: dict[object, object] = {}

    def run_kernel(score_function, visible, scale, q, k, v):
        kind = (score_function.__code__, visible.mask_mod.__code__, scale)
        kernel = kernels.setdefault(kind, compile_copy(flex_backend._flex_attention, str(len(kernels))))
        return kernel(score_function, visible, scale, q, k, v)

    monkeypatch.setattr(flex_backend, "_eager_kernel", run_kernel)


def test_torch_compiles_the_lowered_functions_forward_and_backward(monkeypatch):
    _compiled_everywhere(monkeypatch)

    assert_agrees_with_reference(mask=MASKS["documents"] & mask.causal(), score=SCORES["bias"], query_offset=[3, 60])


def test_decoding_compiles_three_graphs_for_all_lengths(monkeypatch):
    traced: list[object] = []

    def backend(graph, _):
        traced.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    kernel = compile_copy(flex_backend._flex_attention, "decoding")
    for n_k in (200, 201, 202, 300, 301, 700):
        q, k, v = (x.detach() for x in inputs(n_q=1, n_k=n_k))
        call = parse_call(AttentionCall(q, k, v, mask=mask.causal() & mask.sliding_window(30)))
        spec, query_offset = call.spec, call.query_offset
        lowering = FlexLowering((), spec.score_shape, query_offset, q.device)
        visible = block_mask(
            call_coverage(spec, (), query_offset, Tiling(128, 128, 1)), lowering.mask_mod(spec.mask), (1, n_k), q.device
        )

        with torch.no_grad():
            output, _ = kernel(lowering.score_mod(variable("s"), torch.float32), visible, spec.scale, q, k, v)

        expected = regard.attention(q, k, v, mask=mask.causal() & mask.sliding_window(30), backend="reference")
        torch.testing.assert_close(output, expected, **CLOSE)

    assert len(traced) == 3  # for the first length, for any other length, and for any number of blocks


needs_a_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles kernels for the CPU with g++")


def _without_lse(score_function, visible, scale, q, k, v):
    return flex.flex_attention(
        q, k, v, score_function, visible, scale, enable_gqa=True
    )  # kernels for the CPU return no lse


@pytest.mark.long  # torch compiles for ten seconds
@needs_a_compiler
@pytest.mark.parametrize("name, cap", [("causal", 2.0), ("documents", 3.0)])  # a constant that differs stays a constant
def test_compiled_kernel_visits_the_listed_blocks(name, cap):
    q, k, v = (x.detach() for x in inputs())
    options = dict(mask=MASKS[name], score=score.softcap(cap))
    call = parse_call(AttentionCall(q, k, v, **options))
    spec, tensors, query_offset = call.spec, call.captured_tensors(), call.query_offset
    lowering = FlexLowering(tensors, spec.score_shape, query_offset, q.device)
    actual = call_coverage(spec, tensors, query_offset, FlexBackend(TiledBackend()).tiling(spec))
    visible = block_mask(actual, lowering.mask_mod(spec.mask), (N_Q, N_K), q.device)
    score_function = lowering.score_mod(spec.score_mod, torch.float32)

    with torch.no_grad():
        output = compile_copy(_without_lse, name)(score_function, visible, spec.scale, q, k, v)

    torch.testing.assert_close(output, regard.attention(q, k, v, **options, backend="reference"), **CLOSE)


def test_kernels_are_shared_by_lengths_but_not_by_formulas():
    one, longer, wider = (
        flex_backend._kernel_key(parse_call(AttentionCall(*shapes, mask=mask.causal())).spec)
        for shapes in (
            [(2, 4, 300, 16)] * 3,
            [(5, 4, 700, 16), (5, 4, 900, 16), (5, 4, 900, 16)],
            [(2, 4, 300, 32)] * 3,
        )
    )

    assert flex_backend._compiled_kernel(one) is flex_backend._compiled_kernel(longer)
    assert flex_backend._compiled_kernel(one) is not flex_backend._compiled_kernel(wider)
    assert flex_backend._compiled_kernel(one) is not flex_backend._compiled_kernel(
        flex_backend._kernel_key(spec_on_device(mask=mask.sliding_window(9)))
    )


# On a device.

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def to_device(tensors: list[Tensor]) -> list[Tensor]:
    wide = [torch.cat([x] * 4, dim=-1).detach() for x in tensors]  # kernels need a head dimension of at least 16
    return [x.cuda().requires_grad_() for x in wide]


@on_cuda
@pytest.mark.parametrize("name", [n for n in MASKS if n != "comparison of floats"])
def test_mask_agrees_with_tiled_on_a_device(name):
    tensors = to_device(inputs())

    actual = run("flex", tensors, mask=MASKS[name])

    for got, want in zip(actual, run("tiled", tensors, mask=MASKS[name]), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@on_cuda
@pytest.mark.parametrize("name", ["alibi", "softcap", "bias", "bias with -inf", "branches"])
def test_score_modifier_agrees_with_tiled_on_a_device(name):
    tensors = to_device(inputs())

    actual = run("flex", tensors, score=SCORES[name], mask=mask.causal())

    for got, want in zip(actual, run("tiled", tensors, score=SCORES[name], mask=mask.causal()), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@on_cuda
def test_repeated_calls_on_a_device_give_the_same_bits():
    tensors = to_device(inputs())

    one, other = (run("flex", tensors, mask=mask.causal()) for _ in range(2))

    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
