"""Attribution across layers: how much of a token's last state comes from each input token.

    rollout      r A~_L ... A~_1, with A~ = mean of heads + I, rows divided by their sums      Abnar and Zuidema, 2020
    relevance    r (I + C_L) ... (I + C_1), with C = mean of heads of (A x gradient)+           Chefer et al., 2021
    flow         maximum flow between tokens in a graph whose edges have the capacities A~      Abnar and Zuidema, 2020

Rollout and relevance propagate one row per position from the last layer to the first. Only a block of rows of a matrix
is in memory at a time.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import ArgumentError, BudgetError, OutOfRangeError
from regard.optional_imports import import_optional
from regard.recording import argument_checks
from regard.recording.attribution.gradient_matrices import AttentionTimesGradient
from regard.recording.lazy_matrix import row_blocks
from regard.recording.recorded_layer import RecordedLayer

MAX_FLOW_TOKENS = 64  # the graph has this number squared edges per layer

RowBlock = Callable[[slice], Tensor]  # a block of rows of a matrix (batch, rows, n)


def rollout(layers: Sequence[RecordedLayer], positions: int | Iterable[int]) -> Tensor:
    """Compute attention rollout (batch, positions, n). Each row sums to 1."""

    def layer_matrix(layer: RecordedLayer) -> RowBlock:
        def row_block(rows: slice) -> Tensor:
            mean: Tensor = layer.result.weights[:, :, rows].mean(1).float()
            mean[:, :, rows] += torch.eye(mean.shape[1])
            return mean / mean.sum(-1, keepdim=True)

        return row_block

    return _propagate_to_input(layers, positions, layer_matrix, add_identity=False)


def relevance(layers: Sequence[RecordedLayer], positions: int | Iterable[int]) -> Tensor:
    """Compute relevance (batch, positions, n) for a loss on which `backward()` was called."""

    def layer_matrix(layer: RecordedLayer) -> RowBlock:
        product = AttentionTimesGradient(layer)
        return lambda rows: product[:, :, rows].clamp(min=0).mean(1)

    return _propagate_to_input(layers, positions, layer_matrix, add_identity=True)


def _propagate_to_input(
    layers: Sequence[RecordedLayer],
    positions: int | Iterable[int],
    layer_matrix: Callable[[RecordedLayer], RowBlock],
    add_identity: bool,
) -> Tensor:
    """Multiply the unit rows of `positions` by the layers' matrices, plus I if `add_identity`, from the last one."""
    layers = check_layer_stack(layers)
    batch_size, _, n, _ = layers[0].merged_call.q.shape
    indices = torch.tensor(_check_positions(positions, n), dtype=torch.int64)
    states = torch.nn.functional.one_hot(indices % n, n).float().expand(batch_size, -1, -1)
    for layer in reversed(layers):
        row_block, propagated = layer_matrix(layer), states if add_identity else torch.zeros_like(states)
        for rows in row_blocks((*layer.merged_call.q.shape[:3], n)):
            propagated = propagated + states[:, :, rows] @ row_block(rows)
        states = propagated
    return states


def _check_positions(positions: Any, n: int) -> list[int]:
    """Return positions from -n to n - 1 as a list."""
    is_single = isinstance(positions, (int, np.integer)) or getattr(positions, "ndim", 1) == 0
    indices = (
        [argument_checks.integer(positions, "position")]
        if is_single
        else argument_checks.integers(positions, "positions")
    )
    if not all(-n <= index < n for index in indices):
        raise OutOfRangeError(f"positions must be from {-n} to {n - 1}; got {indices}.")
    return indices


def check_layer_stack(layers: Sequence[RecordedLayer]) -> Sequence[RecordedLayer]:
    """Return the layers if they can be a stack: self-attention layers over the same tokens."""
    if not layers:
        raise ArgumentError("the recording must have at least one layer; got none.")
    lengths = {
        (layer.merged_call.q.shape[0], layer.merged_call.q.shape[2], layer.merged_call.k.shape[2]) for layer in layers
    }
    if len(lengths) != 1 or any(n_q != n_k for _, n_q, n_k in lengths):
        shapes = ", ".join(
            f"{layer.path}: {layer.merged_call.q.shape[2]} x {layer.merged_call.k.shape[2]}" for layer in layers
        )
        raise ArgumentError(
            f"layers must all have the same number of queries and keys; got {shapes}. Select the layers of one stack "
            "with layers=[...]."
        )
    return layers


def flow(layers: Sequence[RecordedLayer], position: int) -> Tensor:
    """Compute the maximum flow (batch, n) from each input token to the last state of one token."""
    layers = check_layer_stack(layers)
    batch_size, _, n, _ = layers[0].merged_call.q.shape
    if n > MAX_FLOW_TOKENS:
        raise BudgetError(
            f"attention flow supports at most {MAX_FLOW_TOKENS} tokens, because it solves a graph with n² edges per "
            f"layer n times; got {n}. Use rollout, or a shorter input."
        )
    (index,) = _check_positions([position], n)
    networkx = import_optional("networkx", "attention flow", "networkx")
    result = torch.zeros(batch_size, n)
    for b in range(batch_size):
        graph = networkx.DiGraph()
        for depth, layer in enumerate(layers):
            capacities = layer.result.weights[b].mean(0).float() + torch.eye(n)
            capacities = capacities / capacities.sum(-1, keepdim=True)
            graph.add_edges_from(
                ((depth, j), (depth + 1, i), {"capacity": float(capacities[i, j])})
                for i in range(n)
                for j in range(n)
                if capacities[i, j] > 0
            )
        sink = (len(layers), index % n)
        for j in range(n):
            result[b, j] = networkx.maximum_flow_value(graph, (0, j), sink)
    return result
