"""Heads that follow relations between words: syntactic dependencies, or mentions of the same entity.

The score of a head is the fraction of words whose largest weight is on a target word (Clark et al., 2019). The
baseline is the best score of attention to a fixed offset.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentError, OutOfRangeError
from regard.recording import argument_checks
from regard.recording.metrics.head_table import HeadRow, HeadTable
from regard.recording.metrics.token_groups import group_weights
from regard.recording.recorded_layer import RecordedLayer

__all__ = ["RelationTargets", "coreference_targets", "dependency_targets"]


def __dir__() -> list[str]:
    return sorted(__all__)


RelationTargets = Mapping[int, set[int]]
"""From the index of each scored word to the indices of its target words."""


def dependency_targets(edges: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """Return targets from dependency edges (word, head of the word).

    >>> dependency_targets([(0, 1), (2, 1)])
    {0: {1}, 2: {1}}
    """
    targets: dict[int, set[int]] = {}
    for edge in _check_index_lists(edges, "edges"):
        if len(edge) != 2:
            raise ArgumentError(f"an edge must be two words, (word, head of the word); got {edge}.")
        targets.setdefault(edge[0], set()).add(edge[1])
    return targets


def coreference_targets(clusters: Iterable[Sequence[int]]) -> dict[int, set[int]]:
    """Return targets from clusters of mentions, each mention a word: the earlier mentions of the same cluster.

    >>> coreference_targets([[1, 5, 9]])
    {5: {1}, 9: {1, 5}}
    """
    targets: dict[int, set[int]] = {}
    for cluster in _check_index_lists(clusters, "clusters"):
        mentions = sorted(cluster)
        targets |= {word: set(mentions[:n]) for n, word in enumerate(mentions) if n}
    return targets


def _check_index_lists(values: Any, name: str) -> list[list[int]]:
    if isinstance(values, (str, bytes, Mapping, Tensor)) or not isinstance(values, Iterable):
        raise ArgumentError(f"{name} must be a list of lists of word indices; got {argument_checks.describe(values)}.")
    return [argument_checks.integers(words, f"words of {name}", 0) for words in values]


def _check_targets(targets: Any) -> None:
    if not isinstance(targets, Mapping):
        raise ArgumentError(
            "targets must be a dict from words to sets of target words, as in {0: {1}}; "
            f"got {argument_checks.describe(targets)}."
        )
    for word, target_words in targets.items():
        argument_checks.integer(word, "a word of targets")
        argument_checks.integers(target_words, "target words")


def relation_accuracy(
    layers: Sequence[RecordedLayer], targets: RelationTargets, word_ids: Sequence[int], special_words: Sequence[int]
) -> HeadTable:
    """Return a table with a row for each head, the highest score first.

    Its columns are `accuracy`, the score, `baseline`, the best score of a fixed offset, and `offset`, that offset.
    `word_ids` has the index of the word of each token. `special_words` are ignored as keys.
    """
    num_words = max(word_ids, default=-1) + 1
    _check_targets(targets)
    if any(not -num_words <= word < num_words for word in special_words):
        raise OutOfRangeError(f"special_words must be from {-num_words} to {num_words - 1}; got {list(special_words)}.")
    if not targets or not all(0 <= w < num_words for word, words in targets.items() for w in (word, *words)):
        raise ArgumentError(
            f"targets must have at least one word, and word indices from 0 to {num_words - 1}; got {dict(targets)}."
        )
    if num_words < 2:
        raise ArgumentError(f"relations must have at least two words; got {num_words}.")
    baseline, offset = _best_offset(targets, num_words)
    rows: list[HeadRow] = []
    for layer in layers:
        weights = group_weights(layer, word_ids, word_ids)
        if weights.shape[0] != 1:
            raise ArgumentError(f"the recording must have batch size 1 for relations; got {weights.shape[0]}.")
        weights[..., list(special_words)] = -1.0
        best_words = weights[0].argmax(-1)  # (heads, words)
        for n, head in enumerate(layer.head_indices):
            head_name: HeadRow = {"layer": layer.index, "head": head, "path": layer.path}
            score = _accuracy(best_words[n], targets)
            rows.append({**head_name, "accuracy": score, "baseline": baseline, "offset": offset})
    return HeadTable(rows).sort("accuracy")


def _accuracy(best_words: Tensor, targets: RelationTargets) -> float:
    return sum(int(best_words[word]) in target_words for word, target_words in targets.items()) / len(targets)


def _best_offset(targets: RelationTargets, num_words: int) -> tuple[float, int]:
    """Return the best score of a fixed offset other than 0, and that offset; the shortest one among equals."""
    scores = {
        offset: _accuracy(torch.arange(num_words) + offset, targets)
        for offset in range(-num_words + 1, num_words)
        if offset != 0
    }
    best = max(scores, key=lambda offset: (scores[offset], -abs(offset)))
    return scores[best], best
