"""Graph attention networks: torch_geometric's layers with the same weights, who sees whom, and two graphs of people."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu
from torch_geometric.nn import GATConv, GATv2Conv

from regard.errors import MissingError, SpecError
from regard.mechanism.graph import adjacency_of
from regard.models.graph import KINDS, GraphAttention, GraphNetwork
from regard.models.tasks.graphs import (
    LEADERS,
    KarateTask,
    MiserablesTask,
    People,
    both_ways,
    by_majority,
    by_neighbours,
    karate,
    miserables,
)
from regard.models.train import Training, changed

NODES, FEATURES, CLASSES, WIDTH, HEADS = 8, 5, 3, 4, (3, 2)
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 2], [1, 2, 0, 1, 1, 4, 4, 5, 6]])  # 7 has no edge
every_kind = pytest.mark.parametrize("kind", KINDS)


def network(kind: str, **options: Any) -> GraphNetwork:
    """In double precision, and with biases that do something."""
    sizes = {"features": FEATURES, "classes": CLASSES, "width": WIDTH, "heads": HEADS}
    model = GraphNetwork(**sizes, kind=kind, **options).double()
    with torch.no_grad():
        for layer in (model.first, model.second):
            layer.bias.normal_()
    return model


def theirs(layer: GraphAttention) -> Any:
    """torch_geometric's layer with the weights of ours."""
    gat = layer.kind == "gat"
    heads, features, width = (layer.w if gat else layer.w_source).shape
    made = (GATConv if gat else GATv2Conv)(features, width, heads=heads, concat=layer.join == "concatenate").double()
    with torch.no_grad():
        if gat:
            pairs = [(made.lin.weight, layer.w), (made.att_src, layer.a_source), (made.att_dst, layer.a_target)]
        else:
            pairs = [(made.lin_l.weight, layer.w_source), (made.lin_r.weight, layer.w_target), (made.att, layer.a)]
            made.lin_l.bias.zero_()  # they have two more, inside
            made.lin_r.bias.zero_()
        for place, own in pairs:
            # matrices are (heads · width, features) there, vectors (1, heads, width)
            place.copy_(own.transpose(1, 2).flatten(0, 1) if own.dim() == 3 else own[None])
        made.bias.copy_(layer.bias)
    return made


@every_kind
@pytest.mark.parametrize("join", ["concatenate", "average"])
def test_a_layer_is_torch_geometrics_with_the_same_weights(kind: str, join: str) -> None:
    layer = GraphAttention(FEATURES, WIDTH, heads=3, kind=kind, join=join).double()
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(NODES, FEATURES, dtype=torch.float64, requires_grad=True)

    found, expected = layer(x, EDGES), theirs(layer)(x, EDGES)

    assert found.shape == (NODES, 3 * WIDTH if join == "concatenate" else WIDTH)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(found)
    gradients = [torch.autograd.grad(each, x, upstream, retain_graph=True)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients)


@every_kind
def test_a_network_is_two_of_their_layers_with_elu_between(kind: str) -> None:
    model, x = network(kind), torch.randn(NODES, FEATURES, dtype=torch.float64)

    found = model(x, EDGES)

    assert found.shape == (NODES, CLASSES)
    torch.testing.assert_close(found, theirs(model.second)(elu(theirs(model.first)(x, EDGES)), EDGES))


@every_kind
def test_attention_rests_on_neighbours_only_and_adds_up_to_one(kind: str) -> None:
    model, x = network(kind), torch.randn(NODES, FEATURES, dtype=torch.float64)
    seen = adjacency_of(EDGES, NODES) | torch.eye(NODES, dtype=torch.bool)

    for weights, heads in zip(model.attend(x, EDGES), HEADS, strict=True):
        assert weights.shape == (heads, NODES, NODES)
        assert torch.equal(weights > 0, seen.expand_as(weights))
        torch.testing.assert_close(weights.sum(-1), torch.ones(heads, NODES).double())


@every_kind
def test_the_weights_shown_are_those_that_the_layer_uses(kind: str) -> None:
    layer = GraphAttention(FEATURES, WIDTH, heads=3, kind=kind).double()
    x = torch.randn(NODES, FEATURES, dtype=torch.float64)
    rows = x @ (layer.w if kind == "gat" else layer.w_source)

    by_weights = (layer.attend(x, EDGES) @ rows).transpose(0, 1).flatten(1) + layer.bias

    torch.testing.assert_close(layer(x, EDGES), by_weights)
    _, theirs_by_edge = theirs(layer)(x, EDGES, return_attention_weights=True)
    (source, target), alpha = theirs_by_edge
    torch.testing.assert_close(layer.attend(x, EDGES)[:, target, source].T, alpha)


@every_kind
def test_a_node_knows_of_those_two_edges_away_and_no_further(kind: str) -> None:
    model, x = network(kind), torch.randn(NODES, FEATURES, dtype=torch.float64)
    one = (adjacency_of(EDGES, NODES) | torch.eye(NODES, dtype=torch.bool)).double()

    jacobian: Tensor = torch.autograd.functional.jacobian(lambda x: model(x, EDGES), x)

    assert torch.equal((jacobian != 0).any(-1).any(1), one @ one > 0)


@every_kind
def test_nodes_in_another_order_get_the_same(kind: str) -> None:
    model, x = network(kind), torch.randn(NODES, FEATURES, dtype=torch.float64)
    order = torch.randperm(NODES)
    new = torch.empty_like(order)
    new[order] = torch.arange(NODES)  # the node that was at order[i] is at i
    shuffled = new[EDGES][:, torch.randperm(EDGES.shape[1])]

    torch.testing.assert_close(model(x[order], shuffled), model(x, EDGES)[order])
    for before, after in zip(model.attend(x, EDGES), model.attend(x[order], shuffled), strict=True):
        torch.testing.assert_close(after, before[:, order][:, :, order])


@every_kind
def test_dropout_acts_in_training_only(kind: str) -> None:
    model, x = network(kind, dropout=0.5), torch.randn(NODES, FEATURES, dtype=torch.float64)

    assert not torch.equal(model(x, EDGES), model(x, EDGES))
    model.eval()
    assert torch.equal(model(x, EDGES), model(x, EDGES))


def test_what_is_wrong_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="kind must be one of 'gat', 'gatv2'; got 'gcn'"):
        network("gcn")
    with pytest.raises(SpecError, match="join must be one of 'concatenate', 'average'; got 'sum'"):
        GraphAttention(FEATURES, WIDTH, heads=3, join="sum")
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(MissingError, match=r"come with networkx.*Use pip install regard\[train\]"):
        karate()


@pytest.mark.parametrize("people, nodes, edges", [(karate(), 34, 78), (miserables(), 77, 254)], ids=["club", "novel"])
def test_the_graphs_are_those_of_the_books(people: People, nodes: int, edges: int) -> None:
    pairs = set(map(tuple, people.edges.T.tolist()))
    assert len(people.names) == nodes
    assert people.edges.shape == (2, 2 * edges) and len(pairs) == 2 * edges
    assert all((b, a) in pairs and a != b for a, b in pairs)


def test_of_the_club_the_leaders_are_known_and_they_are_on_two_sides() -> None:
    people = karate()
    assert people.known.nonzero().flatten().tolist() == list(LEADERS)
    assert people.groups[list(LEADERS)].tolist() == [0, 1]
    assert people.groups.bincount().tolist() == [17, 17]


def test_of_the_novel_a_fifth_of_each_community_is_known() -> None:
    people = miserables()
    sizes = people.groups.bincount().tolist()
    assert sizes == [26, 17, 15, 13, 6]
    for group, size in enumerate(sizes):
        assert int(people.known[people.groups == group].sum()) == max(1, round(size / 5))


def test_guesses_without_a_network_follow_their_rules() -> None:
    edges = both_ways([(0, 1), (0, 2), (0, 3), (0, 4), (1, 4), (2, 4), (3, 5), (5, 6), (0, 6)])  # 7 is alone
    known = torch.tensor([True, True, True, True, False, False, False, False])
    people = People(tuple("abcdefgh"), edges, torch.tensor([0, 1, 1, 1, 0, 0, 1, 0]), known)

    assert by_majority(people).tolist() == [0, 1, 1, 1, 1, 1, 1, 1]
    # 0 is known, and stays although most of its neighbours are elsewhere. 5 joins 3 while 6 joins 0; then each has a
    # neighbour on both sides, and stays
    assert by_neighbours(people).tolist() == [0, 1, 1, 1, 1, 1, 0, 1]


@every_kind
def test_a_short_training_lowers_the_loss(kind: str) -> None:
    task = MiserablesTask(kind=kind)
    training = Training(task, changed(task.recipe, {"steps": 60}))
    losses = [training.advance().loss for _ in range(60)]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


def _results(task: KarateTask | MiserablesTask, seed: int) -> dict[str, float]:
    training = Training(task, changed(task.recipe, {"seed": seed}))
    while not training.is_over:
        training.advance()
    return training.test()


@every_kind
def test_the_club_is_told_apart_from_its_leaders_alone(kind: str) -> None:
    found = [_results(KarateTask(kind=kind), seed) for seed in range(3)]
    assert {(each["tested"], each["majority"]) for each in found} == {(32, 0.5)}
    # of 20 seeds the worst finds two thirds of the members, and the mean is 0.89 and 0.92
    assert sum(each["accuracy"] for each in found) / 3 > 0.8


@every_kind
def test_the_communities_of_the_novel_are_found_better_than_by_asking_neighbours(kind: str) -> None:
    found = _results(MiserablesTask(kind=kind), 0)
    assert found["tested"] == 62
    assert found["accuracy"] > found["neighbours"] > found["majority"]
