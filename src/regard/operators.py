"""The operators that stand for a call in a graph: `regard::attention` and its backward pass.

torch makes graphs from what is registered here: the shape of an answer, its gradient, what vmap and autocast do to it.
The numbers come from the same plan and engine as those of an eager call, which never comes here.
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

from regard.attention import IN_ORDER, asked, finished, spec_to_run
from regard.engine.gradient import Engine, resumed, run
from regard.errors import EngineError
from regard.plan.choose import Plan, choose
from regard.plan.recent import Bounded
from regard.spec.named import read_options
from regard.spec.precision import without_autocast
from regard.spec.read import read
from regard.spec.spec import Question

OPTIONS = ("score", "mask", "weigh", "value", "start", "engine", "dropout", "seed")  # as `question` spells them
INPUTS = "Tensor q, Tensor k, Tensor v, Tensor[] tensors, SymInt[] numbers, str question"

_library = Library("regard", "DEF")  # what is registered lives as long as this
_library.define(
    f"attention({INPUTS}, bool is_raw) -> (Tensor output, Tensor statistic, Tensor raw)",
    tags=torch.Tag.pt2_compliant_tag,
)
_library.define(
    f"attention_backward(Tensor d_output, {INPUTS}, Tensor raw, Tensor statistic, bool[] needs) -> Tensor[]",
    tags=torch.Tag.pt2_compliant_tag,
)
_attention = torch.ops.regard.attention.default
_attention_backward = torch.ops.regard.attention_backward.default


@impl(_library, "attention", "CompositeExplicitAutograd")
def _forward(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor], numbers: list[int], question: str, is_raw: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, row statistic, and what the engine gave.

    `is_raw` says that this is the output itself; the third result is empty then. `question` is what `spell` wrote, with
    its tensors and whole numbers beside it.
    """
    asking, plan, engine = _read(q, k, v, tensors, numbers, question)
    with without_autocast(q.device.type):
        plan, inputs = asked(asking, plan, engine)
        raw, statistic = run(engine, spec_to_run(asking, plan), plan.tiles, inputs)
        output = asking.shaped(finished(asking, plan, inputs, raw, statistic))
        rows = raw.new_zeros(raw.shape[:-1]) if statistic is None else statistic
        kept = q.new_empty(0) if is_raw else asking.shaped(raw.to(_precision(q), copy=True))
    return output.contiguous(), asking.shaped(rows.double()).contiguous(), kept.contiguous()


@impl(_library, "attention_backward", "CompositeExplicitAutograd")
def _backward(
    d_output: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: list[Tensor],
    numbers: list[int],
    question: str,
    raw: Tensor,
    statistic: Tensor,
    needs: list[bool],
) -> list[Tensor]:
    """The gradients of those of q, k, v and the tensors that are needed, from what the engine gave before."""
    with _recording(), without_autocast(q.device.type):
        leaves = [x.detach().requires_grad_(needed) for x, needed in zip((q, k, v, *tensors), needs, strict=True)]
        asking, plan, engine = _read(leaves[0], leaves[1], leaves[2], leaves[3:], numbers, question)
        plan, inputs = asked(asking, plan, engine)
        known = resumed(engine, spec_to_run(asking, plan), plan.tiles, inputs, raw, statistic)
        output = asking.shaped(finished(asking, plan, inputs, *known))
        wanted = [x for x in leaves if x.requires_grad]
        found = torch.autograd.grad(output, wanted, d_output, allow_unused=True)
    gradients = [torch.zeros_like(x) if g is None else g for g, x in zip(found, wanted, strict=True)]
    return [g.contiguous() for g in gradients]


def _read(
    q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor], numbers: Sequence[int], question: str
) -> tuple[Question, Plan, Engine]:
    """What a text asks, its plan, and the engine that answers it."""
    options = dict(_options(question, tensors, tuple(numbers)))
    engine = options.pop("engine")
    if isinstance(options["seed"], Tensor):
        options["seed"] = int(options["seed"])
    asking = read(q, k, v, **options)
    plan = choose(asking.spec, IN_ORDER, engine)
    return asking, plan, next(e for e in IN_ORDER if e.name == plan.engine)


_recent: Bounded[dict[str, Any]] = Bounded()


def _options(question: str, tensors: Sequence[Tensor], numbers: tuple[int, ...]) -> dict[str, Any]:
    """The options of a call by name; those without tensors are kept, since a graph runs many times."""
    if tensors:
        return read_options(question, tensors, numbers, OPTIONS)
    options = _recent.get((question, numbers))
    if options is None:
        options = read_options(question, (), numbers, OPTIONS)
        _recent.put((question, numbers), options)
    return options


_DERIVATIVES = DispatchKeySet(DispatchKey.AutogradFunctionality)
_DERIVATIVES |= DispatchKeySet(DispatchKey.AutogradOther) | DispatchKeySet(DispatchKey.AutogradNestedTensor)


@contextmanager
def _recording() -> Iterator[None]:
    """Inside an operator torch records nothing that could be differentiated; in here it does."""
    passed_over = torch._C._dispatch_tls_local_exclude_set() - _DERIVATIVES
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), passed_over), torch.enable_grad():
        yield


# Shapes, for graphs that are made without numbers.


def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    is_raw = rest[-1]
    outer = -3 if q.dim() >= 4 else -2
    batch = torch.broadcast_shapes(q.shape[:outer], k.shape[:outer], v.shape[:outer])
    rows = (*batch, *q.shape[outer:-1])
    output = q.new_empty((*rows, v.shape[-1]))
    raw = q.new_empty(0) if is_raw else torch.empty_like(output, dtype=_precision(q))
    return output, q.new_empty(rows, dtype=torch.float64), raw


def _precision(q: Tensor) -> torch.dtype:
    """The dtype of the engine's output before a factor is applied: float32 or better."""
    return torch.promote_types(q.dtype, torch.float32)


def _backward_shapes(
    d_output: Tensor, q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor], *rest: Any
) -> list[Tensor]:
    needs = rest[-1]
    every = zip((q, k, v, *tensors), needs, strict=True)
    return [x.new_empty(x.shape) for x, needed in every if needed]


register_fake("regard::attention", _forward_shapes, lib=_library)
register_fake("regard::attention_backward", _backward_shapes, lib=_library)


# Derivatives. Functions of one level, so that torch.func may be nested around them as around torch's own operators.


class _Differentiable(torch.autograd.function._SingleLevelFunction):
    """(q, k, v, numbers, question, is_raw, tensors...) -> output, statistic, raw."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
        numbers, question, is_raw, *tensors = rest
        with torch._C._AutoDispatchBelowAutograd():
            return _attention(q, k, v, tensors, numbers, question, is_raw)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        q, k, v, ctx.numbers, ctx.question, is_raw, *tensors = inputs
        answer, statistic, raw = output
        ctx.mark_non_differentiable(statistic, raw)
        ctx.save_for_backward(answer if is_raw else raw, statistic, q, k, v, *tensors)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        raw, statistic, q, k, v, *tensors = ctx.saved_tensors
        needs = [*ctx.needs_input_grad[:3], *ctx.needs_input_grad[6:]]
        call = q, k, v, tensors, ctx.numbers, ctx.question
        found = iter(_attention_backward(d_output, *call, raw, statistic, needs))
        d_q, d_k, d_v, *d_tensors = (next(found) if needed else None for needed in needs)
        return d_q, d_k, d_v, None, None, None, *d_tensors


class _Once(torch.autograd.function._SingleLevelFunction):
    """The backward pass, which has no derivative: (structure, its arguments laid flat...) -> gradients."""

    @staticmethod
    def forward(structure: Any, *flat: Any) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            return tuple(_attention_backward(*tree_unflatten(flat, structure)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise EngineError(
            "a graph of torch.compile or torch.export must be differentiated at most once; got a second derivative. "
            "Call regard.attention outside of it for derivatives of every order."
        )


def _apply(function: Any, *args: Any) -> Any:
    with enable_single_level_autograd_function():
        return function.apply(*args)


@impl(_library, "attention", "Autograd")
def _differentiable(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor], numbers: list[int], question: str, is_raw: bool
) -> Any:
    return _apply(_Differentiable, q, k, v, numbers, question, is_raw, *tensors)


@impl(_library, "attention_backward", "Autograd")
def _differentiable_once(*args: Any) -> list[Tensor]:
    flat, structure = tree_flatten(args)
    return list(_apply(_Once, structure, *flat))


# vmap and autocast.


def _one_by_one(operator: Any, info: Any, in_dims: Sequence[Any], *args: Any) -> tuple[Any, Any]:
    """torch.vmap's rule: one call after another."""
    flat, structure = tree_flatten(args)
    dims = [d for arg, dim in zip(args, in_dims, strict=True) for d in _each(arg, dim)]
    results = []
    for n in range(info.batch_size):
        one = [x if d is None else x.select(d, n) for x, d in zip(flat, dims, strict=True)]
        results.append(operator(*tree_unflatten(one, structure)))
    kind = type(results[0])
    stacked = [torch.stack(parts) for parts in zip(*results, strict=True)]
    return kind(stacked), kind([0] * len(stacked))


def _each(arg: Any, dim: Any) -> Sequence[Any]:
    """The dimensions that vmap takes out of an argument: several if that is a list."""
    if not isinstance(arg, (list, tuple)):
        return [dim]
    return dim if isinstance(dim, (list, tuple)) else [dim] * len(arg)


register_vmap("regard::attention", partial(_one_by_one, _attention), lib=_library)
register_vmap("regard::attention_backward", partial(_one_by_one, _attention_backward), lib=_library)


def _in_autocast(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    """Autocast mixes precisions on purpose; nothing is rounded further."""
    widest = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    with without_autocast(q.device.type):
        return _attention(q.to(widest), k.to(widest), v.to(widest), *rest)


for _key in ("AutocastCPU", "AutocastCUDA", "AutocastXPU"):
    _library.impl("attention", _in_autocast, _key)
