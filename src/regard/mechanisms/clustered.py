"""Clustered attention: the queries of a cluster share the attention weights of their mean (Vyas et al., 2020).

    o_i = softmax(c·k/√d) v                            with c the mean of the queries in i's cluster

    improved, with T the `topk` keys of the largest weights of c, and s the sum of these weights:
    o_i = s softmax_T(q_i·k/√d) v + sum over the other keys of c's weights times v

`cluster_queries` assigns queries to clusters, and `clustered_attention` computes the attention, in time
n (clusters + topk) instead of n².
"""

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attention, attention_with_weights
from regard.checks import same_float_dtype
from regard.errors import ArgumentError
from regard.measure import topk as topk_measure
from regard.mechanisms.head_layout import gather_rows
from regard.varlen import attention_varlen

MAX_CLUSTERS, MAX_BITS, MAX_ITERATIONS = 2**20, 2**16, 1000


@check_types
def clustered_attention(q: Tensor, k: Tensor, v: Tensor, cluster_ids: Tensor, *, topk: int | None = None) -> Tensor:
    """Compute attention with one set of weights for each cluster of queries.

    q, k and v are (..., num_heads, n, head_dim). `cluster_ids` (..., num_heads, n) are integers from 0. With `topk`
    each query computes its own weights over the best keys of its cluster. The result is exact if every cluster has one
    query, or if `topk` is the number of keys. Gradients reach q, k and v, but not the choice of clusters and keys.

    >>> q, k, v = torch.randn(3, 2, 100, 8)
    >>> clustered_attention(q, k, v, cluster_queries(q, num_clusters=10), topk=16).shape
    torch.Size([2, 100, 8])
    """
    _check(q, k, v, cluster_ids)
    n_k, cluster_ids = k.shape[-2], cluster_ids.long()
    if topk is not None and not 1 <= topk <= n_k:
        raise ArgumentError(f"topk must be from 1 to the number of keys, {n_k}; got {topk}.")
    if q.shape[-2] == 0:
        return v.new_zeros((*q.shape[:-1], v.shape[-1]))
    centers = _cluster_means(q, cluster_ids)
    if topk is None:
        return _gather_by_cluster(attention(centers, k, v), cluster_ids)
    center_weights = attention_with_weights(centers.detach(), k.detach(), v[..., :1].detach()).weights
    best = center_weights.measure(topk_measure(topk)).topk.indices
    k_best, v_best = (gather_rows(x, best) for x in (k, v))
    is_other = torch.ones(*centers.shape[:-1], n_k, dtype=torch.bool, device=q.device).scatter(-1, best, False)
    rest = attention_with_weights(centers, k, v, mask=is_other)
    best_lse = attention_with_weights(centers.unsqueeze(-2), k_best, v_best[..., :1]).lse.squeeze(-1)
    best_mass = _gather_by_cluster(torch.sigmoid(best_lse - rest.lse).unsqueeze(-1).to(q.dtype), cluster_ids)
    best_output = _topk_attention(q, k_best, v_best, cluster_ids)
    return best_mass * best_output + (1.0 - best_mass) * _gather_by_cluster(rest.output, cluster_ids)


@torch.no_grad()
@check_types
def cluster_queries(q: Tensor, *, num_clusters: int, bits: int = 32, iterations: int = 10, seed: int = 0) -> Tensor:
    """Return a cluster id below `num_clusters` for each query, (..., num_heads, n), by the direction of the query.

    q is (..., num_heads, n, head_dim). The code of a query has `bits` bits: the sides of random planes on which it lies
    (default 32). `iterations` steps (default 10) of Lloyd's algorithm cluster the codes: each code joins the center at
    the smallest Hamming distance, and each center takes the majority bits of its codes. `seed` draws the planes and the
    initial centers, which are queries. A cluster may stay empty.

    >>> x = torch.tensor([[[1.0, 2.0], [-1.0, 1.0], [2.0, 4.0], [-3.0, 3.0]]])
    >>> ids = cluster_queries(x, num_clusters=2)[0]
    >>> bool(ids[0] == ids[2] != ids[1] == ids[3])
    True
    """
    same_float_dtype({"q": q}, min_dims=2)
    n, generator = q.shape[-2], torch.Generator().manual_seed(seed)
    if not 1 <= num_clusters <= n:
        raise ArgumentError(f"num_clusters must be from 1 to the number of queries, {n}; got {num_clusters}.")
    if not 1 <= bits <= MAX_BITS or not 0 <= iterations <= MAX_ITERATIONS:
        limits = f"bits must be from 1 to {MAX_BITS:,} and iterations from 0 to {MAX_ITERATIONS:,}"
        raise ArgumentError(f"{limits}; got {bits} and {iterations}.")
    planes = torch.randn(q.shape[-1], bits, generator=generator, dtype=torch.float64).to(q)
    codes = torch.where(q @ planes > 0, 1.0, -1.0)
    centers = codes[..., torch.randperm(n, generator=generator)[:num_clusters].to(q.device), :]
    for _ in range(iterations):
        membership = torch.nn.functional.one_hot(_nearest_center(codes, centers), num_clusters).to(codes)
        votes = membership.mT @ codes
        centers = torch.where(votes == 0.0, centers, votes.sign())  # ties and empty clusters keep their bits
    return _nearest_center(codes, centers)


def _nearest_center(codes: Tensor, centers: Tensor) -> Tensor:
    """The center with the fewest different bits: with bits of ±1 that is the largest product."""
    return (codes @ centers.mT).argmax(-1)


def _check(q: Tensor, k: Tensor, v: Tensor, cluster_ids: Tensor) -> None:
    same_float_dtype({"q": q, "k": k, "v": v})
    if q.dim() < 3 or not q.shape[:-2] == k.shape[:-2] == v.shape[:-2] or k.shape[-2] != v.shape[-2]:
        shapes = f"q={tuple(q.shape)}, k={tuple(k.shape)}, v={tuple(v.shape)}"
        raise ArgumentError(
            "q, k and v must be (..., num_heads, n, head_dim) with the same number of heads, and k and v must have "
            f"the same length; got {shapes}."
        )
    if cluster_ids.shape != q.shape[:-1] or cluster_ids.is_floating_point() or cluster_ids.dtype == torch.bool:
        got = f"{cluster_ids.dtype} of shape {tuple(cluster_ids.shape)}"
        raise ArgumentError(f"cluster_ids must be integers of shape {tuple(q.shape[:-1])}; got {got}.")
    if cluster_ids.numel() and int(cluster_ids.min()) < 0:
        raise ArgumentError(f"cluster_ids must be at least 0; got {int(cluster_ids.min())}.")
    if cluster_ids.numel() and int(cluster_ids.max()) >= MAX_CLUSTERS:
        raise ArgumentError(f"cluster_ids must be below {MAX_CLUSTERS:,}; got {int(cluster_ids.max())}.")


def _cluster_means(q: Tensor, cluster_ids: Tensor) -> Tensor:
    """Return the mean query of each cluster, (..., clusters, head_dim); 0 for an empty cluster."""
    shape = (*q.shape[:-2], int(cluster_ids.max()) + 1)
    sums = q.new_zeros((*shape, q.shape[-1])).scatter_add(-2, cluster_ids.unsqueeze(-1).expand_as(q), q)
    count = q.new_zeros(shape).scatter_add(-1, cluster_ids, q.new_ones(cluster_ids.shape))
    return sums / count.clamp(min=1.0).unsqueeze(-1)


def _gather_by_cluster(rows: Tensor, cluster_ids: Tensor) -> Tensor:
    """Return the row of each query's cluster."""
    return rows.gather(-2, cluster_ids.unsqueeze(-1).expand(*cluster_ids.shape, rows.shape[-1]))


def _topk_attention(q: Tensor, k_topk: Tensor, v_topk: Tensor, cluster_ids: Tensor) -> Tensor:
    """Return the attention of each query over the best keys of its cluster.

    Clusters differ in size, so their queries are sorted by cluster and passed to `attention_varlen`.
    """
    num_clusters, topk = k_topk.shape[-3:-1]
    ids = cluster_ids.flatten(0, -2)
    sequence_ids = (ids + num_clusters * torch.arange(len(ids), device=q.device).unsqueeze(-1)).flatten()
    order = sequence_ids.argsort(stable=True)
    sizes = sequence_ids.bincount(minlength=num_clusters * len(ids))
    keys, values = (x.flatten(0, -2) for x in (k_topk, v_topk))
    sorted_output = attention_varlen(q.flatten(0, -2)[order], keys, values, sizes, torch.full_like(sizes, topk))
    inverse = torch.empty_like(order).index_put((order,), torch.arange(len(order), device=q.device))
    output: Tensor = sorted_output[inverse].unflatten(0, q.shape[:-1])
    return output
