"""Sequences laid end to end, against the same sequences one after another."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import attention_packed, mask, score, weigh
from regard.errors import EngineError, RegardError, SpecError

every_engine = pytest.mark.parametrize("engine", regard.engines())
EXACT = dict(rtol=1e-11, atol=1e-12)  # float64, sums of some ten terms

LENGTHS_Q = [3, 0, 5, 1, 4, 6]
LENGTHS_K = [4, 2, 5, 0, 7, 3]  # fewer, as many, none and more
HEADS, KEY_HEADS, WIDTH, WIDTH_V = 4, 2, 3, 2

Options = dict[str, Any]
Each = Callable[[int, int, int], Options]  # of the sequence's number, its n_q and its n_k


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(lengths_q: Sequence[int] = LENGTHS_Q, lengths_k: Sequence[int] = LENGTHS_K) -> tuple[Tensor, Tensor, Tensor]:
    n_q, n_k = sum(lengths_q), sum(lengths_k)
    return (
        normal(HEADS, n_q, WIDTH, seed=1),
        normal(KEY_HEADS, n_k, WIDTH, seed=2),
        normal(KEY_HEADS, n_k, WIDTH_V, seed=3),
    )


def one_by_one(
    q: Tensor, k: Tensor, v: Tensor, lengths_q: Sequence[int], lengths_k: Sequence[int], each: Each
) -> Tensor:
    """What packing must mean: every sequence in a call of its own."""
    parts_k, parts_v = k.split(list(lengths_k), dim=-2), v.split(list(lengths_k), dim=-2)
    outputs = []
    for b, part in enumerate(q.split(list(lengths_q), dim=-2)):
        options = each(b, lengths_q[b], lengths_k[b])
        alone = regard.attention(part[None], parts_k[b][None], parts_v[b][None], engine="reference", **options)
        outputs.append(alone[0])
    return torch.cat(outputs, dim=-2)


def same_for_all(**options: Any) -> Each:
    return lambda b, n_q, n_k: options


COUNT = len(LENGTHS_Q)
MOST_Q, MOST_K = max(LENGTHS_Q), max(LENGTHS_K)
COINS = torch.rand(COUNT, HEADS, MOST_Q, MOST_K, generator=torch.Generator().manual_seed(4)) < 0.6
LIMITS = torch.tensor([2, 1, 5, 0, 4, 3])
IDS_Q = torch.tensor([[(b + i) % 2 for i in range(MOST_Q)] for b in range(COUNT)])
IDS_K = torch.tensor([[j // 2 % 2 for j in range(MOST_K)] for _ in range(COUNT)])

MASKS: dict[str, tuple[Any, Callable[[int, int, int], Any]]] = {
    name: (one, lambda b, n_q, n_k, one=one: one)
    for name, one in {
        "none": None,
        "causal": mask.causal(),
        "window": mask.window(2),
        "window of two sides": mask.window(3, 1),
        "dilated": mask.dilated(2, 2),
        "blocks": mask.blocks(2),
        "blocks that look back": mask.blocks(2, look_back=1),
        "strided": mask.strided(2),
        "fixed": mask.fixed(3, 1),
        "prefix": mask.causal() | mask.prefix(2),
        "tokens": mask.tokens([0, 3]),
        "longformer": mask.longformer(2, [1]),
        "random blocks": mask.random_blocks(2, 1, seed=3),
        "bigbird": mask.bigbird(1, near=1, ends=1, random=1, seed=2),
        "bigbird without chance": mask.bigbird(2, near=1, ends=1, random=0),
        "not causal": ~mask.causal(),
        "causal window": mask.causal() & mask.window(2),
        "a function of i and j": lambda b, h, i, j: (i * 2 + j) % 3 != 0,
        "a function of h": lambda b, h, i, j: (i + j) % (h + 1) == 0,
    }.items()
} | {
    "padding": (mask.padding(LIMITS), lambda b, n_q, n_k: mask.padding(LIMITS[b : b + 1])),
    "padding on the left": (
        mask.padding(LIMITS, side="left"),
        lambda b, n_q, n_k: mask.padding(LIMITS[b : b + 1], side="left"),
    ),
    "prefixes": (mask.prefix(LIMITS), lambda b, n_q, n_k: mask.prefix(LIMITS[b : b + 1])),
    "documents of queries and keys": (
        mask.documents(IDS_Q, IDS_K),
        lambda b, n_q, n_k: mask.documents(IDS_Q[b : b + 1, :n_q], IDS_K[b : b + 1, :n_k]),
    ),
    "a tensor of all pairs": (COINS, lambda b, n_q, n_k: COINS[b : b + 1, :, :n_q, :n_k]),
    "a tensor of keys": (COINS[:, :1, :1], lambda b, n_q, n_k: COINS[b : b + 1, :1, :1, :n_k]),
    "a tensor of queries and keys": (COINS[0, 0], lambda b, n_q, n_k: COINS[0, 0, :n_q, :n_k]),
    "a function of b": (
        lambda b, h, i, j: (b + i + j) % 3 != 1,
        lambda n, n_q, n_k: lambda b, h, i, j: (n + i + j) % 3 != 1,
    ),
    "a function with a table of sequences": (
        lambda b, h, i, j: j < LIMITS[b],
        lambda n, n_q, n_k: lambda b, h, i, j: j < int(LIMITS[n]),
    ),
}


@every_engine
@pytest.mark.parametrize("name", MASKS)
def test_every_mask_sees_each_sequence_by_itself(engine, name):
    q, k, v = inputs()
    ours, each = MASKS[name]

    found = attention_packed(q, k, v, LENGTHS_Q, LENGTHS_K, mask=ours, engine=engine)

    expected = one_by_one(q, k, v, LENGTHS_Q, LENGTHS_K, lambda *place: dict(mask=each(*place)))
    torch.testing.assert_close(found, expected, **EXACT)


@every_engine
@pytest.mark.parametrize("by_sequence", [False, True])
def test_documents_of_keys_are_those_of_each_sequence(engine, by_sequence):
    lengths_q, lengths_k = [3, 2, 5], [4, 2, 5]
    q, k, v = inputs(lengths_q, lengths_k)
    ids = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 0, 1, 0], [2, 2, 2, 0, 0]])
    ids = ids if by_sequence else ids[0]

    found = attention_packed(q, k, v, lengths_q, lengths_k, mask=mask.documents(ids), engine=engine)

    def each(b: int, n_q: int, n_k: int) -> Options:
        return dict(mask=mask.documents(ids[b : b + 1, :n_k] if by_sequence else ids[:n_k]))

    torch.testing.assert_close(found, one_by_one(q, k, v, lengths_q, lengths_k, each), **EXACT)


TABLE = normal(MOST_Q + MOST_K, HEADS, seed=6)
BIAS = normal(COUNT, HEADS, MOST_Q, MOST_K, seed=7)
RELATIVE = normal(8, HEADS, seed=8)
SHAW = normal(5, WIDTH, seed=9)
SLOPES = normal(HEADS, seed=10).abs()
SQUARE = normal(WIDTH, WIDTH, seed=11)
ADDITIVE = [normal(WIDTH, 4, seed=12), normal(WIDTH, 4, seed=13), normal(4, seed=14), normal(4, seed=15)]

SCORES: dict[str, tuple[Any, Callable[[int, int, int], Any]]] = {
    name: (one, lambda b, n_q, n_k, one=one: one)
    for name, one in {
        "dot": score.dot(),
        "scaled dot": score.scaled_dot(0.7),
        "multiplicative": score.multiplicative(SQUARE),
        "cosine": score.cosine(3.0),
        "metric": score.metric(1.3),
        "mahalanobis": score.mahalanobis(SQUARE @ SQUARE.mT),
        "additive": score.additive(*ADDITIVE),
        "custom": score.custom(lambda q, k: torch.tanh(q @ k.mT)),
        "alibi": score.alibi(),
        "alibi with slopes": score.alibi(SLOPES),
        "softcap": score.softcap(0.8),
        "relative": score.relative(RELATIVE, max_distance=6),
        "relative of one direction": score.relative(RELATIVE, bidirectional=False, max_distance=6),
        "relative keys": score.shaw_keys(SHAW),
        "metric, then alibi": score.metric(1.3).then(score.alibi()),
        "additive, then softcap, then alibi": score.additive(*ADDITIVE).then(score.softcap(1.0)).then(score.alibi()),
        "a function of i and j": lambda s, b, h, i, j: s * 0.5 + TABLE[i - j + MOST_K, h],
        "a bias of queries and heads": score.bias(BIAS[0, :, :1, :1]),
        "minus infinity": lambda s, b, h, i, j: torch.where((i + j) % 2 == 0, s, -math.inf),
    }.items()
} | {
    "a bias of all pairs": (score.bias(BIAS), lambda b, n_q, n_k: score.bias(BIAS[b : b + 1, :, :n_q, :n_k])),
    "a bias of keys": (score.bias(BIAS[:, :1, :1]), lambda b, n_q, n_k: score.bias(BIAS[b : b + 1, :1, :1, :n_k])),
    "a function of b": (
        lambda s, b, h, i, j: s * (b + 1) + 0.1 * i - 0.2 * j,
        lambda n, n_q, n_k: lambda s, b, h, i, j: s * (n + 1) + 0.1 * i - 0.2 * j,
    ),
}


@every_engine
@pytest.mark.parametrize("name", SCORES)
def test_every_score_and_rule_sees_each_sequence_by_itself(engine, name):
    q, k, v = inputs()
    ours, each = SCORES[name]

    found = attention_packed(q, k, v, LENGTHS_Q, LENGTHS_K, score=ours, engine=engine)

    expected = one_by_one(q, k, v, LENGTHS_Q, LENGTHS_K, lambda *place: dict(score=each(*place)))
    torch.testing.assert_close(found, expected, **EXACT)


WEIGHINGS: dict[str, Any] = {
    "softmax": weigh.softmax(),
    "sink": weigh.sink(),
    "sinks of heads": weigh.sink(normal(HEADS, seed=16)),
    "sigmoid": weigh.sigmoid(-1.0),
    "sigmoid with a bias of heads": weigh.sigmoid(normal(HEADS, seed=17)),
    "relu over the number of keys": weigh.relu(),
    "relu with a scale": weigh.relu(0.2),
}


@every_engine
@pytest.mark.parametrize("name", WEIGHINGS)
@pytest.mark.parametrize("seen", [None, mask.causal()], ids=["all", "causal"])
def test_every_weighing_counts_the_keys_of_its_own_sequence(engine, name, seen):
    q, k, v = inputs()
    options = dict(weigh=WEIGHINGS[name], mask=seen)

    found = attention_packed(q, k, v, LENGTHS_Q, LENGTHS_K, engine=engine, **options)

    torch.testing.assert_close(found, one_by_one(q, k, v, LENGTHS_Q, LENGTHS_K, same_for_all(**options)), **EXACT)


@every_engine
@pytest.mark.parametrize("start", [None, 0, 2, -1, [0, 1, 2, 3, 4, 5], torch.tensor([3, 0, -2, 0, 1, 7])], ids=str)
@pytest.mark.parametrize("name", ["causal", "window", "blocks", "strided", "tokens"])
def test_start_is_that_of_each_sequence(engine, name, start):
    q, k, v = inputs()
    seen, _ = MASKS[name]

    found = attention_packed(q, k, v, LENGTHS_Q, LENGTHS_K, mask=seen, start=start, engine=engine)

    def each(b: int, n_q: int, n_k: int) -> Options:
        own = start if start is None or isinstance(start, int) else int(start[b])
        return dict(mask=seen, start=own)

    torch.testing.assert_close(found, one_by_one(q, k, v, LENGTHS_Q, LENGTHS_K, each), **EXACT)


@every_engine
@pytest.mark.parametrize("start", [None, 0, [2, 0, 1, 0, 3, 1]], ids=str)
def test_rules_by_distance_count_from_the_start_of_each_sequence(engine, start):
    q, k, v = inputs()
    near = score.scaled_dot().then(score.alibi()).then(score.relative(RELATIVE, max_distance=6))
    options = dict(score=near.then(score.shaw_keys(SHAW)))

    found = attention_packed(q, k, v, LENGTHS_Q, LENGTHS_K, start=start, engine=engine, **options)

    def each(b: int, n_q: int, n_k: int) -> Options:
        return options | dict(start=start[b] if isinstance(start, list) else start)

    torch.testing.assert_close(found, one_by_one(q, k, v, LENGTHS_Q, LENGTHS_K, each), **EXACT)


@every_engine
@pytest.mark.parametrize("lengths_k", [LENGTHS_Q, LENGTHS_K], ids=["as many keys", "other numbers of keys"])
def test_relative_values_count_from_the_position_in_each_sequence(engine, lengths_k):
    q, k, v = inputs(LENGTHS_Q, lengths_k)
    options = dict(value=score.shaw_values(normal(5, WIDTH_V, seed=18)), mask=mask.causal())

    found = attention_packed(q, k, v, LENGTHS_Q, lengths_k, engine=engine, **options)

    torch.testing.assert_close(found, one_by_one(q, k, v, LENGTHS_Q, lengths_k, same_for_all(**options)), **EXACT)


@every_engine
def test_a_value_function_may_change_the_width(engine):
    q, k, v = inputs()
    w = normal(WIDTH_V, 5, seed=19)
    options = dict(value=lambda v: torch.tanh(v @ w))

    found = attention_packed(q, k, v, LENGTHS_Q, LENGTHS_K, engine=engine, **options)

    assert found.shape == (HEADS, sum(LENGTHS_Q), 5)
    torch.testing.assert_close(found, one_by_one(q, k, v, LENGTHS_Q, LENGTHS_K, same_for_all(**options)), **EXACT)


# Shapes.


@every_engine
def test_two_dimensions_are_one_head(engine):
    q, k, v = (x[0] for x in inputs())

    found = attention_packed(q, k, v, LENGTHS_Q, LENGTHS_K, mask=mask.causal(), engine=engine)

    assert found.shape == (sum(LENGTHS_Q), WIDTH_V)
    expected = one_by_one(q, k, v, LENGTHS_Q, LENGTHS_K, same_for_all(mask=mask.causal()))
    torch.testing.assert_close(found, expected, **EXACT)


@every_engine
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_key_heads_are_shared_in_groups(engine, key_heads):
    q = normal(HEADS, sum(LENGTHS_Q), WIDTH, seed=1)
    k, v = normal(key_heads, sum(LENGTHS_K), WIDTH, seed=2), normal(key_heads, sum(LENGTHS_K), WIDTH_V, seed=3)
    options = dict(mask=lambda b, h, i, j: (i + j + h) % 3 != 0)

    found = attention_packed(q, k, v, LENGTHS_Q, LENGTHS_K, engine=engine, **options)

    torch.testing.assert_close(found, one_by_one(q, k, v, LENGTHS_Q, LENGTHS_K, same_for_all(**options)), **EXACT)


def test_without_lengths_of_keys_there_are_as_many_as_queries():
    q, k, v = inputs(LENGTHS_Q, LENGTHS_Q)

    found = attention_packed(q, k, v, LENGTHS_Q, mask=mask.causal())

    assert torch.equal(found, attention_packed(q, k, v, LENGTHS_Q, LENGTHS_Q, mask=mask.causal()))


def test_one_sequence_is_plain_attention():
    q, k, v = inputs([5], [7])

    found = attention_packed(q, k, v, [5], [7], mask=mask.causal())

    torch.testing.assert_close(found, regard.attention(q[None], k[None], v[None], mask=mask.causal())[0], **EXACT)


@every_engine
@pytest.mark.parametrize("lengths", [[0], [0, 0], [1], [0, 3, 0], [1, 1, 1]], ids=str)
def test_lengths_of_none_and_one_are_fine(engine, lengths):
    q, k, v = inputs(lengths, lengths)

    found = attention_packed(q, k, v, lengths, mask=mask.causal(), engine=engine)

    expected = one_by_one(q, k, v, lengths, lengths, same_for_all(mask=mask.causal()))
    torch.testing.assert_close(found, expected, **EXACT)


def test_no_sequences_at_all_have_no_output():
    q, k, v = inputs([], [])

    assert attention_packed(q, k, v, []).shape == (HEADS, 0, WIDTH_V)


@every_engine
def test_queries_of_a_sequence_without_keys_output_zero_with_zero_gradient(engine):
    lengths_q, lengths_k = [2, 3, 2], [3, 0, 2]
    q, k, v = (x.requires_grad_() for x in inputs(lengths_q, lengths_k))

    found = attention_packed(q, k, v, lengths_q, lengths_k, engine=engine)
    (of_q,) = torch.autograd.grad(found.sum(), q)

    assert torch.equal(found[:, 2:5], torch.zeros(HEADS, 3, WIDTH_V, dtype=torch.float64))
    assert torch.equal(of_q[:, 2:5], torch.zeros(HEADS, 3, WIDTH, dtype=torch.float64))
    assert bool((found[:, [0, 1, 5, 6]] != 0).all())


@pytest.mark.parametrize("kind", [list, tuple, torch.tensor, np.array, lambda x: torch.tensor(x, dtype=torch.int32)])
def test_lengths_may_be_lists_tensors_or_arrays(kind):
    q, k, v = inputs()

    found = attention_packed(q, k, v, kind(LENGTHS_Q), kind(LENGTHS_K), mask=mask.causal())

    assert torch.equal(found, attention_packed(q, k, v, LENGTHS_Q, LENGTHS_K, mask=mask.causal()))


def test_numpy_in_is_numpy_out():
    q, k, v = inputs()

    found = attention_packed(q.numpy(), k.numpy(), v.numpy(), LENGTHS_Q, LENGTHS_K, mask=mask.causal())

    assert isinstance(found, np.ndarray)
    expected = attention_packed(q, k, v, LENGTHS_Q, LENGTHS_K, mask=mask.causal())
    np.testing.assert_array_equal(found, expected.numpy())


def test_tensors_may_be_transposed_from_total_heads_width():
    q, k, v = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in inputs())

    found = attention_packed(q, k, v, LENGTHS_Q, LENGTHS_K, mask=mask.causal())

    expected = attention_packed(*inputs(), LENGTHS_Q, LENGTHS_K, mask=mask.causal())
    torch.testing.assert_close(found, expected, **EXACT)


def test_many_sequences_reach_over_the_borders_of_tiles():
    lengths = [300, 1, 513, 0, 255, 40]
    q, k, v = (normal(sum(lengths), 4, seed=s) for s in range(3))

    found = attention_packed(q, k, v, lengths, mask=mask.causal())

    expected = one_by_one(q, k, v, lengths, lengths, same_for_all(mask=mask.causal()))
    torch.testing.assert_close(found, expected, **EXACT)


def test_pairs_of_different_sequences_are_not_even_visited(monkeypatch):
    visited = []
    once = regard.engine.tiled.Tiled.forward

    def counted(self, spec, inputs, tiles):
        found = regard.plan.blocks.blocks(spec, inputs.tensors, inputs.start, tiles)
        visited.append(1.0 - found.counts["empty"] / sum(found.counts.values()))
        return once(self, spec, inputs, tiles)

    monkeypatch.setattr(regard.engine.tiled.Tiled, "forward", counted)
    x = normal(8 * 1024, 4, seed=1)

    attention_packed(x, x, x, [1024] * 8)

    assert visited == [1 / 8]


# Gradients and dropout.


@every_engine
@pytest.mark.parametrize("name", ["plain", "bias", "table", "relative keys", "sink", "additive", "custom", "relu"])
def test_gradients_are_those_of_the_sequences_one_by_one(engine, name):
    bias, table, shaw = BIAS.clone(), TABLE.clone(), SHAW.clone()
    sink, additive, w = normal(HEADS, seed=16), [x.clone() for x in ADDITIVE], normal(WIDTH, seed=20)
    learned, packed, each = {
        "plain": ([], {}, lambda b, n_q, n_k: {}),
        "bias": (
            [bias],
            dict(score=score.bias(bias)),
            lambda b, n_q, n_k: dict(score=score.bias(bias[b : b + 1, :, :n_q, :n_k])),
        ),
        "table": ([table], *_for_all(score=lambda s, b, h, i, j: s * table[i - j + MOST_K, h])),
        "relative keys": ([shaw], *_for_all(score=score.shaw_keys(shaw))),
        "sink": ([sink], *_for_all(weigh=weigh.sink(sink))),
        "additive": (additive, *_for_all(score=score.additive(*additive))),
        "custom": ([w], *_for_all(score=score.custom(lambda q, k: (q * w) @ k.mT))),
        "relu": ([], *_for_all(weigh=weigh.relu())),
    }[name]
    tensors = [x.requires_grad_() for x in (*inputs(), *learned)]

    found = attention_packed(*tensors[:3], LENGTHS_Q, LENGTHS_K, mask=mask.causal(), engine=engine, **packed)
    expected = one_by_one(*tensors[:3], LENGTHS_Q, LENGTHS_K, lambda *place: dict(mask=mask.causal()) | each(*place))

    pull = normal(*found.shape, seed=21)
    ours, theirs = (torch.autograd.grad(x, tensors, pull) for x in (found, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def _for_all(**options: Any) -> tuple[Options, Each]:
    return options, same_for_all(**options)


def test_packed_attention_can_be_differentiated_twice():
    lengths_q, lengths_k = [2, 0, 1], [1, 1, 2]
    q, k, v = (normal(n, 2, seed=s).requires_grad_() for s, n in enumerate((3, 4, 4)))

    def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention_packed(q, k, v, lengths_q, lengths_k, mask=mask.causal())

    assert torch.autograd.gradcheck(packed, (q, k, v))
    assert torch.autograd.gradgradcheck(packed, (q, k, v))


def test_no_sequence_reaches_another_even_if_it_is_not_finite():
    q, k, v = inputs()
    expected = attention_packed(q, k, v, LENGTHS_Q, LENGTHS_K)
    k[:, 6:11], v[:, 6:11] = math.nan, math.inf  # the third sequence

    q, k, v = (x.requires_grad_() for x in (q, k, v))
    found = attention_packed(q, k, v, LENGTHS_Q, LENGTHS_K)
    others = [n for n in range(sum(LENGTHS_Q)) if not 3 <= n < 8]
    other_keys = [n for n in range(sum(LENGTHS_K)) if not 6 <= n < 11]
    gradients = torch.autograd.grad(found.sum(), (q, k, v))

    torch.testing.assert_close(found[:, others], expected[:, others], **EXACT)
    assert bool(found[:, 3:8].isnan().all())
    for gradient, rows in zip(gradients, (others, other_keys, other_keys), strict=True):
        assert bool(torch.isfinite(gradient[:, rows]).all())


def test_dropout_is_decided_by_the_seed_alone_and_is_the_same_on_every_engine():
    q, k, v = inputs()

    def dropped(seed: int, engine: str) -> Tensor:
        return attention_packed(q, k, v, LENGTHS_Q, LENGTHS_K, dropout=0.4, seed=seed, engine=engine)

    first = dropped(1, "reference")
    for engine in ("tiled", "reference"):  # these inputs are float64
        torch.testing.assert_close(dropped(1, engine), first, **EXACT)
        assert not torch.allclose(dropped(2, engine), first)
    assert not torch.allclose(attention_packed(q, k, v, LENGTHS_Q, LENGTHS_K), first)


def test_dropout_drops_whole_weights_and_scales_the_rest():
    lengths = [4, 60, 36]
    x = torch.zeros(100, 1)

    dropped = attention_packed(x, x, torch.eye(100), lengths, dropout=0.25, seed=5)

    for b, (n, first) in enumerate(zip(lengths, (0, 4, 64), strict=True)):
        own = dropped[first : first + n, first : first + n]
        kept = own != 0
        torch.testing.assert_close(own[kept], torch.full_like(own[kept], 1 / n / 0.75))
        assert 0 < int(kept.sum()) < n * n or b == 0
    assert int((dropped != 0).sum()) == int((dropped[:4, :4] != 0).sum()) + sum(
        int((dropped[a:b, a:b] != 0).sum()) for a, b in ((4, 64), (64, 100))
    )


# Errors.


@pytest.mark.parametrize("which", ["q", "k"])
def test_lengths_must_add_up(which):
    q, k, v = inputs([3, 4], [3, 4])
    lengths = {"q": ([3, 5], [3, 4]), "k": ([3, 4], [3, 5])}[which]

    with pytest.raises(SpecError, match=f"lengths of {which} must add up to its 7 rows; got 8"):
        attention_packed(q, k, v, *lengths)


def test_heads_after_the_length_are_recognised():
    q, k, v = (x.transpose(0, 1) for x in inputs([3, 4], [3, 4]))

    with pytest.raises(SpecError, match=r"must add up to its 4 rows; got 7.*use q\.transpose\(0, 1\)"):
        attention_packed(q, k, v, [3, 4])


@pytest.mark.parametrize("lengths", [[-1, 8], [[3, 4]], [3.0, 4.0], 7], ids=str)
def test_lengths_must_be_whole_numbers_that_are_not_negative(lengths):
    with pytest.raises(SpecError, match="lengths_q must be a list of whole numbers, none negative; got"):
        attention_packed(*inputs([3, 4], [3, 4]), lengths, [3, 4])


def test_there_must_be_as_many_lengths_of_keys_as_of_queries():
    with pytest.raises(SpecError, match="equally many; got 2 and 3"):
        attention_packed(*inputs([3, 4], [3, 2, 2]), [3, 4], [3, 2, 2])


@pytest.mark.parametrize("shape", [(7,), (1, 2, 7, 3)], ids=str)
def test_packed_tensors_have_two_or_three_dimensions(shape):
    x = torch.zeros(shape)

    with pytest.raises(SpecError, match=r"\(total, width\) or \(heads, total, width\); got a tensor of shape"):
        attention_packed(x, x, x, [3, 4])


def test_keys_must_have_the_dimensions_of_queries():
    q, k, v = inputs([3, 4], [3, 4])

    with pytest.raises(RegardError, match="dimensions"):
        attention_packed(q, k[0], v[0], [3, 4])


def test_start_must_be_one_number_or_one_for_each_sequence():
    with pytest.raises(SpecError, match=r"one for each of 2 sequences; got a tensor of shape \(3,\)"):
        attention_packed(*inputs([3, 4], [3, 4]), [3, 4], start=[0, 0, 0])


@pytest.mark.parametrize(
    "options, said",
    [
        (dict(mask=mask.padding([3, 4, 5])), "batch = 2; got 3"),
        (dict(mask=torch.ones(3, 1, 1, 4, dtype=torch.bool)), r"\(2, 4, 4, 4\); got shape \(3, 1, 1, 4\)"),
        (dict(score=score.bias(torch.zeros(5, 5))), r"\(2, 4, 4, 4\); got shape \(5, 5\)"),
        (dict(score=score.alibi(torch.ones(3))), "4 heads"),
        (dict(dropout=1.5), "got 1.5"),
        (dict(weigh=weigh.sink(torch.zeros(3))), "4 heads; got 3"),
    ],
)
def test_what_does_not_fit_the_sequences_is_refused(options, said):
    with pytest.raises(SpecError, match=said):
        attention_packed(*inputs([3, 4], [3, 4]), [3, 4], **options)


def test_an_unknown_engine_is_answered_with_the_known_ones():
    with pytest.raises(EngineError, match=r"tiled, reference; got 'fast'"):
        attention_packed(*inputs([3, 4], [3, 4]), [3, 4], engine="fast")
