"""Nyström attention: a few landmarks stand between queries and keys (Xiong and others, 2021).

    o = softmax(q k~') Z (softmax(q~ k') v)      q~, k~ landmarks: means of segments of the queries and of the keys
                                                 Z the pseudo-inverse of A = softmax(q~ k~'); every product over √d

Nothing of n x n numbers exists: both long products are calls of `attention`, one over the landmarks and one by them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attention
from regard.checks import same_floats
from regard.errors import SpecError
from regard.mechanism.heads import by_head, heads_of, sharing
from regard.spec.precision import fine

MAX_ITERATIONS = 1000


@check_types
def nystrom(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    landmarks: int = 64,
    iterations: int | None = 6,
    kernel: Tensor | None = None,
    padding: Tensor | None = None,
) -> Tensor:
    """An approximation of `attention` by way of m landmarks, in time n m. With as many landmarks as tokens, and
    `iterations=None`, it is `attention` itself (Xiong, Zeng, Chakraborty, Tan, Fung, Li and Singh, 2021).

    q is (..., heads, n_q, width), k and v (..., key heads, n_k, width). Landmark s is the mean of the positions i with
    floor(i m / n) = s: where m does not divide n, some segments are one longer than others. No more landmarks are
    taken than there are positions.

    iterations: those of `pseudo_inverse`, None for the exact one. With fewer landmarks than tokens the exact one is
    often worse: it magnifies what the landmarks miss, which iterations that stop early leave out.
    kernel: (heads, size) of odd size; the values, convolved along the sequence with it, are added to the result.
    padding: booleans (..., n), without heads, True = a real token, of queries and keys alike. The result is that of the
    sequence without its padding, whose own rows are 0. (The kernel still counts padding between real tokens, as zeros.)

    >>> q, k, v = torch.randn(3, 2, 4, 100, 8)
    >>> nystrom(q, k, v, landmarks=16).shape
    torch.Size([2, 4, 100, 8])
    """
    _check(q, k, v, landmarks, kernel, padding)
    _check_iterations(iterations)
    leading = q.shape[:-2]
    q, k, v = (by_head(x) for x in (q, k, v))
    real = None if padding is None else padding.reshape(q.shape[0], q.shape[2])
    m = max(1, min(landmarks, q.shape[-2], k.shape[-2]))
    output = _through_landmarks(q, k, v, m, iterations, real)
    if kernel is not None:
        kept = v if real is None else torch.where(real[:, None, :, None], v, 0.0)
        moved = _moved(kept.repeat_interleave(q.shape[1] // v.shape[1], dim=1), kernel.to(v.dtype))
        output = output + (moved if real is None else torch.where(real[:, None, :, None], moved, 0.0))
    return output.reshape(*leading, *output.shape[-2:])


@check_types
def pseudo_inverse(a: Tensor, iterations: int | None = 6) -> Tensor:
    """The Moore-Penrose inverse of a (..., rows, columns), approached from Z = a' / (|a|_1 |a|_inf) by

        Z <- Z (13 - a Z (15 - a Z (7 - a Z))) / 4,

    where each step cubes the error. The norms, largest sums of a column and of a row, are those of each matrix by
    itself. Six iterations are the published number, and small singular values need more; but where a is singular,
    what rounding leaves grows by 13/4 in each. None takes `torch.linalg.pinv` (Xiong and others, 2021, after Razavi
    and others, 2014).

    >>> pseudo_inverse(torch.tensor([[1.0, 0.0], [0.0, 0.5]]), 8)
    tensor([[1., 0.],
            [0., 2.]])
    """
    same_floats({"a": a}, least_dims=2)
    if 0 in a.shape[-2:]:
        raise SpecError(f"a must have at least 1 row and 1 column; got shape {tuple(a.shape)}.")
    _check_iterations(iterations)
    if iterations is None:
        exact: Tensor = torch.linalg.pinv(a)
        return exact
    size = a.abs()
    norms = size.sum(-2).amax(-1) * size.sum(-1).amax(-1)
    # a matrix of zeros is its own inverse, transposed
    z = a.mT / torch.where(norms == 0.0, 1.0, norms)[..., None, None]
    one = torch.eye(a.shape[-2], dtype=a.dtype, device=a.device)
    for _ in range(iterations):
        az = a @ z
        z = z @ (13.0 * one - az @ (15.0 * one - az @ (7.0 * one - az))) / 4.0
    return z


def _check(q: Tensor, k: Tensor, v: Tensor, landmarks: int, kernel: Tensor | None, padding: Tensor | None) -> None:
    same_floats({"q": q, "k": k, "v": v})
    same_floats({"kernel": kernel})
    outer = -3 if q.dim() >= 4 else -2
    if not 2 <= q.dim() == k.dim() or q.shape[:outer] != k.shape[:outer] or k.shape[:-1] != v.shape[:-1]:
        shapes = f"q={tuple(q.shape)}, k={tuple(k.shape)}, v={tuple(v.shape)}"
        raise SpecError(f"q, k and v must have the same dimensions, and k and v the same length; got {shapes}.")
    n_q, n_k = q.shape[-2], k.shape[-2]
    sharing(q, k)
    if landmarks < 1:
        raise SpecError(f"landmarks must be at least 1; got {landmarks}.")
    if (kernel is not None or padding is not None) and n_q != n_k:
        raise SpecError(f"with a kernel or padding queries and keys must be one sequence; got {n_q} and {n_k}.")
    heads = heads_of(q)
    if kernel is not None and (kernel.dim() != 2 or kernel.shape[0] != heads or kernel.shape[1] % 2 == 0):
        raise SpecError(f"kernel must be (heads, size) of odd size, here ({heads}, odd); got {tuple(kernel.shape)}.")
    if padding is None:
        return
    wanted = (*q.shape[:outer], n_q)
    if padding.dtype != torch.bool or tuple(padding.shape) != wanted:
        got = f"{padding.dtype} of shape {tuple(padding.shape)}"
        raise SpecError(f"padding must be booleans of shape {wanted}, True for a real token; got {got}.")


def _check_iterations(iterations: int | None) -> None:
    if iterations is not None and not 1 <= iterations <= MAX_ITERATIONS:
        limits = f"from 1 to {MAX_ITERATIONS:,}, or None for the exact inverse"
        raise SpecError(f"iterations must be {limits}; got {iterations}.")


def _through_landmarks(q: Tensor, k: Tensor, v: Tensor, m: int, iterations: int | None, real: Tensor | None) -> Tensor:
    few_q, few_k = _means(q, m, real), _means(k, m, real)
    there = None if real is None else _filled(real, m)
    # a call whose values are the identity gives the weights themselves
    one = torch.eye(m, dtype=fine(k).dtype, device=k.device).expand(*k.shape[:2], m, m)
    a: Tensor = attention(fine(few_q), fine(few_k), one, mask=_both(there, there))
    gathered: Tensor = attention(few_q, k, v, mask=_both(there, real))
    values = (pseudo_inverse(a, iterations) @ fine(gathered)).to(v.dtype)
    # each head of queries has values of its own by now
    few_k = few_k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    found: Tensor = attention(q, few_k, values, mask=_both(real, there))
    return found


def _means(x: Tensor, m: int, real: Tensor | None) -> Tensor:
    """The mean of each segment, (batch, heads, m, width): what a query gets that likes all keys of it alike."""
    n, segments = x.shape[-2], None if real is None else _segments(real, m)

    def own(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (j * m // max(n, 1) if segments is None else segments[b, j]) == i

    found: Tensor = attention(x.new_zeros(*x.shape[:2], m, x.shape[-1]), x, x, mask=own)
    return found


def _segments(real: Tensor, m: int) -> Tensor:
    """The segment of each real token among the real ones of its sequence; that of padding is m, which no one has."""
    place, count = real.cumsum(-1) - 1, real.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(real, place * m // count, m)


def _filled(real: Tensor, m: int) -> Tensor:
    """Which landmarks stand for anything: with fewer real tokens than landmarks some do not."""
    found = torch.zeros(len(real), m + 1, dtype=torch.bool, device=real.device)
    return found.scatter(-1, _segments(real, m), True)[:, :m]


def _both(rows: Tensor | None, columns: Tensor | None) -> Callable[..., Any] | None:
    if rows is None or columns is None:
        return None
    return lambda b, h, i, j: rows[b, i] & columns[b, j]


def _moved(v: Tensor, kernel: Tensor) -> Tensor:
    """Each head's values, in every channel, convolved along the sequence with the head's kernel."""
    size = kernel.shape[-1]
    return torch.nn.functional.conv2d(v, kernel[:, None, :, None], padding=(size // 2, 0), groups=len(kernel))
