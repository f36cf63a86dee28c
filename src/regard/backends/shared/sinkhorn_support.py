"""Rejects masks under which the identity is the only doubly stochastic matrix, for the Sinkhorn normalizer.

Leave out the queries that attend to nothing and the keys that no query attends to, and order the rest by the last key
they attend to. If as many queries as keys remain, and the a-th query attends to the a-th key and to none after it, then
the first query fills the first key's column, the second query the second key's, and so on. Every other visible pair
ends with weight 0.
"""

from dataclasses import replace

import torch
from torch import Tensor

from regard.backends.shared.dense import make_positions
from regard.call.spec import BackendInputs, CallSpec
from regard.errors import ArgumentError
from regard.expr.evaluate import Evaluator
from regard.expr.hidden_pairs import effective_mask
from regard.expr.ir import TRUE, Expr, apply, variable
from regard.plan.tiling import QueryStrip, Tiling, call_coverage, query_strips

TILING = Tiling(256, 256, 2**18)


def check_allows_more_than_identity(spec: CallSpec, inputs: BackendInputs) -> None:
    """Raise an error if the identity is the only doubly stochastic matrix under the mask."""
    condition = effective_mask(spec.mask, spec.score_mod, inputs.tensors)
    if condition is TRUE or min(spec.n_q, spec.n_k) < 2:
        return
    later, earlier = (_any_pair_satisfies(spec, inputs, apply("and", condition, beyond)) for beyond in _BEYOND)
    if later == earlier or not bool(_leaves_only_identity(spec, inputs, condition, flip=later).any()):
        return
    raise ArgumentError(
        "sinkhorn requires a mask that allows more than one doubly stochastic matrix; under this mask no query attends "
        f"to {'earlier' if later else 'later'} keys than its own, so the only one is the identity. Use "
        "normalizer.softmax() with this mask, or sinkhorn without it."
    )


_BEYOND = tuple(apply(comparison, variable("j"), variable("p")) for comparison in ("gt", "lt"))


def _any_pair_satisfies(spec: CallSpec, inputs: BackendInputs, condition: Expr) -> bool:
    """Whether a condition holds for some pair."""
    masked = replace(spec, mask=condition, score_mod=None)
    for strip in query_strips(masked, call_coverage(masked, inputs.tensors, inputs.query_offset, TILING), TILING):
        for keys, full in strip.keys:
            if full or bool(_visible(spec, inputs, condition, strip, keys).any()):
                return True
    return False


def _visible(spec: CallSpec, inputs: BackendInputs, condition: Expr, strip: QueryStrip, keys: range) -> Tensor:
    positions = make_positions(spec, inputs, strip.b, strip.h, strip.i, keys)
    return Evaluator(inputs.tensors, positions).mask_value(condition).expand(positions.shape)


def _leaves_only_identity(spec: CallSpec, inputs: BackendInputs, condition: Expr, flip: bool) -> Tensor:
    """For each batch element and head; `flip` numbers keys from the end."""
    visible, last, used = _row_summaries(spec, inputs, condition, flip)
    attends = visible > 0
    queries, keys = attends.sum(-1), used.sum(-1)
    # in the order of their last keys, the first a queries must reach a of the keys in use
    reached = used.cumsum(-1).gather(-1, last.clamp(min=0)).masked_fill(~attends, 0).sort(-1).values
    rank = torch.arange(1 - spec.n_q, 1, device=last.device) + queries.unsqueeze(-1)
    is_triangular = ((rank <= 0) | (reached == rank)).all(-1)
    return is_triangular & (queries == keys) & (visible > 1).any(-1)


def _row_summaries(spec: CallSpec, inputs: BackendInputs, condition: Expr, flip: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of keys and the last key that each query attends to, and which keys any query attends to.

    The first two are (batch, heads, n_q), with -1 for no last key; the third is (batch, heads, n_k).
    """
    device, number = inputs.q.device, torch.arange(spec.n_k, device=inputs.q.device)
    number = number.flip(0) if flip else number
    visible = torch.zeros((spec.batch_size, spec.num_heads, spec.n_q), dtype=torch.int64, device=device)
    last = torch.full_like(visible, -1)
    used = torch.zeros((spec.batch_size, spec.num_heads, spec.n_k), dtype=torch.bool, device=device)
    for strip in query_strips(spec, call_coverage(spec, inputs.tensors, inputs.query_offset, TILING), TILING):
        heads = slice(strip.b.start, strip.b.stop), slice(strip.h.start, strip.h.stop)
        rows = (*heads, slice(strip.i.start, strip.i.stop))
        for keys, _ in strip.keys:
            columns = slice(keys.start, keys.stop)
            is_visible = _visible(spec, inputs, condition, strip, keys)
            used[(*heads, columns)] |= is_visible.any(-2)
            visible[rows] += is_visible.sum(-1)
            last[rows] = torch.maximum(last[rows], torch.where(is_visible, number[columns], -1).amax(-1))
    return visible, last, used.flip(-1) if flip else used
