"""The engine that defines correct: float64, everything at once, obvious."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.engine.dense import dense
from regard.engine.gradient import Saved, vector_jacobian
from regard.plan.blocks import Tiles
from regard.spec.spec import Inputs, Spec

LIMIT = 2**28  # pairs: 2 GB of float64 for each matrix


class Reference:
    """softmax(score) v with every score in memory, in float64."""

    name = "reference"
    variant = ""
    exact: torch.dtype | None = torch.float64

    def linear_memory(self, spec: Spec) -> bool:
        return False

    def objections(self, spec: Spec) -> tuple[str, ...]:
        pairs = spec.batch * spec.heads * spec.n_q * spec.n_k
        if pairs > LIMIT:
            return (f"it keeps every pair in memory, and {pairs:,} are more than {LIMIT:,}",)
        return ()

    def tiles(self, spec: Spec) -> Tiles:
        return Tiles(max(spec.n_q, 1), max(spec.n_k, 1), LIMIT)

    def forward(self, spec: Spec, inputs: Inputs, tiles: Tiles) -> tuple[Tensor, Tensor | None]:
        return dense(spec, inputs, range(spec.n_q), torch.float64)

    def backward(self, spec: Spec, inputs: Inputs, tiles: Tiles, saved: Saved, needs: Sequence[bool]) -> list[Tensor]:
        return vector_jacobian(spec, inputs, saved, needs, rows=max(spec.n_q, 1), precision=torch.float64)
