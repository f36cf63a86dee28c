"""Nyström attention against Hugging Face's layer and the definition."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from transformers import NystromformerConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

from regard.attention import attention
from regard.errors import ArgumentError
from regard.mechanisms import nystrom as module
from regard.mechanisms.nystrom import nystrom_attention, pseudo_inverse
from tests.mechanisms.random_inputs import random_grouped_inputs


def weights(q: Tensor, k: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)


def reference(q: Tensor, k: Tensor, v: Tensor, m: int, iterations: int | None = 6) -> Tensor:
    """Compute each head from three explicit matrices of weights and the iteration of the paper."""
    output = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            g = h // (q.shape[1] // k.shape[1])
            rows, keys, values = q[b, h], k[b, g], v[b, g]
            q_landmarks, k_landmarks = (
                torch.stack([segment.mean(0) for segment in segments(x, m)]) for x in (rows, keys)
            )
            a = weights(q_landmarks, k_landmarks)
            if iterations is None:
                z = torch.linalg.pinv(a)
            else:
                identity, z = torch.eye(len(a)).to(a), a.mT / (a.sum(0).max() * a.sum(1).max())
                for _ in range(iterations):
                    z = 0.25 * z @ (13 * identity - a @ z @ (15 * identity - a @ z @ (7 * identity - a @ z)))
            output[b, h] = weights(rows, k_landmarks) @ z @ (weights(q_landmarks, keys) @ values)
    return output


def segments(x: Tensor, m: int) -> list[Tensor]:
    edges = [math.ceil(s * len(x) / m) for s in range(m + 1)]
    return [x[first:last] for first, last in pairwise(edges)]


@pytest.mark.parametrize("num_kv_heads", [4, 2])
@pytest.mark.parametrize("n_q, n_k, m", [(24, 24, 6), (23, 23, 5), (9, 30, 4), (7, 7, 7), (1, 1, 1)])
def test_nystrom_matches_the_reference(num_kv_heads: int, n_q: int, n_k: int, m: int) -> None:
    q, k, v = random_grouped_inputs(n_q, n_k, num_kv_heads=num_kv_heads)

    output = nystrom_attention(q, k, v, num_landmarks=m)

    torch.testing.assert_close(output, reference(q, k, v, m))


@pytest.mark.parametrize("dimensions", [2, 3, 5])
def test_any_number_of_leading_dimensions(dimensions: int) -> None:
    q, k, v = random_grouped_inputs(12, 12)
    reshape = {2: lambda x: x[0, 0], 3: lambda x: x[:, 0], 5: lambda x: x[:, None]}[dimensions]

    output = nystrom_attention(*(reshape(x) for x in (q, k, v)), num_landmarks=4)

    torch.testing.assert_close(output, reshape(nystrom_attention(q, k, v, num_landmarks=4)))


@pytest.mark.parametrize("landmarks", [13, 64])
def test_as_many_landmarks_as_tokens_is_full_attention(landmarks: int) -> None:
    q, k, v = random_grouped_inputs(13, 13)

    output = nystrom_attention(q, k, v, num_landmarks=landmarks, pinv_iterations=None)

    # the exact inverse of A, whose smallest singular value is 0.0007
    torch.testing.assert_close(output, attention(q, k, v), rtol=1e-9, atol=1e-9)


def test_more_landmarks_and_iterations_reduce_the_error() -> None:
    q, k, v = random_grouped_inputs(48, 48)
    exact = attention(q, k, v)

    def error(m: int, iterations: int | None) -> float:
        return float(
            (nystrom_attention(q, k, v, num_landmarks=m, pinv_iterations=iterations) - exact).square().mean().sqrt()
        )

    assert error(48, None) < 1e-9 < error(48, 12) < error(48, 6)
    assert error(40, 6) < error(16, 6) < error(4, 6)


def test_the_exact_inverse_amplifies_the_error_of_few_landmarks() -> None:
    q, k, v = random_grouped_inputs(48, 48)
    exact = attention(q, k, v)

    stopped, inverted = (nystrom_attention(q, k, v, num_landmarks=16, pinv_iterations=n) - exact for n in (6, None))

    assert stopped.norm() < 0.5 * inverted.norm()


@pytest.mark.parametrize("n", [0, 1])
def test_nystrom_of_zero_and_one_token(n: int) -> None:
    q, k, v = random_grouped_inputs(n, n)

    torch.testing.assert_close(nystrom_attention(q, k, v), v)


def test_no_keys_give_zero_output() -> None:
    q, k, v = random_grouped_inputs(4, 0)

    assert (nystrom_attention(q, k, v) == 0).all()


def test_bfloat16_inputs_are_close_to_float64() -> None:
    q, k, v = (x.bfloat16() for x in random_grouped_inputs(96, 96))

    output = nystrom_attention(q, k, v, num_landmarks=16)

    assert output.dtype == torch.bfloat16
    expected = nystrom_attention(q.double(), k.double(), v.double(), num_landmarks=16)
    # outputs below 1 are rounded to 8 bits, and so are the landmark outputs, whose error Z amplifies
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=1e-2)


def test_every_attention_call_has_landmarks_on_one_side(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[tuple[int, int]] = []

    def record_lengths(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        lengths.append((q.shape[-2], k.shape[-2]))
        return attention(q, k, v, **options)

    monkeypatch.setattr(module, "attention", record_lengths)
    nystrom_attention(*random_grouped_inputs(300, 200), num_landmarks=8)

    assert sorted(lengths) == [(8, 8), (8, 200), (8, 200), (8, 300), (300, 8)]


# Padding


def insert_padding(x: Tensor, is_real: Tensor) -> Tensor:
    """Return the rows of x, in order, at the real positions, and NaN elsewhere."""
    padded = torch.full((*x.shape[:-2], len(is_real), x.shape[-1]), torch.nan, dtype=x.dtype)
    padded[..., is_real, :] = x
    return padded


@pytest.mark.parametrize("length", [1, 3, 17, 24], ids=str)
@pytest.mark.parametrize("side", ["right", "left", "anywhere"])
def test_padding_has_no_effect(length: int, side: str) -> None:
    q, k, v = random_grouped_inputs(length, length, num_kv_heads=2)
    order = {"right": torch.arange(24), "left": torch.arange(24).flip(0), "anywhere": torch.randperm(24)}[side]
    is_real = torch.zeros(24, dtype=torch.bool)
    is_real[order[:length]] = True
    padded = [insert_padding(x, is_real).requires_grad_() for x in (q, k, v)]

    output = nystrom_attention(*padded, num_landmarks=5, attention_mask=is_real.expand(2, 24))

    torch.testing.assert_close(output[..., is_real, :], nystrom_attention(q, k, v, num_landmarks=5))
    assert (output[..., ~is_real, :] == 0).all()
    for gradient in torch.autograd.grad(output.sum(), padded):
        assert gradient.isfinite().all() and (gradient[..., ~is_real, :] == 0).all()


def test_padding_may_differ_per_sequence() -> None:
    q, k, v = random_grouped_inputs(10, 10)
    is_real = torch.arange(10) < torch.tensor([[10], [4]])

    output = nystrom_attention(q, k, v, num_landmarks=6, attention_mask=is_real)

    torch.testing.assert_close(output[:1], nystrom_attention(q[:1], k[:1], v[:1], num_landmarks=6))
    expected = nystrom_attention(*(x[1:, :, :4] for x in (q, k, v)), num_landmarks=6)
    torch.testing.assert_close(output[1:, :, :4], expected)


def test_an_all_padding_sequence_has_zero_output_and_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in random_grouped_inputs(6, 6))

    output = nystrom_attention(
        q, k, v, attention_mask=torch.zeros(2, 6, dtype=torch.bool), conv_kernel=torch.ones(4, 3)
    )

    assert (output == 0).all()
    assert all((g == 0).all() for g in torch.autograd.grad(output.sum(), (q, k, v)))


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_convolution_ignores_padding(side: str) -> None:
    q, k, v = random_grouped_inputs(9, 9)
    kernel = torch.randn(4, 5, dtype=torch.float64)
    is_real = torch.arange(14) < 9 if side == "right" else torch.arange(14) >= 5

    output = nystrom_attention(
        *(insert_padding(x, is_real) for x in (q, k, v)),
        num_landmarks=3,
        conv_kernel=kernel,
        attention_mask=is_real.expand(2, 14),
    )

    torch.testing.assert_close(output[..., is_real, :], nystrom_attention(q, k, v, num_landmarks=3, conv_kernel=kernel))
    assert (output[..., ~is_real, :] == 0).all()


# The convolution


@pytest.mark.parametrize("num_kv_heads", [4, 2])
@pytest.mark.parametrize("size", [1, 5, 33])
def test_the_convolution_adds_neighboring_values(size: int, num_kv_heads: int) -> None:
    q, k, v = random_grouped_inputs(11, 11, num_kv_heads=num_kv_heads)
    kernel = torch.randn(4, size, dtype=torch.float64)

    added = nystrom_attention(q, k, v, num_landmarks=3, conv_kernel=kernel) - nystrom_attention(
        q, k, v, num_landmarks=3
    )

    expected = torch.zeros_like(added)
    for h in range(4):
        for i in range(11):
            for t in range(size):
                j = i + t - size // 2
                if 0 <= j < 11:
                    expected[:, h, i] += kernel[h, t] * v[:, h // (4 // num_kv_heads), j]
    torch.testing.assert_close(added, expected)


# The pseudo-inverse


def test_one_iteration_on_a_diagonal_matrix_is_the_polynomial() -> None:
    s = torch.tensor([1.0, 0.7, 0.2], dtype=torch.float64)

    inverse = pseudo_inverse(torch.diag(s), 1)

    # both norms are 1, so Z starts at s, and a Z at s²
    x = s * s
    torch.testing.assert_close(inverse, torch.diag(s * (13 - x * (15 - x * (7 - x))) / 4))


def test_an_iteration_cubes_the_error() -> None:
    s = torch.tensor([1.0, 0.9], dtype=torch.float64)
    a = torch.diag(s)

    errors = [float(1 - (a @ pseudo_inverse(a, n))[1, 1]) for n in (1, 2)]

    # 1 - x' = (3 e³ + e⁴) / 4 exactly, for x = 1 - e
    assert errors[1] == pytest.approx((3 * errors[0] ** 3 + errors[0] ** 4) / 4, rel=1e-6)


def test_iterations_converge_to_torch_pinv() -> None:
    a = weights(*torch.randn(2, 3, 4, 10, 8, dtype=torch.float64))

    inverse = pseudo_inverse(a, 20)

    # the smallest singular value is 0.0016, which needs 16 iterations and leaves 12 digits
    torch.testing.assert_close(inverse, torch.linalg.pinv(a), rtol=1e-8, atol=1e-8)
    assert torch.equal(pseudo_inverse(a, None), torch.linalg.pinv(a))


@pytest.mark.parametrize("rows, columns", [(6, 3), (3, 6)])
def test_pseudo_inverse_of_rectangular_matrices(rows: int, columns: int) -> None:
    a = torch.randn(2, rows, columns, dtype=torch.float64)

    torch.testing.assert_close(pseudo_inverse(a, 12), torch.linalg.pinv(a))


def test_rounding_errors_grow_for_a_singular_matrix() -> None:
    left, right = torch.randn(2, 6, 3, dtype=torch.float64)
    a = left @ right.mT
    exact = torch.linalg.pinv(a)

    errors = [float((pseudo_inverse(a, n) - exact).abs().max()) for n in (6, 20, 30)]

    assert errors[0] < 1e-11
    assert errors[2] / errors[1] == pytest.approx((13 / 4) ** 10, rel=0.1)


def test_norms_are_computed_per_matrix() -> None:
    a = weights(*torch.randn(2, 5, 10, 8, dtype=torch.float64))
    a[0] *= 1000.0

    torch.testing.assert_close(pseudo_inverse(a, 4), torch.stack([pseudo_inverse(matrix, 4) for matrix in a]))


def test_the_pseudo_inverse_of_zeros_is_zeros() -> None:
    assert (pseudo_inverse(torch.zeros(3, 3)) == 0).all()


# Hugging Face's layer


def hf_layer(heads: int, length: int, landmarks: int, size: int | None = None) -> NystromformerSelfAttention:
    config = NystromformerConfig(
        hidden_size=8 * heads,
        num_attention_heads=heads,
        num_landmarks=landmarks,
        segment_means_seq_len=length,
        conv_kernel_size=size or 1,
    )
    layer = NystromformerSelfAttention(config).double().eval()
    layer.conv_kernel_size = size  # the layer accepts None, its configuration does not
    return layer


def regard_output(layer: NystromformerSelfAttention, x: Tensor, landmarks: int, iterations: int | None = 6) -> Tensor:
    q, k, v = (f(x).unflatten(-1, (-1, 8)).transpose(1, 2) for f in (layer.query, layer.key, layer.value))
    kernel = None if layer.conv_kernel_size is None else layer.conv.weight[:, 0, :, 0]
    output = nystrom_attention(q, k, v, num_landmarks=landmarks, pinv_iterations=iterations, conv_kernel=kernel)
    return output.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("size", [None, 5], ids=["alone", "with a convolution"])
@pytest.mark.parametrize("length, landmarks", [(64, 8), (60, 20)])
def test_nystrom_matches_transformers(size: int | None, length: int, landmarks: int) -> None:
    layer = hf_layer(4, length, landmarks, size)
    layer.init_option = "exact"  # the norm of each matrix; the option in the configuration raises an error
    x = 3.0 * torch.randn(2, length, 32, dtype=torch.float64)

    torch.testing.assert_close(regard_output(layer, x, landmarks), layer(x)[0])


@pytest.mark.parametrize("size", [None, 5], ids=["alone", "with a convolution"])
def test_one_head_matches_transformers_by_default(size: int | None) -> None:
    """The layer starts from the norm of all matrices together, which for one head is its own."""
    layer = hf_layer(1, 64, 8, size)
    x = 3.0 * torch.randn(1, 64, 8, dtype=torch.float64)

    torch.testing.assert_close(regard_output(layer, x, 8), layer(x)[0])


def test_converged_heads_match_transformers() -> None:
    layer = hf_layer(4, 64, 8)
    x = 3.0 * torch.randn(2, 64, 32, dtype=torch.float64)
    usual = layer.iterative_inv
    layer.iterative_inv = lambda a: usual(a, n_iter=25)

    # both have converged; the smallest singular value is 0.00005
    torch.testing.assert_close(regard_output(layer, x, 8, iterations=25), layer(x)[0], rtol=1e-7, atol=1e-7)


def test_as_many_landmarks_as_tokens_matches_transformers() -> None:
    layer = hf_layer(4, 12, 12)
    x = 3.0 * torch.randn(2, 12, 32, dtype=torch.float64)

    # regard inverts A, the layer does not
    torch.testing.assert_close(regard_output(layer, x, 12, iterations=None), layer(x)[0], rtol=1e-9, atol=1e-9)


# Gradients, errors


@pytest.mark.parametrize("iterations", [6, None])
def test_gradients(iterations: int | None) -> None:
    q, k, v = (torch.randn(1, 2, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    kernel = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    assert gradcheck(
        lambda q, k, v, kernel: nystrom_attention(
            q, k, v, num_landmarks=2, pinv_iterations=iterations, conv_kernel=kernel
        ),
        (q, k, v, kernel),
    )


def test_gradients_with_padding() -> None:
    q, k, v = (torch.randn(1, 1, 5, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    is_real = torch.tensor([[True, False, True, True, False]])

    assert gradcheck(lambda q, k, v: nystrom_attention(q, k, v, num_landmarks=2, attention_mask=is_real), (q, k, v))


def test_invalid_arguments_raise() -> None:
    q, k, v = random_grouped_inputs(6, 5)
    with pytest.raises(ArgumentError, match="num_landmarks must be at least 1; got 0"):
        nystrom_attention(q, k, v, num_landmarks=0)
    with pytest.raises(ArgumentError, match="iterations must be from 1 to 1,000, or None for the exact inverse; got 0"):
        nystrom_attention(q, k, v, pinv_iterations=0)
    with pytest.raises(
        ArgumentError, match="iterations must be from 1 to 1,000, or None for the exact inverse; got -1"
    ):
        pseudo_inverse(torch.eye(2), -1)
    with pytest.raises(ArgumentError, match="equal lengths with conv_kernel or attention_mask; got 6 and 5"):
        nystrom_attention(q, k, v, conv_kernel=torch.ones(4, 3))
    with pytest.raises(ArgumentError, match="equal lengths with conv_kernel or attention_mask; got 6 and 5"):
        nystrom_attention(q, k, v, attention_mask=torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(ArgumentError, match=r"with num_heads=4 and odd size; got \(4, 2\)"):
        nystrom_attention(q, q, q, conv_kernel=torch.ones(4, 2))
    with pytest.raises(ArgumentError, match=r"with num_heads=4 and odd size; got \(2, 3\)"):
        nystrom_attention(q, q, q, conv_kernel=torch.ones(2, 3))
    with pytest.raises(ArgumentError, match=r"boolean of shape \(2, 6\).*; got torch.bool of shape \(6,\)"):
        nystrom_attention(q, q, q, attention_mask=torch.ones(6, dtype=torch.bool))
    with pytest.raises(ArgumentError, match=r"boolean of shape \(2, 6\).*; got torch.float32 of shape \(2, 6\)"):
        nystrom_attention(q, q, q, attention_mask=torch.ones(2, 6))
    with pytest.raises(ArgumentError, match=r"k and v the same length; got q=.*v=\(2, 4, 4, 5\)"):
        nystrom_attention(q, k, v[:, :, :4])
    with pytest.raises(ArgumentError, match="num_kv_heads must divide num_heads; got num_kv_heads=3 and num_heads=4"):
        nystrom_attention(q, k[:, :3], v[:, :3])
