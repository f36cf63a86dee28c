"""The operators that represent a call in a graph: `regard::attention` and its backward pass.

torch builds graphs from what is registered here: shapes, gradients, and the rules of vmap and autocast. The operators
run the same plan and backend as an eager call, which does not use them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch._functorch.utils import enable_single_level_autograd_function
from torch.library import Library, impl, register_fake, register_vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from regard.backends.execute import apply_epilogue, execute, prepare_inputs, spec_before_factor
from regard.backends.registry import BACKENDS, BACKENDS_BY_NAME
from regard.backends.shared.autograd import attach_gradient
from regard.cache import BoundedCache
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.call.spec import ParsedCall
from regard.errors import BackendError
from regard.expr.serialize import deserialize_options
from regard.plan.choose import Plan, choose_backend
from regard.tensors.precision import without_autocast

# the options in `options`, in the order of `emit_graph_node`
OPERATOR_OPTIONS = ("score", "mask", "normalizer", "value", "query_offset", "backend", "dropout", "seed")
SCHEMA_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor[] tensors, SymInt[] numbers, str options"

_library = Library("regard", "DEF")  # the registrations live as long as this object
_library.define(
    f"attention({SCHEMA_INPUTS}, bool raw_is_output) -> (Tensor output, Tensor statistic, Tensor raw)",
    tags=torch.Tag.pt2_compliant_tag,
)
_library.define(
    f"attention_backward(Tensor d_output, {SCHEMA_INPUTS}, Tensor raw, Tensor statistic, bool[] needs) -> Tensor[]",
    tags=torch.Tag.pt2_compliant_tag,
)
_attention = torch.ops.regard.attention.default
_attention_backward = torch.ops.regard.attention_backward.default


@impl(_library, "attention", "CompositeExplicitAutograd")
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: list[Tensor],
    numbers: list[int],
    options: str,
    raw_is_output: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the row statistic, and the backend's output before the epilogue.

    If there is no epilogue, `raw_is_output` is True and the third result is empty. `options` is the text of
    `serialize`, which refers to `tensors` and `numbers`.
    """
    parsed, plan = _parse_and_plan(q, k, v, tensors, numbers, options)
    with without_autocast(q.device.type):
        execution = execute(parsed, plan)
        raw, statistic = execution.raw_output, execution.statistic
        rows = raw.new_zeros(raw.shape[:-1]) if statistic is None else statistic
        saved = q.new_empty(0) if raw_is_output else parsed.restore_shape(raw.to(_raw_dtype(q), copy=True))
    output = parsed.restore_shape(execution.output)
    return output.contiguous(), parsed.restore_shape(rows.double()).contiguous(), saved.contiguous()


@impl(_library, "attention_backward", "CompositeExplicitAutograd")
def _backward(
    d_output: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: list[Tensor],
    numbers: list[int],
    options: str,
    raw: Tensor,
    statistic: Tensor,
    needs_input_grad: list[bool],
) -> list[Tensor]:
    """The gradients of q, k, v and the tensors that need one, from the saved results of the forward pass."""
    with _enable_autograd(), without_autocast(q.device.type):
        leaves = [
            x.detach().requires_grad_(needed) for x, needed in zip((q, k, v, *tensors), needs_input_grad, strict=True)
        ]
        parsed, plan = _parse_and_plan(leaves[0], leaves[1], leaves[2], leaves[3:], numbers, options)
        backend = BACKENDS_BY_NAME[plan.backend]
        plan, inputs = prepare_inputs(parsed, plan, backend)
        results = attach_gradient(backend, spec_before_factor(parsed, plan), plan.tiling, inputs, raw, statistic)
        output = parsed.restore_shape(apply_epilogue(parsed, plan, inputs, *results))
        sources = [x for x in leaves if x.requires_grad]
        gradients = torch.autograd.grad(output, sources, d_output, allow_unused=True)
    filled = [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, sources, strict=True)]
    return [g.contiguous() for g in filled]


def _parse_and_plan(
    q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor], numbers: Sequence[int], options: str
) -> tuple[ParsedCall, Plan]:
    call = AttentionCall(q, k, v, **_parse_options(options, tensors, tuple(numbers)))
    seed: Any = call.seed
    if isinstance(seed, Tensor):  # drawn in the graph
        call = call._replace(seed=int(seed))
    parsed = parse_call(call)
    return parsed, choose_backend(parsed.spec, BACKENDS, call.backend)


_options_cache: BoundedCache[dict[str, Any]] = BoundedCache("options of graph nodes")


def _parse_options(options: str, tensors: Sequence[Tensor], numbers: tuple[int, ...]) -> dict[str, Any]:
    """The options of a call by name. Options without tensors are cached, since a graph runs many times."""
    if tensors:
        return deserialize_options(options, tensors, numbers, OPERATOR_OPTIONS)
    return _options_cache.get_or_create(
        (options, numbers), lambda: deserialize_options(options, (), numbers, OPERATOR_OPTIONS)
    )


_AUTOGRAD_KEYS = DispatchKeySet(DispatchKey.AutogradFunctionality)
_AUTOGRAD_KEYS |= DispatchKeySet(DispatchKey.AutogradOther) | DispatchKeySet(DispatchKey.AutogradNestedTensor)


@contextmanager
def _enable_autograd() -> Iterator[None]:
    """Inside the context, autograd records operations even though an operator is running."""
    excluded = torch._C._dispatch_tls_local_exclude_set() - _AUTOGRAD_KEYS
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded), torch.enable_grad():
        yield


# Shapes, for graphs that are traced without data.


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    raw_is_output = rest[-1]
    outer = -3 if q.dim() >= 4 else -2
    batch = torch.broadcast_shapes(q.shape[:outer], k.shape[:outer], v.shape[:outer])
    rows = (*batch, *q.shape[outer:-1])
    output = q.new_empty((*rows, v.shape[-1]))
    raw = q.new_empty(0) if raw_is_output else torch.empty_like(output, dtype=_raw_dtype(q))
    return output, q.new_empty(rows, dtype=torch.float64), raw


def _raw_dtype(q: Tensor) -> torch.dtype:
    """The dtype of the backend's output before the epilogue: float32 or better."""
    return torch.promote_types(q.dtype, torch.float32)


def _backward_fake(
    d_output: Tensor, q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor], *rest: Any
) -> list[Tensor]:
    needs = rest[-1]
    inputs = zip((q, k, v, *tensors), needs, strict=True)
    return [x.new_empty(x.shape) for x, needed in inputs if needed]


register_fake("regard::attention", _forward_fake, lib=_library)
register_fake("regard::attention_backward", _backward_fake, lib=_library)


# Derivatives. Single-level functions, so that torch.func can be nested around them as around torch's own operators.


class _AttentionFunction(torch.autograd.function._SingleLevelFunction):
    """(q, k, v, numbers, options, raw_is_output, tensors...) -> output, statistic, raw."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
        numbers, options, raw_is_output, *tensors = rest
        with torch._C._AutoDispatchBelowAutograd():
            return _attention(q, k, v, tensors, numbers, options, raw_is_output)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        q, k, v, ctx.numbers, ctx.options, raw_is_output, *tensors = inputs
        attention_output, statistic, raw = output
        ctx.mark_non_differentiable(statistic, raw)
        ctx.save_for_backward(attention_output if raw_is_output else raw, statistic, q, k, v, *tensors)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        raw, statistic, q, k, v, *tensors = ctx.saved_tensors
        needs = [*ctx.needs_input_grad[:3], *ctx.needs_input_grad[6:]]
        call = q, k, v, tensors, ctx.numbers, ctx.options
        gradients = iter(_attention_backward(d_output, *call, raw, statistic, needs))
        d_q, d_k, d_v, *d_tensors = (next(gradients) if needed else None for needed in needs)
        return d_q, d_k, d_v, None, None, None, *d_tensors


class _FirstOrderBackward(torch.autograd.function._SingleLevelFunction):
    """The backward pass, which has no derivative: (tree structure, flattened arguments...) -> gradients."""

    @staticmethod
    def forward(structure: Any, *flat: Any) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            return tuple(_attention_backward(*tree_unflatten(flat, structure)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is saved."""

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise BackendError(
            "a graph of torch.compile or torch.export supports first derivatives; got a second derivative. "
            "Call regard.attention outside of the graph for derivatives of every order."
        )


def _apply(function: Any, *args: Any) -> Any:
    with enable_single_level_autograd_function():
        return function.apply(*args)


@impl(_library, "attention", "Autograd")
def _autograd_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: list[Tensor],
    numbers: list[int],
    options: str,
    raw_is_output: bool,
) -> Any:
    return _apply(_AttentionFunction, q, k, v, numbers, options, raw_is_output, *tensors)


@impl(_library, "attention_backward", "Autograd")
def _autograd_backward(*args: Any) -> list[Tensor]:
    flat, structure = tree_flatten(args)
    return list(_apply(_FirstOrderBackward, structure, *flat))


# vmap and autocast.


def _vmap_rule(operator: Any, info: Any, in_dims: Sequence[Any], *args: Any) -> tuple[Any, Any]:
    """The vmap rule: a loop over the batch."""
    flat, structure = tree_flatten(args)
    dims = [d for arg, dim in zip(args, in_dims, strict=True) for d in _flatten_in_dims(arg, dim)]
    results = []
    for n in range(info.batch_size):
        element = [x if d is None else x.select(d, n) for x, d in zip(flat, dims, strict=True)]
        results.append(operator(*tree_unflatten(element, structure)))
    kind = type(results[0])
    stacked = [torch.stack(parts) for parts in zip(*results, strict=True)]
    return kind(stacked), kind([0] * len(stacked))


def _flatten_in_dims(arg: Any, dim: Any) -> Sequence[Any]:
    """The batch dimensions of an argument: several if the argument is a list."""
    if not isinstance(arg, (list, tuple)):
        return [dim]
    return dim if isinstance(dim, (list, tuple)) else [dim] * len(arg)


register_vmap("regard::attention", partial(_vmap_rule, _attention), lib=_library)
register_vmap("regard::attention_backward", partial(_vmap_rule, _attention_backward), lib=_library)


def _forward_under_autocast(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    """Autocast mixes dtypes on purpose: use the widest, so that nothing is rounded."""
    widest = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    with without_autocast(q.device.type):
        return _attention(q.to(widest), k.to(widest), v.to(widest), *rest)


for _key in ("AutocastCPU", "AutocastCUDA", "AutocastXPU"):
    _library.impl("attention", _forward_under_autocast, _key)
