"""Tables of stages: labels of rows and columns, and numbers formatted so that columns line up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.checks import integer
from regard.errors import ArgumentError
from regard.walkthrough.stage import Stage

DEFAULT_DECIMALS = 4
MAX_DECIMALS = 100
VISIBLE_MARK, HIDDEN_MARK = "█", "·"


@dataclass(frozen=True)
class AxisLabels:
    """The labels of queries and keys: tokens, or q0, q1, ... and k0, k1, ..."""

    queries: tuple[str, ...]
    keys: tuple[str, ...]

    @classmethod
    def from_tokens(
        cls, n_q: int, n_k: int, tokens: Sequence[str] | None, key_tokens: Sequence[str] | None
    ) -> "AxisLabels":
        """Return the labels of `n_q` queries and `n_k` keys; `tokens` also label the keys if n_q equals n_k."""
        if key_tokens is None and tokens is not None and n_q == n_k:
            key_tokens = tokens
        return cls(_position_labels("tokens", tokens, n_q, "q"), _position_labels("key_tokens", key_tokens, n_k, "k"))

    def for_axis(self, axis: str, count: int) -> tuple[str, ...]:
        """Return the labels along an axis; numbers if the axis has none."""
        return {"query": self.queries, "key": self.keys}.get(axis) or tuple(str(n) for n in range(count))


def _position_labels(argument_name: str, tokens: Sequence[str] | None, count: int, letter: str) -> tuple[str, ...]:
    if tokens is None:
        return tuple(f"{letter}{n}" for n in range(count))
    if isinstance(tokens, str) or len(tokens) != count:
        raise ArgumentError(
            f"{argument_name} must be a list of {count} strings, one for each row; got {_describe_tokens(tokens)}."
        )
    return tuple(_escape_token(token) for token in tokens)


def _describe_tokens(tokens: Sequence[str]) -> str:
    return f"the string {tokens!r}" if isinstance(tokens, str) else str(len(tokens))


def _escape_token(token: str) -> str:
    """Escape characters that would break a line or control a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(token))


@dataclass(frozen=True)
class LabeledMatrix:
    """A matrix of a stage: labels of rows and columns (empty if they only count), cells as text, and values."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: list[list[str]]
    values: Tensor


def labeled_matrices(stage: Stage, labels: AxisLabels, digits: int = DEFAULT_DECIMALS) -> list[LabeledMatrix]:
    """Return the matrices of a stage: one, or one per query for a stage with three axes. One axis gives a column."""
    values, axes = stage.values, stage.axes
    names = [labels.for_axis(axis, n) for axis, n in zip(axes, values.shape, strict=True)]
    cells = format_numbers(values, integer(digits, "digits", at_least=0, at_most=MAX_DECIMALS))
    if len(axes) == 3:
        titles = [f"{axes[0]} {name}" for name in names[0]]
        rows, columns = _row_labels(axes[1], names[1]), _column_labels(axes[2], names[2])
        return [
            LabeledMatrix(title, rows, columns, matrix_cells, matrix)
            for title, matrix_cells, matrix in zip(titles, cells, values, strict=True)
        ]
    if len(axes) == 2:
        return [LabeledMatrix("", _row_labels(axes[0], names[0]), _column_labels(axes[1], names[1]), cells, values)]
    if len(axes) == 1:
        return [LabeledMatrix("", _row_labels(axes[0], names[0]), (), [[text] for text in cells], values.unsqueeze(-1))]
    return [LabeledMatrix("", (), (), [[cells]], values.reshape(1, 1))]


def _row_labels(axis: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return names if axis in ("query", "key") else tuple("" for _ in names)


def _column_labels(axis: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return names if axis == "key" else ()


def format_numbers(values: Tensor, digits: int = DEFAULT_DECIMALS) -> Any:
    """Format a tensor as nested lists of strings; all numbers have as many decimals as the longest one needs.

    >>> format_numbers(torch.tensor([0.5, 2.25, float("-inf")]))
    ['0.50', '2.25', '-∞']
    >>> format_numbers(torch.tensor([1 / 3, 0.0, 1e-9]))
    ['0.3333', '0', '0.0000']
    """
    format_number = _number_formatter(values, digits)

    def format_nested(value: Any) -> Any:
        return [format_nested(item) for item in value] if isinstance(value, list) else format_number(value)

    return format_nested(values.tolist())


def _number_formatter(values: Tensor, digits: int) -> Any:
    integer(digits, "digits", at_least=0, at_most=MAX_DECIMALS)
    if values.dtype == torch.bool:
        return lambda x: VISIBLE_MARK if x else HIDDEN_MARK
    finite = values[values.isfinite()].double()
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    if largest >= 10.0**7 or 0.0 < largest < 10.0**-digits:
        return lambda x: _format_special(x) or f"{x:.{digits}g}"
    needed = next((d for d in range(digits) if bool(_is_nearly_integer(finite * 10.0**d).all())), digits)
    return lambda x: _format_special(x) or _format_fixed(x, needed)


def _is_nearly_integer(x: Tensor) -> Tensor:
    # 0.1 + 0.2 is printed as 0.3
    return (x - x.round()).abs() <= 1e-9 * x.abs().clamp(min=1.0)


def _format_special(x: float) -> str:
    """Return the text of nan, infinities and exact zeros, which are not rounded; else an empty string."""
    if x != x:
        return "nan"
    return {float("inf"): "∞", float("-inf"): "-∞", 0.0: "0"}.get(x, "")


def _format_fixed(x: float, digits: int) -> str:
    text = f"{x:.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.") else text
