"""Queries, keys or values as projections of tokens: x W, with x and W among the stages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import ArgumentError
from regard.tensors.convert import as_tensor
from regard.walkthrough.expanded_call import check_matrix_size
from regard.walkthrough.stage import StageBuilder
from regard.walkthrough.stages.templates import INPUT_TEMPLATES

__all__ = ["Projection", "project"]

NumbersLike = Tensor | NDArray[Any] | Sequence[object]  # a sequence is a nested list of numbers
INPUT_KINDS = {"Q": "query", "K": "key", "V": "value"}


@dataclass(frozen=True, eq=False)
class Projection:
    """Tokens x (..., length, embed_dim) and a projection matrix w (embed_dim, head_dim)."""

    x: Tensor
    w: Tensor

    @property
    def product(self) -> Tensor:
        return self.x @ self.w


def project(x: NumbersLike, w: NumbersLike) -> Projection:
    """Return the projection x W, to be passed as q, k or v to `regard.steps`, which then also shows x and W.

    x is (..., length, embed_dim) and w (embed_dim, head_dim): tensors, arrays or nested lists of numbers.

    >>> project([[1, 2], [0, 1]], [[1, 0], [1, 1]]).product.tolist()
    [[3.0, 2.0], [1.0, 1.0]]
    """
    tokens, matrix = as_float_tensor(x, "x"), as_float_tensor(w, "w")
    if tokens.dtype != matrix.dtype:
        tokens, matrix = tokens.double(), matrix.double()
    if matrix.dim() != 2 or tokens.dim() < 2 or tokens.shape[-1] != matrix.shape[0]:
        raise ArgumentError(
            "x must be (..., length, embed_dim) and w (embed_dim, head_dim), with the same embed_dim; got "
            f"x={tuple(tokens.shape)}, w={tuple(matrix.shape)}."
        )
    check_matrix_size("x", tuple(tokens.shape[-2:]))
    check_matrix_size("w", tuple(matrix.shape))
    return Projection(tokens, matrix)


def projected_tensor(x: Projection | NumbersLike, name: str) -> Tensor:
    """Return the product of a `Projection`, or other numbers as a float tensor."""
    return x.product if isinstance(x, Projection) else as_float_tensor(x, name)


def as_float_tensor(values: NumbersLike, name: str) -> Tensor:
    """Return numbers as a float tensor: float arrays keep their dtype; lists and integers become float64."""
    tensor = as_tensor(values, name)
    return tensor if tensor.is_floating_point() and hasattr(values, "dtype") else _from_list(values, tensor)


def _from_list(values: NumbersLike, tensor: Tensor) -> Tensor:
    # by default torch converts a list of floats to float32, which rounds 0.1
    return tensor.double() if not tensor.is_floating_point() else torch.as_tensor(values, dtype=torch.float64)


def add_token_stages(builder: StageBuilder, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Add the tokens and matrices of Q, K and V, equal tokens once; return the code of each product."""
    added_tokens: list[tuple[Tensor, str]] = []
    product_code: dict[str, str] = {}
    for letter, projection in inputs.items():
        if not isinstance(projection, Projection):
            continue
        name = next((name for x, name in added_tokens if torch.equal(x, projection.x)), None)
        if name is None:
            name = f"X_{letter}" if added_tokens else "X"
            axes = ("query" if letter == "Q" else "key", "feature")
            builder.add(INPUT_TEMPLATES["tokens"], _add_head_dim(projection.x.double()), axes, name=name)
            added_tokens.append((projection.x, name))
        builder.add(
            INPUT_TEMPLATES["matrix"],
            projection.w.double(),
            ("row", "feature"),
            letter=letter,
            kind=INPUT_KINDS[letter],
        )
        product_code[letter] = f"{name} @ W_{letter}"
    return product_code


def _add_head_dim(x: Tensor) -> Tensor:
    """Reshape (..., length, embed_dim) to (batch, heads, length, embed_dim); a 3-D tensor has a batch and no heads."""
    return x.unsqueeze(-3) if x.dim() == 3 else x.flatten(0, -4) if x.dim() > 4 else x
