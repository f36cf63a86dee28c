"""Every kernel with a length of 0 in every dimension; `make sanitize` runs this on a core with sanitizers as well.

A query without keys outputs 0 and has an lse of -inf, and every gradient is 0.
"""

from collections.abc import Callable, Iterator
from itertools import cycle, product
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import attention, attention_with_weights, mask, measure, normalizer, score
from regard.backends.native.backend import KernelBuild, NativeBackend, builds
from regard.backends.shared.autograd import differentiable_forward
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call

pytestmark = pytest.mark.skipif(not builds(), reason="the compiled core is not built")

Shape = tuple[int, int, int, int, int, int]  # batch, heads, key-value heads, n_q, n_k, value_dim


def shapes() -> Iterator[Shape]:
    """Every combination of lengths with a 0 among them."""
    for batch, heads, n_q, n_k, value_dim in product((0, 2), ((0, 0), (4, 2)), (0, 25), (0, 1, 40), (0, 5)):
        if 0 in (batch, heads[0], n_q, n_k, value_dim):
            yield batch, *heads, n_q, n_k, value_dim


def table(size: int) -> Tensor:
    return torch.linspace(-1.0, 1.0, size)


def additive(shape: Shape) -> score.Score:
    return score.additive(torch.randn(8, 6), torch.randn(8, 6), torch.randn(shape[1], 6))


# Options of a call by its shape: one for each kernel and each kind of program.
CASES: dict[str, Callable[[Shape], dict[str, Any]]] = {
    "plain": lambda s: {},
    "causal": lambda s: dict(mask=mask.causal()),
    "lookup of booleans": lambda s: dict(mask=torch.ones(s[3], s[4], dtype=torch.bool)),
    "lookup of floats": lambda s: dict(score=score.bias(torch.zeros(s[1], s[3], s[4]))),
    "lookup by key": lambda s: dict(score=lambda x, b, h, i, j, t=table(s[4]): x + t[j]),
    "score modifier": lambda s: dict(score=score.alibi(), mask=mask.sliding_window(3)),
    "dropout": lambda s: dict(dropout=0.5, seed=7),
    "additive": lambda s: dict(score=additive(s)),
    "sparsemax": lambda s: dict(normalizer=normalizer.sparsemax(), mask=mask.causal()),
    "entmax": lambda s: dict(normalizer=normalizer.entmax(1.3), dropout=0.5, seed=7),
    "topk": lambda s: dict(normalizer=normalizer.topk(3)),
    "hardmax": lambda s: dict(normalizer=normalizer.hardmax(), score=score.alibi()),
}


def tensors(shape: Shape, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, kv_heads, n_q, n_k, value_dim = shape
    sizes = ((heads, n_q, 8), (kv_heads, n_k, 8), (kv_heads, n_k, value_dim), (heads, n_q, value_dim))
    q, k, v, d_output = (torch.randn(batch, *size).to(dtype) for size in sizes)
    return q, k, v, d_output


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("build", builds(), ids=lambda build: build.name)
def test_forward_and_backward_with_a_length_of_0(build: KernelBuild, name: str) -> None:
    for shape, dtype in zip(shapes(), cycle((torch.float32, torch.bfloat16, torch.float16))):
        torch.manual_seed(3)
        *qkv, d_output = tensors(shape, dtype)
        leaves = [x.requires_grad_() for x in qkv]
        call, backend = parse_call(AttentionCall(*leaves, **CASES[name](shape))), NativeBackend(None, build)

        output, statistic = differentiable_forward(
            backend, call.spec, backend.tiling(call.spec), call.prepare_inputs()
        )[:2]
        gradients = torch.autograd.grad(output, leaves, d_output)

        assert output.shape == d_output.shape and statistic is not None and not statistic.isnan().any()
        # the output is empty or a sum over no keys, so nothing depends on the inputs
        for x in (output, *gradients):
            assert not x.any(), f"{shape}: {x}"
        if shape[4] == 0 and "normalizer" not in CASES[name](shape):
            assert (statistic == -torch.inf).all(), f"{shape}: {statistic}"


@pytest.mark.parametrize("build", builds(), ids=lambda build: build.name)
@pytest.mark.parametrize("name", ["plain", "causal", "score modifier"])
def test_column_sums_with_a_length_of_0(build: KernelBuild, name: str) -> None:
    for shape in shapes():
        q, k, v, _ = tensors(shape, torch.float32)
        call, backend = parse_call(AttentionCall(q, k, v, **CASES[name](shape))), NativeBackend(None, build)

        sums = backend.column_sums(call.spec, call.prepare_inputs())

        assert sums is not None
        lse, received = sums
        if shape[4] == 0:
            assert (lse == -torch.inf).all() and received.shape == (shape[0], shape[1], 0)
        if shape[3] == 0:
            assert not received.any()


@pytest.mark.parametrize(
    "normalizer_name", [normalizer.sinkhorn(2), normalizer.sinkhorn(1)], ids=["two passes", "one pass"]
)
def test_sinkhorn_with_a_length_of_0(normalizer_name: normalizer.Normalizer) -> None:
    for shape in shapes():
        q, k, v, _ = tensors(shape, torch.float32)

        output = attention(q, k, v, normalizer=normalizer_name)

        assert output.shape == (shape[0], shape[1], shape[3], shape[5])
        assert shape[4] or not output.any()


def test_weights_and_measures_with_a_length_of_0() -> None:
    for shape in shapes():
        q, k, v, _ = tensors(shape, torch.float32)
        for options in ({}, dict(mask=mask.causal()), dict(score=score.alibi())):
            weights = attention_with_weights(q, k, v, backend="native", **options).weights

            assert weights[:, :].shape == (shape[0], shape[1], shape[3], shape[4])
            if 0 not in shape[:5]:
                weights.measure(measure.entropy, measure.column_mass, measure.topk(1))


@pytest.mark.parametrize("backend", ["native", "tiled", "reference"])
def test_no_heads_or_an_empty_batch_give_an_empty_output(backend: str) -> None:
    for batch, heads in ((1, 0), (0, 2), (0, 0)):
        q, k = torch.randn(batch, heads, 3, 8), torch.randn(batch, heads, 5, 8)

        assert attention(q, k, k, backend=backend).shape == (batch, heads, 3, 8)
