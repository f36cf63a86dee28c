"""Scores against their formulas, computed pair by pair."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, score
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.errors import ArgumentError
from regard.score import Score, as_score

# both sides are float64, with a few dozen roundings of numbers of size 1 to 100
CLOSE = dict(rtol=1e-11, atol=1e-11)
BATCH, HEADS, N_Q, N_K, HEAD_DIM = 2, 4, 5, 7, 6


def qk(num_kv_heads: int = HEADS, q_dim: int = HEAD_DIM, k_dim: int = HEAD_DIM) -> tuple[Tensor, Tensor]:
    q = torch.randn(BATCH, HEADS, N_Q, q_dim, dtype=torch.float64)
    k = torch.randn(BATCH, num_kv_heads, N_K, k_dim, dtype=torch.float64)
    return q, k


def scores(score_function: Score, q: Tensor, k: Tensor) -> Tensor:
    """Compute the scores from the prepared inputs as a backend does."""
    score_function.check_head_dims(q.shape[-1], k.shape[-1])
    inputs = score_function.prepare(q, k)
    k = inputs.k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    if score_function.kind == "additive":
        (u,) = inputs.parameters
        u = u if u.dim() == 1 else u[:, None, None]
        return (torch.tanh(inputs.q.unsqueeze(-2) + k.unsqueeze(-3)) * u).sum(-1)
    assert score_function.kind == "dot"
    return inputs.q @ k.mT * score_function.product_scale(q.shape[-1])


def pairwise(f: Callable[[Tensor, Tensor, int], Tensor], q: Tensor, k: Tensor) -> Tensor:
    """Compute f(query, key, head index) for every pair, one at a time."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    result = q.new_empty(*q.shape[:3], k.shape[2])
    for b, h, i, j in torch.cartesian_prod(*(torch.arange(n) for n in result.shape)).tolist():
        result[b, h, i, j] = f(q[b, h, i], k[b, h, j], h)
    return result


def assert_agrees(
    score_function: Score, f: Callable[[Tensor, Tensor, int], Tensor], num_kv_heads: int = HEADS, **head_dims: int
) -> None:
    q, k = qk(num_kv_heads, **head_dims)
    torch.testing.assert_close(scores(score_function, q, k), pairwise(f, q, k), **CLOSE)


all_groupings = pytest.mark.parametrize("num_kv_heads", [1, 2, HEADS])


@all_groupings
def test_dot_is_the_dot_product(num_kv_heads: int) -> None:
    assert_agrees(score.dot(), lambda q, k, h: q @ k, num_kv_heads)


@all_groupings
def test_scaled_dot_divides_by_the_root_of_the_head_dim(num_kv_heads: int) -> None:
    assert_agrees(score.scaled_dot(), lambda q, k, h: q @ k / math.sqrt(HEAD_DIM), num_kv_heads)
    assert_agrees(score.scaled_dot(0.3), lambda q, k, h: q @ k * 0.3, num_kv_heads)
    assert_agrees(score.scaled_dot(torch.tensor(0.3)), lambda q, k, h: q @ k * torch.tensor(0.3).double(), num_kv_heads)


@all_groupings
def test_a_scale_may_differ_by_head(num_kv_heads: int) -> None:
    scale = torch.rand(HEADS, dtype=torch.float64)
    assert_agrees(score.scaled_dot(scale), lambda q, k, h: q @ k * scale[h], num_kv_heads)
    assert_agrees(score.cosine(scale), lambda q, k, h: q @ k / q.norm() / k.norm() * scale[h], num_kv_heads)


@all_groupings
def test_bilinear_is_q_times_w_times_k(num_kv_heads: int) -> None:
    w = torch.randn(HEAD_DIM, 3, dtype=torch.float64)
    assert_agrees(score.bilinear(w), lambda q, k, h: q @ w @ k, num_kv_heads, k_dim=3)


@all_groupings
def test_bilinear_may_have_one_matrix_per_head(num_kv_heads: int) -> None:
    w = torch.randn(HEADS, HEAD_DIM, 3, dtype=torch.float64)
    assert_agrees(score.bilinear(w), lambda q, k, h: q @ w[h] @ k, num_kv_heads, k_dim=3)


@all_groupings
def test_product_dim_is_the_head_dim_of_the_prepared_inputs(num_kv_heads: int) -> None:
    q, k = qk(num_kv_heads, k_dim=3)
    for w in (torch.randn(HEAD_DIM, 3), torch.randn(HEADS, HEAD_DIM, 3)):
        assert (
            parse_call(AttentionCall(q, k, k, score=score.bilinear(w))).spec.head_dim
            == (score.bilinear(w).prepare(q, k).q.shape[-1])
        )
    for score_function in (score.dot(), score.cosine(), score.gaussian(), score.mahalanobis(torch.eye(HEAD_DIM))):
        q, k = qk(num_kv_heads)
        assert score_function.product_dim(HEAD_DIM) == score_function.prepare(q, k).q.shape[-1]


def test_bilinear_is_dot_with_transformed_keys() -> None:
    q, k = qk()
    w = torch.randn(HEAD_DIM, HEAD_DIM, dtype=torch.float64)
    torch.testing.assert_close(scores(score.bilinear(w), q, k), scores(score.dot(), q, k @ w.T), **CLOSE)


@all_groupings
def test_cosine_does_not_depend_on_the_norms(num_kv_heads: int) -> None:
    assert_agrees(score.cosine(7.0), lambda q, k, h: 7 * torch.cosine_similarity(q, k, dim=0), num_kv_heads)
    q, k = qk(num_kv_heads)
    plain, rescaled = scores(score.cosine(7.0), q, k), scores(score.cosine(7.0), q * 100, k * 0.01)
    torch.testing.assert_close(plain, rescaled, **CLOSE)
    assert plain.abs().max() <= 7.0


def test_a_zero_vector_has_cosine_zero_with_every_key() -> None:
    q, k = qk()
    q[0, 0, 0] = 0
    assert (scores(score.cosine(), q, k)[0, 0, 0] == 0).all()


@all_groupings
def test_gaussian_is_minus_half_the_squared_distance_over_sigma_squared(num_kv_heads: int) -> None:
    assert_agrees(score.gaussian(0.7), lambda q, k, h: -((q - k) ** 2).sum() / (2 * 0.7**2), num_kv_heads)
    sigma = torch.rand(HEADS, dtype=torch.float64) + 0.5
    assert_agrees(score.gaussian(sigma), lambda q, k, h: -((q - k) ** 2).sum() / (2 * sigma[h] ** 2), num_kv_heads)
    scalar = torch.tensor(1.3, dtype=torch.float64)
    assert_agrees(score.gaussian(scalar), lambda q, k, h: -((q - k) ** 2).sum() / (2 * scalar**2), num_kv_heads)


def test_gaussian_weights_are_those_of_the_dot_product_minus_half_the_squared_key_norm() -> None:
    q, k = qk()
    sigma = 0.8
    output = scores(score.gaussian(sigma), q, k).softmax(-1)
    expected = ((q @ k.mT - (k**2).sum(-1).unsqueeze(-2) / 2) / sigma**2).softmax(-1)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-14)


def test_gaussian_with_unit_keys_and_sigma_d_to_the_quarter_is_scaled_dot() -> None:
    q, k = qk()
    k = k / k.norm(dim=-1, keepdim=True)
    output = scores(score.gaussian(HEAD_DIM**0.25), q, k).softmax(-1)
    torch.testing.assert_close(output, scores(score.scaled_dot(), q, k).softmax(-1), rtol=1e-11, atol=1e-14)


def test_gaussian_stays_accurate_in_float32_far_from_the_origin() -> None:
    """At an offset of 100 sigma the squares are 10,000 times the distances, and float32 has seven digits."""
    sigma = 1.0
    q, k = qk()
    far_q, far_k = q.float() + 100 * sigma, k.float() + 100 * sigma
    expected = pairwise(lambda x, y, h: -((x - y) ** 2).sum() / (2 * sigma**2), far_q.double(), far_k.double())
    output = scores(score.gaussian(sigma), far_q, far_k).double()
    # scores reach 20, which float32 rounds at 1e-6
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=2e-5)
    naive = (far_q @ far_k.mT - (far_q**2).sum(-1, keepdim=True) / 2 - (far_k**2).sum(-1).unsqueeze(-2) / 2).double()
    assert (naive - expected).abs().max() > 100 * (output - expected).abs().max()


def test_a_nonfinite_key_does_not_change_the_scores_of_other_keys() -> None:
    q, k = qk()
    expected = scores(score.gaussian(1.0), q, k)
    for value in (torch.nan, torch.inf, 1e12):
        changed = k.clone()
        changed[:, :, 3] = value
        output = scores(score.gaussian(1.0), q, changed)
        others = [j for j in range(N_K) if j != 3]
        torch.testing.assert_close(output[..., others], expected[..., others], **CLOSE)


@all_groupings
def test_mahalanobis_is_the_distance_under_a_matrix(num_kv_heads: int) -> None:
    factor = torch.randn(HEAD_DIM, HEAD_DIM, dtype=torch.float64)
    m = factor @ factor.T
    assert_agrees(score.mahalanobis(m), lambda q, k, h: -(q - k) @ m @ (q - k) / 2, num_kv_heads)


def test_mahalanobis_is_gaussian_of_vectors_transformed_by_the_factor() -> None:
    q, k = qk()
    factor = torch.randn(HEAD_DIM, HEAD_DIM, dtype=torch.float64)
    output = scores(score.mahalanobis(factor @ factor.T), q, k)
    torch.testing.assert_close(output, scores(score.gaussian(1.0), q @ factor, k @ factor), **CLOSE)


def test_only_the_symmetric_part_of_m_has_an_effect() -> None:
    q, k = qk()
    m = torch.randn(HEAD_DIM, HEAD_DIM, dtype=torch.float64)
    torch.testing.assert_close(
        scores(score.mahalanobis(m), q, k), scores(score.mahalanobis((m + m.T) / 2), q, k), **CLOSE
    )


@all_groupings
def test_additive_is_tanh_of_the_sum(num_kv_heads: int) -> None:
    w_q, w_k = torch.randn(HEAD_DIM, 8, dtype=torch.float64), torch.randn(3, 8, dtype=torch.float64)
    u, b = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    assert_agrees(score.additive(w_q, w_k, u), lambda q, k, h: u @ torch.tanh(q @ w_q + k @ w_k), num_kv_heads, k_dim=3)
    assert_agrees(
        score.additive(w_q, w_k, u, b), lambda q, k, h: u @ torch.tanh(q @ w_q + k @ w_k + b), num_kv_heads, k_dim=3
    )


def test_additive_is_the_form_with_concatenated_q_and_k() -> None:
    w = torch.randn(8, 2 * HEAD_DIM, dtype=torch.float64)
    u = torch.randn(8, dtype=torch.float64)
    score_function = score.additive(w[:, :HEAD_DIM].T, w[:, HEAD_DIM:].T, u)
    assert_agrees(score_function, lambda q, k, h: u @ torch.tanh(w @ torch.cat([q, k])))


def test_additive_may_have_parameters_per_head() -> None:
    w_q, w_k = (torch.randn(HEADS, HEAD_DIM, 8, dtype=torch.float64) for _ in range(2))
    u = torch.randn(HEADS, 8, dtype=torch.float64)
    assert_agrees(score.additive(w_q, w_k, u), lambda q, k, h: u[h] @ torch.tanh(q @ w_q[h] + k @ w_k[h]))


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


PER_HEAD: dict[str, tuple[tuple[Tensor, ...], Callable[..., Score], Callable[..., Tensor]]] = {
    "additive": (
        (normal(HEADS, HEAD_DIM, 8), normal(HEADS, HEAD_DIM, 9)[..., :8], normal(HEADS, 8)),
        lambda w_q, w_k, u: score.additive(w_q, w_k, u),
        lambda q, k, w_q, w_k, u: u @ torch.tanh(q @ w_q + k @ w_k),
    ),
    "mahalanobis": (
        (normal(HEADS, HEAD_DIM, HEAD_DIM) @ normal(HEADS, HEAD_DIM, HEAD_DIM).mT,),
        lambda m: score.mahalanobis(m),
        lambda q, k, m: -(q - k) @ m @ (q - k) / 2,
    ),
    "bilinear": (
        (normal(HEADS, HEAD_DIM, HEAD_DIM),),
        lambda w: score.bilinear(w),
        lambda q, k, w: q @ w @ k,
    ),
    "gaussian": (
        (normal(HEADS).abs() + 0.5,),
        lambda sigma: score.gaussian(sigma),
        lambda q, k, sigma: -((q - k) ** 2).sum() / (2 * sigma**2),
    ),
}


@all_groupings
@pytest.mark.parametrize("backend", regard.available_backends())
@pytest.mark.parametrize("name", PER_HEAD)
def test_per_head_parameters_work_with_grouped_query_attention(name: str, backend: str, num_kv_heads: int) -> None:
    parameters, make, f = PER_HEAD[name]
    q, k = qk(num_kv_heads)
    expected = pairwise(lambda q, k, h: f(q, k, *(x[h] for x in parameters)), q, k).logsumexp(-1)
    output = regard.attention_with_weights(q, k, k, score=make(*parameters), backend=backend).lse
    torch.testing.assert_close(output, expected, **CLOSE)


def test_custom_passes_q_and_k_unchanged() -> None:
    q, k = qk()
    custom = score.custom(lambda q, k: -torch.cdist(q, k, p=1))
    custom.check_head_dims(3, 9)  # any head dimensions
    inputs = custom.prepare(q, k)
    assert torch.equal(inputs.q, q) and torch.equal(inputs.k, k) and inputs.parameters == ()


def test_custom_finds_the_tensors_that_its_function_uses() -> None:
    w = torch.randn(HEAD_DIM, HEAD_DIM, requires_grad=True)
    scale = torch.tensor(2.0, requires_grad=True)
    unused = torch.randn(3, requires_grad=True)

    def function(q: Tensor, k: Tensor) -> Tensor:
        assert unused is not None
        return (q @ w * scale) @ k.mT + w.sum() * 0

    inputs = score.custom(function).prepare(torch.randn(1, 2, 4, HEAD_DIM), torch.randn(1, 2, 5, HEAD_DIM))
    assert {id(x) for x in inputs.parameters} == {id(w), id(scale)}


HALF_DTYPES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_half_precision_is_prepared_in_float32_and_distances_in_float64(dtype: torch.dtype) -> None:
    q, k = (x.to(dtype) for x in qk())
    w = torch.randn(HEAD_DIM, 8)
    for score_function in (
        score.cosine(2.0),
        score.bilinear(torch.randn(HEAD_DIM, HEAD_DIM)),
        score.additive(w, w, torch.randn(8)),
        score.scaled_dot(torch.tensor(0.5)),
    ):
        inputs = score_function.prepare(q, k)
        assert inputs.q.dtype == inputs.k.dtype == torch.float32
    for score_function in (score.gaussian(1.0), score.mahalanobis(torch.eye(HEAD_DIM))):  # differences of large squares
        inputs = score_function.prepare(q, k)
        assert inputs.q.dtype == inputs.k.dtype == score_function.min_dtype == torch.float64
    exact = scores(score.gaussian(1.0), q.double(), k.double())
    # both sides start from the same half-precision numbers, so only float32 rounding differs
    torch.testing.assert_close(scores(score.gaussian(1.0), q, k).double(), exact, rtol=1e-5, atol=1e-5)


def test_gradients_reach_the_parameters_of_a_score() -> None:
    q, k = qk()
    w = torch.randn(HEAD_DIM, HEAD_DIM, dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    scale = torch.rand(HEADS, dtype=torch.float64, requires_grad=True)
    for score_function, parameter in (
        (score.bilinear(w), w),
        (score.mahalanobis(w), w),
        (score.gaussian(sigma), sigma),
        (score.cosine(scale), scale),
        (score.scaled_dot(scale), scale),
    ):
        (gradient,) = torch.autograd.grad(scores(score_function, q, k).sin().sum(), parameter)
        assert gradient.shape == parameter.shape and gradient.abs().sum() > 0


def test_gaussian_is_differentiable_in_q_and_k() -> None:
    q, k = (x[:1, :1, :2, :3].clone().requires_grad_() for x in qk())
    assert torch.autograd.gradcheck(lambda q, k: scores(score.gaussian(0.7), q, k), (q, k))


def test_a_modifier_alone_is_applied_to_scaled_dot() -> None:
    modified = as_score(lambda s, b, h, i, j: s * 2)
    assert isinstance(modified, type(score.scaled_dot())) and modified.score_mod is not None
    assert as_score(None).score_mod is None and as_score(None).formula() == "q·k / √d"
    dot = score.dot()
    assert as_score(dot) is dot
    assert as_score(torch.zeros(3, 3)).score_mod is not None


def test_modifiers_are_applied_in_order() -> None:
    score_function = score.dot().then(lambda s, b, h, i, j: s + 1).then(lambda s, b, h, i, j: s * 2)
    q, k = qk()
    output = regard.attention_with_weights(q, k, k, score=score_function, backend="reference").lse
    torch.testing.assert_close(output, ((q @ k.mT + 1) * 2).logsumexp(-1), **CLOSE)


def test_then_does_not_change_the_original_score() -> None:
    plain = score.gaussian(0.5)
    changed = plain.then(score.softcap(5.0))
    assert plain.score_mod is None and changed.score_mod is not None and type(changed) is type(plain)
    assert changed.sigma == 0.5  # type: ignore[attr-defined]


def test_formula_of_each_score() -> None:
    w = torch.zeros(2, 2)
    assert [s.formula() for s in (score.dot(), score.scaled_dot(), score.scaled_dot(0.5))] == [
        "q·k",
        "q·k / √d",
        "q·k · 0.5",
    ]
    assert score.scaled_dot(torch.ones(2)).formula() == "q·k · scale"
    assert score.cosine(3.0).formula() == "cos(q, k) · 3" and score.bilinear(w).formula() == "q·W·k"
    assert score.gaussian().formula() == "-|q - k|² / 2σ²" and score.mahalanobis(w).formula() == "-(q - k)ᵀM(q - k) / 2"
    assert score.additive(w, w, w[0]).formula() == "u·tanh(W_q q + W_k k)"
    assert score.additive(w, w, w[0], w[0]).formula() == "u·tanh(W_q q + W_k k + bias)"

    def near(q: Tensor, k: Tensor) -> Tensor:
        return -torch.cdist(q, k)

    assert score.custom(near).formula() == "near(q, k)"


@pytest.mark.parametrize("backend", regard.available_backends())
def test_relative_values_are_added_by_distance(backend: str) -> None:
    q, k = qk()
    v = torch.randn(BATCH, HEADS, N_K, 3, dtype=torch.float64)
    table = torch.randn(5, 3, dtype=torch.float64)
    output = regard.attention(q, k, v, value=score.shaw_values(table), backend=backend)
    weights = (q @ k.mT / math.sqrt(HEAD_DIM)).softmax(-1)
    p, j = torch.arange(N_K - N_Q, N_K).view(-1, 1), torch.arange(N_K)
    shifted = v.unsqueeze(2) + table[(j - p).clamp(-2, 2) + 2]
    torch.testing.assert_close(output, (weights.unsqueeze(-1) * shifted).sum(-2), **CLOSE)


def test_relative_values_with_one_entry_shift_every_output_equally() -> None:
    q, k = qk()
    table = torch.randn(1, HEAD_DIM, dtype=torch.float64)
    plain = regard.attention(q, k, k)
    torch.testing.assert_close(regard.attention(q, k, k, value=score.shaw_values(table)), plain + table[0], **CLOSE)


W = torch.zeros(3, 4)
INVALID: dict[str, tuple[Callable[[], object], str]] = {
    "head dimensions": (
        lambda: score.dot().check_head_dims(8, 6),
        r"q and k must have the same head dimension; got q=8, k=6\. Use score\.bilinear for different dimensions\.",
    ),
    "cosine head dimensions": (lambda: score.cosine().check_head_dims(8, 6), r"got q=8, k=6"),
    "bilinear": (
        lambda: score.bilinear(W).check_head_dims(4, 3),
        r"w must have shape \(\.\.\., head_dim of q, head_dim of k\) = \(\.\.\., 4, 3\); got \(3, 4\)\.",
    ),
    "gaussian": (
        lambda: score.gaussian().check_head_dims(4, 3),
        r"q and k must have the same head dimension; got q=4, k=3\.",
    ),
    "mahalanobis": (
        lambda: score.mahalanobis(W).check_head_dims(4, 4),
        r"q, k and m must have the same head dimension; got q=4, k=4, m=\(3, 4\)\.",
    ),
    "sigma": (lambda: score.gaussian(0.0), r"sigma must be greater than 0; got 0\.0\."),
    "negative sigma": (lambda: score.gaussian(-2.0), r"sigma must be greater than 0; got -2\.0\."),
    "nan sigma": (lambda: score.gaussian(math.nan), r"sigma must be a finite number or .*; got nan\."),
    "additive": (
        lambda: score.additive(W, W, torch.zeros(5)).check_head_dims(3, 7),
        r"= \(3, 5\), w_k \(head_dim of k, hidden_dim\) = \(7, 5\) and u .* got w_q=\(3, 4\), w_k=\(3, 4\), u=\(5,\)\.",
    ),
    "custom": (
        lambda: score.custom(lambda q, k: q @ q.mT).prepare(torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 6, 5)),
        r"to scores \(\.\.\., m, n\), here \(2, 3, 2, 3\); got \(2, 3, 2, 2\)\.",
    ),
    "custom by head": (
        lambda: score.custom(lambda q, k: (q @ k.mT) * torch.arange(1.0, 4.0).view(3, 1, 1)).prepare(
            torch.ones(2, 3, 4, 5), torch.ones(2, 3, 6, 5)
        ),
        r"for q \(2, 3, 2, 5\), got different scores for the last head alone, of shape \(1, 3, 2, 3\)",
    ),
    "custom by batch element": (
        lambda: score.custom(lambda q, k: (q @ k.mT) * q.shape[0]).prepare(
            torch.ones(2, 3, 4, 5), torch.ones(2, 3, 6, 5)
        ),
        r"the last head alone, of shape \(1, 1, 2, 3\)\.",
    ),
    "not a modifier": (
        lambda: as_score("dot"),
        r"a score modifier must be a function \(s, b, h, i, j\), .*; got str\.",
    ),
    "then a number": (lambda: score.dot().then(3), r"a score modifier must be a function .*; got int\."),
    "then a mask": (lambda: score.dot().then(mask.causal()), r"a score modifier must be a function .*; got Mask\."),
    "shaw_values head dimension": (
        lambda: score.shaw_values(W).check_head_dim(7),
        r"the table of shaw_values must have the head dimension of v; got table=4, v=7\.",
    ),
    "shaw_values table": (
        lambda: score.shaw_values(torch.zeros(4, 3)),
        r"table must be a float tensor of shape \(2 \* max_distance \+ 1, head_dim\); got a tensor of shape \(4, 3\)",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_scores_raise_with_the_given_values(name: str) -> None:
    make, message = INVALID[name]
    with pytest.raises(ArgumentError, match=message):
        make()


WRONG_HEADS: dict[str, Callable[[], Score]] = {
    "scaled dot": lambda: score.scaled_dot(torch.ones(3)),
    "cosine": lambda: score.cosine(torch.ones(3)),
    "gaussian": lambda: score.gaussian(torch.ones(3)),
    "bilinear": lambda: score.bilinear(torch.ones(3, 4, 4)),
    "mahalanobis": lambda: score.mahalanobis(torch.ones(3, 4, 4)),
    "additive": lambda: score.additive(torch.ones(3, 4, 5), torch.ones(3, 4, 5), torch.ones(3, 5)),
}


@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize("name", WRONG_HEADS)
def test_parameters_for_another_number_of_heads_raise(name: str, num_heads: int) -> None:
    """With a single head they would broadcast, and the output would have too many heads."""
    q = torch.randn(1, num_heads, 5, 4)
    with pytest.raises(ArgumentError, match="head"):
        regard.attention(q, q, q, score=WRONG_HEADS[name]())
