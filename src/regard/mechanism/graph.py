"""Graph attention: a node looks at the nodes that have an edge to it.

    GAT      e_ij = LeakyReLU(a_target·W x_i + a_source·W x_j)        o_i = sum_j α_ij W x_j           (Veličković and
             others, 2018). Which neighbour is best does not depend on who asks.
    GATv2    e_ij = a·LeakyReLU(W_target x_i + W_source x_j)          o_i = sum_j α_ij W_source x_j    (Brody, Alon and
             Yahav, 2022). Here it does.

α_i is the softmax of e_i over the edges j -> i. `gat` and `gatv2` take a list of edges and cost what the edges cost;
`gat_dense` and `gatv2_dense` take a matrix that says who sees whom, and are one call of `attention`. Both give the same
numbers, unless an edge is listed twice: it counts twice then, and in a matrix once.

x is (nodes, features), a matrix W (heads, features, width), a vector a (heads, width). The result is (nodes, heads,
width): `.flatten(1)` concatenates heads, `.mean(1)` averages them. A node without any edge to it gets 0.
"""

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from regard.argument_types import check_types
from regard.attention import attention
from regard.checks import same_floats
from regard.errors import SpecError
from regard.spec.score import custom, dot

MAX_NODES = 2**16  # of a matrix of nodes x nodes: 4 GB


@check_types
def gat(
    x: Tensor,
    edges: Tensor,
    w: Tensor,
    a_source: Tensor,
    a_target: Tensor,
    *,
    slope: float = 0.2,
    self_loops: bool = True,
) -> Tensor:
    """GAT over `edges` (2, count), each from edges[0] to edges[1].

    With `self_loops` every node sees itself, once. `slope` is that of LeakyReLU below 0.

    >>> edges = torch.tensor([[0, 1], [2, 2]])  # nodes 0 and 1 are seen by node 2
    >>> ones = torch.ones(1, 1)
    >>> gat(torch.tensor([[2.0], [4.0], [9.0]]), edges, ones[None], 0 * ones, ones, self_loops=False)[:, 0, 0]
    tensor([0., 0., 3.])
    """
    _check(x, {"w": w}, {"a_source": a_source, "a_target": a_target}, slope)
    source, target = _ends(edges, len(x), self_loops)
    rows = _projected(x, w)
    left, right = (rows * a_target).sum(-1), (rows * a_source).sum(-1)
    return _over_edges(leaky_relu(left[target] + right[source], slope), rows, source, target)


@check_types
def gat_dense(
    x: Tensor,
    adjacency: Tensor,
    w: Tensor,
    a_source: Tensor,
    a_target: Tensor,
    *,
    slope: float = 0.2,
    self_loops: bool = True,
) -> Tensor:
    """`gat` by a boolean matrix (nodes, nodes): node i sees node j where adjacency[i, j]. See `adjacency_of`.

    >>> x, two = torch.randn(3, 4), torch.randn(2, 2, 5)
    >>> gat_dense(x, torch.ones(3, 3, dtype=torch.bool), torch.randn(2, 4, 5), *two).shape
    torch.Size([3, 2, 5])
    """
    _check(x, {"w": w}, {"a_source": a_source, "a_target": a_target}, slope)
    seen = _seen(adjacency, len(x), self_loops)
    rows = _projected(x, w)
    left, right = (rows * a_target).sum(-1).mT, (rows * a_source).sum(-1).mT
    nothing = x.new_zeros(w.shape[0], len(x), 1)  # what is compared is in the rule
    score = dot().then(lambda s, b, h, i, j: _leaky(left[h, i] + right[h, j], slope))
    return _by_node(attention(nothing[None], nothing[None], rows.transpose(0, 1)[None], score=score, mask=seen))


@check_types
def gatv2(
    x: Tensor,
    edges: Tensor,
    w_source: Tensor,
    w_target: Tensor,
    a: Tensor,
    *,
    slope: float = 0.2,
    self_loops: bool = True,
) -> Tensor:
    """GATv2 over `edges`; see `gat`.

    >>> x, w, edges = torch.randn(3, 4), torch.randn(2, 4, 5), torch.tensor([[0, 1], [2, 2]])
    >>> gatv2(x, edges, w, w, torch.randn(2, 5)).shape
    torch.Size([3, 2, 5])
    """
    _check(x, {"w_source": w_source, "w_target": w_target}, {"a": a}, slope)
    source, target = _ends(edges, len(x), self_loops)
    left, right = _projected(x, w_target), _projected(x, w_source)
    scores = (leaky_relu(left[target] + right[source], slope) * a).sum(-1)
    return _over_edges(scores, right, source, target)


@check_types
def gatv2_dense(
    x: Tensor,
    adjacency: Tensor,
    w_source: Tensor,
    w_target: Tensor,
    a: Tensor,
    *,
    slope: float = 0.2,
    self_loops: bool = True,
) -> Tensor:
    """`gatv2` by a boolean matrix; see `gat_dense`. It takes memory for a tile of pairs times the width.

    >>> x, w, seen = torch.randn(3, 4), torch.randn(2, 4, 5), torch.ones(3, 3, dtype=torch.bool)
    >>> gatv2_dense(x, seen, w, w, torch.randn(2, 5)).shape
    torch.Size([3, 2, 5])
    """
    _check(x, {"w_source": w_source, "w_target": w_target}, {"a": a}, slope)
    seen, width = _seen(adjacency, len(x), self_loops), a.shape[-1]
    left, right = _projected(x, w_target), _projected(x, w_source)
    # a goes along with the queries: a custom score is not told which heads it is given
    queries = torch.cat((left, a.expand(len(x), -1, -1)), -1).transpose(0, 1)[None]
    keys = right.transpose(0, 1)[None]

    def score(q: Tensor, k: Tensor) -> Tensor:
        both = leaky_relu(q[..., :width].unsqueeze(-2) + k.unsqueeze(-3), slope)
        return (both @ q[..., width:].unsqueeze(-1)).squeeze(-1)

    return _by_node(attention(queries, keys, keys, score=custom(score), mask=seen))


@check_types
def adjacency_of(edges: Tensor, nodes: int) -> Tensor:
    """The matrix (nodes, nodes) of a list of edges: True at [target, source].

    >>> adjacency_of(torch.tensor([[0, 1], [1, 1]]), 2)
    tensor([[False, False],
            [ True,  True]])
    """
    if not 0 <= nodes <= MAX_NODES:
        raise SpecError(f"nodes must be from 0 to {MAX_NODES:,}; got {nodes}.")
    source, target = _ends(edges, nodes, self_loops=False)
    seen = torch.zeros(nodes, nodes, dtype=torch.bool, device=edges.device)
    seen[target, source] = True
    return seen


def _check(x: Tensor, matrices: dict[str, Tensor], vectors: dict[str, Tensor], slope: float) -> None:
    same_floats({"x": x, **matrices, **vectors})
    if x.dim() != 2:
        raise SpecError(f"x must be (nodes, features); got shape {tuple(x.shape)}.")
    first = next(iter(matrices.values()))
    fits = first.dim() == 3 and first.shape[1] == x.shape[1]
    fits = fits and all(w.shape == first.shape for w in matrices.values())
    if not fits or any(a.shape != (first.shape[0], first.shape[2]) for a in vectors.values()):
        got = ", ".join(f"{name}={tuple(t.shape)}" for name, t in (matrices | vectors).items())
        wanted = f"{' and '.join(matrices)} must be (heads, features, width) with {x.shape[1]} features"
        raise SpecError(f"{wanted}, and {' and '.join(vectors)} (heads, width); got {got}.")
    if not 0.0 <= slope <= 1.0:
        raise SpecError(f"slope must be from 0 to 1; got {slope}.")


def _ends(edges: Tensor, nodes: int, self_loops: bool) -> tuple[Tensor, Tensor]:
    """Where each edge begins and ends; with `self_loops` each node has one to itself, and no more."""
    if edges.dim() != 2 or edges.shape[0] != 2 or edges.is_floating_point() or edges.dtype == torch.bool:
        raise SpecError(f"edges must be whole numbers (2, count); got {edges.dtype} of shape {tuple(edges.shape)}.")
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < nodes:
        span = f"{int(edges.min())} to {int(edges.max())}"
        raise SpecError(f"edges must join nodes from 0 to {nodes - 1}; got {span}.")
    edges = edges.long()
    if self_loops:
        own = torch.arange(nodes, device=edges.device)
        edges = torch.cat((edges[:, edges[0] != edges[1]], own.expand(2, -1)), 1)
    return edges[0], edges[1]


def _projected(x: Tensor, w: Tensor) -> Tensor:
    """(nodes, heads, width)."""
    return (x @ w).transpose(0, 1)


def _over_edges(scores: Tensor, rows: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """The softmax of the scores (count, heads) over the edges into each node, and the sum of what they carry."""
    shape = rows.shape[:2]
    place = target.unsqueeze(-1).expand_as(scores)
    top = rows.new_full(shape, -torch.inf).scatter_reduce(0, place, scores.detach(), "amax")
    weights = torch.exp(scores - top[target])
    totals = rows.new_zeros(shape).index_add(0, target, weights).unsqueeze(-1)
    sums = torch.zeros_like(rows).index_add(0, target, weights.unsqueeze(-1) * rows[source])
    return sums / torch.where(totals == 0.0, 1.0, totals)  # nothing comes in: 0 / 1


def _seen(adjacency: Tensor, nodes: int, self_loops: bool) -> Tensor:
    if adjacency.dtype != torch.bool or adjacency.shape != (nodes, nodes):
        got = f"{adjacency.dtype} of shape {tuple(adjacency.shape)}"
        raise SpecError(f"adjacency must be a boolean matrix of {nodes} x {nodes} nodes; got {got}.")
    return adjacency | torch.eye(nodes, dtype=torch.bool, device=adjacency.device) if self_loops else adjacency


def _leaky(x: Tensor, slope: float) -> Tensor:
    return torch.maximum(x, slope * x)


def _by_node(output: Tensor) -> Tensor:
    """(1, heads, nodes, width) as (nodes, heads, width)."""
    return output[0].transpose(0, 1)
