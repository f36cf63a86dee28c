"""`@check_types` raises an error for arguments that do not match the annotations, and only for those."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.argument_types import UNCHECKED, check_fields, check_types
from regard.errors import ArgumentError


@check_types
def annotated(
    x: Tensor,
    *more: Tensor,
    count: int = 1,
    scale: float | None = None,
    causal: bool = False,
    side: Literal["left", "right"] = "left",
    sizes: Sequence[int] = (),
    grid: tuple[int, int] = (1, 1),
    change: Callable[[Tensor], Tensor] | None = None,
    title: str = "",
    free: Any = None,
    items: Sequence[object] = (),
    converted: Annotated[int, UNCHECKED] | None = None,
    noted: Annotated[int, "at least 1"] = 1,
) -> int:
    return len(more)


ONE = torch.ones(2)
NAN = float("nan")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 1.5}, r"count must be an integer; got 1\.5"),
        ({"count": True}, r"count must be an integer; got True"),
        ({"count": 2**70}, r"count must be an integer; got 1180591620717411303424"),
        ({"scale": NAN}, r"scale must be a finite number or None; got nan"),
        ({"scale": 2**63}, r"scale must be a finite number or None; got 9223372036854775808"),
        ({"scale": "x"}, r"scale must be a finite number or None; got 'x'"),
        ({"causal": 1}, r"causal must be True or False; got 1"),
        ({"side": "up"}, r"side must be one of 'left', 'right'; got 'up'"),
        ({"sizes": 3}, r"sizes must be a sequence of integers; got 3"),
        ({"sizes": [1, "x"]}, r"sizes must be a sequence of integers; got list of 2"),
        ({"sizes": "12"}, r"sizes must be a sequence of integers; got '12'"),
        ({"grid": (1, 2, 3)}, r"grid must be a tuple of an integer, an integer; got tuple of 3"),
        ({"change": ONE}, r"change must be a function or None; got a tensor of shape \(2,\), torch\.float32"),
        ({"title": None}, r"title must be a string; got None"),
        ({"items": 3}, r"items must be a sequence; got 3"),
        ({"noted": "x"}, r"noted must be an integer; got 'x'"),
    ],
)
def test_wrong_argument_raises_error_with_its_name_and_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        annotated(ONE, **options)


def test_positional_arguments_are_checked() -> None:
    with pytest.raises(ArgumentError, match=r"x must be a tensor of real numbers; got list of 1"):
        annotated([1.0])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"more must be a tensor of real numbers; got None"):
        annotated(ONE, ONE, None)  # type: ignore[arg-type]


def test_numpy_numbers_and_tensors_as_sequences_are_accepted() -> None:
    sizes = torch.tensor([1, 2])
    assert annotated(ONE, ONE, count=np.int64(3), scale=np.float32(2.0), sizes=sizes, free=object()) == 1  # type: ignore[arg-type]


def test_arguments_that_the_function_converts_are_accepted() -> None:
    assert annotated(ONE, converted="x", items=[1, "x", None]) == 0  # type: ignore[arg-type]


def test_check_fields_checks_the_fields_of_a_dataclass() -> None:
    @dataclass(frozen=True)
    class Scaling:
        factor: float

        def __post_init__(self) -> None:
            check_fields(self)

    assert Scaling(2).factor == 2
    with pytest.raises(ArgumentError, match=r"factor must be a finite number; got nan"):
        Scaling(NAN)


def test_compiled_calls_are_not_checked() -> None:
    @check_types
    def scale(x: Tensor, times: int) -> Tensor:
        return x * times

    assert torch.compile(scale, backend="eager", fullgraph=True)(ONE, 2).tolist() == [2.0, 2.0]
