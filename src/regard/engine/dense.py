"""The direct formula on a block of queries, in plain differentiable torch: every score of the block at once.

It is what `reference` computes, what derivatives beyond the first are taken of, and what shows single weights.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.engine.dropout import dropped
from regard.spec.derivative import derivatives
from regard.spec.evaluate import Evaluation, Index, Positions
from regard.spec.finite import all_finite, wild_rows
from regard.spec.hiding import visible
from regard.spec.spec import Inputs, Spec
from regard.spec.term import TRUE, Term, slot_of
from regard.spec.threshold import Thresholded


@dataclass(frozen=True, eq=False)
class Block:
    """Some pairs and their scores: -inf where hidden. `seen` is None where nothing is hidden."""

    positions: Positions
    scores: Tensor
    seen: Tensor | None


def positions_of(spec: Spec, inputs: Inputs, b: Index, h: Index, i: Index, j: Index) -> Positions:
    return Positions(b, h, i, j, start=inputs.start, n_q=spec.n_q, n_k=spec.n_k, device=inputs.q.device)


def block(
    spec: Spec, inputs: Inputs, positions: Positions, q: Tensor, k: Tensor, finite: bool = True, guarded: bool = False
) -> Block:
    """The scores of q (batch, heads, m, width) and k (batch, heads, n, width) at these positions.

    With `finite=False` a product reads only what is seen, so that NaN in what is hidden reaches nothing. `guarded`
    keeps hidden pairs out of a rule's gradient, but torch.func cannot look into that.
    """
    condition = visible(spec.mask, spec.rule, inputs.tensors)
    looked = Evaluation(inputs.tensors, positions)
    seen = None if condition is TRUE else looked.condition(condition).expand(positions.shape)
    looked.check_range(seen)
    if not finite:  # a score may be -inf by itself, and hides then
        with torch.no_grad():
            seen = block(spec, inputs, positions, q, k).scores != -torch.inf
    raw = _product(spec, inputs, positions, q, k, None if finite else seen)
    if spec.rule is not None and not guarded:
        changed = Evaluation(inputs.tensors, positions, raw, raw.dtype)
        raw = changed.number(spec.rule).expand(positions.shape)
        changed.check_range(seen)
    elif spec.rule is not None:
        raw = _Rule.apply(spec.rule, positions, seen, raw, *inputs.tensors)  # type: ignore[no-untyped-call]  # torch
    return Block(positions, raw if seen is None else torch.where(seen, raw, -torch.inf), seen)


class _Rule(torch.autograd.Function):
    """A rule's value. Hidden pairs pass no gradient, even where the rule's slope is not finite."""

    @staticmethod
    def forward(
        ctx: Any, rule: Term, positions: Positions, seen: Tensor | None, raw: Tensor, *tensors: Tensor
    ) -> Tensor:
        ctx.rule, ctx.positions, ctx.seen = rule, positions, seen
        ctx.save_for_backward(raw, *tensors)
        changed = Evaluation(tensors, positions, raw, raw.dtype)
        result = changed.number(rule).expand(positions.shape)
        changed.check_range(seen)
        return result.clone()

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        raw, *tensors = ctx.saved_tensors
        changed = Evaluation(tensors, ctx.positions, raw, raw.dtype)
        seen = torch.ones((), dtype=torch.bool, device=raw.device) if ctx.seen is None else ctx.seen
        parts: list[Tensor | None] = [None] * (1 + len(tensors))
        for node, change in derivatives(ctx.rule).items():
            slot = 1 + slot_of(node) if node.op == "lookup" else 0
            if not ctx.needs_input_grad[3 + slot]:
                continue
            part = torch.where(seen, torch.where(seen, outer, 0.0) * changed.number(change), 0.0)
            if slot:
                part = _gathered(part, changed.places(node), tensors[slot - 1])
            before = parts[slot]
            parts[slot] = part if before is None else before + part
        return None, None, None, *parts


def _gathered(part: Tensor, places: Tensor, tensor: Tensor) -> Tensor:
    """The sum of each pair's part where its look-up read."""
    flat = part.new_zeros(tensor.numel()).index_add(0, places.flatten(), part.sum_to_size(places.shape).flatten())
    return flat.view(tensor.shape).to(tensor.dtype)


def dense(spec: Spec, inputs: Inputs, rows: range, precision: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Output (batch, heads, rows, value width) and row statistic of a block of queries."""
    q = inputs.q[:, :, rows.start : rows.stop].to(precision)
    k, v = (x.to(precision).repeat_interleave(spec.group, dim=1) for x in (inputs.k, inputs.v))
    positions = positions_of(spec, inputs, range(spec.batch), range(spec.heads), rows, range(spec.n_k))
    finite = all_finite(q, k, v)
    found = block(spec, inputs, positions, q, k, finite, guarded=True)
    seen = None if finite else found.scores != -torch.inf
    parameter = parameter_of(spec, inputs, positions, precision)
    normaliser, scores = spec.normaliser, found.scores
    weights, statistic = normaliser.dense(scores) if parameter is None else normaliser.dense(scores, parameter)
    if seen is not None:
        weights = torch.where(seen, weights, 0.0)  # a row that is NaN has no zeros of its own
        if isinstance(normaliser, Thresholded):
            seen = seen & (weights != 0.0)  # what lies below the level is hidden
    if spec.dropout:
        gone = dropped(inputs.seed, spec.dropout, positions, inputs.origin)
        weights = torch.where(gone, 0.0, weights / (1.0 - spec.dropout))
    return _weighted(weights, v, seen), statistic


def parameter_of(spec: Spec, inputs: Inputs, positions: Positions, precision: torch.dtype) -> Tensor | None:
    """What the weighing depends on, to broadcast over the pairs at these positions."""
    term = spec.normaliser.parameter
    return None if term is None else Evaluation(inputs.tensors, positions, None, precision).number(term)


def _weighted(weights: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
    """weights @ v; with `seen`, values that are not finite count only where they are seen."""
    if seen is None:
        return weights @ v
    tame = weights @ torch.where(wild_rows(v), 0.0, v)
    wild = _indices(v)
    counts = seen[..., wild].unsqueeze(-1)
    pairs = torch.where(counts, weights[..., wild].unsqueeze(-1), 0.0) * torch.where(counts, v[..., None, wild, :], 0.0)
    # rows of other batch elements that are finite are in the product already
    return tame + torch.where(wild_rows(v)[..., None, wild, :], pairs, 0.0).sum(-2)


def _indices(x: Tensor) -> Tensor:
    """Which rows are not finite in some batch element or head."""
    return wild_rows(x).squeeze(-1).flatten(0, -2).any(0).nonzero().flatten()


def _product(spec: Spec, inputs: Inputs, positions: Positions, q: Tensor, k: Tensor, only: Tensor | None) -> Tensor:
    """Scores before any rule; with `only`, pairs outside it are not read."""
    if spec.score != "dot":
        return pairwise(spec, inputs, positions, q, k, inputs.parameters, only)
    if only is None:
        return (q * spec.scale) @ k.mT
    scores = (torch.where(wild_rows(q), 0.0, q) * spec.scale) @ torch.where(wild_rows(k), 0.0, k).mT
    rows, columns = _indices(q), _indices(k)
    scores = scores.index_copy(-1, columns, _pairs(q, k[..., columns, :], only[..., columns]) * spec.scale)
    return scores.index_copy(-2, rows, _pairs(q[..., rows, :], k, only[..., rows, :]) * spec.scale)


def _selected(x: Tensor, index: Index) -> Tensor:
    """The rows of x at an index: a view where the index is a range."""
    return x[index.start : index.stop] if isinstance(index, range) else x[index]


def _pairs(q: Tensor, k: Tensor, only: Tensor) -> Tensor:
    seen = only.unsqueeze(-1)
    return (torch.where(seen, q.unsqueeze(-2), 0.0) * torch.where(seen, k.unsqueeze(-3), 0.0)).sum(-1)


def pairwise(
    spec: Spec,
    inputs: Inputs,
    positions: Positions,
    q: Tensor,
    k: Tensor,
    parameters: tuple[Tensor, ...],
    only: Tensor | None,
) -> Tensor:
    """The scores at these positions that are not a product: additive, u·tanh(q + k), and custom ones.

    u is (hidden,) or has one row for each head of the call; `positions` selects the rows that belong to q and k.
    """
    if spec.score == "additive":
        u = parameters[0].to(q.dtype)
        u = u if u.dim() == 1 else _selected(u, positions.indices["h"])
        inside = q.unsqueeze(-2) + k.unsqueeze(-3)
        if only is not None:
            inside = torch.where(only.unsqueeze(-1), inside, 0.0)
        return (torch.tanh(inside) * (u if u.dim() == 1 else u.unsqueeze(1).unsqueeze(1))).sum(-1)
    assert inputs.function is not None
    if only is None:
        return inputs.function(q, k, *parameters)
    wild_q, wild_k = wild_rows(q), wild_rows(k)
    tame = inputs.function(torch.where(wild_q, 0.0, q), torch.where(wild_k, 0.0, k), *parameters)
    with torch.no_grad():
        raw = inputs.function(q, k, *parameters)
    return torch.where(wild_q | wild_k.mT, raw.detach(), tame)
