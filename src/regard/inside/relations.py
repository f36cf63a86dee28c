"""Heads that find what belongs together: dependents and their heads in a sentence, mentions of the same thing.

A head's score is the share of the words asked about whose largest weight is on a right word (Clark and others, 2019).
Beside it stands the best that could be had by always looking at the same distance.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import OutOfRangeError, SpecError
from regard.inside import arguments
from regard.inside.layer import Layer
from regard.inside.places import by_group
from regard.inside.table import HeadTable, Row

Targets = Mapping[int, set[int]]  # for each word that is asked about, the words that are right


def syntactic(edges: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """Targets from edges (word, the word it depends on).

    >>> syntactic([(0, 1), (2, 1)])
    {0: {1}, 2: {1}}
    """
    found: dict[int, set[int]] = {}
    for edge in _groups(edges, "edges"):
        if len(edge) != 2:
            raise SpecError(f"an edge must be two words, (word, the word it depends on); got {edge}.")
        found.setdefault(edge[0], set()).add(edge[1])
    return found


def coreferent(clusters: Iterable[Sequence[int]]) -> dict[int, set[int]]:
    """Targets from clusters of mentions, each a word: from the second on, those before it.

    >>> coreferent([[1, 5, 9]])
    {5: {1}, 9: {1, 5}}
    """
    found: dict[int, set[int]] = {}
    for cluster in _groups(clusters, "clusters"):
        ordered = sorted(cluster)
        found |= {word: set(ordered[:place]) for place, word in enumerate(ordered) if place}
    return found


def _groups(values: Any, what: str) -> list[list[int]]:
    if isinstance(values, (str, bytes, Mapping, Tensor)) or not isinstance(values, Iterable):
        raise SpecError(f"{what} must be a list of lists of words, each by its number; got {arguments.short(values)}.")
    return [arguments.wholes(each, f"words of {what}", 0) for each in values]


def _check_targets(targets: Any) -> None:
    if not isinstance(targets, Mapping):
        raise SpecError(f"targets must be right words by word, {{0: {{1}}}}; got {arguments.short(targets)}.")
    for word, right in targets.items():
        arguments.whole(word, "a word")
        arguments.wholes(right, "right words")


def related(layers: Sequence[Layer], targets: Targets, words: Sequence[int], special: Sequence[int]) -> HeadTable:
    """A row for each head: `right`, `baseline`, the best share of one distance, and `offset`, that distance.

    `words` has the number of its word for each token; `special` are words that are not counted as looked at.
    """
    count = max(words, default=-1) + 1
    _check_targets(targets)
    if any(not -count <= word < count for word in special):
        raise OutOfRangeError(f"special words must be from 0 to {count - 1}; got {list(special)}.")
    if not targets or not all(0 <= w < count for word, right in targets.items() for w in (word, *right)):
        raise SpecError(f"words must be asked about, by their numbers from 0 to {count - 1}; got {dict(targets)}.")
    baseline, offset = _best_offset(targets, count)
    rows: list[Row] = []
    for layer in layers:
        weights = by_group(layer, words, words)
        if weights.shape[0] != 1:
            raise SpecError(f"relations must be those of one text; the tape has {weights.shape[0]}.")
        weights[..., list(special)] = -1.0
        best = weights[0].argmax(-1)  # (heads, words)
        for place, head in enumerate(layer.heads):
            name: Row = {"layer": layer.number, "head": head, "path": layer.path}
            rows.append({**name, "right": _share(best[place], targets), "baseline": baseline, "offset": offset})
    return HeadTable(rows).sort("right")


def _share(best: Tensor, targets: Targets) -> float:
    return sum(int(best[word]) in right for word, right in targets.items()) / len(targets)


def _best_offset(targets: Targets, count: int) -> tuple[float, int]:
    shares = {
        offset: _share(torch.arange(count) + offset, targets) for offset in range(-count + 1, count) if offset != 0
    }
    best = max(shares, key=lambda offset: (shares[offset], -abs(offset)))
    return shares[best], best
