"""Sinkhorn's normalizer: rows and columns normalized in turn, each by a pass over tiles that keeps one number.

With potentials u_i for rows and v_j for columns, a_ij = exp(s_ij + u_i + v_j), and

    u_i = -log sum_j exp(s_ij + v_j),      v_j = -log sum_i exp(s_ij + u_i)

A pass over rows is the lse of a call without values, with v_j added to its scores. A pass over columns is the lse of
the transposed call, in which keys attend to queries, with u_i added. The last pass over rows is the output itself:
softmax of s_ij + v_j.

A pass over rows can give the next v_j as well: v_j less the logarithm of the weight that key j receives, the sum over i
of exp(s_ij + u_i + v_j). That halves the work, for an engine that sums columns. Both potentials are then known before
autograd enters: derivatives start from the known lse of each pass, so that the same numbers come out with and without
them.
"""

from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from regard.engine.gradient import Call, Engine, batched, resumed, watched
from regard.engine.sinkhorn_support import refuse_identity
from regard.spec.spec import Inputs, Spec
from regard.spec.term import Term, apply, constant, lookup, substitute, variable

PassCall = tuple[Spec, Inputs]
_PLACES = {name: variable(name) for name in ("b", "h", "i", "j", "p", "n_q", "n_k", "s")}

MIN_COLUMN_MASS = 1e-30  # below this, float32 weights do not hold the digits of a column's sum


@runtime_checkable
class SupportsColumnSums(Protocol):
    """An engine that computes, in one pass over rows, their lse and the weight that each key receives."""

    def received(self, spec: Spec, inputs: Inputs) -> tuple[Tensor, Tensor] | None: ...


def balanced(engine: Engine, spec: Spec, inputs: Inputs, iterations: int) -> PassCall:
    """The call whose softmax is Sinkhorn's: v_j of the last pass over columns is added to its scores."""
    if iterations == 1 or 0 in spec.lengths:
        return spec, inputs
    refuse_identity(spec, inputs)
    rows = _without_values(spec, inputs)
    columns = _transposed(*rows)
    v: Tensor | None = None
    unseen: Tensor | None = None
    for _ in range(iterations - 1):
        row_lse, column_lse, unseen = _passes(engine, *rows, v, unseen)
        u = _potential(_differentiable(engine, *_added(*rows, v), row_lse))
        v = _potential(_differentiable(engine, *_added(*columns, u), column_lse))
    return _added(spec, inputs, v)


def _potential(lse: Tensor) -> Tensor:
    """-lse of each row or column, 0 where nothing is visible."""
    is_empty = lse == -torch.inf
    return torch.where(is_empty, 0.0, -torch.where(is_empty, 0.0, lse))


def _differentiable(engine: Engine, spec: Spec, inputs: Inputs, lse: Tensor) -> Tensor:
    """The known lse of a call without values, with derivatives in the call's tensors if autograd needs them."""
    if not watched(inputs.every()):
        return lse
    no_values = lse.new_zeros((spec.batch, spec.heads, spec.n_q, 1))
    _, statistic = resumed(engine, spec, engine.tiles(spec), inputs, no_values, lse)
    assert statistic is not None
    return statistic


def _passes(
    engine: Engine, spec: Spec, inputs: Inputs, v: Tensor | None, unseen: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The lse of every row, with v added to the scores, and then of every column; and the keys no query attends to.

    All of them are constants to autograd. `unseen` is the last result of an earlier pass.
    """
    if not watched(inputs.every()):
        return _lse_of_both(engine, spec, inputs, v, unseen)
    call = Call(engine, spec, engine.tiles(spec), inputs.detached())
    row_lse, column_lse, unseen = _Passes.apply(call, v, unseen, *inputs.every())  # type: ignore[no-untyped-call]  # torch
    return row_lse, column_lse, unseen


class _Passes(torch.autograd.Function):
    """(call, v, unseen, x...) -> the results of `_passes`, none of them differentiable."""

    @staticmethod
    def forward(call: Call, v: Tensor | None, unseen: Tensor | None, *x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _lse_of_both(call.engine, call.spec, call.inputs.holding(x), v, unseen)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return None, None, None, *(None for _ in ctx.needs_input_grad[3:])

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        return None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return batched(_Passes, info, in_dims, *args)


def _lse_of_both(
    engine: Engine, spec: Spec, inputs: Inputs, v: Tensor | None, unseen: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    call = _added(spec, inputs, v)
    sums = engine.received(*call) if isinstance(engine, SupportsColumnSums) else None
    row_lse = _lse(engine, *call) if sums is None else sums[0]
    if sums is not None:
        mass = sums[1] if unseen is None else torch.where(unseen, 1.0, sums[1])
        if not bool((mass < MIN_COLUMN_MASS).any()):
            column_lse = mass.log().to(row_lse.dtype) - (0.0 if v is None else v)
            unseen = torch.zeros_like(column_lse, dtype=torch.bool) if unseen is None else unseen
            return row_lse, torch.where(unseen, -torch.inf, column_lse), unseen
    column_lse = _lse(engine, *_added(*_transposed(spec, inputs), _potential(row_lse)))
    return row_lse, column_lse, column_lse == -torch.inf


def _lse(engine: Engine, spec: Spec, inputs: Inputs) -> Tensor:
    _, lse = engine.forward(spec, inputs, engine.tiles(spec))
    assert lse is not None
    return lse


def _without_values(spec: Spec, inputs: Inputs) -> PassCall:
    nothing = inputs.v.new_zeros((*inputs.v.shape[:-1], 1))
    return replace(spec, value_width=1, dropout=0.0), replace(inputs, v=nothing)


def _added(spec: Spec, inputs: Inputs, numbers: Tensor | None) -> PassCall:
    """The call with one number for each key (batch, heads, n_k) added to its scores."""
    if numbers is None:
        return spec, inputs
    at = lookup(len(inputs.tensors), (_PLACES["b"], _PLACES["h"], _PLACES["j"]), "float")
    rule = apply("add", _PLACES["s"] if spec.rule is None else spec.rule, at)
    captured = (*spec.tensors, (tuple(numbers.shape), numbers.dtype))
    return replace(spec, rule=rule, tensors=captured), replace(inputs, tensors=(*inputs.tensors, numbers))


def _transposed(spec: Spec, inputs: Inputs) -> PassCall:
    """The call in which keys attend to queries: positions in the mask and the score change places."""
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
        q=inputs.k.repeat_interleave(spec.heads // max(1, inputs.k.shape[1]), dim=1),
        k=inputs.q,
        v=inputs.v.new_zeros((*inputs.q.shape[:-1], 1)),
        tensors=tensors,
        start=0,
        function=None if function is None else lambda q, k, *more: function(k, q, *more).mT,
    )
