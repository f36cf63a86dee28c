"""Thresholded normalizers: every build of the native backend agrees with the definition in float64."""

import pytest
import torch
from torch import Tensor

from regard import mask, normalizer, score
from regard.backends.native.backend import KernelBuild, NativeBackend, builds
from regard.backends.reference import ReferenceBackend
from regard.backends.shared.autograd import differentiable_forward
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from tests.backends.no_fallback import NoFallback

pytestmark = pytest.mark.skipif(not builds(), reason="regard was installed without a C++ compiler")

every_build = pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
NORMALIZERS = {
    "sparsemax": normalizer.sparsemax(),
    "entmax 1.5": normalizer.entmax(1.5),
    "entmax 1.05": normalizer.entmax(1.05),
    "entmax per head": normalizer.entmax(torch.tensor([1.2, 1.5, 1.7, 2.0])),
    "topk": normalizer.topk(6),
    "hardmax": normalizer.hardmax(),
}
OPTIONS = {
    "plain": {},
    "causal": dict(mask=mask.causal()),
    "window": dict(mask=mask.causal() & mask.sliding_window(9)),
    "alibi": dict(score=score.alibi(), mask=mask.causal()),
    "bias": dict(score=score.bias(torch.randn(4, 61, 210, generator=torch.Generator().manual_seed(5)))),
    "additive": dict(score=score.additive(*(torch.ones(8, 8).tril(n) * 0.3 for n in (0, 3)), torch.linspace(-1, 1, 8))),
    "dropout": dict(dropout=0.3, seed=5),
    "cosine": dict(score=score.cosine(3.0)),
    "softcap": dict(score=score.softcap(1.5)),  # its derivative differs from pair to pair
}


def output_and_gradients(backend: object, tensors: list[Tensor], **options: object) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors[:3]]
    call = parse_call(AttentionCall(*leaves, **options))
    output, threshold = differentiable_forward(
        backend, call.spec, backend.tiling(call.spec), call.prepare_inputs(backend.compute_dtype)
    )[:2]
    assert threshold is not None
    return [output, threshold, *torch.autograd.grad(output, leaves, tensors[3].to(output.dtype))]


def random_inputs(n_q: int, n_k: int, head_dim: int, value_dim: int) -> list[Tensor]:
    tensors = torch.Generator().manual_seed(n_q + n_k)
    sizes = ((4, n_q, head_dim), (2, n_k, head_dim), (2, n_k, value_dim), (4, n_q, value_dim))
    return [torch.randn(2, *size, generator=tensors) for size in sizes]


@every_build
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("normalizer_name", NORMALIZERS)
def test_every_option_agrees_with_the_definition(build: KernelBuild, name: str, normalizer_name: str) -> None:
    tensors = random_inputs(61, 210, 8, 9)
    options = OPTIONS[name] | dict(normalizer=NORMALIZERS[normalizer_name])

    actual = output_and_gradients(NativeBackend(NoFallback(), build), tensors, **options)

    for one, other in zip(actual, output_and_gradients(ReferenceBackend(), tensors, **options), strict=True):
        # a weight is a power of up to 20 of values rounded to 1e-7, and gradients are sums of a hundred weights
        torch.testing.assert_close(one.double(), other.double(), rtol=2e-4, atol=3e-5)


@every_build
@pytest.mark.parametrize("shape", [(1, 300, 8, 8), (48, 48, 64, 16), (49, 129, 24, 40), (3, 1, 8, 8), (0, 5, 8, 8)])
@pytest.mark.parametrize("normalizer_name", ["sparsemax", "topk"])
def test_every_shape_agrees_with_the_definition(
    build: KernelBuild, shape: tuple[int, ...], normalizer_name: str
) -> None:
    tensors = random_inputs(*shape)

    actual = output_and_gradients(NativeBackend(NoFallback(), build), tensors, normalizer=NORMALIZERS[normalizer_name])

    for one, other in zip(
        actual, output_and_gradients(ReferenceBackend(), tensors, normalizer=NORMALIZERS[normalizer_name]), strict=True
    ):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-5)


@every_build
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("normalizer_name", ["sparsemax", "entmax 1.5", "topk"])
def test_half_precision_rounds_only_inputs_and_outputs(build: KernelBuild, dtype, normalizer_name: str) -> None:
    tensors = [x.to(dtype) for x in random_inputs(61, 210, 8, 9)]

    actual = output_and_gradients(NativeBackend(NoFallback(), build), tensors, normalizer=NORMALIZERS[normalizer_name])
    expected = output_and_gradients(
        NativeBackend(NoFallback(), build), [x.float() for x in tensors], normalizer=NORMALIZERS[normalizer_name]
    )

    once = torch.finfo(dtype).eps
    assert actual[0].dtype == actual[2].dtype == dtype
    torch.testing.assert_close(actual[0].float(), expected[0], rtol=once, atol=once / 8)
    torch.testing.assert_close(actual[1], expected[1], rtol=0, atol=0)
    for one, other in zip(actual[2:], expected[2:], strict=True):  # the backward pass reads the rounded output
        torch.testing.assert_close(one.float(), other, rtol=8 * once, atol=8 * once)


@every_build
def test_any_number_of_threads_gives_the_same_bits(build: KernelBuild) -> None:
    tensors, threads = random_inputs(200, 300, 16, 16), torch.get_num_threads()
    try:
        actual = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            actual.append(
                output_and_gradients(
                    NativeBackend(NoFallback(), build), tensors, normalizer=normalizer.entmax(1.3), mask=mask.causal()
                )
            )
    finally:
        torch.set_num_threads(threads)

    assert all(torch.equal(x, y) for other in actual[1:] for x, y in zip(actual[0], other, strict=True))


def test_topk_with_tied_scores_keeps_all_ties() -> None:
    """Scores of 0, 1, 2 and 3 only: every threshold falls among ties."""
    keys = (torch.arange(4000) % 4).float().view(1, 1, -1, 1)
    for k, num_selected in ((1, 1000), (999, 1000), (1000, 1000), (1001, 2000), (3000, 3000), (3500, 4000)):
        spec = parse_call(
            AttentionCall(torch.ones(1, 1, 1, 1), keys, keys, score=score.dot(), normalizer=normalizer.topk(k))
        )
        output, threshold = differentiable_forward(
            NativeBackend(NoFallback()), spec.spec, NativeBackend(NoFallback()).tiling(spec.spec), spec.prepare_inputs()
        )[:2]
        selected = keys[keys > threshold.item()]
        assert len(selected) == num_selected
        torch.testing.assert_close(output.squeeze(), (selected.softmax(0) * selected).sum(), rtol=1e-5, atol=1e-5)
