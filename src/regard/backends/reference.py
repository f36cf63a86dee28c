"""The reference backend defines correct results: float64, all scores at once, the direct formula."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.backends.protocol import Backend, SavedForBackward
from regard.backends.shared.autograd import dense_vjp
from regard.backends.shared.dense import dense_attention
from regard.call.spec import BackendInputs, CallSpec
from regard.plan.tiling import Tiling

MAX_PAIRS = 2**28  # scores: 2 GB of float64


class ReferenceBackend:
    """The direct formula with every score in memory, in float64."""

    name = "reference"
    variant = ""
    fallback: Backend | None = None
    compute_dtype: torch.dtype | None = torch.float64

    def has_linear_memory(self, spec: CallSpec) -> bool:
        return False

    def unsupported_reasons(self, spec: CallSpec) -> tuple[str, ...]:
        pairs = spec.batch_size * spec.num_heads * spec.n_q * spec.n_k
        if pairs > MAX_PAIRS:
            return (f"it stores every score, and {pairs:,} scores are more than its limit of {MAX_PAIRS:,}",)
        return ()

    def tiling(self, spec: CallSpec) -> Tiling:
        return Tiling(max(spec.n_q, 1), max(spec.n_k, 1), MAX_PAIRS)

    def forward(self, spec: CallSpec, inputs: BackendInputs, tiling: Tiling) -> tuple[Tensor, Tensor | None]:
        return dense_attention(spec, inputs, range(spec.n_q), torch.float64)

    def backward(
        self,
        spec: CallSpec,
        inputs: BackendInputs,
        tiling: Tiling,
        saved: SavedForBackward,
        needs_input_grad: Sequence[bool],
    ) -> list[Tensor]:
        return dense_vjp(spec, inputs, saved, needs_input_grad, rows=max(spec.n_q, 1), dtype=torch.float64)
