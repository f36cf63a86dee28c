"""Gradients to q, k, v and all that is captured, second order, forward mode: against the dense formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import mask, score, weigh

from . import cases, direct


@dataclass(frozen=True)
class Variant:
    """One choice, said twice: to the library and to the oracle; `make` gives the tensors that it captures."""

    make: Callable[[cases.Problem], list[torch.Tensor]]
    ours: Callable[..., dict[str, Any]]
    theirs: Callable[..., dict[str, Any]]


def shaped(
    *shapes: Callable[[cases.Problem], tuple[int, ...]],
) -> Callable[[cases.Problem], list[torch.Tensor]]:
    return lambda problem: [problem.normal(*shape(problem), salt=30 + n) for n, shape in enumerate(shapes)]


def positive(problem: cases.Problem) -> list[torch.Tensor]:
    return [problem.normal(1, salt=30).abs().squeeze() + 0.7]


def gram(problem: cases.Problem) -> list[torch.Tensor]:
    root = problem.normal(problem.width, problem.width, salt=30)
    return [root @ root.mT / problem.width]


def alphas(problem: cases.Problem) -> list[torch.Tensor]:
    return [1.2 + 0.7 * torch.sigmoid(problem.normal(problem.heads, salt=30))]


def nothing(problem: cases.Problem) -> list[torch.Tensor]:
    return []


def _own_rule(table: torch.Tensor) -> Any:
    return lambda s, b, h, i, j: torch.tanh(s * 0.5) + table[h, (i - j) % 3] * s


def _own_rule_direct(table: torch.Tensor) -> direct.Rule:
    return lambda s, where: torch.tanh(s * 0.5) + table[where.h, (where.i - where.j) % 3] * s


SCORES = {
    "scaled dot": Variant(nothing, dict, dict),
    "scale": Variant(
        positive,
        lambda c: dict(score=score.scaled_dot(c)),
        lambda c: dict(score=direct.scaled_dot(c)),
    ),
    "dot": Variant(nothing, lambda: dict(score=score.dot()), lambda: dict(score=direct.dot())),
    "multiplicative": Variant(
        shaped(lambda p: (p.width, p.width)),
        lambda w: dict(score=score.multiplicative(w)),
        lambda w: dict(score=direct.multiplicative(w)),
    ),
    "cosine": Variant(
        positive,
        lambda c: dict(score=score.cosine(c)),
        lambda c: dict(score=direct.cosine(c)),
    ),
    "metric": Variant(
        positive,
        lambda sigma: dict(score=score.metric(sigma)),
        lambda sigma: dict(score=direct.metric(sigma)),
    ),
    "mahalanobis": Variant(
        gram,
        lambda m: dict(score=score.mahalanobis(m)),
        lambda m: dict(score=direct.mahalanobis(m)),
    ),
    "additive": Variant(
        shaped(lambda p: (p.width, 4), lambda p: (p.width, 4), lambda p: (4,), lambda p: (4,)),
        lambda w_q, w_k, u, b: dict(score=score.additive(w_q, w_k, u, b)),
        lambda w_q, w_k, u, b: dict(score=direct.additive(w_q, w_k, u, b)),
    ),
    "additive without bias": Variant(
        shaped(lambda p: (p.width, 3), lambda p: (p.width, 3), lambda p: (3,)),
        lambda w_q, w_k, u: dict(score=score.additive(w_q, w_k, u)),
        lambda w_q, w_k, u: dict(score=direct.additive(w_q, w_k, u)),
    ),
    "alibi": Variant(
        shaped(lambda p: (p.heads,)),
        lambda slopes: dict(score=score.alibi(slopes)),
        lambda slopes: dict(rules=[direct.alibi(slopes)]),
    ),
    "softcap": Variant(
        positive,
        lambda c: dict(score=score.softcap(c)),
        lambda c: dict(rules=[direct.softcap(c)]),
    ),
    "full bias": Variant(
        shaped(lambda p: (p.batch, p.heads, p.n_q, p.n_k)),
        lambda t: dict(score=score.bias(t)),
        lambda t: dict(rules=[direct.bias(t)]),
    ),
    "bias of heads and keys": Variant(
        shaped(lambda p: (p.heads, 1, p.n_k)),
        lambda t: dict(score=score.bias(t)),
        lambda t: dict(rules=[direct.bias(t)]),
    ),
    "bias of batch and queries": Variant(
        shaped(lambda p: (p.batch, 1, p.n_q, 1)),
        lambda t: dict(score=score.bias(t)),
        lambda t: dict(rules=[direct.bias(t)]),
    ),
    "relative": Variant(
        shaped(lambda p: (8, p.heads)),
        lambda t: dict(score=score.relative(t, max_distance=6)),
        lambda t: dict(rules=[direct.relative(t, max_distance=6)]),
    ),
    "own rule": Variant(
        shaped(lambda p: (p.heads, 3)),
        lambda t: dict(score=_own_rule(t)),
        lambda t: dict(rules=[_own_rule_direct(t)]),
    ),
    "scale of each head": Variant(
        shaped(lambda p: (p.heads,)),
        lambda c: dict(score=score.scaled_dot(c)),
        lambda c: dict(score=direct.scaled_dot(c.view(-1, 1, 1))),
    ),
    "metric of each head": Variant(
        lambda p: [x.abs() + 0.7 for x in shaped(lambda p: (p.heads,))(p)],
        lambda sigma: dict(score=score.metric(sigma)),
        lambda sigma: dict(score=direct.metric(sigma.view(-1, 1, 1))),
    ),
    "multiplicative of each head": Variant(
        shaped(lambda p: (p.heads, p.width, p.width)),
        lambda w: dict(score=score.multiplicative(w)),
        lambda w: dict(score=direct.multiplicative(w)),
    ),
    "cosine, then bias, then softcap": Variant(
        lambda p: [*positive(p), *shaped(lambda p: (p.n_q, p.n_k))(p), *positive(p)],
        lambda g, t, c: dict(score=score.cosine(g).then(score.bias(t)).then(score.softcap(c))),
        lambda g, t, c: dict(score=direct.cosine(g), rules=[direct.bias(t), direct.softcap(c)]),
    ),
    "additive, then alibi": Variant(
        shaped(lambda p: (p.width, 3), lambda p: (p.width, 3), lambda p: (3,), lambda p: (p.heads,)),
        lambda w_q, w_k, u, m: dict(score=score.additive(w_q, w_k, u).then(score.alibi(m)), mask=mask.causal()),
        lambda w_q, w_k, u, m: dict(score=direct.additive(w_q, w_k, u), rules=[direct.alibi(m)], mask=direct.causal()),
    ),
    "custom": Variant(
        shaped(lambda p: (p.width,)),
        lambda w: dict(score=score.custom(lambda a, b: (a * w) @ b.mT)),
        lambda w: dict(score=lambda q, k: (q * w) @ k.mT),
    ),
}

WEIGHS = {
    "softmax": Variant(nothing, dict, dict),
    "sink": Variant(
        shaped(lambda p: (p.heads,)),
        lambda b: dict(weigh=weigh.sink(b)),
        lambda b: dict(weigh=direct.sink(b)),
    ),
    "one sink": Variant(
        positive,
        lambda b: dict(weigh=weigh.sink(b)),
        lambda b: dict(weigh=direct.sink(b)),
    ),
    "sigmoid": Variant(
        positive,
        lambda b: dict(weigh=weigh.sigmoid(b)),
        lambda b: dict(weigh=direct.sigmoid(b)),
    ),
    "relu": Variant(nothing, lambda: dict(weigh=weigh.relu()), lambda: dict(weigh=direct.relu())),
    "relu with scale": Variant(
        positive,
        lambda c: dict(weigh=weigh.relu(c)),
        lambda c: dict(weigh=direct.relu(c)),
    ),
    "sparsemax": Variant(nothing, lambda: dict(weigh=weigh.sparsemax()), lambda: dict(weigh=direct.sparsemax())),
    "entmax": Variant(alphas, lambda a: dict(weigh=weigh.entmax(a)), lambda a: dict(weigh=direct.entmax(a))),
    "top": Variant(nothing, lambda: dict(weigh=weigh.top(2)), lambda: dict(weigh=direct.top(2))),
    "argmax": Variant(nothing, lambda: dict(weigh=weigh.argmax()), lambda: dict(weigh=direct.argmax())),
}

SPARSE = ("sparsemax", "entmax", "top", "argmax")

VALUES = {
    "linear": Variant(
        shaped(lambda p: (p.width_v, 3)),
        lambda w: dict(value=lambda v: v @ w),
        lambda w: dict(value=lambda v: v @ w),
    ),
    "relative": Variant(
        shaped(lambda p: (5, p.width_v)),
        lambda t: dict(value=score.shaw_values(t)),
        lambda t: dict(pair_value=direct.shaw_values(t)),
    ),
    "bent": Variant(
        shaped(lambda p: (p.width_v,)),
        lambda w: dict(value=lambda v: torch.tanh(v * w)),
        lambda w: dict(value=lambda v: torch.tanh(v * w)),
    ),
}


class Both:
    """The library and the oracle as functions of the same flat tuple: q, k, v, then all that is captured."""

    def __init__(self, engine: str, problem: cases.Problem, *variants: Variant, **options: Any) -> None:
        dtype = cases.dtype_of(engine)
        self.engine, self.variants, self.options = engine, variants, options
        self.counts = [len(variant.make(problem)) for variant in variants]
        captured = [tensor.to(dtype) for variant in variants for tensor in variant.make(problem)]
        self.inputs = (*problem.tensors(dtype), *captured)

    def library(self, *inputs: torch.Tensor) -> torch.Tensor:
        chosen: dict[str, Any] = {}
        for variant, captured in zip(self.variants, self._split(inputs[3:]), strict=True):
            chosen |= variant.ours(*captured)
        return cases.attention(self.engine, *inputs[:3], **(self.options | chosen))

    def oracle(self, *inputs: torch.Tensor) -> torch.Tensor:
        chosen: dict[str, Any] = {}
        for variant, captured in zip(self.variants, self._split(tuple(x.double() for x in inputs[3:])), strict=True):
            chosen |= variant.theirs(*captured)
        return direct.attention(*(x.double() for x in inputs[:3]), **chosen).output

    def _split(self, captured: tuple[torch.Tensor, ...]) -> list[tuple[torch.Tensor, ...]]:
        found, first = [], 0
        for count in self.counts:
            found.append(captured[first : first + count])
            first += count
        return found


def first_order(both: Both, problem: cases.Problem) -> None:
    inputs = cases.leaves(*both.inputs)
    ours, theirs = both.library(*inputs), both.oracle(*inputs)
    weights = problem.normal(*theirs.shape, salt=50)
    cases.close(ours, theirs, both.engine)
    got, expected = cases.gradients(ours, inputs, weights), cases.gradients(theirs, inputs, weights)
    for one, other in zip(got, expected, strict=True):
        assert one.shape == other.shape
        # A captured scalar's gradient sums over every pair.
        cases.close(one, other, both.engine, times=50)


def second_order(both: Both, problem: cases.Problem) -> None:
    def products(run: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Derivatives of a random mixture of first derivatives: the Hessian times a vector."""
        inputs = cases.leaves(*both.inputs)
        output = run(*inputs)
        weights = problem.normal(*output.shape, salt=50).to(output.dtype)
        first = torch.autograd.grad((output.square() * weights).sum(), inputs, create_graph=True)
        mixture = sum((g * problem.normal(*g.shape, salt=60 + n)).sum() for n, g in enumerate(first))
        return torch.autograd.grad(mixture, inputs)

    for one, other in zip(products(both.library), products(both.oracle), strict=True):
        cases.close(one, other, both.engine, times=500)  # products of three derivatives, some of size 10


def forward_mode(both: Both, problem: cases.Problem) -> None:
    tangents = tuple(problem.normal(*x.shape, salt=70 + n).to(x.dtype) for n, x in enumerate(both.inputs))
    _, ours = torch.func.jvp(both.library, both.inputs, tangents)
    _, theirs = torch.func.jvp(both.oracle, both.inputs, tangents)
    cases.close(ours, theirs, both.engine, times=50)


sizes = dict(n_q=st.integers(1, 5), n_k=st.integers(1, 6), width=st.integers(1, 4))


# Every score once, and those of different kinds with every way of weighing.
PAIRS = [(scoring, "softmax") for scoring in SCORES]
PAIRS += [
    (scoring, weighing)
    for scoring in ("scaled dot", "metric", "additive", "own rule", "custom")
    for weighing in ("sink", "sigmoid", "relu", "entmax")
]


@pytest.mark.parametrize("weighing", [name for name in WEIGHS if name not in SPARSE])
@pytest.mark.parametrize("scoring", SCORES)
@given(problem=cases.problems(**sizes))
@cases.examples(2)
def test_every_input_and_captured_tensor_gets_the_gradient_of_the_dense_formula(engine, scoring, weighing, problem):
    first_order(Both(engine, problem, SCORES[scoring], WEIGHS[weighing]), problem)


# By itself: with more parameters than Python has frames for, hypothesis runs out of them.
@pytest.mark.parametrize("weighing", SPARSE)
@pytest.mark.parametrize("scoring", SCORES)
@given(problem=cases.problems(**sizes))
@cases.examples(2)
def test_gradients_pass_through_weighings_with_a_level(engine, scoring, weighing, problem):
    first_order(Both(engine, problem, SCORES[scoring], WEIGHS[weighing]), problem)


@pytest.mark.parametrize("scoring, weighing", PAIRS)
@given(problem=cases.problems(**sizes))
@cases.examples(2)
def test_second_derivatives_are_those_of_the_dense_formula(engine, scoring, weighing, problem):
    second_order(Both(engine, problem, SCORES[scoring], WEIGHS[weighing]), problem)


@pytest.mark.parametrize("scoring, weighing", PAIRS)
@given(problem=cases.problems(**sizes))
@cases.examples(2)
def test_forward_derivatives_are_those_of_the_dense_formula(engine, scoring, weighing, problem):
    forward_mode(Both(engine, problem, SCORES[scoring], WEIGHS[weighing]), problem)


@pytest.mark.parametrize("check", [first_order, second_order, forward_mode])
@pytest.mark.parametrize("valuing", VALUES)
@given(problem=cases.problems(**sizes))
@cases.examples(4)
def test_a_value_function_and_what_it_captures_get_the_derivatives_of_the_dense_formula(
    engine, valuing, check, problem
):
    check(Both(engine, problem, VALUES[valuing], SCORES["full bias"]), problem)


@pytest.mark.parametrize("check", [first_order, second_order, forward_mode])
@given(problem=cases.problems(**sizes))
@cases.examples(4)
def test_relative_keys_get_the_derivatives_of_the_dense_formula(engine, check, problem):
    both = Both(
        engine,
        problem,
        Variant(shaped(lambda p: (5, p.width)), lambda t: dict(score=score.shaw_keys(t)), dict),
    )
    both.oracle = lambda q, k, v, t: direct.attention(q, k, v, rules=[direct.shaw_keys(q.double(), t.double())]).output

    check(both, problem)


@pytest.mark.parametrize("scoring", ["scaled dot", "metric", "additive", "full bias", "own rule"])
def test_gradients_are_whole_across_the_borders_of_tiles(engine, scoring):
    problem = cases.Problem(batch=1, heads=2, key_heads=1, n_q=300, n_k=900, width=3, width_v=3, seed=7)
    causal = Variant(nothing, lambda: dict(mask=mask.causal()), lambda: dict(mask=direct.causal()))

    first_order(Both(engine, problem, SCORES[scoring], causal), problem)


@pytest.mark.parametrize("check", [second_order, forward_mode])
def test_further_derivatives_are_whole_across_the_borders_of_tiles(engine, check):
    # more pairs than a block of the direct formula holds
    problem = cases.Problem(batch=1, heads=1, key_heads=1, n_q=1100, n_k=270, width=2, width_v=2, seed=7)
    causal = Variant(nothing, lambda: dict(mask=mask.causal()), lambda: dict(mask=direct.causal()))

    check(Both(engine, problem, SCORES["bias of heads and keys"], causal), problem)


@given(problem=cases.problems(**sizes), data=st.data())
@cases.examples(12)
def test_gradients_respect_composed_masks(engine, problem, data):
    chosen, meaning = data.draw(cases.mask_pairs(problem, depth=2))
    masked = Variant(nothing, lambda: dict(mask=chosen), lambda: dict(mask=meaning))

    first_order(Both(engine, problem, SCORES["full bias"], masked), problem)


@given(problem=cases.problems(**sizes), wanted=st.sets(st.integers(0, 3), min_size=1, max_size=3))
@cases.examples(12)
def test_asking_for_some_gradients_gives_the_same_as_asking_for_all(engine, problem, wanted):
    both = Both(engine, problem, SCORES["full bias"])
    everything = cases.leaves(*both.inputs)
    some = tuple(x.clone().requires_grad_(n in wanted) for n, x in enumerate(both.inputs))
    output = both.library(*some)
    weights = problem.normal(*output.shape, salt=50).to(output.dtype)

    all_found = cases.gradients(both.library(*everything), everything, weights)
    found = cases.gradients(output, [some[n] for n in sorted(wanted)], weights)

    for n, one in zip(sorted(wanted), found, strict=True):
        cases.close(one, all_found[n], engine, times=50)


TWICE = {
    "at two places": lambda s, i, j, t: s * t[j] + t[i],
    "at one place": lambda s, i, j, t: s * t[j] + t[j],
    "and multiplied with itself": lambda s, i, j, t: s + t[j] * t[j],
    "with the score twice": lambda s, i, j, t: s * torch.tanh(s) + t[j] * s,
}


@pytest.mark.parametrize("name", TWICE)
def test_the_gradient_of_a_tensor_captured_twice_is_the_sum(engine, name):
    problem = cases.Problem(batch=1, heads=2, key_heads=2, n_q=4, n_k=5, width=3, width_v=3, seed=2)
    rule = TWICE[name]
    twice = Variant(
        shaped(lambda p: (p.n_k,)),
        lambda t: dict(score=lambda s, b, h, i, j: rule(s, i, j, t)),
        lambda t: dict(rules=[lambda s, where: rule(s, where.i, where.j, t)]),
    )

    first_order(Both(engine, problem, twice), problem)


def test_q_k_and_v_may_be_one_tensor(engine):
    problem = cases.Problem(batch=1, heads=2, key_heads=2, n_q=5, n_k=5, width=3, width_v=3, seed=2)
    (x,) = cases.leaves(problem.tensors(cases.dtype_of(engine))[0])

    ours, theirs = cases.attention(engine, x, x, x), direct.attention(x, x, x).output
    (got,), (expected,) = (cases.gradients(o, (x,), torch.ones_like(o)) for o in (ours, theirs))

    cases.close(got, expected, engine, times=10)


def test_the_gradient_of_the_lse_is_that_of_the_dense_formula(engine):
    problem = cases.Problem(batch=1, heads=2, key_heads=2, n_q=4, n_k=5, width=3, width_v=3, seed=2)
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(engine)))
    may = problem.coins(4, 5)
    weights = problem.normal(1, 2, 4, 3)

    ours, theirs = cases.attend(engine, q, k, v, mask=may), direct.attention(q, k, v, mask=lambda where: may)
    seen = theirs.lse.isfinite()
    found = []
    for answer in (ours, theirs):
        mixture = (answer.output * weights).sum() + torch.where(seen, answer.lse, 0.0).sum()
        found.append(torch.autograd.grad(mixture, (q, k, v)))

    for one, other in zip(*found, strict=True):
        cases.close(one, other, engine, times=10)


def test_torch_func_grad_and_vmap_give_the_numbers_of_a_loop(engine):
    problem = cases.Problem(batch=3, heads=2, key_heads=2, n_q=4, n_k=5, width=3, width_v=3, seed=2)
    q, k, v = problem.tensors(cases.dtype_of(engine))
    loss = lambda *tensors: cases.attention(engine, *tensors, mask=mask.causal()).square().sum()

    together = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    alone = [torch.func.grad(loss, argnums=(0, 1, 2))(*x) for x in zip(q, k, v, strict=True)]

    for n in range(3):
        cases.close(together[n], torch.stack([one[n] for one in alone]), engine, times=10)


def test_checkpointing_gives_the_same_gradients(engine):
    problem = cases.Problem(batch=1, heads=2, key_heads=2, n_q=4, n_k=5, width=3, width_v=3, seed=2)
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(engine)))
    run = lambda *tensors: cases.attention(engine, *tensors, mask=mask.causal(), dropout=0.3, seed=1)

    plain = run(q, k, v)
    kept = torch.utils.checkpoint.checkpoint(run, q, k, v, use_reentrant=False)

    for one, other in zip(
        cases.gradients(kept, (q, k, v), torch.ones_like(kept)),
        cases.gradients(plain, (q, k, v), torch.ones_like(plain)),
        strict=True,
    ):
        cases.equal(one, other)
