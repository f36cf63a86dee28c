"""Metric attention: tokens attend to near tokens, and the distance is learned.

    S_ij = -|x_i W_Q - x_j W_K|² / 2σ²      or      S_ij = -(x_i W_Q - x_j W_K)ᵀ M (x_i W_Q - x_j W_K) / 2

With W_K = W_Q the root of -2S is a pseudo-metric: symmetric, 0 on the diagonal, with the triangle inequality. softmax
of S is then the row-normalized Gaussian kernel of kernel smoothing and of diffusion maps.
"""

from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attention
from regard.checks import same_float_dtype
from regard.errors import ArgumentError
from regard.mask import MaskLike
from regard.score import FloatOrTensor, gaussian, mahalanobis


@check_types
def metric_attention(
    x: Tensor,
    w_q: Tensor,
    w_v: Tensor,
    w_k: Tensor | None = None,
    *,
    sigma: FloatOrTensor | None = None,
    matrix: Tensor | None = None,
    mask: MaskLike | None = None,
) -> Tensor:
    """Compute o_i = sum_j softmax_j(S_ij) x_j W_V, in linear memory.

    x is (..., n, features). The matrices are (features, head_dim), and the result is (..., n, value_dim); or all are
    (num_heads, features, head_dim), and the result is (..., num_heads, n, value_dim). `w_v` may have another last
    dimension, value_dim. `w_k` defaults to `w_q`. `mask` is that of `regard.attention` (default: all tokens).

    `sigma` is a number, or a tensor with one number or one per head. `matrix` is M, (head_dim, head_dim), or one per
    head. Both can be learned. Only the symmetric part of M has an effect, and it must have no negative eigenvalues for
    a distance: build it as L Lᵀ. If both are None, σ² = √head_dim, which equals q·k/√d for keys of equal norm. L2
    attention (Kim, Papamakarios and Mnih, 2021) has W_K = W_Q and σ² = √head_dim / 2.

    >>> import torch
    >>> x = torch.tensor([[0.0], [0.0], [100.0]])
    >>> metric_attention(x, torch.eye(1), torch.eye(1), sigma=1.0).flatten().tolist()
    [0.0, 0.0, 100.0]
    """
    w_k = w_q if w_k is None else w_k
    _check(x, {"w_q": w_q, "w_k": w_k, "w_v": w_v}, sigma, matrix)
    if matrix is not None:
        score = mahalanobis(matrix)
    else:
        score = gaussian(w_q.shape[-1] ** 0.25 if sigma is None else sigma)
    if w_q.dim() == 2:
        single_head: Tensor = attention(x @ w_q, x @ w_k, x @ w_v, score=score, mask=mask)
        return single_head
    per_head = (x if x.dim() > 2 else x[None]).unsqueeze(-3)
    output: Tensor = attention(per_head @ w_q, per_head @ w_k, per_head @ w_v, score=score, mask=mask)
    return output if x.dim() > 2 else output[0]


def _check(x: Tensor, weights: dict[str, Tensor], sigma: FloatOrTensor | None, matrix: Tensor | None) -> None:
    same_float_dtype({"x": x, **weights}, min_dims=2)
    if sigma is not None and matrix is not None:
        raise ArgumentError(
            "sigma and matrix must not both be given. Pass only matrix: sigma equals the matrix M = I/σ²."
        )
    shapes = ", ".join(f"{name}={tuple(w.shape)}" for name, w in weights.items())
    w_q = weights["w_q"]
    fits = w_q.dim() in (2, 3) and all(w.shape[:-1] == w_q.shape[:-1] for w in weights.values())
    if x.dim() < 2 or not fits or w_q.shape[-2] != x.shape[-1]:
        required = "w_q, w_k and w_v must all be (features, head_dim) or all (num_heads, features, head_dim)"
        raise ArgumentError(f"{required}, with features={x.shape[-1]}, the last dimension of x; got {shapes}.")
