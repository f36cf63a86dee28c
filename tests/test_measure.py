"""Measures against their formulas on the dense matrix."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import mask, measure, normalizer, score
from regard.errors import ArgumentError
from tests.laws import direct
from tests.random_tensors import normal

N = 1000  # several tiles in each direction, and not a multiple of the tile size
EXACT = dict(rtol=1e-11, atol=1e-13)  # float64 sums of a thousand numbers of at most about 1


def assert_same(actual: Any, expected: Tensor) -> None:
    torch.testing.assert_close(torch.as_tensor(actual), expected, **EXACT)


@dataclass(frozen=True)
class Case:
    """The options of a call, and the same mask, normalizer and modifier of the direct definition."""

    options: Callable[[], dict[str, Any]] = dict
    mask: direct.Mask | None = None
    normalizer: direct.Normalizer | None = None
    modifier: direct.Modifier | None = None
    shape: tuple[int, int, int, int, int] = (1, 2, 2, N, N)  # batch, heads, kv heads, n_q, n_k
    query_offset: int | tuple[int, ...] | None = None


def _mask_by_head(where: direct.Positions) -> Tensor:
    return (where.i + where.j) % (where.h + 2) == 0


def _every_third_row(where: direct.Positions) -> Tensor:
    return (where.i % 3 == 0) & (where.j < 500)


CASES = {
    "plain": Case(),
    "causal": Case(lambda: dict(mask=mask.causal()), direct.causal()),
    "causal window": Case(
        lambda: dict(mask=mask.causal() & mask.sliding_window(40)),
        lambda where: direct.causal()(where) & direct.sliding_window(40)(where),
    ),
    "grouped heads, causal": Case(lambda: dict(mask=mask.causal()), direct.causal(), shape=(1, 4, 2, N, N)),
    "mask by head, grouped heads": Case(
        lambda: dict(mask=lambda b, h, i, j: (i + j) % (h + 2) == 0), _mask_by_head, shape=(1, 4, 2, N, N)
    ),
    "sink": Case(
        lambda: dict(normalizer=normalizer.sink(torch.tensor([0.5, -1.0]).double())),
        normalizer=direct.sink(torch.tensor([0.5, -1.0]).double()),
    ),
    "sink, causal": Case(
        lambda: dict(normalizer=normalizer.sink(), mask=mask.causal()), direct.causal(), direct.sink()
    ),
    "sigmoid": Case(lambda: dict(normalizer=normalizer.sigmoid(-5.0)), normalizer=direct.sigmoid(-5.0)),
    "sigmoid, causal": Case(
        lambda: dict(normalizer=normalizer.sigmoid(-5.0), mask=mask.causal()), direct.causal(), direct.sigmoid(-5.0)
    ),
    "relu": Case(lambda: dict(normalizer=normalizer.relu()), normalizer=direct.relu()),
    "relu, causal": Case(
        lambda: dict(normalizer=normalizer.relu(0.01), mask=mask.causal()), direct.causal(), direct.relu(0.01)
    ),
    "fewer queries, causal": Case(lambda: dict(mask=mask.causal()), direct.causal(), shape=(1, 2, 2, 300, N)),
    "more queries, causal: the first are fully masked": Case(
        lambda: dict(mask=mask.causal()), direct.causal(), shape=(1, 2, 1, N, 700)
    ),
    "fully masked rows": Case(lambda: dict(mask=lambda b, h, i, j: (i % 3 == 0) & (j < 500)), _every_third_row),
    "sigmoid, fully masked rows": Case(
        lambda: dict(mask=lambda b, h, i, j: (i % 3 == 0) & (j < 500), normalizer=normalizer.sigmoid(-5.0)),
        _every_third_row,
        direct.sigmoid(-5.0),
    ),
    "query offset by batch element": Case(
        lambda: dict(mask=mask.causal(), query_offset=[3, 600]),
        direct.causal(),
        shape=(2, 1, 1, 300, N),
        query_offset=(3, 600),
    ),
    "alibi": Case(
        lambda: dict(score=score.alibi(torch.tensor([0.1, 0.01]).double())),
        modifier=direct.alibi(torch.tensor([0.1, 0.01]).double()),
    ),
    "batched, grouped heads": Case(lambda: dict(mask=mask.causal()), direct.causal(), shape=(2, 2, 1, 400, 300)),
}


@dataclass(frozen=True)
class Example:
    """The weights of a call, with the expected matrix and the visible pairs, (batch, heads, n_q, n_k)."""

    weights: regard.weights.AttentionWeights
    dense: Tensor
    visible: Tensor
    where: direct.Positions


def run(case: Case) -> Example:
    batch, heads, kv_heads, n_q, n_k = case.shape
    q, k = normal(batch, heads, n_q, 6, seed=1), normal(batch, kv_heads, n_k, 6, seed=2)
    result = regard.attention_with_weights(q, k, normal(batch, kv_heads, n_k, 1, seed=3), **case.options())
    where = direct.positions((batch, heads, n_q, n_k), case.query_offset)
    scores = q @ k.repeat_interleave(heads // kv_heads, dim=1).mT / math.sqrt(6)
    scores = scores if case.modifier is None else case.modifier(scores, where)
    allowed = torch.ones((), dtype=torch.bool) if case.mask is None else case.mask(where)
    visible = allowed.expand(where.shape)
    return Example(result.weights, (case.normalizer or direct.softmax())(scores, visible), visible, where)


@pytest.fixture(scope="module", params=CASES)
def example(request) -> Example:
    """Each case in turn; pytest runs all tests of one case before it makes the next."""
    return run(CASES[request.param])


@pytest.fixture(scope="module")
def causal() -> Example:
    return run(CASES["causal"])


def test_entropy_is_minus_the_sum_of_a_log_a(example):
    (output,) = example.weights.measure(measure.entropy)

    safe = torch.where(example.dense > 0, example.dense, 1.0)
    assert_same(output, -(example.dense * safe.log()).sum(-1))


def test_column_mass_is_the_sum_of_each_column(example):
    (output,) = example.weights.measure(measure.column_mass)

    assert_same(output, example.dense.sum(-2))


def test_distance_is_the_weighted_mean_distance(example):
    (output,) = example.weights.measure(measure.distance)

    distances = (example.where.p - example.where.j).abs()
    total = example.dense.sum(-1)
    assert_same(output, torch.where(total > 0, (example.dense * distances).sum(-1) / total, 0.0))


def test_topk_returns_the_largest_weights_and_their_keys(example):
    (output,) = example.weights.measure(measure.topk(8))

    values, _ = example.dense.sort(dim=-1, descending=True)
    assert_same(output.values, values[..., :8])
    is_key = output.indices >= 0
    assert_same(example.dense.gather(-1, output.indices.clamp(min=0))[is_key], output.values[is_key])
    assert bool(example.visible.gather(-1, output.indices.clamp(min=0))[is_key].all())
    assert torch.equal(is_key.sum(-1), example.visible.sum(-1).clamp(max=8))
    for row in output.indices.flatten(0, -2)[::97].tolist():
        keys = [j for j in row if j >= 0]
        assert len(set(keys)) == len(keys)
        assert all(j == -1 for j in row[len(keys) :])


def test_pooled_map_returns_mean_and_maximum_of_each_cell(example):
    (output,) = example.weights.measure(measure.pooled_map(64, 48))

    n_q, n_k = example.dense.shape[-2:]
    height, width = math.ceil(n_q / 64), math.ceil(n_k / 48)
    assert output.cell_size == (height, width)
    rows, columns = range(0, n_q, height), range(0, n_k, width)
    assert output.mean.shape == output.max.shape == (*example.dense.shape[:2], len(rows), len(columns))
    for reduction, pooled in (("mean", output.mean), ("amax", output.max)):
        expected = [
            [getattr(example.dense[:, :, i : i + height, j : j + width], reduction)((-2, -1)) for j in columns]
            for i in rows
        ]
        assert_same(pooled, torch.stack([torch.stack(row, -1) for row in expected], -2))


MASSES: dict[str, tuple[Any, direct.Mask]] = {
    "previous token": (
        mask.causal() & mask.sliding_window(2) & ~mask.sliding_window(1),
        lambda where: where.j == where.p - 1,
    ),
    "sliding window": (mask.sliding_window(5, 3), direct.sliding_window(5, 3)),
    "function of i and h": (
        lambda b, h, i, j: (i * 7 + j) % (h + 3) == 0,
        lambda where: (where.i * 7 + where.j) % (where.h + 3) == 0,
    ),
    "global tokens": (mask.global_tokens([0, 17]), direct.global_tokens([0, 17])),
}


@pytest.mark.parametrize("name", MASSES)
def test_mass_is_the_sum_of_each_row_under_a_mask(example, name):
    tested, expected = MASSES[name]

    (output,) = example.weights.measure(measure.mass(tested))

    assert_same(output, (example.dense * expected(example.where)).sum(-1))


def test_diagonals_are_the_sums_from_lower_left_to_upper_right(example):
    (output,) = example.weights.measure(measure.diagonals)

    n_q, n_k = example.dense.shape[-2:]
    expected = [example.dense.diagonal(offset, -2, -1).sum(-1) for offset in range(-(n_q - 1), n_k)]
    assert_same(output, torch.stack(expected, -1))


def test_mass_accepts_a_boolean_tensor(causal):
    random_mask = torch.rand(N, N, generator=torch.Generator().manual_seed(5)) < 0.3

    (output,) = causal.weights.measure(measure.mass(random_mask))

    assert_same(output, (causal.dense * random_mask).sum(-1))


def test_mass_with_a_tensor_of_another_length_raises(causal):
    with pytest.raises(ArgumentError, match=r"\(1, 2, 1000, 1000\).*\(999,\)"):
        causal.weights.measure(measure.mass(torch.ones(999, dtype=torch.bool)))


ALL = (
    measure.entropy,
    measure.column_mass,
    measure.topk(3),
    measure.pooled_map(7, 5),
    measure.mass(mask.sliding_window(9)),
    measure.distance,
    measure.diagonals,
)


@pytest.mark.parametrize("name", ["causal", "grouped heads, causal", "sigmoid, fully masked rows"])
def test_measures_in_one_pass_equal_separate_passes_bit_for_bit(name):
    weights = run(CASES[name]).weights

    together = weights.measure(*ALL)

    assert len(together) == len(ALL)
    for one_measure, output in zip(ALL, together, strict=True):
        (alone,) = weights.measure(one_measure)
        pairs = zip(alone, output, strict=True) if isinstance(alone, tuple) else [(alone, output)]
        for expected, actual in pairs:
            assert torch.equal(torch.as_tensor(expected), torch.as_tensor(actual))


def test_one_pass_visits_every_tile_once_for_all_measures(causal, monkeypatch):
    visited = []
    original = regard.weights.AttentionWeights._tiles

    def counting_tiles(self, requirements):
        for tile in original(self, requirements):
            visited.append(tuple(tile.weights.shape))
            yield tile

    monkeypatch.setattr(regard.weights.AttentionWeights, "_tiles", counting_tiles)
    weights = causal.weights
    weights.measure(measure.entropy)
    num_tiles = len(visited)
    weights.measure(*ALL)

    assert num_tiles > 1
    assert len(visited) == 2 * num_tiles


def test_results_are_accessible_by_index_and_by_name(causal):
    output = causal.weights.measure(measure.topk(3), measure.entropy, measure.pooled_map(2, 2))

    assert output.entropy is output[1]
    assert output.topk is output[0]
    assert output.pooled_map.mean is output[2].mean
    assert output.names == ("topk", "entropy", "pooled_map")


def test_repeated_and_unknown_names_raise(causal):
    output = causal.weights.measure(measure.topk(3), measure.topk(5), measure.entropy)

    assert output[0].values.shape[-1] == 3
    assert output[1].values.shape[-1] == 5
    with pytest.raises(AttributeError, match="exactly one measure 'topk' in the results; got topk, topk, entropy"):
        _ = output.topk
    with pytest.raises(AttributeError, match="'column_mass'"):
        _ = output.column_mass


def test_no_measures_give_no_results(causal):
    assert causal.weights.measure() == ()


@pytest.mark.parametrize(
    "tested_mask", [mask.causal(), mask.from_function(lambda b, h, i, j: (j < i) & (i % 7 != 0)), None]
)
def test_top1_is_the_maximum_of_each_row(tested_mask: Any) -> None:
    torch.manual_seed(5)
    q, k = torch.randn(2, 1, 2, 300, 16)
    weights = regard.attention_with_weights(q, k, k, mask=tested_mask).weights
    (top,) = weights.measure(measure.topk(1))
    dense = weights[...]
    expected = dense.max(-1)
    has_keys = expected.values > 0
    torch.testing.assert_close(top.values[..., 0], expected.values)
    assert torch.equal(top.indices[..., 0][has_keys], expected.indices[has_keys])
    assert bool((top.indices[..., 0][~has_keys] == -1).all())


@pytest.mark.parametrize("value", ["entropy", measure.topk, None, 8])
def test_a_value_that_is_not_a_measure_raises(causal, value):
    with pytest.raises(ArgumentError, match=r"must be those of regard\.measure, such as measure\.entropy; got"):
        causal.weights.measure(measure.entropy, value)


def test_invalid_sizes_raise():
    with pytest.raises(ArgumentError, match="k must be at least 1; got 0"):
        measure.topk(0)
    with pytest.raises(ArgumentError, match="got max_rows=0, max_columns=5"):
        measure.pooled_map(0, 5)
    with pytest.raises(ArgumentError, match="got max_rows=5, max_columns=-1"):
        measure.pooled_map(5, -1)


def test_pooled_map_with_more_cells_than_positions_is_the_matrix():
    q, k, v = (normal(5, 3, seed=s) for s in range(3))
    weights = regard.attention_with_weights(q, k, v).weights

    (pooled,) = weights.measure(measure.pooled_map(64, 48))

    assert pooled.cell_size == (1, 1)
    assert_same(pooled.mean, weights[...])
    assert_same(pooled.max, weights[...])


def test_topk_pads_with_index_minus_one_and_weight_zero():
    q, k, v = (normal(5, 3, seed=s) for s in range(3))
    output = regard.attention_with_weights(q, k, v, mask=mask.causal())

    (top,) = output.weights.measure(measure.topk(7))

    assert top.values.shape == top.indices.shape == (5, 7)
    assert torch.equal((top.indices >= 0).sum(-1), torch.arange(1, 6))
    assert bool((top.values[top.indices == -1] == 0).all())
    assert_same(top.values.sum(-1), torch.ones(5).double())


def test_topk_distinguishes_zero_weights_from_hidden_keys():
    q, k = torch.tensor([[1.0]]), torch.tensor([[-1.0], [-2.0], [3.0]])
    visible = torch.tensor([[True, True, False]])

    (top,) = regard.attention_with_weights(q, k, k, mask=visible, normalizer=normalizer.relu()).weights.measure(
        measure.topk(3)
    )

    assert sorted(top.indices[0].tolist()) == [-1, 0, 1]
    assert top.values.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("n_q, n_k", [(0, 3), (3, 0), (0, 0), (1, 1)])
def test_lengths_of_zero_and_one(n_q, n_k):
    output = regard.attention_with_weights(normal(2, n_q, 3), normal(2, n_k, 3), normal(2, n_k, 3)).weights.measure(
        *ALL
    )

    assert output.entropy.shape == output.distance.shape == output.mass.shape == (2, n_q)
    assert output.column_mass.shape == (2, n_k)
    assert output.topk.values.shape == output.topk.indices.shape == (2, n_q, 3)
    assert output.pooled_map.mean.shape == output.pooled_map.max.shape == (2, n_q, n_k)
    assert output.diagonals.shape == (2, max(n_q + n_k - 1, 0))
    if (n_q, n_k) == (1, 1):
        assert_same(output.diagonals, torch.ones(2, 1, dtype=output.diagonals.dtype))  # up to rounding of the lse
        assert_same(output.column_mass, torch.ones(2, 1, dtype=output.column_mass.dtype))


@pytest.mark.parametrize("leading", [(), (3,), (2, 2), (2, 3, 2)])
def test_results_have_the_leading_dimensions_of_the_call(leading):
    q, k, v = (normal(*leading, n, 3, seed=s) for s, n in enumerate((4, 5, 5)))

    weights = regard.attention_with_weights(q, k, v).weights
    measured = weights.measure(*ALL)

    dense = weights[...]
    assert_same(measured.column_mass, dense.sum(-2))
    assert_same(measured.mass, (dense * mask.sliding_window(9).to_dense(4, 5)[0, 0]).sum(-1))
    assert_same(measured.topk.values, dense.sort(dim=-1, descending=True).values[..., :3])
    assert measured.pooled_map.mean.shape == (*leading, 4, 5)
    assert measured.diagonals.shape == (*leading, 8)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_numpy_inputs_give_numpy_results(dtype):
    q, k, v = (normal(2, 20, 3, seed=s).numpy().astype(dtype) for s in range(3))

    weights = regard.attention_with_weights(q, k, v, mask=mask.causal()).weights
    output = weights.measure(*ALL)

    for result in (
        output.entropy,
        output.column_mass,
        *output.topk,
        *output.pooled_map[:2],
        output.mass,
        output.diagonals,
    ):
        assert isinstance(result, np.ndarray)
    assert output.entropy.dtype == dtype
    assert output.topk.indices.dtype == np.int64
    np.testing.assert_allclose(output.column_mass, weights[...].sum(-2), rtol=1e-5 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_is_measured_in_float32(dtype):
    q, k, v = (normal(300, 8, seed=s, dtype=dtype) for s in range(3))

    output = regard.attention_with_weights(q, k, v, mask=mask.causal()).weights.measure(
        measure.entropy, measure.column_mass
    )

    scores = torch.where(torch.ones(300, 300, dtype=torch.bool).tril(), (q.double() @ k.double().mT) / 8**0.5, -1e9)
    dense = torch.softmax(scores, -1)
    assert output.entropy.dtype == output.column_mass.dtype == torch.float32
    # weights are float32, with relative errors of about 1e-7, as have sums of up to 300 of them
    torch.testing.assert_close(output.column_mass.double(), dense.sum(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(output.entropy.double(), torch.special.entr(dense).sum(-1), rtol=1e-5, atol=1e-5)


def test_equal_scores_have_the_entropy_log_n():
    x = torch.zeros(700, 2, dtype=torch.float64)

    output = regard.attention_with_weights(x, x, x, mask=mask.causal()).weights.measure(
        measure.entropy, measure.distance
    )

    num_visible = torch.arange(1, 701).double()
    assert_same(output.entropy, num_visible.log())
    assert_same(output.distance, (num_visible - 1) / 2)


def test_measures_are_of_the_weights_before_dropout():
    q, k, v = (normal(600, 4, seed=s) for s in range(3))

    dropped = regard.attention_with_weights(q, k, v, dropout=0.5, seed=1).weights.measure(
        measure.entropy, measure.column_mass
    )
    expected = regard.attention_with_weights(q, k, v).weights.measure(measure.entropy, measure.column_mass)

    for actual, without_dropout in zip(dropped, expected, strict=True):
        assert torch.equal(actual, without_dropout)


def test_results_do_not_require_grad():
    q, k, v = (normal(20, 4, seed=s).requires_grad_() for s in range(3))

    output = regard.attention_with_weights(q, k, v).weights.measure(*ALL)

    tensors = (output.entropy, output.column_mass, output.topk.values, *output.pooled_map[:2], output.diagonals)
    for result in tensors:
        assert not result.requires_grad


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_hidden_nonfinite_keys_do_not_affect_measures(value):
    q, k, v = (normal(600, 4, seed=s) for s in range(3))
    expected = regard.attention_with_weights(q, k, v, mask=mask.padding([590])).weights.measure(*ALL)
    k[590:] = value

    output = regard.attention_with_weights(q, k, v, mask=mask.padding([590])).weights.measure(*ALL)

    for name in ("entropy", "column_mass", "mass", "distance", "diagonals"):
        assert_same(getattr(output, name), getattr(expected, name))
    assert_same(output.pooled_map.mean, expected.pooled_map.mean)
    assert_same(output.pooled_map.max, expected.pooled_map.max)
    assert_same(output.topk.values, expected.topk.values)
    assert torch.equal(output.topk.indices, expected.topk.indices)


@pytest.mark.parametrize("backend", regard.available_backends())
def test_weights_of_every_backend_can_be_measured(backend):
    q, k, v = (normal(2, 2, 50, 4, seed=s) for s in range(3))

    weights = regard.attention_with_weights(q, k, v, mask=mask.causal(), backend=backend).weights
    measured = weights.measure(measure.entropy, measure.column_mass)

    assert_same(measured.column_mass, weights[...].sum(-2))
    assert_same(measured.entropy, torch.special.entr(weights[...]).sum(-1))


def test_measuring_twice_gives_the_same_bits(causal):
    weights = causal.weights

    first, second = (weights.measure(measure.entropy, measure.column_mass, measure.diagonals) for _ in range(2))

    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


CLOSE = dict(rtol=1e-5, atol=1e-6)  # float32 sums of a thousand numbers of at most about 1
FLOAT32_CASES = ("plain", "causal", "causal window", "mask by head, grouped heads", "fully masked rows", "sink, causal")


@pytest.mark.parametrize("name", [name for name in CASES if name in FLOAT32_CASES])
def test_kernel_statistics_equal_those_of_the_dense_weights(name):
    """Statistics that kernels accumulate without storing weights, against sums of the weights."""
    case = CASES[name]
    _, heads, kv_heads, n_q, n_k = case.shape
    q, k = normal(2, heads, n_q, 16, dtype=torch.float32), normal(2, kv_heads, n_k, 16, dtype=torch.float32, seed=1)
    weights = regard.attention_with_weights(q, k, k, **case.options()).weights
    dense = weights.to_dense()
    output = weights.measure(measure.entropy, measure.column_mass, measure.topk(1), measure.pooled_map(50, 50))
    torch.testing.assert_close(output.entropy, torch.special.entr(dense).sum(-1), **CLOSE)
    torch.testing.assert_close(output.column_mass, dense.sum(-2), **CLOSE)
    largest = dense.amax(-1)
    torch.testing.assert_close(output.topk.values[..., 0], largest, **CLOSE)
    has_keys = largest > 0
    at_indices = dense.gather(-1, output.topk.indices.clamp(min=0))[..., 0]
    torch.testing.assert_close(at_indices[has_keys], largest[has_keys], **CLOSE)
    assert (output.topk.indices[..., 0][~has_keys] == -1).all()
    cells = dense.unflatten(-1, (50, 20)).unflatten(-3, (50, 20))
    torch.testing.assert_close(output.pooled_map.mean, cells.mean((-3, -1)), **CLOSE)
    torch.testing.assert_close(output.pooled_map.max, cells.amax((-3, -1)), **CLOSE)
    alone = [weights.measure(m)[0] for m in (measure.column_mass, measure.pooled_map(25, 25))]
    torch.testing.assert_close(alone[0], dense.sum(-2), **CLOSE)
    torch.testing.assert_close(
        alone[1].max, dense.unflatten(-1, (25, 40)).unflatten(-3, (25, 40)).amax((-3, -1)), **CLOSE
    )


def test_two_pooled_maps_of_different_sizes_in_one_pass():
    q, k = normal(1, 2, 300, 8, dtype=torch.float32), normal(1, 2, 300, 8, dtype=torch.float32, seed=1)
    weights = regard.attention_with_weights(q, k, k, mask=mask.causal()).weights
    both = weights.measure(measure.pooled_map(10, 10), measure.pooled_map(30, 30))
    for output, size in zip(both, (10, 30), strict=True):
        alone = weights.measure(measure.pooled_map(size, size)).pooled_map
        torch.testing.assert_close(output.mean, alone.mean, **CLOSE)
        torch.testing.assert_close(output.max, alone.max, **CLOSE)
