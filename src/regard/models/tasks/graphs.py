"""Node classification on two small social networks with few labeled nodes.

    karate        34 members of a karate club that split into two groups (Zachary, 1977). Only the two leaders are
                  labeled
    miserables    77 characters of Les Misérables; edges join characters who appear together (Knuth, 1993). The classes
                  are communities found by greedy modularity maximization. A fifth of each class is labeled

Edges are unweighted. The features of a node are its one-hot index, so a network can only learn from the edges. Each
training step uses the entire graph.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.models.graph import GraphAttentionNetwork
from regard.models.training import BatchResult, Recipe, classification_result
from regard.optional_imports import import_optional

LEADERS = (0, 33)  # Mr. Hi and the officer
LABELED_EVERY = 5


@dataclass(frozen=True, eq=False)
class LabeledGraph:
    """A graph with node labels.

    `edge_index` (2, num_edges) holds each edge in both directions. `labels` (nodes,) are the classes, and `train_mask`
    (nodes,) marks the nodes whose label is used for training.
    """

    node_names: tuple[str, ...]
    edge_index: Tensor
    labels: Tensor
    train_mask: Tensor

    @property
    def features(self) -> Tensor:
        """The one-hot features (nodes, nodes)."""
        return torch.eye(len(self.node_names))

    @property
    def num_classes(self) -> int:
        return int(self.labels.max()) + 1


def karate() -> LabeledGraph:
    """Return Zachary's karate club; label 0 is the group of Mr. Hi, and label 1 the group of the officer.

    >>> karate().labels[list(LEADERS)]
    tensor([0, 1])
    """
    club = _import_networkx().karate_club_graph()
    members = sorted(club)
    labels = torch.tensor([int(club.nodes[member]["club"] == "Officer") for member in members])
    train_mask = torch.zeros(len(members), dtype=torch.bool)
    train_mask[list(LEADERS)] = True
    return LabeledGraph(tuple(map(str, members)), to_undirected(sorted(club.edges)), labels, train_mask)


def miserables() -> LabeledGraph:
    """Return the graph of Les Misérables; labels are communities, the largest first.

    >>> graph = miserables()
    >>> graph.labels[graph.node_names.index("Valjean")], int(graph.train_mask.sum())
    (tensor(0), 15)
    """
    networkx = _import_networkx()
    novel = networkx.les_miserables_graph()
    names = sorted(novel)
    index = {name: i for i, name in enumerate(names)}
    graph = networkx.Graph()  # unweighted, with a fixed order of nodes
    graph.add_nodes_from(range(len(names)))
    graph.add_edges_from(sorted(tuple(sorted((index[a], index[b]))) for a, b in novel.edges))
    communities = networkx.community.greedy_modularity_communities(graph)
    labels, train_mask = torch.zeros(len(names), dtype=torch.long), torch.zeros(len(names), dtype=torch.bool)
    for label, members in enumerate(sorted(map(sorted, communities), key=lambda nodes: (-len(nodes), nodes))):
        labels[members] = label
        shuffled = sorted(members, key=lambda i: hashlib.sha256(names[i].encode()).hexdigest())
        train_mask[shuffled[: max(1, round(len(members) / LABELED_EVERY))]] = True
    return LabeledGraph(tuple(names), to_undirected(sorted(graph.edges)), labels, train_mask)


def to_undirected(edges: Sequence[tuple[int, int]]) -> Tensor:
    """Return edges (2, num_edges) in both directions.

    >>> to_undirected([(0, 1), (1, 2)])
    tensor([[0, 1, 1, 2],
            [1, 2, 0, 1]])
    """
    directed = torch.tensor(edges).T
    return torch.cat((directed, directed.flip(0)), 1)


def build_model(config: dict[str, Any]) -> GraphAttentionNetwork:
    """Return an untrained model from a saved configuration."""
    return GraphAttentionNetwork(**{**config, "num_heads": tuple(config["num_heads"])})


class _GraphTask:
    """Training on the labeled nodes of a graph, and testing on the others.

    num_heads, head_dim, lr, weight_decay and dropout are those of the GAT paper for Cora, without further tuning.
    """

    recipe = Recipe(steps=300, lr=5e-3, warmup_steps=0, schedule="constant", betas=(0.9, 0.999), weight_decay=5e-4)

    def __init__(self, data: Path | None = None, *, kind: str = "gat") -> None:
        del data
        self.kind = kind

    @cached_property
    def graph(self) -> LabeledGraph:
        raise NotImplementedError

    def model_config(self) -> dict[str, Any]:
        return {
            "in_features": len(self.graph.node_names),
            "num_classes": self.graph.num_classes,
            "head_dim": 8,
            "num_heads": [8, 1],
            "kind": self.kind,
            "dropout": 0.6,
        }

    def untrained_model(self) -> nn.Module:
        return build_model(self.model_config())

    def training_step(self, model: nn.Module, step: int, generator: torch.Generator, recipe: Recipe) -> BatchResult:
        graph = self.graph
        logits = model(graph.features, graph.edge_index)
        return classification_result(logits[graph.train_mask], graph.labels[graph.train_mask], recipe.label_smoothing)

    def test(self, model: nn.Module) -> dict[str, float]:
        """Return the accuracy on unlabeled nodes, and the accuracies of two baselines."""
        graph = self.graph
        predictions = {
            "accuracy": model(graph.features, graph.edge_index).argmax(-1),
            "majority": majority_baseline(graph),
            "label_propagation": label_propagation(graph),
        }
        is_test = ~graph.train_mask
        accuracies = {
            name: float((labels == graph.labels)[is_test].float().mean()) for name, labels in predictions.items()
        }
        return {**accuracies, "num_tested": float(is_test.sum())}


class KarateTask(_GraphTask):
    """Node classification on Zachary's karate club."""

    name = "karate"

    @cached_property
    def graph(self) -> LabeledGraph:
        return karate()


class MiserablesTask(_GraphTask):
    """Node classification on the characters of Les Misérables."""

    name = "miserables"

    @cached_property
    def graph(self) -> LabeledGraph:
        return miserables()


def majority_baseline(graph: LabeledGraph) -> Tensor:
    """Return the training labels, and their most frequent label for all other nodes (the first in a tie)."""
    majority = graph.labels[graph.train_mask].bincount().argmax()
    return torch.where(graph.train_mask, graph.labels, majority)


def label_propagation(graph: LabeledGraph) -> Tensor:
    """Assign each node the most frequent label of its neighbors, until no label changes.

    Training labels are fixed. In a tie, a node keeps its label, or else gets the first one. Nodes that no label reaches
    get the majority label.
    """
    source, target = graph.edge_index
    unlabeled = -1
    labels = torch.where(graph.train_mask, graph.labels, unlabeled)
    for _ in graph.node_names:  # bounded: synchronous updates may oscillate forever
        votes = torch.zeros(len(labels), graph.num_classes)
        is_voting = labels[source] != unlabeled
        votes.index_put_((target[is_voting], labels[source[is_voting]]), torch.ones(()), accumulate=True)
        labeled = (labels != unlabeled).nonzero().squeeze(-1)
        reached = votes.sum(-1) > 0
        votes[labeled, labels[labeled]] += 0.5
        updated = torch.where(reached, votes.argmax(-1), labels)
        updated = torch.where(graph.train_mask, graph.labels, updated)
        if torch.equal(updated, labels):
            break
        labels = updated
    return torch.where(labels == unlabeled, majority_baseline(graph), labels)


def _import_networkx() -> Any:
    return import_optional("networkx", "a graph task", "regard[train]")
