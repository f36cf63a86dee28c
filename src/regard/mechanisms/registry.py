"""The catalog of mechanisms: formula, paper, complexity, an example and the reference test of each."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from regard.argument_types import check_types
from regard.cache import memoize
from regard.errors import ArgumentError


@dataclass(frozen=True)
class Mechanism:
    """One entry of the catalog.

    `formula` is LaTeX without dollar signs. `exact` is True if the mechanism computes its paper's definition, or
    softmax; `exactness` describes in what way. `time_complexity` and `memory_complexity` are functions of the length n
    and the head dimension d, memory beyond inputs and output. `example` is a complete program. `reference_test` is the
    pytest node id of the test against an independent implementation, and `note` describes that test's limits.
    """

    family: str
    name: str
    formula: str
    paper: str
    exact: bool
    exactness: str
    time_complexity: str
    memory_complexity: str
    example: str
    reference_test: str
    note: str

    def __str__(self) -> str:
        rows = [
            ("formula", self.formula),
            ("paper", self.paper),
            ("exact" if self.exact else "approximate", self.exactness),
            ("time", self.time_complexity),
            ("memory", self.memory_complexity),
            ("test", self.reference_test),
            *([("note", self.note)] if self.note else []),
        ]
        lines = [f"{title:<12} {text}" for title, text in rows]
        return "\n".join([self.name, *lines, "", *(f"    {line}" for line in self.example.splitlines())])


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
            raise ArgumentError(f"name must match exactly one mechanism, got {name!r}. Choose one of: {names}.")
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
    return Catalog(Mechanism(**entry) for entry in tomllib.loads(text)["mechanism"])


@check_types
def to_markdown(entries: Catalog) -> str:
    """Return the catalog as a Markdown page: a table of all mechanisms, then each with its formula and example."""
    lines = [
        "# Mechanisms",
        "",
        "Every mechanism of regard. `regard mechanisms --markdown` writes this page from",
        "[the catalog](../src/regard/mechanisms/catalog.toml). Time and memory are functions of the length n and the",
        "head dimension d; memory is counted beyond inputs and output. The examples run in the tests. The reference",
        "test of a mechanism compares it with an independent implementation.",
        "",
        "| | exact | time | memory |",
        "|---|---|---|---|",
    ]
    for family, members in entries.by_family():
        lines.append(f"| **{family}** | | | |")
        lines += [
            f"| {m.name} | {'yes' if m.exact else 'no'} | {m.time_complexity} | {m.memory_complexity} |"
            for m in members
        ]
    for family, members in entries.by_family():
        lines += ["", f"## {family.capitalize()}"]
        for m in members:
            lines += _section(m)
    return "\n".join(lines) + "\n"


def _section(mechanism: Mechanism) -> list[str]:
    path, test = mechanism.reference_test.split("::")
    exactness = f"{'Exact' if mechanism.exact else 'Approximate'}: {mechanism.exactness}."
    note = f" {mechanism.note}" if mechanism.note else ""
    return [
        *("", f"### {mechanism.name}", ""),
        *("```math", mechanism.formula, "```", ""),
        f"{exactness} {mechanism.paper}. Reference test: [`{test}`](../{path}).{note}",
        *("", "```python", *mechanism.example.splitlines(), "```"),
    ]
