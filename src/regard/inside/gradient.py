"""Where gradients go through attention: any part of two more matrices that are never there, and their size by head.

With o = A v and dO the gradient of a loss in o, and e_ij = dO_i·v_j the gradient in a weight:

    attention x gradient    a_ij e_ij
    reversed attention      a_ij (e_ij - dO_i·o_i) scale      the gradient in q_i·k_j (Katz and Wolf, 2024)

Both need dO, which a recording keeps when a loss was followed back after it.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.errors import SpecError
from regard.inside.layer import Layer
from regard.inside.take import Take
from regard.spec.score import ScaledDot

CELLS = 2**24  # of a part of the matrix that is there at a time


class Reversed:
    """The gradient of a loss in the products q·k, (batch, heads, n_q, n_k): index it as weights are indexed."""

    def __init__(self, layer: Layer) -> None:
        self.take, self._gradient = _followed(layer)
        chosen = self.take.options["score"]
        if chosen is not None and (type(chosen) is not ScaledDot or chosen.rule is not None):
            raise SpecError(
                f"reversed attention is that of scores q·k times a number; {layer.path} has another score or a rule."
            )
        given = None if chosen is None else chosen.scale
        self._scale: float | Tensor = 1 / math.sqrt(self.take.q.shape[-1]) if given is None else given

    def __getitem__(self, index: Any) -> Tensor:
        b, h, i, j = _places(index, self.shape)
        weights: Tensor = self.take.attended.weights[b, h, i, j]
        slope = _slopes(self.take, self._gradient, b, h, i, j)
        part = self._gradient[b][:, h][:, :, i].float()
        level = (part * self.take.attended.output[b][:, h][:, :, i].float()).sum(-1, keepdim=True)
        found: Tensor = weights * (slope - level) * self._scale
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.take.q.shape[:3], self.take.k.shape[2])

    def norms(self) -> Tensor:
        """The size (batch, heads) of each head's matrix, √ of the sum of squares: heads that the loss depends on."""
        total = torch.zeros(self.shape[:2], dtype=torch.float64)
        for rows in row_blocks(self.shape):
            total += self[:, :, rows].double().square().sum((-2, -1))
        return total.sqrt().float()


class TimesGradient:
    """Each weight times the gradient of a loss in it, (batch, heads, n_q, n_k): index it as weights are indexed."""

    def __init__(self, layer: Layer) -> None:
        self.take, self._gradient = _followed(layer)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.take.q.shape[:3], self.take.k.shape[2])

    def __getitem__(self, index: Any) -> Tensor:
        b, h, i, j = _places(index, self.shape)
        return self.take.attended.weights[b, h, i, j] * _slopes(self.take, self._gradient, b, h, i, j)  # type: ignore[no-any-return]  # a tensor


def _followed(layer: Layer) -> tuple[Take, Tensor]:
    take = layer.take
    if take.gradient is None:
        raise SpecError(
            f"gradients must be known to be looked at; none reached {layer.path}. Record a forward pass with "
            "gradients, then call backward() on a loss. torch's fused kernels, and layers that hand out weights, keep "
            "none."
        )
    return take, take.gradient


def _slopes(take: Take, gradient: Tensor, b: Any, h: Any, i: Any, j: Any) -> Tensor:
    """dO_i·v_j for these places."""
    group = take.q.shape[1] // take.v.shape[1]
    rows = gradient[b][:, h][:, :, i].float()
    of_keys = torch.arange(take.q.shape[1])[h] // group
    return rows @ take.v[b][:, of_keys][:, :, j].float().mT


def _places(index: Any, shape: tuple[int, ...]) -> list[Any]:
    """An index for every dimension that keeps the dimension."""
    entries = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in entries:
        at = entries.index(Ellipsis)
        entries[at : at + 1] = [slice(None)] * (len(shape) - len(entries) + 1)
    entries += [slice(None)] * (len(shape) - len(entries))
    return [slice(e, e + 1 or None) if isinstance(e, int) else e for e in entries]


def row_blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Queries by the block, so that a block of all heads has at most `CELLS` pairs."""
    batch, heads, n_q, n_k = shape
    step = max(1, CELLS // max(batch * heads * n_k, 1))
    return (slice(first, min(first + step, n_q)) for first in range(0, n_q, step))
