"""Weighings with a level on the compiled engine, every build of it, against the definition in float64."""

import pytest
import torch
from torch import Tensor

from regard import mask, score, weigh
from regard.engine.gradient import run
from regard.engine.native import Build, Native, builds
from regard.engine.reference import Reference
from regard.spec.read import read

from .test_halves import Nobody

pytestmark = pytest.mark.skipif(not builds(), reason="regard was installed without a C++ compiler")

every_build = pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
WEIGHINGS = {
    "sparsemax": weigh.sparsemax(),
    "entmax 1.5": weigh.entmax(1.5),
    "entmax 1.05": weigh.entmax(1.05),
    "entmax a head": weigh.entmax(torch.tensor([1.2, 1.5, 1.7, 2.0])),
    "top": weigh.top(6),
    "argmax": weigh.argmax(),
}
OPTIONS = {
    "plain": {},
    "causal": dict(mask=mask.causal()),
    "window": dict(mask=mask.causal() & mask.window(9)),
    "alibi": dict(score=score.alibi(), mask=mask.causal()),
    "bias": dict(score=score.bias(torch.randn(4, 61, 210, generator=torch.Generator().manual_seed(5)))),
    "additive": dict(score=score.additive(*(torch.ones(8, 8).tril(n) * 0.3 for n in (0, 3)), torch.linspace(-1, 1, 8))),
    "dropout": dict(dropout=0.3, seed=5),
    "cosine": dict(score=score.cosine(3.0)),
    "softcap": dict(score=score.softcap(1.5)),  # its slope differs from pair to pair
}


def answers(engine: object, numbers: list[Tensor], **options: object) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in numbers[:3]]
    question = read(*leaves, **options)
    output, level = run(engine, question.spec, engine.tiles(question.spec), question.inputs(engine.exact))
    assert level is not None
    return [output, level, *torch.autograd.grad(output, leaves, numbers[3].to(output.dtype))]


def rows(n_q: int, n_k: int, width: int, value_width: int) -> list[Tensor]:
    numbers = torch.Generator().manual_seed(n_q + n_k)
    sizes = ((4, n_q, width), (2, n_k, width), (2, n_k, value_width), (4, n_q, value_width))
    return [torch.randn(2, *size, generator=numbers) for size in sizes]


@every_build
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("weighing", WEIGHINGS)
def test_every_rule_agrees_with_the_definition(build: Build, name: str, weighing: str) -> None:
    numbers = rows(61, 210, 8, 9)
    options = OPTIONS[name] | dict(weigh=WEIGHINGS[weighing])

    found = answers(Native(Nobody(), build), numbers, **options)

    for one, other in zip(found, answers(Reference(), numbers, **options), strict=True):
        # a weight is a power of up to 20 of numbers rounded to 1e-7, and gradients sum a hundred of them
        torch.testing.assert_close(one.double(), other.double(), rtol=2e-4, atol=3e-5)


@every_build
@pytest.mark.parametrize("shape", [(1, 300, 8, 8), (48, 48, 64, 16), (49, 129, 24, 40), (3, 1, 8, 8), (0, 5, 8, 8)])
@pytest.mark.parametrize("weighing", ["sparsemax", "top"])
def test_every_shape_agrees_with_the_definition(build: Build, shape: tuple[int, ...], weighing: str) -> None:
    numbers = rows(*shape)

    found = answers(Native(Nobody(), build), numbers, weigh=WEIGHINGS[weighing])

    for one, other in zip(found, answers(Reference(), numbers, weigh=WEIGHINGS[weighing]), strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-5)


@every_build
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("weighing", ["sparsemax", "entmax 1.5", "top"])
def test_in_half_precision_only_what_is_read_and_written_is_rounded(build: Build, dtype, weighing: str) -> None:
    numbers = [x.to(dtype) for x in rows(61, 210, 8, 9)]

    found = answers(Native(Nobody(), build), numbers, weigh=WEIGHINGS[weighing])
    expected = answers(Native(Nobody(), build), [x.float() for x in numbers], weigh=WEIGHINGS[weighing])

    once = torch.finfo(dtype).eps
    assert found[0].dtype == found[2].dtype == dtype
    torch.testing.assert_close(found[0].float(), expected[0], rtol=once, atol=once / 8)
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=0)
    for one, other in zip(found[2:], expected[2:], strict=True):  # their level comes from the rounded output
        torch.testing.assert_close(one.float(), other, rtol=8 * once, atol=8 * once)


@every_build
def test_the_same_bits_come_from_any_number_of_threads(build: Build) -> None:
    numbers, threads = rows(200, 300, 16, 16), torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(answers(Native(Nobody(), build), numbers, weigh=weigh.entmax(1.3), mask=mask.causal()))
    finally:
        torch.set_num_threads(threads)

    assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(found[0], other, strict=True))


def test_many_keys_of_few_values_have_the_right_ones_kept() -> None:
    """Scores of 0, 1, 2 and 3 only: every level falls among ties."""
    keys = (torch.arange(4000) % 4).float().view(1, 1, -1, 1)
    for k, seen in ((1, 1000), (999, 1000), (1000, 1000), (1001, 2000), (3000, 3000), (3500, 4000)):
        spec = read(torch.ones(1, 1, 1, 1), keys, keys, score=score.dot(), weigh=weigh.top(k))
        output, level = run(Native(Nobody()), spec.spec, Native(Nobody()).tiles(spec.spec), spec.inputs())
        kept = keys[keys > level.item()]
        assert len(kept) == seen
        torch.testing.assert_close(output.squeeze(), (kept.softmax(0) * kept).sum(), rtol=1e-5, atol=1e-5)
