"""Which masks Sinkhorn's normalizer refuses: those whose only doubly stochastic weights are the identity.

Leave out the queries that attend to nothing and the keys that no query attends to, and order the rest by the last key
they attend to. If as many queries as keys remain, and the a-th query attends to the a-th key and to none after it, then
the first query fills the first key's column, the second query the second key's, and so on. Every other visible pair
ends with weight 0.
"""

from dataclasses import replace

import torch
from torch import Tensor

from regard.engine.dense import positions_of
from regard.errors import SpecError
from regard.plan.blocks import Strip, Tiles, blocks, strips
from regard.spec.evaluate import Evaluation
from regard.spec.hiding import visible
from regard.spec.spec import Inputs, Spec
from regard.spec.term import TRUE, Term, apply, variable

TILES = Tiles(256, 256, 2**18)


def refuse_identity(spec: Spec, inputs: Inputs) -> None:
    """Raise an error if the mask leaves only the identity."""
    condition = visible(spec.mask, spec.rule, inputs.tensors)
    if condition is TRUE or min(spec.n_q, spec.n_k) < 2:
        return
    later, earlier = (_holds(spec, inputs, apply("and", condition, beyond)) for beyond in _BEYOND)
    if later == earlier or not bool(_leaves_only_identity(spec, inputs, condition, flip=later).any()):
        return
    raise SpecError(
        "sinkhorn needs a mask under which more than one key can keep weight; no query attends to "
        f"{'earlier' if later else 'later'} keys than its own under this mask, so the only weights with equal row sums "
        "and equal column sums are the identity. Use weigh.softmax() with this mask, or sinkhorn without it."
    )


_BEYOND = tuple(apply(comparison, variable("j"), variable("p")) for comparison in ("gt", "lt"))


def _holds(spec: Spec, inputs: Inputs, condition: Term) -> bool:
    """Whether a condition holds for some pair."""
    asked = replace(spec, mask=condition, rule=None)
    for strip in strips(asked, blocks(asked, inputs.tensors, inputs.start, TILES), TILES):
        for keys, full in strip.keys:
            if full or bool(_visible(spec, inputs, condition, strip, keys).any()):
                return True
    return False


def _visible(spec: Spec, inputs: Inputs, condition: Term, strip: Strip, keys: range) -> Tensor:
    positions = positions_of(spec, inputs, strip.b, strip.h, strip.i, keys)
    return Evaluation(inputs.tensors, positions).condition(condition).expand(positions.shape)


def _leaves_only_identity(spec: Spec, inputs: Inputs, condition: Term, flip: bool) -> Tensor:
    """For each batch element and head; `flip` numbers keys from the end."""
    visible, last, used = _row_summaries(spec, inputs, condition, flip)
    attends = visible > 0
    queries, keys = attends.sum(-1), used.sum(-1)
    # in the order of their last keys, the first a queries must reach a of the keys in use
    reached = used.cumsum(-1).gather(-1, last.clamp(min=0)).masked_fill(~attends, 0).sort(-1).values
    rank = torch.arange(1 - spec.n_q, 1, device=last.device) + queries.unsqueeze(-1)
    is_triangular = ((rank <= 0) | (reached == rank)).all(-1)
    return is_triangular & (queries == keys) & (visible > 1).any(-1)


def _row_summaries(spec: Spec, inputs: Inputs, condition: Term, flip: bool) -> tuple[Tensor, Tensor, Tensor]:
    """How many keys each query attends to and the last of them (batch, heads, n_q), -1 if none; and whether any query
    attends to a key (batch, heads, n_k)."""
    device, number = inputs.q.device, torch.arange(spec.n_k, device=inputs.q.device)
    number = number.flip(0) if flip else number
    visible = torch.zeros((spec.batch, spec.heads, spec.n_q), dtype=torch.int64, device=device)
    last = torch.full_like(visible, -1)
    used = torch.zeros((spec.batch, spec.heads, spec.n_k), dtype=torch.bool, device=device)
    for strip in strips(spec, blocks(spec, inputs.tensors, inputs.start, TILES), TILES):
        heads = slice(strip.b.start, strip.b.stop), slice(strip.h.start, strip.h.stop)
        rows = (*heads, slice(strip.i.start, strip.i.stop))
        for keys, _ in strip.keys:
            columns = slice(keys.start, keys.stop)
            seen = _visible(spec, inputs, condition, strip, keys)
            used[(*heads, columns)] |= seen.any(-2)
            visible[rows] += seen.sum(-1)
            last[rows] = torch.maximum(last[rows], torch.where(seen, number[columns], -1).amax(-1))
    return visible, last, used.flip(-1) if flip else used
