"""Sinkhorn's weighing: rows and columns normalised in turn, each a pass over tiles that keeps one number.

With u_i and v_j for rows and columns, a_ij = exp(s_ij + u_i + v_j), and

    u_i = -log sum_j exp(s_ij + v_j),      v_j = -log sum_i exp(s_ij + u_i)

A pass is the lse of a question without values: the same one with v_j added to its scores, or the one turned over, in
which keys ask and queries answer, with u_i added. The last pass over rows is the answer itself: softmax of s_ij + v_j.
Derivatives of every order pass through each of them.

Where nobody asks for derivatives, a pass over rows can tell the next v_j as well: v_j less the logarithm of what key j
receives, the sum over i of exp(s_ij + u_i + v_j). That halves the work, for an engine that tells what keys receive.
"""

from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from regard.engine.dense import positions_of
from regard.engine.gradient import Engine, run, watched
from regard.errors import SpecError
from regard.plan.blocks import Tiles, blocks, strips
from regard.spec.evaluate import Evaluation
from regard.spec.hiding import visible
from regard.spec.spec import Inputs, Spec
from regard.spec.term import TRUE, Term, apply, constant, lookup, substitute, variable

Asked = tuple[Spec, Inputs]
_PLACES = {name: variable(name) for name in ("b", "h", "i", "j", "p", "n_q", "n_k", "s")}


def balanced(engine: Engine, spec: Spec, inputs: Inputs, iterations: int) -> Asked:
    """The question whose softmax is Sinkhorn's: v_j is added to its scores, after so many passes over the rows."""
    if iterations == 1:
        return spec, inputs
    refuse_triangles(spec, inputs)
    rows, columns = _without_values(spec, inputs), _turned_over(*_without_values(spec, inputs))
    v: Tensor | None = None
    unseen: Tensor | None = None
    tells = engine if isinstance(engine, Telling) and not watched(inputs.every()) else None
    for _ in range(iterations - 1):
        asked = rows if v is None else _added(*rows, v)
        told = None if tells is None else tells.received(*asked)
        if told is None:
            u, _ = _level(_lse(engine, *asked))
        else:
            u, _ = _level(told[0])
            mass = told[1] if unseen is None else torch.where(unseen, 1.0, told[1])
            if not bool((mass < FAINT).any()):
                v = (0.0 if v is None else v) - mass.log().to(u.dtype)
                continue
        v, unseen = _level(_lse(engine, *_added(*columns, u)))
    assert v is not None
    return _added(spec, inputs, v)


FAINT = 1e-30  # what a key receives, below which float32 cannot tell how little: then its logarithm must be computed


@runtime_checkable
class Telling(Protocol):
    """An engine that tells, in one pass over rows, their lse and what each key receives."""

    def received(self, spec: Spec, inputs: Inputs) -> tuple[Tensor, Tensor] | None: ...


def _lse(engine: Engine, spec: Spec, inputs: Inputs) -> Tensor:
    _, lse = run(engine, spec, engine.tiles(spec), inputs)
    assert lse is not None
    return lse


def _level(lse: Tensor) -> tuple[Tensor, Tensor]:
    """-lse of each row, 0 where nothing is seen; and where that is."""
    nothing = lse == -torch.inf
    return torch.where(nothing, 0.0, -torch.where(nothing, 0.0, lse)), nothing


def _without_values(spec: Spec, inputs: Inputs) -> Asked:
    nothing = inputs.v.new_zeros((*inputs.v.shape[:-1], 1))
    return replace(spec, value_width=1, dropout=0.0), replace(inputs, v=nothing)


def _added(spec: Spec, inputs: Inputs, numbers: Tensor) -> Asked:
    """The same question with a number of each key added to its scores."""
    at = lookup(len(inputs.tensors), (_PLACES["b"], _PLACES["h"], _PLACES["j"]), "float")
    rule = apply("add", _PLACES["s"] if spec.rule is None else spec.rule, at)
    captured = (*spec.tensors, (tuple(numbers.shape), numbers.dtype))
    return replace(spec, rule=rule, tensors=captured), replace(inputs, tensors=(*inputs.tensors, numbers))


def _turned_over(spec: Spec, inputs: Inputs) -> Asked:
    """Keys as queries and queries as keys; whatever speaks of positions speaks of the other ones."""
    tensors = inputs.tensors
    start: Term = (
        constant(inputs.start) if isinstance(inputs.start, int) else lookup(len(tensors), (_PLACES["b"],), "int")
    )
    if isinstance(inputs.start, Tensor):
        tensors = (*tensors, inputs.start)
    swapped = {
        _PLACES["i"]: _PLACES["j"],
        _PLACES["j"]: _PLACES["i"],
        _PLACES["p"]: apply("add", _PLACES["j"], start),
        _PLACES["n_q"]: _PLACES["n_k"],
        _PLACES["n_k"]: _PLACES["n_q"],
    }
    function = inputs.function
    spec = replace(
        spec,
        key_heads=spec.heads,
        n_q=spec.n_k,
        n_k=spec.n_q,
        rule=None if spec.rule is None else substitute(spec.rule, swapped),
        mask=substitute(spec.mask, swapped),
        start=0,
        tensors=tuple((tuple(t.shape), t.dtype) for t in tensors),
    )
    return spec, replace(
        inputs,
        q=inputs.k.repeat_interleave(spec.heads // inputs.k.shape[1], dim=1),
        k=inputs.q,
        v=inputs.v.new_zeros((*inputs.q.shape[:-1], 1)),
        tensors=tensors,
        start=0,
        function=None if function is None else lambda q, k, *more: function(k, q, *more).mT,
    )


def refuse_triangles(spec: Spec, inputs: Inputs) -> None:
    """Refuse a mask under which nobody sees later keys, or nobody earlier ones, unless everybody sees but one."""
    seen = visible(spec.mask, spec.rule, inputs.tensors)
    if seen is TRUE or 0 in spec.lengths:
        return
    later, earlier = (_holds(spec, inputs, apply("and", seen, t)) for t in (_beyond("gt"), _beyond("lt")))
    if later == earlier:
        return
    raise SpecError(
        f"sinkhorn must find weights whose rows sum to 1 and whose columns are equal; got a mask under which no query "
        f"sees {'earlier' if later else 'later'} keys than its own, and then only the identity is left: the one query "
        "with a single key fills that key's column. Use weigh.softmax() with this mask, or sinkhorn without it."
    )


def _beyond(comparison: str) -> Term:
    return apply(comparison, _PLACES["j"], _PLACES["p"])


def _holds(spec: Spec, inputs: Inputs, condition: Term) -> bool:
    """Whether a condition holds for some pair."""
    tiles = Tiles(256, 256, 2**18)
    asked = replace(spec, mask=condition, rule=None)
    for strip in strips(asked, blocks(asked, inputs.tensors, inputs.start, tiles), tiles):
        for keys, full in strip.keys:
            positions = positions_of(spec, inputs, strip.b, strip.h, strip.i, keys)
            if full or bool(Evaluation(inputs.tensors, positions).condition(condition).any()):
                return True
    return False
