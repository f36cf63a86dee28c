"""Argument checks: the converted value, or an error with the argument's name, the requirement and the value."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from regard import checks
from regard.errors import ArgumentError, BudgetError


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: checks.positive_int(0, "num_heads"), "num_heads must be an integer of at least 1; got 0."),
        (lambda: checks.positive_int(True, "num_heads"), "num_heads must be an integer of at least 1; got True."),
        (lambda: checks.positive_int(2.0, "num_heads"), "num_heads must be an integer of at least 1; got 2.0."),
        (lambda: checks.positive_int(None, "num_heads"), "num_heads must be an integer of at least 1; got None."),
        (lambda: checks.integer("x", "seed"), "seed must be an integer; got 'x'."),
        (
            lambda: checks.integer(9, "row", at_least=0, at_most=3),
            "row must be an integer from 0 to 3; got 9.",
        ),
        (lambda: checks.size(2**31, "width"), "width must be an integer from 1 to 2147483647; got 2147483648."),
        (lambda: checks.seed(-1), "seed must be an integer from 0 to 9223372036854775807; got -1."),
        (lambda: checks.flag(1, "bias"), "bias must be True or False; got 1."),
        (lambda: checks.flag("x", "bias"), "bias must be True or False; got 'x'."),
        (lambda: checks.string(b"x", "title"), "title must be a string; got bytes."),
        (lambda: checks.device("x"), "device must be a torch device such as 'cpu' or 'cuda:0'; got 'x'."),
        (lambda: checks.device(0), "device must be a torch device such as 'cpu' or 'cuda:0'; got 0."),
        (lambda: checks.array([[1], [2, 3]], "maps"), "maps must be a tensor, .* of real numbers; got list of 2."),
        (lambda: checks.array([None], "maps"), "maps must be a tensor, .* of real numbers; got list of 1."),
        (lambda: checks.array(torch.ones(2), "maps", dims=(2,)), r"maps must have 2 dimensions; got shape \(2,\)."),
        (lambda: checks.finite_number(math.nan, "eps"), "eps must be a finite number; got nan."),
        (lambda: checks.finite_number(10**400, "eps"), "eps must be a finite number; got 1000"),
        (lambda: checks.finite_number(0, "factor", above=0), "factor must be a finite number above 0; got 0."),
        (lambda: checks.finite_number(-2.0, "power", at_least=0), "power must be a number of at least 0; got -2.0."),
        (lambda: checks.finite_number([], "eps"), "eps must be a number; got list of 0."),
        (lambda: checks.probability(1.5, "top_p"), "top_p must be a number from 0 to 1; got 1.5."),
        (lambda: checks.probability(math.nan, "top_p"), "top_p must be a number from 0 to 1; got nan."),
        (lambda: checks.probability(1.0, "dropout", below_one=True), "at least 0 and less than 1; got 1.0."),
        (lambda: checks.probability(None, "dropout"), "dropout must be a number from 0 to 1; got None."),
        (
            lambda: checks.choice([], "backend", ("native", "tiled")),
            "backend must be one of 'native', 'tiled'; got list",
        ),
        (lambda: checks.instance("x", "mask", dict, "a mask"), "mask must be a mask; got 'x'."),
        (lambda: checks.function(3, "value", "of the values"), "value must be a function of the values; got 3."),
        (lambda: checks.tensor(None, "x", shape=("batch", 4)), r"x must be a tensor of shape \(batch, 4\); got None."),
        (lambda: checks.tensor(torch.ones(2), "x", shape=("n", 4)), r"x must have shape \(n, 4\); got \(2,\)."),
        (lambda: checks.tensor(torch.ones(2), "x", dims=(3, 4)), r"x must have 3 or 4 dimensions; got shape \(2,\)."),
        (
            lambda: checks.tensor(torch.ones(2), "x", dtype_kind="integers"),
            "x must hold integers; got torch.float32.",
        ),
        (
            lambda: checks.tensor(torch.ones(2) > 0, "x", dtype_kind="floats"),
            "must hold floating point numbers; got torch.b",
        ),
    ],
)
def test_wrong_value_raises_error_with_requirement_and_value(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


def test_oversized_parameter_raises_error_with_its_bytes() -> None:
    checks.parameter_size("weight", 2**20, 2**20)
    with pytest.raises(BudgetError, match=r"weight of shape \(1000000000, 4000000000\) would need 1.6e\+19 bytes"):
        checks.parameter_size("weight", 10**9, 4 * 10**9)


def test_valid_values_are_returned_as_their_types() -> None:
    assert checks.array(torch.ones(2, dtype=torch.bfloat16, requires_grad=True), "x").tolist() == [1.0, 1.0]
    assert checks.flag(np.True_, "bias") is True
    assert checks.device("cpu") == checks.device(torch.device("cpu")) == torch.device("cpu")
    assert checks.integer(np.int64(3), "n") == 3 and type(checks.integer(np.int64(3), "n")) is int
    assert type(checks.finite_number(2, "x")) is float
    assert checks.finite_number(0.5, "x", above=0, at_most=1) == 0.5
    assert checks.probability(1, "p") == 1.0 and checks.probability(0, "p", below_one=True) == 0.0
    assert checks.choice("b", "side", ("a", "b")) == "b"
    x = torch.ones(3, 4)
    assert checks.tensor(x, "x", shape=("n", 4), dims=(2,), dtype_kind="floats") is x
    assert checks.function(len, "f", "of a list") is len
    assert checks.instance({}, "options", dict, "a dict") == {}


def test_long_values_are_abbreviated_in_errors() -> None:
    assert len(checks.describe("x" * 1000)) == 60
    assert checks.describe(np.zeros((2, 3))) == "an array of shape (2, 3), float64"
    assert checks.describe(torch.zeros(2, dtype=torch.int8)) == "a tensor of shape (2,), torch.int8"
