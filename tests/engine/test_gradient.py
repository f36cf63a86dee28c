"""Derivatives of every score with every weighing: first and second order, backward and forward, in float64."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import regard
from regard import mask, score, weigh
from regard.engine import gradient
from regard.engine.tiled import Tiled
from regard.plan.blocks import Tiles
from tests.laws import direct

# torch itself calls torch.jit.script to make some forward derivatives
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

BATCH, HEADS, KEY_HEADS, N_Q, N_K, WIDTH = 1, 2, 1, 2, 3, 2


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs() -> list[Tensor]:
    return [
        normal(BATCH, HEADS, N_Q, WIDTH, seed=1),
        normal(BATCH, KEY_HEADS, N_K, WIDTH, seed=2),
        normal(BATCH, KEY_HEADS, N_K, WIDTH, seed=3),
    ]


# A choice with what it learns: the tensors, and what they make.
Choice = tuple[list[Tensor], Callable[..., Any]]

SCORES: dict[str, Choice] = {
    "dot": ([], score.dot),
    "scaled dot": ([normal(HEADS, seed=11)], score.scaled_dot),
    "multiplicative": ([normal(WIDTH, WIDTH, seed=12)], score.multiplicative),
    "cosine": ([normal(seed=13)], score.cosine),
    "metric": ([normal(HEADS, seed=14).abs() + 0.7], score.metric),
    "mahalanobis": ([normal(WIDTH, WIDTH, seed=15)], score.mahalanobis),
    "additive": (
        [normal(WIDTH, 3, seed=16), normal(WIDTH, 3, seed=17), normal(3, seed=18), normal(3, seed=19)],
        score.additive,
    ),
    "custom": (
        [normal(WIDTH, seed=20)],
        lambda w: score.custom(lambda q, k: torch.sin(q * w) @ k.mT),
    ),
}
RULES: dict[str, Choice] = {
    "plain": ([], lambda: None),
    "with a rule": (
        [normal(HEADS, 3, seed=21)],
        lambda table: lambda s, b, h, i, j: s * table[h, (i + j) % 3] + 0.5 * torch.tanh(s),
    ),
}
WEIGHINGS: dict[str, Choice] = {
    "softmax": ([], weigh.softmax),
    "sink": ([normal(HEADS, seed=22)], weigh.sink),
    "sigmoid": ([normal(HEADS, seed=23)], weigh.sigmoid),
    "relu": ([normal(seed=24)], weigh.relu),
}


def asking(name: str, rule: str, weighing: str, engine: str, **options: Any) -> tuple[Callable[..., Tensor], Tensor]:
    """The answer as a function of everything it is differentiable in, laid end to end, and where to differentiate it.

    So a single direction moves every input at once, and one comparison tells of all of them.
    """
    parts = [SCORES[name], RULES[rule], WEIGHINGS[weighing]]
    counts = [len(tensors) for tensors, _ in parts]
    every = [*inputs(), *(t for tensors, _ in parts for t in tensors)]

    def answer(flat: Tensor) -> Tensor:
        pieces = flat.split([t.numel() for t in every])
        q, k, v, *rest = (piece.view(t.shape) for piece, t in zip(pieces, every, strict=True))
        made = [make(*(rest.pop(0) for _ in range(n))) for n, (_, make) in zip(counts, parts, strict=True)]
        chosen = made[0] if made[1] is None else made[0].then(made[1])
        found = regard.attend(q, k, v, score=chosen, weigh=made[2], engine=engine, **options)
        # the row statistic is an output like any other
        statistic = [] if weighing in ("sigmoid", "relu") else [torch.nan_to_num(found.lse, neginf=0.0).flatten()]
        return torch.cat([found.output.flatten(), *statistic])

    return answer, torch.cat([t.flatten() for t in every]).requires_grad_()


SMALL = "tiled in small tiles"


@pytest.fixture
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An engine by name; in small tiles even these problems have several, and several blocks of queries."""
    if request.param == SMALL:
        monkeypatch.setattr(Tiled, "tiles", lambda self, spec: Tiles(1, 2, 4))
        monkeypatch.setattr(gradient, "PAIRS_A_BLOCK", 1)
        return "tiled"
    return str(request.param)


every_engine = pytest.mark.parametrize("engine", [*regard.engines(), SMALL], indirect=True)
in_small_tiles = pytest.mark.parametrize("engine", [SMALL], indirect=True)
without_tiles = pytest.mark.parametrize("engine", ["reference"], indirect=True)
every_score = pytest.mark.parametrize("name", SCORES)
every_rule = pytest.mark.parametrize("rule", RULES)
every_weighing = pytest.mark.parametrize("weighing", WEIGHINGS)

# Derivatives are compared along random directions; differences of 1e-6 leave about ten digits of a float64.
FAST = dict(fast_mode=True, eps=1e-6, atol=1e-6, rtol=1e-5, check_undefined_grad=False)


@every_engine
@every_weighing
@every_rule
@every_score
def test_gradients_are_those_of_small_differences(engine, name, rule, weighing):
    answer, x = asking(name, rule, weighing, engine, mask=mask.causal())

    assert gradcheck(answer, x, **FAST)


@in_small_tiles
@every_weighing
@every_rule
@every_score
def test_second_derivatives_are_those_of_small_differences(engine, name, rule, weighing):
    answer, x = asking(name, rule, weighing, engine, mask=mask.causal())

    assert gradgradcheck(answer, x, **FAST)


@without_tiles
@every_weighing
@every_score
def test_second_derivatives_are_right_whatever_engine_ran_first(engine, name, weighing):
    answer, x = asking(name, "with a rule", weighing, engine, mask=mask.causal())

    assert gradgradcheck(answer, x, **FAST)


@in_small_tiles
@every_weighing
@every_rule
@every_score
def test_forward_derivatives_are_those_of_small_differences(engine, name, rule, weighing):
    answer, x = asking(name, rule, weighing, engine, mask=mask.causal())

    assert gradcheck(answer, x, check_forward_ad=True, check_backward_ad=False, **FAST)


@in_small_tiles
@every_weighing
@every_score
def test_forward_derivatives_of_gradients_are_those_of_small_differences(engine, name, weighing):
    answer, x = asking(name, "with a rule", weighing, engine, mask=mask.causal())

    assert gradgradcheck(answer, x, check_fwd_over_rev=True, check_rev_over_rev=False, **FAST)


@every_engine
@pytest.mark.parametrize("weighing", ["softmax", "sigmoid"])
@pytest.mark.parametrize("name", ["dot", "metric", "additive", "custom"])
def test_every_entry_of_the_jacobian_is_right_and_not_only_its_projections(engine, name, weighing):
    answer, x = asking(name, "with a rule", weighing, engine, mask=mask.causal())

    # gradients that never arrive count as zeros
    assert gradcheck(answer, x, check_undefined_grad=True)


@in_small_tiles
@every_weighing
@pytest.mark.parametrize("name", ["dot", "additive", "custom"])
def test_rows_that_see_nothing_have_no_derivatives_of_any_order(engine, name, weighing):
    answer, x = asking(name, "with a rule", weighing, engine, mask=lambda b, h, i, j: (i != 1) & (j != 1))

    assert gradcheck(answer, x, check_forward_ad=True, **FAST)
    assert gradgradcheck(answer, x, **FAST)
    (first,) = torch.autograd.grad(answer(x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    for found in (first, second):
        of_q = found[: HEADS * N_Q * WIDTH].view(HEADS, N_Q, WIDTH)
        assert torch.equal(of_q[:, 1], torch.zeros(HEADS, WIDTH, dtype=torch.float64))
        assert bool((of_q[:, 0] != 0).any())


@in_small_tiles
@every_weighing
@pytest.mark.parametrize("name", ["dot", "additive", "custom"])
def test_derivatives_go_through_what_dropout_keeps(engine, name, weighing):
    answer, x = asking(name, "with a rule", weighing, engine, dropout=0.4, seed=3)

    assert gradcheck(answer, x, check_forward_ad=True, **FAST)
    assert gradgradcheck(answer, x, **FAST)


@every_engine
def test_a_bias_that_hides_and_learns_has_its_derivatives(engine):
    hides = torch.zeros(N_Q, N_K, dtype=torch.float64).masked_fill(~mask.causal().dense(N_Q, N_K)[0, 0], -math.inf)

    def answer(q: Tensor, k: Tensor, v: Tensor, extra: Tensor) -> Tensor:
        return regard.attention(q, k, v, score=score.bias(extra + hides), engine=engine)

    leaves = [x.requires_grad_() for x in (*inputs(), normal(N_Q, N_K, seed=25))]
    assert gradcheck(answer, leaves, check_forward_ad=True, **FAST)
    assert gradgradcheck(answer, leaves, **FAST)


@in_small_tiles
@pytest.mark.parametrize("kind", ["relative keys", "relative values", "relative", "alibi", "softcap"])
def test_rules_by_distance_have_their_derivatives(engine, kind):
    tensors, options = {
        "relative keys": ([normal(3, WIDTH, seed=26)], lambda t: dict(score=score.shaw_keys(t))),
        "relative values": ([normal(3, WIDTH, seed=26)], lambda t: dict(value=score.shaw_values(t))),
        "relative": ([normal(6, HEADS, seed=27)], lambda t: dict(score=score.relative(t, max_distance=4))),
        "alibi": ([normal(HEADS, seed=28)], lambda t: dict(score=score.alibi(t))),
        "softcap": ([normal(seed=29).abs() + 0.5], lambda t: dict(score=score.softcap(t))),
    }[kind]

    def answer(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        return regard.attention(q, k, v, mask=mask.causal(), engine=engine, **options(*learned))

    leaves = [x.requires_grad_() for x in (*inputs(), *tensors)]
    assert gradcheck(answer, leaves, **FAST)
    assert gradgradcheck(answer, leaves, **FAST)


def test_relative_values_can_be_differentiated_forward():
    def answer(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        return regard.attention(q, k, v, mask=mask.causal(), value=score.shaw_values(table))

    leaves = [x.requires_grad_() for x in (*inputs(), normal(3, WIDTH, seed=26))]
    assert gradcheck(answer, leaves, check_forward_ad=True, check_backward_ad=False, **FAST)


@every_engine
def test_a_value_function_has_its_derivatives(engine):
    def answer(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return regard.attention(q, k, v, value=lambda v: torch.sin(v @ w), engine=engine)

    leaves = [x.requires_grad_() for x in (*inputs(), normal(WIDTH, 3, seed=30))]
    assert gradcheck(answer, leaves, check_forward_ad=True, **FAST)
    assert gradgradcheck(answer, leaves, **FAST)


@in_small_tiles
@pytest.mark.parametrize("weighing", ["softmax", "sigmoid"])
@pytest.mark.parametrize("name", ["scaled dot", "additive", "custom"])
def test_third_derivatives_are_those_of_the_dense_formula(engine, name, weighing):
    tensors, _ = SCORES[name]
    theirs = {
        "scaled dot": lambda c: direct.scaled_dot(c.view(-1, 1, 1)),
        "additive": direct.additive,
        "custom": lambda w: lambda q, k: torch.sin(q * w) @ k.mT,
    }[name]
    shift = normal(HEADS, seed=23)

    def ours(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        weighs = weigh.softmax() if weighing == "softmax" else weigh.sigmoid(shift)
        return regard.attention(
            q, k, v, score=SCORES[name][1](*learned), weigh=weighs, mask=mask.causal(), engine=engine
        )

    def dense(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        weighs = direct.softmax() if weighing == "softmax" else direct.sigmoid(shift.view(-1, 1, 1))
        return direct.attention(q, k, v, score=theirs(*learned), weigh=weighs, mask=direct.causal()).output

    results = []
    for answer in (ours, dense):
        leaves = [x.clone().requires_grad_() for x in (*inputs(), *tensors)]
        found = answer(*leaves)
        for order in range(3):
            found = (found * normal(*found.shape, seed=40 + order)).sum()
            parts = torch.autograd.grad(found, leaves, create_graph=True)
            found = torch.cat([p.flatten() for p in parts])
        results.append(found)

    # three derivatives of sums of some ten terms: rounding grows to some 1e-13 of the largest
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@every_engine
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", SCORES)
def test_a_gradient_may_itself_be_part_of_a_loss(engine, name, rule):
    dense = {
        "dot": direct.dot,
        "scaled dot": lambda c: direct.scaled_dot(c.view(-1, 1, 1)),
        "multiplicative": direct.multiplicative,
        "cosine": direct.cosine,
        "metric": lambda sigma: direct.metric(sigma.view(-1, 1, 1)),
        "mahalanobis": lambda m: direct.mahalanobis((m + m.mT) / 2),
        "additive": direct.additive,
        "custom": lambda w: lambda q, k: torch.sin(q * w) @ k.mT,
    }[name]
    (of_score, make), (of_rule, make_rule) = SCORES[name], RULES[rule]
    results = []
    for is_ours in (True, False):
        leaves = [x.clone().requires_grad_() for x in (*inputs(), *of_score, *of_rule)]
        q, k, v, *rest = leaves
        learned, table = rest[: len(of_score)], rest[len(of_score) :]
        if is_ours:
            chosen = make(*learned) if rule == "plain" else make(*learned).then(make_rule(*table))
            output = regard.attention(q, k, v, score=chosen, mask=mask.causal(), engine=engine)
        else:
            changes = [_with_table(*table)] if table else []
            output = direct.attention(q, k, v, score=dense(*learned), rules=changes, mask=direct.causal()).output
        first = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))

    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def _with_table(table: Tensor) -> direct.Rule:
    return lambda s, where: s * table[where.h, (where.i + where.j) % 3] + 0.5 * torch.tanh(s)


@every_engine
def test_only_what_is_needed_is_differentiated(engine):
    q, k, v = inputs()
    k.requires_grad_()

    (found,) = torch.autograd.grad(regard.attention(q, k, v, engine=engine).sum(), k)

    assert found.shape == k.shape
    assert not regard.attention(q, k.detach(), v, engine=engine).requires_grad


@every_engine
def test_a_tensor_that_two_places_capture_gets_both_their_gradients(engine):
    def answer(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        rule = score.multiplicative(table).then(lambda s, b, h, i, j: s + table[i % 2, j % 2])
        return regard.attention(q, k, v @ table, score=rule, weigh=weigh.sink(table[0]), engine=engine)

    leaves = [x.requires_grad_() for x in (*inputs(), normal(WIDTH, WIDTH, seed=31))]
    assert gradcheck(answer, leaves, **FAST)
    assert gradgradcheck(answer, leaves, **FAST)


@every_engine
def test_a_custom_function_may_use_a_whole_module(engine):
    torch.manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Linear(2 * WIDTH, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()

    def pairwise(q: Tensor, k: Tensor) -> Tensor:
        pairs = torch.broadcast_tensors(q.unsqueeze(-2), k.unsqueeze(-3))
        return network(torch.cat(pairs, dim=-1)).squeeze(-1)

    results = []
    for call in (
        lambda q, k, v: regard.attention(q, k, v, score=score.custom(pairwise), engine=engine),
        lambda q, k, v: direct.attention(q, k, v, score=pairwise).output,
    ):
        leaves = [*(x.requires_grad_() for x in inputs()), *network.parameters()]
        output = call(*leaves[:3])
        results.append(torch.autograd.grad(output, leaves, normal(*output.shape, seed=5), allow_unused=True))
    for found, expected in zip(*results, strict=True):
        if expected is None:
            assert found is None or float(found.abs().max()) == 0.0
        else:
            torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@every_engine
def test_gradients_of_half_precision_come_back_in_it(engine):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        leaves = [x.to(dtype).requires_grad_() for x in inputs()]
        table = normal(HEADS, 3, seed=21).to(torch.float32).requires_grad_()

        output = regard.attention(*leaves, score=lambda s, b, h, i, j, t=table: s + t[h, (i + j) % 3], engine=engine)
        found = torch.autograd.grad(output.float().sum(), [*leaves, table])

        assert [g.dtype for g in found] == [dtype, dtype, dtype, torch.float32]


@every_engine
def test_backward_twice_through_a_kept_graph_gives_the_same_bits(engine):
    leaves = [x.requires_grad_() for x in inputs()]
    output = regard.attention(*leaves, mask=mask.causal(), engine=engine)
    pull = normal(*output.shape, seed=5)

    one, other = (torch.autograd.grad(output, leaves, pull, retain_graph=True) for _ in range(2))

    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


@every_engine
def test_an_input_changed_in_place_before_the_backward_pass_is_noticed(engine):
    q, k, v = (x.requires_grad_() for x in inputs())
    moved = q * 1.0
    output = regard.attention(moved, k, v, engine=engine)

    moved.mul_(2.0)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
