"""The tests of the package `entmax`, run unchanged on regard by replacing their imports.

Each row of a tensor becomes a head with one query of zeros. The tensor is the bias of the scores, and the values are
unit vectors, so that the output is the weights. regard has no normmax, budget or losses, and supports alphas from 1 to
2; the tests below cover random alphas in that range.
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
from regard import normalizer, score


def weights_along(x: Tensor, option: Any, dim: int) -> Tensor:
    rows_last = x.movedim(dim, -1)
    rows = rows_last.reshape(1, -1, 1, rows_last.shape[-1])
    heads, keys = rows.shape[1], rows.shape[-1]
    zeros, unit = torch.zeros((1, heads, keys, 1), dtype=x.dtype), torch.eye(keys, dtype=x.dtype)
    values = unit.expand(1, heads, keys, keys)
    output = regard.attention(zeros[:, :, :1], zeros, values, score=score.bias(rows), normalizer=option)
    return output.reshape(rows_last.shape).movedim(-1, dim)


def sparsemax(x: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    return weights_along(x, normalizer.sparsemax(), dim)


def entmax15(x: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    return weights_along(x, normalizer.entmax(1.5), dim)


def sparsemax_bisect(x: Tensor, dim: int = -1) -> Tensor:
    return weights_along(x, normalizer.sparsemax(), dim)


def entmax_bisect(x: Tensor, alpha: float | Tensor = 1.5, dim: int = -1) -> Tensor:
    if not isinstance(alpha, Tensor):
        in_range = 1.0 < alpha <= 2.0
    else:
        in_range = bool(((alpha > 1.0) & (alpha <= 2.0)).all())
        if alpha.dim():
            scale = alpha.expand([1 if d == dim % x.dim() else n for d, n in enumerate(x.shape)])
            alpha = scale.movedim(dim, -1).flatten()
    if not in_range:
        pytest.skip("alpha must be above 1 and at most 2")
    return weights_along(x, normalizer.entmax(alpha), dim)


def not_supported(*args: Any, **options: Any) -> Tensor:
    pytest.skip("regard has no normmax and no budget")


def _threshold(option: Any, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    weights = weights_along(x, option, dim)
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


REPLACEMENTS = {
    "entmax.activations": dict(
        sparsemax=sparsemax,
        entmax15=entmax15,
        Sparsemax=Sparsemax,
        Entmax15=Entmax15,
        _sparsemax_threshold_and_support=lambda x, dim, k: _threshold(normalizer.sparsemax(), x, dim),
        _entmax_threshold_and_support=lambda x, dim, k: _threshold(normalizer.entmax(), x, dim),
    ),
    "entmax.root_finding": dict(
        sparsemax_bisect=sparsemax_bisect,
        entmax_bisect=entmax_bisect,
        normmax_bisect=not_supported,
        budget_bisect=not_supported,
    ),
}


def load_package_tests(name: str) -> dict[str, Any]:
    """Return the tests of one file of the package, with its functions replaced by those above."""
    text = resources.files("entmax").joinpath(name).read_text()
    original_modules = {module: sys.modules[module] for module in REPLACEMENTS}
    try:
        for module, contents in REPLACEMENTS.items():
            sys.modules[module] = ModuleType(module)
            vars(sys.modules[module]).update(contents)
        names: dict[str, Any] = {"__name__": name}
        exec(compile(text, name, "exec"), names)
    finally:
        sys.modules.update(original_modules)
    return {f"{key}_of_{name[5:-3]}": value for key, value in names.items() if key.startswith("test_")}


for _name in ("test_mask.py", "test_root_finding.py", "test_topk.py"):
    globals().update(load_package_tests(_name))


def test_the_package_tests_use_the_replacements() -> None:
    assert test_sparsemax_of_root_finding.__globals__["sparsemax"] is sparsemax  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("backend", regard.available_backends())
@pytest.mark.parametrize("alpha", [1.01, 1.1, 1.33, 1.5, 1.9, 2.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_weights_equal_the_package_for_any_alpha(backend: str, alpha: float, scale: float) -> None:
    dtype = torch.float32 if backend in ("native", "flex") else torch.float64
    q, k = (torch.randn(3, 2, n, 8, dtype=dtype) for n in (40, 300))
    scores = scale * q.double() @ k.double().mT / 8**0.5
    expected = entmax.entmax_bisect(scores, alpha, dim=-1, n_iter=80)

    result = regard.attention_with_weights(q * scale, k, k, normalizer=normalizer.entmax(alpha), backend=backend)

    # float32 rounds scores of up to 100 to 1e-5, and a weight is their power of up to 100
    close = dict(rtol=1e-11, atol=1e-11) if dtype == torch.float64 else dict(rtol=1e-3, atol=2e-6 * max(1.0, scale))
    torch.testing.assert_close(result.weights[...].double(), expected, **close)
    torch.testing.assert_close(result.output.double(), expected @ k.double(), **close)


def test_alpha_per_row_equals_the_package_with_gradients() -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    alpha = (1.05 + 0.9 * torch.rand(4, 1, dtype=torch.float64)).requires_grad_()

    torch.testing.assert_close(entmax_bisect(x, alpha), entmax.entmax_bisect(x, alpha, n_iter=80))
    assert gradcheck(entmax_bisect, (x, alpha), eps=1e-5)


@pytest.mark.parametrize("dim", range(4))
def test_gradients_along_any_dimension_with_an_alpha_per_row(dim: int) -> None:
    shape = [3, 4, 2, 5]
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    alpha_shape = [1 if d == dim else n for d, n in enumerate(shape)]
    alpha = (1.05 + 0.9 * torch.rand(alpha_shape, dtype=torch.float64)).requires_grad_()

    assert gradcheck(lambda x, alpha: entmax_bisect(x, alpha, dim=dim), (x, alpha), eps=1e-5)
