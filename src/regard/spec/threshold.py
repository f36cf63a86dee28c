"""Normalisers that must know a whole row first: its level, one number. What lies below the level weighs nothing.

Given the level, each is softmax of changed scores, so that any engine which knows softmax and rules can stream it:

    entmax    z = (alpha - 1) s,  p = 1 / (alpha - 1):   s' = p log(z - tau), since exp(s') = (z - tau)^p sums to 1
    top k     s' = s,   hidden where s is below the k-th largest
    argmax    s' = 0,   hidden where s is below the largest
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regard.spec.normaliser import Normaliser, Softmax
from regard.spec.term import Term, apply, constant, variable

_S, _NOTHING = variable("s"), constant(-math.inf)
STEPS = 64  # of Newton's method, of which a few are ever taken


class Thresholded(Normaliser):
    """`level` finds a row's number, and `lowered` is the rule that makes it softmax."""

    @abstractmethod
    def level(self, scores: Tensor, parameter: Tensor | None = None) -> Tensor:
        """The level of whole rows, without a gradient: a last dimension of 1."""

    @abstractmethod
    def lowered(self, level: Term) -> Term:
        """How a score changes, given its row's level."""


@dataclass(frozen=True)
class Entmax(Thresholded):
    """(z - tau)^power where z is above tau, with tau such that a row sums to 1. The scores come as z = (alpha - 1) s.

    `power` is 1 / (alpha - 1): 1 is sparsemax, and the larger it is, the nearer to softmax.
    """

    name: ClassVar[str] = "entmax"
    statistic: ClassVar[str | None] = "tau"

    power: Term

    @property
    def parameter(self) -> Term | None:
        return self.power

    def given(self, parameter: Term) -> "Entmax":
        return Entmax(parameter)

    def dense(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        assert parameter is not None
        tau = self.level(scores, parameter)
        nothing = tau.isinf()
        tau = torch.where(nothing, 0.0, tau)  # inf has no derivative
        for _ in range(2):  # steps from where they lead nowhere: one carries the first derivative, two the third
            tau = tau + _step(scores, tau, parameter)
        above = scores > tau
        weights = torch.where(above, torch.where(above, scores - tau, 1.0) ** parameter, 0.0)
        weights = torch.where(tau.isnan(), torch.nan, weights)
        return torch.where(nothing, 0.0, weights), torch.where(nothing, torch.inf, tau).squeeze(-1)

    @torch.no_grad()
    def level(self, scores: Tensor, parameter: Tensor | None = None) -> Tensor:
        """Newton's method on the norm (sum (z - tau)^p)^(1/p) = 1, from below: nearly linear, so a few steps do.

        Each step stays below the root, since the norm is convex. inf where nothing is seen.
        """
        assert parameter is not None
        if not scores.shape[-1]:
            return scores.new_full((*scores.shape[:-1], 1), torch.inf)
        top = scores.amax(-1, keepdim=True)
        tau = torch.where(top == -torch.inf, torch.inf, top - 1.0)  # the largest alone would weigh 1
        tau = torch.where(top == torch.inf, torch.nan, tau)
        close = 4 * torch.finfo(scores.dtype).eps
        moves = torch.ones_like(tau, dtype=torch.bool)
        for _ in range(STEPS):
            step = _step(scores, tau, parameter)
            step = torch.where(moves, step, 0.0)  # no row waits for another, or its bits would change
            tau = tau + step
            moves = step > close * tau.abs().clamp(min=1.0)
            if not bool(moves.any()):
                break
        return tau

    def lowered(self, level: Term) -> Term:
        return _powers(self.power, level)

    def beside(self, level: Term) -> Term:
        """The rule whose softmax has the weights (z - tau)^(p - 1), to which changes of tau are shared out."""
        if isinstance(self.power.value, float):
            return _powers(constant(self.power.value - 1.0), level)  # a number by itself keeps all its digits
        return _powers(apply("sub", self.power, constant(1.0)), level)


def _powers(power: Term, level: Term) -> Term:
    """log (s - level)^power where s is above the level, hidden elsewhere; NaN where either is.

    The logarithm of what is not above is never taken: its slope would be infinite.
    """
    below = apply("le", _S, level)
    gap = apply("where", below, constant(1.0), apply("sub", _S, level))
    return apply("where", below, _NOTHING, apply("mul", power, apply("log", gap)))


def _step(scores: Tensor, tau: Tensor, power: Tensor) -> Tensor:
    """From tau towards the level at which a row sums to 1; 0 where nothing is seen."""
    above = scores > tau
    gap = torch.where(above, scores - tau, 1.0)
    below = torch.where(above, gap ** (power - 1.0), 0.0)
    total, slope = (below * gap).sum(-1, keepdim=True), below.sum(-1, keepdim=True)
    empty = slope == 0.0
    total, slope = torch.where(empty, 1.0, total), torch.where(empty, 1.0, slope)
    step = (1.0 - total ** (-1.0 / power)) * total / slope
    return torch.where(torch.isnan(scores).any(-1, keepdim=True), torch.nan, torch.where(empty, 0.0, step))


@dataclass(frozen=True)
class Top(Thresholded):
    """Softmax over the k largest scores of a row, and those that equal the k-th in the precision computed."""

    name: ClassVar[str] = "top"
    statistic: ClassVar[str | None] = "threshold"

    k: int

    def dense(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        level = self.level(scores)
        weights, _ = Softmax().dense(torch.where(scores < level, -torch.inf, scores))
        return weights, level.squeeze(-1)

    @torch.no_grad()
    def level(self, scores: Tensor, parameter: Tensor | None = None) -> Tensor:
        return _kth(scores, self.k)

    def lowered(self, level: Term) -> Term:
        return apply("where", apply("lt", _S, level), _NOTHING, _S)


@dataclass(frozen=True)
class Argmax(Thresholded):
    """All weight on the largest score of a row, shared by those that equal it in the precision computed.

    Its gradient is that of softmax (straight through): the weights themselves change nowhere or at once.
    """

    name: ClassVar[str] = "argmax"
    statistic: ClassVar[str | None] = "threshold"

    def dense(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        level = self.level(scores)
        hard, _ = Softmax().dense(torch.where(scores < level, -torch.inf, scores.detach() * 0.0))
        soft, _ = Softmax().dense(scores)
        return hard + (soft - soft.detach()), level.squeeze(-1)

    @torch.no_grad()
    def level(self, scores: Tensor, parameter: Tensor | None = None) -> Tensor:
        return _kth(scores, 1)

    def lowered(self, level: Term) -> Term:
        return apply("where", apply("lt", _S, level), _NOTHING, apply("mul", _S, constant(0.0)))


def _kth(scores: Tensor, k: int) -> Tensor:
    """Half-way between the k-th largest score and the largest one below it: all that equal the k-th lie above.

    The least number there is where nothing lies below. A NaN is the largest of all, and makes the level NaN.
    """
    least = torch.finfo(torch.float32).min  # the same in every precision
    if scores.shape[-1] <= k:
        return scores.new_full((*scores.shape[:-1], 1), least)
    largest = scores.topk(k).values
    last = largest[..., k - 1 :]
    following = torch.where(scores < last, scores, -torch.inf).amax(-1, keepdim=True)
    middle = following + (last - following) / 2.0
    level = torch.where(middle > following, middle, last)  # nothing lies between two numbers next to each other
    level = torch.where(following == -torch.inf, least, level)
    return torch.where(largest[..., :1].isnan(), torch.nan, level)
