"""Heads that find what belongs together: dependents and their heads in a sentence, mentions of the same thing.

A head's score is the share of the words asked about whose largest weight is on a right word (Clark and others, 2019).
Beside it stands the best that could be had by always looking at the same distance.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from regard.errors import SpecError
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
    for word, head in edges:
        found.setdefault(word, set()).add(head)
    return found


def coreferent(clusters: Iterable[Sequence[int]]) -> dict[int, set[int]]:
    """Targets from clusters of mentions, each a word: from the second on, those before it.

    >>> coreferent([[1, 5, 9]])
    {5: {1}, 9: {1, 5}}
    """
    found: dict[int, set[int]] = {}
    for cluster in clusters:
        ordered = sorted(cluster)
        found |= {word: set(ordered[:place]) for place, word in enumerate(ordered) if place}
    return found


def related(layers: Sequence[Layer], targets: Targets, words: Sequence[int], special: Iterable[int]) -> HeadTable:
    """A row for each head: `right`, `baseline`, the best share of one distance, and `offset`, that distance.

    `words` has the number of its word for each token; `special` are words that are not counted as looked at.
    """
    count = max(words, default=-1) + 1
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
