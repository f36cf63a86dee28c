"""Graph attention: a node attends to the nodes that have an edge to it.

    GAT      e_ij = LeakyReLU(a_target·W x_i + a_source·W x_j)        o_i = sum_j α_ij W x_j
    GATv2    e_ij = a·LeakyReLU(W_target x_i + W_source x_j)          o_i = sum_j α_ij W_source x_j

α_i is the softmax of e_i over the edges j -> i. GAT (Veličković et al., 2018) ranks the neighbors j alike for every
node i; GATv2 (Brody, Alon and Yahav, 2022) does not. `gat` and `gatv2` take a list of edges, and their cost is
proportional to the number of edges. `gat_dense` and `gatv2_dense` take an adjacency matrix and make one call of
`attention`. Results are equal, except that a repeated edge counts twice in a list and once in a matrix.

x is (nodes, features), a matrix W (num_heads, features, head_dim), a vector a (num_heads, head_dim). The result is
(nodes, num_heads, head_dim): `.flatten(1)` concatenates heads, `.mean(1)` averages them. The result of a node without
incoming edges is 0.
"""

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from regard.argument_types import check_types
from regard.attention import attention
from regard.checks import same_float_dtype
from regard.errors import ArgumentError
from regard.score import custom, dot

MAX_NODES = 2**16  # an adjacency matrix of 4 GB


@check_types
def gat(
    x: Tensor,
    edge_index: Tensor,
    w: Tensor,
    a_source: Tensor,
    a_target: Tensor,
    *,
    negative_slope: float = 0.2,
    add_self_loops: bool = True,
) -> Tensor:
    """Compute GAT over the edges `edge_index` (2, num_edges), from edge_index[0] to edge_index[1].

    x is (nodes, features), w (num_heads, features, head_dim), `a_source` and `a_target` (num_heads, head_dim); the
    result is (nodes, num_heads, head_dim). With `add_self_loops` (default) every node attends to itself exactly once.
    `negative_slope` (default 0.2) is the slope of LeakyReLU below 0.

    >>> edge_index = torch.tensor([[0, 1], [2, 2]])  # node 2 attends to nodes 0 and 1
    >>> ones = torch.ones(1, 1)
    >>> gat(torch.tensor([[2.0], [4.0], [9.0]]), edge_index, ones[None], 0 * ones, ones, add_self_loops=False)[:, 0, 0]
    tensor([0., 0., 3.])
    """
    _check(x, {"w": w}, {"a_source": a_source, "a_target": a_target}, negative_slope)
    source, target = _source_and_target(edge_index, len(x), add_self_loops)
    rows = _project(x, w)
    target_scores, source_scores = (rows * a_target).sum(-1), (rows * a_source).sum(-1)
    scores = leaky_relu(target_scores[target] + source_scores[source], negative_slope)
    return _aggregate(scores, rows, source, target)


@check_types
def gat_dense(
    x: Tensor,
    adjacency: Tensor,
    w: Tensor,
    a_source: Tensor,
    a_target: Tensor,
    *,
    negative_slope: float = 0.2,
    add_self_loops: bool = True,
) -> Tensor:
    """Compute GAT with a boolean matrix (nodes, nodes): node i attends to node j where adjacency[i, j] is True.

    x is (nodes, features), w (num_heads, features, head_dim), `a_source` and `a_target` (num_heads, head_dim); the
    result is (nodes, num_heads, head_dim). `negative_slope` and `add_self_loops` are those of `gat`.
    `to_dense_adjacency` makes the matrix from edges.

    >>> x, a = torch.randn(3, 4), torch.randn(2, 2, 5)
    >>> gat_dense(x, torch.ones(3, 3, dtype=torch.bool), torch.randn(2, 4, 5), *a).shape
    torch.Size([3, 2, 5])
    """
    _check(x, {"w": w}, {"a_source": a_source, "a_target": a_target}, negative_slope)
    visible = _adjacency_mask(adjacency, len(x), add_self_loops)
    rows = _project(x, w)
    target_scores, source_scores = (rows * a_target).sum(-1).mT, (rows * a_source).sum(-1).mT
    zeros = x.new_zeros(1, w.shape[0], len(x), 1)  # the score modifier alone determines the scores
    score = dot().then(
        lambda s, b, h, i, j: _traceable_leaky_relu(target_scores[h, i] + source_scores[h, j], negative_slope)
    )
    return _nodes_first(attention(zeros, zeros, rows.transpose(0, 1)[None], score=score, mask=visible))


@check_types
def gatv2(
    x: Tensor,
    edge_index: Tensor,
    w_source: Tensor,
    w_target: Tensor,
    a: Tensor,
    *,
    negative_slope: float = 0.2,
    add_self_loops: bool = True,
) -> Tensor:
    """Compute GATv2 over the edges `edge_index`, (2, num_edges).

    x is (nodes, features), `w_source` and `w_target` are (num_heads, features, head_dim), `a` is (num_heads, head_dim);
    the result is (nodes, num_heads, head_dim). `negative_slope` and `add_self_loops` are those of `gat`.

    >>> x, w, edge_index = torch.randn(3, 4), torch.randn(2, 4, 5), torch.tensor([[0, 1], [2, 2]])
    >>> gatv2(x, edge_index, w, w, torch.randn(2, 5)).shape
    torch.Size([3, 2, 5])
    """
    _check(x, {"w_source": w_source, "w_target": w_target}, {"a": a}, negative_slope)
    source, target = _source_and_target(edge_index, len(x), add_self_loops)
    target_rows, source_rows = _project(x, w_target), _project(x, w_source)
    scores = (leaky_relu(target_rows[target] + source_rows[source], negative_slope) * a).sum(-1)
    return _aggregate(scores, source_rows, source, target)


@check_types
def gatv2_dense(
    x: Tensor,
    adjacency: Tensor,
    w_source: Tensor,
    w_target: Tensor,
    a: Tensor,
    *,
    negative_slope: float = 0.2,
    add_self_loops: bool = True,
) -> Tensor:
    """Compute GATv2 with a boolean matrix (nodes, nodes): node i attends to node j where adjacency[i, j] is True.

    The other parameters are those of `gatv2`. The memory is that of one tile of pairs times head_dim.

    >>> x, w, adjacency = torch.randn(3, 4), torch.randn(2, 4, 5), torch.ones(3, 3, dtype=torch.bool)
    >>> gatv2_dense(x, adjacency, w, w, torch.randn(2, 5)).shape
    torch.Size([3, 2, 5])
    """
    _check(x, {"w_source": w_source, "w_target": w_target}, {"a": a}, negative_slope)
    visible, head_dim = _adjacency_mask(adjacency, len(x), add_self_loops), a.shape[-1]
    target_rows, source_rows = _project(x, w_target), _project(x, w_source)
    # a is appended to the queries, because a custom score does not receive the head index
    queries = torch.cat((target_rows, a.expand(len(x), -1, -1)), -1).transpose(0, 1)[None]
    keys = source_rows.transpose(0, 1)[None]

    def score(q: Tensor, k: Tensor) -> Tensor:
        hidden = leaky_relu(q[..., :head_dim].unsqueeze(-2) + k.unsqueeze(-3), negative_slope)
        return (hidden @ q[..., head_dim:].unsqueeze(-1)).squeeze(-1)

    return _nodes_first(attention(queries, keys, keys, score=custom(score), mask=visible))


@check_types
def to_dense_adjacency(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return the boolean matrix (nodes, nodes) of a list of edges (2, num_edges): True at [target, source].

    `edge_index` are the edges; `num_nodes` is the number of nodes.

    >>> to_dense_adjacency(torch.tensor([[0, 1], [1, 1]]), 2)
    tensor([[False, False],
            [ True,  True]])
    """
    if not 0 <= num_nodes <= MAX_NODES:
        raise ArgumentError(f"num_nodes must be from 0 to {MAX_NODES:,}; got {num_nodes}.")
    source, target = _source_and_target(edge_index, num_nodes, add_self_loops=False)
    adjacency = torch.zeros(num_nodes, num_nodes, dtype=torch.bool, device=edge_index.device)
    adjacency[target, source] = True
    return adjacency


def _check(x: Tensor, matrices: dict[str, Tensor], vectors: dict[str, Tensor], negative_slope: float) -> None:
    same_float_dtype({"x": x, **matrices, **vectors})
    if x.dim() != 2:
        raise ArgumentError(f"x must be (nodes, features); got shape {tuple(x.shape)}.")
    first = next(iter(matrices.values()))
    fits = first.dim() == 3 and first.shape[1] == x.shape[1]
    fits = fits and all(w.shape == first.shape for w in matrices.values())
    if not fits or any(a.shape != (first.shape[0], first.shape[2]) for a in vectors.values()):
        got = ", ".join(f"{name}={tuple(t.shape)}" for name, t in (matrices | vectors).items())
        required = f"{' and '.join(matrices)} must be (num_heads, features, head_dim) with {x.shape[1]} features"
        raise ArgumentError(f"{required}, and {' and '.join(vectors)} (num_heads, head_dim); got {got}.")
    if not 0.0 <= negative_slope <= 1.0:
        raise ArgumentError(f"negative_slope must be from 0 to 1; got {negative_slope}.")


def _source_and_target(edge_index: Tensor, num_nodes: int, add_self_loops: bool) -> tuple[Tensor, Tensor]:
    """Return the source and the target of each edge; with `add_self_loops` each node has exactly one self-loop."""
    if (
        edge_index.dim() != 2
        or edge_index.shape[0] != 2
        or edge_index.is_floating_point()
        or edge_index.dtype == torch.bool
    ):
        raise ArgumentError(
            "edge_index must be integers of shape (2, num_edges); "
            f"got {edge_index.dtype} of shape {tuple(edge_index.shape)}."
        )
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < num_nodes:
        span = f"{int(edge_index.min())} to {int(edge_index.max())}"
        raise ArgumentError(f"edge_index must hold nodes from 0 to {num_nodes - 1}; got {span}.")
    edge_index = edge_index.long()
    if add_self_loops:
        nodes = torch.arange(num_nodes, device=edge_index.device)
        edge_index = torch.cat((edge_index[:, edge_index[0] != edge_index[1]], nodes.expand(2, -1)), 1)
    return edge_index[0], edge_index[1]


def _project(x: Tensor, w: Tensor) -> Tensor:
    """Return the projected features, (nodes, num_heads, head_dim)."""
    return (x @ w).transpose(0, 1)


def _aggregate(scores: Tensor, node_features: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Return the weighted sum of the source features at each node, by softmax of scores (num_edges, num_heads)."""
    shape = node_features.shape[:2]
    index = target.unsqueeze(-1).expand_as(scores)
    max_score = node_features.new_full(shape, -torch.inf).scatter_reduce(0, index, scores.detach(), "amax")
    weights = torch.exp(scores - max_score[target])
    totals = node_features.new_zeros(shape).index_add(0, target, weights).unsqueeze(-1)
    sums = torch.zeros_like(node_features).index_add(0, target, weights.unsqueeze(-1) * node_features[source])
    return sums / torch.where(totals == 0.0, 1.0, totals)  # nodes without incoming edges: 0 / 1


def _adjacency_mask(adjacency: Tensor, num_nodes: int, add_self_loops: bool) -> Tensor:
    if adjacency.dtype != torch.bool or adjacency.shape != (num_nodes, num_nodes):
        got = f"{adjacency.dtype} of shape {tuple(adjacency.shape)}"
        raise ArgumentError(f"adjacency must be a boolean {num_nodes} x {num_nodes} matrix; got {got}.")
    return adjacency | torch.eye(num_nodes, dtype=torch.bool, device=adjacency.device) if add_self_loops else adjacency


def _traceable_leaky_relu(x: Tensor, negative_slope: float) -> Tensor:
    return torch.maximum(x, negative_slope * x)


def _nodes_first(output: Tensor) -> Tensor:
    """Return (1, num_heads, nodes, head_dim) as (nodes, num_heads, head_dim)."""
    return output[0].transpose(0, 1)
