"""The registered operators, called directly: torch's checks, transforms, and errors."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap
from torch.library import opcheck

import regard
from regard import mask
from regard.expr.serialize import serialize
from regard.torch_ops.operator import OPERATOR_OPTIONS
from tests.torch_ops.cases import CASES, close, inputs, output_and_gradients, parametrize_cases, reference_call

ATTENTION, BACKWARD = torch.ops.regard.attention.default, torch.ops.regard.attention_backward.default
QUICK = ("nothing", "a window", "documents", "alibi", "bias", "sink")


def operator_args(**options: Any) -> tuple[Any, ...]:
    """The arguments of an operator after q, k and v."""
    tensors: list[Tensor] = []
    numbers: list[int] = []
    text = serialize(tuple({"dropout": 0.0, **options}.get(name) for name in OPERATOR_OPTIONS), tensors, numbers)
    return tensors, numbers, text, not {"normalizer", "value"} & options.keys()


def differentiable_inputs(name: str) -> tuple[list[Tensor], list[Tensor]]:
    case = CASES[name]
    return tuple([t.requires_grad_() for t in x] for x in (inputs(), case.parameters()))  # type: ignore[return-value]


@parametrize_cases(*QUICK, except_for="a function of the values")  # the operator has no value function
def test_attention_passes_opcheck(name):
    x, learned = differentiable_inputs(name)

    opcheck(ATTENTION, (*x, *operator_args(**CASES[name].options(*learned))))


@parametrize_cases(*QUICK, except_for="a function of the values")  # the operator has no value function
def test_backward_passes_opcheck(name):
    x, learned = differentiable_inputs(name)
    tensors, numbers, text, is_raw = operator_args(**CASES[name].options(*learned))
    output, statistic, raw = (t.detach() for t in ATTENTION(*x, tensors, numbers, text, is_raw))
    needs = [True, False, True, *(t.requires_grad for t in tensors)]
    every = [t.detach() for t in x], [t.detach() for t in tensors]

    opcheck(BACKWARD, (output, *every[0], every[1], numbers, text, output if is_raw else raw, statistic, needs))


@parametrize_cases(*QUICK, except_for="a function of the values")  # the operator has no value function
def test_operator_agrees_with_the_reference(name):
    case = CASES[name]

    def call(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        return ATTENTION(q * 1.5, k, v, *operator_args(**case.options(*learned)))[0] + 1.0

    x = [*inputs(), *case.parameters()]
    close(output_and_gradients(call, *x), output_and_gradients(reference_call(case), *x))


def test_row_statistic_agrees_with_the_reference():
    x = inputs()
    visible = mask.causal()

    _, statistic, raw = ATTENTION(*x, *operator_args(mask=visible))

    assert raw.numel() == 0
    close([statistic], [regard.attention_with_weights(*x, mask=visible, backend="reference").lse])


def test_torch_func_supports_the_operator():
    case = CASES["alibi"]
    (slopes,) = case.parameters()

    def call(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
        return ATTENTION(q * 1.5, k, v, *operator_args(**case.options(slopes)))[0]

    def expected(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
        return regard.attention(q * 1.5, k, v, backend="reference", **case.options(slopes))

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


def test_second_derivative_raises_error_with_the_fix():
    x = [t.requires_grad_() for t in inputs()]
    output = ATTENTION(*x, *operator_args())[0]
    (first,) = torch.autograd.grad(output.sin().sum(), x[0], create_graph=True)

    with pytest.raises(
        regard.errors.BackendError, match=r"supports first derivatives; got a second derivative. Call regard.attention"
    ):
        first.sum().backward()


def test_text_with_an_unknown_name_raises_error():
    tensors, numbers, text, is_raw = operator_args(mask=mask.sliding_window(3))

    with pytest.raises(
        regard.errors.ArgumentError, match=r"must be a mask, score or normalizer of regard; got 'os.system'"
    ):
        ATTENTION(*inputs(), tensors, numbers, text.replace("mask.sliding_window", "os.system"), is_raw)
