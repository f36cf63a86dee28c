"""The parameters of a request, which are untrusted: each is checked when it is read."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from regard.errors import ArgumentError

MAX_LIST_LENGTH = 4096


class Params:
    """The parameters of a request to the endpoint `name`.

    Each method returns the checked value of `key`, or `default` if it is missing. An invalid value, or a missing value
    without a default, raises `ArgumentError`.
    """

    def __init__(self, name: str, values: Any) -> None:
        if not isinstance(values, Mapping):
            raise ArgumentError(f"the parameters of {name} must be an object; got {type(values).__name__}.")
        self.name, self._values = name, values

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def integer(self, key: str, minimum: int, maximum: int, default: int | None = None) -> int:
        """Return an integer from `minimum` to `maximum`."""
        value = self._values.get(key)
        value = default if value is None else value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise ArgumentError(f"{key} must be an integer from {minimum} to {maximum}; got {_abbreviate(value)}.")
        return value

    def integers(self, key: str, minimum: int, maximum: int, default: Sequence[int] | None = None) -> list[int]:
        """Return a list of distinct integers from `minimum` to `maximum`, at least one."""
        values = self._values.get(key)
        if values is None and default is not None:
            return list(default)
        if not isinstance(values, list) or not 0 < len(values) <= MAX_LIST_LENGTH:
            raise ArgumentError(f"{key} must be a list of 1 to {MAX_LIST_LENGTH} integers; got {_abbreviate(values)}.")
        return list(dict.fromkeys(Params(self.name, {key: value}).integer(key, minimum, maximum) for value in values))

    def number(self, key: str, minimum: float, maximum: float, default: float | None = None) -> float:
        """Return a finite number from `minimum` to `maximum`."""
        value = self._values.get(key)
        value = default if value is None else value
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not minimum <= value <= maximum:  # type: ignore[operator]  # not None if it is a number
            raise ArgumentError(f"{key} must be a number from {minimum:g} to {maximum:g}; got {_abbreviate(value)}.")
        return float(value)  # type: ignore[arg-type]  # not None, see above

    def text(self, key: str, max_length: int, default: str | None = None) -> str:
        """Return a string of at most `max_length` characters."""
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise ArgumentError(f"{key} must be a string; got {_abbreviate(value)}.")
        if len(value) > max_length:
            raise ArgumentError(
                f"{key} must have at most {max_length:,} characters; got {len(value):,}. Use a part of it."
            )
        return value

    def boolean(self, key: str, default: bool) -> bool:
        value = self._values.get(key)
        if value is not None and not isinstance(value, bool):
            raise ArgumentError(f"{key} must be true or false; got {_abbreviate(value)}.")
        return default if value is None else value

    def raw(self, key: str) -> Any:
        """Return the unchecked value; None if it is missing."""
        return self._values.get(key)


def _abbreviate(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
