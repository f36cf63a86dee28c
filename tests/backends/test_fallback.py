"""Fallback at run time: some limits show only in the data. The plan of the result then names the fallback."""

from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard import mask
from regard.backends.native.backend import builds

N_K, TABLE_LENGTH = 40, 30  # the mask hides the keys whose lookup index is out of range
REASONS = {
    "native": "a lookup index may be out of range",
    "flex": "a lookup index may be out of range, and its kernels do not check",
}
needs_core = pytest.mark.skipif(not builds(), reason="the compiled core is not built")
every_falling_back = pytest.mark.parametrize("backend", [pytest.param("native", marks=needs_core), "flex"])


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(2, 3, n, 8, generator=generator) for n in (25, N_K, N_K)]
    return [x.requires_grad_() for x in (*tensors, torch.randn(TABLE_LENGTH, generator=generator))]


def run(leaves: list[Tensor], backend: str | None) -> regard.AttentionResult[Any]:
    *qkv, table = leaves
    return regard.attention_with_weights(
        *qkv,
        score=lambda s, b, h, i, j: s + table[j],
        mask=lambda b, h, i, j: j < TABLE_LENGTH,
        backend=backend,
    )


@every_falling_back
def test_plan_of_the_result_reports_the_backend_that_ran_and_the_reason(backend: str) -> None:
    result = run(inputs(), backend)

    assert result.plan.backend == "tiled" and result.plan.has_linear_memory and result.plan.variant == ""
    assert result.plan.unsupported_reasons[backend] == (REASONS[backend],)
    assert result.plan.unsupported_reasons["tiled"] == ()
    lines = str(result.plan).split("\n")
    assert lines[2].startswith("backend  tiled, tiles of ")
    assert f"         not {backend}: {REASONS[backend]}" in lines


@needs_core
def test_fallback_also_runs_if_no_backend_is_requested() -> None:
    plan = run(inputs(), None).plan

    assert plan.backend == "tiled" and plan.unsupported_reasons["native"] == (REASONS["native"],)


@every_falling_back
@pytest.mark.parametrize("needs_grad", [False, True], ids=["no gradients", "gradients"])
def test_explained_plan_is_not_changed_by_the_fallback_of_a_call(backend: str, needs_grad: bool) -> None:
    leaves = [x.detach().requires_grad_(needs_grad) for x in inputs()]
    *qkv, table = leaves
    options = dict(score=lambda s, b, h, i, j: s + table[j], mask=lambda b, h, i, j: j < TABLE_LENGTH, backend=backend)
    before = regard.explain(*qkv, **options)

    assert run(leaves, backend).plan.backend == "tiled"

    assert (
        before.backend == backend == regard.explain(*qkv, **options).backend
    )  # the spec alone does not show the limit


@every_falling_back
def test_output_gradients_and_weights_of_a_fallback_are_right(backend: str) -> None:
    leaves, expected_leaves = inputs(), inputs()
    result, expected = run(leaves, backend), run(expected_leaves, "reference")

    torch.testing.assert_close(result.output, expected.output, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(result.lse, expected.lse, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(result.weights[1, 2, 3:6], expected.weights[1, 2, 3:6], rtol=1e-5, atol=1e-6)
    assert not result.weights[..., TABLE_LENGTH:].any()
    gradients = torch.autograd.grad(result.output.sin().sum(), leaves)
    expected_gradients = torch.autograd.grad(expected.output.sin().sum(), expected_leaves)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


@needs_core
def test_integers_beyond_32_bits_fall_back_from_native() -> None:
    q, k, v = (torch.randn(1, 1, 50, 8) for _ in range(3))
    documents = torch.arange(50) // 7 * 2**40

    result = regard.attention_with_weights(q, k, v, mask=mask.document(documents), backend="native")

    assert result.plan.unsupported_reasons["native"] == ("it computes integers in 32 bits",)
    torch.testing.assert_close(result.output, regard.attention(q, k, v, mask=mask.document(documents // 2**40)))


@needs_core
def test_call_that_falls_back_takes_the_full_path_each_time() -> None:
    with torch.no_grad():
        first, second = (run(inputs(), None) for _ in range(2))

    assert torch.equal(first.output, second.output)
    assert second.plan == first.plan
