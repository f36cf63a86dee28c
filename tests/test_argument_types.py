"""`@check_types` refuses arguments that do not fit the annotations, and nothing else."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.argument_types import check_fields, check_types
from regard.errors import SpecError


@check_types
def everything(
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
) -> int:
    return len(more)


ONE = torch.ones(2)
NAN = float("nan")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 1.5}, r"count must be a whole number; got 1\.5"),
        ({"count": True}, r"count must be a whole number; got True"),
        ({"count": 2**70}, r"count must be a whole number; got 1180591620717411303424"),
        ({"scale": NAN}, r"scale must be a finite number or None; got nan"),
        ({"scale": 2**63}, r"scale must be a finite number or None; got 9223372036854775808"),
        ({"scale": "x"}, r"scale must be a finite number or None; got 'x'"),
        ({"causal": 1}, r"causal must be True or False; got 1"),
        ({"side": "up"}, r"side must be one of 'left', 'right'; got 'up'"),
        ({"sizes": 3}, r"sizes must be a sequence of whole numbers; got 3"),
        ({"sizes": [1, "x"]}, r"sizes must be a sequence of whole numbers; got list of 2"),
        ({"sizes": "12"}, r"sizes must be a sequence of whole numbers; got '12'"),
        ({"grid": (1, 2, 3)}, r"grid must be a tuple of a whole number, a whole number; got tuple of 3"),
        ({"change": ONE}, r"change must be a function or None; got a tensor of shape \(2,\), torch\.float32"),
        ({"title": None}, r"title must be a string; got None"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        everything(ONE, **options)


def test_arguments_by_position_are_checked_as_well() -> None:
    with pytest.raises(SpecError, match=r"x must be a tensor of real numbers; got list of 1"):
        everything([1.0])  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"more must be a tensor of real numbers; got None"):
        everything(ONE, ONE, None)  # type: ignore[arg-type]


def test_numbers_of_numpy_and_sequences_in_tensors_are_accepted() -> None:
    sizes = torch.tensor([1, 2])
    assert everything(ONE, ONE, count=np.int64(3), scale=np.float32(2.0), sizes=sizes, free=object()) == 1  # type: ignore[arg-type]


def test_a_dataclass_checks_its_fields() -> None:
    @dataclass(frozen=True)
    class Scaling:
        factor: float

        def __post_init__(self) -> None:
            check_fields(self)

    assert Scaling(2).factor == 2
    with pytest.raises(SpecError, match=r"factor must be a finite number; got nan"):
        Scaling(NAN)


def test_a_graph_has_no_checks() -> None:
    @check_types
    def doubled(x: Tensor, times: int) -> Tensor:
        return x * times

    assert torch.compile(doubled, backend="eager", fullgraph=True)(ONE, 2).tolist() == [2.0, 2.0]
