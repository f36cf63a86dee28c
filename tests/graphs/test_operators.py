"""The registered operators, asked directly: torch's own checks, transformations, and what they refuse."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap
from torch.library import opcheck

import regard
from regard import mask
from regard.operators import OPTIONS
from regard.spec.named import spell
from tests.graphs.cases import CASES, answers, close, defined, inputs, some

ATTENTION, BACKWARD = torch.ops.regard.attention.default, torch.ops.regard.attention_backward.default
QUICK = ("nothing", "a window", "documents", "alibi", "bias", "sink")


def question(**options: Any) -> tuple[Any, ...]:
    """What an operator gets beside q, k and v."""
    tensors: list[Tensor] = []
    numbers: list[int] = []
    text = spell(tuple({"dropout": 0.0, **options}.get(name) for name in OPTIONS), tensors, numbers)
    return tensors, numbers, text, not {"weigh", "value"} & options.keys()


def watched(name: str) -> tuple[list[Tensor], list[Tensor]]:
    case = CASES[name]
    return tuple([t.requires_grad_() for t in x] for x in (inputs(), case.parameters()))  # type: ignore[return-value]


@some(*QUICK, but="a function of the values")  # which an operator does not see
def test_attention_passes_torchs_checks(name):
    x, learned = watched(name)

    opcheck(ATTENTION, (*x, *question(**CASES[name].options(*learned))))


@some(*QUICK, but="a function of the values")  # which an operator does not see
def test_the_backward_pass_passes_torchs_checks(name):
    x, learned = watched(name)
    tensors, numbers, text, is_raw = question(**CASES[name].options(*learned))
    output, statistic, raw = (t.detach() for t in ATTENTION(*x, tensors, numbers, text, is_raw))
    needs = [True, False, True, *(t.requires_grad for t in tensors)]
    every = [t.detach() for t in x], [t.detach() for t in tensors]

    opcheck(BACKWARD, (output, *every[0], every[1], numbers, text, output if is_raw else raw, statistic, needs))


@some(*QUICK, but="a function of the values")  # which an operator does not see
def test_the_operator_gives_the_numbers_of_the_definition(name):
    case = CASES[name]

    def call(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        return ATTENTION(q * 1.5, k, v, *question(**case.options(*learned)))[0] + 1.0

    x = [*inputs(), *case.parameters()]
    close(answers(call, *x), answers(defined(case), *x))


def test_the_row_statistic_is_that_of_the_definition():
    x = inputs()
    seen = mask.causal()

    _, statistic, raw = ATTENTION(*x, *question(mask=seen))

    assert raw.numel() == 0
    close([statistic], [regard.attend(*x, mask=seen, engine="reference").lse])


def test_torch_func_goes_through_the_operator():
    case = CASES["alibi"]
    (slopes,) = case.parameters()

    def call(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
        return ATTENTION(q * 1.5, k, v, *question(**case.options(slopes)))[0]

    def expected(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
        return regard.attention(q * 1.5, k, v, engine="reference", **case.options(slopes))

    x = (*(t[:1] for t in inputs()), slopes)
    several = tuple(t.unsqueeze(1) for t in inputs())
    for one, two in zip(
        (
            *grad(lambda *x: call(*x).sin().sum(), (0, 1, 2, 3))(*x),
            jacrev(call, 3)(*x),
            *_mapped(call, *several, slopes),
        ),
        (
            *grad(lambda *x: expected(*x).sin().sum(), (0, 1, 2, 3))(*x),
            jacrev(expected, 3)(*x),
            *_mapped(expected, *several, slopes),
        ),
        strict=True,
    ):
        close([one], [two])


def _mapped(call: Any, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> list[Tensor]:
    """Over q alone, over all three, and over the slopes; of the call, and of its gradient."""

    def loss(*x: Tensor) -> Tensor:
        return call(*x).sin().sum()

    slopes_of_two = torch.stack((slopes, slopes * 2.0))
    return [
        vmap(call, (0, None, None, None))(q, k[0], v[0], slopes),
        vmap(call, (0, 0, 0, None))(q, k, v, slopes),
        vmap(call, (0, 0, 0, 0))(q, k, v, slopes_of_two),
        vmap(grad(loss, 3), (0, 0, 0, 0))(q, k, v, slopes_of_two),
        vmap(grad(loss, 1), (0, 0, 0, None))(q, k, v, slopes),
    ]


def test_a_second_derivative_is_refused_with_what_to_do():
    x = [t.requires_grad_() for t in inputs()]
    output = ATTENTION(*x, *question())[0]
    (first,) = torch.autograd.grad(output.sin().sum(), x[0], create_graph=True)

    with pytest.raises(
        regard.errors.EngineError, match=r"at most once; got a second derivative. Call regard.attention"
    ):
        first.sum().backward()


def test_a_text_that_names_something_else_is_refused():
    tensors, numbers, text, is_raw = question(mask=mask.window(3))

    with pytest.raises(regard.errors.SpecError, match=r"must name masks, scores and weighings.*got 'os.system'"):
        ATTENTION(*inputs(), tensors, numbers, text.replace("mask.window", "os.system"), is_raw)
