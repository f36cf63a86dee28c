"""A part of a question, answered so that it can be put together with others: in floats, without the last factor."""

from dataclasses import replace

import torch
from torch import Tensor

from regard.attention import IN_ORDER, finished
from regard.engine.gradient import run
from regard.plan.choose import choose
from regard.spec.place import Places, part
from regard.spec.spec import Inputs, Question, Spec
from regard.spec.term import Term, apply, lookup, variable

Pair = tuple[Tensor, Tensor | None]  # output (batch, heads, n_q, width) and row statistic


def answered(
    question: Question, queries: Places, keys: Places, engine: str | None, counts: Tensor | None = None
) -> Pair:
    """What these queries take from these keys, whose rows the question holds.

    Halves are computed in floats, so that what parts give is rounded once, when it is complete. `counts` says how many
    of the keys each batch element has; the rest of them it does not see.
    """
    inputs = question.inputs(torch.float64 if engine == "reference" else None)
    inputs = replace(inputs, q=_in_floats(inputs.q), k=_in_floats(inputs.k), v=_in_floats(inputs.v))
    spec, inputs = part(question, inputs, queries, keys)
    if counts is not None:
        spec, inputs = _cut(spec, inputs, counts)
    plan = choose(replace(spec, dtype=_floats(spec.dtype)), IN_ORDER, engine)
    chosen = next(e for e in IN_ORDER if e.name == plan.engine)
    output, statistic = run(chosen, plan.spec, plan.tiles, inputs)
    if question.relative_values is not None:  # a sum over the same weights, so it merges as the output does
        bare = replace(question, weigh=replace(question.weigh, factor=None))
        assert isinstance(question.start, int), "who asks must refuse others"
        standing = torch.tensor(queries.positions()) + question.start, torch.tensor(keys.positions())
        output = finished(bare, plan, inputs, output, statistic, None, standing)
    return output, statistic


def joined(so_far: Pair | None, found: Pair) -> Pair:
    """Attention over more keys: by lse, or as a sum where each pair weighs for itself. What was so far is overwritten.

    The same as `regard.merge`, which keeps both.
    """
    if so_far is None:
        return found
    (output, statistic), (more, its) = so_far, found
    if statistic is None or its is None:
        return output.add_(more), None
    total = torch.logaddexp(statistic, its)
    level = torch.where(total == -torch.inf, 0.0, total)  # nothing was seen, and weighs exp(-inf) = 0
    share, other = (torch.exp(x - level).unsqueeze(-1).to(output.dtype) for x in (statistic, its))
    return output.mul_(share).addcmul_(more, other), total


def completed(question: Question, found: Pair, n_k: int | Tensor | None = None) -> Tensor:
    """The output from what all keys gave; `n_k` is the number of keys, where it differs by query."""
    output, statistic = found
    if question.weigh.factor is not None:
        share = question.weigh.factor(statistic, question.spec.n_k if n_k is None else n_k)
        output = output * (share.unsqueeze(-1) if isinstance(share, Tensor) and share.dim() else share)
    return output.to(question.spec.dtype)


def _cut(spec: Spec, inputs: Inputs, counts: Tensor) -> tuple[Spec, Inputs]:
    """The same, where batch element b has counts[b] keys."""
    there: Term = apply("lt", variable("j"), lookup(len(inputs.tensors), (variable("b"),), "int"))
    tensors = (*inputs.tensors, counts)
    shapes = tuple((tuple(t.shape), t.dtype) for t in tensors)
    return replace(spec, mask=apply("and", spec.mask, there), tensors=shapes), replace(inputs, tensors=tensors)


def _in_floats(rows: Tensor) -> Tensor:
    return rows.to(_floats(rows.dtype))


def _floats(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
