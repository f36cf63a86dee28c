"""Attention of low rank: keys and values are summed up into a few before any query looks at them.

    linformer    o = softmax(q (E k)' / √d) (F v)        E and F learned, (few, n)        (Wang and others, 2020)
    efficient    o = softmax(q) (softmax(k)' v)          over channels, over keys         (Shen and others, 2018)

Time and memory grow with the length. Neither can be causal: every sum is over all keys.
"""

from typing import Any

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attention
from regard.checks import same_floats
from regard.errors import SpecError
from regard.mechanism.heads import heads_of, sharing
from regard.spec.score import dot


@check_types
def linformer(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e: Tensor,
    f: Tensor | None = None,
    *,
    score: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> Tensor:
    """The attention of q over E k and F v: softmax(q (E k)' / √d) (F v). Exact where E and F are the identity.

    q is (..., heads, n_q, width), k and v (..., key heads, n_k, width). `e` is (few, n_k), or (key heads, few, n_k)
    for one a head, and `f` likewise; None takes `e` for both. A matrix made for longer sequences is cut by the caller,
    `e[..., :n_k]`, which is the same as keys and values of zero behind the last. See `attention` for the rest, where
    a key is now a sum of keys (Wang, Li, Khabsa, Fang and Ma, 2020).

    >>> q, k, v = torch.randn(3, 2, 4, 100, 8)
    >>> linformer(q, k, v, torch.randn(16, 100)).shape
    torch.Size([2, 4, 100, 8])
    """
    f = e if f is None else f
    same_floats({"q": q, "e": e, "f": f})
    same_floats({"q": q, "k": k, "v": v}, least_dims=2)
    for name, matrix, rows in (("e", e, k), ("f", f, v)):
        _check(name, matrix, rows)
    if e.shape[-2] != f.shape[-2]:
        raise SpecError(f"e and f must make equally many sums; got {e.shape[-2]} and {f.shape[-2]}.")
    found: Tensor = attention(q, e @ k, f @ v, score=score, dropout=dropout, seed=seed)
    return found


def _check(name: str, matrix: Tensor, rows: Tensor) -> None:
    heads, n = heads_of(rows), rows.shape[-2]
    if matrix.dim() != 2 and (matrix.dim() != 3 or matrix.shape[0] != heads):
        got = tuple(matrix.shape)
        raise SpecError(f"{name} must be (few, n_k), or one such matrix for each of {heads} key heads; got {got}.")
    if matrix.shape[-1] != n:
        cut = f" Cut it: {name}[..., :{n}]." if matrix.shape[-1] > n else " Make one for longer sequences."
        raise SpecError(f"{name} must have one column a key, {n}; got {matrix.shape[-1]}.{cut}")


@check_types
def efficient_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """o = softmax(q) (softmax(k)' v): q's softmax is over the channels of a query, k's over the keys, in each channel.

    q is (..., heads, n_q, width), k and v (..., key heads, n_k, width). A channel of the keys gathers one mean of the
    values, and a query takes a mean of those, so its weights still sum to 1. Exact as it stands, but another
    mechanism than softmax of q·k (Shen, Zhang, Zhao, Yi and Li, 2018).

    >>> q, k = torch.randn(2, 2, 4, 100, 8)
    >>> efficient_attention(q, k, torch.ones(2, 4, 100, 3)).allclose(torch.ones(2, 4, 100, 3))
    True
    """
    same_floats({"q": q, "k": k, "v": v}, least_dims=2)
    if not q.dim() == k.dim() == v.dim() or q.shape[-1] != k.shape[-1]:
        shapes = f"q={tuple(q.shape)}, k={tuple(k.shape)}, v={tuple(v.shape)}"
        raise SpecError(f"q, k and v must have the same dimensions, and q and k the same width; got {shapes}.")
    # channel c of the keys asks for itself: its scores are k_jc
    channels = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device).expand(*k.shape[:-2], -1, -1)
    gathered: Tensor = attention(channels, k, v, score=dot())
    if heads_of(q) != heads_of(k):
        gathered = gathered.repeat_interleave(sharing(q, k), dim=-3)
    return torch.softmax(q, -1) @ gathered
