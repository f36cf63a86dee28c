"""Where gradients go through attention: any part of two more matrices that are never there, and their size by head.

With o = A v and dO the gradient of a loss in o, and e_ij = dO_i·v_j the gradient in a weight:

    attention x gradient    a_ij e_ij
    reversed attention      a_ij (e_ij - dO_i·o_i) scale      the gradient in q_i·k_j (Katz and Wolf, 2024)

Both need dO, which a recording keeps when a loss was followed back after it.
"""

import math
from typing import Any

import torch
from torch import Tensor

from regard.errors import SpecError
from regard.inside.layer import Layer
from regard.inside.matrix import Matrix
from regard.inside.take import Take
from regard.spec.score import ScaledDot


class _AlongGradient(Matrix):
    def __init__(self, layer: Layer) -> None:
        self.take, self._gradient = _followed(layer)
        self.shape = (*self.take.q.shape[:3], self.take.k.shape[2])

    def _slopes(self, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        """dO_i·v_j."""
        of_keys = torch.arange(self.shape[1])[h] // (self.shape[1] // self.take.v.shape[1])
        return self._rows(b, h, i) @ self.take.v[b][:, of_keys][:, :, j].float().mT

    def _rows(self, b: Any, h: Any, i: Any) -> Tensor:
        return self._gradient[b][:, h][:, :, i].float()


class TimesGradient(_AlongGradient):
    """Each weight times the gradient of a loss in it."""

    def part(self, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        weights: Tensor = self.take.attended.weights[b, h, i, j]
        return weights * self._slopes(b, h, i, j)


class Reversed(_AlongGradient):
    """The gradient of a loss in the products q·k."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        chosen = self.take.options["score"]
        if chosen is not None and (type(chosen) is not ScaledDot or chosen.rule is not None):
            raise SpecError(
                f"reversed attention is that of scores q·k times a number; {layer.path} has another score or a rule."
            )
        given = None if chosen is None else chosen.scale
        self._scale: float | Tensor = 1 / math.sqrt(self.take.q.shape[-1]) if given is None else given

    def part(self, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        weights = self.take.attended.weights[b, h, i, j]
        output = self.take.attended.output[b][:, h][:, :, i].float()
        level = (self._rows(b, h, i) * output).sum(-1, keepdim=True)
        found: Tensor = weights * (self._slopes(b, h, i, j) - level) * self._scale
        return found

    def norms(self) -> Tensor:
        """The size (batch, heads) of each head's matrix, √ of the sum of squares: heads that the loss depends on."""
        total = torch.zeros(self.shape[:2], dtype=torch.float64)
        for rows in self.row_blocks():
            total += self[:, :, rows].double().square().sum((-2, -1))
        return total.sqrt().float()


def _followed(layer: Layer) -> tuple[Take, Tensor]:
    take = layer.take
    if take.gradient is None:
        raise SpecError(
            f"gradients must be known to be looked at; none reached {layer.path}. Record a forward pass with "
            "gradients, then call backward() on a loss. torch's fused kernels, and layers that hand out weights, keep "
            "none."
        )
    return take, take.gradient
