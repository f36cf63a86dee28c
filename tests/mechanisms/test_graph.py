"""Graph attention against torch_geometric's layers, edges against matrices, and the limits of GAT."""

from collections.abc import Callable

import networkx
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import leaky_relu
from torch_geometric.nn import GATConv, GATv2Conv

from regard.errors import ArgumentError
from regard.mechanisms.graph import gat, gat_dense, gatv2, gatv2_dense, to_dense_adjacency

NODES, FEATURES, HEADS, HEAD_DIM = 9, 5, 3, 4
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 2, 1, 7], [1, 2, 0, 1, 1, 4, 4, 5, 6, 1, 0]])  # 8 has no edge
EDGE_FORM: dict[str, Callable[..., Tensor]] = {"gat": gat, "gatv2": gatv2}
DENSE_FORM: dict[str, Callable[..., Tensor]] = {"gat": gat_dense, "gatv2": gatv2_dense}
every_kind = pytest.mark.parametrize("kind", ["gat", "gatv2"])
with_and_without_loops = pytest.mark.parametrize("self_loops", [True, False])


def parameters(kind: str, features: int = FEATURES, heads: int = HEADS, head_dim: int = HEAD_DIM) -> list[Tensor]:
    """Return w, a_source, a_target of gat, or w_source, w_target, a of gatv2."""
    matrix, vector = (heads, features, head_dim), (heads, head_dim)
    shapes = (matrix, vector, vector) if kind == "gat" else (matrix, matrix, vector)
    return [torch.randn(*shape, dtype=torch.float64) for shape in shapes]


def score(kind: str, x: Tensor, i: int, j: int, h: int, params: list[Tensor], slope: float = 0.2) -> Tensor:
    """Return e_ij, the score of target i and source j."""
    if kind == "gat":
        w, a_source, a_target = (t[h] for t in params)
        return leaky_relu(torch.cat((a_target, a_source)) @ torch.cat((x[i] @ w, x[j] @ w)), slope)
    w_source, w_target, a = (t[h] for t in params)
    return a @ leaky_relu(torch.cat((x[i], x[j])) @ torch.cat((w_target, w_source)), slope)


def reference(kind: str, x: Tensor, pairs: list[tuple[int, int]], params: list[Tensor], slope: float = 0.2) -> Tensor:
    """Compute the output edge by edge (source, target), with the concatenated matrices of the papers."""
    heads, _, head_dim = params[0].shape
    output = torch.zeros(len(x), heads, head_dim, dtype=x.dtype)
    for h in range(heads):
        for i in range(len(x)):
            sources = [s for s, t in pairs if t == i]
            if sources:
                weights = torch.softmax(torch.stack([score(kind, x, i, j, h, params, slope) for j in sources]), 0)
                output[i, h] = sum(a * (x[j] @ params[0][h]) for a, j in zip(weights, sources, strict=True))
    return output


def edge_list(edges: Tensor, nodes: int, self_loops: bool) -> list[tuple[int, int]]:
    pairs = [(s, t) for s, t in edges.T.tolist() if s != t or not self_loops]
    return pairs + ([(i, i) for i in range(nodes)] if self_loops else [])


@every_kind
@with_and_without_loops
@pytest.mark.parametrize("slope", [0.2, 0.0, 1.0])
def test_edge_and_dense_forms_match_the_reference(kind: str, self_loops: bool, slope: float) -> None:
    x, params = torch.randn(NODES, FEATURES, dtype=torch.float64), parameters(kind)

    by_edges = EDGE_FORM[kind](x, EDGES, *params, negative_slope=slope, add_self_loops=self_loops)
    by_matrix = DENSE_FORM[kind](
        x, to_dense_adjacency(EDGES, NODES), *params, negative_slope=slope, add_self_loops=self_loops
    )

    expected = reference(kind, x, edge_list(EDGES, NODES, self_loops), params, slope)
    torch.testing.assert_close(by_edges, expected)
    torch.testing.assert_close(by_matrix, expected)


@every_kind
@with_and_without_loops
@pytest.mark.parametrize("concat", [True, False])
def test_outputs_and_gradients_match_torch_geometric(kind: str, self_loops: bool, concat: bool) -> None:
    x = torch.randn(NODES, FEATURES, dtype=torch.float64, requires_grad=True)
    params = [t.requires_grad_() for t in parameters(kind)]
    options = {"heads": HEADS, "concat": concat, "bias": False, "add_self_loops": self_loops}
    layer = (GATConv if kind == "gat" else GATv2Conv)(FEATURES, HEAD_DIM, **options).double()
    layer_params = [layer.lin.weight, layer.att_src, layer.att_dst] if kind == "gat" else []
    layer_params = layer_params or [layer.lin_l.weight, layer.lin_r.weight, layer.att]
    # the parameters of the layer are (heads · head_dim, features) and (1, heads, head_dim)
    values = [t.transpose(1, 2).flatten(0, 1) if t.dim() == 3 else t[None] for t in params]
    with torch.no_grad():
        for parameter, layer_value in zip(layer_params, values, strict=True):
            parameter.copy_(layer_value)

    output = EDGE_FORM[kind](x, EDGES, *params, add_self_loops=self_loops)
    output = output.flatten(1) if concat else output.mean(1)
    expected = layer(x, EDGES)

    torch.testing.assert_close(output, expected)
    upstream = torch.randn_like(output)
    gradients = torch.autograd.grad(output, [x, *params], upstream)
    expected_gradients = torch.autograd.grad(expected, [x, *layer_params], upstream)
    torch.testing.assert_close(gradients[0], expected_gradients[0])
    for actual, desired in zip(gradients[1:], expected_gradients[1:], strict=True):
        actual = actual.transpose(1, 2).flatten(0, 1) if actual.dim() == 3 else actual[None]
        torch.testing.assert_close(actual, desired)


@every_kind
def test_edges_and_matrix_agree_on_the_karate_club_graph(kind: str) -> None:
    graph = networkx.karate_club_graph()
    one_way = torch.tensor(list(graph.edges)).T
    edges = torch.cat((one_way, one_way.flip(0)), 1)
    x, params = torch.randn(34, 8, dtype=torch.float64), parameters(kind, features=8)

    by_edges = EDGE_FORM[kind](x, edges, *params)
    by_matrix = DENSE_FORM[kind](x, to_dense_adjacency(edges, 34), *params)

    assert edges.shape == (2, 2 * 78) and to_dense_adjacency(edges, 34).sum() == 156
    torch.testing.assert_close(by_edges, by_matrix)
    torch.testing.assert_close(by_edges, reference(kind, x, edge_list(edges, 34, True), params))


@every_kind
def test_dense_form_in_float32_is_close_to_float64(kind: str) -> None:
    x, params, edges = torch.randn(300, 8), parameters(kind, features=8), torch.randint(300, (2, 2000))

    output = DENSE_FORM[kind](x, to_dense_adjacency(edges, 300), *(t.float() for t in params))

    exact = DENSE_FORM[kind](x.double(), to_dense_adjacency(edges, 300), *params)
    torch.testing.assert_close(
        output, exact.float(), rtol=1e-4, atol=1e-4
    )  # scores near 30, each with an error of 1e-6


@every_kind
@pytest.mark.parametrize("dense", [False, True])
def test_gradients(kind: str, dense: bool) -> None:
    edges = torch.tensor([[0, 1, 2, 1], [1, 2, 1, 1]])  # node 3 has no edges
    x = torch.randn(4, 3, dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (x, *parameters(kind, features=3, heads=2, head_dim=2))]
    graph = to_dense_adjacency(edges, 4) if dense else edges
    call = (DENSE_FORM if dense else EDGE_FORM)[kind]

    assert gradcheck(lambda x, *params: call(x, graph, *params, add_self_loops=False), inputs)


def weights_of(kind: str, x: Tensor, params: list[Tensor]) -> Tensor:
    """Return the weights (nodes, nodes) of one head in a complete graph.

    One-hot node labels are appended to the features, in columns that do not affect the scores.
    """
    nodes, features = x.shape
    labeled = torch.cat((x, torch.eye(nodes, dtype=x.dtype)), 1)
    rows, columns = torch.zeros(nodes, params[0].shape[-1]), torch.cat((torch.zeros(features, nodes), torch.eye(nodes)))

    def widen(t: Tensor) -> Tensor:
        if t.dim() == 3:
            return torch.cat((torch.cat((t[0], rows.to(t))), columns.to(t)), 1)[None]
        return torch.cat((t, torch.zeros(1, nodes, dtype=t.dtype)), 1)

    adjacency = torch.ones(nodes, nodes, dtype=torch.bool)
    return DENSE_FORM[kind](labeled, adjacency, *map(widen, params))[:, 0, -nodes:]


def test_gat_ranks_neighbors_alike_for_every_node_and_gatv2_does_not() -> None:
    x = torch.randn(8, FEATURES, dtype=torch.float64)

    static, dynamic = (weights_of(k, x, parameters(k, heads=1)).argsort(-1) for k in ("gat", "gatv2"))

    assert (static == static[0]).all()
    assert len({tuple(row) for row in dynamic.tolist()}) > 1


@every_kind
@pytest.mark.parametrize("dense", [False, True])
def test_permuting_nodes_permutes_the_output(kind: str, dense: bool) -> None:
    x, params = torch.randn(NODES, FEATURES, dtype=torch.float64), parameters(kind)
    order = torch.randperm(NODES)
    new_index = torch.empty_like(order)
    new_index[order] = torch.arange(NODES)  # node order[i] moves to index i
    call = (DENSE_FORM if dense else EDGE_FORM)[kind]
    graph, permuted_graph = (to_dense_adjacency(e, NODES) if dense else e for e in (EDGES, new_index[EDGES]))

    torch.testing.assert_close(call(x[order], permuted_graph, *params), call(x, graph, *params)[order])


@every_kind
def test_a_node_without_incoming_edges_has_zero_output_and_gradient(kind: str) -> None:
    x = torch.randn(NODES, FEATURES, dtype=torch.float64, requires_grad=True)

    output = EDGE_FORM[kind](x, EDGES, *parameters(kind), add_self_loops=False)

    assert (output[8] == 0).all() and (output[3] == 0).all()  # node 3 has outgoing edges only
    (gradient,) = torch.autograd.grad(output.square().sum(), x)
    assert (gradient[8] == 0).all() and gradient.isfinite().all()


@every_kind
def test_a_repeated_edge_counts_twice_in_a_list_and_once_in_a_matrix(kind: str) -> None:
    x, params = torch.randn(3, FEATURES, dtype=torch.float64), parameters(kind)
    once, twice = torch.tensor([[0, 1], [2, 2]]), torch.tensor([[0, 1, 1], [2, 2, 2]])

    output = EDGE_FORM[kind](x, twice, *params, add_self_loops=False)

    torch.testing.assert_close(output, reference(kind, x, [(0, 2), (1, 2), (1, 2)], params))
    by_matrix = DENSE_FORM[kind](x, to_dense_adjacency(twice, 3), *params, add_self_loops=False)
    torch.testing.assert_close(by_matrix, EDGE_FORM[kind](x, once, *params, add_self_loops=False))
    assert not torch.allclose(output, by_matrix)


@every_kind
def test_large_scores_do_not_overflow(kind: str) -> None:
    x, params = torch.randn(NODES, FEATURES), [1e3 * t.float() for t in parameters(kind)]

    output = EDGE_FORM[kind](x, EDGES, *params)

    assert output.isfinite().all()
    by_matrix = DENSE_FORM[kind](x, to_dense_adjacency(EDGES, NODES), *params)
    # scores near a million have errors up to 0.1, and the best edge leads by more, so weights are 0 or 1
    torch.testing.assert_close(output, by_matrix, rtol=1e-4, atol=1e-1)


@every_kind
@pytest.mark.parametrize("nodes", [0, 1])
def test_graphs_without_edges(kind: str, nodes: int) -> None:
    x, params, no_edges = torch.randn(nodes, FEATURES, dtype=torch.float64), parameters(kind), torch.zeros(2, 0).long()

    torch.testing.assert_close(EDGE_FORM[kind](x, no_edges, *params), (x @ params[0]).transpose(0, 1))
    assert (EDGE_FORM[kind](x, no_edges, *params, add_self_loops=False) == 0).all()


def test_invalid_arguments_raise() -> None:
    x, params = torch.randn(NODES, FEATURES, dtype=torch.float64), parameters("gat")
    params_v2 = parameters("gatv2")
    with pytest.raises(ArgumentError, match=r"x must be \(nodes, features\); got shape \(1, 9, 5\)"):
        gat(x[None], EDGES, *params)
    with pytest.raises(ArgumentError, match=r"with 5 features, and a_source and a_target .*; got w=\(3, 4, 4\)"):
        gat(x, EDGES, params[0][:, :4], *params[1:])
    with pytest.raises(
        ArgumentError, match=r"w_source and w_target must be .*; got w_source=\(3, 5, 4\), .*, a=\(3, 2\)"
    ):
        gatv2(x, EDGES, *params_v2[:2], params_v2[2][:, :2])
    with pytest.raises(ArgumentError, match=r"negative_slope must be from 0 to 1; got 1\.5"):
        gat_dense(x, to_dense_adjacency(EDGES, NODES), *params, negative_slope=1.5)
    with pytest.raises(ArgumentError, match=r"integers of shape \(2, num_edges\); got torch.int64 of shape \(11, 2\)"):
        gat(x, EDGES.T, *params)
    with pytest.raises(
        ArgumentError, match=r"integers of shape \(2, num_edges\); got torch.float32 of shape \(2, 11\)"
    ):
        gatv2(x, EDGES.float(), *params_v2)
    with pytest.raises(ArgumentError, match="nodes from 0 to 6; got 0 to 7"):
        gat(x[:7], EDGES, *params)
    with pytest.raises(ArgumentError, match="nodes from 0 to 8; got -1 to 6"):
        to_dense_adjacency(EDGES - 1, NODES)
    with pytest.raises(ArgumentError, match=r"boolean 9 x 9 matrix; got torch.bool of shape \(8, 8\)"):
        gatv2_dense(x, torch.ones(8, 8, dtype=torch.bool), *params_v2)
    with pytest.raises(ArgumentError, match=r"boolean 9 x 9 matrix; got torch.float32 of shape \(9, 9\)"):
        gat_dense(x, torch.ones(9, 9), *params)
