"""First, second and forward-mode derivatives for q, k, v and captured tensors, against the direct definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import mask, normalizer, score

from . import cases, direct


@dataclass(frozen=True)
class Variant:
    """Options of the library and of the direct definition; `make` returns the tensors that they capture."""

    make: Callable[[cases.Problem], list[torch.Tensor]]
    make_options: Callable[..., dict[str, Any]]
    make_direct_options: Callable[..., dict[str, Any]]


def normal_tensors(
    *shapes: Callable[[cases.Problem], tuple[int, ...]],
) -> Callable[[cases.Problem], list[torch.Tensor]]:
    return lambda problem: [problem.normal(*shape(problem), salt=30 + n) for n, shape in enumerate(shapes)]


def positive_scalar(problem: cases.Problem) -> list[torch.Tensor]:
    return [problem.normal(1, salt=30).abs().squeeze() + 0.7]


def positive_definite_matrix(problem: cases.Problem) -> list[torch.Tensor]:
    root = problem.normal(problem.head_dim, problem.head_dim, salt=30)
    return [root @ root.mT / problem.head_dim]


def per_head_alphas(problem: cases.Problem) -> list[torch.Tensor]:
    return [1.2 + 0.7 * torch.sigmoid(problem.normal(problem.num_heads, salt=30))]


def no_tensors(problem: cases.Problem) -> list[torch.Tensor]:
    return []


def _custom_modifier(table: torch.Tensor) -> Any:
    return lambda s, b, h, i, j: torch.tanh(s * 0.5) + table[h, (i - j) % 3] * s


def _direct_custom_modifier(table: torch.Tensor) -> direct.Modifier:
    return lambda s, where: torch.tanh(s * 0.5) + table[where.h, (where.i - where.j) % 3] * s


SCORES = {
    "scaled dot": Variant(no_tensors, dict, dict),
    "scale": Variant(
        positive_scalar,
        lambda c: dict(score=score.scaled_dot(c)),
        lambda c: dict(score=direct.scaled_dot(c)),
    ),
    "dot": Variant(no_tensors, lambda: dict(score=score.dot()), lambda: dict(score=direct.dot())),
    "bilinear": Variant(
        normal_tensors(lambda p: (p.head_dim, p.head_dim)),
        lambda w: dict(score=score.bilinear(w)),
        lambda w: dict(score=direct.bilinear(w)),
    ),
    "cosine": Variant(
        positive_scalar,
        lambda c: dict(score=score.cosine(c)),
        lambda c: dict(score=direct.cosine(c)),
    ),
    "gaussian": Variant(
        positive_scalar,
        lambda sigma: dict(score=score.gaussian(sigma)),
        lambda sigma: dict(score=direct.gaussian(sigma)),
    ),
    "mahalanobis": Variant(
        positive_definite_matrix,
        lambda m: dict(score=score.mahalanobis(m)),
        lambda m: dict(score=direct.mahalanobis(m)),
    ),
    "additive": Variant(
        normal_tensors(lambda p: (p.head_dim, 4), lambda p: (p.head_dim, 4), lambda p: (4,), lambda p: (4,)),
        lambda w_q, w_k, u, b: dict(score=score.additive(w_q, w_k, u, b)),
        lambda w_q, w_k, u, b: dict(score=direct.additive(w_q, w_k, u, b)),
    ),
    "additive without bias": Variant(
        normal_tensors(lambda p: (p.head_dim, 3), lambda p: (p.head_dim, 3), lambda p: (3,)),
        lambda w_q, w_k, u: dict(score=score.additive(w_q, w_k, u)),
        lambda w_q, w_k, u: dict(score=direct.additive(w_q, w_k, u)),
    ),
    "alibi": Variant(
        normal_tensors(lambda p: (p.num_heads,)),
        lambda slopes: dict(score=score.alibi(slopes)),
        lambda slopes: dict(modifiers=[direct.alibi(slopes)]),
    ),
    "softcap": Variant(
        positive_scalar,
        lambda c: dict(score=score.softcap(c)),
        lambda c: dict(modifiers=[direct.softcap(c)]),
    ),
    "full bias": Variant(
        normal_tensors(lambda p: (p.batch_size, p.num_heads, p.n_q, p.n_k)),
        lambda t: dict(score=score.bias(t)),
        lambda t: dict(modifiers=[direct.bias(t)]),
    ),
    "bias of heads and keys": Variant(
        normal_tensors(lambda p: (p.num_heads, 1, p.n_k)),
        lambda t: dict(score=score.bias(t)),
        lambda t: dict(modifiers=[direct.bias(t)]),
    ),
    "bias of batch and queries": Variant(
        normal_tensors(lambda p: (p.batch_size, 1, p.n_q, 1)),
        lambda t: dict(score=score.bias(t)),
        lambda t: dict(modifiers=[direct.bias(t)]),
    ),
    "t5_bias": Variant(
        normal_tensors(lambda p: (8, p.num_heads)),
        lambda t: dict(score=score.t5_bias(t, max_distance=6)),
        lambda t: dict(modifiers=[direct.t5_bias(t, max_distance=6)]),
    ),
    "custom modifier": Variant(
        normal_tensors(lambda p: (p.num_heads, 3)),
        lambda t: dict(score=_custom_modifier(t)),
        lambda t: dict(modifiers=[_direct_custom_modifier(t)]),
    ),
    "scale per head": Variant(
        normal_tensors(lambda p: (p.num_heads,)),
        lambda c: dict(score=score.scaled_dot(c)),
        lambda c: dict(score=direct.scaled_dot(c.view(-1, 1, 1))),
    ),
    "gaussian per head": Variant(
        lambda p: [x.abs() + 0.7 for x in normal_tensors(lambda p: (p.num_heads,))(p)],
        lambda sigma: dict(score=score.gaussian(sigma)),
        lambda sigma: dict(score=direct.gaussian(sigma.view(-1, 1, 1))),
    ),
    "bilinear per head": Variant(
        normal_tensors(lambda p: (p.num_heads, p.head_dim, p.head_dim)),
        lambda w: dict(score=score.bilinear(w)),
        lambda w: dict(score=direct.bilinear(w)),
    ),
    "cosine, then bias, then softcap": Variant(
        lambda p: [*positive_scalar(p), *normal_tensors(lambda p: (p.n_q, p.n_k))(p), *positive_scalar(p)],
        lambda g, t, c: dict(score=score.cosine(g).then(score.bias(t)).then(score.softcap(c))),
        lambda g, t, c: dict(score=direct.cosine(g), modifiers=[direct.bias(t), direct.softcap(c)]),
    ),
    "additive, then alibi": Variant(
        normal_tensors(lambda p: (p.head_dim, 3), lambda p: (p.head_dim, 3), lambda p: (3,), lambda p: (p.num_heads,)),
        lambda w_q, w_k, u, m: dict(score=score.additive(w_q, w_k, u).then(score.alibi(m)), mask=mask.causal()),
        lambda w_q, w_k, u, m: dict(
            score=direct.additive(w_q, w_k, u), modifiers=[direct.alibi(m)], mask=direct.causal()
        ),
    ),
    "custom": Variant(
        normal_tensors(lambda p: (p.head_dim,)),
        lambda w: dict(score=score.custom(lambda a, b: (a * w) @ b.mT)),
        lambda w: dict(score=lambda q, k: (q * w) @ k.mT),
    ),
}

NORMALIZERS = {
    "softmax": Variant(no_tensors, dict, dict),
    "sink": Variant(
        normal_tensors(lambda p: (p.num_heads,)),
        lambda b: dict(normalizer=normalizer.sink(b)),
        lambda b: dict(normalizer=direct.sink(b)),
    ),
    "one sink": Variant(
        positive_scalar,
        lambda b: dict(normalizer=normalizer.sink(b)),
        lambda b: dict(normalizer=direct.sink(b)),
    ),
    "sigmoid": Variant(
        positive_scalar,
        lambda b: dict(normalizer=normalizer.sigmoid(b)),
        lambda b: dict(normalizer=direct.sigmoid(b)),
    ),
    "relu": Variant(no_tensors, lambda: dict(normalizer=normalizer.relu()), lambda: dict(normalizer=direct.relu())),
    "relu with scale": Variant(
        positive_scalar,
        lambda c: dict(normalizer=normalizer.relu(c)),
        lambda c: dict(normalizer=direct.relu(c)),
    ),
    "sparsemax": Variant(
        no_tensors, lambda: dict(normalizer=normalizer.sparsemax()), lambda: dict(normalizer=direct.sparsemax())
    ),
    "entmax": Variant(
        per_head_alphas, lambda a: dict(normalizer=normalizer.entmax(a)), lambda a: dict(normalizer=direct.entmax(a))
    ),
    "topk": Variant(no_tensors, lambda: dict(normalizer=normalizer.topk(2)), lambda: dict(normalizer=direct.topk(2))),
    "hardmax": Variant(
        no_tensors, lambda: dict(normalizer=normalizer.hardmax()), lambda: dict(normalizer=direct.hardmax())
    ),
}

SPARSE = ("sparsemax", "entmax", "topk", "hardmax")

VALUES = {
    "linear": Variant(
        normal_tensors(lambda p: (p.value_dim, 3)),
        lambda w: dict(value=lambda v: v @ w),
        lambda w: dict(value=lambda v: v @ w),
    ),
    "t5_bias": Variant(
        normal_tensors(lambda p: (5, p.value_dim)),
        lambda t: dict(value=score.shaw_values(t)),
        lambda t: dict(pair_value=direct.shaw_values(t)),
    ),
    "nonlinear": Variant(
        normal_tensors(lambda p: (p.value_dim,)),
        lambda w: dict(value=lambda v: torch.tanh(v * w)),
        lambda w: dict(value=lambda v: torch.tanh(v * w)),
    ),
}


class Pair:
    """The library and the direct definition as functions of the same inputs: q, k, v, then the captured tensors."""

    def __init__(self, backend: str, problem: cases.Problem, *variants: Variant, **options: Any) -> None:
        dtype = cases.dtype_of(backend)
        self.backend, self.variants, self.options = backend, variants, options
        self.counts = [len(variant.make(problem)) for variant in variants]
        captured = [tensor.to(dtype) for variant in variants for tensor in variant.make(problem)]
        self.inputs = (*problem.tensors(dtype), *captured)

    def library(self, *inputs: torch.Tensor) -> torch.Tensor:
        options: dict[str, Any] = {}
        for variant, captured in zip(self.variants, self._split(inputs[3:]), strict=True):
            options |= variant.make_options(*captured)
        return cases.attention(self.backend, *inputs[:3], **(self.options | options))

    def direct(self, *inputs: torch.Tensor) -> torch.Tensor:
        options: dict[str, Any] = {}
        for variant, captured in zip(self.variants, self._split(tuple(x.double() for x in inputs[3:])), strict=True):
            options |= variant.make_direct_options(*captured)
        return direct.attention(*(x.double() for x in inputs[:3]), **options).output

    def _split(self, captured: tuple[torch.Tensor, ...]) -> list[tuple[torch.Tensor, ...]]:
        groups, first = [], 0
        for count in self.counts:
            groups.append(captured[first : first + count])
            first += count
        return groups


def check_first_order(pair: Pair, problem: cases.Problem) -> None:
    inputs = cases.leaves(*pair.inputs)
    output, expected = pair.library(*inputs), pair.direct(*inputs)
    weights = problem.normal(*expected.shape, salt=50)
    cases.close(output, expected, pair.backend)
    grads, expected_grads = cases.gradients(output, inputs, weights), cases.gradients(expected, inputs, weights)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert grad.shape == expected_grad.shape
        # the gradient of a captured scalar is a sum over all pairs
        cases.close(grad, expected_grad, pair.backend, times=50)


def check_second_order(pair: Pair, problem: cases.Problem) -> None:
    def products(run: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return derivatives of a random combination of first derivatives: the Hessian times a vector."""
        inputs = cases.leaves(*pair.inputs)
        output = run(*inputs)
        weights = problem.normal(*output.shape, salt=50).to(output.dtype)
        first = torch.autograd.grad((output.square() * weights).sum(), inputs, create_graph=True)
        mixture = sum((g * problem.normal(*g.shape, salt=60 + n)).sum() for n, g in enumerate(first))
        return torch.autograd.grad(mixture, inputs)

    for grad, expected_grad in zip(products(pair.library), products(pair.direct), strict=True):
        cases.close(grad, expected_grad, pair.backend, times=500)  # products of three derivatives, up to size 10


def check_forward_mode(pair: Pair, problem: cases.Problem) -> None:
    tangents = tuple(problem.normal(*x.shape, salt=70 + n).to(x.dtype) for n, x in enumerate(pair.inputs))
    _, tangent = torch.func.jvp(pair.library, pair.inputs, tangents)
    _, expected = torch.func.jvp(pair.direct, pair.inputs, tangents)
    cases.close(tangent, expected, pair.backend, times=50)


sizes = dict(n_q=st.integers(1, 5), n_k=st.integers(1, 6), head_dim=st.integers(1, 4))


# every score with softmax, and one score of each kind with the other normalizers
PAIRS = [(score_name, "softmax") for score_name in SCORES]
PAIRS += [
    (score_name, normalizer_name)
    for score_name in ("scaled dot", "gaussian", "additive", "custom modifier", "custom")
    for normalizer_name in ("sink", "sigmoid", "relu", "entmax")
]


@pytest.mark.parametrize("normalizer_name", [name for name in NORMALIZERS if name not in SPARSE])
@pytest.mark.parametrize("score_name", SCORES)
@given(problem=cases.problems(**sizes))
@cases.examples(2)
def test_gradients_equal_those_of_the_direct_formula(backend, score_name, normalizer_name, problem):
    check_first_order(Pair(backend, problem, SCORES[score_name], NORMALIZERS[normalizer_name]), problem)


# a separate test, because hypothesis runs out of stack frames with more parameters
@pytest.mark.parametrize("normalizer_name", SPARSE)
@pytest.mark.parametrize("score_name", SCORES)
@given(problem=cases.problems(**sizes))
@cases.examples(2)
def test_gradients_of_sparse_normalizers_equal_those_of_the_direct_formula(
    backend, score_name, normalizer_name, problem
):
    check_first_order(Pair(backend, problem, SCORES[score_name], NORMALIZERS[normalizer_name]), problem)


@pytest.mark.parametrize("score_name, normalizer_name", PAIRS)
@given(problem=cases.problems(**sizes))
@cases.examples(2)
def test_second_derivatives_equal_those_of_the_direct_formula(backend, score_name, normalizer_name, problem):
    check_second_order(Pair(backend, problem, SCORES[score_name], NORMALIZERS[normalizer_name]), problem)


@pytest.mark.parametrize("score_name, normalizer_name", PAIRS)
@given(problem=cases.problems(**sizes))
@cases.examples(2)
def test_forward_derivatives_equal_those_of_the_direct_formula(backend, score_name, normalizer_name, problem):
    check_forward_mode(Pair(backend, problem, SCORES[score_name], NORMALIZERS[normalizer_name]), problem)


@pytest.mark.parametrize("check", [check_first_order, check_second_order, check_forward_mode])
@pytest.mark.parametrize("value_name", VALUES)
@given(problem=cases.problems(**sizes))
@cases.examples(4)
def test_derivatives_of_value_functions_equal_those_of_the_direct_formula(backend, value_name, check, problem):
    check(Pair(backend, problem, VALUES[value_name], SCORES["full bias"]), problem)


@pytest.mark.parametrize("check", [check_first_order, check_second_order, check_forward_mode])
@given(problem=cases.problems(**sizes))
@cases.examples(4)
def test_derivatives_of_shaw_keys_equal_those_of_the_direct_formula(backend, check, problem):
    pair = Pair(
        backend,
        problem,
        Variant(normal_tensors(lambda p: (5, p.head_dim)), lambda t: dict(score=score.shaw_keys(t)), dict),
    )
    pair.direct = lambda q, k, v, t: (
        direct.attention(q, k, v, modifiers=[direct.shaw_keys(q.double(), t.double())]).output
    )

    check(pair, problem)


@pytest.mark.parametrize("score_name", ["scaled dot", "gaussian", "additive", "full bias", "custom modifier"])
def test_gradients_across_tile_borders(backend, score_name):
    problem = cases.Problem(
        batch_size=1, num_heads=2, num_kv_heads=1, n_q=300, n_k=900, head_dim=3, value_dim=3, seed=7
    )
    causal = Variant(no_tensors, lambda: dict(mask=mask.causal()), lambda: dict(mask=direct.causal()))

    check_first_order(Pair(backend, problem, SCORES[score_name], causal), problem)


@pytest.mark.parametrize("check", [check_second_order, check_forward_mode])
def test_second_and_forward_derivatives_across_tile_borders(backend, check):
    # more pairs than one block of the direct formula
    problem = cases.Problem(
        batch_size=1, num_heads=1, num_kv_heads=1, n_q=1100, n_k=270, head_dim=2, value_dim=2, seed=7
    )
    causal = Variant(no_tensors, lambda: dict(mask=mask.causal()), lambda: dict(mask=direct.causal()))

    check(Pair(backend, problem, SCORES["bias of heads and keys"], causal), problem)


@given(problem=cases.problems(**sizes), data=st.data())
@cases.examples(12)
def test_gradients_with_composed_masks(backend, problem, data):
    options, predicate = data.draw(cases.mask_pairs(problem, depth=2))
    masked = Variant(no_tensors, lambda: dict(mask=options), lambda: dict(mask=predicate))

    check_first_order(Pair(backend, problem, SCORES["full bias"], masked), problem)


@given(problem=cases.problems(**sizes), grad_indices=st.sets(st.integers(0, 3), min_size=1, max_size=3))
@cases.examples(12)
def test_some_gradients_equal_those_of_a_call_with_all_gradients(backend, problem, grad_indices):
    pair = Pair(backend, problem, SCORES["full bias"])
    all_leaves = cases.leaves(*pair.inputs)
    inputs = tuple(x.clone().requires_grad_(n in grad_indices) for n, x in enumerate(pair.inputs))
    output = pair.library(*inputs)
    weights = problem.normal(*output.shape, salt=50).to(output.dtype)

    all_grads = cases.gradients(pair.library(*all_leaves), all_leaves, weights)
    grads = cases.gradients(output, [inputs[n] for n in sorted(grad_indices)], weights)

    for n, grad in zip(sorted(grad_indices), grads, strict=True):
        cases.close(grad, all_grads[n], backend, times=50)


REPEATED_USES = {
    "two indices": lambda s, i, j, t: s * t[j] + t[i],
    "one index": lambda s, i, j, t: s * t[j] + t[j],
    "product with itself": lambda s, i, j, t: s + t[j] * t[j],
    "score used twice": lambda s, i, j, t: s * torch.tanh(s) + t[j] * s,
}


@pytest.mark.parametrize("name", REPEATED_USES)
def test_the_gradient_of_a_tensor_captured_twice_is_the_sum(backend, name):
    problem = cases.Problem(batch_size=1, num_heads=2, num_kv_heads=2, n_q=4, n_k=5, head_dim=3, value_dim=3, seed=2)
    rule = REPEATED_USES[name]
    variant = Variant(
        normal_tensors(lambda p: (p.n_k,)),
        lambda t: dict(score=lambda s, b, h, i, j: rule(s, i, j, t)),
        lambda t: dict(modifiers=[lambda s, where: rule(s, where.i, where.j, t)]),
    )

    check_first_order(Pair(backend, problem, variant), problem)


def test_q_k_and_v_may_be_one_tensor(backend):
    problem = cases.Problem(batch_size=1, num_heads=2, num_kv_heads=2, n_q=5, n_k=5, head_dim=3, value_dim=3, seed=2)
    (x,) = cases.leaves(problem.tensors(cases.dtype_of(backend))[0])

    outputs = cases.attention(backend, x, x, x), direct.attention(x, x, x).output
    (grad,), (expected,) = (cases.gradients(o, (x,), torch.ones_like(o)) for o in outputs)

    cases.close(grad, expected, backend, times=10)


def test_the_gradient_of_the_lse_equals_that_of_the_direct_formula(backend):
    problem = cases.Problem(batch_size=1, num_heads=2, num_kv_heads=2, n_q=4, n_k=5, head_dim=3, value_dim=3, seed=2)
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(backend)))
    visible = problem.random_mask(4, 5)
    weights = problem.normal(1, 2, 4, 3)

    actual, expected = (
        cases.attention_with_weights(backend, q, k, v, mask=visible),
        direct.attention(q, k, v, mask=lambda where: visible),
    )
    is_finite = expected.lse.isfinite()
    grads = []
    for result in (actual, expected):
        mixture = (result.output * weights).sum() + torch.where(is_finite, result.lse, 0.0).sum()
        grads.append(torch.autograd.grad(mixture, (q, k, v)))

    for grad, expected_grad in zip(*grads, strict=True):
        cases.close(grad, expected_grad, backend, times=10)


def test_torch_func_grad_and_vmap_equal_a_loop(backend):
    problem = cases.Problem(batch_size=3, num_heads=2, num_kv_heads=2, n_q=4, n_k=5, head_dim=3, value_dim=3, seed=2)
    q, k, v = problem.tensors(cases.dtype_of(backend))
    loss = lambda *tensors: cases.attention(backend, *tensors, mask=mask.causal()).square().sum()

    together = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    alone = [torch.func.grad(loss, argnums=(0, 1, 2))(*x) for x in zip(q, k, v, strict=True)]

    for n in range(3):
        cases.close(together[n], torch.stack([grads[n] for grads in alone]), backend, times=10)


def test_checkpointing_gives_the_same_gradients(backend):
    problem = cases.Problem(batch_size=1, num_heads=2, num_kv_heads=2, n_q=4, n_k=5, head_dim=3, value_dim=3, seed=2)
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(backend)))
    run = lambda *tensors: cases.attention(backend, *tensors, mask=mask.causal(), dropout=0.3, seed=1)

    plain = run(q, k, v)
    checkpointed = torch.utils.checkpoint.checkpoint(run, q, k, v, use_reentrant=False)

    for grad, expected_grad in zip(
        cases.gradients(checkpointed, (q, k, v), torch.ones_like(checkpointed)),
        cases.gradients(plain, (q, k, v), torch.ones_like(plain)),
        strict=True,
    ):
        cases.equal(grad, expected_grad)
