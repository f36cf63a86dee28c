"""Nyström attention: softmax attention approximated through a few landmarks (Xiong et al., 2021).

    o = softmax(q k~ᵀ) Z (softmax(q~ kᵀ) v)      q~, k~ landmarks: means of segments of the queries and of the keys
                                                 Z the pseudo-inverse of A = softmax(q~ k~'); every product over √d

No n x n matrix is built: both long products are calls of `attention`, with landmarks as keys or as queries.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attention
from regard.checks import same_float_dtype
from regard.errors import ArgumentError
from regard.mechanisms.head_layout import as_4d, num_heads, num_key_value_groups
from regard.tensors.precision import upcast

MAX_ITERATIONS = 1000


@check_types
def nystrom_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    num_landmarks: int = 64,
    pinv_iterations: int | None = 6,
    conv_kernel: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """Approximate `attention` with m landmarks, in time n m (Xiong, Zeng, Chakraborty, Tan, Fung, Li and Singh, 2021).

    The result equals `attention` with as many landmarks as tokens and `pinv_iterations=None`. q is (..., num_heads,
    n_q, head_dim), k and v (..., num_kv_heads, n_k, head_dim). Landmark s is the mean of the positions i with
    floor(i m / n) = s, so the lengths of segments differ by at most one. m is at most the number of positions.

    num_landmarks: m, 64 by default.
    pinv_iterations: the iterations of `pseudo_inverse`; None is the exact inverse. With fewer landmarks than tokens the
    exact inverse is often worse, because it amplifies the approximation error.
    conv_kernel: (num_heads, size) with odd size. The values, convolved along the sequence, are added to the result.
    attention_mask: booleans (..., n) without the heads, True for real tokens, for queries and keys. The result is that
    of the sequence without its padding; padding rows are 0. The convolution treats padding as zeros.

    >>> q, k, v = torch.randn(3, 2, 4, 100, 8)
    >>> nystrom_attention(q, k, v, num_landmarks=16).shape
    torch.Size([2, 4, 100, 8])
    """
    _check(q, k, v, num_landmarks, conv_kernel, attention_mask)
    _check_iterations(pinv_iterations)
    leading = q.shape[:-2]
    q, k, v = (as_4d(x) for x in (q, k, v))
    is_real = None if attention_mask is None else attention_mask.reshape(q.shape[0], q.shape[2])
    m = max(1, min(num_landmarks, q.shape[-2], k.shape[-2]))
    output = _landmark_attention(q, k, v, m, pinv_iterations, is_real)
    if conv_kernel is not None:
        values = v if is_real is None else torch.where(is_real[:, None, :, None], v, 0.0)
        values = values.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        convolved = _convolve_values(values, conv_kernel.to(v.dtype))
        output = output + (convolved if is_real is None else torch.where(is_real[:, None, :, None], convolved, 0.0))
    return output.reshape(*leading, *output.shape[-2:])


@check_types
def pseudo_inverse(a: Tensor, iterations: int | None = 6) -> Tensor:
    """Return the Moore-Penrose inverse of a (..., rows, columns), approximated by the iteration

        Z <- Z (13 - a Z (15 - a Z (7 - a Z))) / 4,      from Z = aᵀ / (|a|_1 |a|_inf)

    Each step cubes the error. The norms (largest column sum, largest row sum) are computed for each matrix separately.
    The paper uses six iterations. Small singular values need more, but each iteration multiplies the rounding error of
    a singular matrix by 13/4. None calls `torch.linalg.pinv` (Xiong et al., 2021, after Razavi et al., 2014).

    >>> pseudo_inverse(torch.tensor([[1.0, 0.0], [0.0, 0.5]]), 8)
    tensor([[1., 0.],
            [0., 2.]])
    """
    same_float_dtype({"a": a}, min_dims=2)
    if 0 in a.shape[-2:]:
        raise ArgumentError(f"a must have at least 1 row and 1 column; got shape {tuple(a.shape)}.")
    _check_iterations(iterations)
    if iterations is None:
        exact: Tensor = torch.linalg.pinv(a)
        return exact
    magnitudes = a.abs()
    norms = magnitudes.sum(-2).amax(-1) * magnitudes.sum(-1).amax(-1)
    # the pseudo-inverse of zeros is zeros
    z = a.mT / torch.where(norms == 0.0, 1.0, norms)[..., None, None]
    identity = torch.eye(a.shape[-2], dtype=a.dtype, device=a.device)
    for _ in range(iterations):
        az = a @ z
        z = z @ (13.0 * identity - az @ (15.0 * identity - az @ (7.0 * identity - az))) / 4.0
    return z


def _check(
    q: Tensor, k: Tensor, v: Tensor, num_landmarks: int, conv_kernel: Tensor | None, attention_mask: Tensor | None
) -> None:
    same_float_dtype({"q": q, "k": k, "v": v})
    same_float_dtype({"conv_kernel": conv_kernel})
    outer = -3 if q.dim() >= 4 else -2
    if not 2 <= q.dim() == k.dim() or q.shape[:outer] != k.shape[:outer] or k.shape[:-1] != v.shape[:-1]:
        shapes = f"q={tuple(q.shape)}, k={tuple(k.shape)}, v={tuple(v.shape)}"
        raise ArgumentError(
            f"q, k and v must have the same number of dimensions, and k and v the same length; got {shapes}."
        )
    n_q, n_k = q.shape[-2], k.shape[-2]
    num_key_value_groups(q, k)
    if num_landmarks < 1:
        raise ArgumentError(f"num_landmarks must be at least 1; got {num_landmarks}.")
    if (conv_kernel is not None or attention_mask is not None) and n_q != n_k:
        raise ArgumentError(
            f"queries and keys must have equal lengths with conv_kernel or attention_mask; got {n_q} and {n_k}."
        )
    heads = num_heads(q)
    if conv_kernel is not None and (
        conv_kernel.dim() != 2 or conv_kernel.shape[0] != heads or conv_kernel.shape[1] % 2 == 0
    ):
        raise ArgumentError(
            f"conv_kernel must be (num_heads, size) with num_heads={heads} and odd size; "
            f"got {tuple(conv_kernel.shape)}."
        )
    if attention_mask is None:
        return
    shape = (*q.shape[:outer], n_q)
    if attention_mask.dtype != torch.bool or tuple(attention_mask.shape) != shape:
        got = f"{attention_mask.dtype} of shape {tuple(attention_mask.shape)}"
        raise ArgumentError(f"attention_mask must be boolean of shape {shape}, True for a real token; got {got}.")


def _check_iterations(iterations: int | None) -> None:
    if iterations is not None and not 1 <= iterations <= MAX_ITERATIONS:
        limits = f"from 1 to {MAX_ITERATIONS:,}, or None for the exact inverse"
        raise ArgumentError(f"iterations must be {limits}; got {iterations}.")


def _landmark_attention(
    q: Tensor, k: Tensor, v: Tensor, m: int, pinv_iterations: int | None, attention_mask: Tensor | None
) -> Tensor:
    q_landmarks, k_landmarks = _landmark_means(q, m, attention_mask), _landmark_means(k, m, attention_mask)
    is_landmark = None if attention_mask is None else _nonempty_landmarks(attention_mask, m)
    # with the identity as values, the output is the matrix of weights
    identity = torch.eye(m, dtype=upcast(k).dtype, device=k.device).expand(*k.shape[:2], m, m)
    a: Tensor = attention(
        upcast(q_landmarks), upcast(k_landmarks), identity, mask=_outer_mask(is_landmark, is_landmark)
    )
    landmark_outputs: Tensor = attention(q_landmarks, k, v, mask=_outer_mask(is_landmark, attention_mask))
    values = (pseudo_inverse(a, pinv_iterations) @ upcast(landmark_outputs)).to(v.dtype)
    # the values already have one head per query head
    k_landmarks = k_landmarks.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    output: Tensor = attention(q, k_landmarks, values, mask=_outer_mask(attention_mask, is_landmark))
    return output


def _landmark_means(x: Tensor, m: int, attention_mask: Tensor | None) -> Tensor:
    """Return the mean of each segment, (batch, num_heads, m, head_dim): attention of zero queries is a mean."""
    n, segments = x.shape[-2], None if attention_mask is None else _segment_ids(attention_mask, m)

    def in_segment(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (j * m // max(n, 1) if segments is None else segments[b, j]) == i

    means: Tensor = attention(x.new_zeros(*x.shape[:2], m, x.shape[-1]), x, x, mask=in_segment)
    return means


def _segment_ids(attention_mask: Tensor, m: int) -> Tensor:
    """Return the segment of each token, counted over the real tokens of its sequence; m (no segment) for padding."""
    position, count = attention_mask.cumsum(-1) - 1, attention_mask.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(attention_mask, position * m // count, m)


def _nonempty_landmarks(attention_mask: Tensor, m: int) -> Tensor:
    """Return whether each landmark has any tokens; some are empty if real tokens are fewer than landmarks."""
    is_used = torch.zeros(len(attention_mask), m + 1, dtype=torch.bool, device=attention_mask.device)
    return is_used.scatter(-1, _segment_ids(attention_mask, m), True)[:, :m]


def _outer_mask(query_mask: Tensor | None, key_mask: Tensor | None) -> Callable[..., Any] | None:
    if query_mask is None or key_mask is None:
        return None
    return lambda b, h, i, j: query_mask[b, i] & key_mask[b, j]


def _convolve_values(v: Tensor, conv_kernel: Tensor) -> Tensor:
    """Convolve every channel of the values along the sequence with the kernel of its head."""
    size = conv_kernel.shape[-1]
    return torch.nn.functional.conv2d(v, conv_kernel[:, None, :, None], padding=(size // 2, 0), groups=len(conv_kernel))
