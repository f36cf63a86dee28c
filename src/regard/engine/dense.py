"""The direct formula on a block of queries, in plain differentiable torch: every score of the block at once.

It is what `reference` computes, what derivatives beyond the first are taken of, and what shows single weights.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.engine.dropout import dropped
from regard.spec.evaluate import Evaluation, Index, Positions
from regard.spec.hiding import visible
from regard.spec.spec import Inputs, Spec
from regard.spec.term import TRUE


def all_finite(*tensors: Tensor) -> bool:
    """Whether no tensor holds NaN or inf. May say no of finite numbers whose sum overflows: that only costs care."""
    return all(bool(torch.isfinite(t.sum())) for t in tensors)


@dataclass(frozen=True, eq=False)
class Block:
    """Some pairs and their scores: -inf where hidden. `seen` is None where nothing is hidden."""

    positions: Positions
    scores: Tensor
    seen: Tensor | None


def positions_of(spec: Spec, inputs: Inputs, b: Index, h: Index, i: Index, j: Index) -> Positions:
    return Positions(b, h, i, j, start=inputs.start, n_q=spec.n_q, n_k=spec.n_k, device=inputs.q.device)


def block(spec: Spec, inputs: Inputs, positions: Positions, q: Tensor, k: Tensor, finite: bool = True) -> Block:
    """The scores of q (batch, heads, m, width) and k (batch, heads, n, width) at these positions.

    With `finite=False` a product reads only what is seen, so that NaN in what is hidden reaches nothing.
    """
    condition = visible(spec.mask, spec.rule, inputs.tensors)
    looked = Evaluation(inputs.tensors, positions)
    seen = None if condition is TRUE else looked.condition(condition).expand(positions.shape)
    raw = _product(spec, inputs, q, k, None if finite else seen)
    if spec.rule is not None:
        changed = Evaluation(inputs.tensors, positions, raw, raw.dtype)
        raw = changed.number(spec.rule).expand(positions.shape)
        looked.out_of_range = _either(looked.out_of_range, changed.out_of_range)
    looked.check_range(seen)
    return Block(positions, raw if seen is None else torch.where(seen, raw, -torch.inf), seen)


def dense(spec: Spec, inputs: Inputs, rows: range, precision: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Output (batch, heads, rows, value width) and row statistic of a block of queries."""
    q = inputs.q[:, :, rows.start : rows.stop].to(precision)
    k, v = (x.to(precision).repeat_interleave(spec.group, dim=1) for x in (inputs.k, inputs.v))
    positions = positions_of(spec, inputs, range(spec.batch), range(spec.heads), rows, range(spec.n_k))
    finite = all_finite(q, k, v)
    found = block(spec, inputs, positions, q, k, finite)
    weights, statistic = spec.normaliser.dense(found.scores)
    if spec.dropout:
        gone = dropped(inputs.seed, spec.dropout, positions)
        weights = torch.where(gone, 0.0, weights / (1.0 - spec.dropout))
    if finite:
        return weights @ v, statistic
    seen = (found.scores != -torch.inf).unsqueeze(-1)
    pairs = torch.where(seen, weights.unsqueeze(-1), 0.0) * torch.where(seen, v.unsqueeze(-3), 0.0)
    return pairs.sum(-2), statistic


def _product(spec: Spec, inputs: Inputs, q: Tensor, k: Tensor, only: Tensor | None) -> Tensor:
    """Scores before any rule; with `only`, pairs outside it are not read."""
    if spec.score == "custom":
        assert inputs.function is not None
        return inputs.function(q, k)
    if spec.score == "dot":
        if only is None:
            return (q * spec.scale) @ k.mT
        seen = only.unsqueeze(-1)
        pairs = torch.where(seen, q.unsqueeze(-2), 0.0) * torch.where(seen, k.unsqueeze(-3), 0.0)
        return pairs.sum(-1) * spec.scale
    return additive(q, k, inputs.parameters[0], only)


def additive(q: Tensor, k: Tensor, u: Tensor, only: Tensor | None = None) -> Tensor:
    """u·tanh(q + k) of every query and key; u is (hidden,) or (heads, hidden)."""
    inside = q.unsqueeze(-2) + k.unsqueeze(-3)
    if only is not None:
        inside = torch.where(only.unsqueeze(-1), inside, 0.0)
    u = u.to(q.dtype)
    return (torch.tanh(inside) * (u if u.dim() == 1 else u.unsqueeze(1).unsqueeze(1))).sum(-1)


def _either(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one | other
