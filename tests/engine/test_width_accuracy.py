"""The contract on accuracy along the width: errors at most twice those of the direct formula in the same precision.

Both are compared with float64. A score is a sum over the width; summed in one accumulator its error grows faster with
the width than that of torch's matrix product, which sums in blocks.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard.engine.gradient import run
from regard.engine.native import Build, Native, builds
from regard.spec.read import read

pytestmark = pytest.mark.skipif(not builds(), reason="the compiled core is not built")

NAMES = ("output", "lse", "d_q", "d_k", "d_v")
WIDTHS = (8, 64, 128, 129, 192, 256, 320, 512, 1024, 2048)
# (heads, key heads, queries, keys), and what the law holds for. Gradients of few queries or keys are left out: the
# rounded lse, not the width, decides the error of their weights.
SHAPES = {
    "panels": ((2, 2, 64, 70), NAMES),
    "few keys": ((2, 2, 64, 7), ("output", "lse", "d_k", "d_v")),
    "decode": ((3, 1, 1, 96), ("output", "lse")),
    "decode in a panel": ((8, 1, 2, 96), ("output", "lse")),
}
DRAWS = 4


def direct(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(q k' / sqrt(width)) v and the lse, by torch's matrix products."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def native(build: Build) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    def compute(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        call, engine = read(q, k, v), Native(None, build)
        output, lse = run(engine, call.spec, engine.tiles(call.spec), call.inputs())
        assert lse is not None
        return output, lse

    return compute


def results(compute: Callable[..., tuple[Tensor, Tensor]], tensors: list[Tensor], d_output: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors]
    output, lse = compute(*leaves)
    return [output.detach(), lse.detach(), *torch.autograd.grad(output, leaves, d_output.to(output.dtype))]


def errors(build: Build, shape: tuple[int, int, int, int], width: int) -> tuple[Tensor, Tensor]:
    """Root mean square errors of native and of the direct formula, one for each of NAMES."""
    heads, key_heads, n_q, n_k = shape
    squares = torch.zeros(2, len(NAMES), dtype=torch.float64)
    for draw in range(DRAWS):
        torch.manual_seed(1000 * width + draw)
        tensors = [torch.randn(1, h, n, width) for h, n in ((heads, n_q), (key_heads, n_k), (key_heads, n_k))]
        d_output = torch.randn(1, heads, n_q, width)
        exact = results(direct, [x.double() for x in tensors], d_output)
        for place, compute in enumerate((native(build), direct)):
            outputs = results(compute, tensors, d_output)
            squares[place] += torch.stack([(x - y).square().mean() for x, y in zip(outputs, exact, strict=True)])
    return (squares[0] / DRAWS).sqrt(), (squares[1] / DRAWS).sqrt()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("build", builds(), ids=lambda build: build.name)
def test_errors_do_not_grow_faster_with_the_width_than_those_of_the_direct_formula(build: Build, name: str) -> None:
    shape, names = SHAPES[name]
    for width in WIDTHS:
        ours, theirs = (dict(zip(NAMES, x.tolist(), strict=True)) for x in errors(build, shape, width))

        for each in names:
            allowed = 2.0 * theirs[each]
            assert ours[each] <= allowed, f"width {width}, {each}: {ours[each]:.3g}, allowed {allowed:.3g}"
