"""Row normalizers that are computed in one pass over tiles of keys: softmax, sigmoid and ReLU.

`normalize` defines a normalizer on complete rows. `init_state`, `update` and `finalize` compute it tile by tile.
`weights` returns any weight from its score and the row statistic, `recompute_weights` does so for a tile in the
backward pass, and `backward` returns the gradient of the scores. A score of -inf is masked: its weight is exactly
zero. Normalizers that need a threshold per row are in `threshold.py`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regard.expr.ir import Expr
from regard.stage_spec import QUERY_AXES, SCALAR_AXES, StageSpec, StageSpecs

RowState = tuple[Tensor, ...]
LOG2_E = math.log2(math.e)


class RowNormalizer(ABC):
    """Interface of normalizers. Rows run along the last dimension of the scores.

    Values per row have a last dimension of 1, except for the statistic that `normalize` returns, which has none.

    `statistic` is the name of the row statistic from which any weight follows, given its score; None if there is none.
    `is_mergeable` is true if attention over parts of the keys can be merged by `merge_states`. `stages` are the steps
    from the scores to the weights that `regard.steps` shows; without them it shows the statistic and the weights.
    """

    name: ClassVar[str]
    statistic: ClassVar[str | None] = None
    is_mergeable: ClassVar[bool] = False
    stages: ClassVar[StageSpecs] = ()

    @property
    def parameter(self) -> Expr | None:
        """A parameter per head, as an expression that may look up captured tensors; None if there is none."""
        return None

    def with_parameter(self, parameter: Expr) -> "RowNormalizer":
        """Return the normalizer with another parameter."""
        raise NotImplementedError(f"{self.name} has no parameter")

    @abstractmethod
    def normalize(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the weights of complete rows and their statistic, differentiably."""

    def prescaled(self) -> tuple["RowNormalizer", float]:
        """Return an equivalent normalizer for scores multiplied by a factor, and the factor that is cheapest."""
        return self, 1.0


class StreamingNormalizer(RowNormalizer):
    """A normalizer that is computed in one pass over tiles of keys."""

    def init_state(self, zeros: Tensor) -> RowState:
        """Return the state before the first tile; `zeros` is a column of zeros, one per row."""
        return ()

    @abstractmethod
    def update(self, state: RowState, scores: Tensor) -> tuple[RowState, Tensor, Tensor | None]:
        """Return the new state, the unnormalized weights of the tile, and the factor for earlier sums (None: 1).

        The scores may be overwritten.
        """

    def finalize(self, state: RowState) -> tuple[Tensor | None, Tensor | None]:
        """Return the factor that normalizes the weighted sum of a row (None: 1), and the row statistic."""
        return None, None

    @abstractmethod
    def weights(self, scores: Tensor, statistic: Tensor | None) -> Tensor:
        """Return the weights of any scores, given the statistic of their rows, differentiably."""

    def score_origin(self, statistic: Tensor) -> Tensor:
        """Return the value to subtract from the scores of a row before `recompute_weights`."""
        return statistic

    def recompute_weights(self, scores: Tensor) -> Tensor:
        """Return the weights from scores minus `score_origin`, for the backward pass. The scores may be overwritten."""
        return self.weights(scores, None)

    @abstractmethod
    def backward(self, weights: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of the scores, given the gradient of the weights, which may be overwritten.

        If there is a statistic, `gradient` is the gradient of the weights minus a value per row: the sum of weight
        times gradient, minus the gradient of the statistic.
        """


EXP_STAGES = (
    StageSpec(
        "minus maximum",
        "minus the maximum of the row, so that exp cannot overflow; the weights do not change",
        "s_ij - m_i",
        "s_{ij} - m_i",
        code="scores - row_maximum[:, None]",
        value="scores - torch.where(row_maximum == -inf, 0.0, row_maximum)[:, None]",  # a fully masked row
    ),
    StageSpec(
        "exp",
        "the exponential of each score; 0 for hidden pairs",
        "exp(s_ij - m_i)",
        "e^{s_{ij} - m_i}",
        code="torch.exp(minus_maximum)",
    ),
)
SOFTMAX_WEIGHTS = StageSpec(
    "weights",
    "each number divided by the sum of its row",
    "a_ij = exp(s_ij - m_i) / z_i",
    r"a_{ij} = \frac{e^{s_{ij} - m_i}}{z_i}",
    code="exp / row_sum[:, None]",
    value="torch.where(row_sum[:, None] == 0, 0.0, exp / row_sum[:, None])",
)


@dataclass(frozen=True)
class Softmax(StreamingNormalizer):
    """exp(s) / sum exp(s), computed relative to the row maximum; the statistic is lse = log sum exp(s)."""

    name: ClassVar[str] = "softmax"
    statistic: ClassVar[str | None] = "lse"
    is_mergeable: ClassVar[bool] = True
    stages: ClassVar[StageSpecs] = (
        StageSpec(
            "row maximum",
            "the largest score of each query",
            "m_i = max_j s_ij",
            r"m_i = \max_j s_{ij}",
            QUERY_AXES,
            "scores.amax(-1)",
        ),
        *EXP_STAGES,
        StageSpec(
            "row sum",
            "the sum of each row",
            "z_i = Σ_j exp(s_ij - m_i)",
            r"z_i = \sum_j e^{s_{ij} - m_i}",
            QUERY_AXES,
            "exp.sum(-1)",
        ),
        SOFTMAX_WEIGHTS,
    )

    def normalize(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        has_keys = (scores != -torch.inf).any(-1, keepdim=True)
        safe_scores = torch.where(has_keys, scores, 0.0)  # the softmax of a row of -inf is NaN
        weights = torch.where(has_keys, torch.softmax(safe_scores, dim=-1), 0.0)
        lse = torch.where(has_keys, torch.logsumexp(safe_scores, dim=-1, keepdim=True), -torch.inf)
        return weights, lse.squeeze(-1)

    def init_state(self, zeros: Tensor) -> RowState:
        # a finite maximum: exp(-inf - maximum) is 0 for masked scores, not NaN
        return zeros + torch.finfo(zeros.dtype).min, zeros

    def update(self, state: RowState, scores: Tensor) -> tuple[RowState, Tensor, Tensor | None]:
        old_max, total = state
        new_max = torch.maximum(old_max, scores.amax(-1, keepdim=True))
        weights = self._exp_(scores.sub_(new_max))
        # earlier sums were taken relative to a smaller maximum. The factor is computed in float64, because torch's
        # float32 exp2 rounds differently at the end of a tensor, and a row must not depend on its neighbors
        rescale = self._exp_(old_max.sub(new_max).double()).to(new_max.dtype)
        return (new_max, torch.addcmul(weights.sum(-1, keepdim=True), total, rescale)), weights, rescale

    def finalize(self, state: RowState) -> tuple[Tensor | None, Tensor | None]:
        row_max, total = state
        has_keys = total != 0.0  # the largest score alone contributes 1
        return torch.where(has_keys, 1.0 / total, 0.0), torch.where(has_keys, self._lse(row_max, total), -torch.inf)

    def weights(self, scores: Tensor, statistic: Tensor | None) -> Tensor:
        assert statistic is not None
        return torch.exp(scores - self.score_origin(statistic))

    def score_origin(self, statistic: Tensor) -> Tensor:
        return torch.where(statistic != -torch.inf, statistic, 0.0)

    def recompute_weights(self, scores: Tensor) -> Tensor:
        return self._exp_(scores)

    def backward(self, weights: Tensor, gradient: Tensor) -> Tensor:
        return gradient.mul_(weights)

    def prescaled(self) -> tuple[RowNormalizer, float]:
        return _Base2Softmax(), LOG2_E

    def _exp_(self, x: Tensor) -> Tensor:
        """Compute exp(x) in place by exp2: torch's exp is 10 to 100 times slower for results near 0."""
        return x.mul_(LOG2_E).exp2_()

    def _lse(self, row_max: Tensor, total: Tensor) -> Tensor:
        return (row_max.double() + total.double().log()).to(row_max.dtype)  # rounded once


@dataclass(frozen=True)
class _Base2Softmax(Softmax):
    """Softmax of scores that are multiplied by log2(e), so that exp(s) becomes 2^s."""

    def score_origin(self, statistic: Tensor) -> Tensor:
        return super().score_origin(statistic) * LOG2_E

    def _exp_(self, x: Tensor) -> Tensor:
        return x.exp2_()

    def _lse(self, row_max: Tensor, total: Tensor) -> Tensor:
        return ((row_max.double() + total.double().log2()) / LOG2_E).to(row_max.dtype)  # rounded once


@dataclass(frozen=True)
class Sigmoid(StreamingNormalizer):
    """1 / (1 + exp(-s)), elementwise; rows need not sum to 1."""

    name: ClassVar[str] = "sigmoid"
    stages: ClassVar[StageSpecs] = (
        StageSpec(
            "weights",
            "the sigmoid of each score; a row may have any sum",
            "a_ij = 1 / (1 + exp(-s_ij))",
            r"a_{ij} = \sigma(s_{ij})",
            code="torch.sigmoid(scores)",
        ),
    )

    def normalize(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return torch.sigmoid(scores), None

    def update(self, state: RowState, scores: Tensor) -> tuple[RowState, Tensor, Tensor | None]:
        return state, scores.sigmoid_(), None

    def weights(self, scores: Tensor, statistic: Tensor | None) -> Tensor:
        return torch.sigmoid(scores)

    def backward(self, weights: Tensor, gradient: Tensor) -> Tensor:
        return gradient.mul_(weights * (1.0 - weights))


def relu_stages(factor: str) -> StageSpecs:
    """Return the stages of ReLU times a factor, an expression."""
    return (
        StageSpec(
            "positive",
            "the score, or 0 if it is negative",
            "max(s_ij, 0)",
            r"\max(s_{ij}, 0)",
            code="torch.relu(scores)",
        ),
        StageSpec("factor", "the factor of every weight: 1 / n by default", "c", "c", SCALAR_AXES, value=factor),
        StageSpec(
            "weights",
            "times the factor; a row may have any sum",
            "a_ij = c max(s_ij, 0)",
            r"a_{ij} = c \max(s_{ij}, 0)",
            code="positive * factor",
        ),
    )


@dataclass(frozen=True)
class Relu(StreamingNormalizer):
    """max(s, 0), elementwise; rows need not sum to 1."""

    name: ClassVar[str] = "relu"
    stages: ClassVar[StageSpecs] = relu_stages("1.0")

    def normalize(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return torch.relu(scores), None

    def update(self, state: RowState, scores: Tensor) -> tuple[RowState, Tensor, Tensor | None]:
        return state, scores.relu_(), None

    def weights(self, scores: Tensor, statistic: Tensor | None) -> Tensor:
        return torch.relu(scores)

    def backward(self, weights: Tensor, gradient: Tensor) -> Tensor:
        return gradient.mul_(weights > 0)
