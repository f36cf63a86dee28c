"""The two paths of a gradient at each residual connection: past the branch, and through it.

A branch f of a block, with or without a norm in front, is added to its input: y = x + f(x). The gradient of x is dy,
which skips f, plus J_f' dy, which passes through f. `gradient_path_norms` measures both for the attention and the
feed-forward branch of each block of regard.nn and torch; for other blocks pass the first and last module of each
branch.

>>> from regard.nn import BlockConfig, Encoder
>>> stack = Encoder(BlockConfig(embed_dim=8, num_heads=2), num_layers=2)
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
from regard.errors import ArgumentError
from regard.nn import LatentAttention, MultiHeadAttention

BranchModules = tuple[nn.Module, nn.Module]  # the first and the last
ATTENTION_TYPES = (MultiHeadAttention, LatentAttention, nn.MultiheadAttention)
BLOCK_ATTRIBUTES = ("self_attn", "linear1", "linear2", "norm1", "norm2")  # of blocks of regard and torch
BRANCHES_DESCRIPTION = "a mapping from names to pairs of modules (first, last)"


class PathNorms(NamedTuple):
    """The name of a branch, and the norms of the gradient that skips it and of the gradient through it."""

    name: str
    skip_norm: float
    branch_norm: float


@dataclass
class GradientPath:
    """The gradients that skip a branch, that pass through it, and of its input."""

    name: str
    skip_gradient: Tensor | None = None
    branch_gradient: Tensor | None = None
    input_gradient: Tensor | None = None
    inputs: list[Any] = field(default_factory=list)


def gradient_path_norms(
    module: nn.Module,
    x: Tensor,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    branches: Mapping[str, BranchModules] | None = None,
    seed: int = 0,
) -> tuple[PathNorms, ...]:
    """Return the norms of the gradients that skip each branch of `module` and that pass through it, in order.

    `x` is the input of the module. `loss` maps the output of the module to a scalar; None is the inner product with a
    random tensor, drawn from `seed`. `branches` maps names to the first and the last module of a branch, for blocks of
    other libraries; None finds the branches of regard.nn and torch.

    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, dropout=0.0)
    >>> [path.name for path in gradient_path_norms(layer, torch.randn(5, 1, 8))]
    ['attention', 'feed_forward']
    """
    paths = gradient_paths(module, x, loss=loss, branches=branches, seed=seed)
    return tuple(PathNorms(path.name, _norm(path.skip_gradient), _norm(path.branch_gradient)) for path in paths)


def gradient_paths(
    module: nn.Module,
    x: Tensor,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    branches: Mapping[str, BranchModules] | None = None,
    seed: int = 0,
) -> list[GradientPath]:
    """Return the gradients. See `gradient_path_norms`."""
    _check(module, x, loss, branches, seed)
    branches = _find_branches(module) if branches is None else dict(branches)
    if not branches:
        raise ArgumentError(
            f"module must have blocks or attention layers of regard.nn or torch; got {type(module).__name__}. Pass "
            "branches={'attention': (first, last)}."
        )
    x = x.detach().clone().requires_grad_()
    paths = [GradientPath(name) for name in branches]
    with ExitStack() as exit_stack:
        for path, (first, last) in zip(paths, branches.values(), strict=True):
            _register_hooks(path, first, last, exit_stack)
        total = _compute_loss(module, x, loss or _random_loss(seed))
        missing = [path.name for path in paths if not path.inputs]
        if missing:
            raise ArgumentError(f"every branch must be called once; got no call of {', '.join(missing)}.")
        gradients = torch.autograd.grad(total, [path.inputs[0] for path in paths])
    for path, gradient in zip(paths, gradients, strict=True):
        path.input_gradient = gradient
    return paths


def _compute_loss(module: nn.Module, x: Tensor, loss: Callable[[Any], Tensor]) -> Tensor:
    try:
        total = loss(module(x))
    except (RuntimeError, TypeError, ValueError, AssertionError) as problem:
        raise ArgumentError(
            f"module and loss must be functions of x, {tuple(x.shape)} in {x.dtype}, and of the module's output; "
            f"calling them failed: {problem}"
        ) from problem
    return checks.tensor(total, "the loss", shape=())


def _check(module: Any, x: Any, loss: Any, branches: Any, seed: Any) -> None:
    checks.instance(module, "module", nn.Module, "a torch.nn.Module")
    checks.tensor(x, "x", dtype_kind="floats")
    checks.seed(seed)
    if loss is not None:
        checks.function(loss, "loss", "from the module's output to one number")
    if branches is None:
        return
    for branch in checks.instance(branches, "branches", Mapping, BRANCHES_DESCRIPTION).values():
        if not (isinstance(branch, tuple) and len(branch) == 2 and all(isinstance(end, nn.Module) for end in branch)):
            raise ArgumentError(f"branches must be {BRANCHES_DESCRIPTION}; got {checks.describe(branch)}.")


def _find_branches(module: nn.Module) -> dict[str, BranchModules]:
    """Return the branches of each block, and attention layers outside of blocks."""
    branches: dict[str, BranchModules] = {}
    inside: set[nn.Module] = set()
    for path, submodule in module.named_modules():
        name = f"{path}." if path else ""
        if all(isinstance(getattr(submodule, attribute, None), nn.Module) for attribute in BLOCK_ATTRIBUTES):
            block: Any = submodule
            cross_attn = getattr(submodule, "multihead_attn", None)
            norms = [block.norm1, block.norm2, getattr(block, "norm3", None)]
            steps = [("attention", block.self_attn, block.self_attn)]
            steps += [("cross_attention", cross_attn, cross_attn)] if cross_attn is not None else []
            steps += [("feed_forward", block.linear1, block.linear2)]
            for (kind, first, last), norm in zip(steps, norms, strict=False):
                branches[f"{name}{kind}"] = (norm if block.norm_first else first, last)
            inside.update(last for _, _, last in steps)
        elif isinstance(submodule, ATTENTION_TYPES) and submodule not in inside:
            branches[f"{name}attention"] = (submodule, submodule)
    return branches


def _register_hooks(path: GradientPath, first: nn.Module, last: nn.Module, exit_stack: ExitStack) -> None:
    def record_inputs(module: nn.Module, inputs: Any) -> None:
        if path.inputs:
            raise ArgumentError(f"every branch must be called once; got a second call of {path.name}.")
        path.inputs = list(inputs)

    def record_branch_gradient(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        # keys and values count if they are the tensor of the queries; an encoder memory does not
        parts = [g for g, x in zip(grad_input, path.inputs, strict=False) if x is path.inputs[0] and g is not None]
        path.branch_gradient = torch.stack(parts).sum(0)

    def record_skip_gradient(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        path.skip_gradient = grad_output[0]

    for handle in (
        first.register_forward_pre_hook(record_inputs),
        first.register_full_backward_hook(record_branch_gradient),
        last.register_full_backward_hook(record_skip_gradient),
    ):
        exit_stack.callback(handle.remove)


def _random_loss(seed: int) -> Callable[[Any], Tensor]:
    def product(output: Any) -> Tensor:
        first: Tensor = output[0] if isinstance(output, (tuple, list)) else output
        generator = torch.Generator().manual_seed(seed)
        return (first * torch.randn(first.shape, generator=generator, dtype=torch.float64).to(first)).sum()

    return product


def _norm(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else float(gradient.norm())
