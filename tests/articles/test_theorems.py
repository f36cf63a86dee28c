"""The theorems of the second article, with its slips mended, and other sentences of the articles put right."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import regard
from regard import mask, score, weigh
from tests.laws.cases import close, dtype_of, equal, examples

lengths = st.integers(1, 6)
seeds = st.integers(0, 10_000)


def normal(engine: str, seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype_of(engine))


# relu(s) - relu(-s) = s: with these weights, products and signed sums pass through attention unchanged.
def signed_weights(a: Tensor, b: Tensor, engine: str) -> Tensor:
    plus, minus = (
        regard.attend(x, b, b, score=score.dot(), weigh=weigh.relu(1.0), engine=engine).weights[...] for x in (a, -a)
    )
    return plus - minus


def signed_sum(a: Tensor, c: Tensor, engine: str) -> Tensor:
    unit = torch.eye(c.shape[0], dtype=c.dtype)
    plus, minus = (
        regard.attention(x, unit, c, score=score.dot(), weigh=weigh.relu(1.0), engine=engine) for x in (a, -a)
    )
    return plus - minus


@examples(25)
@given(m=lengths, n=lengths, seed=seeds)
def test_theorem_1_a_row_times_a_transposed_matrix_holds_one_product_for_each_of_its_m_rows(engine, m, n, seed):
    a, b = normal(engine, seed, 1, n), normal(engine, seed + 1, m, n)

    found = signed_weights(a, b, engine)

    assert found.shape == (1, m)
    for row in range(m):
        close(found[0, row], sum(a[0, c] * b[row, c] for c in range(n)), engine)


@examples(25)
@given(n=lengths, p=lengths, seed=seeds)
def test_theorem_1_a_row_times_a_matrix_is_the_sum_of_its_rows_weighted_by_the_row(engine, n, p, seed):
    a, c = normal(engine, seed, 1, n), normal(engine, seed + 1, n, p)

    found = signed_sum(a, c, engine)

    assert found.shape == (1, p)
    close(found[0], sum(a[0, row] * c[row] for row in range(n)), engine)


def scores_with_parameters(engine: str, seed: int, width: int) -> list[object]:
    square = normal(engine, seed + 7, width, width)
    return [
        score.scaled_dot(),
        score.dot(),
        score.multiplicative(square),
        score.cosine(3.0),
        score.metric(1.5),
        score.additive(square, square.mT, square[0]),
        score.scaled_dot().then(score.softcap(2.0)),
        lambda s, b, h, i, j: s - 0.1 * abs(i - j),
    ]


@examples(40)
@given(m=lengths, n=lengths, width=st.integers(1, 4), seed=seeds, which=st.integers(0, 7))
def test_theorem_2_the_weights_are_a_probability_distribution_whatever_the_score(engine, m, n, width, seed, which):
    q, k, v = normal(engine, seed, m, width), normal(engine, seed + 1, n, width), normal(engine, seed + 2, n, 2)

    chosen = scores_with_parameters(engine, seed, width)[which]
    weights = regard.attend(q, k, v, score=chosen, value=torch.tanh, engine=engine).weights[...]

    assert bool((weights > 0).all())  # finite scores: no weight is 0, and only a single key has weight 1
    assert bool((weights < 1).all()) or n == 1
    close(weights.sum(-1), torch.ones(m), engine)


@examples(25)
@given(n=lengths, seed=seeds)
def test_theorem_2_what_a_mask_hides_has_no_weight_and_the_rest_is_still_a_distribution(engine, n, seed):
    q, k, v = (normal(engine, seed + s, n, 3) for s in range(3))

    weights = regard.attend(q, k, v, mask=mask.causal(), engine=engine).weights[...]

    equal(weights.triu(1), torch.zeros_like(weights))
    assert bool((weights + torch.ones_like(weights).triu(1) > 0).all())
    close(weights.sum(-1), torch.ones(n), engine)


@examples(25)
@given(n=st.integers(2, 6), seed=seeds)
def test_theorem_2_outputs_stay_among_the_values(engine, n, seed):
    q, k, v = (normal(engine, seed + s, n, 3) for s in range(3))

    output = regard.attention(q, k, v, engine=engine)

    slack = 1e-5 if output.dtype == torch.float32 else 1e-12  # a mean may be rounded past its largest term
    assert bool((output <= v.amax(0) + slack).all())
    assert bool((output >= v.amin(0) - slack).all())


sizes = dict(m=lengths, n=lengths, d_k=st.integers(1, 5), d_v=st.integers(1, 4), seed=seeds)


def theorem_3(engine: str, m: int, n: int, d_k: int, d_v: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    return normal(engine, seed, m, d_k), normal(engine, seed + 1, n, d_k), normal(engine, seed + 2, n, d_v)


@examples(20)
@given(**sizes)
def test_theorem_3_1_the_scores_of_a_query_are_its_products_over_the_root_of_the_width(engine, **size):
    q, k, v = theorem_3(engine, **size)

    found = regard.attend(q, k, v, engine=engine)

    # a = exp(s - lse), so that s = log a + lse
    close(found.weights[...].log() + found.lse.unsqueeze(-1), q @ k.mT / math.sqrt(size["d_k"]), engine, times=10)


@examples(20)
@given(**sizes)
def test_theorem_3_2_the_weights_of_a_query_are_the_softmax_of_its_scaled_scores(engine, **size):
    q, k, v = theorem_3(engine, **size)
    weights = regard.attend(q, k, v, engine=engine).weights

    for j, query in enumerate(q):
        powers = [math.exp(float(query.double() @ key.double()) / math.sqrt(size["d_k"])) for key in k]
        close(weights[j], torch.tensor([p / sum(powers) for p in powers], dtype=torch.float64), engine)


@examples(20)
@given(**sizes)
def test_theorem_3_3_the_output_of_a_query_is_the_weighted_sum_of_the_values(engine, **size):
    q, k, v = theorem_3(engine, **size)

    for query in q:
        alone = regard.attend(query[None], k, v, engine=engine)
        close(alone.output[0], sum(alone.weights[0, j] * v[j] for j in range(size["n"])), engine)


@examples(20)
@given(**sizes)
def test_theorem_3_4_each_row_of_the_weights_is_that_of_its_query_alone(engine, **size):
    q, k, v = theorem_3(engine, **size)
    weights = regard.attend(q, k, v, engine=engine).weights[...]

    assert weights.shape == (size["m"], size["n"])
    for j, query in enumerate(q):
        close(weights[j], regard.attend(query[None], k, v, engine=engine).weights[0], engine)


@examples(20)
@given(**sizes)
def test_theorem_3_5_each_row_of_the_output_is_that_of_its_query_alone(engine, **size):
    q, k, v = theorem_3(engine, **size)
    output = regard.attention(q, k, v, engine=engine)

    assert output.shape == (size["m"], size["d_v"])
    for j, query in enumerate(q):
        close(output[j], regard.attention(query[None], k, v, engine=engine)[0], engine)


def test_theorem_3_without_the_root_of_the_width_is_another_mechanism(engine):
    q, k, v = theorem_3(engine, 3, 4, 5, 2, seed=1)

    as_printed = torch.softmax(q @ k.mT, dim=-1)

    close(regard.attend(q, k, v, score=score.dot(), engine=engine).weights[...], as_printed, engine)
    assert (regard.attend(q, k, v, engine=engine).weights[...] - as_printed).abs().max() > 0.1


def test_definition_3_allows_unequal_widths_only_to_scores_with_a_matrix(engine):
    q, k, v = normal(engine, 1, 3, 4), normal(engine, 2, 5, 2), normal(engine, 3, 5, 2)
    w = normal(engine, 4, 4, 2)

    with pytest.raises(regard.errors.SpecError, match="q=4, k=2"):
        regard.attention(q, k, v, engine=engine)

    found = regard.attend(q, k, v, score=score.multiplicative(w), engine=engine).weights[...]
    close(found, torch.softmax(q @ w @ k.mT, dim=-1), engine)


# Sentences of the articles, put right.


def test_causal_means_that_the_past_cannot_look_at_the_future_and_not_the_other_way_round(engine):
    q, k, v = (normal(engine, s, 6, 3) for s in range(3))
    before = regard.attention(q, k, v, mask=mask.causal(), engine=engine)

    k, v = k.clone(), v.clone()
    k[3], v[3] = 10.0, -10.0
    after = regard.attention(q, k, v, mask=mask.causal(), engine=engine)

    equal(after[:3], before[:3])
    assert bool(((after[3:] - before[3:]).abs().amax(-1) > 1e-3).all())


def test_causal_gradients_flow_from_later_outputs_to_earlier_inputs_only(engine):
    x = normal(engine, 1, 5, 3)

    jacobian = torch.autograd.functional.jacobian(
        lambda x: regard.attention(x, x, x, mask=mask.causal(), engine=engine), x
    )

    reaches = (jacobian != 0).any(-1).any(1)  # (output row, input row)
    assert torch.equal(reaches, torch.ones(5, 5, dtype=torch.bool).tril())


def test_a_score_of_zero_is_not_zero_attention(engine):
    q, k = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.0, -2.0], [0.0, 3.0]])
    v = torch.tensor([[1.0], [2.0], [6.0]])

    found = regard.attend(q, k, v, engine=engine)

    torch.testing.assert_close(found.weights[0].float(), torch.full((3,), 1 / 3))
    torch.testing.assert_close(found.output, torch.tensor([[3.0]]))


def test_an_orthogonal_key_outweighs_an_opposite_one(engine):
    q, k = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [-1.0, 0.0]])

    away, opposite = regard.attend(q, k, k, score=score.dot(), engine=engine).weights[0].tolist()

    assert away == pytest.approx(math.e / (1 + math.e), abs=1e-6)
    assert opposite == pytest.approx(1 / (1 + math.e), abs=1e-6)  # less, and never negative


@examples(25)
@given(m=lengths, n=lengths, seed=seeds)
def test_queries_may_be_reordered_and_pairs_too_if_the_mask_moves_with_them(engine, m, n, seed):
    q, k, v = normal(engine, seed, m, 3), normal(engine, seed + 1, n, 3), normal(engine, seed + 2, n, 2)
    numbers = torch.Generator().manual_seed(seed)
    rows, columns = torch.randperm(m, generator=numbers), torch.randperm(n, generator=numbers)
    may = torch.rand(m, n, generator=numbers) < 0.7

    moved = regard.attention(q[rows], k[columns], v[columns], mask=may[rows][:, columns], engine=engine)

    close(moved, regard.attention(q, k, v, mask=may, engine=engine)[rows], engine)


@examples(20)
@given(**sizes)
def test_the_gradients_are_those_of_the_formula_and_not_the_ones_printed(engine, **size):
    q, k, v = (x.requires_grad_() for x in theorem_3(engine, **size))
    gradient = normal(engine, size["seed"] + 3, size["m"], size["d_v"])

    found = torch.autograd.grad(regard.attention(q, k, v, engine=engine), (q, k, v), gradient)

    q, k, v = (x.detach() for x in (q, k, v))
    weights = torch.softmax(q @ k.mT / math.sqrt(size["d_k"]), dim=-1)
    of_weights = gradient @ v.mT
    of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
    close(found[0], of_scores @ k / math.sqrt(size["d_k"]), engine)
    close(found[1], of_scores.mT @ q / math.sqrt(size["d_k"]), engine)
    close(found[2], weights.mT @ gradient, engine)


def test_the_backward_pass_is_an_attention_with_a_map_of_its_own(engine):
    q, k, v = (normal(engine, s, 5, 3) for s in range(3))
    gradient = normal(engine, 3, 5, 3)
    none = torch.zeros(5, 5, dtype=q.dtype, requires_grad=True)

    output = regard.attention(q, k, v, score=score.bias(none), mask=mask.causal(), engine=engine)
    (reversed_map,) = torch.autograd.grad(output, none, gradient)

    equal(reversed_map.triu(1), torch.zeros_like(reversed_map))
    close(reversed_map.sum(-1), torch.zeros(5), engine)
    leaves = [x.detach().requires_grad_() for x in (q, k)]
    of_q, of_k = torch.autograd.grad(regard.attention(*leaves, v, mask=mask.causal(), engine=engine), leaves, gradient)
    close(of_q, reversed_map @ k / math.sqrt(3), engine)
    close(of_k, reversed_map.mT @ q / math.sqrt(3), engine)


def test_an_added_mask_of_one_and_minus_infinity_is_the_same_as_one_of_zero_and_minus_infinity(engine):
    q, k, v = (normal(engine, s, 5, 3) for s in range(3))
    drawn = torch.full((5, 5), 1.0, dtype=q.dtype).tril() + torch.full((5, 5), -math.inf, dtype=q.dtype).triu(1)

    found = regard.attention(q, k, v, score=score.bias(drawn), engine=engine)

    close(found, regard.attention(q, k, v, mask=mask.causal(), engine=engine), engine)


def test_a_distance_in_the_score_is_squared_once(engine):
    q, k, v = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.eye(2)

    found = regard.attend(q, k, v, score=score.metric(5.0), engine=engine).weights[0].tolist()

    # the distance is 5, and so the score is -25/50, not -625/50
    assert found[0] / found[1] == pytest.approx(math.exp(-0.5), rel=1e-5)


def test_a_score_with_one_map_for_queries_and_keys_is_a_kernel_though_its_weights_are_not_symmetric(engine):
    x = normal(engine, 1, 6, 3)

    found = regard.attend(x, x, x, engine=engine)
    weights, lse = found.weights[...].double(), found.lse.double()
    kernel = torch.exp(weights.log() + lse.unsqueeze(-1))

    assert float((kernel - kernel.mT).abs().max()) < 1e-4
    assert float(torch.linalg.eigvalsh((kernel + kernel.mT) / 2).min()) > -1e-4
    assert float((weights - weights.mT).abs().max()) > 0.05
