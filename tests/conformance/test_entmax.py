"""The tests that the package `entmax` ships, run on regard: their text as it stands, with what they import swapped.

A tensor's rows become heads with one query of zeros; the tensor is added to its scores, and the values are unit vectors
so that the output is the weights. Left out, since regard has no such thing: normmax and budget, losses, and alphas
outside 1 to 2, where tests of random alphas mostly lie; tests of our own stand in for these.
"""

import sys
from importlib import resources
from types import ModuleType
from typing import Any

import entmax
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import regard
from regard import score, weigh


def attended(x: Tensor, weighing: Any, dim: int) -> Tensor:
    moved = x.movedim(dim, -1)
    rows = moved.reshape(1, -1, 1, moved.shape[-1])
    heads, keys = rows.shape[1], rows.shape[-1]
    nothing, unit = torch.zeros((1, heads, keys, 1), dtype=x.dtype), torch.eye(keys, dtype=x.dtype)
    values = unit.expand(1, heads, keys, keys)
    output = regard.attention(nothing[:, :, :1], nothing, values, score=score.bias(rows), weigh=weighing)
    return output.reshape(moved.shape).movedim(-1, dim)


def sparsemax(x: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    return attended(x, weigh.sparsemax(), dim)


def entmax15(x: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    return attended(x, weigh.entmax(1.5), dim)


def sparsemax_bisect(x: Tensor, dim: int = -1) -> Tensor:
    return attended(x, weigh.sparsemax(), dim)


def entmax_bisect(x: Tensor, alpha: float | Tensor = 1.5, dim: int = -1) -> Tensor:
    if not isinstance(alpha, Tensor):
        inside = 1.0 < alpha <= 2.0
    else:
        inside = bool(((alpha > 1.0) & (alpha <= 2.0)).all())
        if alpha.dim():
            spread = alpha.expand([1 if d == dim % x.dim() else n for d, n in enumerate(x.shape)])
            alpha = spread.movedim(dim, -1).flatten()
    if not inside:
        pytest.skip("alpha must be above 1 and at most 2")
    return attended(x, weigh.entmax(alpha), dim)


def left_out(*given: Any, **options: Any) -> Tensor:
    pytest.skip("regard has no normmax and no budget")


def _threshold(weighing: Any, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    weights = attended(x, weighing, dim)
    return weights.amax(dim), (weights > 0).sum(dim)


class _Module:
    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        self.dim = dim

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x, self.dim)


class Sparsemax(_Module):
    function = staticmethod(sparsemax)


class Entmax15(_Module):
    function = staticmethod(entmax15)


SWAPPED = {
    "entmax.activations": dict(
        sparsemax=sparsemax,
        entmax15=entmax15,
        Sparsemax=Sparsemax,
        Entmax15=Entmax15,
        _sparsemax_threshold_and_support=lambda x, dim, k: _threshold(weigh.sparsemax(), x, dim),
        _entmax_threshold_and_support=lambda x, dim, k: _threshold(weigh.entmax(), x, dim),
    ),
    "entmax.root_finding": dict(
        sparsemax_bisect=sparsemax_bisect,
        entmax_bisect=entmax_bisect,
        normmax_bisect=left_out,
        budget_bisect=left_out,
    ),
}


def shipped(name: str) -> dict[str, Any]:
    """The tests of one of the package's files, as they are with its functions swapped for ours."""
    text = resources.files("entmax").joinpath(name).read_text()
    known = {module: sys.modules[module] for module in SWAPPED}
    try:
        for module, contents in SWAPPED.items():
            sys.modules[module] = ModuleType(module)
            vars(sys.modules[module]).update(contents)
        names: dict[str, Any] = {"__name__": name}
        exec(compile(text, name, "exec"), names)
    finally:
        sys.modules.update(known)
    return {f"{key}_of_{name[5:-3]}": value for key, value in names.items() if key.startswith("test_")}


for _name in ("test_mask.py", "test_root_finding.py", "test_topk.py"):
    globals().update(shipped(_name))


def test_the_tests_that_are_swapped_in_do_not_reach_the_package() -> None:
    assert test_sparsemax_of_root_finding.__globals__["sparsemax"] is sparsemax  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("engine", regard.engines())
@pytest.mark.parametrize("alpha", [1.01, 1.1, 1.33, 1.5, 1.9, 2.0])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 30.0])
def test_any_alpha_gives_the_weights_of_the_package(engine: str, alpha: float, spread: float) -> None:
    dtype = torch.float32 if engine in ("native", "fused") else torch.float64
    q, k = (torch.randn(3, 2, n, 8, dtype=dtype) for n in (40, 300))
    scores = spread * q.double() @ k.double().mT / 8**0.5
    expected = entmax.entmax_bisect(scores, alpha, dim=-1, n_iter=80)

    found = regard.attend(q * spread, k, k, weigh=weigh.entmax(alpha), engine=engine)

    # scores of up to 100 are rounded to 1e-5 of them in float32, and a weight is their power of up to 100
    close = dict(rtol=1e-11, atol=1e-11) if dtype == torch.float64 else dict(rtol=1e-3, atol=2e-6 * max(1.0, spread))
    torch.testing.assert_close(found.weights[...].double(), expected, **close)
    torch.testing.assert_close(found.output.double(), expected @ k.double(), **close)


def test_alphas_of_each_row_are_those_of_the_package_with_gradients() -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    alpha = (1.05 + 0.9 * torch.rand(4, 1, dtype=torch.float64)).requires_grad_()

    torch.testing.assert_close(entmax_bisect(x, alpha), entmax.entmax_bisect(x, alpha, n_iter=80))
    assert gradcheck(entmax_bisect, (x, alpha), eps=1e-5)


@pytest.mark.parametrize("dim", range(4))
def test_gradients_along_any_dimension_with_an_alpha_each(dim: int) -> None:
    shape = [3, 4, 2, 5]
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    alpha_shape = [1 if d == dim else n for d, n in enumerate(shape)]
    alpha = (1.05 + 0.9 * torch.rand(alpha_shape, dtype=torch.float64)).requires_grad_()

    assert gradcheck(lambda x, alpha: entmax_bisect(x, alpha, dim=dim), (x, alpha), eps=1e-5)
