"""Precision: the error against float64 is at most twice that of the direct formula (additive scores: four times).

The direct formula materializes the score matrix, softmax and product, each rounded to the dtype of the inputs, and
uses autograd.
"""

import dataclasses
import math

import entmax
import pytest
import torch

from regard import mask, normalizer, score

from . import cases, direct

LOW_DTYPES = [torch.float32, torch.bfloat16, torch.float16]
every_low_dtype = pytest.mark.parametrize("dtype", LOW_DTYPES, ids=str)


def dense(q, k, v, score=None, modifiers=(), normalizer=None, mask=None):
    """Compute the direct formula in the dtype of the inputs."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    where = direct.positions((q.shape[0], q.shape[1], q.shape[2], k.shape[2]))
    scores = (score or direct.scaled_dot())(q, k)
    for modifier in modifiers:
        scores = modifier(scores, where)
    if mask is not None:
        scores = scores.masked_fill(~mask(where), -math.inf)
    weights = scores.softmax(-1) if normalizer is None else normalizer(scores)
    return weights @ v


def sink(logit):
    def normalize(scores):
        extra = logit.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, extra], -1).softmax(-1)[..., :-1]

    return normalize


def captured(name, problem, dtype):
    """Return the tensors of a case, rounded to the dtype; the float64 result uses the same numbers."""
    head_dim, num_heads = problem.head_dim, problem.num_heads
    root = problem.normal(head_dim, head_dim, salt=2) / head_dim**0.5
    tensors = {
        "bilinear": [root / head_dim**0.5],
        "mahalanobis": [root @ root.mT],
        "additive": [
            problem.normal(head_dim, 16, salt=3) / 4,
            problem.normal(head_dim, 16, salt=4) / 4,
            problem.normal(16, salt=5),
        ],
        "alibi": [torch.tensor([2.0 ** -(n + 1) for n in range(num_heads)])],
        "bias": [problem.normal(num_heads, problem.n_q, problem.n_k, salt=6)],
        "sink": [problem.normal(num_heads, salt=7)],
    }
    return [x.to(dtype) for x in tensors.get(name, [])]


CASES = {
    "scaled dot": (dict, dict),
    "causal": (lambda: dict(mask=mask.causal()), lambda: dict(mask=direct.causal())),
    "cosine": (lambda: dict(score=score.cosine(4.0)), lambda: dict(score=direct.cosine(4.0))),
    "gaussian": (lambda: dict(score=score.gaussian(1.5)), lambda: dict(score=direct.gaussian(1.5))),
    "bilinear": (
        lambda w: dict(score=score.bilinear(w)),
        lambda w: dict(score=direct.bilinear(w)),
    ),
    "mahalanobis": (
        lambda m: dict(score=score.mahalanobis(m)),
        lambda m: dict(score=direct.mahalanobis(m)),
    ),
    "additive": (lambda *w: dict(score=score.additive(*w)), lambda *w: dict(score=direct.additive(*w))),
    "softcap": (lambda: dict(score=score.softcap(2.0)), lambda: dict(modifiers=[direct.softcap(2.0)])),
    "alibi": (
        lambda m: dict(score=score.alibi(m), mask=mask.causal()),
        lambda m: dict(modifiers=[direct.alibi(m)], mask=direct.causal()),
    ),
    "bias": (lambda t: dict(score=score.bias(t)), lambda t: dict(modifiers=[direct.bias(t)])),
    "sink": (lambda b: dict(normalizer=normalizer.sink(b)), lambda b: dict(normalizer=sink(b))),
    "sigmoid": (
        lambda: dict(normalizer=normalizer.sigmoid(-5.0)),
        lambda: dict(normalizer=lambda s: torch.sigmoid(s - 5.0)),
    ),
    "relu": (lambda: dict(normalizer=normalizer.relu(0.01)), lambda: dict(normalizer=lambda s: torch.relu(s) * 0.01)),
    "sparsemax": (
        lambda: dict(normalizer=normalizer.sparsemax()),
        lambda: dict(normalizer=lambda s: entmax.sparsemax(s, -1)),
    ),
    "entmax 1.5": (
        lambda: dict(normalizer=normalizer.entmax()),
        lambda: dict(normalizer=lambda s: entmax.entmax15(s, -1)),
    ),
    "entmax 1.05": (
        lambda: dict(normalizer=normalizer.entmax(1.05)),
        lambda: dict(normalizer=lambda s: entmax.entmax_bisect(s, 1.05, -1)),
    ),
}


def output_and_gradients(run, inputs, weights):
    inputs = cases.leaves(*inputs)
    output = run(*inputs)
    grads = torch.autograd.grad((output * weights.to(output.dtype)).sum(), inputs)
    return [x.detach().double() for x in (output, *grads)]


def three_results(backend, name, dtype, problem, stretch=1.0, offset=0.0):
    """Return output and gradients of the library, of the direct formula, and of the formula in float64."""
    make_options, make_direct_options = CASES[name]
    tensors = [*problem.tensors(), *captured(name, problem, dtype)]
    tensors[0], tensors[1] = tensors[0] * stretch + offset, tensors[1] + offset
    inputs = [x.to(dtype) for x in tensors]
    weights = problem.normal(problem.batch_size, problem.num_heads, problem.n_q, problem.value_dim, salt=9).to(dtype)

    actual = output_and_gradients(
        lambda q, k, v, *more: cases.attention(backend, q, k, v, **make_options(*more)), inputs, weights
    )
    rough = output_and_gradients(lambda q, k, v, *more: dense(q, k, v, **make_direct_options(*more)), inputs, weights)
    exact = output_and_gradients(
        lambda q, k, v, *more: dense(q, k, v, **make_direct_options(*more)), [x.double() for x in inputs], weights
    )
    return actual, rough, exact


def rms_errors(backend, name, dtype, problem, **changes):
    """Return root mean square errors of the library and of the direct formula, for the output and each gradient.

    The maximum error is a single rounding, and differs by more than a factor of two between equally precise programs.
    A captured tensor with few numbers is averaged over more seeds.
    """
    sums = {}
    seeds = 16 if any(x.numel() < 100 for x in captured(name, problem, dtype)) else 4
    for seed in range(seeds):
        actual, rough, exact = three_results(
            backend, name, dtype, dataclasses.replace(problem, seed=problem.seed + seed), **changes
        )
        parts = ["output", "q", "k", "v", *(f"captured {n}" for n in range(len(exact) - 4))]
        for part, g, r, e in zip(parts, actual, rough, exact, strict=True):
            sums.setdefault(part, []).append((float((g - e).square().mean()), float((r - e).square().mean())))
    return {
        part: tuple(math.sqrt(sum(side) / seeds) for side in zip(*pairs, strict=True)) for part, pairs in sums.items()
    }


def excessive(errors, times):
    """Return the parts where the error of the library is more than `times` that of the direct formula."""
    return {part: pair for part, pair in errors.items() if not pair[0] <= times * pair[1]}


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.long)], ids=str
)
@pytest.mark.parametrize("name", CASES)
def test_the_error_is_at_most_twice_that_of_the_direct_formula(backend, name, dtype):
    problem = cases.Problem(
        batch_size=1, num_heads=4, num_kv_heads=2, n_q=100, n_k=130, head_dim=8, value_dim=12, seed=11
    )

    errors = rms_errors(backend, name, dtype, problem)

    assert excessive(errors, 4 if name == "additive" else 2) == {}


@every_low_dtype
def test_peaked_rows_are_as_precise_as_flat_rows(backend, dtype):
    problem = cases.Problem(
        batch_size=1, num_heads=2, num_kv_heads=2, n_q=150, n_k=200, head_dim=16, value_dim=16, seed=12
    )

    assert excessive(rms_errors(backend, "causal", dtype, problem, stretch=6.0), 2) == {}


@every_low_dtype
@pytest.mark.parametrize("name", ["scaled dot", "gaussian"])
def test_many_keys_lose_no_precision(backend, name, dtype):
    problem = cases.Problem(
        batch_size=1, num_heads=1, num_kv_heads=1, n_q=64, n_k=1500, head_dim=8, value_dim=16, seed=13
    )

    assert excessive(rms_errors(backend, name, dtype, problem), 2) == {}


def test_distances_far_from_the_origin_are_precise(backend):
    problem = cases.Problem(
        batch_size=1, num_heads=2, num_kv_heads=2, n_q=100, n_k=120, head_dim=8, value_dim=16, seed=14
    )

    # at an offset of a hundred times sigma, |q|^2 would lose every distance in float32
    assert excessive(rms_errors(backend, "gaussian", torch.float32, problem, offset=150.0), 2) == {}


@pytest.mark.parametrize("name", CASES)
def test_float64_is_exact_to_float64(backend, name):
    if cases.dtype_of(backend) != torch.float64:
        pytest.skip("this backend does not support float64")
    problem = cases.Problem(batch_size=1, num_heads=2, num_kv_heads=1, n_q=60, n_k=70, head_dim=8, value_dim=5, seed=15)

    actual, _, exact = three_results(backend, name, torch.float64, problem)

    for grad, expected_grad in zip(actual, exact, strict=True):
        # a few thousand roundings of numbers of size 1
        torch.testing.assert_close(grad, expected_grad, rtol=1e-12, atol=1e-12)


@every_low_dtype
@pytest.mark.parametrize("name", CASES)
def test_the_reference_computes_in_float64_and_rounds_once(name, dtype):
    problem = cases.Problem(batch_size=1, num_heads=2, num_kv_heads=1, n_q=30, n_k=40, head_dim=8, value_dim=5, seed=16)

    actual, _, exact = three_results("reference", name, dtype, problem)

    info = torch.finfo(dtype)
    for grad, expected_grad in zip(actual, exact, strict=True):
        # one rounding is off by at most half a unit in the last place; near 0, by the smallest number
        torch.testing.assert_close(grad, expected_grad, rtol=info.eps, atol=info.smallest_normal * info.eps + 1e-12)


def test_a_modifier_of_positions_is_computed_as_in_torch(backend):
    """An integer times a Python float is float32 in torch, so modifiers agree with FlexAttention bit for bit."""
    if cases.dtype_of(backend) != torch.float64:
        pytest.skip("this backend does not support float64")
    q, k, v = cases.Problem(1, 1, 1, 6, 6, 3, 3, seed=1).tensors()

    output = cases.attention(
        backend, q, k, v, score=lambda s, b, h, i, j: s - 0.1 * abs(i - j) - torch.log(i + j + 1.5)
    )
    expected = direct.attention(
        q, k, v, modifiers=[lambda s, w: s - 0.1 * (w.i - w.j).abs() - torch.log(w.i + w.j + 1.5)]
    )

    cases.close(output, expected.output, backend)


@pytest.mark.parametrize("dtype", [torch.float64, *LOW_DTYPES], ids=str)
def test_the_output_and_gradients_have_the_dtype_of_the_inputs(backend, dtype):
    if dtype == torch.float64 != cases.dtype_of(backend):
        pytest.skip("this backend does not support float64")
    q, k, v = cases.leaves(*cases.Problem(1, 2, 1, 3, 4, 4, 4, seed=1).tensors(dtype))

    output = cases.attention(backend, q, k, v, mask=mask.causal())
    grads = torch.autograd.grad(output.sum(), (q, k, v))

    assert [x.dtype for x in (output, *grads)] == [dtype] * 4


@every_low_dtype
def test_sums_over_many_keys_are_float32_or_better(backend, dtype):
    """A sum of ones stops at 256 in bfloat16 and at 2048 in float16, so the mean of 4096 ones would not be 1."""
    q, k = torch.zeros(1, 1, 2, 1, dtype=dtype), torch.zeros(1, 1, 4096, 1, dtype=dtype)
    v = torch.ones(1, 1, 4096, 3, dtype=dtype)

    result = cases.attention_with_weights(backend, q, k, v)
    sigmoid_sum = cases.attention(backend, q, k, v, normalizer=normalizer.sigmoid())

    assert (result.output == 1).all()
    assert (sigmoid_sum == 2048).all()
    # log 4096 = 8.3178 in float32, one unit of the last place being 1e-6
    assert ((result.lse.double() - math.log(4096)).abs() < 2e-6).all()


@every_low_dtype
def test_gradient_sums_over_many_queries_are_float32_or_better(backend, dtype):
    q, k = torch.zeros(1, 1, 4096, 1, dtype=dtype), torch.zeros(1, 1, 2, 1, dtype=dtype)
    (v,) = cases.leaves(torch.ones(1, 1, 2, 3, dtype=dtype))

    (grad,) = torch.autograd.grad(cases.attention(backend, q, k, v).sum(), (v,))

    assert (grad == 2048).all()


@every_low_dtype
def test_large_scores_neither_overflow_nor_underflow(backend, dtype):
    size = 200.0  # exp(200) is beyond float32, and 200 * 200 is within float16
    q = torch.full((1, 1, 1, 1), size, dtype=dtype)
    k = torch.tensor([size, size, -size], dtype=dtype).view(1, 1, 3, 1)
    v = torch.tensor([1.0, 3.0, 100.0], dtype=dtype).view(1, 1, 3, 1)

    assert cases.attention(backend, q, k, v).item() == 2.0
    assert cases.attention(backend, -q, k, v).item() == 100.0
