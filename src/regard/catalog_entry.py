"""`Mechanism`, an entry of the catalog, and `@normalizer_entry`, which declares the entry of a normalizer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


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
    example: str
    reference_test: str
    exact: bool = True
    exactness: str = "the definition"
    time_complexity: str = "n^2 d"
    memory_complexity: str = "n"
    note: str = ""

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


def example_program(options: str) -> str:
    """Return the program of an example: a call of `regard.attention` with these options.

    >>> example_program("mask=mask.causal()").splitlines()[-1]
    'o = regard.attention(q, k, v, mask=mask.causal())'
    """
    modules = ", ".join(name for name in ("mask", "normalizer", "score") if f"{name}." in options)
    return "\n".join(
        [
            *("import torch", "", "import regard", *([f"from regard import {modules}"] if modules else []), ""),
            "q, k, v = torch.randn(3, 1, 4, 256, 32)  # batch, heads, length, head_dim",
            f"o = regard.attention({', '.join(['q, k, v', *([options] if options else [])])})",
        ]
    )


NORMALIZER_ENTRIES: list[Mechanism] = []  # in the order of their declaration


def normalizer_entry(
    name: str,
    *,
    formula: str,
    paper: str,
    example: str,
    reference_test: str,
    exactness: str = Mechanism.exactness,
    time_complexity: str = Mechanism.time_complexity,
    note: str = "",
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare the catalog entry of a normalizer; `example` is a call of its constructor, such as "topk(16)".

    The other arguments are fields of `Mechanism`. The catalog lists the constructors of regard only.
    """
    program = example_program(f"normalizer=normalizer.{example}")
    entry = Mechanism(
        *("normalizers", name, formula, paper, program, reference_test),
        exactness=exactness,
        time_complexity=time_complexity,
        note=note,
    )

    def declare(constructor: Callable[P, R]) -> Callable[P, R]:
        if constructor.__module__.startswith("regard."):
            NORMALIZER_ENTRIES.append(entry)
        return constructor

    return declare
