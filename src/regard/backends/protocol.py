"""The protocol that every backend implements, and the optional capabilities that some backends add."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from regard.backends.shared.weight_tiles import WeightTileSource
from regard.call.spec import BackendInputs, CallSpec
from regard.plan.tiling import Tiling


class UnsupportedCall(Exception):
    """Raised by a backend when only the data show that it cannot run a call; the message is the reason."""


@dataclass(frozen=True, eq=False)
class SavedForBackward:
    """The results of a forward pass and the gradients that reach them."""

    output: Tensor
    statistic: Tensor
    d_output: Tensor
    d_statistic: Tensor


class Backend(Protocol):
    """Computes attention forward and backward.

    `forward` returns the output (batch, heads, n_q, value_dim) and the row statistic (batch, heads, n_q), or None for a
    normalizer without a statistic. `backward` returns the gradients of those tensors of `inputs.all_tensors()` that
    `needs_input_grad` selects. Both may raise `UnsupportedCall`; then `fallback` runs instead.
    """

    name: str
    variant: str  # the build that runs, such as an instruction set; "" if there is only one
    compute_dtype: torch.dtype | None  # q, k and v are converted to this first; None keeps their dtype

    @property
    def fallback(self) -> "Backend | None": ...

    def has_linear_memory(self, spec: CallSpec) -> bool: ...

    def unsupported_reasons(self, spec: CallSpec) -> tuple[str, ...]:
        """Why this backend does not support a spec, one clause for each reason; empty if it does."""
        ...

    def tiling(self, spec: CallSpec) -> Tiling: ...

    def forward(self, spec: CallSpec, inputs: BackendInputs, tiling: Tiling) -> tuple[Tensor, Tensor | None]: ...

    def backward(
        self,
        spec: CallSpec,
        inputs: BackendInputs,
        tiling: Tiling,
        saved: SavedForBackward,
        needs_input_grad: Sequence[bool],
    ) -> list[Tensor]: ...


class FastCall(Protocol):
    """A planned call that can be repeated on other q, k and v with the same layout."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        """The output, or None if these tensors need the full path."""
        ...


@runtime_checkable
class SupportsFastPath(Protocol):
    """A backend whose calls can be repeated without parsing and planning."""

    def make_fast_call(self, spec: CallSpec, inputs: BackendInputs, tiling: Tiling) -> FastCall | None: ...


@runtime_checkable
class SupportsWeightTiles(Protocol):
    """A backend with its own kernel for tiles of the attention matrix."""

    def weight_tiles(
        self, spec: CallSpec, inputs: BackendInputs, tiling: Tiling, lse: Tensor
    ) -> WeightTileSource | None: ...


@runtime_checkable
class SupportsColumnSums(Protocol):
    """A backend that computes, in one pass over the rows, their lse and the total weight of each key.

    `column_sums` returns the lse (batch, heads, n_q) and the sums (batch, heads, n_k), or None if the data are not
    supported.
    """

    def column_sums(self, spec: CallSpec, inputs: BackendInputs) -> tuple[Tensor, Tensor] | None: ...
