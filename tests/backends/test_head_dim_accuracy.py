"""Accuracy for large head dimensions: errors are at most twice those of the direct formula in the same precision.

Both are compared with float64. A score is a sum over the head dimension. With a single accumulator, its error grows
faster than that of torch's matrix product, which sums in blocks.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard.backends.native.backend import KernelBuild, NativeBackend, builds
from regard.backends.shared.autograd import differentiable_forward
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call

pytestmark = pytest.mark.skipif(not builds(), reason="the compiled core is not built")

NAMES = ("output", "lse", "d_q", "d_k", "d_v")
HEAD_DIMS = (8, 64, 128, 129, 192, 256, 320, 512, 1024, 2048)
# (heads, key-value heads, queries, keys), and the checked results. Gradients of few queries or keys are left out: the
# error of their weights comes from the rounded lse, not from the head dimension
SHAPES = {
    "panels": ((2, 2, 64, 70), NAMES),
    "few keys": ((2, 2, 64, 7), ("output", "lse", "d_k", "d_v")),
    "decode": ((3, 1, 1, 96), ("output", "lse")),
    "decode in a panel": ((8, 1, 2, 96), ("output", "lse")),
}
DRAWS = 4


def direct(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(q k' / sqrt(head_dim)) v and the lse, by torch's matrix products."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def native(build: KernelBuild) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    def compute(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        call, backend = parse_call(AttentionCall(q, k, v)), NativeBackend(None, build)
        output, lse = differentiable_forward(backend, call.spec, backend.tiling(call.spec), call.prepare_inputs())[:2]
        assert lse is not None
        return output, lse

    return compute


def results(compute: Callable[..., tuple[Tensor, Tensor]], tensors: list[Tensor], d_output: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors]
    output, lse = compute(*leaves)
    return [output.detach(), lse.detach(), *torch.autograd.grad(output, leaves, d_output.to(output.dtype))]


def errors(build: KernelBuild, shape: tuple[int, int, int, int], head_dim: int) -> tuple[Tensor, Tensor]:
    """Root mean square errors of native and of the direct formula, one for each of NAMES."""
    heads, kv_heads, n_q, n_k = shape
    squares = torch.zeros(2, len(NAMES), dtype=torch.float64)
    for draw in range(DRAWS):
        torch.manual_seed(1000 * head_dim + draw)
        tensors = [torch.randn(1, h, n, head_dim) for h, n in ((heads, n_q), (kv_heads, n_k), (kv_heads, n_k))]
        d_output = torch.randn(1, heads, n_q, head_dim)
        exact = results(direct, [x.double() for x in tensors], d_output)
        for index, compute in enumerate((native(build), direct)):
            outputs = results(compute, tensors, d_output)
            squares[index] += torch.stack([(x - y).square().mean() for x, y in zip(outputs, exact, strict=True)])
    return (squares[0] / DRAWS).sqrt(), (squares[1] / DRAWS).sqrt()


@pytest.mark.parametrize("shape_name", SHAPES)
@pytest.mark.parametrize("build", builds(), ids=lambda build: build.name)
def test_errors_are_at_most_twice_those_of_the_direct_formula_for_every_head_dim(
    build: KernelBuild, shape_name: str
) -> None:
    shape, checked_names = SHAPES[shape_name]
    for head_dim in HEAD_DIMS:
        ours, theirs = (dict(zip(NAMES, x.tolist(), strict=True)) for x in errors(build, shape, head_dim))

        for name in checked_names:
            allowed = 2.0 * theirs[name]
            assert ours[name] <= allowed, f"head_dim {head_dim}, {name}: {ours[name]:.3g}, allowed {allowed:.3g}"
