"""The catalog of mechanisms: formula, paper, complexity, an example and the reference test of each."""

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from regard.cache import memoize
from regard.catalog_entry import NORMALIZER_ENTRIES, Mechanism, example_program
from regard.errors import ArgumentError


class Catalog(tuple[Mechanism, ...]):
    """All mechanisms, ordered by family; `print` shows them as a table."""

    __slots__ = ()

    def find(self, name: str) -> Mechanism:
        """Return the mechanism with this name, or the only one whose name contains it."""
        matches = [m for m in self if m.name.lower() == name.lower()] or [
            m for m in self if name.lower() in m.name.lower()
        ]
        if len(matches) != 1:
            names = ", ".join(m.name for m in matches or self)
            raise ArgumentError(f"name must match exactly one mechanism; got {name!r}. Choose one of: {names}.")
        return matches[0]

    def by_family(self) -> Iterator[tuple[str, list[Mechanism]]]:
        """Yield each family with its mechanisms."""
        for family in dict.fromkeys(m.family for m in self):
            yield family, [m for m in self if m.family == family]

    def __str__(self) -> str:
        width, growth = (
            max(len(text) for text in column) for column in ([m.name for m in self], [m.time_complexity for m in self])
        )
        lines: list[str] = []
        for family, members in self.by_family():
            lines += ["", family] if lines else [family]
            for m in members:
                kind = "exact" if m.exact else "approximate"
                complexity = f"time {m.time_complexity:<{growth}}  memory {m.memory_complexity}"
                lines.append(f"  {m.name:<{width}}  {kind:<11}  {complexity}".rstrip())
        return "\n".join(lines)


@memoize()
def catalog() -> Catalog:
    """Return the catalog: every mechanism with its formula, paper, complexity, example and reference test.

    >>> catalog().find("sparsemax").time_complexity
    'n^2 d'
    """
    text = files("regard.mechanisms").joinpath("catalog.toml").read_text(encoding="utf8")
    parsed = tomllib.loads(text)
    entries = [*(_from_toml(entry) for entry in parsed["mechanism"]), *NORMALIZER_ENTRIES]
    return Catalog(sorted(entries, key=lambda entry: parsed["families"].index(entry.family)))


def _from_toml(entry: dict[str, Any]) -> Mechanism:
    options = entry.pop("options", None)
    return Mechanism(**entry) if options is None else Mechanism(**entry, example=example_program(options))
