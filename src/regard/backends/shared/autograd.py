"""Derivatives of every order, for every backend.

With F(x) the results (output and row statistic) for the inputs x, a backend computes F and its vector-Jacobian product
VJP(x, c) = c·F'(x). All other derivatives follow from two more maps, computed by autograd of the direct formula in
blocks of queries, so in O(n) memory:

    JVP(x, t)            = F'(x) t                       forward mode
    SecondOrder(x, c, t) = the gradient w.r.t. x of c·F'(x) t

The derivatives of VJP are SecondOrder and JVP, and those of JVP are SecondOrder and VJP. Each map is an autograd
function that torch can differentiate, transform and batch. Only the derivative of SecondOrder (third order) stores a
graph of all pairs.
"""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard.backends.protocol import Backend, SavedForBackward, UnsupportedCall
from regard.backends.shared.dense import dense_attention
from regard.call.spec import BackendInputs, CallSpec
from regard.plan.tiling import Tiling, ranges
from regard.tensors.precision import without_autocast

MAX_PAIRS_PER_BLOCK = 2**18  # of the direct formula: about ten MB


class ForwardResult(NamedTuple):
    """The output of a forward pass, its row statistic, and the backend that ran."""

    output: Tensor
    statistic: Tensor | None
    backend: Backend
    fallback_reason: str = ""  # why the requested backend did not run; "" if it did


def run_forward(backend: Backend, spec: CallSpec, inputs: BackendInputs, tiling: Tiling) -> ForwardResult:
    """Run a backend's forward pass, or its fallback's if the backend does not support the data."""
    try:
        return ForwardResult(*backend.forward(spec, inputs, tiling), backend)
    except UnsupportedCall as reason:
        if backend.fallback is None:
            raise
        fallback, message = backend.fallback, str(reason)
    return ForwardResult(*fallback.forward(spec, inputs, fallback.tiling(spec)), fallback, message)


def run_backward(
    backend: Backend,
    spec: CallSpec,
    inputs: BackendInputs,
    tiling: Tiling,
    saved: SavedForBackward,
    needs_input_grad: Sequence[bool],
) -> list[Tensor]:
    """Run a backend's backward pass, or its fallback's if the backend does not support the data."""
    try:
        return backend.backward(spec, inputs, tiling, saved, needs_input_grad)
    except UnsupportedCall:
        if backend.fallback is None:
            raise
        fallback = backend.fallback
    return fallback.backward(spec, inputs, fallback.tiling(spec), saved, needs_input_grad)


@dataclass(eq=False)
class BackendCall:
    """A spec on a backend. The functions below replace the tensors of `inputs` by their own arguments.

    `backend` and `tiling` become those of the fallback if the forward pass falls back.
    """

    backend: Backend
    spec: CallSpec
    tiling: Tiling
    inputs: BackendInputs
    fallback_reason: str = ""

    def run_forward(self, spec: CallSpec, inputs: BackendInputs) -> tuple[Tensor, Tensor | None]:
        result = run_forward(self.backend, spec, inputs, self.tiling)
        if result.backend is not self.backend:
            self.backend, self.tiling = result.backend, result.backend.tiling(spec)
            self.fallback_reason = result.fallback_reason
        return result.output, result.statistic


def differentiable_forward(backend: Backend, spec: CallSpec, tiling: Tiling, inputs: BackendInputs) -> ForwardResult:
    """Run a backend, or its fallback, so that the results are differentiable in every tensor of `inputs`."""
    if not needs_autograd(inputs.all_tensors()):
        return run_forward(backend, spec, inputs, tiling)
    call = BackendCall(backend, spec, tiling, inputs.detached())
    output, statistic, _ = _apply(Forward, call, *inputs.all_tensors())
    return ForwardResult(output, statistic if spec.normalizer.statistic else None, call.backend, call.fallback_reason)


def attach_gradient(
    backend: Backend, spec: CallSpec, tiling: Tiling, inputs: BackendInputs, output: Tensor, statistic: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Make known results of a call differentiable in `inputs`. Only their number of elements must be right."""
    rows = spec.batch_size, spec.num_heads, spec.n_q
    output = output.reshape(*rows, spec.value_dim).to(backend.compute_dtype or spec.dtype)
    has_statistic = spec.normalizer.statistic is not None
    row_statistic = (
        statistic.reshape(rows).to(backend.compute_dtype or spec.score_dtype) if has_statistic else output.new_empty(0)
    )
    call = BackendCall(backend, spec, tiling, inputs.detached())
    output, row_statistic = _apply(KnownForward, call, output, row_statistic, *inputs.all_tensors())
    return output, row_statistic if has_statistic else None


def needs_autograd(tensors: Sequence[Tensor]) -> bool:
    """Whether torch differentiates or transforms the tensors: gradients, tangents or torch.func."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return True
    return is_transform_active()


def is_transform_active() -> bool:
    """Whether forward-mode differentiation or a transform of torch.func is active."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def _apply(function: Any, *args: Any) -> Any:
    """Apply an autograd function outside of autocast: the spec alone decides the precision."""
    device = next(a.device.type for a in args if isinstance(a, Tensor))
    with without_autocast(device):
        return function.apply(*args)


def vmap_loop(function: Any, info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
    """The vmap rule of all functions here: a loop over the batch."""
    results = []
    for n in range(info.batch_size):
        element = [a.select(d, n) if isinstance(d, int) else a for a, d in zip(args, in_dims, strict=True)]
        results.append(_apply(function, *element))
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True)), (0,) * len(results[0])


def _unrounded_spec(call: BackendCall) -> CallSpec:
    """The spec with its output in the precision of the sums.

    A backward pass subtracts (gradient of the output)·output from the gradient of each weight. If one key has nearly
    all the weight, the rounding error of a half-precision output would exceed that difference.
    """
    is_rounded = call.backend.compute_dtype is None and call.spec.dtype.itemsize < call.spec.score_dtype.itemsize
    return replace(call.spec, dtype=call.spec.score_dtype) if is_rounded else call.spec


def with_unrounded_output(
    backend: Backend, spec: CallSpec, inputs: BackendInputs, tiling: Tiling, saved: SavedForBackward
) -> SavedForBackward:
    """`saved` with an output in the precision of the sums, recomputed if `saved` has a rounded one."""
    if saved.output.dtype.itemsize >= spec.score_dtype.itemsize:
        return saved
    output, _ = backend.forward(replace(spec, dtype=spec.score_dtype), inputs, tiling)
    return replace(saved, output=output)


class Forward(torch.autograd.Function):
    """F: (call, x...) -> output, statistic, and the output before it is rounded to half precision (or empty)."""

    @staticmethod
    def forward(call: BackendCall, *x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        spec = _unrounded_spec(call)
        exact, statistic = call.run_forward(spec, call.inputs.with_tensors(x))
        statistic = exact.new_empty(0) if statistic is None else statistic
        if spec is call.spec or exact.dtype != spec.dtype:
            return exact, statistic, exact.new_empty(0)
        return exact.to(call.spec.dtype), statistic, exact

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, *x = inputs
        rounded, statistic, exact = output
        ctx.mark_non_differentiable(exact)
        ctx.save_for_backward(exact if exact.shape == rounded.shape else rounded, statistic, *x)
        ctx.save_for_forward(*x)

    @staticmethod
    def backward(ctx: Any, *c: Tensor) -> Any:
        output, statistic, *x = ctx.saved_tensors
        needs = ctx.needs_input_grad[1:]
        return None, *_scatter_results(needs, _apply(VJP, ctx.call, tuple(needs), output, statistic, *c[:2], *x))

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        return *_apply(JVP, ctx.call, *ctx.saved_tensors, *_fill_missing_tangents(tangents, ctx.saved_tensors)), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return vmap_loop(Forward, info, in_dims, *args)


class KnownForward(torch.autograd.Function):
    """F with known results: (call, output, statistic, x...) -> output, statistic."""

    @staticmethod
    def forward(call: BackendCall, output: Tensor, statistic: Tensor, *x: Tensor) -> tuple[Tensor, Tensor]:
        return output.detach(), statistic.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *c: Tensor) -> Any:
        output, statistic, *x = ctx.saved_tensors
        needs = ctx.needs_input_grad[3:]
        return (
            None,
            None,
            None,
            *_scatter_results(needs, _apply(VJP, ctx.call, tuple(needs), output, statistic, *c, *x)),
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        x = ctx.saved_tensors[2:]
        return _apply(JVP, ctx.call, *x, *_fill_missing_tangents(tangents[3:], x))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return vmap_loop(KnownForward, info, in_dims, *args)


class VJP(torch.autograd.Function):
    """c·F'(x): (call, needs, output, statistic, c..., x...) -> the gradients of the x that need one."""

    @staticmethod
    def forward(call: BackendCall, needs_input_grad: tuple[bool, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        output, statistic, *c = tensors[:4]
        spec, inputs = _unrounded_spec(call), call.inputs.with_tensors(tensors[4:])
        saved = SavedForBackward(output, statistic, c[0], c[1])
        return tuple(run_backward(call.backend, spec, inputs, call.tiling, saved, needs_input_grad))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, ctx.needs, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *t: Tensor) -> Any:
        c, x = ctx.saved_tensors[2:4], ctx.saved_tensors[4:]
        tangents = _fill_missing_tangents(_scatter_results(ctx.needs, t), x)
        d_c = _apply(JVP, ctx.call, *x, *tangents)
        d_x = _apply(SecondOrder, ctx.call, ctx.needs, *c, *x, *tangents)
        return None, None, None, None, *d_c, *_scatter_results(ctx.needs, d_x)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        output, statistic, *rest = ctx.saved_tensors
        c, x = rest[:2], rest[2:]
        d_c, d_x = _fill_missing_tangents(tangents[4:6], c), _fill_missing_tangents(tangents[6:], x)
        through_x = _apply(SecondOrder, ctx.call, ctx.needs, *c, *x, *d_x)
        through_c = _apply(VJP, ctx.call, ctx.needs, output, statistic, *d_c, *x)
        return tuple(a + b for a, b in zip(through_x, through_c, strict=True))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return vmap_loop(VJP, info, in_dims, *args)


class JVP(torch.autograd.Function):
    """F'(x) t: (call, x..., tangents...) -> the tangents of output and statistic."""

    @staticmethod
    def forward(call: BackendCall, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        half = len(tensors) // 2
        return _dense_jvp(call, tensors[:half], tensors[half:])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *c: Tensor) -> Any:
        half = len(ctx.saved_tensors) // 2
        x, t = ctx.saved_tensors[:half], ctx.saved_tensors[half:]
        needs = tuple(a.is_floating_point() for a in x)
        d_x = _apply(SecondOrder, ctx.call, needs, *c, *x, *t)
        output, statistic, exact = _apply(Forward, ctx.call, *x)
        output = exact if exact.shape == output.shape else output
        d_t = _apply(VJP, ctx.call, needs, output, statistic, *c, *x)
        return None, *_scatter_results(needs, d_x), *_scatter_results(needs, d_t)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return vmap_loop(JVP, info, in_dims, *args)


class SecondOrder(torch.autograd.Function):
    """(call, needs, c..., x..., t...) -> the gradient of c·F'(x) t in the x that need one."""

    @staticmethod
    def forward(call: BackendCall, needs_input_grad: tuple[bool, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        half = (len(tensors) - 2) // 2
        return tuple(
            _dense_second_order(call, needs_input_grad, tensors[:2], tensors[2 : 2 + half], tensors[2 + half :])
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, ctx.needs, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *d: Tensor) -> Any:
        higher = torch.is_grad_enabled()
        half = (len(ctx.saved_tensors) - 2) // 2
        device = ctx.saved_tensors[0].device.type
        with torch.enable_grad(), without_autocast(device):
            leaves = [a if higher and a.requires_grad else _as_leaf(a) for a in ctx.saved_tensors]
            c, x, t = leaves[:2], leaves[2 : 2 + half], leaves[2 + half :]
            result = _dense_second_order(ctx.call, ctx.needs, c, x, t, keep_graph=True)
            sources = [a for a in leaves if a.is_floating_point()]
            gradients = torch.autograd.grad(result, sources, d, allow_unused=True, create_graph=higher)
        return None, None, *_scatter_results([a.is_floating_point() for a in leaves], gradients)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return vmap_loop(SecondOrder, info, in_dims, *args)


for _function in (Forward, VJP, JVP, SecondOrder):
    # torch inspects it at every call, which takes longer than the rest of the call
    _function.forward.__signature__ = inspect.signature(_function.forward)  # type: ignore[union-attr]


def _scatter_results(needs_input_grad: Sequence[bool], results: Sequence[Any]) -> list[Any]:
    """The results at the places that need one, None at the others."""
    remaining = iter(results)
    return [next(remaining) if needed else None for needed in needs_input_grad]


def _fill_missing_tangents(tangents: Sequence[Any], like: Sequence[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(x) if t is None else t for t, x in zip(tangents, like, strict=True)]


def _as_leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_(x.is_floating_point())


def row_blocks(spec: CallSpec) -> Iterator[range]:
    """Blocks of queries that are small enough for the direct formula."""
    pairs_per_row = max(1, spec.batch_size * spec.num_heads * spec.n_k)
    return iter(ranges(spec.n_q, max(1, MAX_PAIRS_PER_BLOCK // pairs_per_row)))


def _dense_outputs(spec: CallSpec, inputs: BackendInputs, rows: range, dtype: torch.dtype) -> list[Tensor]:
    output, statistic = dense_attention(spec, inputs, rows, dtype)
    return [output] if statistic is None else [output, statistic]


def _select_rows(parts: Sequence[Tensor], count: int, rows: range, like: Sequence[Tensor]) -> list[Tensor]:
    return [p[:, :, rows.start : rows.stop].to(a.dtype) for p, a in zip(parts[:count], like, strict=True)]


def dense_vjp(
    spec: CallSpec,
    inputs: BackendInputs,
    saved: SavedForBackward,
    needs_input_grad: Sequence[bool],
    *,
    rows: int,
    dtype: torch.dtype,
) -> list[Tensor]:
    """VJP by autograd of the direct formula, in blocks of `rows` queries."""
    with torch.enable_grad():
        leaves = [_as_leaf(t) for t in inputs.all_tensors()]
        inputs = inputs.with_tensors(leaves)
        sources = [leaf for leaf, needed in zip(leaves, needs_input_grad, strict=True) if needed]
        sums: list[Tensor | None] = [None] * len(sources)
        for block in ranges(spec.n_q, rows):
            results = _dense_outputs(spec, inputs, block, dtype)
            c = _select_rows([saved.d_output, saved.d_statistic], len(results), block, results)
            gradients = torch.autograd.grad(*_differentiable_parts(results, c, sources), allow_unused=True)
            sums = _accumulate(sums, gradients)
    return [torch.zeros_like(x) if total is None else total for total, x in zip(sums, sources, strict=True)]


def _differentiable_parts(
    outputs: Sequence[Tensor], c: Sequence[Tensor], sources: list[Tensor]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The arguments of `autograd.grad`: the results that depend on a source, the sources, and the gradients c."""
    parts = [(a, d) for a, d in zip(outputs, c, strict=True) if a.requires_grad]
    return [a for a, _ in parts], sources, [d for _, d in parts]


def _gradients_and_tangents(
    results: Sequence[Tensor], c: Sequence[Tensor], leaves: Sequence[Tensor], t: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients c·F'(x) that can be differentiated again, and the tangent t of each."""
    inputs = [(leaf, tangent) for leaf, tangent in zip(leaves, t, strict=True) if leaf.requires_grad]
    first = torch.autograd.grad(
        *_differentiable_parts(results, c, [leaf for leaf, _ in inputs]), create_graph=True, allow_unused=True
    )
    used = [(f, d.to(f.dtype)) for f, (_, d) in zip(first, inputs, strict=True) if f is not None and f.requires_grad]
    return [f for f, _ in used], [d for _, d in used]


def _accumulate(
    sums: list[Tensor | None], terms: Sequence[Tensor | None], in_place: bool = True
) -> list[Tensor | None]:
    """Add terms to running sums; in place by default, since new sums in each block would fragment the heap."""
    add = torch.Tensor.add_ if in_place else torch.Tensor.add
    return [m if s is None else s if m is None else add(s, m) for s, m in zip(sums, terms, strict=True)]


def _dense_jvp(call: BackendCall, x: Sequence[Tensor], t: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    spec = call.spec
    outputs: list[Tensor] = []
    statistics: list[Tensor] = []
    with torch.enable_grad():
        leaves = [_as_leaf(a) for a in x]
        for rows in row_blocks(spec):
            results = _dense_outputs(
                spec, call.inputs.with_tensors(leaves), rows, call.backend.compute_dtype or spec.score_dtype
            )
            # the derivative of c·F'(x) in c along t: two backward passes make a forward one
            c = [torch.zeros_like(a, requires_grad=True) for a in results]
            gradients, directions = _gradients_and_tangents(results, c, leaves, t)
            d_c = torch.autograd.grad(gradients, c, directions, allow_unused=True)
            tangents = [torch.zeros_like(a) if d is None else d for a, d in zip(c, d_c, strict=True)]
            outputs.append(tangents[0])
            statistics.extend(tangents[1:])
    empty = spec.batch_size, spec.num_heads, 0
    output = torch.cat(outputs, 2) if outputs else x[0].new_empty(*empty, spec.value_dim)
    statistic = torch.cat(statistics, 2) if statistics else x[0].new_empty(0)
    return output.detach().to(call.backend.compute_dtype or spec.dtype), statistic.detach()


def _dense_second_order(
    call: BackendCall,
    needs_input_grad: Sequence[bool],
    c: Sequence[Tensor],
    x: Sequence[Tensor],
    t: Sequence[Tensor],
    keep_graph: bool = False,
) -> list[Tensor]:
    spec = call.spec
    with torch.enable_grad():
        leaves = list(x) if keep_graph else [_as_leaf(a) for a in x]
        targets = [leaf for leaf, needed in zip(leaves, needs_input_grad, strict=True) if needed]
        sums: list[Tensor | None] = [None] * len(targets)
        for rows in row_blocks(spec):
            results = _dense_outputs(
                spec, call.inputs.with_tensors(leaves), rows, call.backend.compute_dtype or spec.score_dtype
            )
            block_c = _select_rows(c, len(results), rows, results)
            gradients, tangents = _gradients_and_tangents(results, block_c, leaves, t)
            if gradients:
                second = torch.autograd.grad(gradients, targets, tangents, allow_unused=True, create_graph=keep_graph)
                sums = _accumulate(sums, second, in_place=not keep_graph)
    return [torch.zeros_like(x) if total is None else total for total, x in zip(sums, targets, strict=True)]
