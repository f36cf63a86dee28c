"""bfloat16 and float16 on the native backend with products in float32: only inputs and outputs are rounded."""

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, score
from regard.backends.native.backend import BF16_BUILD, KernelBuild, NativeBackend, builds
from regard.backends.shared.autograd import differentiable_forward
from regard.backends.tiled import TiledBackend
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from tests.backends.no_fallback import NoFallback

pytestmark = pytest.mark.skipif(not builds(), reason="regard was installed without a C++ compiler")

HALF_DTYPES = [torch.bfloat16, torch.float16]
OPTIONS = {
    "plain": {},
    "causal": dict(mask=mask.causal()),
    "window": dict(mask=mask.causal() & mask.sliding_window(9)),
    "alibi": dict(score=score.alibi(), mask=mask.causal()),
    "softcap": dict(score=score.softcap(2.0)),
    "dropout": dict(dropout=0.3, seed=5),
}
# (queries, keys, head dim, value dim): panels, whole and partial vectors, and few queries with many keys
SHAPES = [(61, 210, 8, 9), (100, 130, 64, 32), (1, 2100, 64, 64), (3, 300, 40, 24), (0, 5, 8, 8), (5, 0, 8, 8)]


def skip_bf16_products(build: KernelBuild, dtype: torch.dtype) -> None:
    if build.name == BF16_BUILD and dtype == torch.bfloat16:
        pytest.skip("this build rounds weights as well: native/test_bf16_products.py tests it")


def random_inputs(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    n_q, n_k, head_dim, value_dim = shape
    tensors = torch.Generator().manual_seed(sum(shape))
    sizes = ((4, n_q, head_dim), (2, n_k, head_dim), (2, n_k, value_dim), (4, n_q, value_dim))
    return [torch.randn(2, *size, generator=tensors).to(dtype) for size in sizes]


def output_and_gradients(
    backend: object, q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: object
) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    call = parse_call(AttentionCall(*leaves, **options))
    output, lse = differentiable_forward(backend, call.spec, backend.tiling(call.spec), call.prepare_inputs())[:2]
    return [output, lse, *torch.autograd.grad(output, leaves, g)]


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_only_inputs_and_outputs_are_rounded(dtype, build: KernelBuild, shape, name):
    skip_bf16_products(build, dtype)
    tensors = random_inputs(shape, dtype)
    actual = output_and_gradients(NativeBackend(NoFallback(), build), *tensors, **OPTIONS[name])
    expected = output_and_gradients(NativeBackend(NoFallback(), build), *(x.float() for x in tensors), **OPTIONS[name])
    step = torch.finfo(dtype).eps
    assert [x.dtype for x in actual] == [dtype, torch.float32, dtype, dtype, dtype]
    assert torch.equal(actual[0], expected[0].to(dtype))  # rounded once
    torch.testing.assert_close(actual[1], expected[1], rtol=0, atol=0)
    for one, other in zip(actual[2:], expected[2:], strict=True):  # the backward pass reads the rounded output
        torch.testing.assert_close(one.float(), other, rtol=4 * step, atol=4 * step)


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_without_gradients_is_the_float32_output_rounded_to_nearest(
    dtype: torch.dtype, build: KernelBuild, shape: tuple[int, ...]
) -> None:
    skip_bf16_products(build, dtype)
    backend = NativeBackend(NoFallback(), build)
    half, exact = (
        backend.forward(call.spec, call.prepare_inputs(), backend.tiling(call.spec))[0]
        for call in (
            parse_call(AttentionCall(*(x.to(kind) for x in random_inputs(shape, dtype)[:3])))
            for kind in (dtype, torch.float32)
        )
    )

    assert half.dtype == dtype and exact.dtype == torch.float32
    assert torch.equal(half, exact.to(dtype))


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_half_precision_captured_tensor_gets_its_gradient(dtype):
    q, k, v, g = random_inputs(SHAPES[1], dtype)
    table = torch.randn(4, 300, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    score_mod = lambda s, b, h, i, j: s + table[h, i - j + 130]

    def run(backend: object) -> list[Tensor]:
        call = parse_call(AttentionCall(q, k, v, score=score_mod))
        output, _ = differentiable_forward(backend, call.spec, backend.tiling(call.spec), call.prepare_inputs())[:2]
        return [output, *torch.autograd.grad(output, [table], g)]

    for one, other in zip(run(NativeBackend(NoFallback())), run(TiledBackend()), strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_scores_prepared_in_float32_are_computed_in_float32(dtype):
    q, k, v, _ = random_inputs(SHAPES[1], dtype)
    for run in (score.cosine(3.0), score.gaussian(2.0)):
        actual = regard.attention(q, k, v, score=run)
        exact = regard.attention(q.double(), k.double(), v.double(), score=run, backend="reference")
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.double(), exact, rtol=0.01, atol=0.01)


def test_half_precision_is_planned_on_native():
    assert regard.explain(*random_inputs(SHAPES[1], torch.bfloat16)[:3]).backend == "native"


def test_default_dtype_of_torch_changes_nothing():
    q, k, v, g = random_inputs(SHAPES[1], torch.float32)
    expected = output_and_gradients(NativeBackend(NoFallback()), q, k, v, g, mask=mask.causal())
    torch.set_default_dtype(torch.float64)
    try:
        actual = output_and_gradients(NativeBackend(NoFallback()), q, k, v, g, mask=mask.causal())
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
