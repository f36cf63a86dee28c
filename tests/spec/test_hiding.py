"""What a rule hides by adding -inf is hidden like under a mask, whatever the score is."""

import math

import pytest
import torch
from torch import Tensor

from regard.spec.evaluate import Evaluation, Positions
from regard.spec.hiding import _glimpse, _holds_infinity, hiding, visible
from regard.spec.rule import alibi, bias, composed, rule, softcap
from regard.spec.term import FALSE, TRUE, Term, apply, constant, lookup, variable

I, J, P, S = (variable(name) for name in "ijps")
CAUSAL = apply("le", J, P)
N = 6


def at_every_pair(term: Term, tensors: tuple[Tensor, ...]) -> Tensor:
    where = Positions(range(1), range(1), range(N), range(N), start=0, n_q=N, n_k=N, device=torch.device("cpu"))
    return Evaluation(tensors, where).condition(term).expand(where.shape)[0, 0]


def scored(rule_: Term, tensors: tuple[Tensor, ...], score: float) -> Tensor:
    where = Positions(range(1), range(1), range(N), range(N), start=0, n_q=N, n_k=N, device=torch.device("cpu"))
    start = torch.full((1, 1, N, N), score)
    return Evaluation(tensors, where, start, torch.float32).number(rule_).expand(where.shape)[0, 0]


def float_mask() -> Tensor:
    values = torch.randn(N, N, generator=torch.Generator().manual_seed(0))
    values[torch.rand(N, N, generator=torch.Generator().manual_seed(1)) < 0.4] = -torch.inf
    return values


RULES = {
    "a float mask": lambda: bias(float_mask()),
    "a float mask, then another": lambda: composed(bias(float_mask()), bias(float_mask().flip(0))),
    "a choice": lambda: rule(lambda s, b, h, i, j: torch.where(i >= j, s, -math.inf)),
    "a choice the other way round": lambda: rule(lambda s, b, h, i, j: torch.where(i < j, float("-inf"), s)),
    "masked_fill": lambda: rule(lambda s, b, h, i, j: s.masked_fill(i < j, float("-inf"))),
    "less infinity": lambda: rule(lambda s, b, h, i, j: s - torch.where(i < j, math.inf, 0.0)),
    "nested choices": lambda: rule(
        lambda s, b, h, i, j: torch.where(
            i == 0, torch.where(j > 2, -math.inf, s), torch.where(j == 0, -math.inf, s + 1)
        )
    ),
    "alibi, then a float mask": lambda: composed(alibi(torch.tensor([0.5])), bias(float_mask())),
    "a float mask times a table": lambda: rule(
        lambda s, b, h, i, j: s + torch.where(i + j > 4, 1.0, 2.0) * torch.where(i == j, -math.inf, 1.0)
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_pairs_that_a_rule_sets_to_minus_infinity_are_hidden(name: str) -> None:
    found = RULES[name]()
    hidden = at_every_pair(hiding(found.term, found.tensors), found.tensors)
    assert hidden.any() and not hidden.all()
    assert torch.equal(hidden, scored(found.term, found.tensors, 0.3) == -torch.inf)


@pytest.mark.parametrize("name", RULES)
def test_what_is_hidden_does_not_depend_on_the_score(name: str) -> None:
    """The condition knows no score, so a score of NaN or inf cannot make a hidden pair seen."""
    found = RULES[name]()
    assert "s" not in hiding(found.term, found.tensors).depends


@pytest.mark.parametrize("name", ["alibi", "softcap", "a finite bias", "nothing"])
def test_a_rule_that_is_finite_hides_nothing(name: str) -> None:
    found = {
        "alibi": alibi(torch.tensor([0.5])),
        "softcap": softcap(5.0),
        "a finite bias": bias(torch.randn(N, N)),
        "nothing": None,
    }[name]
    assert hiding(found and found.term, found.tensors if found else ()) is FALSE
    assert visible(CAUSAL, found and found.term, found.tensors if found else ()) is CAUSAL


def test_a_rule_that_hides_by_the_score_is_left_to_the_score() -> None:
    found = rule(lambda s, b, h, i, j: torch.where(s > 0, s, -math.inf))
    assert hiding(found.term, ()) is FALSE


def test_infinity_and_nan_in_a_bias_hide_nothing() -> None:
    values = torch.zeros(N, N)
    values[0, 0], values[1, 1], values[2, 2] = torch.inf, torch.nan, -torch.inf
    found = bias(values)
    hidden = at_every_pair(hiding(found.term, found.tensors), found.tensors)
    assert hidden.nonzero().tolist() == [[2, 2]]


def test_a_constant_of_minus_infinity_hides_everything() -> None:
    assert hiding(apply("add", S, constant(-math.inf)), ()) is TRUE
    assert hiding(apply("sub", S, constant(math.inf)), ()) is TRUE
    assert hiding(apply("sub", S, constant(-math.inf)), ()) is FALSE
    assert visible(CAUSAL, apply("add", S, constant(-math.inf)), ()) is FALSE


def test_what_is_visible_is_the_mask_less_what_is_hidden() -> None:
    table = float_mask()
    rule_ = apply("add", S, lookup(0, (I, J), "float"))
    seen = at_every_pair(visible(CAUSAL, rule_, (table,)), (table,))
    assert torch.equal(seen, torch.ones(N, N, dtype=torch.bool).tril() & (table != -torch.inf))


def test_a_float64_bias_that_float32_would_round_to_minus_infinity_is_not_hidden_by_position() -> None:
    table = torch.full((N, N), -1e300, dtype=torch.float64)
    assert hiding(apply("add", S, lookup(0, (I, J), "float")), (table,)) is FALSE


def test_a_bias_that_requires_a_gradient_can_hide() -> None:
    values = float_mask().requires_grad_()
    found = bias(values)
    hidden = at_every_pair(hiding(found.term, found.tensors), (values.detach(),))
    assert torch.equal(hidden, values == -torch.inf)


def test_a_glance_at_a_large_tensor_finds_what_is_hidden_all_over_it() -> None:
    values = torch.zeros(2, 300, 300).masked_fill(torch.ones(300, 300).triu(1).bool(), -torch.inf)
    changed = bias(values)

    assert visible(TRUE, changed.term, changed.tensors, glance=True) is visible(TRUE, changed.term, changed.tensors)


def test_a_glance_may_miss_what_is_hidden_in_few_places() -> None:
    values = torch.zeros(300, 300)
    values[1, 1] = -torch.inf
    changed = bias(values)

    assert visible(TRUE, changed.term, changed.tensors, glance=True) is TRUE
    assert visible(TRUE, changed.term, changed.tensors) is not TRUE


@pytest.mark.parametrize("shape", [(), (1,), (70_000,), (1, 70_000), (70_000, 1), (70_000, 1, 1), (0, 70_000)], ids=str)
def test_a_glance_looks_at_tensors_of_any_shape(shape: tuple[int, ...]) -> None:
    assert not _holds_infinity(_glimpse(torch.zeros(shape)))
    assert _holds_infinity(_glimpse(torch.full(shape, -torch.inf))) == (0 not in shape)
