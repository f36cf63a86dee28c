"""Checks that a captured tensor fits the lengths of a call; small values, so that masks and rules can be pickled."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.errors import SpecError
from regard.spec.regions import Lengths

LENGTHS = ("batch", "heads", "n_q", "n_k")


@dataclass(frozen=True)
class OneEach:
    """The dimension `axis` has one entry for each of `of`, one of the lengths' names."""

    what: str
    shape: tuple[int, ...]
    axis: int
    of: str

    def __call__(self, lengths: Lengths, start: int | Tensor) -> None:
        wanted = lengths[LENGTHS.index(self.of)]
        if self.shape[self.axis] != wanted:
            each = f"{wanted} heads" if self.of == "heads" else f"{self.of} = {wanted}"
            raise SpecError(
                f"{self.what} must have one entry for each of {each}; got {self.shape[self.axis]} (shape {self.shape})."
            )


@dataclass(frozen=True)
class Broadcasts:
    """The shape broadcasts to (batch, heads, n_q, n_k)."""

    what: str
    shape: tuple[int, ...]

    def __call__(self, lengths: Lengths, start: int | Tensor) -> None:
        wanted = lengths[4 - len(self.shape) :]
        if any(size not in (1, length) for size, length in zip(self.shape, wanted, strict=True)):
            raise SpecError(
                f"a {self.what} tensor must broadcast to (batch, heads, n_q, n_k) = {lengths}; got shape {self.shape}. "
                "Reshape it so that each dimension is 1 or matches."
            )


@dataclass(frozen=True)
class StandsInside:
    """No query stands before the first key."""

    def __call__(self, lengths: Lengths, start: int | Tensor) -> None:
        if (start if isinstance(start, int) else int(start.min())) < 0:
            raise SpecError(
                f"documents(ids) must know the document of every query; got {lengths[2]} queries that begin before "
                "the first key. Give ids of queries and keys: documents(ids_q, ids_k)."
            )


def one_or_each(value: Any, name: str) -> None:
    """A parameter that may be a tensor is one float, or one a head."""
    if isinstance(value, Tensor) and (value.dim() > 1 or not value.is_floating_point()):
        got = f"{value.dtype} of shape {tuple(value.shape)}"
        raise SpecError(f"{name} must be one number, or one a head, in floats; got {got}.")


def one_each(what: str, values: Tensor, axis: int, of: str) -> OneEach:
    return OneEach(what, tuple(values.shape), axis, of)
