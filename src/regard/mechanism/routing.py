"""Routing attention: queries and keys that are near the same centroid attend to each other.

    each centroid takes its `window` best queries and its `window` best keys, by the product with it; softmax(q·k/√d)
    among those; a query that several centroids took gets the mean of what it got there

(Roy, Saffar, Vaswani and Grangier, 2021). q and k are layer-normalised, without weights, so all are equally long. With
√n centroids and windows of √n the time is n^1.5. `routing` is the attention, `moved` how centroids learn.
"""

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, one_hot

from regard.argument_types import check_types
from regard.attention import attend
from regard.checks import same_floats
from regard.errors import SpecError


@check_types
def routing(q: Tensor, k: Tensor, v: Tensor, centroids: Tensor, *, window: int, causal: bool = False) -> Tensor:
    """Attention within clusters. q, k, v are (..., heads, n, width), centroids (heads, clusters, width of q).

    A query that no centroid took gets 0. With `causal` a query sees the keys of its clusters up to its own position,
    which is the last one for the last query; a cluster that shows it none does not count in its mean. Which tokens a
    centroid takes is decided by all of them, also by later ones: no causal mask changes that. Gradients reach q, k and
    v, but not the centroids. One centroid and a window of n give attention of the normalised q and k.

    >>> q, k, v = torch.randn(3, 2, 100, 8)
    >>> routing(q, k, v, torch.randn(2, 10, 8), window=10).shape
    torch.Size([2, 100, 8])
    """
    _check(q, k, centroids)
    n_q, n_k = q.shape[-2], k.shape[-2]
    if v.shape[:-1] != k.shape[:-1]:
        raise SpecError(f"v must have the shape of k, {tuple(k.shape)}, but for its width; got {tuple(v.shape)}.")
    if not 1 <= window <= min(n_q, n_k):
        raise SpecError(f"window must be from 1 to the number of queries and of keys, {n_q} and {n_k}; got {window}.")
    if causal and n_q > n_k:
        raise SpecError(f"causal queries must be no more than the keys; got {n_q} queries and {n_k} keys.")
    q, k = _normalised(q), _normalised(k)
    of_q, of_k = (_taken(x, centroids, window) for x in (q, k))
    at, places = of_q.flatten(0, -3) + (n_k - n_q), of_k.flatten(0, -3)
    before = (lambda b, h, i, j: places[b, h, j] <= at[b, h, i]) if causal else None
    found = attend(gathered(q, of_q), gathered(k, of_k), gathered(v, of_k), mask=before)
    return _mean(found.output, found.lse > -torch.inf, of_q, n_q)


@torch.no_grad()
@check_types
def moved(centroids: Tensor, q: Tensor, k: Tensor, *, decay: float = 0.999) -> Tensor:
    """The centroids after a step: μ <- decay μ + (1 - decay) times the mean of the queries and keys that belong to it.

    A row belongs to the centroid it has the largest product with. One to which none belongs stays where it is.

    >>> centroids = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> x = torch.tensor([[[5.0, -5.0]]])  # normalised: 1, -1
    >>> moved(centroids, x, x, decay=0.5)
    tensor([[[ 1.0000, -0.5000],
             [ 0.0000,  1.0000]]])
    """
    _check(q, k, centroids)
    if not 0.0 <= decay <= 1.0:
        raise SpecError(f"decay must be from 0 to 1; got {decay}.")
    rows = torch.cat([_normalised(x).movedim(-3, 0).flatten(1, -2) for x in (q, k)], 1)
    belongs = one_hot((rows @ centroids.mT).argmax(-1), centroids.shape[1]).to(rows)
    count = belongs.sum(1).unsqueeze(-1)
    mean = belongs.mT @ rows / count.clamp(min=1.0)
    return torch.where(count > 0, decay * centroids + (1.0 - decay) * mean, centroids)


def _check(q: Tensor, k: Tensor, centroids: Tensor) -> None:
    if q.dim() < 3 or q.shape[:-2] != k.shape[:-2] or q.shape[-1] != k.shape[-1]:
        shapes = f"q={tuple(q.shape)}, k={tuple(k.shape)}"
        raise SpecError(f"q and k must be (..., heads, n, width) and differ in their length alone; got {shapes}.")
    heads, width = q.shape[-3], q.shape[-1]
    if centroids.dim() != 3 or centroids.shape[0] != heads or centroids.shape[1] < 1 or centroids.shape[2] != width:
        wanted = f"(heads, clusters, width) = ({heads}, at least 1, {width})"
        raise SpecError(f"centroids must be {wanted}; got {tuple(centroids.shape)}.")
    same_floats({"q": q, "k": k, "centroids": centroids})


def _normalised(x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:])


def _taken(x: Tensor, centroids: Tensor, window: int) -> Tensor:
    """The rows each centroid takes, (..., heads, clusters, window), in the order they stand in."""
    with torch.no_grad():
        return (centroids @ x.mT).topk(window, -1).indices.sort(-1).values


def gathered(x: Tensor, rows: Tensor) -> Tensor:
    """(..., n, width) at rows (..., clusters, window), as (..., clusters, window, width)."""
    flat = rows.flatten(-2).unsqueeze(-1)
    return x.gather(-2, flat.expand(*flat.shape[:-1], x.shape[-1])).reshape(*rows.shape, x.shape[-1])


def _mean(output: Tensor, counts: Tensor, rows: Tensor, n: int) -> Tensor:
    """What the clusters give each of n rows, divided by how many of them count."""
    flat, width = rows.flatten(-2), output.shape[-1]
    sums = output.new_zeros((*flat.shape[:-1], n, width))
    sums = sums.scatter_add(-2, flat.unsqueeze(-1).expand(*flat.shape, width), output.flatten(-3, -2))
    often = output.new_zeros((*flat.shape[:-1], n)).scatter_add(-1, flat, counts.flatten(-2).to(output))
    return sums / often.clamp(min=1.0).unsqueeze(-1)
