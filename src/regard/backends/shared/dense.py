"""The direct formula on a block of queries, by differentiable torch operations: all scores of the block at once.

The reference backend runs it, higher derivatives differentiate it, and indexing the weights evaluates it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.backends.shared.dropout import dropout_mask
from regard.call.spec import BackendInputs, CallSpec
from regard.expr.derivative import derivatives
from regard.expr.evaluate import Evaluator, Index, IndexGrid
from regard.expr.hidden_pairs import effective_mask
from regard.expr.ir import TRUE, Expr, slot_of
from regard.normalizers.threshold import ThresholdNormalizer
from regard.tensors.nonfinite import all_finite, nonfinite_rows


@dataclass(frozen=True, eq=False)
class ScoreBlock:
    """The scores of some pairs, -inf where hidden. `visible` is None if no pair is hidden."""

    positions: IndexGrid
    scores: Tensor
    visible: Tensor | None


def make_positions(spec: CallSpec, inputs: BackendInputs, b: Index, h: Index, i: Index, j: Index) -> IndexGrid:
    return IndexGrid(b, h, i, j, query_offset=inputs.query_offset, n_q=spec.n_q, n_k=spec.n_k, device=inputs.q.device)


def score_block(
    spec: CallSpec,
    inputs: BackendInputs,
    positions: IndexGrid,
    q: Tensor,
    k: Tensor,
    all_finite: bool = True,
    guard_gradients: bool = False,
) -> ScoreBlock:
    """The scores of q (batch, heads, m, head_dim) and k (batch, heads, n, head_dim) at these positions.

    With `all_finite=False`, products read visible pairs only, so that a hidden NaN has no effect. `guard_gradients`
    keeps hidden pairs out of the gradient of a score modifier; torch.func does not support it.
    """
    condition = effective_mask(spec.mask, spec.score_mod, inputs.tensors)
    evaluator = Evaluator(inputs.tensors, positions)
    visible = None if condition is TRUE else evaluator.mask_value(condition).expand(positions.shape)
    evaluator.check_lookups_in_range(visible)
    if not all_finite:  # a score that is -inf hides its pair as well
        with torch.no_grad():
            visible = score_block(spec, inputs, positions, q, k).scores != -torch.inf
    raw = _raw_scores(spec, inputs, positions, q, k, None if all_finite else visible)
    if spec.score_mod is not None and not guard_gradients:
        evaluator = Evaluator(inputs.tensors, positions, raw, raw.dtype)
        raw = evaluator.score_value(spec.score_mod).expand(positions.shape)
        evaluator.check_lookups_in_range(visible)
    elif spec.score_mod is not None:
        raw = _ApplyScoreMod.apply(spec.score_mod, positions, visible, raw, *inputs.tensors)  # type: ignore[no-untyped-call]  # torch
    return ScoreBlock(positions, raw if visible is None else torch.where(visible, raw, -torch.inf), visible)


class _ApplyScoreMod(torch.autograd.Function):
    """Apply a score modifier. Hidden pairs pass no gradient, even if the derivative is not finite there."""

    @staticmethod
    def forward(
        ctx: Any, score_mod: Expr, positions: IndexGrid, visible: Tensor | None, scores: Tensor, *tensors: Tensor
    ) -> Tensor:
        ctx.score_mod, ctx.positions, ctx.visible = score_mod, positions, visible
        ctx.save_for_backward(scores, *tensors)
        evaluator = Evaluator(tensors, positions, scores, scores.dtype)
        result = evaluator.score_value(score_mod).expand(positions.shape)
        evaluator.check_lookups_in_range(visible)
        return result.clone()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        raw, *tensors = ctx.saved_tensors
        evaluator = Evaluator(tensors, ctx.positions, raw, raw.dtype)
        visible = torch.ones((), dtype=torch.bool, device=raw.device) if ctx.visible is None else ctx.visible
        gradients: list[Tensor | None] = [None] * (1 + len(tensors))
        for node, derivative in derivatives(ctx.score_mod).items():
            slot = 1 + slot_of(node) if node.op == "lookup" else 0
            if not ctx.needs_input_grad[3 + slot]:
                continue
            masked = torch.where(visible, grad_output, 0.0)
            gradient = torch.where(visible, masked * evaluator.score_value(derivative), 0.0)
            if slot:
                gradient = _scatter_sum(gradient, evaluator.flat_indices(node), tensors[slot - 1])
            total = gradients[slot]
            gradients[slot] = gradient if total is None else total + gradient
        return None, None, None, *gradients


def _scatter_sum(values: Tensor, indices: Tensor, tensor: Tensor) -> Tensor:
    """Add each pair's value to the entry of `tensor` that the pair looked up."""
    flat = values.new_zeros(tensor.numel()).index_add(0, indices.flatten(), values.sum_to_size(indices.shape).flatten())
    return flat.view(tensor.shape).to(tensor.dtype)


def dense_attention(
    spec: CallSpec, inputs: BackendInputs, rows: range, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """The output (batch, heads, rows, value_dim) and the row statistic of a block of queries."""
    q = inputs.q[:, :, rows.start : rows.stop].to(dtype)
    k, v = (x.to(dtype).repeat_interleave(spec.queries_per_kv_head, dim=1) for x in (inputs.k, inputs.v))
    positions = make_positions(spec, inputs, range(spec.batch_size), range(spec.num_heads), rows, range(spec.n_k))
    finite = all_finite(q, k, v)
    scores = score_block(spec, inputs, positions, q, k, finite, guard_gradients=True).scores
    visible = None if finite else scores != -torch.inf
    parameter = normalizer_parameter(spec, inputs, positions, dtype)
    normalizer = spec.normalizer
    weights, statistic = normalizer.normalize(scores) if parameter is None else normalizer.normalize(scores, parameter)
    if visible is not None:
        weights = torch.where(visible, weights, 0.0)  # a row with a NaN has NaN at hidden pairs too
        if isinstance(normalizer, ThresholdNormalizer):
            visible = visible & (weights != 0.0)  # pairs below the threshold do not count
    if spec.dropout:
        dropped = dropout_mask(inputs.seed, spec.dropout, positions, inputs.dropout_origin)
        weights = torch.where(dropped, 0.0, weights / (1.0 - spec.dropout))
    return _weighted_sum(weights, v, visible), statistic


def normalizer_parameter(
    spec: CallSpec, inputs: BackendInputs, positions: IndexGrid, dtype: torch.dtype
) -> Tensor | None:
    """The normalizer's parameter, to broadcast over the pairs at these positions; None if it has none."""
    expr = spec.normalizer.parameter
    return None if expr is None else Evaluator(inputs.tensors, positions, None, dtype).score_value(expr)


def _weighted_sum(weights: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """weights @ v; with `visible`, values that are not finite count only for visible pairs."""
    if visible is None:
        return weights @ v
    finite_sum = weights @ torch.where(nonfinite_rows(v), 0.0, v)
    rows = _nonfinite_row_indices(v)
    counts = visible[..., rows].unsqueeze(-1)
    pairs = torch.where(counts, weights[..., rows].unsqueeze(-1), 0.0) * torch.where(counts, v[..., None, rows, :], 0.0)
    # a row that is finite in this batch element is in the product already
    return finite_sum + torch.where(nonfinite_rows(v)[..., None, rows, :], pairs, 0.0).sum(-2)


def _nonfinite_row_indices(x: Tensor) -> Tensor:
    """The indices of rows that are not finite in some batch element or head."""
    return nonfinite_rows(x).squeeze(-1).flatten(0, -2).any(0).nonzero().flatten()


def _raw_scores(
    spec: CallSpec, inputs: BackendInputs, positions: IndexGrid, q: Tensor, k: Tensor, visible: Tensor | None
) -> Tensor:
    """The scores before the score modifier; with `visible`, hidden pairs are not read."""
    if spec.score_kind != "dot":
        return pairwise_scores(spec, inputs, positions, q, k, inputs.parameters, visible)
    if visible is None:
        return (q * spec.scale) @ k.mT
    scores = (torch.where(nonfinite_rows(q), 0.0, q) * spec.scale) @ torch.where(nonfinite_rows(k), 0.0, k).mT
    rows, columns = _nonfinite_row_indices(q), _nonfinite_row_indices(k)
    scores = scores.index_copy(-1, columns, _pair_products(q, k[..., columns, :], visible[..., columns]) * spec.scale)
    return scores.index_copy(-2, rows, _pair_products(q[..., rows, :], k, visible[..., rows, :]) * spec.scale)


def _select_rows(x: Tensor, index: Index) -> Tensor:
    """The rows of x at an index; a view if the index is a range."""
    return x[index.start : index.stop] if isinstance(index, range) else x[index]


def _pair_products(q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
    visible = visible.unsqueeze(-1)
    return (torch.where(visible, q.unsqueeze(-2), 0.0) * torch.where(visible, k.unsqueeze(-3), 0.0)).sum(-1)


def pairwise_scores(
    spec: CallSpec,
    inputs: BackendInputs,
    positions: IndexGrid,
    q: Tensor,
    k: Tensor,
    parameters: tuple[Tensor, ...],
    visible: Tensor | None,
) -> Tensor:
    """The scores at these positions that are not a dot product: additive, u·tanh(q + k), and custom scores.

    u has shape (hidden,), or (heads, hidden) for all heads of the call; `positions` selects the heads of q and k.
    """
    if spec.score_kind == "additive":
        u = parameters[0].to(q.dtype)
        u = u if u.dim() == 1 else _select_rows(u, positions.indices["h"])
        inside = q.unsqueeze(-2) + k.unsqueeze(-3)
        if visible is not None:
            inside = torch.where(visible.unsqueeze(-1), inside, 0.0)
        return (torch.tanh(inside) * (u if u.dim() == 1 else u.unsqueeze(1).unsqueeze(1))).sum(-1)
    assert inputs.score_function is not None
    if visible is None:
        return inputs.score_function(q, k, *parameters)
    nonfinite_q, nonfinite_k = nonfinite_rows(q), nonfinite_rows(k)
    finite_q, finite_k = torch.where(nonfinite_q, 0.0, q), torch.where(nonfinite_k, 0.0, k)
    finite_scores = inputs.score_function(finite_q, finite_k, *parameters)
    with torch.no_grad():
        raw = inputs.score_function(q, k, *parameters)
    return torch.where(nonfinite_q | nonfinite_k.mT, raw.detach(), finite_scores)
