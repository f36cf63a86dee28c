"""Row normalizers with a threshold per row, below which weights are zero: entmax, top-k and hardmax.

Given the threshold, each is the softmax of modified scores, so every backend that supports softmax and score modifiers
can compute it tile by tile:

    entmax    z = (alpha - 1) s,  p = 1 / (alpha - 1):   s' = p log(z - tau), since exp(s') = (z - tau)^p sums to 1
    topk      s' = s,   masked where s is below the k-th largest score
    hardmax   s' = 0,   masked where s is below the largest score
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.expr.ir import Expr, apply, constant, variable
from regard.normalizers.streaming import RowNormalizer, Softmax
from regard.stage_spec import QUERY_AXES, SCALAR_AXES, StageSpec, StageSpecs

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


def entmax_threshold(variables: Mapping[str, Any]) -> Tensor:
    """Return the threshold of each row; `parameter` is the exponent of each head."""
    threshold = Entmax(constant(1.0)).normalize(variables["scores"], variables["parameter"].reshape(-1, 1, 1))[1]
    assert threshold is not None
    return threshold


TAU = StageSpec(
    "tau",
    "the threshold of each query, such that its weights sum to 1",
    "τ_i with Σ_j a_ij = 1",
    r"\tau_i : \sum_j a_{ij} = 1",
    QUERY_AXES,
    value=entmax_threshold,
)
ABOVE_TAU_STAGES = (
    StageSpec(
        "support",
        "which keys lie above the threshold: only these have a weight above 0",
        "s_ij > τ_i",
        r"s_{ij} > \tau_i",
        code="scores > tau[:, None]",
    ),
    StageSpec(
        "above tau",
        "the difference to the threshold, and 0 below it",
        "max(s_ij - τ_i, 0)",
        r"\max(s_{ij} - \tau_i, 0)",
        code="torch.where(support, scores - tau[:, None], 0.0)",
    ),
)
# tau = (sum of the c largest scores - 1) / c, for the largest c whose scores all exceed tau
SPARSEMAX_TAU_CODE = """ordered = scores.sort(-1, descending=True).values
sums = ordered.cumsum(-1)
count = (1.0 + (1 + torch.arange(n_k)) * ordered > sums).sum(-1, keepdim=True)
((sums.gather(-1, count - 1) - 1.0) / count).squeeze(-1)"""
SPARSEMAX_STAGES = (
    TAU._replace(code=SPARSEMAX_TAU_CODE, finite_only=True),
    *ABOVE_TAU_STAGES,
    StageSpec(
        "weights",
        "the difference to the threshold",
        "a_ij = max(s_ij - τ_i, 0)",
        r"a_{ij} = \max(s_{ij} - \tau_i, 0)",
        code="above_tau",
        value="torch.where(torch.isnan(tau)[:, None], nan, above_tau)",
        finite_only=True,
    ),
)


@dataclass(frozen=True)
class Entmax(ThresholdNormalizer):
    """max(z - tau, 0)^exponent, with tau such that a row sums to 1. The scores are z = (alpha - 1) s.

    `exponent` is 1 / (alpha - 1): 1 gives sparsemax, and larger values approach softmax.
    """

    name: ClassVar[str] = "entmax"
    statistic: ClassVar[str | None] = "tau"
    stages: ClassVar[StageSpecs] = (
        TAU,
        *ABOVE_TAU_STAGES,
        StageSpec(
            "exponent",
            "the exponent of entmax",
            "p = 1 / (α - 1)",
            r"p = \frac{1}{\alpha - 1}",
            SCALAR_AXES,
            value="parameter",
        ),
        StageSpec(
            "weights",
            "the difference to the threshold, to the power of 1 / (α - 1)",
            "a_ij = max(s_ij - τ_i, 0)^p",
            r"a_{ij} = \max(s_{ij} - \tau_i, 0)^p",
            code="above_tau ** exponent",
            value="torch.where(torch.isnan(tau)[:, None], nan, above_tau ** exponent)",
            finite_only=True,
        ),
    )

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


def topk_threshold(variables: Mapping[str, Any]) -> Tensor:
    """Return a number between the k largest scores of each row and the others; `k` defaults to 1."""
    return _topk_threshold(variables["scores"], variables.get("k", 1)).squeeze(-1)


@dataclass(frozen=True)
class TopK(ThresholdNormalizer):
    """Softmax over the k largest scores of a row and all scores equal to the k-th, in the computed precision."""

    name: ClassVar[str] = "topk"
    statistic: ClassVar[str | None] = "threshold"
    stages: ClassVar[StageSpecs] = (
        StageSpec(
            "threshold",
            "a number between the $k largest scores of a row and the others; ties stay above it",
            "t_i",
            "t_i",
            QUERY_AXES,
            value=topk_threshold,
        ),
        StageSpec(
            "top-k scores",
            "the $k largest scores of each row; the others are hidden",
            "s_ij where s_ij ≥ t_i, -∞ elsewhere",
            r"s_{ij} \text{ where } s_{ij} \geq t_i, -\infty \text{ elsewhere}",
            code="torch.where(scores < threshold[:, None], -inf, scores)",
        ),
        *(spec.with_variables({"scores": "top_k_scores"}) for spec in Softmax.stages),
    )

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


HARDMAX_CODE = "largest / largest.double().sum(-1).clamp(min=1.0)[:, None]"


@dataclass(frozen=True)
class Hardmax(ThresholdNormalizer):
    """All weight on the largest score of a row, shared equally by ties in the computed precision.

    The gradient is that of softmax (straight-through estimator), since the weights are piecewise constant.
    """

    name: ClassVar[str] = "hardmax"
    statistic: ClassVar[str | None] = "threshold"
    stages: ClassVar[StageSpecs] = (
        StageSpec(
            "threshold",
            "a number between the largest score of a row and the next",
            "t_i",
            "t_i",
            QUERY_AXES,
            value=topk_threshold,
        ),
        StageSpec(
            "largest", "which keys score highest", "s_ij ≥ t_i", r"s_{ij} \geq t_i", code="scores >= threshold[:, None]"
        ),
        StageSpec(
            "weights",
            "all weight on the largest score; keys that tie share it",
            "a_ij = 1 / number of the largest",
            r"a_{ij} = \frac{[s_{ij} \geq t_i]}{\sum_l [s_{il} \geq t_i]}",
            code=HARDMAX_CODE,
            value=f"{HARDMAX_CODE} + 0.0 * scores.amax(-1).clamp(min=0.0)[:, None]",  # nan if a score is nan or inf
            finite_only=True,
        ),
    )

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
