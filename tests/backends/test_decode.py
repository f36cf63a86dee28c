"""Few queries and many keys on the native backend: query heads that share keys run together, and keys are split."""

import pytest
import torch
from torch import Tensor

from regard import mask, score
from regard.backends.native.backend import KernelBuild, NativeBackend, builds
from regard.backends.shared.autograd import differentiable_forward
from regard.backends.tiled import TiledBackend
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call

pytestmark = pytest.mark.skipif(not builds(), reason="regard was installed without a C++ compiler")

# (heads, key-value heads, queries, keys, head dim, value dim): one or several splits, whole and partial vectors, one
# head or groups of heads
SHAPES = [
    (8, 8, 1, 2500, 64, 64),
    (8, 2, 1, 4100, 32, 48),
    (8, 1, 1, 2049, 64, 16),
    (4, 4, 8, 2048, 16, 16),
    (3, 1, 1, 2100, 32, 32),
    (7, 1, 1, 2067, 64, 80),
    (12, 1, 1, 2070, 16, 32),
    (8, 2, 2, 31, 16, 16),
    (8, 2, 2, 33, 16, 16),
    (32, 8, 4, 2300, 128, 128),
    (2, 2, 16, 2500, 64, 64),
    (4, 1, 12, 300, 40, 24),
    (6, 2, 3, 2100, 24, 8),
    (3, 1, 15, 130, 8, 9),
]

OPTIONS = {
    "plain": lambda n: {},
    "causal": lambda n: dict(mask=mask.causal()),
    "window": lambda n: dict(mask=mask.causal() & mask.sliding_window(n // 3 + 1)),
    "lengths": lambda n: dict(mask=mask.padding(torch.tensor([n // 2, n - 3]))),
    "some heads": lambda n: dict(mask=lambda b, h, i, j: (j > n // 2) | (h % 2 == 0)),
    "scattered": lambda n: dict(mask=lambda b, h, i, j: (j * 7 + h * 3 + i) % 5 != 0),
    "some batch elements": lambda n: dict(mask=lambda b, h, i, j: b == 1),
    "alibi": lambda n: dict(score=score.alibi(), mask=mask.causal()),
    "softcap": lambda n: dict(score=score.softcap(2.0)),
    "score modifier per head": lambda n: dict(
        score=lambda s, b, h, i, j: s * (1 + h) / 4 + i - j / n, mask=mask.causal()
    ),
}


def random_inputs(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    heads, kv_heads, n_q, n_k, head_dim, value_dim = shape
    numbers = torch.Generator().manual_seed(seed)
    q = torch.randn(2, heads, n_q, head_dim, generator=numbers)
    k = torch.randn(2, kv_heads, n_k, head_dim, generator=numbers)
    return q, k, torch.randn(2, kv_heads, n_k, value_dim, generator=numbers)


def run(backend: object, q: Tensor, k: Tensor, v: Tensor, **options: object) -> tuple[Tensor, Tensor]:
    call = parse_call(AttentionCall(q, k, v, **options))
    output, lse = differentiable_forward(backend, call.spec, backend.tiling(call.spec), call.prepare_inputs())[:2]
    return output, lse


def assert_agrees_with_tiled(build: KernelBuild, q: Tensor, k: Tensor, v: Tensor, **options: object) -> None:
    actual, expected = (
        run(NativeBackend(TiledBackend(), build), q, k, v, **options),
        run(TiledBackend(), q, k, v, **options),
    )
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=5e-6, equal_nan=True)


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_few_queries_agree_with_tiled(build: KernelBuild, shape: tuple[int, ...], name: str) -> None:
    assert_agrees_with_tiled(build, *random_inputs(shape), **OPTIONS[name](shape[3]))


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[1], SHAPES[10]], ids=str)
def test_strided_keys_agree_with_tiled(build: KernelBuild, shape: tuple[int, ...]) -> None:
    q, k, v = random_inputs(shape)
    assert_agrees_with_tiled(
        build, q, k.transpose(1, 2).contiguous().transpose(1, 2), v[:1].expand_as(v), mask=mask.causal()
    )


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[5], SHAPES[9], SHAPES[11]], ids=str)
@pytest.mark.parametrize("nonfinite", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["k", "v"])
def test_nonfinite_hidden_keys_change_nothing(
    build: KernelBuild, shape: tuple[int, ...], nonfinite: float, where: str
) -> None:
    q, k, v = random_inputs(shape)
    hidden = torch.arange(shape[3]) % 7 == 3
    expected = run(TiledBackend(), q, k, v, mask=lambda b, h, i, j: j % 7 != 3)
    (k if where == "k" else v)[:, :, hidden] = nonfinite
    actual = run(NativeBackend(TiledBackend(), build), q, k, v, mask=lambda b, h, i, j: j % 7 != 3)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[5], SHAPES[9]], ids=str)
@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("name", ["plain", "causal", "alibi"])
def test_nonfinite_inputs_reach_the_same_outputs_as_in_tiled(
    build: KernelBuild, shape: tuple[int, ...], where: str, name: str
) -> None:
    numbers = dict(zip("qkv", random_inputs(shape), strict=True))
    numbers[where][1, :, -1, 2] = torch.inf
    numbers[where][0, 0, -1, 3] = torch.nan
    assert_agrees_with_tiled(build, *numbers.values(), **OPTIONS[name](shape[3]))


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[5], SHAPES[1], SHAPES[9], SHAPES[10]], ids=str)
def test_any_number_of_threads_gives_the_same_bits(shape: tuple[int, ...]) -> None:
    before = torch.get_num_threads()
    actual = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        actual.append(run(NativeBackend(TiledBackend()), *random_inputs(shape), mask=mask.causal()))
    torch.set_num_threads(before)
    for other in actual[1:]:
        assert all(torch.equal(a, b) for a, b in zip(actual[0], other, strict=True))


def test_sharp_and_flat_rows_across_key_splits_are_merged_exactly() -> None:
    q, k, v = random_inputs((2, 1, 1, 6000, 64, 64))
    k[0] *= 30  # one key has nearly all of the weight
    k[1] = 0  # all keys have the same weight
    output, lse = run(NativeBackend(TiledBackend()), q, k, v)
    exact = torch.softmax(q[0, 0].double() @ k[0, 0].double().T / 8, -1) @ v[0, 0].double()
    torch.testing.assert_close(output[0, 0].double(), exact, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(output[1, 0], v[1, 0].mean(0, keepdim=True), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse[1], torch.full_like(lse[1], 6000.0).log())
