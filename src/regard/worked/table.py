"""Numbers as a table: the names of rows and columns, and every number as text, so that columns line up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.checks import whole_number
from regard.errors import SpecError
from regard.worked.stage import Stage

MAX_DIGITS = 50  # behind the point; a float64 has no more that mean anything
DIGITS = 4  # behind the point
MAX_DIGITS = 100
SEEN, HIDDEN = "█", "·"


@dataclass(frozen=True)
class Labels:
    """The names of queries and keys: tokens, or q0, q1 and k0, k1."""

    queries: tuple[str, ...]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, n_q: int, n_k: int, tokens: Sequence[str] | None, key_tokens: Sequence[str] | None) -> "Labels":
        """Names for so many queries and keys; the tokens of the queries are those of the keys if there are as many."""
        if key_tokens is None and tokens is not None and n_q == n_k:
            key_tokens = tokens
        return cls(_named("tokens", tokens, n_q, "q"), _named("key_tokens", key_tokens, n_k, "k"))

    def along(self, axis: str, count: int) -> tuple[str, ...]:
        """The names along an axis; numbers where it has none."""
        return {"query": self.queries, "key": self.keys}.get(axis) or tuple(str(n) for n in range(count))


def _named(what: str, tokens: Sequence[str] | None, count: int, letter: str) -> tuple[str, ...]:
    if tokens is None:
        return tuple(f"{letter}{n}" for n in range(count))
    if isinstance(tokens, str) or len(tokens) != count:
        raise SpecError(f"{what} must be a list of {count} names, one for each row; got {_said(tokens)}.")
    return tuple(_one_line(token) for token in tokens)


def _said(tokens: Sequence[str]) -> str:
    return f"the text {tokens!r}" if isinstance(tokens, str) else str(len(tokens))


def _one_line(token: str) -> str:
    """A token that cannot break a line or steer a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(token))


@dataclass(frozen=True)
class Grid:
    """A matrix of a stage: the names of its rows and columns (none, if they are only counted) and its texts."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    texts: list[list[str]]
    values: Tensor


def grids(stage: Stage, labels: Labels, digits: int = DIGITS) -> list[Grid]:
    """A stage as matrices: one, or for each query one where it has three axes. One axis is a column."""
    values, axes = stage.values, stage.axes
    names = [labels.along(axis, n) for axis, n in zip(axes, values.shape, strict=True)]
    shown = texts(values, whole_number(digits, "digits", at_least=0, at_most=MAX_DIGITS))
    if len(axes) == 3:
        title = [f"{axes[0]} {name}" for name in names[0]]
        found = zip(title, shown, values, strict=True)
        return [Grid(at, _rows(axes[1], names[1]), _columns(axes[2], names[2]), each, x) for at, each, x in found]
    if len(axes) == 2:
        return [Grid("", _rows(axes[0], names[0]), _columns(axes[1], names[1]), shown, values)]
    if len(axes) == 1:
        return [Grid("", _rows(axes[0], names[0]), (), [[text] for text in shown], values.unsqueeze(-1))]
    return [Grid("", (), (), [[shown]], values.reshape(1, 1))]


def _rows(axis: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return names if axis in ("query", "key") else tuple("" for _ in names)


def _columns(axis: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return names if axis == "key" else ()


def texts(values: Tensor, digits: int = DIGITS) -> Any:
    """Every number as text, in nested lists as the tensor's; all with as many digits as the longest needs.

    >>> texts(torch.tensor([0.5, 2.25, float("-inf")]))
    ['0.50', '2.25', '-∞']
    >>> texts(torch.tensor([1 / 3, 0.0, 1e-9]))
    ['0.3333', '0', '0.0000']
    """
    write = _writer(values, digits)

    def nested(part: Any) -> Any:
        return [nested(each) for each in part] if isinstance(part, list) else write(part)

    return nested(values.tolist())


def _writer(values: Tensor, digits: int) -> Any:
    whole_number(digits, "digits", at_least=0, at_most=MAX_DIGITS)
    if values.dtype == torch.bool:
        return lambda x: SEEN if x else HIDDEN
    finite = values[values.isfinite()].double()
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    if largest >= 10.0**7 or 0.0 < largest < 10.0**-digits:
        return lambda x: _special(x) or f"{x:.{digits}g}"
    needed = next((d for d in range(digits) if bool(_is_whole(finite * 10.0**d).all())), digits)
    return lambda x: _special(x) or _fixed(x, needed)


def _is_whole(x: Tensor) -> Tensor:
    # 0.1 + 0.2 is 0.3 to a reader
    return (x - x.round()).abs() <= 1e-9 * x.abs().clamp(min=1.0)


def _special(x: float) -> str:
    """What is no number to be rounded; an exact zero is shown as one, and not as a small number."""
    if x != x:
        return "nan"
    return {float("inf"): "∞", float("-inf"): "-∞", 0.0: "0"}.get(x, "")


def _fixed(x: float, digits: int) -> str:
    text = f"{x:.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.") else text
