"""Graph attention: torch_geometric's layers with the same weights, edges against matrices, and what GAT cannot do."""

from collections.abc import Callable

import networkx
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import leaky_relu
from torch_geometric.nn import GATConv, GATv2Conv

from regard.errors import SpecError
from regard.mechanism.graph import adjacency_of, gat, gat_dense, gatv2, gatv2_dense

NODES, FEATURES, HEADS, WIDTH = 9, 5, 3, 4
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 2, 1, 7], [1, 2, 0, 1, 1, 4, 4, 5, 6, 1, 0]])  # 8 has no edge
EDGE_FORM: dict[str, Callable[..., Tensor]] = {"gat": gat, "gatv2": gatv2}
DENSE_FORM: dict[str, Callable[..., Tensor]] = {"gat": gat_dense, "gatv2": gatv2_dense}
every_kind = pytest.mark.parametrize("kind", ["gat", "gatv2"])
with_and_without_loops = pytest.mark.parametrize("self_loops", [True, False])


def parameters(kind: str, features: int = FEATURES, heads: int = HEADS, width: int = WIDTH) -> list[Tensor]:
    """w, a_source, a_target of gat; w_source, w_target, a of gatv2."""
    matrix, vector = (heads, features, width), (heads, width)
    shapes = (matrix, vector, vector) if kind == "gat" else (matrix, matrix, vector)
    return [torch.randn(*shape, dtype=torch.float64) for shape in shapes]


def score(kind: str, x: Tensor, i: int, j: int, h: int, p: list[Tensor], slope: float = 0.2) -> Tensor:
    """e_ij of node i that sees node j."""
    if kind == "gat":
        w, a_source, a_target = (t[h] for t in p)
        return leaky_relu(torch.cat((a_target, a_source)) @ torch.cat((x[i] @ w, x[j] @ w)), slope)
    w_source, w_target, a = (t[h] for t in p)
    return a @ leaky_relu(torch.cat((x[i], x[j])) @ torch.cat((w_target, w_source)), slope)


def written_out(kind: str, x: Tensor, pairs: list[tuple[int, int]], p: list[Tensor], slope: float = 0.2) -> Tensor:
    """One edge (source, target) after another, with the matrices and vectors of the papers in one piece."""
    heads, _, width = p[0].shape
    output = torch.zeros(len(x), heads, width, dtype=x.dtype)
    for h in range(heads):
        for i in range(len(x)):
            sources = [s for s, t in pairs if t == i]
            if sources:
                weights = torch.softmax(torch.stack([score(kind, x, i, j, h, p, slope) for j in sources]), 0)
                output[i, h] = sum(a * (x[j] @ p[0][h]) for a, j in zip(weights, sources, strict=True))
    return output


def listed(edges: Tensor, nodes: int, self_loops: bool) -> list[tuple[int, int]]:
    pairs = [(s, t) for s, t in edges.T.tolist() if s != t or not self_loops]
    return pairs + ([(i, i) for i in range(nodes)] if self_loops else [])


@every_kind
@with_and_without_loops
@pytest.mark.parametrize("slope", [0.2, 0.0, 1.0])
def test_both_forms_give_what_the_formula_says(kind: str, self_loops: bool, slope: float) -> None:
    x, p = torch.randn(NODES, FEATURES, dtype=torch.float64), parameters(kind)

    by_edges = EDGE_FORM[kind](x, EDGES, *p, slope=slope, self_loops=self_loops)
    by_matrix = DENSE_FORM[kind](x, adjacency_of(EDGES, NODES), *p, slope=slope, self_loops=self_loops)

    expected = written_out(kind, x, listed(EDGES, NODES, self_loops), p, slope)
    torch.testing.assert_close(by_edges, expected)
    torch.testing.assert_close(by_matrix, expected)


@every_kind
@with_and_without_loops
@pytest.mark.parametrize("concat", [True, False])
def test_torch_geometrics_layers_give_the_same(kind: str, self_loops: bool, concat: bool) -> None:
    x = torch.randn(NODES, FEATURES, dtype=torch.float64, requires_grad=True)
    p = [t.requires_grad_() for t in parameters(kind)]
    options = {"heads": HEADS, "concat": concat, "bias": False, "add_self_loops": self_loops}
    layer = (GATConv if kind == "gat" else GATv2Conv)(FEATURES, WIDTH, **options).double()
    theirs = [layer.lin.weight, layer.att_src, layer.att_dst] if kind == "gat" else []
    theirs = theirs or [layer.lin_l.weight, layer.lin_r.weight, layer.att]
    # theirs are (heads · width, features) and (1, heads, width)
    like = [t.transpose(1, 2).flatten(0, 1) if t.dim() == 3 else t[None] for t in p]
    with torch.no_grad():
        for parameter, value in zip(theirs, like, strict=True):
            parameter.copy_(value)

    found = EDGE_FORM[kind](x, EDGES, *p, self_loops=self_loops)
    found = found.flatten(1) if concat else found.mean(1)
    expected = layer(x, EDGES)

    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(found)
    ours = torch.autograd.grad(found, [x, *p], upstream)
    hers = torch.autograd.grad(expected, [x, *theirs], upstream)
    torch.testing.assert_close(ours[0], hers[0])
    for mine, other in zip(ours[1:], hers[1:], strict=True):
        mine = mine.transpose(1, 2).flatten(0, 1) if mine.dim() == 3 else mine[None]
        torch.testing.assert_close(mine, other)


@every_kind
def test_on_a_real_graph_edges_and_matrix_agree(kind: str) -> None:
    club = networkx.karate_club_graph()
    one_way = torch.tensor(list(club.edges)).T
    edges = torch.cat((one_way, one_way.flip(0)), 1)
    x, p = torch.randn(34, 8, dtype=torch.float64), parameters(kind, features=8)

    by_edges = EDGE_FORM[kind](x, edges, *p)
    by_matrix = DENSE_FORM[kind](x, adjacency_of(edges, 34), *p)

    assert edges.shape == (2, 2 * 78) and adjacency_of(edges, 34).sum() == 156
    torch.testing.assert_close(by_edges, by_matrix)
    torch.testing.assert_close(by_edges, written_out(kind, x, listed(edges, 34, True), p))


@every_kind
def test_single_precision_on_the_kernels_is_near(kind: str) -> None:
    x, p, edges = torch.randn(300, 8), parameters(kind, features=8), torch.randint(300, (2, 2000))

    found = DENSE_FORM[kind](x, adjacency_of(edges, 300), *(t.float() for t in p))

    exact = DENSE_FORM[kind](x.double(), adjacency_of(edges, 300), *p)
    torch.testing.assert_close(found, exact.float(), rtol=1e-4, atol=1e-4)  # scores near 30, each with an error of 1e-6


@every_kind
@pytest.mark.parametrize("dense", [False, True])
def test_gradients(kind: str, dense: bool) -> None:
    edges = torch.tensor([[0, 1, 2, 1], [1, 2, 1, 1]])  # node 3 is alone
    x = torch.randn(4, 3, dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (x, *parameters(kind, features=3, heads=2, width=2))]
    where = adjacency_of(edges, 4) if dense else edges
    call = (DENSE_FORM if dense else EDGE_FORM)[kind]

    assert gradcheck(lambda x, *p: call(x, where, *p, self_loops=False), inputs)


def weights_of(kind: str, x: Tensor, p: list[Tensor]) -> Tensor:
    """(nodes, nodes) weights of one head in a whole graph: features that say who a node is, and only that, are
    carried in columns that no score looks at."""
    nodes, features = x.shape
    who = torch.cat((x, torch.eye(nodes, dtype=x.dtype)), 1)
    rows, columns = torch.zeros(nodes, p[0].shape[-1]), torch.cat((torch.zeros(features, nodes), torch.eye(nodes)))

    def wider(t: Tensor) -> Tensor:
        if t.dim() == 3:
            return torch.cat((torch.cat((t[0], rows.to(t))), columns.to(t)), 1)[None]
        return torch.cat((t, torch.zeros(1, nodes, dtype=t.dtype)), 1)

    everyone = torch.ones(nodes, nodes, dtype=torch.bool)
    return DENSE_FORM[kind](who, everyone, *map(wider, p))[:, 0, -nodes:]


def test_gat_ranks_neighbours_alike_for_everyone_and_gatv2_does_not() -> None:
    x = torch.randn(8, FEATURES, dtype=torch.float64)

    static, dynamic = (weights_of(k, x, parameters(k, heads=1)).argsort(-1) for k in ("gat", "gatv2"))

    assert (static == static[0]).all()
    assert len({tuple(row) for row in dynamic.tolist()}) > 1


@every_kind
@pytest.mark.parametrize("dense", [False, True])
def test_renamed_nodes_get_the_same(kind: str, dense: bool) -> None:
    x, p = torch.randn(NODES, FEATURES, dtype=torch.float64), parameters(kind)
    order = torch.randperm(NODES)
    new = torch.empty_like(order)
    new[order] = torch.arange(NODES)  # the node that was at order[i] is at i
    call = (DENSE_FORM if dense else EDGE_FORM)[kind]
    before, after = (adjacency_of(e, NODES) if dense else e for e in (EDGES, new[EDGES]))

    torch.testing.assert_close(call(x[order], after, *p), call(x, before, *p)[order])


@every_kind
def test_a_node_that_nothing_comes_into_gets_zero_and_gives_no_gradient(kind: str) -> None:
    x = torch.randn(NODES, FEATURES, dtype=torch.float64, requires_grad=True)

    found = EDGE_FORM[kind](x, EDGES, *parameters(kind), self_loops=False)

    assert (found[8] == 0).all() and (found[3] == 0).all()  # 3 is seen, but sees nobody
    (gradient,) = torch.autograd.grad(found.square().sum(), x)
    assert (gradient[8] == 0).all() and gradient.isfinite().all()


@every_kind
def test_an_edge_that_is_listed_twice_counts_twice_and_in_a_matrix_once(kind: str) -> None:
    x, p = torch.randn(3, FEATURES, dtype=torch.float64), parameters(kind)
    once, twice = torch.tensor([[0, 1], [2, 2]]), torch.tensor([[0, 1, 1], [2, 2, 2]])

    found = EDGE_FORM[kind](x, twice, *p, self_loops=False)

    torch.testing.assert_close(found, written_out(kind, x, [(0, 2), (1, 2), (1, 2)], p))
    by_matrix = DENSE_FORM[kind](x, adjacency_of(twice, 3), *p, self_loops=False)
    torch.testing.assert_close(by_matrix, EDGE_FORM[kind](x, once, *p, self_loops=False))
    assert not torch.allclose(found, by_matrix)


@every_kind
def test_large_scores_do_not_overflow(kind: str) -> None:
    x, p = torch.randn(NODES, FEATURES), [1e3 * t.float() for t in parameters(kind)]

    found = EDGE_FORM[kind](x, EDGES, *p)

    assert found.isfinite().all()
    by_matrix = DENSE_FORM[kind](x, adjacency_of(EDGES, NODES), *p)
    # scores of a million have errors of 0.1 at most, and the best edge leads by more: all or nothing
    torch.testing.assert_close(found, by_matrix, rtol=1e-4, atol=1e-1)


@every_kind
@pytest.mark.parametrize("nodes", [0, 1])
def test_graphs_without_edges(kind: str, nodes: int) -> None:
    x, p, none = torch.randn(nodes, FEATURES, dtype=torch.float64), parameters(kind), torch.zeros(2, 0).long()

    torch.testing.assert_close(EDGE_FORM[kind](x, none, *p), (x @ p[0]).transpose(0, 1))
    assert (EDGE_FORM[kind](x, none, *p, self_loops=False) == 0).all()


def test_what_is_wrong_is_said() -> None:
    x, p = torch.randn(NODES, FEATURES, dtype=torch.float64), parameters("gat")
    two = parameters("gatv2")
    with pytest.raises(SpecError, match=r"x must be \(nodes, features\); got shape \(1, 9, 5\)"):
        gat(x[None], EDGES, *p)
    with pytest.raises(SpecError, match=r"with 5 features, and a_source and a_target .*; got w=\(3, 4, 4\)"):
        gat(x, EDGES, p[0][:, :4], *p[1:])
    with pytest.raises(SpecError, match=r"w_source and w_target must be .*; got w_source=\(3, 5, 4\), .*, a=\(3, 2\)"):
        gatv2(x, EDGES, *two[:2], two[2][:, :2])
    with pytest.raises(SpecError, match=r"slope must be from 0 to 1; got 1\.5"):
        gat_dense(x, adjacency_of(EDGES, NODES), *p, slope=1.5)
    with pytest.raises(SpecError, match=r"whole numbers \(2, count\); got torch.int64 of shape \(11, 2\)"):
        gat(x, EDGES.T, *p)
    with pytest.raises(SpecError, match=r"whole numbers \(2, count\); got torch.float32 of shape \(2, 11\)"):
        gatv2(x, EDGES.float(), *two)
    with pytest.raises(SpecError, match="nodes from 0 to 6; got 0 to 7"):
        gat(x[:7], EDGES, *p)
    with pytest.raises(SpecError, match="nodes from 0 to 8; got -1 to 6"):
        adjacency_of(EDGES - 1, NODES)
    with pytest.raises(SpecError, match=r"of 9 x 9 nodes; got torch.bool of shape \(8, 8\)"):
        gatv2_dense(x, torch.ones(8, 8, dtype=torch.bool), *two)
    with pytest.raises(SpecError, match=r"of 9 x 9 nodes; got torch.float32 of shape \(9, 9\)"):
        gat_dense(x, torch.ones(9, 9), *p)
