"""Every mechanism the library has: what it is, where it comes from, what it costs, how to call it, its witness."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from regard.argument_types import check_types
from regard.errors import SpecError


@dataclass(frozen=True)
class Mechanism:
    """One row of the catalogue.

    `formula` is LaTeX without dollar signs; `exact` says whether it computes what its paper defines, or softmax, and
    `about` in what way; `time` and `memory` how they grow with the length n and the width d, beyond inputs and output;
    `example` runs as it stands; `witness` names the test that holds it against something independent, and `note` what
    else there is to say of that.
    """

    family: str
    name: str
    formula: str
    paper: str
    exact: bool
    about: str
    time: str
    memory: str
    example: str
    witness: str
    note: str

    def __str__(self) -> str:
        rows = [
            ("formula", self.formula),
            ("paper", self.paper),
            ("exact" if self.exact else "approximate", self.about),
            ("time", self.time),
            ("memory", self.memory),
            ("witness", self.witness),
            *([("note", self.note)] if self.note else []),
        ]
        lines = [f"{title:<12} {text}" for title, text in rows]
        return "\n".join([self.name, *lines, "", *(f"    {line}" for line in self.example.splitlines())])


class Catalogue(tuple[Mechanism, ...]):
    """All of them, in the order of their families; prints itself as a table."""

    __slots__ = ()

    def named(self, name: str) -> Mechanism:
        """The one of this name, or the only one whose name has this in it."""
        found = [m for m in self if m.name.lower() == name.lower()] or [
            m for m in self if name.lower() in m.name.lower()
        ]
        if len(found) != 1:
            names = ", ".join(m.name for m in found or self)
            raise SpecError(f"a name must be that of one mechanism; got {name!r}. Choose one of: {names}.")
        return found[0]

    def families(self) -> Iterator[tuple[str, list[Mechanism]]]:
        for family in dict.fromkeys(m.family for m in self):
            yield family, [m for m in self if m.family == family]

    def __str__(self) -> str:
        width, growth = (
            max(len(text) for text in column) for column in ([m.name for m in self], [m.time for m in self])
        )
        lines: list[str] = []
        for family, members in self.families():
            lines += ["", family] if lines else [family]
            for m in members:
                kind = "exact" if m.exact else "approximate"
                lines.append(f"  {m.name:<{width}}  {kind:<11}  time {m.time:<{growth}}  memory {m.memory}".rstrip())
        return "\n".join(lines)


@cache
def mechanisms() -> Catalogue:
    """The catalogue: every mechanism with its formula, paper, growth, an example and its witness.

    >>> mechanisms().named("sparsemax").time
    'n^2 d'
    """
    text = files("regard.mechanism").joinpath("catalogue.toml").read_text(encoding="utf8")
    return Catalogue(Mechanism(**entry) for entry in tomllib.loads(text)["mechanism"])


@check_types
def markdown(catalogue: Catalogue) -> str:
    """The catalogue as a page: a table of all, then each with its formula and an example."""
    lines = [
        "# Mechanisms",
        "",
        "Every mechanism that regard has, made from [its catalogue](../src/regard/mechanism/catalogue.toml) by",
        "`regard mechanisms --markdown`. Time and memory say how they grow with the length n and the width d, memory",
        "beyond inputs and output. The examples on this page run in the tests, and each mechanism is held against",
        "something independent by the test named as its witness.",
        "",
        "| | exact | time | memory |",
        "|---|---|---|---|",
    ]
    for family, members in catalogue.families():
        lines.append(f"| **{family}** | | | |")
        lines += [f"| {m.name} | {'yes' if m.exact else 'no'} | {m.time} | {m.memory} |" for m in members]
    for family, members in catalogue.families():
        lines += ["", f"## {family.capitalize()}"]
        for m in members:
            lines += _section(m)
    return "\n".join(lines) + "\n"


def _section(m: Mechanism) -> list[str]:
    place, test = m.witness.split("::")
    words = f"{'Exact' if m.exact else 'Approximate'}: {m.about}."
    return [
        *("", f"### {m.name}", ""),
        *("```math", m.formula, "```", ""),
        f"{words} {m.paper}. Witness: [`{test}`](../{place}).{' ' + m.note if m.note else ''}",
        *("", "```python", *m.example.splitlines(), "```"),
    ]
