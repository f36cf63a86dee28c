"""Additive scores on the native backend: four forms of one sum, and the switches between them."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, normalizer, score
from regard.backends.native.backend import KernelBuild, NativeBackend, builds
from regard.backends.registry import BACKENDS_BY_NAME
from regard.backends.shared.autograd import differentiable_forward
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call

pytestmark = pytest.mark.skipif(not builds(), reason="regard was installed without a C++ compiler")
every_build = pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)

# 8, 4 or 2 channels share a division while the product of their 1 + e^2(a + b) is less than 2^125. If all channels are
# equal, that holds for |a + b| up to these limits
REACHES = [125 * math.log(2) / 2 / channels for channels in (8, 4, 2)]
SWITCHES = [at + move for at in REACHES for move in (-0.1, -1e-3, -1e-5, 0.0, 1e-5, 1e-3, 0.1)]


def output_and_gradients(build: KernelBuild | None, tensors: list[Tensor], **options: Any) -> list[Tensor]:
    """Output and gradients of q, k, v, w_q, w_k and u; in float64 by the definition, if build is None."""
    exact = torch.float64 if build is None else torch.float32
    leaves = [x.detach().to(exact).requires_grad_() for x in tensors]
    call = parse_call(
        AttentionCall(
            *leaves[:3], score=score.additive(*leaves[3:]).then(options.pop("score_mod", _identity)), **options
        )
    )
    backend = NativeBackend(None, build) if build else BACKENDS_BY_NAME["tiled"]
    output, _ = differentiable_forward(backend, call.spec, backend.tiling(call.spec), call.prepare_inputs())[:2]
    weights = torch.sin(torch.arange(output.numel(), dtype=exact)).view(output.shape)
    return [x.detach() for x in (output, *torch.autograd.grad((output * weights).sum(), leaves))]


def _identity(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s


def call(n_q: int, n_k: int, heads: int, kv_heads: int, hidden: int, per_head: bool = False) -> list[Tensor]:
    numbers = torch.Generator().manual_seed(n_q + hidden)
    lead = (heads,) if per_head else ()
    shapes = [
        (2, heads, n_q, 6),
        (2, kv_heads, n_k, 5),
        (2, kv_heads, n_k, 7),
        (6, hidden),
        (5, hidden),
        (*lead, hidden),
    ]
    q, k, v, w_q, w_k, u = (torch.randn(shape, generator=numbers) for shape in shapes)
    return [q, k, v, w_q / 6**0.5, w_k / 5**0.5, 2 * u / hidden**0.5]


def assert_agree(actual: list[Tensor], expected: list[Tensor], times: float = 1.0) -> None:
    for part, one, other in zip(("output", "q", "k", "v", "w_q", "w_k", "u"), actual, expected, strict=True):
        # sums of about a thousand rounding errors; gradients of weights are sums over every pair
        limit = 3e-6 * times * (0.1 + float(other.abs().max()))
        assert float((one.double() - other.double()).abs().max()) < limit, part


SHAPES = [(1, 1, 1, 1, 1), (50, 70, 2, 2, 16), (97, 201, 4, 2, 33), (130, 97, 4, 1, 64), (16, 100, 2, 2, 100)]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": dict(mask=mask.causal()),
    "window and sink": dict(mask=mask.sliding_window(9), normalizer=normalizer.sink(0.3)),
    "capped": dict(score_mod=lambda s, b, h, i, j: 2 * torch.tanh(s / 2)),
    "dropout": dict(mask=mask.causal(), dropout=0.2, seed=5),
}


@every_build
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("size", [1.0, 40.0], ids=["small numbers", "large numbers"])
def test_additive_scores_and_gradients_agree_with_the_definition(
    build: KernelBuild, shape: tuple[int, ...], name: str, size: float
) -> None:
    tensors = call(*shape, per_head=shape[2] == 4)
    tensors[3], tensors[4] = tensors[3] * size, tensors[4] * size

    assert_agree(
        output_and_gradients(build, tensors, **OPTIONS[name]),
        output_and_gradients(None, tensors, **OPTIONS[name]),
        max(1.0, size / 2),
    )


@every_build
@pytest.mark.parametrize("distance", [*SWITCHES, 45.0, 90.0, 1e5])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_sum_is_right_around_each_switch_of_the_form(build: KernelBuild, distance: float, sign: float) -> None:
    """One query and one key add up to the given distance in every channel."""
    tensors = call(20, 40, 1, 1, 8)
    q, k = torch.randn(2, 1, 20, 8), torch.randn(2, 1, 40, 8)
    q[:, :, 3], k[:, :, 5] = sign * torch.tensor(distance).float() / 2, sign * torch.tensor(distance).float() / 2
    tensors = [q, k, tensors[2], torch.eye(8), torch.eye(8), tensors[5]]

    assert_agree(output_and_gradients(build, tensors), output_and_gradients(None, tensors))


@every_build
def test_channels_with_zero_weight_change_nothing(build: KernelBuild) -> None:
    """Large inputs where u is 0 select another form of the same sum."""
    *tensors, w_q, w_k, u = call(60, 150, 2, 1, 24)
    bias = torch.zeros(32)
    wider = [torch.nn.functional.pad(x, (0, 8)) for x in (w_q, w_k, u)]

    def run(distance: float) -> Tensor:
        bias[24:] = distance
        problem = parse_call(AttentionCall(*tensors, score=score.additive(*wider, bias)))
        backend = NativeBackend(None, build)
        return differentiable_forward(backend, problem.spec, backend.tiling(problem.spec), problem.prepare_inputs())[0]

    forms = [run(distance) for distance in (0.0, 7.0, 15.0, 25.0)]  # 8, 4, 2 and 1 channels per division
    for one, other in itertools.combinations(forms, 2):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=2e-6)
        assert not torch.equal(one, other)  # equal bits would mean the same form


@every_build
@pytest.mark.parametrize("large", [1e6, 1e20, 1e30])
def test_large_u_gives_the_right_lse(build: KernelBuild, large: float) -> None:
    """All scores are equal and large, so all weights are equal."""
    q, k, v = torch.full((1, 1, 4, 8), 4.0), torch.full((1, 1, 40, 8), 1.0), torch.randn(1, 1, 40, 8)
    problem = parse_call(
        AttentionCall(q, k, v, score=score.additive(torch.eye(8), torch.eye(8), torch.full((8,), large)))
    )
    backend = NativeBackend(None, build)
    output, lse = differentiable_forward(backend, problem.spec, backend.tiling(problem.spec), problem.prepare_inputs())[
        :2
    ]
    torch.testing.assert_close(output, v.mean(2, keepdim=True).expand_as(output))
    torch.testing.assert_close(lse, torch.full_like(lse, large * 8 * math.tanh(5.0)))


@every_build
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nonfinite_hidden_key_changes_nothing(build: KernelBuild, bad: float) -> None:
    tensors = call(30, 60, 2, 1, 16)
    hidden = tensors[1].clone()
    hidden[:, :, -7:] = bad
    visible = mask.padding(torch.tensor([53, 53]))

    # the backend receives prepared tensors, so a NaN stays in its row
    actual = output_and_gradients(build, [tensors[0], hidden, *tensors[2:]], mask=visible)
    expected = output_and_gradients(build, tensors, mask=visible)
    for n in (0, 1, 3):
        torch.testing.assert_close(actual[n], expected[n], rtol=1e-5, atol=1e-5)
    assert (actual[2][:, :, -7:] == 0).all() and actual[2].isfinite().all()


@every_build
def test_any_number_of_threads_gives_the_same_bits(build: KernelBuild) -> None:
    before = torch.get_num_threads()
    numbers = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, heads, n, 20, generator=numbers) for heads, n in ((4, 200), (2, 300), (2, 300)))
    problem = parse_call(
        AttentionCall(q, k, v, score=score.additive(torch.eye(20), torch.eye(20), q[0, :, 0]), mask=mask.causal())
    )

    def actual(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        backend, inputs = NativeBackend(None, build), problem.prepare_inputs().detached()
        leaves = [x.clone().requires_grad_() for x in inputs.all_tensors()]
        output, lse = differentiable_forward(
            backend, problem.spec, backend.tiling(problem.spec), inputs.with_tensors(leaves)
        )[:2]
        return [output, lse, *torch.autograd.grad(output, leaves, v.sum() * output.detach())]

    try:
        alone = actual(1)
        for threads in (2, 3, 5):
            assert all(map(torch.equal, actual(threads), alone))
    finally:
        torch.set_num_threads(before)


def test_additive_scores_are_planned_on_native() -> None:
    w, u = torch.randn(8, 16), torch.randn(16)

    plan = regard.explain((3, 50, 8), (3, 60, 8), (3, 60, 8), score=score.additive(w, w, u))

    assert plan.backend == "native"


@pytest.mark.parametrize("backend", ["reference", "tiled", None])
@pytest.mark.parametrize("n", [3, 5])
def test_bias_per_head_is_added_to_its_own_head(backend: str | None, n: int) -> None:
    """Also if there are as many queries as heads."""
    *tensors, w_q, w_k, u = call(n, 7, 3, 3, 8)
    bias = torch.randn(3, 8)
    actual = regard.attention(*tensors, score=score.additive(w_q, w_k, u, bias), backend=backend)
    for h in range(3):
        one = [x[:, h : h + 1] for x in tensors]
        weights = [x if x.dim() < 3 else x[h : h + 1] for x in (w_q, w_k)]
        alone = regard.attention(
            *one, score=score.additive(*weights, u if u.dim() < 2 else u[h], bias[h]), backend=backend
        )
        torch.testing.assert_close(actual[:, h : h + 1], alone, rtol=1e-4, atol=1e-5)


def test_bias_for_another_number_of_heads_raises_error() -> None:
    *tensors, w_q, w_k, u = call(5, 7, 3, 3, 8)
    with pytest.raises(
        regard.errors.ArgumentError, match=r"bias must have one entry, or one for each of 3 heads; got 4"
    ):
        regard.attention(*tensors, score=score.additive(w_q, w_k, u, torch.randn(4, 8)))


def test_bias_of_another_dimension_raises_error() -> None:
    *tensors, w_q, w_k, u = call(5, 7, 3, 3, 8)
    with pytest.raises(
        regard.errors.ArgumentError, match=r"bias must have shape \(hidden_dim,\) = \(8,\); got bias=\(1,\)"
    ):
        regard.attention(*tensors, score=score.additive(w_q, w_k, u, torch.randn(1)))
