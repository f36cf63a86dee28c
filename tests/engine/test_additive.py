"""Additive scores on the compiled engine: four forms of one sum, and the switches between them."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, score, weigh
from regard.attention import TILED
from regard.engine.gradient import run
from regard.engine.native import Build, Native, builds
from regard.spec.read import read

pytestmark = pytest.mark.skipif(not builds(), reason="regard was installed without a C++ compiler")
every_build = pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)

# 8, 4 or 2 channels share a division while the product of so many 1 + e^2(a + b) is less than 2^125: |a + b| up to
# here, where all are alike
REACHES = [125 * math.log(2) / 2 / channels for channels in (8, 4, 2)]
SWITCHES = [at + move for at in REACHES for move in (-0.1, -1e-3, -1e-5, 0.0, 1e-5, 1e-3, 0.1)]


def answers(build: Build | None, tensors: list[Tensor], **options: Any) -> list[Tensor]:
    """Output and gradients of q, k, v, w_q, w_k and u; in float64 by the definition, where no build is given."""
    exact = torch.float64 if build is None else torch.float32
    leaves = [x.detach().to(exact).requires_grad_() for x in tensors]
    question = read(*leaves[:3], score=score.additive(*leaves[3:]).then(options.pop("rule", _same)), **options)
    engine = Native(None, build) if build else TILED
    output, _ = run(engine, question.spec, engine.tiles(question.spec), question.inputs())
    weights = torch.sin(torch.arange(output.numel(), dtype=exact)).view(output.shape)
    return [x.detach() for x in (output, *torch.autograd.grad((output * weights).sum(), leaves))]


def _same(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s


def question(n_q: int, n_k: int, heads: int, key_heads: int, hidden: int, per_head: bool = False) -> list[Tensor]:
    numbers = torch.Generator().manual_seed(n_q + hidden)
    lead = (heads,) if per_head else ()
    shapes = [
        (2, heads, n_q, 6),
        (2, key_heads, n_k, 5),
        (2, key_heads, n_k, 7),
        (6, hidden),
        (5, hidden),
        (*lead, hidden),
    ]
    q, k, v, w_q, w_k, u = (torch.randn(shape, generator=numbers) for shape in shapes)
    return [q, k, v, w_q / 6**0.5, w_k / 5**0.5, 2 * u / hidden**0.5]


def agree(found: list[Tensor], expected: list[Tensor], times: float = 1.0) -> None:
    for part, one, other in zip(("output", "q", "k", "v", "w_q", "w_k", "u"), found, expected, strict=True):
        # sums of some thousand roundings; gradients of weights are sums over every pair
        limit = 3e-6 * times * (0.1 + float(other.abs().max()))
        assert float((one.double() - other.double()).abs().max()) < limit, part


SHAPES = [(1, 1, 1, 1, 1), (50, 70, 2, 2, 16), (97, 201, 4, 2, 33), (130, 97, 4, 1, 64), (16, 100, 2, 2, 100)]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": dict(mask=mask.causal()),
    "window and sink": dict(mask=mask.window(9), weigh=weigh.sink(0.3)),
    "capped": dict(rule=lambda s, b, h, i, j: 2 * torch.tanh(s / 2)),
    "dropout": dict(mask=mask.causal(), dropout=0.2, seed=5),
}


@every_build
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("size", [1.0, 40.0], ids=["small numbers", "large numbers"])
def test_scores_and_gradients_are_those_of_the_definition(
    build: Build, shape: tuple[int, ...], name: str, size: float
) -> None:
    tensors = question(*shape, per_head=shape[2] == 4)
    tensors[3], tensors[4] = tensors[3] * size, tensors[4] * size

    agree(answers(build, tensors, **OPTIONS[name]), answers(None, tensors, **OPTIONS[name]), max(1.0, size / 2))


@every_build
@pytest.mark.parametrize("far", [*SWITCHES, 45.0, 90.0, 1e5])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_sum_is_right_on_both_sides_of_the_switch_and_at_it(build: Build, far: float, sign: float) -> None:
    """One query and one key together reach just so far, in every channel."""
    tensors = question(20, 40, 1, 1, 8)
    q, k = torch.randn(2, 1, 20, 8), torch.randn(2, 1, 40, 8)
    q[:, :, 3], k[:, :, 5] = sign * torch.tensor(far).float() / 2, sign * torch.tensor(far).float() / 2
    tensors = [q, k, tensors[2], torch.eye(8), torch.eye(8), tensors[5]]

    agree(answers(build, tensors), answers(None, tensors))


@every_build
def test_channels_that_count_nothing_change_nothing(build: Build) -> None:
    """Large numbers where u is 0 make another form take its place: all are the same sum."""
    *tensors, w_q, w_k, u = question(60, 150, 2, 1, 24)
    bias = torch.zeros(32)
    wider = [torch.nn.functional.pad(x, (0, 8)) for x in (w_q, w_k, u)]

    def asked(far: float) -> Tensor:
        bias[24:] = far
        problem = read(*tensors, score=score.additive(*wider, bias))
        engine = Native(None, build)
        return run(engine, problem.spec, engine.tiles(problem.spec), problem.inputs())[0]

    forms = [asked(far) for far in (0.0, 7.0, 15.0, 25.0)]  # 8, 4, 2 and none share a division
    for one, other in itertools.combinations(forms, 2):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=2e-6)
        assert not torch.equal(one, other)  # or they are one form


@every_build
@pytest.mark.parametrize("large", [1e6, 1e20, 1e30])
def test_u_may_be_large(build: Build, large: float) -> None:
    """A sum of fractions is large where u is: all scores are alike, and the weights with them."""
    q, k, v = torch.full((1, 1, 4, 8), 4.0), torch.full((1, 1, 40, 8), 1.0), torch.randn(1, 1, 40, 8)
    problem = read(q, k, v, score=score.additive(torch.eye(8), torch.eye(8), torch.full((8,), large)))
    engine = Native(None, build)
    output, lse = run(engine, problem.spec, engine.tiles(problem.spec), problem.inputs())
    torch.testing.assert_close(output, v.mean(2, keepdim=True).expand_as(output))
    torch.testing.assert_close(lse, torch.full_like(lse, large * 8 * math.tanh(5.0)))


@every_build
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_hidden_key_that_is_no_number_is_not_noticed(build: Build, bad: float) -> None:
    tensors = question(30, 60, 2, 1, 16)
    hidden = tensors[1].clone()
    hidden[:, :, -7:] = bad
    seen = mask.padding(torch.tensor([53, 53]))

    # the engine is given the prepared numbers, so that a NaN stays in its row
    found = answers(build, [tensors[0], hidden, *tensors[2:]], mask=seen)
    expected = answers(build, tensors, mask=seen)
    for n in (0, 1, 3):
        torch.testing.assert_close(found[n], expected[n], rtol=1e-5, atol=1e-5)
    assert (found[2][:, :, -7:] == 0).all() and found[2].isfinite().all()


@every_build
def test_any_number_of_threads_gives_the_same_bits(build: Build) -> None:
    before = torch.get_num_threads()
    numbers = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, heads, n, 20, generator=numbers) for heads, n in ((4, 200), (2, 300), (2, 300)))
    problem = read(q, k, v, score=score.additive(torch.eye(20), torch.eye(20), q[0, :, 0]), mask=mask.causal())

    def found(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        engine, inputs = Native(None, build), problem.inputs().detached()
        leaves = [x.clone().requires_grad_() for x in inputs.every()]
        output, lse = run(engine, problem.spec, engine.tiles(problem.spec), inputs.holding(leaves))
        return [output, lse, *torch.autograd.grad(output, leaves, v.sum() * output.detach())]

    try:
        alone = found(1)
        for threads in (2, 3, 5):
            assert all(map(torch.equal, found(threads), alone))
    finally:
        torch.set_num_threads(before)


def test_the_plan_takes_the_compiled_engine() -> None:
    w, u = torch.randn(8, 16), torch.randn(16)

    plan = regard.explain((3, 50, 8), (3, 60, 8), (3, 60, 8), score=score.additive(w, w, u))

    assert plan.engine == "native"


@pytest.mark.parametrize("engine", ["reference", "tiled", None])
@pytest.mark.parametrize("n", [3, 5])
def test_a_bias_of_each_head_is_added_to_the_queries_of_that_head(engine: str | None, n: int) -> None:
    """Also where there are as many queries as heads."""
    *tensors, w_q, w_k, u = question(n, 7, 3, 3, 8)
    bias = torch.randn(3, 8)
    found = regard.attention(*tensors, score=score.additive(w_q, w_k, u, bias), engine=engine)
    for h in range(3):
        one = [x[:, h : h + 1] for x in tensors]
        weights = [x if x.dim() < 3 else x[h : h + 1] for x in (w_q, w_k)]
        alone = regard.attention(
            *one, score=score.additive(*weights, u if u.dim() < 2 else u[h], bias[h]), engine=engine
        )
        torch.testing.assert_close(found[:, h : h + 1], alone, rtol=1e-4, atol=1e-5)


def test_a_bias_for_another_number_of_heads_is_refused() -> None:
    *tensors, w_q, w_k, u = question(5, 7, 3, 3, 8)
    with pytest.raises(regard.errors.SpecError, match=r"bias must have one entry, or one for each of 3 heads; got 4"):
        regard.attention(*tensors, score=score.additive(w_q, w_k, u, torch.randn(4, 8)))


def test_a_bias_of_another_width_is_refused() -> None:
    *tensors, w_q, w_k, u = question(5, 7, 3, 3, 8)
    with pytest.raises(regard.errors.SpecError, match=r"bias must be \(hidden,\) = \(8,\); got bias=\(1,\)"):
        regard.attention(*tensors, score=score.additive(w_q, w_k, u, torch.randn(1)))
