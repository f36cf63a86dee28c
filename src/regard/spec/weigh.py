"""Weighings: how scores become weights. A weighing is a normaliser, a rule before it and a factor after it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.errors import SpecError
from regard.spec.feature import FeatureMap, Rows, as_features
from regard.spec.fit import one_each, one_or_each
from regard.spec.formula import Check, Formula, Start, written
from regard.spec.named import named, unnamed
from regard.spec.noise import uniform
from regard.spec.normaliser import Normaliser, Relu, Sigmoid, Softmax
from regard.spec.precision import fine
from regard.spec.regions import Lengths
from regard.spec.rule import Rule, written_rule
from regard.spec.term import constant
from regard.spec.threshold import Argmax, Entmax, Top

MAX_ITERATIONS = 10_000  # of Sinkhorn: far beyond any that changes the weights
Factor = Callable[[Tensor | None, int | Tensor], Tensor | float]


@dataclass(frozen=True, eq=False)
class Weigh:
    """How a row of scores becomes weights.

    `features` make the scores, if they are given; `rule` changes the scores; the `normaliser` runs in the engine, and
    depends on `parameter` if that is given; with several `iterations` columns are normalised in turn with the rows;
    `factor(statistic, n_k)` scales each row's weights afterwards: a number, or (batch, heads, n_q). `checks` refuse
    lengths that its tensors do not fit.
    """

    normaliser: Normaliser
    formula: str
    rule: Rule | None = None
    parameter: Formula | None = None
    iterations: int = 1
    factor: Factor | None = None
    checks: tuple[Check, ...] = ()
    features: FeatureMap | None = None
    named: ClassVar[Any] = None  # what it was made by; see `spec/named.py`

    def check(self, lengths: Lengths, start: Start) -> None:
        for check in self.checks:
            check(lengths, start)


@named
def softmax() -> Weigh:
    """exp(s) over the row's sum: weights are positive and sum to 1."""
    return Weigh(Softmax(), "softmax")


@named
@check_types
def sink(logit: float | Tensor = 0.0) -> Weigh:
    """Softmax with one more key of score `logit` and value zero, so that a row may sum to less than 1.

    exp(s) / (exp(logit) + sum exp(s)); 0 is softmax1. A tensor holds one number, or one a head, and may be learned.
    `lse` stays the one without the sink.
    """
    one_or_each(logit, "logit")
    level = torch.as_tensor(logit, dtype=None if isinstance(logit, Tensor) else torch.float64)
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
@check_types
def sigmoid(bias: float | Tensor = 0.0) -> Weigh:
    """1 / (1 + exp(-(s + bias))), each pair for itself. A bias near -log(n) starts rows at a sum near 1."""
    one_or_each(bias, "bias")
    if not isinstance(bias, Tensor) and bias == 0.0:
        return Weigh(Sigmoid(), "sigmoid")
    if isinstance(bias, Tensor) and bias.dim() == 1:
        checks = (one_each("a sigmoid bias", bias, 0, "heads"),)
        rule = written_rule(lambda s, h: s + bias[h], "s", "h", names=("shift",), checks=checks)
    else:
        rule = written_rule(lambda s: s + bias, "s", names=("shift",))
    return Weigh(Sigmoid(), "sigmoid", rule)


@named
@check_types
def relu(scale: float | Tensor | None = None) -> Weigh:
    """max(s, 0) · scale, each pair for itself; `scale=None` is 1/n_k, the number of keys.

    A tensor holds one number, or one a head, and may be learned.
    """
    one_or_each(scale, "scale")
    each = scale if isinstance(scale, Tensor) and scale.numel() != 1 else None
    checks = () if each is None else (one_each("relu scales", each, 0, "heads"),)
    return Weigh(Relu(), "relu / n" if scale is None else "relu · scale", factor=_Shared(scale), checks=checks)


@dataclass(frozen=True, eq=False)
class _Shared:
    """A factor that is given, or 1 over the number of keys."""

    scale: float | Tensor | None

    def __call__(self, statistic: Tensor | None, n_k: int | Tensor) -> Tensor | float:
        if isinstance(self.scale, Tensor):
            return self.scale.reshape(-1, 1) if self.scale.dim() else self.scale  # (heads, 1), over (batch, heads, n_q)
        if self.scale is not None:
            return self.scale
        return 1.0 / n_k.clamp(min=1).double() if isinstance(n_k, Tensor) else 1.0 / max(n_k, 1)


@named
def sparsemax() -> Weigh:
    """The nearest point to the scores among all weights that are not negative and sum to 1: few are not 0.

    max(s - tau, 0), with tau such that a row sums to 1; `statistic` is tau.

    >>> import regard
    >>> one, scores = torch.eye(1), torch.tensor([[-2.0], [0.0], [0.5]])
    >>> regard.attend(one, scores, scores, score=regard.score.dot(), weigh=sparsemax()).weights[0]
    tensor([0.0000, 0.2500, 0.7500])
    """
    return Weigh(Entmax(constant(1.0)), "sparsemax")


@named
@check_types
def entmax(alpha: float | Tensor = 1.5) -> Weigh:
    """Weights between softmax (alpha = 1) and sparsemax (alpha = 2): the larger alpha, the more of them are 0.

    max((alpha - 1) s - tau, 0)^(1 / (alpha - 1)), with tau such that a row sums to 1; `statistic` is tau. A tensor
    holds one alpha, or one a head, above 1, and may be learned.
    """
    if isinstance(alpha, Tensor):
        return _learned_entmax(alpha)
    if not 1.0 <= alpha <= 2.0:
        raise SpecError(f"alpha must be from 1 (softmax) to 2 (sparsemax); got {alpha}.")
    if alpha == 1.0:
        return Weigh(Softmax(), "softmax")
    if alpha == 2.0:
        return Weigh(Entmax(constant(1.0)), "sparsemax")
    factor = alpha - 1.0
    rule = written_rule(lambda s: s * factor, "s")
    return Weigh(Entmax(constant(1.0 / factor)), f"entmax of {alpha:g}", rule)


def _learned_entmax(alpha: Tensor) -> Weigh:
    if alpha.dim() > 1 or not alpha.is_floating_point():
        got = f"{alpha.dtype} of shape {tuple(alpha.shape)}"
        raise SpecError(f"alpha must be one number, or one a head, in floats; got {got}.")
    # it is used twice, and the gradients of both uses cancel: they are added before they are rounded
    alpha = fine(alpha)
    seen = alpha.detach()
    if alpha.device.type != "meta" and not bool(((seen > 1.0) & (seen <= 2.0)).all()):
        raise SpecError(
            f"every alpha must be above 1 and at most 2; got {seen.tolist()}. Softmax is weigh.softmax(); keep a "
            "learned alpha inside with torch.clamp or 1 + torch.sigmoid(x)."
        )
    checks = (one_each("alpha", alpha, 0, "heads"),) if alpha.numel() > 1 else ()

    def of(h: Any) -> Any:
        return alpha if alpha.dim() == 0 else alpha[h] if len(alpha) > 1 else alpha[0]

    rule = written_rule(lambda s, h: s * (of(h) - 1.0), "s", "h", names=("alpha",), checks=checks)
    power = written(lambda h: 1.0 / (of(h) - 1.0), "h", names=("alpha",))
    return Weigh(Entmax(constant(1.0)), "entmax", rule, power)


@named
@check_types
def top(k: int) -> Weigh:
    """Softmax over the k largest scores of each row; the others weigh nothing. All that equal the k-th are kept."""
    if k < 1:
        raise SpecError(f"top must keep at least 1 key; got {k}.")
    return Weigh(Top(k), f"softmax of the top {k}")


@named
def argmax() -> Weigh:
    """All weight on the largest score, the limit of softmax(c s) for c to infinity.

    Keys share it only where their scores are exactly equal in the precision computed. Gradients pass straight through:
    those of v see these weights, those of the scores see softmax's.
    """
    return Weigh(Argmax(), "argmax")


@named
@check_types
def gumbel(temperature: float = 1.0, *, seed: int = 0, hard: bool = True) -> Weigh:
    """One key drawn for each query, with the probabilities of softmax: the largest score after noise.

    The noise -log(-log u) is a function of the seed and the position alone. All weight lies on the key drawn; gradients
    pass straight through, as softmax's of the noisy scores over `temperature`. Without `hard` the weights are that
    softmax itself (Jang and others, Maddison and others, 2017).
    """
    if not temperature > 0:
        raise SpecError(f"temperature must be greater than 0; got {temperature}.")
    rule = written_rule(
        lambda s, b, h, i, j: (s - torch.log(-torch.log(uniform(seed, b, h, i, j)))) / temperature,
        *("s", "b", "h", "i", "j"),
    )
    return Weigh(Argmax() if hard else Softmax(), "gumbel argmax" if hard else "gumbel softmax", rule)


@named
def kernel(features: FeatureMap | Rows | None = None) -> Weigh:
    """φ(q)·φ(k) over the row's sum: the weights of linear attention, under any mask.

    `features` is one of `regard.feature`, or a function of rows that is never negative; None is elu. It takes the
    place of a score. Since φ(q)·φ(k) is exp of its logarithm, this is softmax of log φ(q)·φ(k), and `lse` the logarithm
    of the row's sum. `regard.mechanism.linear` gives the same answer in linear time, for causal masks or none.
    """
    phi = as_features(features)
    if phi.weighs_distance:
        rule = written_rule(lambda s, p, j: torch.log(s * phi.beside(p - j)), "s", "p", "j", names=("angle",))
    else:
        rule = written_rule(torch.log, "s")
    return Weigh(Softmax(), "softmax", rule, features=phi)


@named
@check_types
def sinkhorn(iterations: int = 5) -> Weigh:
    """Rows and columns of exp(s) normalised in turn: the more iterations, the more equal what each key receives.

    Rows come last, so that each sums to 1; one iteration is softmax. In the limit every column sums to n_q / n_k: the
    weights are doubly stochastic. A mask that leaves only the identity is refused, such as a causal one over as many
    queries as keys.
    """
    if not 1 <= iterations <= MAX_ITERATIONS:
        raise SpecError(f"sinkhorn must take from 1 to {MAX_ITERATIONS:,} iterations; got {iterations}.")
    return Weigh(Softmax(), f"sinkhorn of {iterations}", iterations=iterations)


def as_weigh(value: Any) -> Weigh:
    value = unnamed(value)
    if value is None:
        return Weigh(Softmax(), "softmax")
    if isinstance(value, Weigh):
        return value
    if isinstance(value, Normaliser):
        return Weigh(value, value.name)
    raise SpecError(f"weigh must be one of regard.weigh's, such as weigh.softmax(); got {type(value).__name__}.")
