"""The Sinkhorn normalizer: rows and columns are normalized in turn. Each pass over the tiles stores one number per row.

With potentials u_i for rows and v_j for columns, a_ij = exp(s_ij + u_i + v_j), and

    u_i = -log sum_j exp(s_ij + v_j),      v_j = -log sum_i exp(s_ij + u_i)

A pass over rows is the lse of a call without values, with v_j added to its scores. A pass over columns is the lse of
the transposed call, in which keys attend to queries, with u_i added. The last pass over rows is the output itself:
softmax of s_ij + v_j.

A pass over rows can also give the next v_j: v_j minus the logarithm of the weight that key j receives, the sum over i
of exp(s_ij + u_i + v_j). That halves the work on a backend that sums columns. Both potentials are then known before
autograd starts: derivatives start from the known lse of each pass, so that the results are the same with and without
them.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.backends.protocol import Backend, SupportsColumnSums
from regard.backends.shared.autograd import BackendCall, attach_gradient, needs_autograd, run_forward, vmap_loop
from regard.backends.shared.sinkhorn_support import check_allows_more_than_identity
from regard.call.spec import BackendInputs, CallSpec
from regard.expr.ir import Expr, apply, constant, lookup, substitute, variable

PassInputs = tuple[CallSpec, BackendInputs]
_POSITIONS = {name: variable(name) for name in ("b", "h", "i", "j", "p", "n_q", "n_k", "s")}

MIN_COLUMN_MASS = 1e-30  # below this, float32 weights do not hold the digits of a column's sum


def reduce_to_softmax(backend: Backend, spec: CallSpec, inputs: BackendInputs, iterations: int) -> PassInputs:
    """The call whose softmax is Sinkhorn's: v_j of the last pass over columns is added to its scores."""
    if iterations == 1 or 0 in spec.score_shape:
        return spec, inputs
    check_allows_more_than_identity(spec, inputs)
    rows = _without_values(spec, inputs)
    columns = _transpose_call(*rows)
    v: Tensor | None = None
    unattended: Tensor | None = None
    for _ in range(iterations - 1):
        row_lse, column_lse, unattended = _row_and_column_lse(backend, *rows, v, unattended)
        u = _potential(_with_derivatives(backend, *_add_per_key(*rows, v), row_lse))
        v = _potential(_with_derivatives(backend, *_add_per_key(*columns, u), column_lse))
    return _add_per_key(spec, inputs, v)


def _potential(lse: Tensor) -> Tensor:
    """-lse of each row or column, 0 where nothing is visible."""
    is_empty = lse == -torch.inf
    return torch.where(is_empty, 0.0, -torch.where(is_empty, 0.0, lse))


def _with_derivatives(backend: Backend, spec: CallSpec, inputs: BackendInputs, lse: Tensor) -> Tensor:
    """The known lse of a call without values, with derivatives in the call's tensors if autograd needs them."""
    if not needs_autograd(inputs.all_tensors()):
        return lse
    no_values = lse.new_zeros((spec.batch_size, spec.num_heads, spec.n_q, 1))
    _, statistic = attach_gradient(backend, spec, backend.tiling(spec), inputs, no_values, lse)
    assert statistic is not None
    return statistic


def _row_and_column_lse(
    backend: Backend, spec: CallSpec, inputs: BackendInputs, v: Tensor | None, unattended: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The lse of every row, with v added to the scores, and then of every column; and the keys no query attends to.

    All of them are constants to autograd. `unattended` is the last result of an earlier pass.
    """
    if not needs_autograd(inputs.all_tensors()):
        return _compute_lse_pair(backend, spec, inputs, v, unattended)
    call = BackendCall(backend, spec, backend.tiling(spec), inputs.detached())
    row_lse, column_lse, unattended = _RowAndColumnLse.apply(call, v, unattended, *inputs.all_tensors())  # type: ignore[no-untyped-call]  # torch
    return row_lse, column_lse, unattended


class _RowAndColumnLse(torch.autograd.Function):
    """(call, v, unattended, x...) -> the results of `_compute_lse_pair`, none of them differentiable."""

    @staticmethod
    def forward(
        call: BackendCall, v: Tensor | None, unattended: Tensor | None, *x: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return _compute_lse_pair(call.backend, call.spec, call.inputs.with_tensors(x), v, unattended)

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
        return vmap_loop(_RowAndColumnLse, info, in_dims, *args)


def _compute_lse_pair(
    backend: Backend, spec: CallSpec, inputs: BackendInputs, v: Tensor | None, unattended: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    call = _add_per_key(spec, inputs, v)
    sums = backend.column_sums(*call) if isinstance(backend, SupportsColumnSums) else None
    row_lse = _lse(backend, *call) if sums is None else sums[0]
    if sums is not None:
        mass = sums[1] if unattended is None else torch.where(unattended, 1.0, sums[1])
        if not bool((mass < MIN_COLUMN_MASS).any()):
            column_lse = mass.log().to(row_lse.dtype) - (0.0 if v is None else v)
            unattended = torch.zeros_like(column_lse, dtype=torch.bool) if unattended is None else unattended
            return row_lse, torch.where(unattended, -torch.inf, column_lse), unattended
    column_lse = _lse(backend, *_add_per_key(*_transpose_call(spec, inputs), _potential(row_lse)))
    return row_lse, column_lse, column_lse == -torch.inf


def _lse(backend: Backend, spec: CallSpec, inputs: BackendInputs) -> Tensor:
    lse = run_forward(backend, spec, inputs, backend.tiling(spec)).statistic
    assert lse is not None
    return lse


def _without_values(spec: CallSpec, inputs: BackendInputs) -> PassInputs:
    zeros = inputs.v.new_zeros((*inputs.v.shape[:-1], 1))
    return replace(spec, value_dim=1, dropout=0.0), replace(inputs, v=zeros)


def _add_per_key(spec: CallSpec, inputs: BackendInputs, per_key: Tensor | None) -> PassInputs:
    """The call with one number for each key (batch, heads, n_k) added to its scores."""
    if per_key is None:
        return spec, inputs
    added = lookup(len(inputs.tensors), (_POSITIONS["b"], _POSITIONS["h"], _POSITIONS["j"]), "float")
    score_mod = apply("add", _POSITIONS["s"] if spec.score_mod is None else spec.score_mod, added)
    captured = (*spec.captured_specs, (tuple(per_key.shape), per_key.dtype))
    return replace(spec, score_mod=score_mod, captured_specs=captured), replace(
        inputs, tensors=(*inputs.tensors, per_key)
    )


def _transpose_call(spec: CallSpec, inputs: BackendInputs) -> PassInputs:
    """The call in which keys attend to queries: positions in the mask and the score change places."""
    tensors = inputs.tensors
    query_offset: Expr = (
        constant(inputs.query_offset)
        if isinstance(inputs.query_offset, int)
        else lookup(len(tensors), (_POSITIONS["b"],), "int")
    )
    if isinstance(inputs.query_offset, Tensor):
        tensors = (*tensors, inputs.query_offset)
    swapped = {
        _POSITIONS["i"]: _POSITIONS["j"],
        _POSITIONS["j"]: _POSITIONS["i"],
        _POSITIONS["p"]: apply("add", _POSITIONS["j"], query_offset),
        _POSITIONS["n_q"]: _POSITIONS["n_k"],
        _POSITIONS["n_k"]: _POSITIONS["n_q"],
    }
    function = inputs.score_function
    spec = replace(
        spec,
        num_kv_heads=spec.num_heads,
        n_q=spec.n_k,
        n_k=spec.n_q,
        score_mod=None if spec.score_mod is None else substitute(spec.score_mod, swapped),
        mask=substitute(spec.mask, swapped),
        query_offset=0,
        captured_specs=tuple((tuple(t.shape), t.dtype) for t in tensors),
    )
    return spec, replace(
        inputs,
        q=inputs.k.repeat_interleave(spec.num_heads // max(1, inputs.k.shape[1]), dim=1),
        k=inputs.q,
        v=inputs.v.new_zeros((*inputs.q.shape[:-1], 1)),
        tensors=tensors,
        query_offset=0,
        score_function=None if function is None else lambda q, k, *more: function(k, q, *more).mT,
    )
