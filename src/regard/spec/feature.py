"""Feature maps: weights φ(q_i)·φ(k_j) that are never negative, so that one sum over keys can serve every query."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.argument_types import check_signature, check_types
from regard.checks import describe
from regard.errors import SpecError
from regard.spec.named import named, unnamed
from regard.spec.precision import fine
from regard.spec.score import Prepared, Score

MAX_NUMBERS = 2**25  # of random directions: 256 MB
MAX_WORK = 2**36  # rows times width squared: seconds

Rows = Callable[[Tensor], Tensor]


class FeatureMap(ABC):
    """φ for keys and, where that differs, for queries: functions of rows (..., length, width).

    A map that `weighs_distance` as well says how twice: `turned` puts positions into the features, and `beside` is what
    the product of two plain ones is multiplied with then.
    """

    formula: ClassVar[str]
    weighs_distance: ClassVar[bool] = False
    named: ClassVar[Any] = None  # what it was made by; see `spec/named.py`

    @abstractmethod
    def of_keys(self, x: Tensor) -> Tensor: ...

    def of_queries(self, x: Tensor) -> Tensor:
        return self.of_keys(x)

    def turned(self, features: Tensor, at: Tensor) -> Tensor:
        """Features that stand at the positions `at`, (length,)."""
        return features

    def beside(self, distance: Any) -> Any:
        """The factor of a weight at p - j."""
        raise NotImplementedError(f"the weights of {type(self).__name__} do not depend on the distance")


@dataclass(frozen=True, eq=False)
class Elu(FeatureMap):
    formula: ClassVar[str] = "φ(x) = elu(x) + 1"

    def of_keys(self, x: Tensor) -> Tensor:
        return torch.nn.functional.elu(x) + 1.0


@dataclass(frozen=True, eq=False)
class Relu(FeatureMap):
    formula: ClassVar[str] = "φ(x) = max(x, 0)"

    def of_keys(self, x: Tensor) -> Tensor:
        return torch.relu(x)


@dataclass(frozen=True, eq=False)
class Cosformer(FeatureMap):
    length: int
    formula: ClassVar[str] = "φ(x_i) = max(x, 0) (cos πi/2M, sin πi/2M)"
    weighs_distance: ClassVar[bool] = True

    def of_keys(self, x: Tensor) -> Tensor:
        return torch.relu(x)

    def turned(self, features: Tensor, at: Tensor) -> Tensor:
        angles = (at.to(features.dtype) * (math.pi / (2 * self.length))).unsqueeze(-1)
        return torch.cat((features * angles.cos(), features * angles.sin()), -1)

    def beside(self, distance: Any) -> Any:
        # a tensor, since numbers in rules are float32
        return torch.cos(distance * torch.tensor(math.pi / (2 * self.length), dtype=torch.float64))


@dataclass(frozen=True, eq=False)
class Favor(FeatureMap):
    directions: Tensor
    hyperbolic: bool
    formula: ClassVar[str] = "φ(x) = exp(ω·x - |x|²/2) / √m"

    def of_keys(self, x: Tensor) -> Tensor:
        return torch.exp(self._exponents(x)) / self._norm

    def of_queries(self, x: Tensor) -> Tensor:
        found = self._exponents(x)
        # a factor of a whole row cancels, and this one keeps long queries from weighing 0
        return torch.exp(found - found.detach().amax(-1, keepdim=True)) / self._norm

    def _exponents(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.directions.shape[-1]:
            raise SpecError(
                f"favor must have been made for the width of q and k; got features of width "
                f"{self.directions.shape[-1]} and rows of width {x.shape[-1]}."
            )
        x = x / x.shape[-1] ** 0.25
        along = x @ self.directions.to(x).mT
        both = torch.cat((along, -along), -1) if self.hyperbolic else along
        return both - x.square().sum(-1, keepdim=True) / 2.0

    @property
    def _norm(self) -> float:
        return math.sqrt(len(self.directions) * (2 if self.hyperbolic else 1))


@dataclass(frozen=True, eq=False)
class Given(FeatureMap):
    function: Rows
    formula: ClassVar[str] = "φ(x) as given"

    def of_keys(self, x: Tensor) -> Tensor:
        features = self.function(x)
        if not isinstance(features, Tensor) or features.shape[:-1] != x.shape[:-1]:
            raise SpecError(
                f"features must keep all dimensions of the rows but the last, {tuple(x.shape[:-1])}; got "
                f"{describe(features)}."
            )
        return features


@named
def elu() -> FeatureMap:
    """elu(x) + 1, the first one used (Katharopoulos and others, 2020)."""
    return Elu()


@named
def relu() -> FeatureMap:
    """max(x, 0): a query may see nothing, and gets 0 then."""
    return Relu()


@named
@check_types
def cosformer(length: int) -> FeatureMap:
    """max(x, 0), turned with the position: w_ij = relu(q_i)·relu(k_j) cos(π (i - j) / 2M), with M the length.

    Nearer is better. No two positions may lie more than M apart (Qin and others, 2022).
    """
    if length < 1:
        raise SpecError(f"cosformer must know a length of at least 1; got {length}.")
    return Cosformer(length)


@named
@check_types
def favor(width: int, features: int | None = None, *, seed: int = 0, hyperbolic: bool = False) -> FeatureMap:
    """Random features whose product is exp(q·k/√d) on average, and never negative (Choromanski and others, 2021).

    φ(x) = exp(ω·x - |x|²/2) / √m for x = q / d^(1/4), with m directions ω drawn by `seed`: orthogonal in blocks of d,
    each as long as a normal vector. `hyperbolic` takes exp(-ω·x) as well, for less variance. The error falls as
    m^(-1/2); m is d log d unless it is given.
    """
    count = max(1, round(width * math.log(max(width, 2)))) if features is None else features
    if width < 1 or count < 1:
        raise SpecError(f"favor must have a width and features of at least 1; got {width} and {count}.")
    work = -(-count // width) * width**3  # of making blocks of directions orthogonal
    if work > MAX_WORK or count * width > MAX_NUMBERS:
        raise SpecError(
            f"favor must have at most {MAX_NUMBERS} numbers in its directions and take at most {MAX_WORK} operations "
            f"to make them orthogonal; got {count} features of width {width}. Use fewer features, or a smaller width."
        )
    return Favor(orthogonal(width, count, torch.Generator().manual_seed(seed)), hyperbolic)


def orthogonal(width: int, count: int, numbers: torch.Generator) -> Tensor:
    """`count` directions as long as normal vectors, orthogonal in blocks of `width`, each block drawn evenly."""
    blocks: list[Tensor] = []
    for first in range(0, count, width):
        square = torch.randn(width, width, generator=numbers, dtype=torch.float64)
        q, r = torch.linalg.qr(square)
        # LAPACK's Q leans to one side; with the signs of R's diagonal it does not
        blocks.append((q * r.diagonal().sign()).mT[: count - first])
    normal = torch.randn(count, width, generator=numbers, dtype=torch.float64)
    lengths: Tensor = torch.linalg.vector_norm(normal, dim=-1, keepdim=True)
    return torch.cat(blocks) * lengths


def as_features(value: Any) -> FeatureMap:
    """A feature map from one, or from a function of rows; None is elu."""
    value = unnamed(value)
    if value is None:
        return Elu()
    if isinstance(value, FeatureMap):
        return value
    if callable(value):
        return Given(check_signature(value, "features", "rows"))
    raise SpecError(
        f"features must be one of regard.feature's or a function of rows, never negative; got {type(value).__name__}."
    )


@dataclass(frozen=True, eq=False)
class Kernel(Score):
    """φ(q)·φ(k), a product like any other."""

    features: FeatureMap = None  # type: ignore[assignment]  # always given

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        return Prepared(self.features.of_queries(fine(q)), self.features.of_keys(fine(k)))

    def prepared_width(self, width: int) -> int:
        return int(self.features.of_keys(torch.empty(1, 1, 0, width)).shape[-1])

    def formula(self) -> str:
        return "φ(q)·φ(k)"
