"""Precision: against float64, at most twice the error of the direct formula (additive: four times).

The direct formula is what people write: whole score matrix, softmax, product, each rounded to the dtype of
the inputs, and autograd through it.
"""

import dataclasses
import math

import entmax
import pytest
import torch

from regard import mask, score, weigh

from . import cases, direct

LOW = [torch.float32, torch.bfloat16, torch.float16]
every_low = pytest.mark.parametrize("dtype", LOW, ids=str)


def dense(q, k, v, scoring=None, rules=(), weighing=None, may=None):
    """The direct formula in whatever dtype the inputs have."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    where = direct.places((q.shape[0], q.shape[1], q.shape[2], k.shape[2]))
    scores = (scoring or direct.scaled_dot())(q, k)
    for rule in rules:
        scores = rule(scores, where)
    if may is not None:
        scores = scores.masked_fill(~may(where), -math.inf)
    weights = scores.softmax(-1) if weighing is None else weighing(scores)
    return weights @ v


def sink(logit):
    def weighing(scores):
        extra = logit.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, extra], -1).softmax(-1)[..., :-1]

    return weighing


def captured(name, problem, dtype):
    """The tensors of a case, rounded to the dtype: the float64 answer starts from the same numbers."""
    width, heads = problem.width, problem.heads
    root = problem.normal(width, width, salt=2) / width**0.5
    tensors = {
        "multiplicative": [root / width**0.5],
        "mahalanobis": [root @ root.mT],
        "additive": [
            problem.normal(width, 16, salt=3) / 4,
            problem.normal(width, 16, salt=4) / 4,
            problem.normal(16, salt=5),
        ],
        "alibi": [torch.tensor([2.0 ** -(n + 1) for n in range(heads)])],
        "bias": [problem.normal(heads, problem.n_q, problem.n_k, salt=6)],
        "sink": [problem.normal(heads, salt=7)],
    }
    return [x.to(dtype) for x in tensors.get(name, [])]


CASES = {
    "scaled dot": (dict, dict),
    "causal": (lambda: dict(mask=mask.causal()), lambda: dict(may=direct.causal())),
    "cosine": (lambda: dict(score=score.cosine(4.0)), lambda: dict(scoring=direct.cosine(4.0))),
    "metric": (lambda: dict(score=score.metric(1.5)), lambda: dict(scoring=direct.metric(1.5))),
    "multiplicative": (
        lambda w: dict(score=score.multiplicative(w)),
        lambda w: dict(scoring=direct.multiplicative(w)),
    ),
    "mahalanobis": (
        lambda m: dict(score=score.mahalanobis(m)),
        lambda m: dict(scoring=direct.mahalanobis(m)),
    ),
    "additive": (lambda *w: dict(score=score.additive(*w)), lambda *w: dict(scoring=direct.additive(*w))),
    "softcap": (lambda: dict(score=score.softcap(2.0)), lambda: dict(rules=[direct.softcap(2.0)])),
    "alibi": (
        lambda m: dict(score=score.alibi(m), mask=mask.causal()),
        lambda m: dict(rules=[direct.alibi(m)], may=direct.causal()),
    ),
    "bias": (lambda t: dict(score=score.bias(t)), lambda t: dict(rules=[direct.bias(t)])),
    "sink": (lambda b: dict(weigh=weigh.sink(b)), lambda b: dict(weighing=sink(b))),
    "sigmoid": (
        lambda: dict(weigh=weigh.sigmoid(-5.0)),
        lambda: dict(weighing=lambda s: torch.sigmoid(s - 5.0)),
    ),
    "relu": (lambda: dict(weigh=weigh.relu(0.01)), lambda: dict(weighing=lambda s: torch.relu(s) * 0.01)),
    "sparsemax": (lambda: dict(weigh=weigh.sparsemax()), lambda: dict(weighing=lambda s: entmax.sparsemax(s, -1))),
    "entmax 1.5": (lambda: dict(weigh=weigh.entmax()), lambda: dict(weighing=lambda s: entmax.entmax15(s, -1))),
    "entmax 1.05": (
        lambda: dict(weigh=weigh.entmax(1.05)),
        lambda: dict(weighing=lambda s: entmax.entmax_bisect(s, 1.05, -1)),
    ),
}


def answers(run, inputs, weights):
    inputs = cases.leaves(*inputs)
    output = run(*inputs)
    found = torch.autograd.grad((output * weights.to(output.dtype)).sum(), inputs)
    return [x.detach().double() for x in (output, *found)]


def trio(engine, name, dtype, problem, stretch=1.0, offset=0.0):
    """Output and gradients three times: of the library, of the direct formula, and in float64."""
    ours, theirs = CASES[name]
    tensors = [*problem.tensors(), *captured(name, problem, dtype)]
    tensors[0], tensors[1] = tensors[0] * stretch + offset, tensors[1] + offset
    inputs = [x.to(dtype) for x in tensors]
    weights = problem.normal(problem.batch, problem.heads, problem.n_q, problem.width_v, salt=9).to(dtype)

    got = answers(lambda q, k, v, *more: cases.attention(engine, q, k, v, **ours(*more)), inputs, weights)
    rough = answers(lambda q, k, v, *more: dense(q, k, v, **theirs(*more)), inputs, weights)
    exact = answers(lambda q, k, v, *more: dense(q, k, v, **theirs(*more)), [x.double() for x in inputs], weights)
    return got, rough, exact


def errors(engine, name, dtype, problem, **changes):
    """Root mean square errors of the library and of the direct formula, for the output and each gradient.

    Not the largest errors: each of those is one rounding, and two equally good programs differ in it by more than
    twice on some seeds. More seeds where a captured tensor has but a few numbers to average over.
    """
    sums = {}
    seeds = 16 if any(x.numel() < 100 for x in captured(name, problem, dtype)) else 4
    for seed in range(seeds):
        got, rough, exact = trio(engine, name, dtype, dataclasses.replace(problem, seed=problem.seed + seed), **changes)
        parts = ["output", "q", "k", "v", *(f"captured {n}" for n in range(len(exact) - 4))]
        for part, g, r, e in zip(parts, got, rough, exact, strict=True):
            sums.setdefault(part, []).append((float((g - e).square().mean()), float((r - e).square().mean())))
    return {
        part: tuple(math.sqrt(sum(side) / seeds) for side in zip(*pairs, strict=True)) for part, pairs in sums.items()
    }


def too_far(found, times):
    return {part: pair for part, pair in found.items() if not pair[0] <= times * pair[1]}


@every_low
@pytest.mark.parametrize("name", CASES)
def test_the_error_is_at_most_twice_that_of_the_direct_formula(engine, name, dtype):
    problem = cases.Problem(batch=1, heads=4, key_heads=2, n_q=100, n_k=130, width=8, width_v=12, seed=11)

    found = errors(engine, name, dtype, problem)

    assert too_far(found, 4 if name == "additive" else 2) == {}


@every_low
def test_sharp_rows_are_as_precise_as_flat_ones(engine, dtype):
    problem = cases.Problem(batch=1, heads=2, key_heads=2, n_q=150, n_k=200, width=16, width_v=16, seed=12)

    assert too_far(errors(engine, "causal", dtype, problem, stretch=6.0), 2) == {}


@every_low
@pytest.mark.parametrize("name", ["scaled dot", "metric"])
def test_many_keys_cost_no_precision(engine, name, dtype):
    problem = cases.Problem(batch=1, heads=1, key_heads=1, n_q=64, n_k=1500, width=8, width_v=16, seed=13)

    assert too_far(errors(engine, name, dtype, problem), 2) == {}


def test_distances_far_from_the_origin_keep_their_precision(engine):
    problem = cases.Problem(batch=1, heads=2, key_heads=2, n_q=100, n_k=120, width=8, width_v=16, seed=14)

    # the offset is a hundred times sigma: |q|^2 alone would swallow every distance in float32
    assert too_far(errors(engine, "metric", torch.float32, problem, offset=150.0), 2) == {}


@pytest.mark.parametrize("name", CASES)
def test_float64_is_exact_to_float64(engine, name):
    if cases.dtype_of(engine) != torch.float64:
        pytest.skip("this engine has no float64")
    problem = cases.Problem(batch=1, heads=2, key_heads=1, n_q=60, n_k=70, width=8, width_v=5, seed=15)

    got, _, exact = trio(engine, name, torch.float64, problem)

    for one, other in zip(got, exact, strict=True):
        # some thousand roundings of numbers of size 1
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@every_low
@pytest.mark.parametrize("name", CASES)
def test_the_reference_computes_in_float64_and_rounds_once(name, dtype):
    problem = cases.Problem(batch=1, heads=2, key_heads=1, n_q=30, n_k=40, width=8, width_v=5, seed=16)

    got, _, exact = trio("reference", name, dtype, problem)

    about = torch.finfo(dtype)
    for one, other in zip(got, exact, strict=True):
        # rounding once is off by at most half a unit of the last place; near 0, by the smallest number there is
        torch.testing.assert_close(one, other, rtol=about.eps, atol=about.smallest_normal * about.eps + 1e-12)


def test_a_rule_of_positions_alone_is_computed_as_torch_computes_it(engine):
    """A whole number times a Python float is a float32 in torch, so rules agree with FlexAttention to the last bit."""
    if cases.dtype_of(engine) != torch.float64:
        pytest.skip("this engine has no float64")
    q, k, v = cases.Problem(1, 1, 1, 6, 6, 3, 3, seed=1).tensors()

    got = cases.attention(engine, q, k, v, score=lambda s, b, h, i, j: s - 0.1 * abs(i - j) - torch.log(i + j + 1.5))
    expected = direct.attention(q, k, v, rules=[lambda s, w: s - 0.1 * (w.i - w.j).abs() - torch.log(w.i + w.j + 1.5)])

    cases.close(got, expected.output, engine)


@pytest.mark.parametrize("dtype", [torch.float64, *LOW], ids=str)
def test_the_output_and_gradients_have_the_dtype_of_the_inputs(engine, dtype):
    if dtype == torch.float64 != cases.dtype_of(engine):
        pytest.skip("this engine has no float64")
    q, k, v = cases.leaves(*cases.Problem(1, 2, 1, 3, 4, 4, 4, seed=1).tensors(dtype))

    output = cases.attention(engine, q, k, v, mask=mask.causal())
    found = torch.autograd.grad(output.sum(), (q, k, v))

    assert [x.dtype for x in (output, *found)] == [dtype] * 4


@every_low
def test_sums_over_many_keys_are_kept_in_float32_or_better(engine, dtype):
    """Adding ones in bfloat16 stops at 256, in float16 at 2048: the share of 4096 ones would not be 1."""
    q, k = torch.zeros(1, 1, 2, 1, dtype=dtype), torch.zeros(1, 1, 4096, 1, dtype=dtype)
    v = torch.ones(1, 1, 4096, 3, dtype=dtype)

    got = cases.attend(engine, q, k, v)
    added = cases.attention(engine, q, k, v, weigh=weigh.sigmoid())

    assert (got.output == 1).all()
    assert (added == 2048).all()
    # log 4096 = 8.3178 in float32, one unit of the last place being 1e-6
    assert ((got.lse.double() - math.log(4096)).abs() < 2e-6).all()


@every_low
def test_gradients_summed_over_many_queries_are_kept_in_float32_or_better(engine, dtype):
    q, k = torch.zeros(1, 1, 4096, 1, dtype=dtype), torch.zeros(1, 1, 2, 1, dtype=dtype)
    (v,) = cases.leaves(torch.ones(1, 1, 2, 3, dtype=dtype))

    (found,) = torch.autograd.grad(cases.attention(engine, q, k, v).sum(), (v,))

    assert (found == 2048).all()


@every_low
def test_large_scores_neither_overflow_nor_vanish(engine, dtype):
    top = 200.0  # exp(200) is beyond float32, and 200 * 200 is within float16
    q = torch.full((1, 1, 1, 1), top, dtype=dtype)
    k = torch.tensor([top, top, -top], dtype=dtype).view(1, 1, 3, 1)
    v = torch.tensor([1.0, 3.0, 100.0], dtype=dtype).view(1, 1, 3, 1)

    assert cases.attention(engine, q, k, v).item() == 2.0
    assert cases.attention(engine, -q, k, v).item() == 100.0
