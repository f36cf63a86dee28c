"""Metric attention: a token looks at what lies near it, and how far apart two tokens are is learned.

    S_ij = -|x_i W_Q - x_j W_K|² / 2σ²      or      S_ij = -(x_i W_Q - x_j W_K)' M (x_i W_Q - x_j W_K) / 2

With W_K = W_Q the root of -2S is a pseudo-metric: symmetric, 0 on the diagonal, no way around is shorter. softmax of S
is then the row-normalised Gaussian kernel of kernel smoothing and of diffusion maps.
"""

from typing import Any

from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attention
from regard.checks import same_floats
from regard.errors import SpecError
from regard.spec.score import Number, mahalanobis, metric


@check_types
def metric_attention(
    x: Tensor,
    w_q: Tensor,
    w_v: Tensor,
    w_k: Tensor | None = None,
    *,
    sigma: Number | None = None,
    matrix: Tensor | None = None,
    mask: Any = None,
) -> Tensor:
    """o_i = sum_j softmax_j(S_ij) x_j W_V, in linear memory.

    x is (..., n, features). Matrices are (features, width), and the result (..., n, value width); or each is (heads,
    features, width), and the result (..., heads, n, value width). Without `w_k` keys are made as queries are.

    `sigma` is a number or a tensor, one or one a head; `matrix` is M, (width, width), or one a head. Both may be
    learned. Of M only the symmetric part counts, and distances are distances if it has no negative eigenvalue: make it
    as L L'. With neither, σ² = √width: for keys of equal length that is q·k/√d. L2 attention (Kim, Papamakarios and
    Mnih, 2021) is tied, with σ² = √width / 2.

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
        score = metric(w_q.shape[-1] ** 0.25 if sigma is None else sigma)
    if w_q.dim() == 2:
        alone: Tensor = attention(x @ w_q, x @ w_k, x @ w_v, score=score, mask=mask)
        return alone
    each = (x if x.dim() > 2 else x[None]).unsqueeze(-3)
    output: Tensor = attention(each @ w_q, each @ w_k, each @ w_v, score=score, mask=mask)
    return output if x.dim() > 2 else output[0]


def _check(x: Tensor, weights: dict[str, Tensor], sigma: Number | None, matrix: Tensor | None) -> None:
    same_floats({"x": x, **weights}, least_dims=2)
    if sigma is not None and matrix is not None:
        raise SpecError("a distance must be measured by sigma or by matrix; got both. M = 1/σ² is the same as sigma.")
    shapes = ", ".join(f"{name}={tuple(w.shape)}" for name, w in weights.items())
    one = weights["w_q"]
    fits = one.dim() in (2, 3) and all(w.shape[:-1] == one.shape[:-1] for w in weights.values())
    if x.dim() < 2 or not fits or one.shape[-2] != x.shape[-1]:
        wanted = "w_q, w_k and w_v must all be (features, width) or all (heads, features, width)"
        raise SpecError(f"{wanted}, with features the width of x, {x.shape[-1]}; got {shapes}.")
