"""Lazy matrices of the gradients of a loss with respect to attention weights and scores.

With o = A v, dO the gradient with respect to o, and e_ij = dO_i·v_j the gradient with respect to a_ij:

    attention x gradient    a_ij e_ij
    reversed attention      a_ij (e_ij - dO_i·o_i) scale      the gradient w.r.t. q_i·k_j (Katz and Wolf, 2024)

A recording stores dO when `backward()` is called on the loss.
"""

import math
from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.recording.lazy_matrix import LazyMatrix
from regard.recording.recorded_call import RecordedCall
from regard.recording.recorded_layer import RecordedLayer
from regard.score import ScaledDot


class _GradientMatrix(LazyMatrix):
    """A lazy matrix computed from the output gradients of a layer."""

    def __init__(self, layer: RecordedLayer) -> None:
        self.call, self._d_output = _require_gradient(layer)
        self.shape = (*self.call.q.shape[:3], self.call.k.shape[2])

    def _weight_gradients(self, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        """Return dO_i·v_j."""
        kv_heads = torch.arange(self.shape[1])[h] // (self.shape[1] // self.call.v.shape[1])
        return self._output_gradients(b, h, i) @ self.call.v[b][:, kv_heads][:, :, j].float().mT

    def _output_gradients(self, b: Any, h: Any, i: Any) -> Tensor:
        return self._d_output[b][:, h][:, :, i].float()


class AttentionTimesGradient(_GradientMatrix):
    """The weights times the gradients of a loss with respect to the weights."""

    def entries(self, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        weights: Tensor = self.call.result.weights[b, h, i, j]
        return weights * self._weight_gradients(b, h, i, j)


class ReversedAttention(_GradientMatrix):
    """The gradient of a loss with respect to the products q·k."""

    def __init__(self, layer: RecordedLayer) -> None:
        super().__init__(layer)
        score = self.call.options["score"]
        if score is not None and (type(score) is not ScaledDot or score.score_mod is not None):
            raise ArgumentError(
                "reversed attention requires scaled_dot scores without a score modifier; "
                f"{layer.path} has another score or a score modifier."
            )
        scale = None if score is None else score.scale
        self._scale: float | Tensor = 1 / math.sqrt(self.call.q.shape[-1]) if scale is None else scale

    def entries(self, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        weights = self.call.result.weights[b, h, i, j]
        output = self.call.result.output[b][:, h][:, :, i].float()
        mean_gradients = (self._output_gradients(b, h, i) * output).sum(-1, keepdim=True)  # dO_i·o_i
        gradients: Tensor = weights * (self._weight_gradients(b, h, i, j) - mean_gradients) * self._scale
        return gradients

    def head_norms(self) -> Tensor:
        """Return the Frobenius norm (batch, heads) of each head's matrix: how much the loss depends on the head."""
        squared_norms = torch.zeros(self.shape[:2], dtype=torch.float64)
        for rows in self.row_blocks():
            squared_norms += self[:, :, rows].double().square().sum((-2, -1))
        return squared_norms.sqrt().float()


def _require_gradient(layer: RecordedLayer) -> tuple[RecordedCall, Tensor]:
    """Return the call of a layer and its output gradient."""
    call = layer.merged_call
    if call.d_output is None:
        raise ArgumentError(
            f"gradients must be recorded; {layer.path} has none. Record a forward pass with gradients enabled, then "
            "call backward() on a loss. torch's fused kernels, and layers that return weights, record none."
        )
    return call, call.d_output
