"""Measures in one pass over tiles, each against its formula on the whole matrix."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import mask, measure, score, weigh
from regard.errors import SpecError
from tests.laws import direct

N = 1000  # several tiles each way, and no multiple of a tile
EXACT = dict(rtol=1e-11, atol=1e-13)  # float64 sums of a thousand numbers of at most about 1


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def same(actual: Any, expected: Tensor) -> None:
    torch.testing.assert_close(torch.as_tensor(actual), expected, **EXACT)


@dataclass(frozen=True)
class Case:
    """One call, said twice: to the library, and as a mask and a weighing of the oracle."""

    options: Callable[[], dict[str, Any]] = dict
    sees: direct.Mask | None = None
    weighs: direct.Weigh | None = None
    rule: direct.Rule | None = None
    shape: tuple[int, int, int, int, int] = (1, 2, 2, N, N)  # batch, heads, key heads, n_q, n_k
    start: int | tuple[int, ...] | None = None


def _head_by_head(where: direct.Places) -> Tensor:
    return (where.i + where.j) % (where.h + 2) == 0


def _third_rows_only(where: direct.Places) -> Tensor:
    return (where.i % 3 == 0) & (where.j < 500)


CASES = {
    "plain": Case(),
    "causal": Case(lambda: dict(mask=mask.causal()), direct.causal()),
    "causal window": Case(
        lambda: dict(mask=mask.causal() & mask.window(40)),
        lambda where: direct.causal()(where) & direct.window(40)(where),
    ),
    "grouped heads, causal": Case(lambda: dict(mask=mask.causal()), direct.causal(), shape=(1, 4, 2, N, N)),
    "a mask of each head, grouped": Case(
        lambda: dict(mask=lambda b, h, i, j: (i + j) % (h + 2) == 0), _head_by_head, shape=(1, 4, 2, N, N)
    ),
    "sink": Case(
        lambda: dict(weigh=weigh.sink(torch.tensor([0.5, -1.0]).double())),
        weighs=direct.sink(torch.tensor([0.5, -1.0]).double()),
    ),
    "sink, causal": Case(lambda: dict(weigh=weigh.sink(), mask=mask.causal()), direct.causal(), direct.sink()),
    "sigmoid": Case(lambda: dict(weigh=weigh.sigmoid(-5.0)), weighs=direct.sigmoid(-5.0)),
    "sigmoid, causal": Case(
        lambda: dict(weigh=weigh.sigmoid(-5.0), mask=mask.causal()), direct.causal(), direct.sigmoid(-5.0)
    ),
    "relu": Case(lambda: dict(weigh=weigh.relu()), weighs=direct.relu()),
    "relu, causal": Case(lambda: dict(weigh=weigh.relu(0.01), mask=mask.causal()), direct.causal(), direct.relu(0.01)),
    "fewer queries, causal": Case(lambda: dict(mask=mask.causal()), direct.causal(), shape=(1, 2, 2, 300, N)),
    "more queries, causal: the first see nothing": Case(
        lambda: dict(mask=mask.causal()), direct.causal(), shape=(1, 2, 1, N, 700)
    ),
    "rows that see nothing": Case(lambda: dict(mask=lambda b, h, i, j: (i % 3 == 0) & (j < 500)), _third_rows_only),
    "sigmoid, rows that see nothing": Case(
        lambda: dict(mask=lambda b, h, i, j: (i % 3 == 0) & (j < 500), weigh=weigh.sigmoid(-5.0)),
        _third_rows_only,
        direct.sigmoid(-5.0),
    ),
    "a start of its own for each batch element": Case(
        lambda: dict(mask=mask.causal(), start=[3, 600]),
        direct.causal(),
        shape=(2, 1, 1, 300, N),
        start=(3, 600),
    ),
    "alibi": Case(
        lambda: dict(score=score.alibi(torch.tensor([0.1, 0.01]).double())),
        rule=direct.alibi(torch.tensor([0.1, 0.01]).double()),
    ),
    "two of everything": Case(lambda: dict(mask=mask.causal()), direct.causal(), shape=(2, 2, 1, 400, 300)),
}


@dataclass(frozen=True)
class Asked:
    """A call, and the matrix that it must mean, (batch, heads, n_q, n_k)."""

    weights: regard.weights.Weights
    dense: Tensor
    seen: Tensor
    where: direct.Places


def ask(case: Case) -> Asked:
    batch, heads, key_heads, n_q, n_k = case.shape
    q, k = normal(batch, heads, n_q, 6, seed=1), normal(batch, key_heads, n_k, 6, seed=2)
    found = regard.attend(q, k, normal(batch, key_heads, n_k, 1, seed=3), **case.options())
    where = direct.places((batch, heads, n_q, n_k), case.start)
    scores = q @ k.repeat_interleave(heads // key_heads, dim=1).mT / math.sqrt(6)
    scores = scores if case.rule is None else case.rule(scores, where)
    allowed = torch.ones((), dtype=torch.bool) if case.sees is None else case.sees(where)
    seen = allowed.expand(where.shape)
    return Asked(found.weights, (case.weighs or direct.softmax())(scores, seen), seen, where)


@pytest.fixture(scope="module", params=CASES)
def asked(request) -> Asked:
    """Each case in turn; pytest runs all tests of one before it makes the next."""
    return ask(CASES[request.param])


@pytest.fixture(scope="module")
def causal() -> Asked:
    return ask(CASES["causal"])


def test_entropy_is_minus_the_sum_of_a_log_a(asked):
    (found,) = asked.weights.measure(measure.entropy)

    safe = torch.where(asked.dense > 0, asked.dense, 1.0)
    same(found, -(asked.dense * safe.log()).sum(-1))


def test_received_is_the_sum_down_each_column(asked):
    (found,) = asked.weights.measure(measure.received)

    same(found, asked.dense.sum(-2))


def test_distance_is_the_mean_of_how_far_a_query_looks(asked):
    (found,) = asked.weights.measure(measure.distance)

    far = (asked.where.p - asked.where.j).abs()
    total = asked.dense.sum(-1)
    same(found, torch.where(total > 0, (asked.dense * far).sum(-1) / total, 0.0))


def test_top_holds_the_largest_weights_and_where_they_stand(asked):
    (found,) = asked.weights.measure(measure.top(8))

    values, _ = asked.dense.sort(dim=-1, descending=True)
    same(found.values, values[..., :8])
    there = found.indices >= 0
    same(asked.dense.gather(-1, found.indices.clamp(min=0))[there], found.values[there])
    assert bool(asked.seen.gather(-1, found.indices.clamp(min=0))[there].all())
    assert torch.equal(there.sum(-1), asked.seen.sum(-1).clamp(max=8))
    for row in found.indices.flatten(0, -2)[::97].tolist():
        kept = [j for j in row if j >= 0]
        assert len(set(kept)) == len(kept)
        assert all(j == -1 for j in row[len(kept) :])


def test_a_pool_holds_mean_and_maximum_of_each_cell(asked):
    (found,) = asked.weights.measure(measure.pool(64, 48))

    n_q, n_k = asked.dense.shape[-2:]
    height, width = math.ceil(n_q / 64), math.ceil(n_k / 48)
    assert found.cell == (height, width)
    rows, columns = range(0, n_q, height), range(0, n_k, width)
    assert found.mean.shape == found.max.shape == (*asked.dense.shape[:2], len(rows), len(columns))
    for how, pooled in (("mean", found.mean), ("amax", found.max)):
        expected = [
            [getattr(asked.dense[:, :, i : i + height, j : j + width], how)((-2, -1)) for j in columns] for i in rows
        ]
        same(pooled, torch.stack([torch.stack(row, -1) for row in expected], -2))


MASSES: dict[str, tuple[Any, direct.Mask]] = {
    "the previous token": (
        mask.causal() & mask.window(2) & ~mask.window(1),
        lambda where: where.j == where.p - 1,
    ),
    "a window": (mask.window(5, 3), direct.window(5, 3)),
    "a function of i and h": (
        lambda b, h, i, j: (i * 7 + j) % (h + 3) == 0,
        lambda where: (where.i * 7 + where.j) % (where.h + 3) == 0,
    ),
    "global tokens": (mask.tokens([0, 17]), direct.tokens([0, 17])),
}


@pytest.mark.parametrize("under", MASSES)
def test_mass_is_the_sum_of_a_row_under_a_mask(asked, under):
    ours, theirs = MASSES[under]

    (found,) = asked.weights.measure(measure.mass(ours))

    same(found, (asked.dense * theirs(asked.where)).sum(-1))


def test_diagonals_hold_the_sum_along_each_from_the_lower_left_to_the_upper_right(asked):
    (found,) = asked.weights.measure(measure.diagonals)

    n_q, n_k = asked.dense.shape[-2:]
    expected = [asked.dense.diagonal(offset, -2, -1).sum(-1) for offset in range(-(n_q - 1), n_k)]
    same(found, torch.stack(expected, -1))


def test_mass_under_a_tensor_is_the_sum_of_a_row_where_it_is_true(causal):
    coins = torch.rand(N, N, generator=torch.Generator().manual_seed(5)) < 0.3

    (found,) = causal.weights.measure(measure.mass(coins))

    same(found, (causal.dense * coins).sum(-1))


def test_mass_under_keys_of_another_length_is_refused(causal):
    with pytest.raises(SpecError, match=r"\(1, 2, 1000, 1000\).*\(999,\)"):
        causal.weights.measure(measure.mass(torch.ones(999, dtype=torch.bool)))


ALL = (
    measure.entropy,
    measure.received,
    measure.top(3),
    measure.pool(7, 5),
    measure.mass(mask.window(9)),
    measure.distance,
    measure.diagonals,
)


@pytest.mark.parametrize("name", ["causal", "grouped heads, causal", "sigmoid, rows that see nothing"])
def test_several_measures_in_one_pass_are_the_same_bits_as_each_alone(name):
    weights = ask(CASES[name]).weights

    together = weights.measure(*ALL)

    assert len(together) == len(ALL)
    for one, found in zip(ALL, together, strict=True):
        (alone,) = weights.measure(one)
        parts = zip(alone, found, strict=True) if isinstance(alone, tuple) else [(alone, found)]
        for a, b in parts:
            assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def test_one_pass_visits_every_tile_once_however_many_measures_run(causal, monkeypatch):
    looked = []
    once = regard.weights.Weights._tiles

    def counted(self, cell):
        for tile in once(self, cell):
            looked.append(tuple(tile.weights.shape))
            yield tile

    monkeypatch.setattr(regard.weights.Weights, "_tiles", counted)
    weights = causal.weights
    weights.measure(measure.entropy)
    alone = len(looked)
    weights.measure(*ALL)

    assert alone > 1
    assert len(looked) == 2 * alone


def test_the_results_are_known_by_order_and_by_name(causal):
    found = causal.weights.measure(measure.top(3), measure.entropy, measure.pool(2, 2))

    assert found.entropy is found[1]
    assert found.top is found[0]
    assert found.pool.mean is found[2].mean
    assert found.names == ("top", "entropy", "pool")


def test_a_name_that_is_given_twice_or_not_at_all_is_no_name(causal):
    found = causal.weights.measure(measure.top(3), measure.top(5), measure.entropy)

    assert found[0].values.shape[-1] == 3
    assert found[1].values.shape[-1] == 5
    with pytest.raises(AttributeError, match="no single measure 'top' here; there are: top, top, entropy"):
        _ = found.top
    with pytest.raises(AttributeError, match="'received'"):
        _ = found.received


def test_no_measures_give_no_results(causal):
    assert causal.weights.measure() == ()


@pytest.mark.parametrize("seen", [mask.causal(), mask.where(lambda b, h, i, j: (j < i) & (i % 7 != 0)), None])
def test_the_largest_weight_alone_is_the_largest(seen: Any) -> None:
    torch.manual_seed(5)
    q, k = torch.randn(2, 1, 2, 300, 16)
    weights = regard.attend(q, k, k, mask=seen).weights
    (top,) = weights.measure(measure.top(1))
    dense = weights[...]
    right = dense.max(-1)
    sees = right.values > 0
    torch.testing.assert_close(top.values[..., 0], right.values)
    assert torch.equal(top.indices[..., 0][sees], right.indices[sees])
    assert bool((top.indices[..., 0][~sees] == -1).all())


@pytest.mark.parametrize("wrong", ["entropy", measure.top, None, 8])
def test_what_is_no_measure_is_refused(causal, wrong):
    with pytest.raises(SpecError, match=r"measure takes measures such as measure\.entropy; got"):
        causal.weights.measure(measure.entropy, wrong)


def test_measures_of_nothing_are_refused():
    with pytest.raises(SpecError, match="at least 1; got 0"):
        measure.top(0)
    with pytest.raises(SpecError, match="got 0 x 5"):
        measure.pool(0, 5)
    with pytest.raises(SpecError, match="got 5 x -1"):
        measure.pool(5, -1)


def test_more_cells_than_positions_leave_every_position_its_own_cell():
    q, k, v = (normal(5, 3, seed=s) for s in range(3))
    found = regard.attend(q, k, v)

    (pooled,) = found.weights.measure(measure.pool(64, 48))

    assert pooled.cell == (1, 1)
    same(pooled.mean, found.weights[...])
    same(pooled.max, found.weights[...])


def test_more_places_than_keys_are_filled_with_minus_one_and_zero():
    q, k, v = (normal(5, 3, seed=s) for s in range(3))
    found = regard.attend(q, k, v, mask=mask.causal())

    (top,) = found.weights.measure(measure.top(7))

    assert top.values.shape == top.indices.shape == (5, 7)
    assert torch.equal((top.indices >= 0).sum(-1), torch.arange(1, 6))
    assert bool((top.values[top.indices == -1] == 0).all())
    same(top.values.sum(-1), torch.ones(5).double())


def test_a_seen_weight_of_zero_is_a_key_and_a_hidden_one_is_none():
    q, k = torch.tensor([[1.0]]), torch.tensor([[-1.0], [-2.0], [3.0]])
    hidden = torch.tensor([[True, True, False]])

    (top,) = regard.attend(q, k, k, mask=hidden, weigh=weigh.relu()).weights.measure(measure.top(3))

    assert sorted(top.indices[0].tolist()) == [-1, 0, 1]
    assert top.values.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("n_q, n_k", [(0, 3), (3, 0), (0, 0), (1, 1)])
def test_lengths_of_none_and_one_are_measured_like_any_other(n_q, n_k):
    found = regard.attend(normal(2, n_q, 3), normal(2, n_k, 3), normal(2, n_k, 3)).weights.measure(*ALL)

    assert found.entropy.shape == found.distance.shape == found.mass.shape == (2, n_q)
    assert found.received.shape == (2, n_k)
    assert found.top.values.shape == found.top.indices.shape == (2, n_q, 3)
    assert found.pool.mean.shape == found.pool.max.shape == (2, n_q, n_k)
    assert found.diagonals.shape == (2, max(n_q + n_k - 1, 0))
    if (n_q, n_k) == (1, 1):
        same(found.diagonals, torch.ones(2, 1, dtype=found.diagonals.dtype))  # up to the rounding of the lse
        same(found.received, torch.ones(2, 1, dtype=found.received.dtype))


@pytest.mark.parametrize("lead", [(), (3,), (2, 2), (2, 3, 2)])
def test_results_have_the_dimensions_of_the_caller_before_the_length(lead):
    q, k, v = (normal(*lead, n, 3, seed=s) for s, n in enumerate((4, 5, 5)))

    found = regard.attend(q, k, v).weights
    measured = found.measure(*ALL)

    whole = found[...]
    same(measured.received, whole.sum(-2))
    same(measured.mass, (whole * mask.window(9).dense(4, 5)[0, 0]).sum(-1))
    same(measured.top.values, whole.sort(dim=-1, descending=True).values[..., :3])
    assert measured.pool.mean.shape == (*lead, 4, 5)
    assert measured.diagonals.shape == (*lead, 8)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_numpy_in_is_numpy_out(dtype):
    q, k, v = (normal(2, 20, 3, seed=s).numpy().astype(dtype) for s in range(3))

    weights = regard.attend(q, k, v, mask=mask.causal()).weights
    found = weights.measure(*ALL)

    for result in (found.entropy, found.received, *found.top, *found.pool[:2], found.mass, found.diagonals):
        assert isinstance(result, np.ndarray)
    assert found.entropy.dtype == dtype
    assert found.top.indices.dtype == np.int64
    np.testing.assert_allclose(found.received, weights[...].sum(-2), rtol=1e-5 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_is_measured_in_float32(dtype):
    q, k, v = (normal(300, 8, seed=s, dtype=dtype) for s in range(3))

    found = regard.attend(q, k, v, mask=mask.causal()).weights.measure(measure.entropy, measure.received)

    scores = torch.where(torch.ones(300, 300, dtype=torch.bool).tril(), (q.double() @ k.double().mT) / 8**0.5, -1e9)
    dense = torch.softmax(scores, -1)
    assert found.entropy.dtype == found.received.dtype == torch.float32
    # weights are float32, so their errors are some 1e-7 of each weight, and sums of up to 300 keep that
    torch.testing.assert_close(found.received.double(), dense.sum(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.entropy.double(), torch.special.entr(dense).sum(-1), rtol=1e-5, atol=1e-5)


def test_equal_scores_have_the_entropy_of_the_number_of_keys_seen():
    x = torch.zeros(700, 2, dtype=torch.float64)

    found = regard.attend(x, x, x, mask=mask.causal()).weights.measure(measure.entropy, measure.distance)

    seen = torch.arange(1, 701).double()
    same(found.entropy, seen.log())
    same(found.distance, (seen - 1) / 2)


def test_measures_are_of_the_weights_before_dropout():
    q, k, v = (normal(600, 4, seed=s) for s in range(3))

    dropped = regard.attend(q, k, v, dropout=0.5, seed=1).weights.measure(measure.entropy, measure.received)
    kept = regard.attend(q, k, v).weights.measure(measure.entropy, measure.received)

    for a, b in zip(dropped, kept, strict=True):
        assert torch.equal(a, b)


def test_measures_leave_no_graph_behind():
    q, k, v = (normal(20, 4, seed=s).requires_grad_() for s in range(3))

    found = regard.attend(q, k, v).weights.measure(*ALL)

    for result in (found.entropy, found.received, found.top.values, found.pool.mean, found.pool.max, found.diagonals):
        assert not result.requires_grad


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_hidden_reaches_no_measure_even_if_it_is_not_finite(bad):
    q, k, v = (normal(600, 4, seed=s) for s in range(3))
    expected = regard.attend(q, k, v, mask=mask.padding([590])).weights.measure(*ALL)
    k[590:] = bad

    found = regard.attend(q, k, v, mask=mask.padding([590])).weights.measure(*ALL)

    for name in ("entropy", "received", "mass", "distance", "diagonals"):
        same(getattr(found, name), getattr(expected, name))
    same(found.pool.mean, expected.pool.mean)
    same(found.pool.max, expected.pool.max)
    same(found.top.values, expected.top.values)
    assert torch.equal(found.top.indices, expected.top.indices)


@pytest.mark.parametrize("engine", regard.engines())
def test_every_engine_leaves_weights_to_be_measured(engine):
    q, k, v = (normal(2, 2, 50, 4, seed=s) for s in range(3))

    found = regard.attend(q, k, v, mask=mask.causal(), engine=engine).weights
    measured = found.measure(measure.entropy, measure.received)

    same(measured.received, found[...].sum(-2))
    same(measured.entropy, torch.special.entr(found[...]).sum(-1))


def test_measuring_twice_gives_the_same_bits(causal):
    weights = causal.weights

    one, other = (weights.measure(measure.entropy, measure.received, measure.diagonals) for _ in range(2))

    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


NEAR = dict(rtol=1e-5, atol=1e-6)  # float32 sums of a thousand numbers of at most about 1
SINGLE = ("plain", "causal", "causal window", "a mask of each head, grouped", "rows that see nothing", "sink, causal")


@pytest.mark.parametrize("name", [name for name in CASES if name in SINGLE])
def test_what_is_known_without_writing_pairs_is_what_the_pairs_tell(name):
    """Kernels that add up weights where they are made, beside the sums of the weights themselves."""
    case = CASES[name]
    _, heads, key_heads, n_q, n_k = case.shape
    q, k = normal(2, heads, n_q, 16, dtype=torch.float32), normal(2, key_heads, n_k, 16, dtype=torch.float32, seed=1)
    weights = regard.attend(q, k, k, **case.options()).weights
    whole = weights.dense()
    found = weights.measure(measure.entropy, measure.received, measure.top(1), measure.pool(50, 50))
    torch.testing.assert_close(found.entropy, torch.special.entr(whole).sum(-1), **NEAR)
    torch.testing.assert_close(found.received, whole.sum(-2), **NEAR)
    best = whole.amax(-1)
    torch.testing.assert_close(found.top.values[..., 0], best, **NEAR)
    sees = best > 0
    there = whole.gather(-1, found.top.indices.clamp(min=0))[..., 0]
    torch.testing.assert_close(there[sees], best[sees], **NEAR)
    assert (found.top.indices[..., 0][~sees] == -1).all()
    cells = whole.unflatten(-1, (50, 20)).unflatten(-3, (50, 20))
    torch.testing.assert_close(found.pool.mean, cells.mean((-3, -1)), **NEAR)
    torch.testing.assert_close(found.pool.max, cells.amax((-3, -1)), **NEAR)
    alone = [weights.measure(m)[0] for m in (measure.received, measure.pool(25, 25))]
    torch.testing.assert_close(alone[0], whole.sum(-2), **NEAR)
    torch.testing.assert_close(
        alone[1].max, whole.unflatten(-1, (25, 40)).unflatten(-3, (25, 40)).amax((-3, -1)), **NEAR
    )


def test_two_maps_of_different_cells_in_one_pass_are_those_of_two_passes():
    q, k = normal(1, 2, 300, 8, dtype=torch.float32), normal(1, 2, 300, 8, dtype=torch.float32, seed=1)
    weights = regard.attend(q, k, k, mask=mask.causal()).weights
    both = weights.measure(measure.pool(10, 10), measure.pool(30, 30))
    for found, size in zip(both, (10, 30), strict=True):
        alone = weights.measure(measure.pool(size, size)).pool
        torch.testing.assert_close(found.mean, alone.mean, **NEAR)
        torch.testing.assert_close(found.max, alone.max, **NEAR)
