"""The parameters of a question, which come from outside: each is checked when it is read."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from regard.errors import SpecError

MANY = 4096  # entries of a list of places


class Asked:
    """The parameters of the question `name`. Each method gives one of them, or refuses with a sentence."""

    def __init__(self, name: str, given: Any) -> None:
        if not isinstance(given, Mapping):
            raise SpecError(f"the parameters of {name} must be an object; got {type(given).__name__}.")
        self.name, self._given = name, given

    def has(self, key: str) -> bool:
        return self._given.get(key) is not None

    def whole(self, key: str, least: int, most: int, default: int | None = None) -> int:
        """A whole number from `least` to `most`."""
        value = self._given.get(key)
        value = default if value is None else value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise SpecError(f"{key} must be a whole number from {least} to {most}; got {_short(value)}.")
        return value

    def wholes(self, key: str, least: int, most: int, default: Sequence[int] | None = None) -> list[int]:
        """A list of at least one of them, each once."""
        values = self._given.get(key)
        if values is None and default is not None:
            return list(default)
        if not isinstance(values, list) or not 0 < len(values) <= MANY:
            raise SpecError(f"{key} must be a list of 1 to {MANY} whole numbers; got {_short(values)}.")
        return list(dict.fromkeys(Asked(self.name, {key: each}).whole(key, least, most) for each in values))

    def number(self, key: str, least: float, most: float, default: float | None = None) -> float:
        value = self._given.get(key)
        value = default if value is None else value
        ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not ok or not least <= value <= most:  # type: ignore[operator]  # a number, by the line before
            raise SpecError(f"{key} must be a number from {least:g} to {most:g}; got {_short(value)}.")
        return float(value)  # type: ignore[arg-type]  # the same

    def text(self, key: str, most: int, default: str | None = None) -> str:
        """A text of at most so many characters."""
        value = self._given.get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise SpecError(f"{key} must be a text; got {_short(value)}.")
        if len(value) > most:
            raise SpecError(f"{key} must have at most {most:,} characters; got {len(value):,}. Take a part of it.")
        return value

    def truth(self, key: str, default: bool) -> bool:
        value = self._given.get(key)
        if value is not None and not isinstance(value, bool):
            raise SpecError(f"{key} must be true or false; got {_short(value)}.")
        return default if value is None else value

    def any(self, key: str) -> Any:
        """As it was given; who reads it checks it."""
        return self._given.get(key)


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 60 else f"{said[:57]}..."
