"""Feature maps φ of linear attention: weights φ(q_i)·φ(k_j) that are never negative.

A feature map is passed to `normalizer.kernel` (any mask, quadratic time) or to `regard.mechanisms.linear` (causal mask
or none, linear time). A function (..., length, head_dim) -> (..., length, features) with nonnegative results works too.

>>> import regard
>>> from regard import feature_map, normalizer
>>> x = torch.randn(2, 8, 16, 64)
>>> regard.attention(x, x, x, normalizer=normalizer.kernel(feature_map.favor(64))).shape
torch.Size([2, 8, 16, 64])
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from regard.argument_types import UNCHECKED, check_signature, check_types
from regard.checks import describe
from regard.errors import ArgumentError
from regard.expr.serialize import materialize, serializable
from regard.score import ProductInputs, Score
from regard.stage_spec import StageSpec, StageSpecs, rename
from regard.tensors.precision import upcast

__all__ = ["FeatureMap", "FeatureMapLike", "cosformer", "elu", "favor", "relu"]


def __dir__() -> list[str]:
    return sorted(__all__)


MAX_DIRECTIONS_NUMEL = 2**25  # of random directions: 256 MB
MAX_QR_FLOPS = 2**36  # of orthogonalizing the directions: a few seconds

RowFunction = Callable[[Tensor], Tensor]


class FeatureMap(ABC):
    """A feature map φ of rows (..., length, head_dim), for keys and for queries.

    A map that `depends_on_distance` implements two equivalent forms: `encode_positions` puts positions into the
    features (for linear time), and `distance_factor` multiplies the product of two rows without positions.
    """

    formula: ClassVar[str]
    code: ClassVar[str] = ""  # a torch expression of x that `regard.steps` shows; if empty, it shows numbers
    depends_on_distance: ClassVar[bool] = False
    cancels_query_factor: ClassVar[bool] = False  # whether `map_queries` leaves out a factor of each row
    constructor_call: ClassVar[Any] = None  # how to construct it again; see `expr/serialize.py`

    @abstractmethod
    def map_keys(self, x: Tensor) -> Tensor:
        """Return φ(x) of keys, (..., length, head_dim) -> (..., length, features)."""

    def map_queries(self, x: Tensor) -> Tensor:
        """Return φ(x) of queries; by default that of keys."""
        return self.map_keys(x)

    def encode_positions(self, features: Tensor, positions: Tensor) -> Tensor:
        """Return the features (..., length, features) with their `positions` (length,) encoded."""
        return features

    def distance_factor(self, distance: Tensor) -> Tensor:
        """Return the factor of φ(q)·φ(k) for the distance p - j."""
        raise NotImplementedError(f"the weights of {type(self).__name__} do not depend on the distance")


FeatureMapLike: TypeAlias = Annotated[FeatureMap | RowFunction, UNCHECKED]
"""A feature map, or a function that maps rows of shape (..., n, d) to features of shape (..., n, m)."""


@dataclass(frozen=True, eq=False)
class EluFeatureMap(FeatureMap):
    formula: ClassVar[str] = "φ(x) = elu(x) + 1"
    code: ClassVar[str] = "torch.nn.functional.elu(x) + 1.0"

    def map_keys(self, x: Tensor) -> Tensor:
        return torch.nn.functional.elu(x) + 1.0


@dataclass(frozen=True, eq=False)
class ReluFeatureMap(FeatureMap):
    formula: ClassVar[str] = "φ(x) = max(x, 0)"
    code: ClassVar[str] = "torch.relu(x)"

    def map_keys(self, x: Tensor) -> Tensor:
        return torch.relu(x)


@dataclass(frozen=True, eq=False)
class CosformerFeatureMap(FeatureMap):
    max_len: int
    formula: ClassVar[str] = "φ(x_i) = max(x, 0) (cos πi/2M, sin πi/2M)"
    depends_on_distance: ClassVar[bool] = True

    def map_keys(self, x: Tensor) -> Tensor:
        return torch.relu(x)

    def encode_positions(self, features: Tensor, positions: Tensor) -> Tensor:
        angles = (positions.to(features.dtype) * (math.pi / (2 * self.max_len))).unsqueeze(-1)
        return torch.cat((features * angles.cos(), features * angles.sin()), -1)

    def distance_factor(self, distance: Tensor) -> Tensor:
        # a tensor, because constants in score modifiers are float32
        return torch.cos(distance * torch.tensor(math.pi / (2 * self.max_len), dtype=torch.float64))


@dataclass(frozen=True, eq=False)
class FavorFeatureMap(FeatureMap):
    directions: Tensor
    hyperbolic: bool
    formula: ClassVar[str] = "φ(x) = exp(ω·x - |x|²/2) / √m"
    cancels_query_factor: ClassVar[bool] = True

    def map_keys(self, x: Tensor) -> Tensor:
        return torch.exp(self._exponents(x)) / self._norm

    def map_queries(self, x: Tensor) -> Tensor:
        exponents = self._exponents(x)
        # a factor of a whole row cancels in the normalization; this one avoids underflow for long queries
        return torch.exp(exponents - exponents.detach().amax(-1, keepdim=True)) / self._norm

    def _exponents(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.directions.shape[-1]:
            raise ArgumentError(
                f"head_dim of favor must be the head dimension of q and k; got head_dim="
                f"{self.directions.shape[-1]} and rows of dimension {x.shape[-1]}."
            )
        x = x / x.shape[-1] ** 0.25
        projections = x @ self.directions.to(x).mT
        if self.hyperbolic:
            projections = torch.cat((projections, -projections), -1)
        return projections - x.square().sum(-1, keepdim=True) / 2.0

    @property
    def _norm(self) -> float:
        return math.sqrt(len(self.directions) * (2 if self.hyperbolic else 1))


@dataclass(frozen=True, eq=False)
class CustomFeatureMap(FeatureMap):
    function: RowFunction
    formula: ClassVar[str] = "φ(x) of a function"

    def map_keys(self, x: Tensor) -> Tensor:
        features = self.function(x)
        if not isinstance(features, Tensor) or features.shape[:-1] != x.shape[:-1]:
            raise ArgumentError(
                f"a feature map must keep all dimensions but the last, {tuple(x.shape[:-1])}; got {describe(features)}."
            )
        return features


@serializable
def elu() -> FeatureMap:
    """Return φ(x) = elu(x) + 1, the map of the linear transformer (Katharopoulos et al., 2020).

    >>> elu().map_keys(torch.tensor([[-1.0, 0.0, 1.0]]))
    tensor([[0.3679, 1.0000, 2.0000]])
    """
    return EluFeatureMap()


@serializable
def relu() -> FeatureMap:
    """Return φ(x) = max(x, 0). A query whose product with every key is 0 gets the output 0.

    >>> relu().map_keys(torch.tensor([[-1.0, 0.0, 1.0]]))
    tensor([[0., 0., 1.]])
    """
    return ReluFeatureMap()


@serializable
@check_types
def cosformer(max_len: int) -> FeatureMap:
    """Return the map of cosFormer (Qin et al., 2022): relu(q_i)·relu(k_j) cos(π (i - j) / 2M).

    Near keys get more weight. M = `max_len` must be at least the largest distance between two positions.

    >>> round(float(cosformer(8).distance_factor(torch.tensor(4))), 4)
    0.7071
    """
    if max_len < 1:
        raise ArgumentError(f"max_len must be at least 1; got {max_len}.")
    return CosformerFeatureMap(max_len)


@serializable
@check_types
def favor(head_dim: int, num_features: int | None = None, *, seed: int = 0, hyperbolic: bool = False) -> FeatureMap:
    """Return the positive random features of FAVOR+ (Performer, Choromanski et al., 2021).

    φ(x) = exp(ω·x - |x|²/2) / √m for x = q / d^(1/4). The expectation of φ(q)·φ(k) is exp(q·k/√d), so that attention
    approximates softmax attention with an error proportional to m^(-1/2). The m random directions ω are orthogonal in
    blocks of d, with the norms of normal vectors.

    Args:
        head_dim: Head dimension d of q and k.
        num_features: Number m of directions. Default: d log d, rounded.
        seed: Seed of the directions. Default: 0.
        hyperbolic: Whether to add exp(-ω·x - |x|²/2) for each direction, which has less variance. Default: False.

    >>> favor(64, 256).map_keys(torch.randn(10, 64)).shape
    torch.Size([10, 256])
    """
    num_directions = max(1, round(head_dim * math.log(max(head_dim, 2)))) if num_features is None else num_features
    if head_dim < 1 or num_directions < 1:
        raise ArgumentError(
            f"head_dim and num_features must be at least 1; got head_dim={head_dim}, num_features={num_directions}."
        )
    qr_flops = -(-num_directions // head_dim) * head_dim**3
    if qr_flops > MAX_QR_FLOPS or num_directions * head_dim > MAX_DIRECTIONS_NUMEL:
        raise ArgumentError(
            f"favor must have at most {MAX_DIRECTIONS_NUMEL} numbers in its directions and take at most {MAX_QR_FLOPS} "
            f"operations to make them orthogonal; got head_dim={head_dim}, num_features={num_directions}. "
            "Use fewer features or a smaller head_dim."
        )
    generator = torch.Generator().manual_seed(seed)
    return FavorFeatureMap(orthogonal_directions(head_dim, num_directions, generator), hyperbolic)


def orthogonal_directions(head_dim: int, num_directions: int, generator: torch.Generator) -> Tensor:
    """Return random directions (num_directions, head_dim), orthogonal in blocks of `head_dim`.

    Each block is uniform among orthogonal matrices; each row has the norm of a normal vector.
    """
    blocks: list[Tensor] = []
    for first in range(0, num_directions, head_dim):
        square = torch.randn(head_dim, head_dim, generator=generator, dtype=torch.float64)
        q, r = torch.linalg.qr(square)
        # the Q of LAPACK is not uniform; with the signs of R's diagonal it is
        blocks.append((q * r.diagonal().sign()).mT[: num_directions - first])
    normal = torch.randn(num_directions, head_dim, generator=generator, dtype=torch.float64)
    norms: Tensor = torch.linalg.vector_norm(normal, dim=-1, keepdim=True)
    return torch.cat(blocks) * norms


def as_feature_map(value: Any) -> FeatureMap:
    """Convert a feature map, a function of rows or None (`elu()`) to a `FeatureMap`."""
    value = materialize(value)
    if value is None:
        return EluFeatureMap()
    if isinstance(value, FeatureMap):
        return value
    if callable(value):
        return CustomFeatureMap(check_signature(value, "feature_map", "rows"))
    raise ArgumentError(
        "feature_map must be a map of regard.feature_map or a function of rows with nonnegative results; "
        f"got {type(value).__name__}."
    )


@dataclass(frozen=True, eq=False)
class FeatureMapScore(Score):
    """φ(q)·φ(k): the dot product of features."""

    feature_map: FeatureMap = None  # type: ignore[assignment]  # required; a default must follow score_mod

    def prepare(self, q: Tensor, k: Tensor) -> ProductInputs:
        return ProductInputs(self.feature_map.map_queries(upcast(q)), self.feature_map.map_keys(upcast(k)))

    def product_dim(self, head_dim: int) -> int:
        return int(self.feature_map.map_keys(torch.empty(1, 1, 0, head_dim)).shape[-1])

    def formula(self) -> str:
        return "φ(q)·φ(k)"

    def stage_specs(self) -> StageSpecs:
        phi = self.feature_map
        products = StageSpec(
            "products",
            "the dot product of the features of each query and each key, never negative",
            "w_ij = φ(q_i) · φ(k_j)",
            r"w_{ij} = \varphi(q_i)^\top \varphi(k_j)",
            code="features_of_q @ features_of_k.mT",
        )
        return (
            self._feature_stage("q", "query", phi.map_queries, phi.cancels_query_factor),
            self._feature_stage("k", "key", phi.map_keys, False),
            products,
            *(self._distance_stages() if phi.depends_on_distance else ()),
        )

    def _feature_stage(self, letter: str, kind: str, map_rows: RowFunction, cancels_factor: bool) -> StageSpec:
        without_factor = ", up to a factor of each row that cancels" if cancels_factor else ""
        return StageSpec(
            f"features of {letter}",
            f"each {kind} as features that are never negative{without_factor}: {self.feature_map.formula}",
            f"φ({letter})",
            rf"\varphi({letter})",
            (kind, "hidden"),
            rename(self.feature_map.code, {"x": letter.upper()}),
            lambda variables: map_rows(variables[letter.upper()]).double(),
        )

    def _distance_stages(self) -> StageSpecs:
        phi = self.feature_map
        return (
            StageSpec(
                "distance factor",
                "larger for nearer pairs",
                "c_ij",
                "c_{ij}",
                value=lambda variables: phi.distance_factor(variables["p"] - variables["j"]).double(),
            ),
            StageSpec(
                "distance-weighted products",
                "the products, each times the factor of its distance",
                "w_ij = c_ij w_ij",
                "w_{ij} = c_{ij} w_{ij}",
                code="products * distance_factor",
            ),
        )
