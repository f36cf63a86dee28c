"""The tiled backend: tile sizes do not change the results."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, normalizer, score
from regard.backends.tiled import TiledBackend
from regard.plan.tiling import Tiling
from tests.laws import direct
from tests.random_tensors import normal

BATCH, HEADS, KV_HEADS, N_Q, N_K, HEAD_DIM = 2, 4, 2, 11, 13, 3
# tiles change only the order of sums of about ten float64 values of size 1
REORDERED = dict(rtol=1e-12, atol=1e-13)


def inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [
        normal(BATCH, HEADS, N_Q, HEAD_DIM, seed=1, dtype=dtype),
        normal(BATCH, KV_HEADS, N_K, HEAD_DIM, seed=2, dtype=dtype),
        normal(BATCH, KV_HEADS, N_K, HEAD_DIM, seed=3, dtype=dtype),
    ]


RANDOM_MASK = torch.rand(BATCH, HEADS, N_Q, N_K, generator=torch.Generator().manual_seed(9)) < 0.5
RANDOM_MASK[0, :, 4] = False
IDS = torch.arange(N_K) // 4

# shapes of learned tensors, and the options made from them
Case = tuple[list[tuple[int, ...]], Callable[..., dict[str, Any]]]
CASES: dict[str, Case] = {
    "plain": ([], dict),
    "causal": ([], lambda: dict(mask=mask.causal())),
    "window": ([], lambda: dict(mask=mask.causal() & mask.sliding_window(4))),
    "a mask per head": ([], lambda: dict(mask=lambda b, h, i, j: (i + j) % (h + 2) != 0)),
    "a mask per batch element and head": ([], lambda: dict(mask=lambda b, h, i, j: (i + j + b) % (h + 2) != 0)),
    "random mask": ([], lambda: dict(mask=RANDOM_MASK)),
    "padding": ([], lambda: dict(mask=mask.padding([13, 2]))),
    "documents": ([], lambda: dict(mask=mask.document(IDS))),
    "global tokens": ([], lambda: dict(mask=mask.longformer(2, [0, 7]))),
    "query offset per batch element": ([], lambda: dict(mask=mask.causal(), query_offset=[0, 5])),
    "query offset before the keys": (
        [],
        lambda: dict(mask=mask.causal() & mask.sliding_window(3), query_offset=[-4, 30]),
    ),
    "alibi": ([(HEADS,)], lambda m: dict(score=score.alibi(m))),
    "a bias": ([(BATCH, HEADS, N_Q, N_K)], lambda t: dict(score=score.bias(t))),
    "a bias of keys": ([(BATCH, 1, 1, N_K)], lambda t: dict(score=score.bias(t), mask=mask.causal())),
    "a table by distance": (
        [(HEADS, 40)],
        lambda t: dict(score=lambda s, b, h, i, j: s * torch.tanh(t[h, i - j + 20]), mask=mask.causal()),
    ),
    "score modifier without the score": ([(N_K,)], lambda t: dict(score=lambda s, b, h, i, j: t[j] - 0.1 * i)),
    "softcap": ([()], lambda c: dict(score=score.softcap(c * c + 0.5))),
    "relative keys": ([(5, HEAD_DIM)], lambda t: dict(score=score.shaw_keys(t))),
    "relative values": ([(5, HEAD_DIM)], lambda t: dict(value=score.shaw_values(t), mask=mask.causal())),
    "gaussian": ([(HEADS,)], lambda s: dict(score=score.gaussian(s * s + 0.5))),
    "additive": (
        [(HEAD_DIM, 4), (HEAD_DIM, 4), (HEADS, 4), (4,)],
        lambda a, b, u, c: dict(score=score.additive(a, b, u, c), mask=mask.causal()),
    ),
    "custom": (
        [(HEAD_DIM,)],
        lambda w: dict(score=score.custom(lambda q, k: torch.sin(q * w) @ k.mT), mask=mask.causal()),
    ),
    "sink": ([(HEADS,)], lambda b: dict(normalizer=normalizer.sink(b), mask=mask.causal())),
    "sigmoid": ([(HEADS,)], lambda b: dict(normalizer=normalizer.sigmoid(b), mask=mask.causal())),
    "relu": ([()], lambda c: dict(normalizer=normalizer.relu(c), mask=mask.causal())),
    "dropout": ([], lambda: dict(dropout=0.3, seed=5, mask=mask.causal())),
    "bias of minus infinity": (
        [(N_Q, N_K)],
        lambda t: dict(score=score.bias(t.masked_fill(~RANDOM_MASK[1, 0], -math.inf))),
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture
def set_tiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Tiling], None]]:
    """A function that sets the tiles of the tiled backend. Plans are memoized, so the caches are cleared."""

    def patch(tiling: Tiling) -> None:
        monkeypatch.setattr(TiledBackend, "tiling", lambda self, spec: tiling)
        regard.clear_caches()

    yield patch
    monkeypatch.undo()
    regard.clear_caches()


SIZES = {
    "one pair": Tiling(1, 1, 1),
    "two by three": Tiling(2, 3, 12),
    "many queries": Tiling(8, 2, 10**6),
    "many keys": Tiling(3, 100, 90),
    "all at once": Tiling(64, 64, 10**6),
}


def run(name: str, dtype: torch.dtype = torch.float64, **options: Any) -> list[Tensor]:
    """The output, the lse if there is one, and all gradients."""
    shapes, make = CASES[name]
    leaves = [*inputs(dtype), *(normal(*shape, seed=20 + n, dtype=dtype) for n, shape in enumerate(shapes))]
    leaves = [x.requires_grad_() for x in leaves]
    actual = regard.attention_with_weights(*leaves[:3], **make(*leaves[3:]), **options)
    statistic = [] if actual.statistic is None else [torch.nan_to_num(actual.lse, neginf=-1.0)]
    loss = (actual.output * normal(*actual.output.shape, seed=8, dtype=dtype)).sum()
    loss = loss + sum((s * normal(*s.shape, seed=9, dtype=s.dtype)).sum() for s in statistic)
    return [actual.output.detach(), *(s.detach() for s in statistic), *torch.autograd.grad(loss, leaves)]


@every_case
@pytest.mark.parametrize("size", SIZES)
def test_tile_size_does_not_change_output_lse_and_gradients(name, size, set_tiling):
    expected = run(name, backend="reference")
    set_tiling(SIZES[size])

    actual = run(name, backend="tiled")

    assert regard.explain(*(x.shape for x in inputs()), backend="tiled").tiling == SIZES[size]
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, **REORDERED)


@every_case
def test_repeated_call_gives_the_same_bits(name, set_tiling):
    set_tiling(SIZES["two by three"])

    one, other = run(name, torch.float32), run(name, torch.float32)

    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("size", ["two by three", "many keys"])
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_masks_per_head_work_with_grouped_keys(kv_heads, size, set_tiling):
    set_tiling(SIZES[size])
    q = normal(2, 6, N_Q, HEAD_DIM, seed=1)
    k, v = normal(2, kv_heads, N_K, HEAD_DIM, seed=2), normal(2, kv_heads, N_K, HEAD_DIM, seed=3)
    table = normal(6, seed=4)

    leaves = [x.requires_grad_() for x in (q, k, v, table)]
    make_normalizer = regard.attention(
        *leaves[:3],
        mask=lambda b, h, i, j: (i * 2 + j + h) % 3 != b,
        score=lambda s, b, h, i, j: s + table[h] * j,
    )
    direct_normalizer = direct.attention(
        *leaves[:3],
        mask=lambda where: (where.i * 2 + where.j + where.h) % 3 != where.b,
        modifiers=[lambda s, where: s + table[where.h] * where.j],
    ).output

    torch.testing.assert_close(make_normalizer, direct_normalizer, **REORDERED)
    d_output = normal(*make_normalizer.shape, seed=8)
    for a, b in zip(
        torch.autograd.grad(make_normalizer, leaves, d_output),
        torch.autograd.grad(direct_normalizer, leaves, d_output),
        strict=True,
    ):
        torch.testing.assert_close(a, b, **REORDERED)


@pytest.mark.parametrize("kind", [list, torch.tensor])
@pytest.mark.parametrize("query_offsets", [[0, 0, 0], [2, 0, 40], [-3, 5, 1], [-30, 2, 2]])
def test_query_offset_per_batch_element_equals_separate_calls(query_offsets, kind, set_tiling):
    set_tiling(SIZES["two by three"])
    q, k, v = (normal(3, 2, 9, HEAD_DIM, seed=s).requires_grad_() for s in (1, 2, 3))

    options = dict(mask=mask.causal() & mask.sliding_window(5), score=score.alibi(), query_offset=kind(query_offsets))
    together = regard.attention(q, k, v, **options)
    alone = torch.cat(
        [
            regard.attention(*(x[n : n + 1] for x in (q, k, v)), **(options | dict(query_offset=query_offset)))
            for n, query_offset in enumerate(query_offsets)
        ]
    )

    torch.testing.assert_close(together, alone, **REORDERED)
    d_output = normal(*together.shape, seed=8)
    for a, b in zip(
        torch.autograd.grad(together, (q, k, v), d_output), torch.autograd.grad(alone, (q, k, v), d_output), strict=True
    ):
        torch.testing.assert_close(a, b, **REORDERED)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "heads after the length": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "length last": lambda x: x.mT.contiguous().mT,
    "batch last": lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    "every second of a larger": lambda x: x.repeat_interleave(2, dim=-1).repeat_interleave(2, dim=-2)[..., ::2, ::2],
    "with an offset": lambda x: torch.cat([x.new_zeros(7), x.flatten()])[7:].view(x.shape),
    "expanded": lambda x: x[:1].expand(x.shape),
    "read backwards": lambda x: x.flip(-2).flip(-2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["causal", "a mask per head", "a table by distance", "additive", "sigmoid"])
def test_memory_layout_of_inputs_and_gradients_changes_nothing(name, layout, set_tiling):
    set_tiling(SIZES["two by three"])
    shapes, make = CASES[name]
    learned = [normal(*shape, seed=20 + n) for n, shape in enumerate(shapes)]
    change = LAYOUTS[layout]
    d_output = normal(BATCH, HEADS, N_Q, HEAD_DIM, seed=8)

    results = []
    for layout_function in (change, lambda x: change(x).contiguous()):
        leaves = [x.requires_grad_() for x in inputs()]
        output = regard.attention(*(layout_function(x) for x in leaves), **make(*learned))
        results.append((output, *torch.autograd.grad(output, leaves, layout_function(d_output))))

    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, **REORDERED)


@pytest.mark.parametrize("shape", [(64, 8, 5), (1, 96, 17), (300, 1, 3), (7, 12, 40), (3, 5, 1)], ids=str)
@pytest.mark.parametrize("kv_heads", ["all", "one"])
@pytest.mark.parametrize("name", ["plain", "causal", "by batch", "by head"])
def test_many_short_sequences_agree_with_reference(shape, kv_heads, name):
    batch, heads, n = shape
    q = normal(batch, heads, n, 4, seed=1)
    k, v = (normal(batch, heads if kv_heads == "all" else 1, n, 4, seed=s) for s in (2, 3))
    options = {
        "plain": {},
        "causal": dict(mask=mask.causal()),
        "by batch": dict(mask=lambda b, h, i, j: (i + j) % (b % 3 + 2) != 1),
        "by head": dict(mask=lambda b, h, i, j: (i + j) % (h % 3 + 2) != 1),
    }[name]

    leaves = [x.requires_grad_() for x in (q, k, v)]
    actual = regard.attention(*leaves, **options)
    expected = regard.attention(*leaves, backend="reference", **options)

    torch.testing.assert_close(actual, expected, **REORDERED)
    d_output = normal(*actual.shape, seed=8)
    for a, b in zip(
        torch.autograd.grad(actual, leaves, d_output), torch.autograd.grad(expected, leaves, d_output), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)  # a shared key sums over all heads


@pytest.mark.parametrize("numbers", [1, 50, 400, 10**6])
def test_number_of_heads_per_tile_changes_nothing(numbers, set_tiling):
    q, k, v = (normal(5, h, 6, HEAD_DIM, seed=s) for s, h in ((1, 6), (2, 3), (3, 3)))
    expected = direct.attention(q, k, v, mask=direct.causal()).output
    set_tiling(Tiling(4, 4, numbers))

    torch.testing.assert_close(regard.attention(q, k, v, mask=mask.causal()), expected, **REORDERED)


# Hidden keys that are not finite change nothing.

BAD = pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
NORMALIZERS = {
    "softmax": (normalizer.softmax, direct.softmax()),
    "sink": (lambda: normalizer.sink(0.3), direct.sink(0.3)),
    "sigmoid": (lambda: normalizer.sigmoid(-1.0), direct.sigmoid(-1.0)),
    "relu": (lambda: normalizer.relu(0.5), direct.relu(0.5)),
}


@BAD
@pytest.mark.parametrize("size", ["two by three", "all at once"])
@pytest.mark.parametrize("normalizer_name", NORMALIZERS)
@pytest.mark.parametrize("where", ["a key", "a value", "both, of one head"])
def test_nonfinite_key_or_value_reaches_only_queries_that_attend_to_it(bad, size, normalizer_name, where, set_tiling):
    set_tiling(SIZES[size])
    q, k, v = inputs()
    if where == "a key":
        k[:, :, 8] = bad
    elif where == "a value":
        v[:, :, 8] = bad
    else:
        k[1, 1, 8], v[1, 1, 9] = bad, bad
    make_normalizer, direct_normalizer = NORMALIZERS[normalizer_name]

    leaves = [x.requires_grad_() for x in (q, k, v)]
    actual = regard.attention(*leaves, mask=mask.causal(), normalizer=make_normalizer())
    expected = direct.attention(q, k, v, mask=direct.causal(), normalizer=direct_normalizer).output
    gradients = torch.autograd.grad(actual.sum(), leaves)

    torch.testing.assert_close(actual, expected, equal_nan=True, **REORDERED)
    unaffected = slice(0, 6)  # query i is at position i + 2, so these do not attend to key 8
    assert bool(torch.isfinite(gradients[0][:, :, unaffected]).all())
    clean = regard.attention(
        q[:, :, unaffected], k[:, :, :8], v[:, :, :8], mask=mask.causal(), normalizer=make_normalizer()
    )
    (of_q,) = torch.autograd.grad(clean.sum(), leaves[:1])
    torch.testing.assert_close(gradients[0][:, :, unaffected], of_q[:, :, unaffected], **REORDERED)


@BAD
@pytest.mark.parametrize("size", ["two by three", "all at once"])
@pytest.mark.parametrize("normalizer_name", NORMALIZERS)
@pytest.mark.parametrize("where", ["keys", "values", "queries", "all"])
def test_nonfinite_document_leaves_other_documents_unchanged(bad, size, normalizer_name, where, set_tiling):
    set_tiling(SIZES[size])
    clean, corrupted = inputs(), inputs()
    for n, name in enumerate(("queries", "keys", "values")):
        if where in (name, "all"):
            corrupted[n][:, :, 6:9] = bad
    ids_q, ids_k = (torch.arange(n) // 3 for n in (N_Q, N_K))
    results = []
    for x in (corrupted, clean):
        x = [t.requires_grad_() for t in x]
        output = regard.attention(*x, mask=mask.document(ids_q, ids_k), normalizer=NORMALIZERS[normalizer_name][0]())
        results.append((output, *torch.autograd.grad(output.sum(), x)))

    for n, (a, b) in enumerate(zip(*results, strict=True)):
        own = (ids_q if n < 2 else ids_k) == 2
        torch.testing.assert_close(a[:, :, ~own], b[:, :, ~own], **REORDERED)
    assert not bool(torch.isfinite(results[0][0][:, :, 6:9]).all()) or normalizer_name in ("sigmoid", "relu")


@BAD
@pytest.mark.parametrize("score_name", ["scaled dot", "gaussian", "additive", "custom"])
def test_nonfinite_padding_changes_nothing(bad, score_name, set_tiling):
    set_tiling(SIZES["two by three"])
    w, u = normal(HEAD_DIM, 4, seed=5).requires_grad_(), normal(4, seed=6).requires_grad_()
    selected = {
        "scaled dot": score.scaled_dot(),
        "gaussian": score.gaussian(2.0),
        "additive": score.additive(w, w, u),
        "custom": score.custom(lambda q, k: torch.tanh(q @ w) @ torch.tanh(k @ w).mT),
    }[score_name]
    expected_leaves, leaves = inputs(), inputs()
    leaves[1][0, :, 10:], leaves[2][0, :, 10:] = bad, bad
    results = []
    for x in (leaves, expected_leaves):
        x = [t.requires_grad_() for t in x]
        output = regard.attention(*x, mask=mask.padding([10, 13]), score=selected)
        inputs_needed = [*x, *((w, u) if score_name == "additive" else (w,) if score_name == "custom" else ())]
        results.append((output, *torch.autograd.grad(output, inputs_needed, normal(*output.shape, seed=8))))

    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, **REORDERED)


def test_nonfinite_gradient_reaches_only_the_keys_of_its_row(set_tiling):
    set_tiling(SIZES["two by three"])
    leaves = [x.requires_grad_() for x in inputs()]
    output = regard.attention(*leaves, mask=mask.causal(), query_offset=0)
    d_output = torch.ones_like(output)
    d_output[:, :, 4] = math.nan

    of_q, of_k, of_v = torch.autograd.grad(output, leaves, d_output)

    assert torch.equal(of_q.isnan().any(-1).any(0).any(0), torch.arange(N_Q) == 4)
    for actual in (of_k, of_v):
        assert torch.equal(actual.isnan().any(-1).any(0).any(0), torch.arange(N_K) <= 4)


def test_values_whose_sum_overflows_give_finite_output():
    q, k, _ = inputs(torch.float32)
    v = torch.full((BATCH, KV_HEADS, N_K, HEAD_DIM), 1e37)  # the sum of 13 stays within float32
    v[:, :, 9:] = -1e36

    actual = regard.attention(q, k, v, mask=mask.causal())

    expected = regard.attention(q, k, v, mask=mask.causal(), backend="reference")
    assert bool(torch.isfinite(actual).all())
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e32)  # float32: seven digits of 1e37


def test_overflowing_scores_of_one_document_leave_other_gradients_unchanged():
    documents = torch.tensor([0, 0, 0, 1, 1])
    tensors = [normal(1, 1, 5, 2, seed=seed, dtype=torch.float32) for seed in (1, 2, 3)]
    for x in tensors:
        x[:, :, 3:] = 1e30  # finite, but 1e60 is not

    output = regard.attention(*(x.requires_grad_() for x in tensors), mask=mask.document(documents), backend="tiled")
    actual = torch.autograd.grad(output, tensors, torch.ones_like(output))

    alone = [x.detach()[:, :, :3].requires_grad_() for x in tensors]
    output = regard.attention(*alone, backend="tiled")
    for got, expected in zip(actual, torch.autograd.grad(output, alone, torch.ones_like(output)), strict=True):
        torch.testing.assert_close(got[:, :, :3], expected, rtol=1e-5, atol=1e-6)  # float32, other tiles
