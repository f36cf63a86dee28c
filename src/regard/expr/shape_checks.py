"""Checks that a captured tensor fits the shape of the scores. They are dataclasses, so masks can be pickled."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.errors import ArgumentError
from regard.expr.tile_coverage import ScoreShape

SHAPE_NAMES = ("batch", "heads", "n_q", "n_k")
SHAPE_NOUNS = ("batch elements", "heads", "queries", "keys")


@dataclass(frozen=True)
class RequireOnePer:
    """Require one entry per batch element, head, query or key along `axis`; `dim_name` is one of `SHAPE_NAMES`."""

    description: str
    shape: tuple[int, ...]
    axis: int
    dim_name: str

    def __call__(self, score_shape: ScoreShape, query_offset: int | Tensor) -> None:
        dim = SHAPE_NAMES.index(self.dim_name)
        expected = score_shape[dim]
        if self.shape[self.axis] != expected:
            raise ArgumentError(
                f"{self.description} must have one entry for each of {expected} {SHAPE_NOUNS[dim]}; got "
                f"{self.shape[self.axis]} (shape {self.shape})."
            )


@dataclass(frozen=True)
class RequireBroadcastable:
    """Require a shape that broadcasts to (batch, heads, n_q, n_k)."""

    description: str
    shape: tuple[int, ...]

    def __call__(self, score_shape: ScoreShape, query_offset: int | Tensor) -> None:
        expected = score_shape[4 - len(self.shape) :]
        if any(size not in (1, length) for size, length in zip(self.shape, expected, strict=True)):
            raise ArgumentError(
                f"a {self.description} tensor must broadcast to (batch, heads, n_q, n_k) = {score_shape}; got shape "
                f"{self.shape}. Reshape it so that each dimension is 1 or matches."
            )


@dataclass(frozen=True)
class RequireNonnegativePositions:
    """Require that no query is positioned before the first key."""

    def __call__(self, score_shape: ScoreShape, query_offset: int | Tensor) -> None:
        if (query_offset if isinstance(query_offset, int) else int(query_offset.min())) < 0:
            raise ArgumentError(
                f"mask.document must have an id for every query; got {score_shape[2]} queries that begin before the "
                "first key. Pass the ids of the keys as key_document_ids."
            )


def check_scalar_or_per_head(value: Any, name: str) -> None:
    """Check that a tensor parameter holds one float, or one per head."""
    if isinstance(value, Tensor) and (value.dim() > 1 or not value.is_floating_point()):
        got = f"{value.dtype} of shape {tuple(value.shape)}"
        raise ArgumentError(f"{name} must be a float, or a float tensor with one number or one per head; got {got}.")


def require_one_per(description: str, values: Tensor, axis: int, dim_name: str) -> RequireOnePer:
    """Return the check that `values` has one entry per `dim_name` along `axis`."""
    return RequireOnePer(description, tuple(values.shape), axis, dim_name)
