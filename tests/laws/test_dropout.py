"""Dropout: on the weights, scaled by 1/(1-p), a pure function of (seed, b, h, i, j) and of nothing else.

With q = k = 0 every weight is 1/n_k, and with one-hot values the output shows each dropped weight by itself.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import mask, weigh

from . import cases, direct

seeds = st.integers(0, 2**31 - 1) | st.sampled_from([2**32 + 5, 2**40 + 3])


def pattern(engine, shape, p, seed, columns=None, **options):
    """Which pairs of (batch, heads, n_q, n_k) are kept; `columns` picks keys when there are many."""
    batch, heads, n_q, n_k = shape
    columns = range(n_k) if columns is None else columns
    dtype = cases.dtype_of(engine)
    v = torch.zeros(batch, heads, n_k, len(columns), dtype=dtype)
    v[:, :, list(columns), range(len(columns))] = 1.0
    q, k = (torch.zeros(batch, heads, n, 1, dtype=dtype) for n in (n_q, n_k))
    return cases.attention(engine, q, k, v, dropout=p, seed=seed, **options) != 0


def correlation(a, b):
    a, b = (x.double() - x.double().mean() for x in (a, b))
    return float((a * b).mean() / (a.std() * b.std()))


def bound(count):
    """Five standard deviations of the correlation of N independent coins; the patterns are fixed."""
    return 5 / count**0.5


@given(problem=cases.problems(), seed=seeds, p=st.sampled_from([0.1, 0.5, 0.9]))
@cases.examples(20)
def test_a_kept_weight_is_scaled_and_a_dropped_one_is_zero(engine, problem, seed, p):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    shape = (problem.batch, problem.heads, problem.n_q, problem.n_k)
    kept = pattern(engine, shape, p, seed).double() / (1 - p)

    got = cases.attention(engine, q, k, v, dropout=p, seed=seed)

    cases.close(got, direct.attention(q, k, v, kept=kept).output, engine, times=10)  # 1/(1-p) is up to 10


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (weigh.sink(0.3), direct.sink(0.3)),
        (weigh.sigmoid(0.3), direct.sigmoid(0.3)),
        (weigh.relu(), direct.relu()),
        (weigh.sparsemax(), direct.sparsemax()),
        (weigh.entmax(1.4), direct.entmax(1.4)),
        (weigh.top(3), direct.top(3)),
        (weigh.argmax(), direct.argmax()),
    ],
    ids=["sink", "sigmoid", "relu", "sparsemax", "entmax", "top", "argmax"],
)
def test_every_way_of_weighing_drops_the_same_pairs(engine, ours, theirs):
    problem = cases.Problem(batch=2, heads=2, key_heads=1, n_q=7, n_k=9, width=3, width_v=4, seed=2)
    q, k, v = problem.tensors(cases.dtype_of(engine))
    kept = pattern(engine, (2, 2, 7, 9), 0.4, 77).double() / 0.6

    got = cases.attention(engine, q, k, v, weigh=ours, dropout=0.4, seed=77, mask=mask.causal())

    cases.close(got, direct.attention(q, k, v, weigh=theirs, kept=kept, mask=direct.causal()).output, engine)


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 12), st.integers(1, 12)),
    seed=seeds,
    p=st.sampled_from([0.2, 0.5, 0.75]),
)
@cases.examples(15)
def test_every_engine_drops_the_same_pairs(engine, shape, seed, p):
    assert torch.equal(pattern(engine, shape, p, seed), pattern("reference", shape, p, seed))


def test_every_engine_drops_the_same_pairs_beyond_the_first_tile(engine):
    shape = (2, 2, 300, 1300)

    assert torch.equal(pattern(engine, shape, 0.3, 5), pattern("reference", shape, 0.3, 5))


@given(data=st.data(), seed=seeds)
@cases.examples(15)
def test_a_smaller_problem_drops_what_the_larger_drops_there(engine, data, seed):
    whole = (3, 4, 11, 13)
    part = tuple(data.draw(st.integers(1, size)) for size in whole)

    larger, smaller = pattern(engine, whole, 0.5, seed), pattern(engine, part, 0.5, seed)

    assert torch.equal(smaller, larger[: part[0], : part[1], : part[2], : part[3]])


@pytest.mark.parametrize("n_q, n_k", [(130, 300), (300, 130), (129, 257)])
def test_the_size_of_the_problem_never_moves_the_pattern_through_the_tiles(engine, n_q, n_k):
    larger, smaller = pattern(engine, (1, 1, 600, 300), 0.5, 9), pattern(engine, (1, 1, n_q, n_k), 0.5, 9)

    assert torch.equal(smaller, larger[:, :, :n_q, :n_k])


@pytest.mark.parametrize(
    "options",
    [dict(start=0), dict(start=3), dict(weigh=weigh.sigmoid()), dict(mask=lambda b, h, i, j: j >= 0)],
    ids=["start-0", "start-3", "sigmoid", "mask"],
)
def test_neither_start_nor_mask_nor_weighing_moves_the_pattern(engine, options):
    shape = (2, 2, 5, 8)

    assert torch.equal(pattern(engine, shape, 0.5, 3, **options), pattern(engine, shape, 0.5, 3))


def test_a_structured_mask_that_skips_tiles_keeps_the_pattern_of_what_it_shows(engine):
    shape = (1, 1, 300, 300)
    band = direct.window(40)(direct.places(shape))

    assert torch.equal(pattern(engine, shape, 0.5, 3, mask=mask.window(40)), pattern(engine, shape, 0.5, 3) & band)


def test_grouped_heads_drop_by_the_query_head(engine):
    dtype = cases.dtype_of(engine)
    q, k = torch.zeros(1, 4, 6, 1, dtype=dtype), torch.zeros(1, 2, 6, 1, dtype=dtype)
    v = torch.eye(6, dtype=dtype).expand(1, 2, 6, 6)

    grouped = cases.attention(engine, q, k, v, dropout=0.5, seed=4) != 0

    assert torch.equal(grouped, pattern(engine, (1, 4, 6, 6), 0.5, 4))


def test_the_number_of_threads_does_not_move_the_pattern(engine):
    before = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(pattern(engine, (2, 3, 200, 200), 0.5, 8))
    finally:
        torch.set_num_threads(before)

    assert torch.equal(*found)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_of_kept_pairs_is_right(engine, p):
    kept = pattern(engine, (2, 2, 256, 256), p, 12345)

    # five standard deviations of a mean of N coins
    assert abs(float(kept.double().mean()) - (1 - p)) < 5 * (p * (1 - p) / kept.numel()) ** 0.5


def test_the_mean_over_seeds_is_the_output_without_dropout(engine):
    q, k, v = cases.Problem(1, 1, 1, 3, 6, 4, 2, seed=5).tensors(cases.dtype_of(engine))
    draws = torch.stack([cases.attention(engine, q, k, v, dropout=0.3, seed=seed) for seed in range(400)]).double()
    expected = direct.attention(q, k, v).output

    # five standard errors, measured on the draws themselves
    assert ((draws.mean(0) - expected).abs() < 5 * draws.std(0) / 20).all()


@pytest.mark.parametrize("p", [0.25, 0.5])
def test_rows_columns_heads_and_batches_are_uncorrelated(engine, p):
    kept = pattern(engine, (2, 2, 256, 256), p, 2024)
    grid, upper = kept[0, 0], torch.ones(256, 256, dtype=torch.bool).triu(1)
    pairs = {
        "next row": (kept[:, :, 1:], kept[:, :, :-1]),
        "next column": (kept[..., 1:], kept[..., :-1]),
        "diagonal": (kept[:, :, 1:, 1:], kept[:, :, :-1, :-1]),
        "anti-diagonal": (kept[:, :, 1:, :-1], kept[:, :, :-1, 1:]),
        "far row": (kept[:, :, 128:], kept[:, :, :-128]),
        "far column": (kept[..., 128:], kept[..., :-128]),
        "transposed": (grid[upper], grid.mT[upper]),
        "next head": (kept[:, 0], kept[:, 1]),
        "next batch": (kept[0], kept[1]),
        "head for batch": (kept[0, 1], kept[1, 0]),
    }

    found = {name: (correlation(*pair), bound(pair[0].numel())) for name, pair in pairs.items()}

    assert {name: c for name, (c, limit) in found.items() if abs(c) > limit} == {}


def test_row_and_column_sums_spread_like_those_of_independent_coins(engine):
    kept = pattern(engine, (2, 2, 256, 256), 0.5, 99).double()
    expected = 256 * 0.25

    for sums in (kept.sum(-1), kept.sum(-2)):
        # the variance of 1024 sums is itself right to sqrt(2/1024) = 4.4 %, five times of which is 22 %
        assert abs(float(sums.var()) / expected - 1) < 0.22


def test_four_corners_of_a_rectangle_are_independent(engine):
    """A pattern of the form f(i) xor g(j) passes every test of pairs and fails this one."""
    signs = pattern(engine, (2, 2, 256, 256), 0.5, 31).double() * 2 - 1

    for down, across in ((1, 1), (1, 16), (16, 1), (128, 128)):
        corners = signs[:, :, down:, across:] * signs[:, :, :-down, :-across]
        corners = corners * signs[:, :, down:, :-across] * signs[:, :, :-down, across:]
        assert abs(float(corners.mean())) < bound(corners.numel())


def test_neighbouring_seeds_are_unrelated_and_do_not_shift_the_pattern(engine):
    shape = (2, 2, 128, 128)
    one, next_one, high = (pattern(engine, shape, 0.5, seed) for seed in (100, 101, 100 + 2**32))

    for other in (
        (one, next_one),
        (one, high),
        (one[:, :, 1:], next_one[:, :, :-1]),
        (one[:, :, :-1], next_one[:, :, 1:]),
        (one[..., 1:], next_one[..., :-1]),
        (one[..., :-1], next_one[..., 1:]),
        (one[:, 1:], next_one[:, :-1]),
        (one[1:], next_one[:-1]),
    ):
        assert abs(correlation(*other)) < bound(other[0].numel())


def test_the_pattern_does_not_repeat_at_far_keys(engine):
    near, far = list(range(64)), list(range(65536, 65600))

    kept = pattern(engine, (1, 1, 64, 65600), 0.5, 17, columns=near + far)[0, 0]

    assert abs(correlation(kept[:, :64], kept[:, 64:])) < bound(64 * 64)


@given(problem=cases.problems(), seed=seeds)
@cases.examples(12)
def test_weights_are_shown_before_dropout(engine, problem, seed):
    q, k, v = problem.tensors(cases.dtype_of(engine))

    got = cases.attend(engine, q, k, v, mask=mask.causal(), dropout=0.5, seed=seed)
    expected = direct.attention(q, k, v, mask=direct.causal())

    cases.close(got.weights[:, :, :, :], expected.weights, engine)
    cases.close(got.lse, expected.lse, engine)


@given(problem=cases.problems(), seed=seeds)
@cases.examples(15)
def test_gradients_go_through_the_kept_weights_only(engine, problem, seed):
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(engine)))
    shape = (problem.batch, problem.heads, problem.n_q, problem.n_k)
    kept = pattern(engine, shape, 0.4, seed).double() / 0.6
    weights = problem.normal(*shape[:3], problem.width_v)

    got = cases.gradients(cases.attention(engine, q, k, v, dropout=0.4, seed=seed), (q, k, v), weights)
    expected = cases.gradients(direct.attention(q, k, v, kept=kept).output, (q, k, v), weights)

    for one, other in zip(got, expected, strict=True):
        cases.close(one, other, engine, times=10)


def test_no_dropout_is_the_same_bits_with_or_without_a_seed(engine):
    q, k, v = cases.Problem(2, 2, 2, 5, 6, 3, 3, seed=1).tensors(cases.dtype_of(engine))

    cases.equal(cases.attention(engine, q, k, v, dropout=0.0, seed=3), cases.attention(engine, q, k, v))


def test_a_seed_not_given_is_taken_from_torch_and_reported(engine):
    q, k, v = cases.Problem(1, 2, 2, 9, 9, 3, 3, seed=1).tensors(cases.dtype_of(engine))

    torch.manual_seed(11)
    one, two = (cases.attend(engine, q, k, v, dropout=0.5) for _ in range(2))
    torch.manual_seed(11)
    again = cases.attend(engine, q, k, v, dropout=0.5)

    assert one.seed != two.seed
    assert not torch.equal(one.output, two.output)
    assert again.seed == one.seed
    cases.equal(again.output, one.output)
    cases.equal(cases.attention(engine, q, k, v, dropout=0.5, seed=one.seed), one.output)
