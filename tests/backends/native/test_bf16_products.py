"""Products of bfloat16 on the native backend: errors, non-finite inputs, large scores, and where they do not apply."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard import mask, normalizer, score
from regard.backends.native.backend import BF16_BUILD, builds

pytestmark = pytest.mark.skipif(
    not any(build.name == BF16_BUILD for build in builds()), reason="this processor has no products of bfloat16"
)

BF16 = torch.bfloat16
NUM_RANDOM_CALLS = 200


def random_call(seed: int) -> tuple[list[Tensor], Tensor, bool]:
    """Random q, k, v, a gradient of the output, and whether the call is causal. Scores have a random spread.

    torch's fused kernel supports the call; without it, torch computes in float32.
    """
    generator = torch.Generator().manual_seed(seed)
    draw = lambda low, high: int(torch.randint(low, high + 1, (), generator=generator))
    heads, n_q, n_k, dim, is_causal = (draw(*limits) for limits in ((1, 3), (1, 150), (1, 300), (1, 80), (0, 1)))
    n_q = n_k if is_causal else n_q
    q, k, v, g = (torch.randn(1, heads, n, dim, generator=generator) for n in (n_q, n_k, n_k, n_q))
    return [(q * 2.0 ** draw(-1, 2)).to(BF16), k.to(BF16), v.to(BF16)], g.to(BF16), bool(is_causal)


def output_and_gradients(run: Callable[..., Tensor], inputs: list[Tensor], g: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    output = run(*leaves)
    return [output, *torch.autograd.grad(output, leaves, g.to(output.dtype))]


def direct_formula(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Scores, softmax and output, each rounded to the dtype of the inputs."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~visible, -math.inf)
    return scores.softmax(-1) @ v


def torch_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return sdpa(q, k, v, is_causal=is_causal)


def our_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    return regard.attention(q, k, v, mask=mask.causal() if is_causal else None)


def relative_errors(actual: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [
        float((x.detach().double() - y.detach()).norm() / y.norm()) if y.norm() > 1e-6 else 0.0
        for x, y in zip(actual, exact, strict=True)
    ]


def test_errors_are_those_of_torch_and_at_most_twice_those_of_the_direct_formula() -> None:
    ratios_to_torch: list[list[float]] = [[], [], [], []]  # output and gradients of q, k, v
    for seed in range(NUM_RANDOM_CALLS):
        inputs, g, is_causal = random_call(seed)
        exact = output_and_gradients(partial(direct_formula, is_causal=is_causal), [x.double() for x in inputs], g)
        our_errors, torch_errors, direct_errors = (
            relative_errors(output_and_gradients(partial(run, is_causal=is_causal), inputs, g), exact)
            for run in (our_attention, torch_attention, direct_formula)
        )
        for part, (ours, torchs, direct) in enumerate(zip(our_errors, torch_errors, direct_errors, strict=True)):
            # the direct formula is exact if each query has one key; one rounding of the result is 2^-9 at most
            assert ours <= max(2 * direct, 2.0**-9), (seed, part, ours, direct)
            if torchs:
                ratios_to_torch[part].append(ours / torchs)
    medians = [sorted(ratios)[len(ratios) // 2] for ratios in ratios_to_torch]
    assert all(median <= 1.1 for median in medians), medians


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": dict(mask=mask.causal()),
    "window": dict(mask=mask.causal() & mask.sliding_window(9)),
    "softcap": dict(score=score.softcap(2.0), mask=mask.causal()),
    "sink": dict(normalizer=normalizer.sink(torch.tensor([0.5, -1.0, 2.0, 0.0]))),
    "dropout": dict(dropout=0.3, seed=5, mask=mask.causal()),
}
# (queries, keys, head dim, value dim)
SHAPES = [(61, 300, 8, 9), (100, 530, 64, 32), (1, 2100, 64, 64), (3, 300, 40, 24), (200, 200, 33, 65)]


def random_inputs(shape: tuple[int, ...]) -> list[Tensor]:
    n_q, n_k, head_dim, value_dim = shape
    generator = torch.Generator().manual_seed(sum(shape))
    sizes = ((4, n_q, head_dim), (2, n_k, head_dim), (2, n_k, value_dim), (4, n_q, value_dim))
    return [torch.randn(2, *size, generator=generator).to(BF16) for size in sizes]


def attention(*inputs: Tensor, **options: Any) -> Tensor:
    return regard.attention(*inputs, **{"backend": "native", **options})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_outputs_and_gradients_are_close_to_those_of_float32_products(name: str, shape: tuple[int, ...]) -> None:
    *inputs, g = random_inputs(shape)
    actual, expected = (
        output_and_gradients(lambda *x, b=b: attention(*x, backend=b, **OPTIONS[name]), inputs, g)
        for b in ("native", "native_float32")
    )
    # a few roundings to 8 bits; dropout scales the error of each weight
    assert max(relative_errors(actual, [x.double() for x in expected])) < 6e-3
    is_upcast = shape[0] == 3 and name != "dropout"  # few queries, and dimensions that are not multiples of 32
    assert torch.equal(actual[0], expected[0]) == is_upcast


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lse_is_that_of_the_unrounded_weights(shape: tuple[int, ...]) -> None:
    q, k, v, _ = random_inputs(shape)
    actual, expected = (
        regard.attention_with_weights(q, k, v, backend=name).lse for name in ("native", "native_float32")
    )
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)  # the exponential is off by 2.8e-6 at most


def test_weights_are_rounded_to_the_nearest() -> None:
    """The output of two keys with the values 1 and 0 is the weight of the first one."""
    q = torch.linspace(-1.09, -0.01, 20_000)[:, None].to(BF16)
    k, v = torch.tensor([[1.0], [0.0]], dtype=BF16), torch.tensor([[1.0], [0.0]], dtype=BF16)
    output = attention(q, k, v, score=score.scaled_dot(1.0))
    exact = torch.sigmoid(q.double())  # from 0.25 to 0.5
    # the smaller weight is off by 2^-9 at most, relatively, and the output is rounded in steps of 2^-9; cutting off
    # instead of rounding would give 2^-9 in all
    assert float((output.double() - exact).abs().max()) < 2.0**-11 + 2.0**-10 + 2.0**-13


@pytest.mark.parametrize("n_q", [1, 130])
@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["plain", "window", "softcap"])
def test_nonfinite_inputs_reach_the_outputs_and_gradients_that_they_reach_in_float32(
    name: str, bad: float, where: str, n_q: int
) -> None:
    *inputs, g = random_inputs((n_q, 700, 64, 32))
    row = 3 if where == "q" and n_q > 3 else 0 if where == "q" else 690
    inputs["qkv".index(where)][0, 0, row, 5] = bad
    actual, expected = (
        output_and_gradients(lambda *x, b=b: attention(*x, backend=b, **OPTIONS[name]), inputs, g)
        for b in ("native", "native_float32")
    )
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        assert torch.equal(one.isinf(), other.isinf())
        finite = other.isfinite()
        assert torch.allclose(one[finite].float(), other[finite].float(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("factor", [1e3, 1e4, 1e15, 1e18, 1e30])
def test_scores_of_any_size_have_the_weights_of_float32_products(factor: float) -> None:
    q, k, v, g = random_inputs((70, 300, 64, 32))
    inputs = [(q.float() * factor).to(BF16), k, v]
    actual, expected = (
        output_and_gradients(lambda *x, b=b: attention(*x, backend=b), inputs, g) for b in ("native", "native_float32")
    )
    assert torch.equal(actual[0].isnan(), expected[0].isnan())
    # nearly every row has one weight of 1; a tie of two scores, rounded differently, changes few of them
    same = torch.isclose(actual[0].float(), expected[0].float(), rtol=0.02, atol=0.02, equal_nan=True)
    assert same.float().mean() > 0.98


def test_a_bias_of_the_smallest_number_hides_keys_or_gives_equal_weights() -> None:
    """Additive masks of Hugging Face hide a key with the smallest number instead of -inf."""
    q, k, v, _ = random_inputs((60, 300, 16, 8))
    bias = torch.zeros(60, 300)
    bias[:, 100:] = torch.finfo(torch.float32).min
    bias[7] = torch.finfo(torch.float32).min
    output = attention(q, k, v, score=score.bias(bias))
    torch.testing.assert_close(
        output[:, :, :7], attention(q[:, :, :7], k[:, :, :100], v[:, :, :100]), rtol=0.02, atol=0.02
    )
    equal = v.float().mean(2).repeat_interleave(2, dim=1)
    torch.testing.assert_close(output[:, :, 7].float(), equal, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("name", OPTIONS)
def test_threads_do_not_change_any_bit(name: str) -> None:
    *inputs, g = random_inputs((200, 530, 64, 32))
    results = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            results.append(output_and_gradients(lambda *x: attention(*x, **OPTIONS[name]), inputs, g))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_a_negative_scale_is_that_of_negated_queries() -> None:
    *inputs, g = random_inputs((70, 300, 33, 32))
    q, k, v = inputs
    actual = output_and_gradients(lambda *x: attention(*x, score=score.scaled_dot(-0.25)), [q, k, v], g)
    expected = output_and_gradients(lambda *x: attention(*x, score=score.scaled_dot(0.25)), [-q, k, v], g)
    expected[1] = -expected[1]
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_the_plan_names_the_build_that_runs() -> None:
    q, k, v, _ = random_inputs(SHAPES[0])
    assert regard.explain(q, k, v).variant == BF16_BUILD
    assert regard.explain(q, k, v, backend="native_float32").variant == "AVX-512"


def test_float32_products_round_only_the_result() -> None:
    q, k, v, _ = random_inputs(SHAPES[1])
    exact = attention(q.float(), k.float(), v.float())
    assert torch.equal(attention(q, k, v, backend="native_float32"), exact.to(BF16))
