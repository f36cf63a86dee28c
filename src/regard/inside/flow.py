"""Across layers: how much of a token's last state comes from each token of the text.

    rollout      r A~_L ... A~_1, with A~ = mean of heads + I, rows divided by their sums      Abnar and Zuidema, 2020
    relevance    r (I + C_L) ... (I + C_1), with C = mean of heads of (A x gradient)+           Chefer and others, 2021
    flow         the largest flow from a token to another through edges as wide as A~           Abnar and Zuidema, 2020

The first two go from the last layer to the first with one row for each token that is asked about, so that no matrix is
there but a block of rows at a time.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import BudgetError, MissingError, OutOfRangeError, SpecError
from regard.inside import arguments
from regard.inside.gradient import TimesGradient
from regard.inside.layer import Layer
from regard.inside.matrix import row_blocks

LARGEST_FLOW = 64  # tokens: the graph has so many squared edges a layer

Rows = Callable[[slice], Tensor]  # a block of rows of a matrix (batch, rows, n)


def rollout(layers: Sequence[Layer], of: int | Iterable[int]) -> Tensor:
    """(batch, tokens asked about, n): each row sums to 1."""

    def matrix(layer: Layer) -> Rows:
        def rows(which: slice) -> Tensor:
            mean: Tensor = layer.attended.weights[:, :, which].mean(1).float()
            mean[:, :, which] += torch.eye(mean.shape[1])
            return mean / mean.sum(-1, keepdim=True)

        return rows

    return _backwards(layers, of, matrix, keeps=False)


def relevance(layers: Sequence[Layer], of: int | Iterable[int]) -> Tensor:
    """(batch, tokens asked about, n), for a loss that was followed back."""

    def matrix(layer: Layer) -> Rows:
        product = TimesGradient(layer)
        return lambda which: product[:, :, which].clamp(min=0).mean(1)

    return _backwards(layers, of, matrix, keeps=True)


def _backwards(
    layers: Sequence[Layer], of: int | Iterable[int], matrix: Callable[[Layer], Rows], keeps: bool
) -> Tensor:
    layers = stacked(layers)
    batch, _, n, _ = layers[0].take.q.shape
    positions = torch.tensor(_tokens(of, n), dtype=torch.int64)
    rows = torch.nn.functional.one_hot(positions % n, n).float().expand(batch, -1, -1)
    for layer in reversed(layers):
        of_layer, after = matrix(layer), rows if keeps else torch.zeros_like(rows)
        for which in row_blocks((*layer.take.q.shape[:3], n)):
            after = after + rows[:, :, which] @ of_layer(which)
        rows = after
    return rows


def _tokens(of: Any, n: int) -> list[int]:
    """Positions of tokens, counted from the end if they are negative."""
    one = isinstance(of, (int, np.integer)) or getattr(of, "ndim", 1) == 0
    positions = [arguments.whole(of, "a token")] if one else arguments.wholes(of, "tokens")
    if not all(-n <= position < n for position in positions):
        raise OutOfRangeError(f"tokens must be from 0 to {n - 1}; got {positions}.")
    return positions


def stacked(layers: Sequence[Layer]) -> Sequence[Layer]:
    """Layers of one stack: each looks at the text that the one before it handed on."""
    if not layers:
        raise SpecError("at least one layer must be on the tape; there is none.")
    lengths = {(layer.take.q.shape[0], layer.take.q.shape[2], layer.take.k.shape[2]) for layer in layers}
    if len(lengths) != 1 or any(n_q != n_k for _, n_q, n_k in lengths):
        shapes = ", ".join(f"{layer.path}: {layer.take.q.shape[2]} x {layer.take.k.shape[2]}" for layer in layers)
        raise SpecError(
            f"layers must all look at one text, with as many queries as keys; got {shapes}. Name those of one stack."
        )
    return layers


def flow(layers: Sequence[Layer], of: int) -> Tensor:
    """(batch, n): the largest flow from each token of the text to one token's last state."""
    layers = stacked(layers)
    batch, _, n, _ = layers[0].take.q.shape
    if n > LARGEST_FLOW:
        raise BudgetError(
            f"attention flow must be asked of at most {LARGEST_FLOW} tokens, since its graph has n² edges a layer and "
            f"is solved n times; got {n}. Use rollout, or a shorter text."
        )
    (token,) = _tokens([of], n)
    networkx = _networkx()
    result = torch.zeros(batch, n)
    for b in range(batch):
        graph = networkx.DiGraph()
        for number, layer in enumerate(layers):
            wide = layer.attended.weights[b].mean(0).float() + torch.eye(n)
            wide = wide / wide.sum(-1, keepdim=True)
            graph.add_edges_from(
                ((number, j), (number + 1, i), {"capacity": float(wide[i, j])})
                for i in range(n)
                for j in range(n)
                if wide[i, j] > 0
            )
        end = (len(layers), token % n)
        for j in range(n):
            result[b, j] = networkx.maximum_flow_value(graph, (0, j), end)
    return result


def _networkx() -> Any:
    try:
        import networkx  # type: ignore[import-untyped]  # it has no annotations
    except ImportError:
        raise MissingError("attention flow needs networkx, which is not installed. Use pip install networkx.") from None
    return networkx
