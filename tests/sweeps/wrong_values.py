"""Wrong values for one argument: unsuitable Python objects, numbers, and variants of the valid value."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def no_arguments() -> None:
    return None


def nine_arguments(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any) -> Any:
    return a


class Odd:
    """An object that supports nothing."""


# Each call gets a new value, so that no call can change the value of a later one.
PLAIN: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "x": lambda: "x",
    "empty string": lambda: "",
    "bytes": lambda: b"x",
    "[]": list,
    "()": lambda: (),
    "{}": dict,
    "set": lambda: {1},
    "object": lambda: Odd(),
    "type": lambda: int,
    "-1": lambda: -1,
    "0": lambda: 0,
    "-2.5": lambda: -2.5,
    "1.5": lambda: 1.5,
    "10**9": lambda: 10**9,
    "2**40": lambda: 2**40,
    "2**70": lambda: 2**70,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "True": lambda: True,
    "complex": lambda: 1j,
    "list of strings": lambda: ["x", "y"],
    "list of None": lambda: [None, None],
    "list of -1": lambda: [-1, -1],
    "list of nan": lambda: [math.nan, math.nan],
    "list of huge": lambda: [10**9, 2**40],
    "dict of x": lambda: {"x": 1},
    "no arguments": lambda: no_arguments,
    "nine arguments": lambda: nine_arguments,
    "tensor ()": lambda: torch.tensor(1.0),
    "tensor (5, 7)": lambda: torch.ones(5, 7),
    "tensor (0,)": lambda: torch.zeros(0),
    "tensor of 5 dimensions": lambda: torch.ones(1, 2, 1, 3, 2),
    "tensor of strings": lambda: np.array(["x", "y"]),
}

OF_TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "one dimension more": lambda x: x.unsqueeze(0),
    "flat": lambda x: x.flatten(),
    "last size - 1": lambda x: x[..., :-1] if x.dim() else x.expand(2),
    "first size - 1": lambda x: x[:-1] if x.dim() else x.expand(3),
    "no rows": lambda x: x[..., :0] if x.dim() else x.expand(0),
    "no batch": lambda x: x[:0] if x.dim() else x.expand(0, 2),
    "int64": lambda x: x.to(torch.int64) if x.dtype != torch.int64 else x.to(torch.float32),
    "bool": lambda x: x.to(torch.bool) if x.dtype != torch.bool else x.to(torch.int64),
    "complex64": lambda x: x.to(torch.complex64),
    "float64": lambda x: x.to(torch.float64) if x.dtype != torch.float64 else x.to(torch.float32),
    "all nan": lambda x: (
        torch.full_like(x, math.nan) if x.is_floating_point() else torch.full_like(x, -(2**60), dtype=torch.int64)
    ),
    "huge": lambda x: (
        torch.full_like(x, 1e30) if x.is_floating_point() else torch.full_like(x, 2**40, dtype=torch.int64)
    ),
    "negative": lambda x: -torch.ones_like(x, dtype=torch.int64) if not x.is_floating_point() else -x.abs(),
    "shape": lambda x: tuple(x.shape),
    "nested list": lambda x: x.tolist(),
}

OF_SEQUENCES: dict[str, Callable[[Sequence[Any]], Any]] = {
    "one more": lambda x: [*x, x[-1]] if len(x) else ["x"],
    "one less": lambda x: list(x)[:-1],
    "None inside": lambda x: [None, *list(x)[1:]],
    "x inside": lambda x: ["x", *list(x)[1:]],
    "nested": lambda x: [list(x)],
}

# Values that a function should not silently accept; `wrong_calls.suspicious` lists where they are harmless.
SUSPICIOUS = (
    "nan",
    "-1",
    "-2.5",
    "x",
    "object",
    "type",
    "list of nan",
    "list of -1",
    "list of strings",
    "list of None",
)


def wrong_values(valid: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield labels and factories of wrong values for an argument whose valid value is `valid`."""
    for label, make in PLAIN.items():
        yield label, make
    if isinstance(valid, Tensor):
        for label, change in OF_TENSORS.items():
            yield label, lambda change=change: change(valid.detach().clone())  # type: ignore[misc]
    elif isinstance(valid, (list, tuple)):
        for label, change_items in OF_SEQUENCES.items():
            yield label, lambda change=change_items: change(valid)  # type: ignore[misc]
