"""Run a planned call: prepare the inputs, run the backend, apply what follows the weighted sum."""

from contextlib import nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.native.missing_core import core_error, warn_missing_core
from regard.backends.protocol import Backend
from regard.backends.registry import BACKENDS_BY_NAME, NATIVE
from regard.backends.shared.autograd import differentiable_forward
from regard.backends.shared.relative_values import relative_output
from regard.backends.shared.sinkhorn import reduce_to_softmax
from regard.backends.shared.weight_tiles import WeightInputs
from regard.call.spec import BackendInputs, CallSpec, ParsedCall
from regard.errors import ArgumentError
from regard.plan.choose import Plan
from regard.tensors.precision import without_autocast

CORE_ERROR = core_error()  # empty if nothing is wrong with the compiled core


class Execution(NamedTuple):
    """The result of a call and the state that its weights can be recomputed from."""

    output: Tensor  # (batch, heads, n_q, value_dim)
    raw_output: Tensor  # the output of the backend, before the epilogue
    statistic: Tensor | None  # (batch, heads, n_q)
    plan: Plan  # the plan of the call, with the backend that ran
    softmax_plan: Plan  # the same plan; for Sinkhorn, of its last pass
    inputs: BackendInputs  # of `softmax_plan`


def execute(
    call: ParsedCall, plan: Plan, n_k: int | Tensor | None = None, positions: tuple[Tensor, Tensor] | None = None
) -> Execution:
    """Run a call. `n_k` and `positions` are those of `apply_epilogue`."""
    if CORE_ERROR and not plan.is_requested and not NATIVE.unsupported_spec_reasons(plan.spec):
        warn_missing_core(CORE_ERROR)
    backend = BACKENDS_BY_NAME[plan.backend]
    device = call.q.device.type
    if device == "meta":
        raise ArgumentError(
            "q, k and v must hold data; tensors on the device meta have only shapes. Pass tensors on another device, "
            "or the shapes to regard.explain."
        )
    with without_autocast(device) if torch.is_autocast_enabled(device) else nullcontext():
        softmax_plan, inputs = prepare_inputs(call, plan, backend)
        spec = spec_before_factor(call, softmax_plan)
        result = differentiable_forward(backend, spec, plan.tiling, inputs)
        if result.backend is not backend:
            plan = plan.after_fallback(result.backend, result.fallback_reason)
            softmax_plan = softmax_plan.after_fallback(result.backend, result.fallback_reason)
        output = apply_epilogue(call, softmax_plan, inputs, result.output, result.statistic, n_k, positions)
    return Execution(output, result.output, result.statistic, plan, softmax_plan, inputs)


def prepare_inputs(call: ParsedCall, plan: Plan, backend: Backend) -> tuple[Plan, BackendInputs]:
    """The inputs of the backend. For Sinkhorn, run all passes but the last and plan the last one as a softmax."""
    inputs = call.prepare_inputs(backend.compute_dtype)
    if call.normalizer.iterations == 1:
        return plan, inputs
    spec, inputs = reduce_to_softmax(backend, plan.spec, inputs, call.normalizer.iterations)
    return replace(plan, spec=spec), inputs


def spec_before_factor(call: ParsedCall, plan: Plan) -> CallSpec:
    """The spec that the backend runs. If a factor follows, the output is rounded after the factor, not before."""
    spec = plan.spec
    return spec if call.normalizer.factor is None else replace(spec, dtype=spec.score_dtype)


def apply_epilogue(
    call: ParsedCall,
    plan: Plan,
    inputs: BackendInputs,
    output: Tensor,
    statistic: Tensor | None,
    n_k: int | Tensor | None = None,
    positions: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Add relative values to a backend's output and multiply it by the normalizer's factor.

    `n_k` is the number of keys that the factor depends on, if it differs by query. `positions` are those of the queries
    and keys, if they are not consecutive.
    """
    if call.relative_values is not None:
        output = output + relative_output(WeightInputs(plan.spec, inputs, statistic), call.relative_values, positions)
    if call.normalizer.factor is not None:
        output = scale_by_factor(call, output, statistic, plan.spec.n_k if n_k is None else n_k, plan.spec.score_dtype)
    return output.to(plan.spec.dtype)


def scale_by_factor(
    call: ParsedCall, output: Tensor, statistic: Tensor | None, n_k: int | Tensor, score_dtype: torch.dtype
) -> Tensor:
    """The output times the normalizer's factor of each row, in at least `score_dtype`.

    The gradient of a learned factor is a sum over all rows, so it needs the precision of the sums.
    """
    assert call.normalizer.factor is not None
    factor = call.normalizer.factor(statistic, n_k)
    per_row = factor.unsqueeze(-1) if isinstance(factor, Tensor) and factor.dim() else factor
    return output.to(torch.promote_types(output.dtype, score_dtype)) * per_row
