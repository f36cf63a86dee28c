"""Row normalizers with a threshold per row, below which weights are zero: entmax, top-k and hardmax.

Given the threshold, each is the softmax of modified scores, so every backend that supports softmax and score modifiers
can compute it tile by tile:

    entmax    z = (alpha - 1) s,  p = 1 / (alpha - 1):   s' = p log(z - tau), since exp(s') = (z - tau)^p sums to 1
    topk      s' = s,   masked where s is below the k-th largest score
    hardmax   s' = 0,   masked where s is below the largest score
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regard.expr.ir import Expr, apply, constant, variable
from regard.normalizers.streaming import RowNormalizer, Softmax

_S, _NEGATIVE_INF = variable("s"), constant(-math.inf)
MAX_NEWTON_STEPS = 64  # a few suffice in practice


class ThresholdNormalizer(RowNormalizer):
    """A normalizer that equals the softmax of modified scores, given a threshold per row."""

    @abstractmethod
    def threshold(self, scores: Tensor, parameter: Tensor | None = None) -> Tensor:
        """Return the thresholds of complete rows, without gradients; the last dimension has size 1."""

    @abstractmethod
    def softmax_score_mod(self, threshold: Expr) -> Expr:
        """Return the modified score whose softmax gives the weights, as an expression of `s` and the threshold."""


@dataclass(frozen=True)
class Entmax(ThresholdNormalizer):
    """max(z - tau, 0)^exponent, with tau such that a row sums to 1. The scores are z = (alpha - 1) s.

    `exponent` is 1 / (alpha - 1): 1 gives sparsemax, and larger values approach softmax.
    """

    name: ClassVar[str] = "entmax"
    statistic: ClassVar[str | None] = "tau"

    exponent: Expr

    @property
    def parameter(self) -> Expr | None:
        return self.exponent

    def with_parameter(self, parameter: Expr) -> "Entmax":
        return Entmax(parameter)

    def normalize(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        assert parameter is not None
        tau = self.threshold(scores, parameter)
        is_empty = tau.isinf()
        tau = torch.where(is_empty, 0.0, tau)  # avoids NaN gradients
        for _ in range(2):  # steps of size 0 at the root: one carries the first derivative of tau, two carry the third
            tau = tau + _newton_step(scores, tau, parameter)
        above = scores > tau
        weights = torch.where(above, torch.where(above, scores - tau, 1.0) ** parameter, 0.0)
        weights = torch.where(tau.isnan(), torch.nan, weights)
        return torch.where(is_empty, 0.0, weights), torch.where(is_empty, torch.inf, tau).squeeze(-1)

    @torch.no_grad()
    def threshold(self, scores: Tensor, parameter: Tensor | None = None) -> Tensor:
        """Solve (sum max(z - tau, 0)^p)^(1/p) = 1 by Newton's method from below; a fully masked row gets inf.

        The norm is nearly linear in tau, so a few steps suffice. It is convex, so every step stays below the root.
        """
        assert parameter is not None
        if not scores.shape[-1]:
            return scores.new_full((*scores.shape[:-1], 1), torch.inf)
        row_max = scores.amax(-1, keepdim=True)
        tau = torch.where(row_max == -torch.inf, torch.inf, row_max - 1.0)  # the largest score alone has weight 1
        tau = torch.where(row_max == torch.inf, torch.nan, tau)
        tolerance = 4 * torch.finfo(scores.dtype).eps
        active = torch.ones_like(tau, dtype=torch.bool)
        for _ in range(MAX_NEWTON_STEPS):
            step = _newton_step(scores, tau, parameter)
            step = torch.where(active, step, 0.0)  # the result of a row must not depend on the other rows
            tau = tau + step
            active = step > tolerance * tau.abs().clamp(min=1.0)
            if not bool(active.any()):
                break
        return tau

    def softmax_score_mod(self, threshold: Expr) -> Expr:
        return _log_power(self.exponent, threshold)

    def slope_score_mod(self, threshold: Expr) -> Expr:
        """Return the modified score whose softmax is proportional to (z - tau)^(p - 1), the derivative of tau."""
        if isinstance(self.exponent.value, float):
            return _log_power(constant(self.exponent.value - 1.0), threshold)  # exact, without a float32 subtraction
        return _log_power(apply("sub", self.exponent, constant(1.0)), threshold)


def _log_power(exponent: Expr, threshold: Expr) -> Expr:
    """Return exponent · log(s - threshold) where s is above the threshold, and -inf elsewhere; NaN propagates.

    The logarithm is never taken at or below the threshold, where its derivative is infinite.
    """
    below = apply("le", _S, threshold)
    gap = apply("where", below, constant(1.0), apply("sub", _S, threshold))
    return apply("where", below, _NEGATIVE_INF, apply("mul", exponent, apply("log", gap)))


def _newton_step(scores: Tensor, tau: Tensor, exponent: Tensor) -> Tensor:
    """Return the Newton step from tau toward the threshold at which a row sums to 1; 0 for a fully masked row."""
    above = scores > tau
    gap = torch.where(above, scores - tau, 1.0)
    slopes = torch.where(above, gap ** (exponent - 1.0), 0.0)
    total, slope = (slopes * gap).sum(-1, keepdim=True), slopes.sum(-1, keepdim=True)
    is_empty = slope == 0.0
    total, slope = torch.where(is_empty, 1.0, total), torch.where(is_empty, 1.0, slope)
    step = (1.0 - total ** (-1.0 / exponent)) * total / slope
    return torch.where(torch.isnan(scores).any(-1, keepdim=True), torch.nan, torch.where(is_empty, 0.0, step))


@dataclass(frozen=True)
class TopK(ThresholdNormalizer):
    """Softmax over the k largest scores of a row and all scores equal to the k-th, in the computed precision."""

    name: ClassVar[str] = "topk"
    statistic: ClassVar[str | None] = "threshold"

    k: int

    def normalize(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        threshold = self.threshold(scores)
        weights, _ = Softmax().normalize(torch.where(scores < threshold, -torch.inf, scores))
        return weights, threshold.squeeze(-1)

    @torch.no_grad()
    def threshold(self, scores: Tensor, parameter: Tensor | None = None) -> Tensor:
        return _topk_threshold(scores, self.k)

    def softmax_score_mod(self, threshold: Expr) -> Expr:
        return apply("where", apply("lt", _S, threshold), _NEGATIVE_INF, _S)


@dataclass(frozen=True)
class Hardmax(ThresholdNormalizer):
    """All weight on the largest score of a row, shared equally by ties in the computed precision.

    The gradient is that of softmax (straight-through estimator), since the weights are piecewise constant.
    """

    name: ClassVar[str] = "hardmax"
    statistic: ClassVar[str | None] = "threshold"

    def normalize(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        threshold = self.threshold(scores)
        hard, _ = Softmax().normalize(torch.where(scores < threshold, -torch.inf, scores.detach() * 0.0))
        soft, _ = Softmax().normalize(scores)
        return hard + (soft - soft.detach()), threshold.squeeze(-1)

    @torch.no_grad()
    def threshold(self, scores: Tensor, parameter: Tensor | None = None) -> Tensor:
        return _topk_threshold(scores, 1)

    def softmax_score_mod(self, threshold: Expr) -> Expr:
        return apply("where", apply("lt", _S, threshold), _NEGATIVE_INF, apply("mul", _S, constant(0.0)))


def _topk_threshold(scores: Tensor, k: int) -> Tensor:
    """Return the midpoint between the k-th largest score and the next smaller one, so that ties lie above it.

    If there is no smaller score, the threshold is the smallest float32. NaN sorts above all numbers and makes the
    threshold NaN.
    """
    lowest = torch.finfo(torch.float32).min  # the same in every precision
    if scores.shape[-1] <= k:
        return scores.new_full((*scores.shape[:-1], 1), lowest)
    largest = scores.topk(k).values
    kth = largest[..., k - 1 :]
    following = torch.where(scores < kth, scores, -torch.inf).amax(-1, keepdim=True)
    midpoint = following + (kth - following) / 2.0
    threshold = torch.where(midpoint > following, midpoint, kth)  # adjacent floats have no midpoint
    threshold = torch.where(following == -torch.inf, lowest, threshold)
    return torch.where(largest[..., :1].isnan(), torch.nan, threshold)
