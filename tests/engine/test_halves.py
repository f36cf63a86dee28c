"""bfloat16 and float16 on the compiled engine: read and written in half precision, computed in float32."""

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, score
from regard.engine.gradient import run
from regard.engine.native import Build, Native, builds
from regard.engine.tiled import Tiled
from regard.spec.read import read

pytestmark = pytest.mark.skipif(not builds(), reason="regard was installed without a C++ compiler")

HALVES = [torch.bfloat16, torch.float16]
RULES = {
    "plain": {},
    "causal": dict(mask=mask.causal()),
    "window": dict(mask=mask.causal() & mask.window(9)),
    "alibi": dict(score=score.alibi(), mask=mask.causal()),
    "softcap": dict(score=score.softcap(2.0)),
    "dropout": dict(dropout=0.3, seed=5),
}
# (queries, keys, width, value width): panels and whole vectors and not, and few queries with many keys
SHAPES = [(61, 210, 8, 9), (100, 130, 64, 32), (1, 2100, 64, 64), (3, 300, 40, 24), (0, 5, 8, 8), (5, 0, 8, 8)]


class Nobody(Tiled):
    """Takes nothing over."""

    def forward(self, *args: object) -> object:
        raise AssertionError("the native engine passed a forward pass on")

    def backward(self, *args: object) -> object:
        raise AssertionError("the native engine passed a backward pass on")


def rows(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    n_q, n_k, width, value_width = shape
    numbers = torch.Generator().manual_seed(sum(shape))
    sizes = ((4, n_q, width), (2, n_k, width), (2, n_k, value_width), (4, n_q, value_width))
    return [torch.randn(2, *size, generator=numbers).to(dtype) for size in sizes]


def answers(engine: object, q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: object) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    question = read(*leaves, **options)
    output, lse = run(engine, question.spec, engine.tiles(question.spec), question.inputs())
    return [output, lse, *torch.autograd.grad(output, leaves, g)]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", RULES)
def test_only_what_is_read_and_written_is_rounded(dtype, build: Build, shape, name):
    numbers = rows(shape, dtype)
    found = answers(Native(Nobody(), build), *numbers, **RULES[name])
    expected = answers(Native(Nobody(), build), *(x.float() for x in numbers), **RULES[name])
    step = torch.finfo(dtype).eps
    assert [x.dtype for x in found] == [dtype, torch.float32, dtype, dtype, dtype]
    assert torch.equal(found[0], expected[0].to(dtype))  # the same, rounded once
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=0)
    for one, other in zip(found[2:], expected[2:], strict=True):  # the level of a row comes from the rounded output
        torch.testing.assert_close(one.float(), other, rtol=4 * step, atol=4 * step)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_captured_tensor_of_half_precision_gets_its_gradient(dtype):
    q, k, v, g = rows(SHAPES[1], dtype)
    table = torch.randn(4, 300, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    rule = lambda s, b, h, i, j: s + table[h, i - j + 130]

    def asked(engine: object) -> list[Tensor]:
        question = read(q, k, v, score=rule)
        output, _ = run(engine, question.spec, engine.tiles(question.spec), question.inputs())
        return [output, *torch.autograd.grad(output, [table], g)]

    for one, other in zip(asked(Native(Nobody())), asked(Tiled()), strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_scores_prepared_in_more_precision_are_computed_in_it(dtype):
    q, k, v, _ = rows(SHAPES[1], dtype)
    for asked in (score.cosine(3.0), score.metric(2.0)):
        found = regard.attention(q, k, v, score=asked)
        exact = regard.attention(q.double(), k.double(), v.double(), score=asked, engine="reference")
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), exact, rtol=0.01, atol=0.01)


def test_the_plan_for_half_precision_is_native():
    assert regard.explain(*rows(SHAPES[1], torch.bfloat16)[:3]).engine == "native"


def test_the_default_dtype_of_torch_changes_nothing():
    q, k, v, g = rows(SHAPES[1], torch.float32)
    expected = answers(Native(Nobody()), q, k, v, g, mask=mask.causal())
    torch.set_default_dtype(torch.float64)
    try:
        found = answers(Native(Nobody()), q, k, v, g, mask=mask.causal())
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
