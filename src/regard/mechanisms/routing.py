"""Routing attention: queries and keys near the same centroid attend to each other.

Each centroid selects the `cluster_size` queries and keys with the largest inner products, and softmax(q·k/√d) runs
within this cluster. A query in several clusters gets the mean of its outputs (Roy, Saffar, Vaswani and Grangier, 2021).
q and k are layer-normalized without learned weights, so all have the same norm. With √n centroids and clusters of √n
tokens the time is n^1.5. `update_centroids` is the training step of the centroids.
"""

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, one_hot

from regard.argument_types import check_types
from regard.attention import attention_with_weights
from regard.checks import same_float_dtype
from regard.errors import ArgumentError
from regard.mechanisms.head_layout import gather_rows


@check_types
def routing_attention(
    q: Tensor, k: Tensor, v: Tensor, centroids: Tensor, *, cluster_size: int, causal: bool = False
) -> Tensor:
    """Compute attention within clusters of `cluster_size` queries and keys.

    q, k and v are (..., num_heads, n, head_dim), `centroids` (num_heads, num_clusters, head_dim). The output of a query
    in no cluster is 0. With `causal` a query attends to the keys of its clusters up to its own position; the last query
    has the position of the last key. Clusters without a visible key do not count in the mean. The choice of clusters
    depends on all tokens, also with `causal`. Gradients reach q, k and v, but not the centroids. One centroid with a
    cluster size of n is attention of the normalized q and k.

    >>> q, k, v = torch.randn(3, 2, 100, 8)
    >>> routing_attention(q, k, v, torch.randn(2, 10, 8), cluster_size=10).shape
    torch.Size([2, 100, 8])
    """
    _check(q, k, centroids)
    n_q, n_k = q.shape[-2], k.shape[-2]
    if v.shape[:-1] != k.shape[:-1]:
        raise ArgumentError(
            f"v must have the shape of k, {tuple(k.shape)}, except for the last dimension; got {tuple(v.shape)}."
        )
    if not 1 <= cluster_size <= min(n_q, n_k):
        raise ArgumentError(
            f"cluster_size must be from 1 to the number of queries and keys, {n_q} and {n_k}; got {cluster_size}."
        )
    if causal and n_q > n_k:
        raise ArgumentError(f"causal attention must not have more queries than keys; got n_q={n_q} and n_k={n_k}.")
    q, k = _layer_norm(q), _layer_norm(k)
    q_rows, k_rows = (_topk_rows(x, centroids, cluster_size) for x in (q, k))
    q_positions, k_positions = q_rows.flatten(0, -3) + (n_k - n_q), k_rows.flatten(0, -3)
    visible = (lambda b, h, i, j: k_positions[b, h, j] <= q_positions[b, h, i]) if causal else None
    result = attention_with_weights(
        gather_rows(q, q_rows), gather_rows(k, k_rows), gather_rows(v, k_rows), mask=visible
    )
    return _mean_over_clusters(result.output, result.lse > -torch.inf, q_rows, n_q)


@torch.no_grad()
@check_types
def update_centroids(centroids: Tensor, q: Tensor, k: Tensor, *, decay: float = 0.999) -> Tensor:
    """Return the centroids after one step: μ <- decay μ + (1 - decay) mean of the queries and keys assigned to μ.

    Each row of q and k is assigned to the centroid with the largest inner product. Centroids without rows do not move.

    >>> centroids = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> x = torch.tensor([[[5.0, -5.0]]])  # normalized: 1, -1
    >>> update_centroids(centroids, x, x, decay=0.5)
    tensor([[[ 1.0000, -0.5000],
             [ 0.0000,  1.0000]]])
    """
    _check(q, k, centroids)
    if not 0.0 <= decay <= 1.0:
        raise ArgumentError(f"decay must be from 0 to 1; got {decay}.")
    rows = torch.cat([_layer_norm(x).movedim(-3, 0).flatten(1, -2) for x in (q, k)], 1)
    membership = one_hot((rows @ centroids.mT).argmax(-1), centroids.shape[1]).to(rows)
    count = membership.sum(1).unsqueeze(-1)
    mean = membership.mT @ rows / count.clamp(min=1.0)
    return torch.where(count > 0, decay * centroids + (1.0 - decay) * mean, centroids)


def _check(q: Tensor, k: Tensor, centroids: Tensor) -> None:
    if q.dim() < 3 or q.shape[:-2] != k.shape[:-2] or q.shape[-1] != k.shape[-1]:
        shapes = f"q={tuple(q.shape)}, k={tuple(k.shape)}"
        raise ArgumentError(
            f"q and k must be (..., num_heads, n, head_dim) with shapes that differ only in n; got {shapes}."
        )
    num_heads, head_dim = q.shape[-3], q.shape[-1]
    if centroids.dim() != 3 or centroids.shape[::2] != (num_heads, head_dim) or centroids.shape[1] < 1:
        shape = f"(num_heads, num_clusters, head_dim) = ({num_heads}, at least 1, {head_dim})"
        raise ArgumentError(f"centroids must be {shape}; got {tuple(centroids.shape)}.")
    same_float_dtype({"q": q, "k": k, "centroids": centroids})


def _layer_norm(x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:])


def _topk_rows(x: Tensor, centroids: Tensor, cluster_size: int) -> Tensor:
    """Return the rows of each centroid, (..., num_heads, num_clusters, cluster_size), in ascending order."""
    with torch.no_grad():
        return (centroids @ x.mT).topk(cluster_size, -1).indices.sort(-1).values


def _mean_over_clusters(output: Tensor, is_valid: Tensor, indices: Tensor, n: int) -> Tensor:
    """Return the mean over clusters of the outputs of each of n rows; only valid outputs count."""
    rows, dim = indices.flatten(-2), output.shape[-1]
    sums = output.new_zeros((*rows.shape[:-1], n, dim))
    sums = sums.scatter_add(-2, rows.unsqueeze(-1).expand(*rows.shape, dim), output.flatten(-3, -2))
    counts = output.new_zeros((*rows.shape[:-1], n)).scatter_add(-1, rows, is_valid.flatten(-2).to(output))
    return sums / counts.clamp(min=1.0).unsqueeze(-1)
