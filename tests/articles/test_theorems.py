"""The theorems of "Math description (Gemini)", corrected where needed, and other corrected statements of articles."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import regard
from regard import mask, normalizer, score
from tests.laws.cases import close, dtype_of, equal, examples

lengths = st.integers(1, 6)
seeds = st.integers(0, 10_000)


def normal(backend: str, seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype_of(backend))


# relu(s) - relu(-s) = s, so attention with ReLU weights computes products and signed sums exactly
def signed_weights(a: Tensor, b: Tensor, backend: str) -> Tensor:
    plus, minus = (
        regard.attention_with_weights(
            x, b, b, score=score.dot(), normalizer=normalizer.relu(1.0), backend=backend
        ).weights[...]
        for x in (a, -a)
    )
    return plus - minus


def signed_sum(a: Tensor, c: Tensor, backend: str) -> Tensor:
    unit = torch.eye(c.shape[0], dtype=c.dtype)
    plus, minus = (
        regard.attention(x, unit, c, score=score.dot(), normalizer=normalizer.relu(1.0), backend=backend)
        for x in (a, -a)
    )
    return plus - minus


@examples(25)
@given(m=lengths, n=lengths, seed=seeds)
def test_theorem_1_row_times_transposed_matrix_is_one_product_per_row(backend, m, n, seed):
    a, b = normal(backend, seed, 1, n), normal(backend, seed + 1, m, n)

    output = signed_weights(a, b, backend)

    assert output.shape == (1, m)
    for row in range(m):
        close(output[0, row], sum(a[0, c] * b[row, c] for c in range(n)), backend)


@examples(25)
@given(n=lengths, p=lengths, seed=seeds)
def test_theorem_1_row_times_matrix_is_a_weighted_sum_of_rows(backend, n, p, seed):
    a, c = normal(backend, seed, 1, n), normal(backend, seed + 1, n, p)

    output = signed_sum(a, c, backend)

    assert output.shape == (1, p)
    close(output[0], sum(a[0, row] * c[row] for row in range(n)), backend)


def scores_with_parameters(backend: str, seed: int, head_dim: int) -> list[object]:
    square = normal(backend, seed + 7, head_dim, head_dim)
    return [
        score.scaled_dot(),
        score.dot(),
        score.bilinear(square),
        score.cosine(3.0),
        score.gaussian(1.5),
        score.additive(square, square.mT, square[0]),
        score.scaled_dot().then(score.softcap(2.0)),
        lambda s, b, h, i, j: s - 0.1 * abs(i - j),
    ]


@examples(40)
@given(m=lengths, n=lengths, head_dim=st.integers(1, 4), seed=seeds, score_index=st.integers(0, 7))
def test_theorem_2_weights_are_a_distribution_for_every_score(backend, m, n, head_dim, seed, score_index):
    q, k = normal(backend, seed, m, head_dim), normal(backend, seed + 1, n, head_dim)
    v = normal(backend, seed + 2, n, 2)

    score_function = scores_with_parameters(backend, seed, head_dim)[score_index]
    weights = regard.attention_with_weights(q, k, v, score=score_function, value=torch.tanh, backend=backend).weights[
        ...
    ]

    assert bool((weights > 0).all())  # finite scores: no weight is 0, and only one key alone has weight 1
    assert bool((weights < 1).all()) or n == 1
    close(weights.sum(-1), torch.ones(m), backend)


@examples(25)
@given(n=lengths, seed=seeds)
def test_theorem_2_masked_weights_are_zero_and_rows_sum_to_one(backend, n, seed):
    q, k, v = (normal(backend, seed + s, n, 3) for s in range(3))

    weights = regard.attention_with_weights(q, k, v, mask=mask.causal(), backend=backend).weights[...]

    equal(weights.triu(1), torch.zeros_like(weights))
    assert bool((weights + torch.ones_like(weights).triu(1) > 0).all())
    close(weights.sum(-1), torch.ones(n), backend)


@examples(25)
@given(n=st.integers(2, 6), seed=seeds)
def test_theorem_2_outputs_lie_within_the_range_of_the_values(backend, n, seed):
    q, k, v = (normal(backend, seed + s, n, 3) for s in range(3))

    output = regard.attention(q, k, v, backend=backend)

    slack = 1e-5 if output.dtype == torch.float32 else 1e-12  # rounding may push a mean beyond its largest term
    assert bool((output <= v.amax(0) + slack).all())
    assert bool((output >= v.amin(0) - slack).all())


sizes = dict(m=lengths, n=lengths, d_k=st.integers(1, 5), d_v=st.integers(1, 4), seed=seeds)


def theorem_3(backend: str, m: int, n: int, d_k: int, d_v: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    return normal(backend, seed, m, d_k), normal(backend, seed + 1, n, d_k), normal(backend, seed + 2, n, d_v)


@examples(20)
@given(**sizes)
def test_theorem_3_1_scores_are_scaled_dot_products(backend, **size):
    q, k, v = theorem_3(backend, **size)

    result = regard.attention_with_weights(q, k, v, backend=backend)

    # a = exp(s - lse), so that s = log a + lse
    close(result.weights[...].log() + result.lse.unsqueeze(-1), q @ k.mT / math.sqrt(size["d_k"]), backend, times=10)


@examples(20)
@given(**sizes)
def test_theorem_3_2_weights_are_the_softmax_of_scaled_scores(backend, **size):
    q, k, v = theorem_3(backend, **size)
    weights = regard.attention_with_weights(q, k, v, backend=backend).weights

    for j, query in enumerate(q):
        exponentials = [math.exp(float(query.double() @ key.double()) / math.sqrt(size["d_k"])) for key in k]
        close(weights[j], torch.tensor([p / sum(exponentials) for p in exponentials], dtype=torch.float64), backend)


@examples(20)
@given(**sizes)
def test_theorem_3_3_outputs_are_weighted_sums_of_values(backend, **size):
    q, k, v = theorem_3(backend, **size)

    for query in q:
        single = regard.attention_with_weights(query[None], k, v, backend=backend)
        close(single.output[0], sum(single.weights[0, j] * v[j] for j in range(size["n"])), backend)


@examples(20)
@given(**sizes)
def test_theorem_3_4_weights_of_a_query_do_not_depend_on_other_queries(backend, **size):
    q, k, v = theorem_3(backend, **size)
    weights = regard.attention_with_weights(q, k, v, backend=backend).weights[...]

    assert weights.shape == (size["m"], size["n"])
    for j, query in enumerate(q):
        close(weights[j], regard.attention_with_weights(query[None], k, v, backend=backend).weights[0], backend)


@examples(20)
@given(**sizes)
def test_theorem_3_5_outputs_of_a_query_do_not_depend_on_other_queries(backend, **size):
    q, k, v = theorem_3(backend, **size)
    output = regard.attention(q, k, v, backend=backend)

    assert output.shape == (size["m"], size["d_v"])
    for j, query in enumerate(q):
        close(output[j], regard.attention(query[None], k, v, backend=backend)[0], backend)


def test_theorem_3_without_the_scale_is_a_different_mechanism(backend):
    q, k, v = theorem_3(backend, 3, 4, 5, 2, seed=1)

    unscaled_weights = torch.softmax(q @ k.mT, dim=-1)

    close(
        regard.attention_with_weights(q, k, v, score=score.dot(), backend=backend).weights[...],
        unscaled_weights,
        backend,
    )
    assert (regard.attention_with_weights(q, k, v, backend=backend).weights[...] - unscaled_weights).abs().max() > 0.1


def test_definition_3_different_dimensions_need_a_bilinear_score(backend):
    q, k, v = normal(backend, 1, 3, 4), normal(backend, 2, 5, 2), normal(backend, 3, 5, 2)
    w = normal(backend, 4, 4, 2)

    with pytest.raises(regard.errors.ArgumentError, match="q=4, k=2"):
        regard.attention(q, k, v, backend=backend)

    weights = regard.attention_with_weights(q, k, v, score=score.bilinear(w), backend=backend).weights[...]
    close(weights, torch.softmax(q @ w @ k.mT, dim=-1), backend)


# Corrected statements of the articles


def test_causal_outputs_do_not_depend_on_later_keys(backend):
    q, k, v = (normal(backend, s, 6, 3) for s in range(3))
    before = regard.attention(q, k, v, mask=mask.causal(), backend=backend)

    k, v = k.clone(), v.clone()
    k[3], v[3] = 10.0, -10.0
    after = regard.attention(q, k, v, mask=mask.causal(), backend=backend)

    equal(after[:3], before[:3])
    assert bool(((after[3:] - before[3:]).abs().amax(-1) > 1e-3).all())


def test_causal_gradients_flow_from_later_outputs_to_earlier_inputs_only(backend):
    x = normal(backend, 1, 5, 3)

    jacobian = torch.autograd.functional.jacobian(
        lambda x: regard.attention(x, x, x, mask=mask.causal(), backend=backend), x
    )

    is_nonzero = (jacobian != 0).any(-1).any(1)  # (output row, input row)
    assert torch.equal(is_nonzero, torch.ones(5, 5, dtype=torch.bool).tril())


def test_a_score_of_zero_is_not_zero_attention(backend):
    q, k = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.0, -2.0], [0.0, 3.0]])
    v = torch.tensor([[1.0], [2.0], [6.0]])

    result = regard.attention_with_weights(q, k, v, backend=backend)

    torch.testing.assert_close(result.weights[0].float(), torch.full((3,), 1 / 3))
    torch.testing.assert_close(result.output, torch.tensor([[3.0]]))


def test_an_orthogonal_key_has_more_weight_than_an_opposite_key(backend):
    q, k = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [-1.0, 0.0]])

    orthogonal, opposite = (
        regard.attention_with_weights(q, k, k, score=score.dot(), backend=backend).weights[0].tolist()
    )

    assert orthogonal == pytest.approx(math.e / (1 + math.e), abs=1e-6)
    assert opposite == pytest.approx(1 / (1 + math.e), abs=1e-6)  # less, and never negative


@examples(25)
@given(m=lengths, n=lengths, seed=seeds)
def test_permuting_queries_keys_and_mask_permutes_the_output(backend, m, n, seed):
    q, k, v = normal(backend, seed, m, 3), normal(backend, seed + 1, n, 3), normal(backend, seed + 2, n, 2)
    numbers = torch.Generator().manual_seed(seed)
    rows, columns = torch.randperm(m, generator=numbers), torch.randperm(n, generator=numbers)
    visible = torch.rand(m, n, generator=numbers) < 0.7

    permuted = regard.attention(q[rows], k[columns], v[columns], mask=visible[rows][:, columns], backend=backend)

    close(permuted, regard.attention(q, k, v, mask=visible, backend=backend)[rows], backend)


@examples(20)
@given(**sizes)
def test_gradients_match_the_corrected_formulas(backend, **size):
    q, k, v = (x.requires_grad_() for x in theorem_3(backend, **size))
    gradient = normal(backend, size["seed"] + 3, size["m"], size["d_v"])

    gradients = torch.autograd.grad(regard.attention(q, k, v, backend=backend), (q, k, v), gradient)

    q, k, v = (x.detach() for x in (q, k, v))
    weights = torch.softmax(q @ k.mT / math.sqrt(size["d_k"]), dim=-1)
    weight_gradient = gradient @ v.mT
    score_gradient = weights * (weight_gradient - (weights * weight_gradient).sum(-1, keepdim=True))
    close(gradients[0], score_gradient @ k / math.sqrt(size["d_k"]), backend)
    close(gradients[1], score_gradient.mT @ q / math.sqrt(size["d_k"]), backend)
    close(gradients[2], weights.mT @ gradient, backend)


def test_the_backward_pass_is_attention_with_the_reversed_map(backend):
    q, k, v = (normal(backend, s, 5, 3) for s in range(3))
    gradient = normal(backend, 3, 5, 3)
    zero_bias = torch.zeros(5, 5, dtype=q.dtype, requires_grad=True)

    output = regard.attention(q, k, v, score=score.bias(zero_bias), mask=mask.causal(), backend=backend)
    (reversed_map,) = torch.autograd.grad(output, zero_bias, gradient)

    equal(reversed_map.triu(1), torch.zeros_like(reversed_map))
    close(reversed_map.sum(-1), torch.zeros(5), backend)
    leaves = [x.detach().requires_grad_() for x in (q, k)]
    q_gradient, k_gradient = torch.autograd.grad(
        regard.attention(*leaves, v, mask=mask.causal(), backend=backend), leaves, gradient
    )
    close(q_gradient, reversed_map @ k / math.sqrt(3), backend)
    close(k_gradient, reversed_map.mT @ q / math.sqrt(3), backend)


def test_additive_masks_of_one_and_zero_are_equivalent(backend):
    q, k, v = (normal(backend, s, 5, 3) for s in range(3))
    additive_mask = torch.full((5, 5), 1.0, dtype=q.dtype).tril() + torch.full((5, 5), -math.inf, dtype=q.dtype).triu(1)

    output = regard.attention(q, k, v, score=score.bias(additive_mask), backend=backend)

    close(output, regard.attention(q, k, v, mask=mask.causal(), backend=backend), backend)


def test_gaussian_score_uses_the_squared_distance(backend):
    q, k, v = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.eye(2)

    weights = regard.attention_with_weights(q, k, v, score=score.gaussian(5.0), backend=backend).weights[0].tolist()

    # the distance is 5, so the score is -25/50, not -625/50
    assert weights[0] / weights[1] == pytest.approx(math.exp(-0.5), rel=1e-5)


def test_tied_scores_are_a_kernel_but_weights_are_not_symmetric(backend):
    x = normal(backend, 1, 6, 3)

    result = regard.attention_with_weights(x, x, x, backend=backend)
    weights, lse = result.weights[...].double(), result.lse.double()
    kernel = torch.exp(weights.log() + lse.unsqueeze(-1))

    assert float((kernel - kernel.mT).abs().max()) < 1e-4
    assert float(torch.linalg.eigvalsh((kernel + kernel.mT) / 2).min()) > -1e-4
    assert float((weights - weights.mT).abs().max()) > 0.05
