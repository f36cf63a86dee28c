"""Low-rank attention: keys and values are projected to fewer rows, or to one row per channel.

    linformer    o = softmax(q (E k)ᵀ / √d) (F v)        E and F learned, (m, n)          (Wang et al., 2020)
    efficient    o = softmax(q) (softmax(k)ᵀ v)          over channels, over keys         (Shen et al., 2018)

Time and memory are linear in the length. Neither can be causal: every sum is over all keys.
"""

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attention
from regard.checks import same_float_dtype
from regard.errors import ArgumentError
from regard.mechanisms.head_layout import num_heads, num_key_value_groups
from regard.score import ScoreLike, dot


@check_types
def linformer_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e: Tensor,
    f: Tensor | None = None,
    *,
    score: ScoreLike | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> Tensor:
    """Compute softmax(q (E k)ᵀ / √d) (F v); exact where E and F are the identity.

    q is (..., num_heads, n_q, head_dim), k and v (..., num_kv_heads, n_k, head_dim). `e` is (m, n_k), or
    (num_kv_heads, m, n_k) for one matrix per head; `f` likewise, and None uses `e`. Slice a matrix for longer sequences
    to `e[..., :n_k]`; that equals padding k and v with zeros. `score`, `dropout` and `seed` are those of `attention`,
    applied to the projected keys (Wang, Li, Khabsa, Fang and Ma, 2020).

    >>> q, k, v = torch.randn(3, 2, 4, 100, 8)
    >>> linformer_attention(q, k, v, torch.randn(16, 100)).shape
    torch.Size([2, 4, 100, 8])
    """
    f = e if f is None else f
    same_float_dtype({"q": q, "e": e, "f": f})
    same_float_dtype({"q": q, "k": k, "v": v}, min_dims=2)
    for name, matrix, rows in (("e", e, k), ("f", f, v)):
        _check(name, matrix, rows)
    if e.shape[-2] != f.shape[-2]:
        raise ArgumentError(f"e and f must have the same number of rows; got {e.shape[-2]} and {f.shape[-2]}.")
    output: Tensor = attention(q, e @ k, f @ v, score=score, dropout=dropout, seed=seed)
    return output


def _check(name: str, matrix: Tensor, rows: Tensor) -> None:
    heads, n = num_heads(rows), rows.shape[-2]
    if matrix.dim() != 2 and (matrix.dim() != 3 or matrix.shape[0] != heads):
        got = tuple(matrix.shape)
        raise ArgumentError(f"{name} must be (m, n_k), or one such matrix for each of {heads} key heads; got {got}.")
    if matrix.shape[-1] != n:
        fix = f" Slice it: {name}[..., :{n}]." if matrix.shape[-1] > n else " Use a matrix for longer sequences."
        raise ArgumentError(f"{name} must have one column per key, {n}; got {matrix.shape[-1]}.{fix}")


@check_types
def efficient_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute softmax(q) (softmax(k)ᵀ v), with softmax over the channels of q and over the keys of k.

    q is (..., num_heads, n_q, head_dim), k and v (..., num_kv_heads, n_k, head_dim). Each channel of k averages the
    values, and each query averages these means, so its weights sum to 1. This is a different mechanism from softmax of
    q·k, not an approximation (Shen, Zhang, Zhao, Yi and Li, 2018).

    >>> q, k = torch.randn(2, 2, 4, 100, 8)
    >>> efficient_attention(q, k, torch.ones(2, 4, 100, 3)).allclose(torch.ones(2, 4, 100, 3))
    True
    """
    same_float_dtype({"q": q, "k": k, "v": v}, min_dims=2)
    if not q.dim() == k.dim() == v.dim() or q.shape[-1] != k.shape[-1]:
        shapes = f"q={tuple(q.shape)}, k={tuple(k.shape)}, v={tuple(v.shape)}"
        raise ArgumentError(
            f"q, k and v must have the same number of dimensions, and q and k the same head dimension; got {shapes}."
        )
    # a one-hot query selects channel c: its scores are k_jc
    channels = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device).expand(*k.shape[:-2], -1, -1)
    channel_means: Tensor = attention(channels, k, v, score=dot())
    if num_heads(q) != num_heads(k):
        channel_means = channel_means.repeat_interleave(num_key_value_groups(q, k), dim=-3)
    return torch.softmax(q, -1) @ channel_means
