"""Few queries and many keys on the compiled engine: queries of all heads that share keys together, keys in parts."""

import pytest
import torch
from torch import Tensor

from regard import mask, score
from regard.engine.gradient import run
from regard.engine.native import Build, Native, builds
from regard.engine.tiled import Tiled
from regard.spec.read import read

pytestmark = pytest.mark.skipif(not builds(), reason="regard was installed without a C++ compiler")

# (heads, key heads, queries, keys, width, value width): one by one and side by side, one part and several, whole
# vectors and not, one head and groups.
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

RULES = {
    "plain": lambda n: {},
    "causal": lambda n: dict(mask=mask.causal()),
    "window": lambda n: dict(mask=mask.causal() & mask.window(n // 3 + 1)),
    "lengths": lambda n: dict(mask=mask.padding(torch.tensor([n // 2, n - 3]))),
    "some heads": lambda n: dict(mask=lambda b, h, i, j: (j > n // 2) | (h % 2 == 0)),
    "scattered": lambda n: dict(mask=lambda b, h, i, j: (j * 7 + h * 3 + i) % 5 != 0),
    "some batch elements": lambda n: dict(mask=lambda b, h, i, j: b == 1),
    "alibi": lambda n: dict(score=score.alibi(), mask=mask.causal()),
    "softcap": lambda n: dict(score=score.softcap(2.0)),
    "rule by head": lambda n: dict(score=lambda s, b, h, i, j: s * (1 + h) / 4 + i - j / n, mask=mask.causal()),
}


def rows(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    heads, key_heads, n_q, n_k, width, value_width = shape
    numbers = torch.Generator().manual_seed(seed)
    q = torch.randn(2, heads, n_q, width, generator=numbers)
    k = torch.randn(2, key_heads, n_k, width, generator=numbers)
    return q, k, torch.randn(2, key_heads, n_k, value_width, generator=numbers)


def answered(engine: object, q: Tensor, k: Tensor, v: Tensor, **options: object) -> tuple[Tensor, Tensor]:
    question = read(q, k, v, **options)
    output, lse = run(engine, question.spec, engine.tiles(question.spec), question.inputs())
    return output, lse


def agree(build: Build, q: Tensor, k: Tensor, v: Tensor, **options: object) -> None:
    found, expected = answered(Native(Tiled(), build), q, k, v, **options), answered(Tiled(), q, k, v, **options)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=5e-6, equal_nan=True)


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", RULES)
def test_few_queries_get_what_tiled_gives_them(build: Build, shape: tuple[int, ...], name: str) -> None:
    agree(build, *rows(shape), **RULES[name](shape[3]))


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[1], SHAPES[10]], ids=str)
def test_keys_may_lie_anywhere(build: Build, shape: tuple[int, ...]) -> None:
    q, k, v = rows(shape)
    agree(build, q, k.transpose(1, 2).contiguous().transpose(1, 2), v[:1].expand_as(v), mask=mask.causal())


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[5], SHAPES[9], SHAPES[11]], ids=str)
@pytest.mark.parametrize("wild", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["k", "v"])
def test_what_is_hidden_may_hold_anything(build: Build, shape: tuple[int, ...], wild: float, where: str) -> None:
    q, k, v = rows(shape)
    hidden = torch.arange(shape[3]) % 7 == 3
    expected = answered(Tiled(), q, k, v, mask=lambda b, h, i, j: j % 7 != 3)
    (k if where == "k" else v)[:, :, hidden] = wild
    found = answered(Native(Tiled(), build), q, k, v, mask=lambda b, h, i, j: j % 7 != 3)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[5], SHAPES[9]], ids=str)
@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("name", ["plain", "causal", "alibi"])
def test_what_is_not_finite_reaches_who_sees_it(build: Build, shape: tuple[int, ...], where: str, name: str) -> None:
    numbers = dict(zip("qkv", rows(shape), strict=True))
    numbers[where][1, :, -1, 2] = torch.inf
    numbers[where][0, 0, -1, 3] = torch.nan
    agree(build, *numbers.values(), **RULES[name](shape[3]))


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[5], SHAPES[1], SHAPES[9], SHAPES[10]], ids=str)
def test_any_number_of_threads_gives_the_same_bits(shape: tuple[int, ...]) -> None:
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append(answered(Native(Tiled()), *rows(shape), mask=mask.causal()))
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_sharp_and_flat_rows_across_parts_are_merged_exactly() -> None:
    q, k, v = rows((2, 1, 1, 6000, 64, 64))
    k[0] *= 30  # one key takes nearly all, wherever it lies
    k[1] = 0  # all keys take the same
    output, lse = answered(Native(Tiled()), q, k, v)
    exact = torch.softmax(q[0, 0].double() @ k[0, 0].double().T / 8, -1) @ v[0, 0].double()
    torch.testing.assert_close(output[0, 0].double(), exact, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(output[1, 0], v[1, 0].mean(0, keepdim=True), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse[1], torch.full_like(lse[1], 6000.0).log())
