"""Dropout of weights, scaled by 1/(1-p), is a function of (seed, b, h, i, j) only.

With q = k = 0 every weight is 1/n_k, and with one-hot values the output is the matrix of weights after dropout.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import mask, normalizer

from . import cases, direct

seeds = st.integers(0, 2**31 - 1) | st.sampled_from([2**32 + 5, 2**40 + 3])


def dropout_pattern(backend, shape, p, seed, columns=None, **options):
    """Return which pairs of (batch, heads, n_q, n_k) are not dropped, for all keys or those in `columns`."""
    batch, heads, n_q, n_k = shape
    columns = range(n_k) if columns is None else columns
    dtype = cases.dtype_of(backend)
    v = torch.zeros(batch, heads, n_k, len(columns), dtype=dtype)
    v[:, :, list(columns), range(len(columns))] = 1.0
    q, k = (torch.zeros(batch, heads, n, 1, dtype=dtype) for n in (n_q, n_k))
    return cases.attention(backend, q, k, v, dropout=p, seed=seed, **options) != 0


def correlation(a, b):
    a, b = (x.double() - x.double().mean() for x in (a, b))
    return float((a * b).mean() / (a.std() * b.std()))


def bound(count):
    """Return five standard deviations of the correlation of `count` independent coins."""
    return 5 / count**0.5


@given(problem=cases.problems(), seed=seeds, p=st.sampled_from([0.1, 0.5, 0.9]))
@cases.examples(20)
def test_dropout_zeros_weights_and_scales_the_rest(backend, problem, seed, p):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    shape = (problem.batch_size, problem.num_heads, problem.n_q, problem.n_k)
    keep = dropout_pattern(backend, shape, p, seed).double() / (1 - p)

    output = cases.attention(backend, q, k, v, dropout=p, seed=seed)

    cases.close(output, direct.attention(q, k, v, dropout_mask=keep).output, backend, times=10)  # 1/(1-p) is up to 10


@pytest.mark.parametrize(
    "tested, reference",
    [
        (normalizer.sink(0.3), direct.sink(0.3)),
        (normalizer.sigmoid(0.3), direct.sigmoid(0.3)),
        (normalizer.relu(), direct.relu()),
        (normalizer.sparsemax(), direct.sparsemax()),
        (normalizer.entmax(1.4), direct.entmax(1.4)),
        (normalizer.topk(3), direct.topk(3)),
        (normalizer.hardmax(), direct.hardmax()),
    ],
    ids=["sink", "sigmoid", "relu", "sparsemax", "entmax", "topk", "hardmax"],
)
def test_every_normalizer_drops_the_same_pairs(backend, tested, reference):
    problem = cases.Problem(batch_size=2, num_heads=2, num_kv_heads=1, n_q=7, n_k=9, head_dim=3, value_dim=4, seed=2)
    q, k, v = problem.tensors(cases.dtype_of(backend))
    keep = dropout_pattern(backend, (2, 2, 7, 9), 0.4, 77).double() / 0.6

    output = cases.attention(backend, q, k, v, normalizer=tested, dropout=0.4, seed=77, mask=mask.causal())

    cases.close(
        output, direct.attention(q, k, v, normalizer=reference, dropout_mask=keep, mask=direct.causal()).output, backend
    )


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 12), st.integers(1, 12)),
    seed=seeds,
    p=st.sampled_from([0.2, 0.5, 0.75]),
)
@cases.examples(15)
def test_every_backend_drops_the_same_pairs(backend, shape, seed, p):
    assert torch.equal(dropout_pattern(backend, shape, p, seed), dropout_pattern("reference", shape, p, seed))


def test_every_backend_drops_the_same_pairs_beyond_the_first_tile(backend):
    shape = (2, 2, 300, 1300)

    assert torch.equal(dropout_pattern(backend, shape, 0.3, 5), dropout_pattern("reference", shape, 0.3, 5))


@given(data=st.data(), seed=seeds)
@cases.examples(15)
def test_a_smaller_problem_drops_the_same_pairs_as_a_larger_one(backend, data, seed):
    full = (3, 4, 11, 13)
    smaller_shape = tuple(data.draw(st.integers(1, size)) for size in full)

    larger, smaller = dropout_pattern(backend, full, 0.5, seed), dropout_pattern(backend, smaller_shape, 0.5, seed)

    assert torch.equal(smaller, larger[tuple(slice(size) for size in smaller_shape)])


@pytest.mark.parametrize("n_q, n_k", [(130, 300), (300, 130), (129, 257)])
def test_the_size_of_the_problem_does_not_change_the_pattern_across_tiles(backend, n_q, n_k):
    larger, smaller = (
        dropout_pattern(backend, (1, 1, 600, 300), 0.5, 9),
        dropout_pattern(backend, (1, 1, n_q, n_k), 0.5, 9),
    )

    assert torch.equal(smaller, larger[:, :, :n_q, :n_k])


@pytest.mark.parametrize(
    "options",
    [
        dict(query_offset=0),
        dict(query_offset=3),
        dict(normalizer=normalizer.sigmoid()),
        dict(mask=lambda b, h, i, j: j >= 0),
    ],
    ids=["query_offset-0", "query_offset-3", "sigmoid", "mask"],
)
def test_the_pattern_does_not_depend_on_other_options(backend, options):
    shape = (2, 2, 5, 8)

    assert torch.equal(dropout_pattern(backend, shape, 0.5, 3, **options), dropout_pattern(backend, shape, 0.5, 3))


def test_a_mask_that_skips_tiles_does_not_change_the_pattern(backend):
    shape = (1, 1, 300, 300)
    band = direct.sliding_window(40)(direct.positions(shape))

    assert torch.equal(
        dropout_pattern(backend, shape, 0.5, 3, mask=mask.sliding_window(40)),
        dropout_pattern(backend, shape, 0.5, 3) & band,
    )


def test_grouped_heads_drop_pairs_by_query_head(backend):
    dtype = cases.dtype_of(backend)
    q, k = torch.zeros(1, 4, 6, 1, dtype=dtype), torch.zeros(1, 2, 6, 1, dtype=dtype)
    v = torch.eye(6, dtype=dtype).expand(1, 2, 6, 6)

    grouped = cases.attention(backend, q, k, v, dropout=0.5, seed=4) != 0

    assert torch.equal(grouped, dropout_pattern(backend, (1, 4, 6, 6), 0.5, 4))


def test_the_pattern_does_not_depend_on_the_number_of_threads(backend):
    before = torch.get_num_threads()
    patterns = []
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            patterns.append(dropout_pattern(backend, (2, 3, 200, 200), 0.5, 8))
    finally:
        torch.set_num_threads(before)

    assert torch.equal(*patterns)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_fraction_of_dropped_pairs(backend, p):
    keep = dropout_pattern(backend, (2, 2, 256, 256), p, 12345)

    # five standard deviations of a mean of N coins
    assert abs(float(keep.double().mean()) - (1 - p)) < 5 * (p * (1 - p) / keep.numel()) ** 0.5


def test_the_mean_over_seeds_is_the_output_without_dropout(backend):
    q, k, v = cases.Problem(1, 1, 1, 3, 6, 4, 2, seed=5).tensors(cases.dtype_of(backend))
    draws = torch.stack([cases.attention(backend, q, k, v, dropout=0.3, seed=seed) for seed in range(400)]).double()
    expected = direct.attention(q, k, v).output

    # five standard errors, estimated from the draws
    assert ((draws.mean(0) - expected).abs() < 5 * draws.std(0) / 20).all()


@pytest.mark.parametrize("p", [0.25, 0.5])
def test_rows_columns_heads_and_batches_are_uncorrelated(backend, p):
    keep = dropout_pattern(backend, (2, 2, 256, 256), p, 2024)
    grid, upper = keep[0, 0], torch.ones(256, 256, dtype=torch.bool).triu(1)
    pairs = {
        "next row": (keep[:, :, 1:], keep[:, :, :-1]),
        "next column": (keep[..., 1:], keep[..., :-1]),
        "diagonal": (keep[:, :, 1:, 1:], keep[:, :, :-1, :-1]),
        "anti-diagonal": (keep[:, :, 1:, :-1], keep[:, :, :-1, 1:]),
        "far row": (keep[:, :, 128:], keep[:, :, :-128]),
        "far column": (keep[..., 128:], keep[..., :-128]),
        "transposed": (grid[upper], grid.mT[upper]),
        "next head": (keep[:, 0], keep[:, 1]),
        "next batch": (keep[0], keep[1]),
        "head for batch": (keep[0, 1], keep[1, 0]),
    }

    correlations = {name: (correlation(*pair), bound(pair[0].numel())) for name, pair in pairs.items()}

    assert {name: c for name, (c, limit) in correlations.items() if abs(c) > limit} == {}


def test_row_and_column_sums_have_the_variance_of_independent_coins(backend):
    keep = dropout_pattern(backend, (2, 2, 256, 256), 0.5, 99).double()
    expected = 256 * 0.25

    for sums in (keep.sum(-1), keep.sum(-2)):
        # the relative standard error of the variance of 1024 sums is sqrt(2/1024) = 4.4 %; five times that is 22 %
        assert abs(float(sums.var()) / expected - 1) < 0.22


def test_four_corners_of_a_rectangle_are_independent(backend):
    """A pattern f(i) xor g(j) passes every test of pairs and fails this one."""
    signs = dropout_pattern(backend, (2, 2, 256, 256), 0.5, 31).double() * 2 - 1

    for down, across in ((1, 1), (1, 16), (16, 1), (128, 128)):
        corners = signs[:, :, down:, across:] * signs[:, :, :-down, :-across]
        corners = corners * signs[:, :, down:, :-across] * signs[:, :, :-down, across:]
        assert abs(float(corners.mean())) < bound(corners.numel())


def test_patterns_of_neighboring_seeds_are_uncorrelated(backend):
    shape = (2, 2, 128, 128)
    first, next_seed, high_seed = (dropout_pattern(backend, shape, 0.5, seed) for seed in (100, 101, 100 + 2**32))

    for pair in (
        (first, next_seed),
        (first, high_seed),
        (first[:, :, 1:], next_seed[:, :, :-1]),
        (first[:, :, :-1], next_seed[:, :, 1:]),
        (first[..., 1:], next_seed[..., :-1]),
        (first[..., :-1], next_seed[..., 1:]),
        (first[:, 1:], next_seed[:, :-1]),
        (first[1:], next_seed[:-1]),
    ):
        assert abs(correlation(*pair)) < bound(pair[0].numel())


def test_the_pattern_does_not_repeat_at_distant_keys(backend):
    near, far = list(range(64)), list(range(65536, 65600))

    keep = dropout_pattern(backend, (1, 1, 64, 65600), 0.5, 17, columns=near + far)[0, 0]

    assert abs(correlation(keep[:, :64], keep[:, 64:])) < bound(64 * 64)


@given(problem=cases.problems(), seed=seeds)
@cases.examples(12)
def test_weights_are_those_before_dropout(backend, problem, seed):
    q, k, v = problem.tensors(cases.dtype_of(backend))

    result = cases.attention_with_weights(backend, q, k, v, mask=mask.causal(), dropout=0.5, seed=seed)
    expected = direct.attention(q, k, v, mask=direct.causal())

    cases.close(result.weights[:, :, :, :], expected.weights, backend)
    cases.close(result.lse, expected.lse, backend)


@given(problem=cases.problems(), seed=seeds)
@cases.examples(15)
def test_dropped_weights_pass_no_gradient(backend, problem, seed):
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(backend)))
    shape = (problem.batch_size, problem.num_heads, problem.n_q, problem.n_k)
    keep = dropout_pattern(backend, shape, 0.4, seed).double() / 0.6
    weights = problem.normal(*shape[:3], problem.value_dim)

    grads = cases.gradients(cases.attention(backend, q, k, v, dropout=0.4, seed=seed), (q, k, v), weights)
    expected = cases.gradients(direct.attention(q, k, v, dropout_mask=keep).output, (q, k, v), weights)

    for grad, expected_grad in zip(grads, expected, strict=True):
        cases.close(grad, expected_grad, backend, times=10)


def test_a_seed_without_dropout_changes_no_bit(backend):
    q, k, v = cases.Problem(2, 2, 2, 5, 6, 3, 3, seed=1).tensors(cases.dtype_of(backend))

    cases.equal(cases.attention(backend, q, k, v, dropout=0.0, seed=3), cases.attention(backend, q, k, v))


def test_the_default_seed_is_drawn_from_torch_and_returned(backend):
    q, k, v = cases.Problem(1, 2, 2, 9, 9, 3, 3, seed=1).tensors(cases.dtype_of(backend))

    torch.manual_seed(11)
    first, second = (cases.attention_with_weights(backend, q, k, v, dropout=0.5) for _ in range(2))
    torch.manual_seed(11)
    repeated = cases.attention_with_weights(backend, q, k, v, dropout=0.5)

    assert first.seed != second.seed
    assert not torch.equal(first.output, second.output)
    assert repeated.seed == first.seed
    cases.equal(repeated.output, first.output)
    cases.equal(cases.attention(backend, q, k, v, dropout=0.5, seed=first.seed), first.output)
