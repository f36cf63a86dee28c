"""Feature maps: weights φ(q_i)·φ(k_j) that are never negative, so that one sum over keys serves every query."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import SpecError

Rows = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """φ for queries and for keys: functions of rows (..., length, width) and the positions (length,) they stand at."""

    name: str
    formula: str
    of_queries: Rows
    of_keys: Rows


def elu() -> FeatureMap:
    """elu(x) + 1, the first one used (Katharopoulos and others, 2020)."""
    return _same("elu", "φ(x) = elu(x) + 1", lambda x, at: torch.nn.functional.elu(x) + 1.0)


def relu() -> FeatureMap:
    """max(x, 0): a query may see nothing, and gets 0 then."""
    return _same("relu", "φ(x) = max(x, 0)", lambda x, at: torch.relu(x))


def cosformer(length: int) -> FeatureMap:
    """max(x, 0), turned with the position: w_ij = relu(q_i)·relu(k_j) cos(π (i - j) / 2M), with M the length.

    Nearer is better. No two positions may lie M or more apart (Qin and others, 2022).
    """
    if length < 1:
        raise SpecError(f"cosformer must know a length of at least 1; got {length}.")

    def turned(x: Tensor, at: Tensor) -> Tensor:
        angles = (at.to(x.dtype) + 1.0).unsqueeze(-1) * (math.pi / (2 * length))
        return torch.cat((torch.relu(x) * angles.cos(), torch.relu(x) * angles.sin()), -1)

    return _same("cosformer", "φ(x_i) = max(x, 0) (cos πi/2M, sin πi/2M)", turned)


def favor(width: int, features: int | None = None, *, seed: int = 0, hyperbolic: bool = False) -> FeatureMap:
    """Random features whose product is exp(q·k/√d) on average, and never negative (Choromanski and others, 2021).

    φ(x) = exp(ω·x - |x|²/2) / √m for x = q / d^(1/4), with m directions ω drawn by `seed`: orthogonal in blocks of d,
    each as long as a normal vector. `hyperbolic` takes exp(-ω·x) as well, for less variance. The error falls as
    m^(-1/2); m is d log d unless it is given.
    """
    count = max(1, round(width * math.log(max(width, 2)))) if features is None else features
    if width < 1 or count < 1:
        raise SpecError(f"favor must have a width and features of at least 1; got {width} and {count}.")
    directions = orthogonal(width, count, torch.Generator().manual_seed(seed))

    def exponents(x: Tensor) -> Tensor:
        x = x / width**0.25
        along = x @ directions.to(x).mT
        both = torch.cat((along, -along), -1) if hyperbolic else along
        return both - x.square().sum(-1, keepdim=True) / 2.0

    norm = math.sqrt(2 * count if hyperbolic else count)

    def of_queries(x: Tensor, at: Tensor) -> Tensor:
        found = exponents(x)
        # a factor of a whole row cancels, and this one keeps long queries from weighing 0
        return torch.exp(found - found.detach().amax(-1, keepdim=True)) / norm

    return FeatureMap(
        "favor", "φ(x) = exp(ω·x - |x|²/2) / √m", of_queries, lambda x, at: torch.exp(exponents(x)) / norm
    )


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


def _same(name: str, formula: str, rows: Rows) -> FeatureMap:
    return FeatureMap(name, formula, rows, rows)
