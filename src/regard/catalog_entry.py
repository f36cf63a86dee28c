"""`Mechanism`, an entry of the catalog, and `@normalizer_entry`, which declares the entry of a normalizer."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

SUPERLINEAR = re.compile(r"n\^|\(n|n_q n_k")  # a power of the length, or a term in parentheses that starts with it


@dataclass(frozen=True)
class Mechanism:
    """One entry of the catalog.

    `idea` is one line. `formula` is LaTeX without dollar signs. `exact` is False if the mechanism approximates softmax
    attention; `exactness` describes in what way. `time_complexity` and `memory_complexity` are functions of the length
    n and the head dimension d, memory beyond inputs and output. `example` is a complete program. `reference_test` is
    the pytest node id of the test against an independent implementation, and `note` describes that test's limits.

    `causal` is True if there is a form in which later tokens have no effect on earlier outputs, `sparse` if some
    earlier keys have a weight of exactly 0, `learned` if there are parameters besides the projections of q, k and v.
    """

    family: str
    name: str
    idea: str
    formula: str
    paper: str
    example: str
    reference_test: str
    exact: bool = True
    exactness: str = "the definition"
    time_complexity: str = "n^2 d"
    memory_complexity: str = "n"
    note: str = ""
    causal: bool = True
    sparse: bool = False
    learned: bool = False

    @property
    def is_linear_time(self) -> bool:
        """True if the time is proportional to the length n, for fixed other sizes."""
        return SUPERLINEAR.search(self.time_complexity) is None

    @property
    def properties(self) -> dict[str, bool]:
        """Whether the mechanism has each property that the gallery filters by."""
        return {
            "causal": self.causal,
            "linear time": self.is_linear_time,
            "sparse": self.sparse,
            "learned": self.learned,
            "exact": self.exact,
        }

    def __str__(self) -> str:
        rows = [
            ("idea", self.idea),
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
    'o = attention(q, k, v, mask=mask.causal())'
    """
    modules = ["attention", *(name for name in ("mask", "normalizer", "score") if f"{name}." in options)]
    return "\n".join(
        [
            *("import torch", "", f"from regard import {', '.join(modules)}", ""),
            "q, k, v = torch.randn(3, 1, 4, 256, 32)  # batch, heads, length, head_dim",
            f"o = attention({', '.join(['q, k, v', *([options] if options else [])])})",
        ]
    )


NORMALIZER_ENTRIES: list[Mechanism] = []  # in the order of their declaration


def normalizer_entry(
    name: str,
    *,
    idea: str,
    formula: str,
    paper: str,
    example: str,
    reference_test: str,
    exactness: str = Mechanism.exactness,
    time_complexity: str = Mechanism.time_complexity,
    note: str = "",
    causal: bool = True,
    sparse: bool = False,
    learned: bool = False,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare the catalog entry of a normalizer; `example` is a call of its constructor, such as "topk(16)".

    The other arguments are fields of `Mechanism`. The catalog lists the constructors of regard only.
    """
    program = example_program(f"normalizer=normalizer.{example}")
    entry = Mechanism(
        *("normalizers", name, idea, formula, paper, program, reference_test),
        exactness=exactness,
        time_complexity=time_complexity,
        note=note,
        causal=causal,
        sparse=sparse,
        learned=learned,
    )

    def declare(constructor: Callable[P, R]) -> Callable[P, R]:
        if constructor.__module__.startswith("regard."):
            NORMALIZER_ENTRIES.append(entry)
        return constructor

    return declare
