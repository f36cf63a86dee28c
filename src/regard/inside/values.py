"""Weights that count what is taken: a key with a large weight and a value near 0 gives nothing.

by values     a_ij ‖v_j‖ / max ‖v‖
by outputs    a_ij ‖v_j W_o‖ / max ‖v W_o‖      with the head's part of the matrix after attention (Kobayashi, 2020)
"""

from typing import Any

import torch
from torch import Tensor

from regard.errors import SpecError
from regard.inside.arguments import short
from regard.inside.layer import Layer
from regard.inside.matrix import Matrix


class Weighted(Matrix):
    """Weights times the sizes of values."""

    def __init__(self, layer: Layer, out: Tensor | None = None) -> None:
        take = layer.take
        v = take.v.float().repeat_interleave(take.q.shape[1] // take.v.shape[1], dim=1)
        if out is not None:
            heads, width = v.shape[1], v.shape[-1]
            if not isinstance(out, Tensor) or out.dim() != 2 or out.shape[-1] != heads * width:
                raise SpecError(
                    f"out must have {heads} x {width} columns, as the weight of the linear layer after attention has; "
                    f"got {short(out)}."
                )
            v = torch.einsum("bhjd,ohd->bhjo", v, out.detach().float().unflatten(-1, (heads, width)))
        size = v.norm(dim=-1)
        self.sizes = size / size.amax(-1, keepdim=True).clamp(min=1e-30)  # (batch, heads, n_k)
        self._weights = layer.attended.weights
        self.shape = self._weights.shape

    def part(self, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        found: Tensor = self._weights[b, h, i, j] * self.sizes[b][:, h][:, :, j].unsqueeze(2)
        return found
