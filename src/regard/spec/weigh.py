"""Weighings: how scores become weights. A weighing is a normaliser, a rule before it and a factor after it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.errors import SpecError
from regard.spec.fit import one_each
from regard.spec.formula import Check, Start
from regard.spec.named import named, unnamed
from regard.spec.normaliser import Normaliser, Relu, Sigmoid, Softmax
from regard.spec.regions import Lengths
from regard.spec.rule import Rule, written_rule

Factor = Callable[[Tensor | None, int | Tensor], Tensor | float]


@dataclass(frozen=True, eq=False)
class Weigh:
    """How a row of scores becomes weights.

    `rule` changes the scores first; the `normaliser` runs in the engine; `factor(statistic, n_k)` scales each row's
    weights afterwards: a number, or (batch, heads, n_q). `checks` refuse lengths that its tensors do not fit.
    """

    normaliser: Normaliser
    formula: str
    rule: Rule | None = None
    factor: Factor | None = None
    checks: tuple[Check, ...] = ()
    named: ClassVar[Any] = None  # what it was made by; see `spec/named.py`

    def check(self, lengths: Lengths, start: Start) -> None:
        for check in self.checks:
            check(lengths, start)


@named
def softmax() -> Weigh:
    """exp(s) over the row's sum: weights are positive and sum to 1."""
    return Weigh(Softmax(), "softmax")


@named
def sink(logit: float | Tensor = 0.0) -> Weigh:
    """Softmax with one more key of score `logit` and value zero, so that a row may sum to less than 1.

    exp(s) / (exp(logit) + sum exp(s)); 0 is softmax1. A tensor holds one number, or one a head, and may be learned.
    `lse` stays the one without the sink.
    """
    level = torch.as_tensor(logit, dtype=None if isinstance(logit, Tensor) else torch.float64)
    if level.dim() > 1:
        raise SpecError(f"a sink logit must be one number, or one a head; got shape {tuple(level.shape)}.")
    checks = () if level.numel() == 1 else (one_each("sink logits", level, 0, "heads"),)
    return Weigh(Softmax(), "softmax with a sink", factor=_Sink(level), checks=checks)


@dataclass(frozen=True, eq=False)
class _Sink:
    """The share that the sink leaves to the keys: sigmoid(lse - logit)."""

    logit: Tensor

    def __call__(self, lse: Tensor | None, n_k: int | Tensor) -> Tensor:
        assert lse is not None
        # sigmoid's own derivative y (1 - y) would cancel where y is near 1
        return torch.exp(torch.nn.functional.logsigmoid(lse - self.logit.reshape(-1, 1).to(lse)))


@named
def sigmoid(bias: float | Tensor = 0.0) -> Weigh:
    """1 / (1 + exp(-(s + bias))), each pair for itself. A bias near -log(n) starts rows at a sum near 1."""
    if not isinstance(bias, Tensor) and bias == 0.0:
        return Weigh(Sigmoid(), "sigmoid")
    if isinstance(bias, Tensor) and bias.dim() == 1:
        checks = (one_each("a sigmoid bias", bias, 0, "heads"),)
        rule = written_rule(lambda s, h: s + bias[h], "s", "h", names=("shift",), checks=checks)
    else:
        rule = written_rule(lambda s: s + bias, "s", names=("shift",))
    return Weigh(Sigmoid(), "sigmoid", rule)


@named
def relu(scale: float | Tensor | None = None) -> Weigh:
    """max(s, 0) · scale, each pair for itself; `scale=None` is 1/n_k, the number of keys."""
    return Weigh(Relu(), "relu / n" if scale is None else "relu · scale", factor=_Shared(scale))


@dataclass(frozen=True, eq=False)
class _Shared:
    """A factor that is given, or 1 over the number of keys."""

    scale: float | Tensor | None

    def __call__(self, statistic: Tensor | None, n_k: int | Tensor) -> Tensor | float:
        if self.scale is not None:
            return self.scale
        return 1.0 / n_k.clamp(min=1).double() if isinstance(n_k, Tensor) else 1.0 / max(n_k, 1)


def as_weigh(value: Any) -> Weigh:
    value = unnamed(value)
    if value is None:
        return Weigh(Softmax(), "softmax")
    if isinstance(value, Weigh):
        return value
    if isinstance(value, Normaliser):
        return Weigh(value, value.name)
    raise SpecError(f"weigh must be one of regard.weigh's, such as weigh.softmax(); got {type(value).__name__}.")
