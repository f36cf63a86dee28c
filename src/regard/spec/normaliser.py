"""Normalisers: how a row of scores becomes weights.

Each is one class, and `dense` is its definition. Those here are streamed in one pass over tiles of keys: `begin` a row,
take `step` after step over its tiles, `end` it; `weights` gives any weight again from its score and the row statistic,
`rebuilt` a tile of them, and `backward` the gradient of the scores. `threshold.py` has those that must know a whole row
first. A score of -inf is hidden and weighs exactly nothing.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regard.spec.term import Term

State = tuple[Tensor, ...]
LOG2_E = math.log2(math.e)


class Normaliser(ABC):
    """The contract. Rows run along the last dimension of scores.

    What belongs to a row has a last dimension of 1, but for the statistic `dense` gives: that has one number a row.

    `statistic` names the number a row needs so that any weight follows from its score, None if it needs none.
    `merges` says whether parts of the keys can be attended to apart and joined by `merge`.
    """

    name: ClassVar[str]
    statistic: ClassVar[str | None] = None
    merges: ClassVar[bool] = False

    @property
    def parameter(self) -> Term | None:
        """A number of each head that it depends on; it may be looked up in what is captured."""
        return None

    def given(self, parameter: Term) -> "Normaliser":
        """The same with another parameter."""
        raise NotImplementedError(f"{self.name} has no parameter")

    @abstractmethod
    def dense(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The weights of whole rows and their statistic, differentiably."""

    def prescaled(self) -> tuple["Normaliser", float]:
        """The same for scores that come multiplied by a number, and that number: 1 unless another one is cheaper."""
        return self, 1.0


class Streamed(Normaliser):
    """What one pass over tiles of keys computes."""

    def begin(self, rows: Tensor) -> State:
        """The running state before any key; `rows` is a column of zeros."""
        return ()

    @abstractmethod
    def step(self, state: State, scores: Tensor) -> tuple[State, Tensor, Tensor | None]:
        """The new state, this tile's weights up to the row's scale, and what earlier sums shrink by (None: nothing).

        The scores may be overwritten.
        """

    def end(self, state: State) -> tuple[Tensor | None, Tensor | None]:
        """What the row's sum is multiplied with (None: nothing) and the row statistic."""
        return None, None

    @abstractmethod
    def weights(self, scores: Tensor, statistic: Tensor | None) -> Tensor:
        """The weights of any entries, given the statistic of their rows, differentiably."""

    def origin(self, statistic: Tensor) -> Tensor:
        """What `rebuilt` wants a row's scores measured from, if there is a statistic."""
        return statistic

    def rebuilt(self, scores: Tensor) -> Tensor:
        """The same as `weights`, for a backward pass: of scores less their row's origin, which may be overwritten."""
        return self.weights(scores, None)

    @abstractmethod
    def backward(self, weights: Tensor, gradient: Tensor) -> Tensor:
        """The gradient of the scores from that of the weights, which may be overwritten.

        With a statistic that of the weights comes less its row's level: the sum of weight times gradient, less the
        gradient of the statistic.
        """


@dataclass(frozen=True)
class Softmax(Streamed):
    """exp(s) / sum exp(s), measured from the row's maximum; the statistic is lse = log sum exp(s)."""

    name: ClassVar[str] = "softmax"
    statistic: ClassVar[str | None] = "lse"
    merges: ClassVar[bool] = True

    def dense(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        sees = (scores != -torch.inf).any(-1, keepdim=True)
        safe = torch.where(sees, scores, 0.0)  # a row of -inf has no softmax
        weights = torch.where(sees, torch.softmax(safe, dim=-1), 0.0)
        lse = torch.where(sees, torch.logsumexp(safe, dim=-1, keepdim=True), -torch.inf)
        return weights, lse.squeeze(-1)

    def begin(self, rows: Tensor) -> State:
        return rows + torch.finfo(rows.dtype).min, rows  # finite: before anything is seen, exp(-inf - top) is 0

    def step(self, state: State, scores: Tensor) -> tuple[State, Tensor, Tensor | None]:
        old_top, total = state
        top = torch.maximum(old_top, scores.amax(-1, keepdim=True))
        weights = self._exp_(scores.sub_(top))
        # the old sums were measured from a lower maximum; in float64, since torch's float32 exp2 rounds differently at
        # the end of a tensor, and a row must not depend on the rows beside it
        shrink = self._exp_(old_top.sub(top).double()).to(top.dtype)
        return (top, torch.addcmul(weights.sum(-1, keepdim=True), total, shrink)), weights, shrink

    def end(self, state: State) -> tuple[Tensor | None, Tensor | None]:
        top, total = state
        sees = total != 0.0  # the key at the maximum alone counts 1
        return torch.where(sees, 1.0 / total, 0.0), torch.where(sees, self._lse(top, total), -torch.inf)

    def weights(self, scores: Tensor, statistic: Tensor | None) -> Tensor:
        assert statistic is not None
        return torch.exp(scores - self.origin(statistic))

    def origin(self, statistic: Tensor) -> Tensor:
        return torch.where(statistic != -torch.inf, statistic, 0.0)

    def rebuilt(self, scores: Tensor) -> Tensor:
        return self._exp_(scores)

    def backward(self, weights: Tensor, gradient: Tensor) -> Tensor:
        return gradient.mul_(weights)

    def prescaled(self) -> tuple[Normaliser, float]:
        return _SoftmaxOfBits(), LOG2_E

    def _exp_(self, x: Tensor) -> Tensor:
        """exp(x) in place, by powers of two: torch's exp is 10 to 100 times slower where the result is 0 or nearly."""
        return x.mul_(LOG2_E).exp2_()

    def _lse(self, top: Tensor, total: Tensor) -> Tensor:
        return (top.double() + total.double().log()).to(top.dtype)  # rounded once


@dataclass(frozen=True)
class _SoftmaxOfBits(Softmax):
    """Softmax of scores that come multiplied by log2(e), so that exp(s) is 2^s."""

    def origin(self, statistic: Tensor) -> Tensor:
        return super().origin(statistic) * LOG2_E

    def _exp_(self, x: Tensor) -> Tensor:
        return x.exp2_()

    def _lse(self, top: Tensor, total: Tensor) -> Tensor:
        return ((top.double() + total.double().log2()) / LOG2_E).to(top.dtype)  # rounded once, not at each step


@dataclass(frozen=True)
class Sigmoid(Streamed):
    """1 / (1 + exp(-s)), each pair for itself; rows sum to anything."""

    name: ClassVar[str] = "sigmoid"

    def dense(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return torch.sigmoid(scores), None

    def step(self, state: State, scores: Tensor) -> tuple[State, Tensor, Tensor | None]:
        return state, scores.sigmoid_(), None

    def weights(self, scores: Tensor, statistic: Tensor | None) -> Tensor:
        return torch.sigmoid(scores)

    def backward(self, weights: Tensor, gradient: Tensor) -> Tensor:
        return gradient.mul_(weights * (1.0 - weights))


@dataclass(frozen=True)
class Relu(Streamed):
    """max(s, 0), each pair for itself."""

    name: ClassVar[str] = "relu"

    def dense(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return torch.relu(scores), None

    def step(self, state: State, scores: Tensor) -> tuple[State, Tensor, Tensor | None]:
        return state, scores.relu_(), None

    def weights(self, scores: Tensor, statistic: Tensor | None) -> Tensor:
        return torch.relu(scores)

    def backward(self, weights: Tensor, gradient: Tensor) -> Tensor:
        return gradient.mul_(weights > 0)
