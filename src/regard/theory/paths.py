"""How a gradient comes back through a layer or a stack: past each part by its skip connection, and through the part.

A part f of a block, with or without a norm in front, is added to what came in: y = x + f(x). So the gradient in x is
that in y, which skips f, plus what f hands back, J_f' dy. `gradient_path_norms` measures both for attention and for the
feed-forward part of each block of any module that has such blocks: regard.nn's and torch's are known; of others say
where their parts begin and end.

>>> from regard.nn import Design, Encoder
>>> stack = Encoder(Design(width=8, heads=2), layers=2)
>>> [path.name for path in gradient_path_norms(stack, torch.randn(1, 5, 8))]
['layers.0.attention', 'layers.0.feed_forward', 'layers.1.attention', 'layers.1.feed_forward']
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard import checks
from regard.errors import SpecError
from regard.nn import LatentAttention, MultiHeadAttention

Part = tuple[nn.Module, nn.Module]  # where it begins and where it ends
ATTENTIONS = (MultiHeadAttention, LatentAttention, nn.MultiheadAttention)
BLOCK = ("self_attn", "linear1", "linear2", "norm1", "norm2")  # what regard's and torch's blocks call their parts

MAPPING = "a mapping from names to pairs of modules (first, last)"


class PathNorms(NamedTuple):
    """Of one part: its name, the norm of the gradient that skips it, and of what it hands back."""

    name: str
    skip: float
    through: float


@dataclass
class Followed:
    """Of one part: the gradient that arrives at its end, what it hands back, and all that its input gets."""

    name: str
    skip: Tensor | None = None
    through: Tensor | None = None
    total: Tensor | None = None
    given: list[Any] = field(default_factory=list)


def gradient_path_norms(
    module: nn.Module,
    x: Tensor,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    parts: Mapping[str, Part] | None = None,
    seed: int = 0,
) -> tuple[PathNorms, ...]:
    """The norms of the gradient that skips each part of `module` and of what comes back through it, in order.

    `loss` is a number made of what the module gives back; without it, its product with a random tensor. `parts` says,
    by name, which module a part begins with and which it ends with, for blocks of other makes.
    """
    followed = gradient_paths(module, x, loss=loss, parts=parts, seed=seed)
    return tuple(PathNorms(each.name, _norm(each.skip), _norm(each.through)) for each in followed)


def gradient_paths(
    module: nn.Module,
    x: Tensor,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    parts: Mapping[str, Part] | None = None,
    seed: int = 0,
) -> list[Followed]:
    """The gradients themselves. See `gradient_path_norms`."""
    _check(module, x, loss, parts, seed)
    chosen = _parts(module) if parts is None else dict(parts)
    if not chosen:
        raise SpecError(
            f"a module must have blocks or attention layers that are known; got {type(module).__name__}. Say where its "
            "parts begin and end with parts={'attention': (first, last)}."
        )
    x = x.detach().clone().requires_grad_()
    followed = [Followed(name) for name in chosen]
    with ExitStack() as hooks:
        for each, (first, last) in zip(followed, chosen.values(), strict=True):
            _follow(each, first, last, hooks)
        total = _loss_of(module, x, loss or _random_product(seed))
        missing = [each.name for each in followed if not each.given]
        if missing:
            raise SpecError(f"every part must be called once; got no call of {', '.join(missing)}.")
        found = torch.autograd.grad(total, [each.given[0] for each in followed])
    for each, gradient in zip(followed, found, strict=True):
        each.total = gradient
    return followed


def _loss_of(module: nn.Module, x: Tensor, loss: Callable[[Any], Tensor]) -> Tensor:
    try:
        total = loss(module(x))
    except (RuntimeError, TypeError, ValueError, AssertionError) as problem:
        raise SpecError(
            f"module and loss must be functions of x, {tuple(x.shape)} in {x.dtype}, and of the module's output; "
            f"calling them failed: {problem}"
        ) from problem
    return checks.tensor(total, "the loss", shape=())


def _check(module: Any, x: Any, loss: Any, parts: Any, seed: Any) -> None:
    checks.instance(module, "module", nn.Module, "a torch.nn.Module")
    checks.tensor(x, "x", dtype="floats")
    checks.seed(seed)
    if loss is not None:
        checks.function(loss, "loss", "from the module's output to one number")
    for part in () if parts is None else checks.instance(parts, "parts", Mapping, MAPPING).values():
        if not (isinstance(part, tuple) and len(part) == 2 and all(isinstance(one, nn.Module) for one in part)):
            raise SpecError(f"parts must be {MAPPING}; got {checks.describe(part)}.")


def _parts(module: nn.Module) -> dict[str, Part]:
    """Attention and the feed-forward part of each block, and attention layers that are in none."""
    found: dict[str, Part] = {}
    inside: set[nn.Module] = set()
    for path, each in module.named_modules():
        name = f"{path}." if path else ""
        if all(isinstance(getattr(each, part, None), nn.Module) for part in BLOCK):
            block: Any = each
            crosses = getattr(each, "multihead_attn", None)
            norms = [block.norm1, block.norm2, getattr(block, "norm3", None)]
            steps = [("attention", block.self_attn, block.self_attn)]
            steps += [("cross_attention", crosses, crosses)] if crosses is not None else []
            steps += [("feed_forward", block.linear1, block.linear2)]
            for (kind, first, last), norm in zip(steps, norms, strict=False):
                found[f"{name}{kind}"] = (norm if block.norm_first else first, last)
            inside.update(last for _, _, last in steps)
        elif isinstance(each, ATTENTIONS) and each not in inside:
            found[f"{name}attention"] = (each, each)
    return found


def _follow(each: Followed, first: nn.Module, last: nn.Module, hooks: ExitStack) -> None:
    def entered(module: nn.Module, given: Any) -> None:
        if each.given:
            raise SpecError(f"every part must be called once; got a second call of {each.name}.")
        each.given = list(given)

    def came_in(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        # keys and values that are the queries' own tensor hand back to the same place; a memory does not
        own = [g for g, x in zip(grad_input, each.given, strict=False) if x is each.given[0] and g is not None]
        each.through = torch.stack(own).sum(0)

    def went_out(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        each.skip = grad_output[0]

    for handle in (
        first.register_forward_pre_hook(entered),
        first.register_full_backward_hook(came_in),
        last.register_full_backward_hook(went_out),
    ):
        hooks.callback(handle.remove)


def _random_product(seed: int) -> Callable[[Any], Tensor]:
    def product(output: Any) -> Tensor:
        found: Tensor = output[0] if isinstance(output, (tuple, list)) else output
        random = torch.Generator().manual_seed(seed)
        return (found * torch.randn(found.shape, generator=random, dtype=torch.float64).to(found)).sum()

    return product


def _norm(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else float(gradient.norm())
