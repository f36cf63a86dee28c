"""Queries, keys or values that are made of tokens: x W, with x and W among the stages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import SpecError
from regard.spec.array import as_tensor
from regard.worked.call import check_numbers
from regard.worked.stage import Sheet
from regard.worked.words import INPUTS

KINDS = {"Q": "query", "K": "key", "V": "value"}


@dataclass(frozen=True, eq=False)
class Projected:
    """Tokens (length, width) and the matrix (width, width of a head) that they are multiplied with."""

    x: Tensor
    w: Tensor

    @property
    def product(self) -> Tensor:
        return self.x @ self.w


def projected(x: Any, w: Any) -> Projected:
    """x W, to be given to `regard.steps` in the place of q, k or v, so that tokens and matrix are shown as well.

    >>> projected([[1, 2], [0, 1]], [[1, 0], [1, 1]]).product.tolist()
    [[3.0, 2.0], [1.0, 1.0]]
    """
    tokens, matrix = floats(x, "x"), floats(w, "w")
    if tokens.dtype != matrix.dtype:
        tokens, matrix = tokens.double(), matrix.double()
    if matrix.dim() != 2 or tokens.dim() < 2 or tokens.shape[-1] != matrix.shape[0]:
        raise SpecError(
            "x must be (..., length, width) and w (width, width of a head), with one and the same width; got "
            f"x={tuple(tokens.shape)}, w={tuple(matrix.shape)}."
        )
    check_numbers("x", tuple(tokens.shape[-2:]))
    check_numbers("w", tuple(matrix.shape))
    return Projected(tokens, matrix)


def product(x: Any, name: str) -> Tensor:
    """What attention is asked about: the product, where one is given, or the numbers themselves as floats."""
    return x.product if isinstance(x, Projected) else floats(x, name)


def floats(values: Any, name: str) -> Tensor:
    """Numbers of any kind as a tensor of floats: floats of an array as they are, lists and whole numbers in float64."""
    given = as_tensor(values, name)
    return given if given.is_floating_point() and hasattr(values, "dtype") else _from_list(values, given)


def _from_list(values: Any, given: Tensor) -> Tensor:
    # torch reads a list of floats in float32, and 0.1 would not be 0.1 any more
    return given.double() if not given.is_floating_point() else torch.as_tensor(values, dtype=torch.float64)


def put_tokens(sheet: Sheet, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Writes down tokens and matrices of Q, K and V, the same tokens only once; how code makes each product."""
    known: list[tuple[Tensor, str]] = []
    made: dict[str, str] = {}
    for letter, given in inputs.items():
        if not isinstance(given, Projected):
            continue
        name = next((name for other, name in known if torch.equal(other, given.x)), None)
        if name is None:
            name = f"X_{letter}" if known else "X"
            axes = ("query" if letter == "Q" else "key", "feature")
            sheet.put(INPUTS["tokens"], _headed(given.x.double()), axes, name=name)
            known.append((given.x, name))
        sheet.put(INPUTS["matrix"], given.w.double(), ("row", "feature"), letter=letter, kind=KINDS[letter])
        made[letter] = f"{name} @ W_{letter}"
    return made


def _headed(x: Tensor) -> Tensor:
    """(..., length, width) as (batch, heads, length, width); of three dimensions the first is the batch."""
    return x.unsqueeze(-3) if x.dim() == 3 else x.flatten(0, -4) if x.dim() > 4 else x
