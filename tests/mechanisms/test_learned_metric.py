"""Metric attention: scores as distances, and their relation to kernels and to dot products."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import normalize, scaled_dot_product_attention

from regard.errors import ArgumentError
from regard.mask import causal
from regard.mechanisms.learned_metric import metric_attention

N, HEAD_DIM = 9, 4


def randn64(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def weights_of(points: Tensor, keys: Tensor | None = None, **options) -> Tensor:
    """Return the matrix of weights: with the identity as x and W_V, W_Q is the points and the output is the weights."""
    identity = torch.eye(len(points), dtype=points.dtype)
    return metric_attention(identity, points, identity, keys, **options)


def reference(q: Tensor, k: Tensor, v: Tensor, m: Tensor, visible=lambda i, j: True) -> Tensor:
    """Compute the output pair by pair, with M in place of 1/σ²."""
    output = torch.zeros(len(q), v.shape[-1], dtype=q.dtype)
    for i in range(len(q)):
        positions = [j for j in range(len(k)) if visible(i, j)]
        kernel = torch.stack([torch.exp(-(q[i] - k[j]) @ m @ (q[i] - k[j]) / 2) for j in positions])
        output[i] = sum(w * v[j] for w, j in zip(kernel / kernel.sum(), positions, strict=True))
    return output


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_metric_attention_matches_the_reference(tied: bool, masked: bool) -> None:
    x, w_q, w_v = randn64(N, 3), randn64(3, HEAD_DIM), randn64(3, 5)
    w_k = None if tied else randn64(3, HEAD_DIM)

    output = metric_attention(x, w_q, w_v, w_k, sigma=0.7, mask=causal() if masked else None)

    k = x @ (w_q if w_k is None else w_k)
    m = torch.eye(HEAD_DIM, dtype=torch.float64) / 0.7**2
    torch.testing.assert_close(output, reference(x @ w_q, k, x @ w_v, m, lambda i, j: j <= i if masked else True))


def test_matrix_equals_a_linear_map_of_the_points() -> None:
    x, w_q, w_k, w_v, l = randn64(N, 3), randn64(3, HEAD_DIM), randn64(3, HEAD_DIM), randn64(3, 5), randn64(HEAD_DIM, 2)

    output = metric_attention(x, w_q, w_v, w_k, matrix=l @ l.T)

    torch.testing.assert_close(output, reference(x @ w_q, x @ w_k, x @ w_v, l @ l.T))
    torch.testing.assert_close(output, metric_attention(x, w_q @ l, w_v, w_k @ l, sigma=1.0))


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_each_head_has_its_own_metric(leading: tuple[int, ...]) -> None:
    x, w_q, w_k, w_v = randn64(*leading, N, 3), randn64(2, 3, HEAD_DIM), randn64(2, 3, HEAD_DIM), randn64(2, 3, 5)
    sigma, l = torch.tensor([0.5, 2.0], dtype=torch.float64), randn64(2, HEAD_DIM, HEAD_DIM)

    by_sigma = metric_attention(x, w_q, w_v, w_k, sigma=sigma)
    by_matrix = metric_attention(x, w_q, w_v, w_k, matrix=l @ l.mT)

    assert by_sigma.shape == (*leading, 2, N, 5)
    for h in range(2):
        single_head = metric_attention(x, w_q[h], w_v[h], w_k[h], sigma=float(sigma[h]))
        torch.testing.assert_close(by_sigma[..., h, :, :], single_head)
        single_head = metric_attention(x, w_q[h], w_v[h], w_k[h], matrix=l[h] @ l[h].T)
        torch.testing.assert_close(by_matrix[..., h, :, :], single_head)


@pytest.mark.parametrize("by_matrix", [False, True])
def test_tied_scores_are_a_squared_pseudo_metric(by_matrix: bool) -> None:
    points, l = randn64(N, HEAD_DIM), randn64(HEAD_DIM, 2)
    options = {"matrix": l @ l.T} if by_matrix else {"sigma": 1.3}

    a = weights_of(points, **options)

    scores = torch.log(a / a.diagonal()[:, None])  # the score on the diagonal is 0
    distance = torch.sqrt(torch.clamp(-2.0 * scores, min=0.0))
    torch.testing.assert_close(scores, scores.T)
    assert (scores <= 1e-12).all()  # rounding of log 1
    detours = distance[:, :, None] + distance[None, :, :]  # from i through j to k
    assert (distance[:, None, :] <= detours + 1e-6).all()  # root of a rounding error


def test_untied_scores_are_not_symmetric() -> None:
    q, k = randn64(N, HEAD_DIM), randn64(N, HEAD_DIM)

    a = weights_of(q, k, sigma=1.0)

    scores = torch.log(a)
    rows = scores - scores.mean(1, keepdim=True)  # weights do not determine a constant per row
    centered = rows - rows.mean(0, keepdim=True)
    assert (centered - centered.T).abs().max() > 0.1


def test_gaussian_scores_are_dot_products_minus_half_the_squared_key_norm() -> None:
    q, k, sigma = randn64(N, HEAD_DIM), randn64(N, HEAD_DIM), 1.7

    output = weights_of(q, k, sigma=sigma)

    torch.testing.assert_close(output, torch.softmax((q @ k.T - k.square().sum(-1) / 2) / sigma**2, -1))


def test_weights_are_the_row_normalized_gaussian_kernel() -> None:
    """The expected weights are scikit-learn's rbf_kernel(x, gamma=1/2σ²) divided by its row sums."""
    points, sigma = randn64(N, HEAD_DIM), 0.8

    output = weights_of(points, sigma=sigma)

    kernel = torch.exp(-torch.cdist(points, points).square() / (2 * sigma**2))
    torch.testing.assert_close(output, kernel / kernel.sum(-1, keepdim=True))


def test_keys_of_equal_norm_give_scaled_dot_product_attention() -> None:
    q, v = 3.0 * normalize(randn64(N, HEAD_DIM), dim=-1), randn64(N, 5)
    identity = torch.eye(N, dtype=torch.float64)

    output = metric_attention(identity, q, v)

    torch.testing.assert_close(output, scaled_dot_product_attention(q, q, v))
    torch.testing.assert_close(output, metric_attention(identity, q, v, sigma=HEAD_DIM**0.25))


def test_l2_attention_is_a_choice_of_sigma() -> None:
    points = randn64(N, HEAD_DIM)

    output = weights_of(points, sigma=(HEAD_DIM**0.5 / 2) ** 0.5)

    torch.testing.assert_close(output, torch.softmax(-torch.cdist(points, points).square() / HEAD_DIM**0.5, -1))


def test_float32_is_accurate_far_from_the_origin() -> None:
    points, sigma = (torch.rand(200, 8) * 2).double(), 1.0
    shifted = (points + 100.0 * sigma).float()

    output = metric_attention(torch.eye(200), shifted, torch.eye(200), sigma=sigma)

    exact = weights_of(shifted.double(), sigma=sigma)
    torch.testing.assert_close(output, exact.float(), rtol=1e-5, atol=1e-7)  # |x|² is 80,000: its last bit is 0.008
    square = shifted.square().sum(-1)
    expanded = torch.softmax(-(square[:, None] - 2 * shifted @ shifted.T + square) / 2, -1)
    assert (expanded - exact).abs().max() > 1e-4


@pytest.mark.parametrize("tied", [True, False])
def test_gradients_with_a_learned_sigma(tied: bool) -> None:
    inputs = [randn64(2, 4, 3), randn64(2, 3, 2), randn64(2, 3, 2), randn64(2, 3, 2), randn64(2).exp()]
    x, w_q, w_v, w_k, sigma = (t.requires_grad_() for t in inputs)

    def run(x: Tensor, w_q: Tensor, w_v: Tensor, w_k: Tensor, sigma: Tensor) -> Tensor:
        return metric_attention(x, w_q, w_v, None if tied else w_k, sigma=sigma) + 0.0 * w_k.sum()

    assert gradcheck(run, (x, w_q, w_v, w_k, sigma))


def test_gradients_with_a_learned_matrix() -> None:
    x, w_q, w_v, l = (t.requires_grad_() for t in (randn64(4, 3), randn64(3, 2), randn64(3, 2), randn64(2, 2)))

    assert gradcheck(lambda x, w_q, w_v, l: metric_attention(x, w_q, w_v, matrix=l @ l.T), (x, w_q, w_v, l))


@pytest.mark.parametrize("n", [0, 1])
def test_zero_and_one_token(n: int) -> None:
    x, w_q, w_v = randn64(n, 3), randn64(3, 2), randn64(3, 5)

    torch.testing.assert_close(metric_attention(x, w_q, w_v, sigma=math.pi), x @ w_v)


def test_invalid_arguments_raise() -> None:
    x, w = randn64(N, 3), randn64(3, HEAD_DIM)
    with pytest.raises(ArgumentError, match="sigma and matrix must not both be given"):
        metric_attention(x, w, w, sigma=1.0, matrix=torch.eye(HEAD_DIM))
    with pytest.raises(
        ArgumentError, match=r"features=3, the last dimension of x; got w_q=\(3, 4\), w_k=\(3, 4\), w_v=\(2, 4\)"
    ):
        metric_attention(x, w, w[:2])
    with pytest.raises(
        ArgumentError, match=r"features=3, the last dimension of x; got w_q=\(2, 3, 4\), w_k=\(2, 3, 4\), w_v=\(3, 4\)"
    ):
        metric_attention(x, randn64(2, 3, 4), w)
    with pytest.raises(ArgumentError, match=r"sigma must be greater than 0; got -1.0"):
        metric_attention(x, w, w, sigma=-1.0)
    with pytest.raises(ArgumentError, match=r"q=4, k=4, m=\(3, 3\)"):
        metric_attention(x, w, w, matrix=torch.eye(3, dtype=torch.float64))
