"""Nyström attention: landmarks between queries and keys, against Hugging Face's layer and the definition."""

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
from regard.errors import SpecError
from regard.mechanism import nystrom as module
from regard.mechanism.nystrom import nystrom, pseudo_inverse


def numbers(n_q: int, n_k: int, heads: int = 4, key_heads: int = 4) -> list[Tensor]:
    sizes = ((heads, n_q, 8), (key_heads, n_k, 8), (key_heads, n_k, 5))
    return [torch.randn(2, *size, dtype=torch.float64) for size in sizes]


def weights(q: Tensor, k: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)


def written_out(q: Tensor, k: Tensor, v: Tensor, m: int, iterations: int | None = 6) -> Tensor:
    """All three matrices of weights, the inverse as the paper iterates it, for one head after another."""
    output = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            g = h // (q.shape[1] // k.shape[1])
            rows, keys, values = q[b, h], k[b, g], v[b, g]
            few_q, few_k = (torch.stack([part.mean(0) for part in segments(x, m)]) for x in (rows, keys))
            a = weights(few_q, few_k)
            if iterations is None:
                z = torch.linalg.pinv(a)
            else:
                one, z = torch.eye(len(a)).to(a), a.mT / (a.sum(0).max() * a.sum(1).max())
                for _ in range(iterations):
                    z = 0.25 * z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z)))
            output[b, h] = weights(rows, few_k) @ z @ (weights(few_q, keys) @ values)
    return output


def segments(x: Tensor, m: int) -> list[Tensor]:
    edges = [math.ceil(s * len(x) / m) for s in range(m + 1)]
    return [x[first:last] for first, last in pairwise(edges)]


@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("n_q, n_k, m", [(24, 24, 6), (23, 23, 5), (9, 30, 4), (7, 7, 7), (1, 1, 1)])
def test_landmarks_stand_between_queries_and_keys(key_heads: int, n_q: int, n_k: int, m: int) -> None:
    q, k, v = numbers(n_q, n_k, key_heads=key_heads)

    found = nystrom(q, k, v, landmarks=m)

    torch.testing.assert_close(found, written_out(q, k, v, m))


@pytest.mark.parametrize("dimensions", [2, 3, 5])
def test_any_number_of_leading_dimensions_will_do(dimensions: int) -> None:
    q, k, v = numbers(12, 12)
    shape = {2: lambda x: x[0, 0], 3: lambda x: x[:, 0], 5: lambda x: x[:, None]}[dimensions]

    found = nystrom(*(shape(x) for x in (q, k, v)), landmarks=4)

    torch.testing.assert_close(found, shape(nystrom(q, k, v, landmarks=4)))


@pytest.mark.parametrize("landmarks", [13, 64])
def test_as_many_landmarks_as_tokens_give_attention(landmarks: int) -> None:
    q, k, v = numbers(13, 13)

    found = nystrom(q, k, v, landmarks=landmarks, iterations=None)

    # A is inverted, and its least singular value is 0.0007
    torch.testing.assert_close(found, attention(q, k, v), rtol=1e-9, atol=1e-9)


def test_more_landmarks_and_more_iterations_come_nearer() -> None:
    q, k, v = numbers(48, 48)
    exact = attention(q, k, v)

    def error(m: int, iterations: int | None) -> float:
        return float((nystrom(q, k, v, landmarks=m, iterations=iterations) - exact).square().mean().sqrt())

    assert error(48, None) < 1e-9 < error(48, 12) < error(48, 6)
    assert error(40, 6) < error(16, 6) < error(4, 6)


def test_the_exact_inverse_magnifies_what_few_landmarks_miss() -> None:
    q, k, v = numbers(48, 48)
    exact = attention(q, k, v)

    stopped, inverted = (nystrom(q, k, v, landmarks=16, iterations=n) - exact for n in (6, None))

    assert stopped.norm() < 0.5 * inverted.norm()


@pytest.mark.parametrize("n", [0, 1])
def test_no_tokens_and_one_token(n: int) -> None:
    q, k, v = numbers(n, n)

    torch.testing.assert_close(nystrom(q, k, v), v)


def test_no_keys_give_zero() -> None:
    q, k, v = numbers(4, 0)

    assert (nystrom(q, k, v) == 0).all()


def test_half_precision_is_enough_for_what_goes_in() -> None:
    q, k, v = (x.bfloat16() for x in numbers(96, 96))

    found = nystrom(q, k, v, landmarks=16)

    assert found.dtype == torch.bfloat16
    expected = nystrom(q.double(), k.double(), v.double(), landmarks=16)
    # results below 1 are rounded to 8 bits, and so is what landmarks gather, which Z magnifies
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-2)


def test_every_call_has_landmarks_on_one_side(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[tuple[int, int]] = []

    def watched(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        lengths.append((q.shape[-2], k.shape[-2]))
        return attention(q, k, v, **options)

    monkeypatch.setattr(module, "attention", watched)
    nystrom(*numbers(300, 200), landmarks=8)

    assert sorted(lengths) == [(8, 8), (8, 200), (8, 200), (8, 300), (300, 8)]


# Padding


def padded(x: Tensor, real: Tensor) -> Tensor:
    """The rows of x, in their order, where something real stands, and NaN elsewhere."""
    whole = torch.full((*x.shape[:-2], len(real), x.shape[-1]), torch.nan, dtype=x.dtype)
    whole[..., real, :] = x
    return whole


@pytest.mark.parametrize("length", [1, 3, 17, 24], ids=str)
@pytest.mark.parametrize("where", ["right", "left", "anywhere"])
def test_padding_changes_nothing(length: int, where: str) -> None:
    q, k, v = numbers(length, length, key_heads=2)
    at = {"right": torch.arange(24), "left": torch.arange(24).flip(0), "anywhere": torch.randperm(24)}[where]
    real = torch.zeros(24, dtype=torch.bool)
    real[at[:length]] = True
    whole = [padded(x, real).requires_grad_() for x in (q, k, v)]

    found = nystrom(*whole, landmarks=5, padding=real.expand(2, 24))

    torch.testing.assert_close(found[..., real, :], nystrom(q, k, v, landmarks=5))
    assert (found[..., ~real, :] == 0).all()
    for gradient in torch.autograd.grad(found.sum(), whole):
        assert gradient.isfinite().all() and (gradient[..., ~real, :] == 0).all()


def test_each_sequence_has_its_own_padding() -> None:
    q, k, v = numbers(10, 10)
    real = torch.arange(10) < torch.tensor([[10], [4]])

    found = nystrom(q, k, v, landmarks=6, padding=real)

    torch.testing.assert_close(found[:1], nystrom(q[:1], k[:1], v[:1], landmarks=6))
    alone = nystrom(*(x[1:, :, :4] for x in (q, k, v)), landmarks=6)
    torch.testing.assert_close(found[1:, :, :4], alone)


def test_a_sequence_of_nothing_but_padding_is_zero_and_passes_no_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in numbers(6, 6))

    found = nystrom(q, k, v, padding=torch.zeros(2, 6, dtype=torch.bool), kernel=torch.ones(4, 3))

    assert (found == 0).all()
    assert all((g == 0).all() for g in torch.autograd.grad(found.sum(), (q, k, v)))


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_kernel_sees_no_padding(side: str) -> None:
    q, k, v = numbers(9, 9)
    kernel = torch.randn(4, 5, dtype=torch.float64)
    real = torch.arange(14) < 9 if side == "right" else torch.arange(14) >= 5

    found = nystrom(*(padded(x, real) for x in (q, k, v)), landmarks=3, kernel=kernel, padding=real.expand(2, 14))

    torch.testing.assert_close(found[..., real, :], nystrom(q, k, v, landmarks=3, kernel=kernel))
    assert (found[..., ~real, :] == 0).all()


# The convolution


@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("size", [1, 5, 33])
def test_the_kernel_adds_neighbouring_values(size: int, key_heads: int) -> None:
    q, k, v = numbers(11, 11, key_heads=key_heads)
    kernel = torch.randn(4, size, dtype=torch.float64)

    added = nystrom(q, k, v, landmarks=3, kernel=kernel) - nystrom(q, k, v, landmarks=3)

    expected = torch.zeros_like(added)
    for h in range(4):
        for i in range(11):
            for t in range(size):
                j = i + t - size // 2
                if 0 <= j < 11:
                    expected[:, h, i] += kernel[h, t] * v[:, h // (4 // key_heads), j]
    torch.testing.assert_close(added, expected)


# The pseudo-inverse


def test_one_iteration_on_a_diagonal_is_the_polynomial() -> None:
    s = torch.tensor([1.0, 0.7, 0.2], dtype=torch.float64)

    found = pseudo_inverse(torch.diag(s), 1)

    # both norms are 1, so Z begins at s, and a Z at s²
    x = s * s
    torch.testing.assert_close(found, torch.diag(s * (13 - x * (15 - x * (7 - x))) / 4))


def test_an_iteration_cubes_the_error() -> None:
    s = torch.tensor([1.0, 0.9], dtype=torch.float64)
    a = torch.diag(s)

    errors = [float(1 - (a @ pseudo_inverse(a, n))[1, 1]) for n in (1, 2)]

    # 1 - x' = (3 e³ + e⁴) / 4 exactly, for x = 1 - e
    assert errors[1] == pytest.approx((3 * errors[0] ** 3 + errors[0] ** 4) / 4, rel=1e-6)


def test_iterations_converge_to_the_inverse_of_torch() -> None:
    a = weights(*torch.randn(2, 3, 4, 10, 8, dtype=torch.float64))

    found = pseudo_inverse(a, 20)

    # the least singular value is 0.0016, which takes 16 iterations and leaves 12 digits
    torch.testing.assert_close(found, torch.linalg.pinv(a), rtol=1e-8, atol=1e-8)
    assert torch.equal(pseudo_inverse(a, None), torch.linalg.pinv(a))


@pytest.mark.parametrize("rows, columns", [(6, 3), (3, 6)])
def test_a_matrix_need_not_be_square(rows: int, columns: int) -> None:
    a = torch.randn(2, rows, columns, dtype=torch.float64)

    torch.testing.assert_close(pseudo_inverse(a, 12), torch.linalg.pinv(a))


def test_a_singular_matrix_has_an_inverse_until_rounding_grows() -> None:
    left, right = torch.randn(2, 6, 3, dtype=torch.float64)
    a = left @ right.mT
    exact = torch.linalg.pinv(a)

    errors = [float((pseudo_inverse(a, n) - exact).abs().max()) for n in (6, 20, 30)]

    assert errors[0] < 1e-11
    assert errors[2] / errors[1] == pytest.approx((13 / 4) ** 10, rel=0.1)


def test_the_norms_are_those_of_each_matrix() -> None:
    a = weights(*torch.randn(2, 5, 10, 8, dtype=torch.float64))
    a[0] *= 1000.0

    torch.testing.assert_close(pseudo_inverse(a, 4), torch.stack([pseudo_inverse(each, 4) for each in a]))


def test_the_inverse_of_zeros_is_zeros() -> None:
    assert (pseudo_inverse(torch.zeros(3, 3)) == 0).all()


# Others' programs


def theirs(heads: int, length: int, landmarks: int, size: int | None = None) -> NystromformerSelfAttention:
    config = NystromformerConfig(
        hidden_size=8 * heads,
        num_attention_heads=heads,
        num_landmarks=landmarks,
        segment_means_seq_len=length,
        conv_kernel_size=size or 1,
    )
    layer = NystromformerSelfAttention(config).double().eval()
    layer.conv_kernel_size = size  # None is for the layer to know, but no longer for its configuration
    return layer


def ours(layer: NystromformerSelfAttention, x: Tensor, landmarks: int, iterations: int | None = 6) -> Tensor:
    q, k, v = (f(x).unflatten(-1, (-1, 8)).transpose(1, 2) for f in (layer.query, layer.key, layer.value))
    kernel = None if layer.conv_kernel_size is None else layer.conv.weight[:, 0, :, 0]
    found = nystrom(q, k, v, landmarks=landmarks, iterations=iterations, kernel=kernel)
    return found.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("size", [None, 5], ids=["alone", "with a convolution"])
@pytest.mark.parametrize("length, landmarks", [(64, 8), (60, 20)])
def test_it_is_what_transformers_computes(size: int | None, length: int, landmarks: int) -> None:
    layer = theirs(4, length, landmarks, size)
    layer.init_option = "exact"  # the norm of each matrix; the option of the configuration raises an error
    x = 3.0 * torch.randn(2, length, 32, dtype=torch.float64)

    torch.testing.assert_close(ours(layer, x, landmarks), layer(x)[0])


@pytest.mark.parametrize("size", [None, 5], ids=["alone", "with a convolution"])
def test_one_head_begins_as_transformers_does_unless_told_otherwise(size: int | None) -> None:
    """What it begins with there is the norm of all matrices together, which for one matrix is its own."""
    layer = theirs(1, 64, 8, size)
    x = 3.0 * torch.randn(1, 64, 8, dtype=torch.float64)

    torch.testing.assert_close(ours(layer, x, 8), layer(x)[0])


def test_many_heads_end_where_transformers_does_wherever_it_begins() -> None:
    layer = theirs(4, 64, 8)
    x = 3.0 * torch.randn(2, 64, 32, dtype=torch.float64)
    usual = layer.iterative_inv
    layer.iterative_inv = lambda a: usual(a, n_iter=25)

    # both have converged, and inverted a least singular value of 0.00005
    torch.testing.assert_close(ours(layer, x, 8, iterations=25), layer(x)[0], rtol=1e-7, atol=1e-7)


def test_as_many_landmarks_as_tokens_are_attention_for_transformers_too() -> None:
    layer = theirs(4, 12, 12)
    x = 3.0 * torch.randn(2, 12, 32, dtype=torch.float64)

    # A is inverted here, and not there
    torch.testing.assert_close(ours(layer, x, 12, iterations=None), layer(x)[0], rtol=1e-9, atol=1e-9)


# Gradients, errors


@pytest.mark.parametrize("iterations", [6, None])
def test_gradients(iterations: int | None) -> None:
    q, k, v = (torch.randn(1, 2, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    kernel = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    assert gradcheck(
        lambda q, k, v, kernel: nystrom(q, k, v, landmarks=2, iterations=iterations, kernel=kernel), (q, k, v, kernel)
    )


def test_gradients_with_padding() -> None:
    q, k, v = (torch.randn(1, 1, 5, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    real = torch.tensor([[True, False, True, True, False]])

    assert gradcheck(lambda q, k, v: nystrom(q, k, v, landmarks=2, padding=real), (q, k, v))


def test_what_is_wrong_is_said() -> None:
    q, k, v = numbers(6, 5)
    with pytest.raises(SpecError, match="landmarks must be at least 1; got 0"):
        nystrom(q, k, v, landmarks=0)
    with pytest.raises(SpecError, match="iterations must be from 1 to 1,000, or None for the exact inverse; got 0"):
        nystrom(q, k, v, iterations=0)
    with pytest.raises(SpecError, match="iterations must be from 1 to 1,000, or None for the exact inverse; got -1"):
        pseudo_inverse(torch.eye(2), -1)
    with pytest.raises(SpecError, match="queries and keys must be one sequence; got 6 and 5"):
        nystrom(q, k, v, kernel=torch.ones(4, 3))
    with pytest.raises(SpecError, match="queries and keys must be one sequence; got 6 and 5"):
        nystrom(q, k, v, padding=torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(SpecError, match=r"here \(4, odd\); got \(4, 2\)"):
        nystrom(q, q, q, kernel=torch.ones(4, 2))
    with pytest.raises(SpecError, match=r"here \(4, odd\); got \(2, 3\)"):
        nystrom(q, q, q, kernel=torch.ones(2, 3))
    with pytest.raises(SpecError, match=r"booleans of shape \(2, 6\).*; got torch.bool of shape \(6,\)"):
        nystrom(q, q, q, padding=torch.ones(6, dtype=torch.bool))
    with pytest.raises(SpecError, match=r"booleans of shape \(2, 6\).*; got torch.float32 of shape \(2, 6\)"):
        nystrom(q, q, q, padding=torch.ones(2, 6))
    with pytest.raises(SpecError, match=r"k and v the same length; got q=.*v=\(2, 4, 4, 5\)"):
        nystrom(q, k, v[:, :, :4])
    with pytest.raises(SpecError, match="divide that of q; got 3 and 4"):
        nystrom(q, k[:, :3], v[:, :3])
