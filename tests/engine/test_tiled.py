"""The tiled engine: tiles are its own affair, and nobody can tell from the numbers how large they were."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, score, weigh
from regard.engine.tiled import Tiled
from regard.plan.blocks import Tiles
from tests.laws import direct

BATCH, HEADS, KEY_HEADS, N_Q, N_K, WIDTH = 2, 4, 2, 11, 13, 3
# Tiles change the order of sums of some ten float64 numbers of size about 1, and nothing else.
REORDERED = dict(rtol=1e-12, atol=1e-13)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [
        normal(BATCH, HEADS, N_Q, WIDTH, seed=1, dtype=dtype),
        normal(BATCH, KEY_HEADS, N_K, WIDTH, seed=2, dtype=dtype),
        normal(BATCH, KEY_HEADS, N_K, WIDTH, seed=3, dtype=dtype),
    ]


COINS = torch.rand(BATCH, HEADS, N_Q, N_K, generator=torch.Generator().manual_seed(9)) < 0.5
COINS[0, :, 4] = False
IDS = torch.arange(N_K) // 4

# Tensors that are learned, and the options they make.
Case = tuple[list[tuple[int, ...]], Callable[..., dict[str, Any]]]
CASES: dict[str, Case] = {
    "plain": ([], dict),
    "causal": ([], lambda: dict(mask=mask.causal())),
    "window": ([], lambda: dict(mask=mask.causal() & mask.window(4))),
    "a mask of each head": ([], lambda: dict(mask=lambda b, h, i, j: (i + j) % (h + 2) != 0)),
    "a mask of each batch element and head": ([], lambda: dict(mask=lambda b, h, i, j: (i + j + b) % (h + 2) != 0)),
    "coins": ([], lambda: dict(mask=COINS)),
    "padding": ([], lambda: dict(mask=mask.padding([13, 2]))),
    "documents": ([], lambda: dict(mask=mask.documents(IDS))),
    "global tokens": ([], lambda: dict(mask=mask.longformer(2, [0, 7]))),
    "a start for each": ([], lambda: dict(mask=mask.causal(), start=[0, 5])),
    "a start before the keys": ([], lambda: dict(mask=mask.causal() & mask.window(3), start=[-4, 30])),
    "alibi": ([(HEADS,)], lambda m: dict(score=score.alibi(m))),
    "a bias": ([(BATCH, HEADS, N_Q, N_K)], lambda t: dict(score=score.bias(t))),
    "a bias of keys": ([(BATCH, 1, 1, N_K)], lambda t: dict(score=score.bias(t), mask=mask.causal())),
    "a table by distance": (
        [(HEADS, 40)],
        lambda t: dict(score=lambda s, b, h, i, j: s * torch.tanh(t[h, i - j + 20]), mask=mask.causal()),
    ),
    "a rule that forgets the score": ([(N_K,)], lambda t: dict(score=lambda s, b, h, i, j: t[j] - 0.1 * i)),
    "softcap": ([()], lambda c: dict(score=score.softcap(c * c + 0.5))),
    "relative keys": ([(5, WIDTH)], lambda t: dict(score=score.shaw_keys(t))),
    "relative values": ([(5, WIDTH)], lambda t: dict(value=score.shaw_values(t), mask=mask.causal())),
    "metric": ([(HEADS,)], lambda s: dict(score=score.metric(s * s + 0.5))),
    "additive": (
        [(WIDTH, 4), (WIDTH, 4), (HEADS, 4), (4,)],
        lambda a, b, u, c: dict(score=score.additive(a, b, u, c), mask=mask.causal()),
    ),
    "custom": (
        [(WIDTH,)],
        lambda w: dict(score=score.custom(lambda q, k: torch.sin(q * w) @ k.mT), mask=mask.causal()),
    ),
    "sink": ([(HEADS,)], lambda b: dict(weigh=weigh.sink(b), mask=mask.causal())),
    "sigmoid": ([(HEADS,)], lambda b: dict(weigh=weigh.sigmoid(b), mask=mask.causal())),
    "relu": ([()], lambda c: dict(weigh=weigh.relu(c), mask=mask.causal())),
    "dropout": ([], lambda: dict(dropout=0.3, seed=5, mask=mask.causal())),
    "a rule that hides": (
        [(N_Q, N_K)],
        lambda t: dict(score=score.bias(t.masked_fill(~COINS[1, 0], -math.inf))),
    ),
}
every_case = pytest.mark.parametrize("name", CASES)
SIZES = {
    "one pair": Tiles(1, 1, 1),
    "two by three": Tiles(2, 3, 12),
    "many queries": Tiles(8, 2, 10**6),
    "many keys": Tiles(3, 100, 90),
    "all at once": Tiles(64, 64, 10**6),
}


def ask(name: str, dtype: torch.dtype = torch.float64, **options: Any) -> list[Tensor]:
    """Output, lse where there is one, and all gradients."""
    shapes, make = CASES[name]
    leaves = [*inputs(dtype), *(normal(*shape, seed=20 + n, dtype=dtype) for n, shape in enumerate(shapes))]
    leaves = [x.requires_grad_() for x in leaves]
    found = regard.attend(*leaves[:3], **make(*leaves[3:]), **options)
    statistic = [] if found.statistic is None else [torch.nan_to_num(found.lse, neginf=-1.0)]
    loss = (found.output * normal(*found.output.shape, seed=8, dtype=dtype)).sum()
    loss = loss + sum((s * normal(*s.shape, seed=9, dtype=s.dtype)).sum() for s in statistic)
    return [found.output.detach(), *(s.detach() for s in statistic), *torch.autograd.grad(loss, leaves)]


@every_case
@pytest.mark.parametrize("size", SIZES)
def test_the_size_of_tiles_cannot_be_seen_in_output_lse_and_gradients(name, size, monkeypatch):
    expected = ask(name, engine="reference")
    monkeypatch.setattr(Tiled, "tiles", lambda self, spec: SIZES[size])

    found = ask(name, engine="tiled")

    assert regard.explain(*(x.shape for x in inputs()), engine="tiled").tiles == SIZES[size]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **REORDERED)


@every_case
def test_the_same_call_gives_the_same_bits(name, monkeypatch):
    monkeypatch.setattr(Tiled, "tiles", lambda self, spec: SIZES["two by three"])

    one, other = ask(name, torch.float32), ask(name, torch.float32)

    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("size", ["two by three", "many keys"])
@pytest.mark.parametrize("key_heads", [1, 2, 3, 6])
def test_masks_that_tell_heads_apart_go_with_grouped_keys(key_heads, size, monkeypatch):
    monkeypatch.setattr(Tiled, "tiles", lambda self, spec: SIZES[size])
    q = normal(2, 6, N_Q, WIDTH, seed=1)
    k, v = normal(2, key_heads, N_K, WIDTH, seed=2), normal(2, key_heads, N_K, WIDTH, seed=3)
    table = normal(6, seed=4)

    leaves = [x.requires_grad_() for x in (q, k, v, table)]
    ours = regard.attention(
        *leaves[:3],
        mask=lambda b, h, i, j: (i * 2 + j + h) % 3 != b,
        score=lambda s, b, h, i, j: s + table[h] * j,
    )
    theirs = direct.attention(
        *leaves[:3],
        mask=lambda where: (where.i * 2 + where.j + where.h) % 3 != where.b,
        rules=[lambda s, where: s + table[where.h] * where.j],
    ).output

    torch.testing.assert_close(ours, theirs, **REORDERED)
    pull = normal(*ours.shape, seed=8)
    for a, b in zip(torch.autograd.grad(ours, leaves, pull), torch.autograd.grad(theirs, leaves, pull), strict=True):
        torch.testing.assert_close(a, b, **REORDERED)


@pytest.mark.parametrize("kind", [list, torch.tensor])
@pytest.mark.parametrize("starts", [[0, 0, 0], [2, 0, 40], [-3, 5, 1], [-30, 2, 2]])
def test_each_batch_element_stands_where_it_starts(starts, kind, monkeypatch):
    monkeypatch.setattr(Tiled, "tiles", lambda self, spec: SIZES["two by three"])
    q, k, v = (normal(3, 2, 9, WIDTH, seed=s).requires_grad_() for s in (1, 2, 3))

    options = dict(mask=mask.causal() & mask.window(5), score=score.alibi(), start=kind(starts))
    together = regard.attention(q, k, v, **options)
    alone = torch.cat(
        [
            regard.attention(*(x[n : n + 1] for x in (q, k, v)), **(options | dict(start=start)))
            for n, start in enumerate(starts)
        ]
    )

    torch.testing.assert_close(together, alone, **REORDERED)
    pull = normal(*together.shape, seed=8)
    for a, b in zip(
        torch.autograd.grad(together, (q, k, v), pull), torch.autograd.grad(alone, (q, k, v), pull), strict=True
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
@pytest.mark.parametrize("name", ["causal", "a mask of each head", "a table by distance", "additive", "sigmoid"])
def test_the_layout_of_inputs_and_gradients_in_memory_makes_no_difference(name, layout, monkeypatch):
    monkeypatch.setattr(Tiled, "tiles", lambda self, spec: SIZES["two by three"])
    shapes, make = CASES[name]
    learned = [normal(*shape, seed=20 + n) for n, shape in enumerate(shapes)]
    change = LAYOUTS[layout]
    pull = normal(BATCH, HEADS, N_Q, WIDTH, seed=8)

    results = []
    for how in (change, lambda x: change(x).contiguous()):
        leaves = [x.requires_grad_() for x in inputs()]
        output = regard.attention(*(how(x) for x in leaves), **make(*learned))
        results.append((output, *torch.autograd.grad(output, leaves, how(pull))))

    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, **REORDERED)


@pytest.mark.parametrize("shape", [(64, 8, 5), (1, 96, 17), (300, 1, 3), (7, 12, 40), (3, 5, 1)], ids=str)
@pytest.mark.parametrize("key_heads", ["all", "one"])
@pytest.mark.parametrize("name", ["plain", "causal", "by batch", "by head"])
def test_many_short_sequences_are_the_same_together_as_alone(shape, key_heads, name):
    batch, heads, n = shape
    q = normal(batch, heads, n, 4, seed=1)
    k, v = (normal(batch, heads if key_heads == "all" else 1, n, 4, seed=s) for s in (2, 3))
    options = {
        "plain": {},
        "causal": dict(mask=mask.causal()),
        "by batch": dict(mask=lambda b, h, i, j: (i + j) % (b % 3 + 2) != 1),
        "by head": dict(mask=lambda b, h, i, j: (i + j) % (h % 3 + 2) != 1),
    }[name]

    leaves = [x.requires_grad_() for x in (q, k, v)]
    found = regard.attention(*leaves, **options)
    expected = regard.attention(*leaves, engine="reference", **options)

    torch.testing.assert_close(found, expected, **REORDERED)
    pull = normal(*found.shape, seed=8)
    for a, b in zip(torch.autograd.grad(found, leaves, pull), torch.autograd.grad(expected, leaves, pull), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)  # a shared key sums over all heads


@pytest.mark.parametrize("numbers", [1, 50, 400, 10**6])
def test_however_many_heads_share_a_tile_the_numbers_are_the_same(numbers, monkeypatch):
    q, k, v = (normal(5, h, 6, WIDTH, seed=s) for s, h in ((1, 6), (2, 3), (3, 3)))
    expected = direct.attention(q, k, v, mask=direct.causal()).output
    monkeypatch.setattr(Tiled, "tiles", lambda self, spec: Tiles(4, 4, numbers))

    torch.testing.assert_close(regard.attention(q, k, v, mask=mask.causal()), expected, **REORDERED)


# What is hidden stays hidden, though it is not finite.

BAD = pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
WEIGHINGS = {
    "softmax": (weigh.softmax, direct.softmax()),
    "sink": (lambda: weigh.sink(0.3), direct.sink(0.3)),
    "sigmoid": (lambda: weigh.sigmoid(-1.0), direct.sigmoid(-1.0)),
    "relu": (lambda: weigh.relu(0.5), direct.relu(0.5)),
}


@BAD
@pytest.mark.parametrize("size", ["two by three", "all at once"])
@pytest.mark.parametrize("weighing", WEIGHINGS)
@pytest.mark.parametrize("where", ["a key", "a value", "both, of one head"])
def test_a_key_or_value_that_is_not_finite_counts_for_those_who_see_it_only(bad, size, weighing, where, monkeypatch):
    monkeypatch.setattr(Tiled, "tiles", lambda self, spec: SIZES[size])
    q, k, v = inputs()
    if where == "a key":
        k[:, :, 8] = bad
    elif where == "a value":
        v[:, :, 8] = bad
    else:
        k[1, 1, 8], v[1, 1, 9] = bad, bad
    ours, theirs = WEIGHINGS[weighing]

    leaves = [x.requires_grad_() for x in (q, k, v)]
    found = regard.attention(*leaves, mask=mask.causal(), weigh=ours())
    expected = direct.attention(q, k, v, mask=direct.causal(), weigh=theirs).output
    gradients = torch.autograd.grad(found.sum(), leaves)

    torch.testing.assert_close(found, expected, equal_nan=True, **REORDERED)
    blind = slice(0, 6)  # query i stands at i + 2, so these do not see key 8
    assert bool(torch.isfinite(gradients[0][:, :, blind]).all())
    clean = regard.attention(q[:, :, blind], k[:, :, :8], v[:, :, :8], mask=mask.causal(), weigh=ours())
    (of_q,) = torch.autograd.grad(clean.sum(), leaves[:1])
    torch.testing.assert_close(gradients[0][:, :, blind], of_q[:, :, blind], **REORDERED)


@BAD
@pytest.mark.parametrize("size", ["two by three", "all at once"])
@pytest.mark.parametrize("weighing", WEIGHINGS)
@pytest.mark.parametrize("where", ["keys", "values", "queries", "all"])
def test_a_document_that_is_not_finite_spoils_itself_alone(bad, size, weighing, where, monkeypatch):
    monkeypatch.setattr(Tiled, "tiles", lambda self, spec: SIZES[size])
    clean, spoilt = inputs(), inputs()
    for n, name in enumerate(("queries", "keys", "values")):
        if where in (name, "all"):
            spoilt[n][:, :, 6:9] = bad
    ids_q, ids_k = (torch.arange(n) // 3 for n in (N_Q, N_K))
    results = []
    for x in (spoilt, clean):
        x = [t.requires_grad_() for t in x]
        output = regard.attention(*x, mask=mask.documents(ids_q, ids_k), weigh=WEIGHINGS[weighing][0]())
        results.append((output, *torch.autograd.grad(output.sum(), x)))

    for n, (a, b) in enumerate(zip(*results, strict=True)):
        own = (ids_q if n < 2 else ids_k) == 2
        torch.testing.assert_close(a[:, :, ~own], b[:, :, ~own], **REORDERED)
    assert not bool(torch.isfinite(results[0][0][:, :, 6:9]).all()) or weighing in ("sigmoid", "relu")


@BAD
@pytest.mark.parametrize("score_of", ["scaled dot", "metric", "additive", "custom"])
def test_padding_that_is_not_finite_reaches_nothing(bad, score_of, monkeypatch):
    monkeypatch.setattr(Tiled, "tiles", lambda self, spec: SIZES["two by three"])
    w, u = normal(WIDTH, 4, seed=5).requires_grad_(), normal(4, seed=6).requires_grad_()
    chosen = {
        "scaled dot": score.scaled_dot(),
        "metric": score.metric(2.0),
        "additive": score.additive(w, w, u),
        "custom": score.custom(lambda q, k: torch.tanh(q @ w) @ torch.tanh(k @ w).mT),
    }[score_of]
    expected_leaves, leaves = inputs(), inputs()
    leaves[1][0, :, 10:], leaves[2][0, :, 10:] = bad, bad
    results = []
    for x in (leaves, expected_leaves):
        x = [t.requires_grad_() for t in x]
        output = regard.attention(*x, mask=mask.padding([10, 13]), score=chosen)
        wanted = [*x, *((w, u) if score_of == "additive" else (w,) if score_of == "custom" else ())]
        results.append((output, *torch.autograd.grad(output, wanted, normal(*output.shape, seed=8))))

    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, **REORDERED)


def test_a_gradient_that_is_not_finite_goes_to_what_its_row_sees_and_nowhere_else(monkeypatch):
    monkeypatch.setattr(Tiled, "tiles", lambda self, spec: SIZES["two by three"])
    leaves = [x.requires_grad_() for x in inputs()]
    output = regard.attention(*leaves, mask=mask.causal(), start=0)
    pull = torch.ones_like(output)
    pull[:, :, 4] = math.nan

    of_q, of_k, of_v = torch.autograd.grad(output, leaves, pull)

    assert torch.equal(of_q.isnan().any(-1).any(0).any(0), torch.arange(N_Q) == 4)
    for found in (of_k, of_v):
        assert torch.equal(found.isnan().any(-1).any(0).any(0), torch.arange(N_K) <= 4)


def test_numbers_whose_sum_overflows_are_as_finite_as_any_other():
    q, k, _ = inputs(torch.float32)
    v = torch.full((BATCH, KEY_HEADS, N_K, WIDTH), 1e37)  # of all of them; 13 stay within float32
    v[:, :, 9:] = -1e36

    found = regard.attention(q, k, v, mask=mask.causal())

    expected = regard.attention(q, k, v, mask=mask.causal(), engine="reference")
    assert bool(torch.isfinite(found).all())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e32)  # float32: seven digits of 1e37


def test_scores_that_overflow_in_one_document_leave_the_gradients_of_the_others_alone():
    documents = torch.tensor([0, 0, 0, 1, 1])
    tensors = [normal(1, 1, 5, 2, seed=seed, dtype=torch.float32) for seed in (1, 2, 3)]
    for x in tensors:
        x[:, :, 3:] = 1e30  # finite, but 1e60 is not

    output = regard.attention(*(x.requires_grad_() for x in tensors), mask=mask.documents(documents), engine="tiled")
    found = torch.autograd.grad(output, tensors, torch.ones_like(output))

    alone = [x.detach()[:, :, :3].requires_grad_() for x in tensors]
    output = regard.attention(*alone, engine="tiled")
    for got, expected in zip(found, torch.autograd.grad(output, alone, torch.ones_like(output)), strict=True):
        torch.testing.assert_close(got[:, :, :3], expected, rtol=1e-5, atol=1e-6)  # float32, other tiles
