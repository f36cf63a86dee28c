"""Who belongs to whom: two small graphs of people, and a few of them whose group is known.

    karate        34 members of a karate club that broke apart over its two leaders (Zachary, 1977). Only the leaders'
                  sides are known
    miserables    77 characters of Les Misérables, joined where they appear together (Knuth, 1993). The groups are
                  communities found by greedy modularity; a fifth of each is known

Edges count alike: how often two people met is ignored, for the communities too. A node's features are its own name and
nothing else, so that all a network can learn is who is near whom. A step is the whole graph.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import MissingError
from regard.models.graph import GraphNetwork
from regard.models.train import Outcome, Recipe, answers

LEADERS = (0, 33)  # of the karate club
KNOWN = 5  # one character in so many has a known community


@dataclass(frozen=True, eq=False)
class People:
    """`edges` (2, count) between people, each in both directions; the group of each; and whether it is known."""

    names: tuple[str, ...]
    edges: Tensor
    groups: Tensor
    known: Tensor

    @property
    def features(self) -> Tensor:
        return torch.eye(len(self.names))

    @property
    def count_of_groups(self) -> int:
        return int(self.groups.max()) + 1


def karate() -> People:
    """The club, whose groups are 0 for the side of Mr. Hi and 1 for the side of the officer.

    >>> karate().groups[list(LEADERS)]
    tensor([0, 1])
    """
    club = _networkx().karate_club_graph()
    members = sorted(club)
    groups = torch.tensor([int(club.nodes[member]["club"] == "Officer") for member in members])
    known = torch.zeros(len(members), dtype=torch.bool)
    known[list(LEADERS)] = True
    return People(tuple(map(str, members)), both_ways(sorted(club.edges)), groups, known)


def miserables() -> People:
    """The characters by name, and their communities, the largest first.

    >>> people = miserables()
    >>> people.groups[people.names.index("Valjean")], int(people.known.sum())
    (tensor(0), 15)
    """
    networkx = _networkx()
    novel = networkx.les_miserables_graph()
    names = sorted(novel)
    place = {name: at for at, name in enumerate(names)}
    graph = networkx.Graph()  # in a fixed order, and without the weights
    graph.add_nodes_from(range(len(names)))
    graph.add_edges_from(sorted(tuple(sorted((place[a], place[b]))) for a, b in novel.edges))
    communities = networkx.community.greedy_modularity_communities(graph)
    groups, known = torch.zeros(len(names), dtype=torch.long), torch.zeros(len(names), dtype=torch.bool)
    for group, members in enumerate(sorted(map(sorted, communities), key=lambda each: (-len(each), each))):
        groups[members] = group
        drawn = sorted(members, key=lambda at: hashlib.sha256(names[at].encode()).hexdigest())
        known[drawn[: max(1, round(len(members) / KNOWN))]] = True
    return People(tuple(names), both_ways(sorted(graph.edges)), groups, known)


def both_ways(edges: Sequence[tuple[int, int]]) -> Tensor:
    """Edges (2, count) of a graph in which who sees is seen.

    >>> both_ways([(0, 1), (1, 2)])
    tensor([[0, 1, 1, 2],
            [1, 2, 0, 1]])
    """
    one_way = torch.tensor(edges).T
    return torch.cat((one_way, one_way.flip(0)), 1)


def made(words: dict[str, Any]) -> GraphNetwork:
    """The model that a file of weights is for."""
    return GraphNetwork(**{**words, "heads": tuple(words["heads"])})


class _GraphTask:
    """Learns from the known nodes, and is tested on the others.

    Heads, widths, rate, decay and dropout are those that the paper on GAT has for a graph of citations; nothing was
    chosen for these graphs.
    """

    recipe = Recipe(steps=300, rate=5e-3, warmup=0, schedule="constant", betas=(0.9, 0.999), decay=5e-4)

    def __init__(self, data: Path | None = None, *, kind: str = "gat") -> None:
        del data
        self.kind = kind

    @cached_property
    def people(self) -> People:
        raise NotImplementedError

    def words(self) -> dict[str, Any]:
        people = self.people
        sizes = {"features": len(people.names), "classes": people.count_of_groups, "width": 8, "heads": [8, 1]}
        return {**sizes, "kind": self.kind, "dropout": 0.6}

    def model(self) -> nn.Module:
        return made(self.words())

    def outcome(self, model: nn.Module, step: int, draw: torch.Generator, recipe: Recipe) -> Outcome:
        people = self.people
        logits = model(people.features, people.edges)
        return answers(logits[people.known], people.groups[people.known], recipe.smoothing)

    def test(self, model: nn.Module) -> dict[str, float]:
        """The share of the others whose group is found, and what two guesses without a network reach."""
        people = self.people
        found = {
            "accuracy": model(people.features, people.edges).argmax(-1),
            "majority": by_majority(people),
            "neighbours": by_neighbours(people),
        }
        rest = ~people.known
        shares = {name: float((each == people.groups)[rest].float().mean()) for name, each in found.items()}
        return {**shares, "tested": float(rest.sum())}


class KarateTask(_GraphTask):
    name = "karate"

    @cached_property
    def people(self) -> People:
        return karate()


class MiserablesTask(_GraphTask):
    name = "miserables"

    @cached_property
    def people(self) -> People:
        return miserables()


def by_majority(people: People) -> Tensor:
    """For everyone the group that most of the known are in, the first of equals."""
    largest = people.groups[people.known].bincount().argmax()
    return torch.where(people.known, people.groups, largest)


def by_neighbours(people: People) -> Tensor:
    """Everyone joins the group that most of their neighbours are in, again and again until nobody moves.

    The known stay where they are. Of groups with as many neighbours one's own is preferred, then the first. Whom no
    group reaches is given the majority's.
    """
    source, target = people.edges
    nobody = -1
    found = torch.where(people.known, people.groups, nobody)
    for _ in people.names:  # everybody moves at once, so that two may swap forever
        votes = torch.zeros(len(found), people.count_of_groups)
        has = found[source] != nobody
        votes.index_put_((target[has], found[source[has]]), torch.ones(()), accumulate=True)
        placed = (found != nobody).nonzero().squeeze(-1)
        reached = votes.sum(-1) > 0
        votes[placed, found[placed]] += 0.5
        moved = torch.where(reached, votes.argmax(-1), found)
        moved = torch.where(people.known, people.groups, moved)
        if torch.equal(moved, found):
            break
        found = moved
    return torch.where(found == nobody, by_majority(people), found)


def _networkx() -> Any:
    try:
        import networkx  # type: ignore[import-untyped]  # it has no annotations
    except ImportError:
        raise MissingError(
            "the graphs come with networkx, and that package is not installed. Use pip install regard[train]."
        ) from None
    return networkx
