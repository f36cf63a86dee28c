"""Metric attention: scores that are distances, and what that makes them equal to."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import normalize, scaled_dot_product_attention

from regard.errors import SpecError
from regard.mechanism.metric import metric_attention
from regard.spec.mask import causal

N, WIDTH = 9, 4


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def weights_of(points: Tensor, keys: Tensor | None = None, **options) -> Tensor:
    """The matrix of weights: with x and W_V the identity, W_Q holds the points and the output is the weights."""
    one = torch.eye(len(points), dtype=points.dtype)
    return metric_attention(one, points, one, keys, **options)


def written_out(q: Tensor, k: Tensor, v: Tensor, m: Tensor, seen=lambda i, j: True) -> Tensor:
    """One pair after another, with M for 1/σ²."""
    output = torch.zeros(len(q), v.shape[-1], dtype=q.dtype)
    for i in range(len(q)):
        places = [j for j in range(len(k)) if seen(i, j)]
        kernel = torch.stack([torch.exp(-(q[i] - k[j]) @ m @ (q[i] - k[j]) / 2) for j in places])
        output[i] = sum(w * v[j] for w, j in zip(kernel / kernel.sum(), places, strict=True))
    return output


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_a_token_gets_what_lies_near_it(tied: bool, masked: bool) -> None:
    x, w_q, w_v = numbers(N, 3), numbers(3, WIDTH), numbers(3, 5)
    w_k = None if tied else numbers(3, WIDTH)

    found = metric_attention(x, w_q, w_v, w_k, sigma=0.7, mask=causal() if masked else None)

    k = x @ (w_q if w_k is None else w_k)
    m = torch.eye(WIDTH, dtype=torch.float64) / 0.7**2
    torch.testing.assert_close(found, written_out(x @ w_q, k, x @ w_v, m, lambda i, j: j <= i if masked else True))


def test_a_matrix_stretches_the_space() -> None:
    x, w_q, w_k, w_v, l = numbers(N, 3), numbers(3, WIDTH), numbers(3, WIDTH), numbers(3, 5), numbers(WIDTH, 2)

    found = metric_attention(x, w_q, w_v, w_k, matrix=l @ l.T)

    torch.testing.assert_close(found, written_out(x @ w_q, x @ w_k, x @ w_v, l @ l.T))
    torch.testing.assert_close(found, metric_attention(x, w_q @ l, w_v, w_k @ l, sigma=1.0))


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_heads_measure_by_themselves(leading: tuple[int, ...]) -> None:
    x, w_q, w_k, w_v = numbers(*leading, N, 3), numbers(2, 3, WIDTH), numbers(2, 3, WIDTH), numbers(2, 3, 5)
    sigma, l = torch.tensor([0.5, 2.0], dtype=torch.float64), numbers(2, WIDTH, WIDTH)

    by_sigma = metric_attention(x, w_q, w_v, w_k, sigma=sigma)
    by_matrix = metric_attention(x, w_q, w_v, w_k, matrix=l @ l.mT)

    assert by_sigma.shape == (*leading, 2, N, 5)
    for h in range(2):
        alone = metric_attention(x, w_q[h], w_v[h], w_k[h], sigma=float(sigma[h]))
        torch.testing.assert_close(by_sigma[..., h, :, :], alone)
        alone = metric_attention(x, w_q[h], w_v[h], w_k[h], matrix=l[h] @ l[h].T)
        torch.testing.assert_close(by_matrix[..., h, :, :], alone)


@pytest.mark.parametrize("by_matrix", [False, True])
def test_tied_scores_are_the_squares_of_a_pseudo_metric(by_matrix: bool) -> None:
    points, l = numbers(N, WIDTH), numbers(WIDTH, 2)
    options = {"matrix": l @ l.T} if by_matrix else {"sigma": 1.3}

    a = weights_of(points, **options)

    scores = torch.log(a / a.diagonal()[:, None])  # a token is no distance from itself: its score is 0
    distance = torch.sqrt(torch.clamp(-2.0 * scores, min=0.0))
    torch.testing.assert_close(scores, scores.T)
    assert (scores <= 1e-12).all()  # a log of 1 that is rounded
    ways = distance[:, :, None] + distance[None, :, :]  # from i by way of j to k
    assert (distance[:, None, :] <= ways + 1e-6).all()  # the root of a rounded 0


def test_untied_scores_are_not_symmetric() -> None:
    q, k = numbers(N, WIDTH), numbers(N, WIDTH)

    a = weights_of(q, k, sigma=1.0)

    scores = torch.log(a)
    rows = scores - scores.mean(1, keepdim=True)  # a row's own factor cannot be seen in its weights
    both = rows - rows.mean(0, keepdim=True)
    assert (both - both.T).abs().max() > 0.1


def test_nearness_is_the_product_less_half_the_square_of_the_key() -> None:
    q, k, sigma = numbers(N, WIDTH), numbers(N, WIDTH), 1.7

    found = weights_of(q, k, sigma=sigma)

    torch.testing.assert_close(found, torch.softmax((q @ k.T - k.square().sum(-1) / 2) / sigma**2, -1))


def test_weights_are_the_gaussian_kernel_with_its_rows_divided() -> None:
    """What scikit-learn's rbf_kernel(x, gamma=1/2σ²) divided by its row sums is."""
    points, sigma = numbers(N, WIDTH), 0.8

    found = weights_of(points, sigma=sigma)

    kernel = torch.exp(-torch.cdist(points, points).square() / (2 * sigma**2))
    torch.testing.assert_close(found, kernel / kernel.sum(-1, keepdim=True))


def test_with_keys_of_one_length_it_is_scaled_dot_product_attention() -> None:
    q, v = 3.0 * normalize(numbers(N, WIDTH), dim=-1), numbers(N, 5)
    one = torch.eye(N, dtype=torch.float64)

    found = metric_attention(one, q, v)

    torch.testing.assert_close(found, scaled_dot_product_attention(q, q, v))
    torch.testing.assert_close(found, metric_attention(one, q, v, sigma=WIDTH**0.25))


def test_l2_attention_is_a_sigma() -> None:
    points = numbers(N, WIDTH)

    found = weights_of(points, sigma=(WIDTH**0.5 / 2) ** 0.5)

    torch.testing.assert_close(found, torch.softmax(-torch.cdist(points, points).square() / WIDTH**0.5, -1))


def test_far_from_the_origin_single_precision_stays_accurate() -> None:
    points, sigma = (torch.rand(200, 8) * 2).double(), 1.0
    moved = (points + 100.0 * sigma).float()

    found = metric_attention(torch.eye(200), moved, torch.eye(200), sigma=sigma)

    exact = weights_of(moved.double(), sigma=sigma)
    torch.testing.assert_close(found, exact.float(), rtol=1e-5, atol=1e-7)  # |x|² is 80,000: its last bit is 0.008
    square = moved.square().sum(-1)
    careless = torch.softmax(-(square[:, None] - 2 * moved @ moved.T + square) / 2, -1)
    assert (careless - exact).abs().max() > 1e-4


@pytest.mark.parametrize("tied", [True, False])
def test_gradients_with_a_learned_sigma(tied: bool) -> None:
    inputs = [numbers(2, 4, 3), numbers(2, 3, 2), numbers(2, 3, 2), numbers(2, 3, 2), numbers(2).exp()]
    x, w_q, w_v, w_k, sigma = (t.requires_grad_() for t in inputs)

    def run(x: Tensor, w_q: Tensor, w_v: Tensor, w_k: Tensor, sigma: Tensor) -> Tensor:
        return metric_attention(x, w_q, w_v, None if tied else w_k, sigma=sigma) + 0.0 * w_k.sum()

    assert gradcheck(run, (x, w_q, w_v, w_k, sigma))


def test_gradients_with_a_learned_matrix() -> None:
    x, w_q, w_v, l = (t.requires_grad_() for t in (numbers(4, 3), numbers(3, 2), numbers(3, 2), numbers(2, 2)))

    assert gradcheck(lambda x, w_q, w_v, l: metric_attention(x, w_q, w_v, matrix=l @ l.T), (x, w_q, w_v, l))


@pytest.mark.parametrize("n", [0, 1])
def test_few_tokens(n: int) -> None:
    x, w_q, w_v = numbers(n, 3), numbers(3, 2), numbers(3, 5)

    torch.testing.assert_close(metric_attention(x, w_q, w_v, sigma=math.pi), x @ w_v)


def test_what_is_wrong_is_said() -> None:
    x, w = numbers(N, 3), numbers(3, WIDTH)
    with pytest.raises(SpecError, match="by sigma or by matrix; got both"):
        metric_attention(x, w, w, sigma=1.0, matrix=torch.eye(WIDTH))
    with pytest.raises(SpecError, match=r"the width of x, 3; got w_q=\(3, 4\), w_k=\(3, 4\), w_v=\(2, 4\)"):
        metric_attention(x, w, w[:2])
    with pytest.raises(SpecError, match=r"the width of x, 3; got w_q=\(2, 3, 4\), w_k=\(2, 3, 4\), w_v=\(3, 4\)"):
        metric_attention(x, numbers(2, 3, 4), w)
    with pytest.raises(SpecError, match=r"sigma must be greater than 0; got -1.0"):
        metric_attention(x, w, w, sigma=-1.0)
    with pytest.raises(SpecError, match=r"q=4, k=4, m=\(3, 3\)"):
        metric_attention(x, w, w, matrix=torch.eye(3, dtype=torch.float64))
