"""Pairs that a score modifier hides by adding -inf are masked for every score."""

import math

import pytest
import torch
from torch import Tensor

from regard.expr.evaluate import Evaluator, IndexGrid
from regard.expr.hidden_pairs import _contains_infinity, _strided_sample, effective_mask, hidden_condition
from regard.expr.ir import FALSE, TRUE, Expr, apply, constant, lookup, variable
from regard.expr.score_modifier import alibi, bias, compose, modifier, softcap

I, J, P, S = (variable(name) for name in "ijps")
CAUSAL = apply("le", J, P)
N = 6


def mask_values(expr: Expr, tensors: tuple[Tensor, ...]) -> Tensor:
    grid = IndexGrid(range(1), range(1), range(N), range(N), query_offset=0, n_q=N, n_k=N, device=torch.device("cpu"))
    return Evaluator(tensors, grid).mask_value(expr).expand(grid.shape)[0, 0]


def score_values(score_mod: Expr, tensors: tuple[Tensor, ...], score: float) -> Tensor:
    grid = IndexGrid(range(1), range(1), range(N), range(N), query_offset=0, n_q=N, n_k=N, device=torch.device("cpu"))
    scores = torch.full((1, 1, N, N), score)
    return Evaluator(tensors, grid, scores, torch.float32).score_value(score_mod).expand(grid.shape)[0, 0]


def float_mask() -> Tensor:
    values = torch.randn(N, N, generator=torch.Generator().manual_seed(0))
    values[torch.rand(N, N, generator=torch.Generator().manual_seed(1)) < 0.4] = -torch.inf
    return values


MODIFIERS = {
    "a float mask": lambda: bias(float_mask()),
    "a float mask, then another": lambda: compose(bias(float_mask()), bias(float_mask().flip(0))),
    "where": lambda: modifier(lambda s, b, h, i, j: torch.where(i >= j, s, -math.inf)),
    "where with swapped branches": lambda: modifier(lambda s, b, h, i, j: torch.where(i < j, float("-inf"), s)),
    "masked_fill": lambda: modifier(lambda s, b, h, i, j: s.masked_fill(i < j, float("-inf"))),
    "minus infinity": lambda: modifier(lambda s, b, h, i, j: s - torch.where(i < j, math.inf, 0.0)),
    "nested where": lambda: modifier(
        lambda s, b, h, i, j: torch.where(
            i == 0, torch.where(j > 2, -math.inf, s), torch.where(j == 0, -math.inf, s + 1)
        )
    ),
    "alibi, then a float mask": lambda: compose(alibi(torch.tensor([0.5])), bias(float_mask())),
    "a float mask times a table": lambda: modifier(
        lambda s, b, h, i, j: s + torch.where(i + j > 4, 1.0, 2.0) * torch.where(i == j, -math.inf, 1.0)
    ),
}


@pytest.mark.parametrize("name", MODIFIERS)
def test_pairs_with_score_minus_infinity_are_hidden(name: str) -> None:
    score_modifier = MODIFIERS[name]()
    hidden = mask_values(hidden_condition(score_modifier.expr, score_modifier.tensors), score_modifier.tensors)
    assert hidden.any() and not hidden.all()
    assert torch.equal(hidden, score_values(score_modifier.expr, score_modifier.tensors, 0.3) == -torch.inf)


@pytest.mark.parametrize("name", MODIFIERS)
def test_hidden_condition_does_not_depend_on_the_score(name: str) -> None:
    """A score of NaN or inf cannot make a hidden pair visible, since the condition does not contain the score."""
    score_modifier = MODIFIERS[name]()
    assert "s" not in hidden_condition(score_modifier.expr, score_modifier.tensors).free_variables


@pytest.mark.parametrize("name", ["alibi", "softcap", "a finite bias", "nothing"])
def test_finite_modifier_hides_nothing(name: str) -> None:
    score_modifier = {
        "alibi": alibi(torch.tensor([0.5])),
        "softcap": softcap(5.0),
        "a finite bias": bias(torch.randn(N, N)),
        "nothing": None,
    }[name]
    assert (
        hidden_condition(score_modifier and score_modifier.expr, score_modifier.tensors if score_modifier else ())
        is FALSE
    )
    assert (
        effective_mask(CAUSAL, score_modifier and score_modifier.expr, score_modifier.tensors if score_modifier else ())
        is CAUSAL
    )


def test_modifier_that_hides_by_score_has_no_hidden_condition() -> None:
    score_modifier = modifier(lambda s, b, h, i, j: torch.where(s > 0, s, -math.inf))
    assert hidden_condition(score_modifier.expr, ()) is FALSE


def test_plus_infinity_and_nan_in_a_bias_hide_nothing() -> None:
    values = torch.zeros(N, N)
    values[0, 0], values[1, 1], values[2, 2] = torch.inf, torch.nan, -torch.inf
    score_modifier = bias(values)
    hidden = mask_values(hidden_condition(score_modifier.expr, score_modifier.tensors), score_modifier.tensors)
    assert hidden.nonzero().tolist() == [[2, 2]]


def test_constant_minus_infinity_hides_everything() -> None:
    assert hidden_condition(apply("add", S, constant(-math.inf)), ()) is TRUE
    assert hidden_condition(apply("sub", S, constant(math.inf)), ()) is TRUE
    assert hidden_condition(apply("sub", S, constant(-math.inf)), ()) is FALSE
    assert effective_mask(CAUSAL, apply("add", S, constant(-math.inf)), ()) is FALSE


def test_effective_mask_excludes_hidden_pairs() -> None:
    table = float_mask()
    score_mod = apply("add", S, lookup(0, (I, J), "float"))
    visible = mask_values(effective_mask(CAUSAL, score_mod, (table,)), (table,))
    assert torch.equal(visible, torch.ones(N, N, dtype=torch.bool).tril() & (table != -torch.inf))


def test_float64_bias_beyond_the_float32_range_is_not_hidden() -> None:
    table = torch.full((N, N), -1e300, dtype=torch.float64)
    assert hidden_condition(apply("add", S, lookup(0, (I, J), "float")), (table,)) is FALSE


def test_bias_that_requires_grad_can_hide() -> None:
    values = float_mask().requires_grad_()
    score_modifier = bias(values)
    hidden = mask_values(hidden_condition(score_modifier.expr, score_modifier.tensors), (values.detach(),))
    assert torch.equal(hidden, values == -torch.inf)


def test_sample_of_a_large_tensor_finds_widespread_infinities() -> None:
    values = torch.zeros(2, 300, 300).masked_fill(torch.ones(300, 300).triu(1).bool(), -torch.inf)
    score_modifier = bias(values)

    assert effective_mask(TRUE, score_modifier.expr, score_modifier.tensors, sample_only=True) is effective_mask(
        TRUE, score_modifier.expr, score_modifier.tensors
    )


def test_sample_of_a_large_tensor_may_miss_few_infinities() -> None:
    values = torch.zeros(300, 300)
    values[1, 1] = -torch.inf
    score_modifier = bias(values)

    assert effective_mask(TRUE, score_modifier.expr, score_modifier.tensors, sample_only=True) is TRUE
    assert effective_mask(TRUE, score_modifier.expr, score_modifier.tensors) is not TRUE


@pytest.mark.parametrize("shape", [(), (1,), (70_000,), (1, 70_000), (70_000, 1), (70_000, 1, 1), (0, 70_000)], ids=str)
def test_sample_supports_tensors_of_any_shape(shape: tuple[int, ...]) -> None:
    assert not _contains_infinity(_strided_sample(torch.zeros(shape)))
    assert _contains_infinity(_strided_sample(torch.full(shape, -torch.inf))) == (0 not in shape)
