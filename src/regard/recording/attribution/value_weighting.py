"""Weights times value norms: a key with a large weight and a value near 0 contributes nothing.

by values     a_ij ‖v_j‖ / max ‖v‖
by outputs    a_ij ‖v_j W_o‖ / max ‖v W_o‖      with the head's part of the output projection (Kobayashi, 2020)
"""

from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.recording.argument_checks import describe
from regard.recording.lazy_matrix import LazyMatrix
from regard.recording.recorded_layer import RecordedLayer


class ValueWeightedAttention(LazyMatrix):
    """The weights times the norms of the values, relative to the largest norm of the head.

    `out_proj_weight` (embed_dim, heads * v_dim) is the weight of the output projection, applied before the norm.
    """

    def __init__(self, layer: RecordedLayer, out_proj_weight: Tensor | None = None) -> None:
        call = layer.merged_call
        v = call.v.float().repeat_interleave(call.q.shape[1] // call.v.shape[1], dim=1)
        if out_proj_weight is not None:
            num_heads, v_dim = v.shape[1], v.shape[-1]
            if (
                not isinstance(out_proj_weight, Tensor)
                or out_proj_weight.dim() != 2
                or out_proj_weight.shape[-1] != num_heads * v_dim
            ):
                raise ArgumentError(
                    f"out_proj_weight must have {num_heads} x {v_dim} columns, like the weight of the output "
                    f"projection; got {describe(out_proj_weight)}."
                )
            v = torch.einsum("bhjd,ohd->bhjo", v, out_proj_weight.detach().float().unflatten(-1, (num_heads, v_dim)))
        norms = v.norm(dim=-1)
        self.relative_value_norms = norms / norms.amax(-1, keepdim=True).clamp(min=1e-30)  # (batch, heads, n_k)
        self._weights = layer.result.weights
        self.shape = self._weights.shape

    def entries(self, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        weighted: Tensor = self._weights[b, h, i, j] * self.relative_value_norms[b][:, h][:, :, j].unsqueeze(2)
        return weighted
