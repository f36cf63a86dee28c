"""Partial attention: the output and row statistic of some queries over some of the keys, and how to merge them.

Partial outputs are at least float32 and do not include the normalizer's final factor.
"""

from dataclasses import replace

import torch
from torch import Tensor

from regard.backends.execute import apply_epilogue, scale_by_factor
from regard.backends.registry import BACKENDS, BACKENDS_BY_NAME
from regard.backends.shared.autograd import differentiable_forward
from regard.call.spec import BackendInputs, CallSpec, ParsedCall
from regard.call.subcall import StridedRange, make_subcall
from regard.expr.ir import Expr, apply, lookup, variable
from regard.plan.choose import choose_backend

PartialOutput = tuple[Tensor, Tensor | None]  # output (batch, heads, n_q, value_dim) and row statistic


def partial_attention(
    call: ParsedCall, queries: StridedRange, keys: StridedRange, backend: str | None, key_counts: Tensor | None = None
) -> PartialOutput:
    """Return the partial attention of `queries` over `keys`; `call` holds the rows of both.

    Half precision inputs are computed in float32, so that the merged output is rounded once. With `key_counts`
    (batch,), batch element b attends only to the first key_counts[b] of the keys.
    """
    inputs = call.prepare_inputs(torch.float64 if backend == "reference" else None)
    inputs = replace(inputs, q=_upcast(inputs.q), k=_upcast(inputs.k), v=_upcast(inputs.v))
    spec, inputs = make_subcall(call, inputs, queries, keys)
    if key_counts is not None:
        spec, inputs = _mask_by_key_counts(spec, inputs, key_counts)
    plan = choose_backend(replace(spec, dtype=_accumulation_dtype(spec.dtype)), BACKENDS, backend)
    output, statistic, *_ = differentiable_forward(BACKENDS_BY_NAME[plan.backend], plan.spec, plan.tiling, inputs)
    if call.relative_values is not None:  # a sum over the same weights, so it merges as the output does
        without_factor = replace(call, normalizer=replace(call.normalizer, factor=None))
        assert isinstance(call.query_offset, int), "callers must reject one query_offset per batch element"
        positions = torch.tensor(queries.to_range()) + call.query_offset, torch.tensor(keys.to_range())
        output = apply_epilogue(without_factor, plan, inputs, output, statistic, None, positions)
    return output, statistic


def merge_partial_(accumulated: PartialOutput | None, partial: PartialOutput) -> PartialOutput:
    """Merge a partial output into `accumulated` in place and return the result.

    Outputs are weighted by their lse, or added if the normalizer has no row statistic. `regard.merge_states` does the
    same out of place.
    """
    if accumulated is None:
        return partial
    (output, lse), (new_output, new_lse) = accumulated, partial
    if lse is None or new_lse is None:
        return output.add_(new_output), None
    total = torch.logaddexp(lse, new_lse)
    reference = torch.where(total == -torch.inf, 0.0, total)  # without visible keys both weights are exp(-inf) = 0
    weight, new_weight = (torch.exp(x - reference).unsqueeze(-1).to(output.dtype) for x in (lse, new_lse))
    return output.mul_(weight).addcmul_(new_output, new_weight), total


def finalize_partial(call: ParsedCall, partial: PartialOutput, n_k: int | Tensor | None = None) -> Tensor:
    """Apply the normalizer's factor to a complete partial output and cast it to the dtype of the call.

    `n_k` is the number of keys, as a tensor if it differs between queries; None takes that of the call.
    """
    output, statistic = partial
    if call.normalizer.factor is not None:
        output = scale_by_factor(call, output, statistic, call.spec.n_k if n_k is None else n_k, output.dtype)
    return output.to(call.spec.dtype)


def _mask_by_key_counts(spec: CallSpec, inputs: BackendInputs, key_counts: Tensor) -> tuple[CallSpec, BackendInputs]:
    """Restrict batch element b to its first key_counts[b] keys."""
    is_real: Expr = apply("lt", variable("j"), lookup(len(inputs.tensors), (variable("b"),), "int"))
    tensors = (*inputs.tensors, key_counts)
    shapes = tuple((tuple(t.shape), t.dtype) for t in tensors)
    return replace(spec, mask=apply("and", spec.mask, is_real), captured_specs=shapes), replace(inputs, tensors=tensors)


def _upcast(rows: Tensor) -> Tensor:
    return rows.to(_accumulation_dtype(rows.dtype))


def _accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
