"""Metrics of the heads of a layer.

The score of a head type is a fraction of the weight, averaged over the queries that have such a key. Next to each score
is the score of a uniform head, which attends equally to all visible keys.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import mask
from regard.mask import Mask
from regard.recording.metrics.query_metrics import (
    FIRST_KEY_COLUMN,
    SEPARATOR_COLUMN,
    QueryMetrics,
    TokenBatch,
    UniformBaseline,
)
from regard.recording.recorded_call import RecordedCall
from regard.tensors.diagonals import diagonal_sums

LAST_QUERIES = 64  # queries that the vertical and slash scores are computed from
NUM_PATTERN_LINES = 16  # columns, or diagonals, of a vertical or slash pattern
MIN_SINK_QUERIES = 8  # a key that fewer queries may attend to is not counted as a sink


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Scores (batch, heads), and those of a uniform head."""

    values: Tensor
    uniform: Tensor


class HeadMetrics:
    """The metrics of one layer's heads: tensors (batch, heads), each with the score of a uniform head.

    Args:
        call: the recorded call.
        tokens: the tokens of each sequence of the batch. None if they are unknown.
        separators: tokens that count as separators.
        window_size: width of the window in the `window` metric. Default: 16.
        baseline_from: metrics of a layer with the same mask and tokens, whose uniform baseline is reused.
    """

    def __init__(
        self,
        call: RecordedCall,
        tokens: TokenBatch | None = None,
        separators: Sequence[Hashable] = (),
        window_size: int = 16,
        baseline_from: "HeadMetrics | None" = None,
    ) -> None:
        self.query_metrics = QueryMetrics(call, tokens, separators)
        self.window_size = window_size
        self.uniform: UniformBaseline = (
            baseline_from.uniform if baseline_from is not None else UniformBaseline(call, tokens, separators)
        )

    def entropy(self) -> HeadScores:
        """Mean entropy of the rows, in nats."""
        return _mean_scores(self.query_metrics.entropy, self.uniform.entropy, self.uniform.num_visible_keys > 0)

    def normalized_entropy(self) -> HeadScores:
        """Mean entropy as a fraction of its maximum, the logarithm of the number of visible keys."""
        maximum = self.uniform.num_visible_keys.clamp(min=2).log()
        return _mean_scores(
            self.query_metrics.entropy / maximum, torch.ones_like(maximum), self.uniform.num_visible_keys > 1
        )

    def distance(self) -> HeadScores:
        """Mean distance between a query and its keys, in tokens."""
        return _mean_scores(self.query_metrics.distance, self.uniform.distance, self.uniform.num_visible_keys > 0)

    def confidence(self) -> HeadScores:
        """Mean of the largest weight of each query."""
        return _mean_scores(
            self.query_metrics.row_max[0],
            1 / self.uniform.num_visible_keys.clamp(min=1),
            self.uniform.num_visible_keys > 0,
        )

    def positional(self) -> tuple[HeadScores, Tensor]:
        """Fraction of queries whose largest weight is at the most common offset j - p, and that offset."""
        offsets = self.query_metrics.row_max[1] - self.query_metrics.query_positions
        has_key = (self.uniform.num_visible_keys > 0).expand_as(offsets)
        common, fraction = torch.zeros(offsets.shape[:2], dtype=torch.int64), torch.zeros(offsets.shape[:2])
        for b in range(offsets.shape[0]):
            for h in range(offsets.shape[1]):
                values, counts = offsets[b, h][has_key[b, h]].unique(return_counts=True)
                if len(values):
                    common[b, h] = values[counts.argmax()]
                    fraction[b, h] = counts.max() / counts.sum()
        return HeadScores(fraction, _masked_mean(1 / self.uniform.num_visible_keys.clamp(min=1), has_key)), common

    def first_token(self) -> HeadScores:
        """Mass on the first key, for all queries except the one at the same position."""
        mass, uniform = self.query_metrics.probe_mass(FIRST_KEY_COLUMN), self.uniform.probe_mass(FIRST_KEY_COLUMN)
        return _mean_scores(mass, uniform, (self.query_metrics.query_positions > 0) & (uniform > 0))

    def separator(self) -> HeadScores:
        """Mass on separators."""
        mass, uniform = self.query_metrics.probe_mass(SEPARATOR_COLUMN), self.uniform.probe_mass(SEPARATOR_COLUMN)
        return _mean_scores(mass, uniform, uniform > 0)

    def own_position(self) -> HeadScores:
        """Mass on the key at the position of the query."""
        return self._mass_under_mask("self", mask.sliding_window(1))

    def previous(self) -> HeadScores:
        """Mass on the key before the query."""
        return self._mass_under_mask("previous", mask.sliding_window(2, 1) & ~mask.sliding_window(1))

    def next(self) -> HeadScores:
        """Mass on the key after the query."""
        return self._mass_under_mask("next", mask.sliding_window(1, 2) & ~mask.sliding_window(1))

    def window(self) -> HeadScores:
        """Mass on keys less than `window_size` tokens away."""
        return self._mass_under_mask(f"window {self.window_size}", mask.sliding_window(self.window_size))

    def _mass_under_mask(self, cache_key: str, extra_mask: Mask) -> HeadScores:
        uniform = self.uniform.get_or_compute(cache_key, lambda metrics: metrics.mass_under(extra_mask))
        return _mean_scores(self.query_metrics.mass_under(extra_mask), uniform, uniform > 0)

    def duplicate(self) -> HeadScores:
        """Mass on earlier occurrences of the query's token."""
        return self._mass_on_equal_tokens("duplicate", lambda tokens: tokens)

    def induction(self) -> HeadScores:
        """Mass on the tokens that follow earlier occurrences of the query's token."""
        return self._mass_on_equal_tokens("induction", lambda tokens: [None, *tokens[:-1]])

    def _mass_on_equal_tokens(
        self, cache_key: str, key_tokens: Callable[[Sequence[Hashable]], Sequence[Hashable]]
    ) -> HeadScores:
        uniform = self.uniform.get_or_compute(cache_key, lambda metrics: metrics.mass_on_equal_tokens(key_tokens))
        return _mean_scores(self.query_metrics.mass_on_equal_tokens(key_tokens), uniform, uniform > 0)

    def alignment(self) -> HeadScores:
        """Mutual information of query and key, with uniformly distributed queries, as a fraction of its maximum.

        1 if each query attends to a different key, 0 if all rows are equal.
        """
        call = self.query_metrics.call
        maximum = math.log(max(2, min(call.q.shape[2], call.k.shape[2])))
        return HeadScores(
            self._mutual_information(self.query_metrics) / maximum, self._mutual_information(self.uniform) / maximum
        )

    def _mutual_information(self, metrics: QueryMetrics) -> Tensor:
        """Return H(key) - H(key | query), of shape (batch, heads)."""
        mass = metrics.column_mass.double()
        key_distribution = mass / mass.sum(-1, keepdim=True).clamp(min=1e-30)
        conditional_entropy = _masked_mean(metrics.entropy, self.uniform.num_visible_keys > 0)
        information: Tensor = torch.special.entr(key_distribution).sum(-1) - conditional_entropy
        return information.clamp(min=0).float()

    def strongest_sink(self) -> tuple[Tensor, Tensor]:
        """Return the largest mean weight of a key over the queries that may attend to it, and that key."""
        num_queries = self.uniform.num_attending_queries
        mean_weights = torch.where(
            num_queries >= min(MIN_SINK_QUERIES, len(self.query_metrics.query_positions)),
            self.query_metrics.column_mass / num_queries.clamp(min=1),
            0.0,
        )
        return mean_weights.max(-1)

    def vertical_and_slash(self) -> tuple[Tensor, Tensor]:
        """Return the fractions of the last queries' weight on their strongest columns and diagonals."""
        rows = self.query_metrics.probe_result.weights[:, :, -LAST_QUERIES:].double()
        total = rows.sum((-2, -1)).clamp(min=1e-30)
        vertical, slash = (
            lines.topk(min(NUM_PATTERN_LINES, lines.shape[-1])).values.sum(-1) / total
            for lines in (rows.sum(-2), diagonal_sums(rows))
        )
        return vertical.float(), slash.float()


def _mean_scores(values: Tensor, uniform: Tensor, valid: Tensor) -> HeadScores:
    return HeadScores(_masked_mean(values, valid), _masked_mean(uniform, valid))


def _masked_mean(values: Tensor, valid: Tensor) -> Tensor:
    """Return the mean over valid rows (batch, heads); 0 if no row is valid."""
    values, valid = torch.broadcast_tensors(values, valid)
    return torch.where(valid, values, 0.0).sum(-1) / valid.sum(-1).clamp(min=1)
