"""A stage of a worked computation: a tensor, its name, what it is in words, its formula, and code that makes it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from regard.worked.words import Said

PAIRS, ROWS = ("query", "key"), ("query",)
QUERIES, KEYS = ("query", "feature"), ("key", "feature")
NUMBER: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Stage:
    """One step: `values` are those of the batch element and head that are looked at, `whole` has all of them.

    `axes` name the dimensions of the values: query, key, feature, hidden, row. `formula` is plain text and `latex` the
    same without dollar signs. `code` are lines of torch that make the values from those before; where it is empty, the
    numbers themselves are written down.
    """

    name: str
    words: str
    formula: str
    latex: str
    axes: tuple[str, ...]
    whole: Tensor
    code: str = ""
    batch: int = 0
    head: int = 0

    @property
    def values(self) -> Tensor:
        """The numbers of one head, with one dimension for each of the axes."""
        batch, heads = self.whole.shape[:2]
        return self.whole[self.batch if batch > 1 else 0, self.head if heads > 1 else 0]

    @property
    def variable(self) -> str:
        """The name as code has it."""
        return as_variable(self.name)

    def at(self, batch: int, head: int) -> "Stage":
        """The same stage, with the values of another head."""
        return replace(self, batch=batch, head=head)


def as_variable(name: str) -> str:
    """A name as Python can have it.

    >>> as_variable("row maximum")
    'row_maximum'
    """
    return re.sub(r"\W", "_", name)


@dataclass(frozen=True, eq=False)
class Written:
    """The numbers of a stage, (batch, heads, ...), and what code calls them."""

    whole: Tensor
    name: str


class Sheet:
    """What a computation is written on, stage by stage."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []

    def put(
        self,
        said: Said,
        whole: Tensor,
        axes: tuple[str, ...],
        code: str | Callable[[str], str] = "",
        **fillings: object,
    ) -> Written:
        """Writes down a stage, with `fillings` for its words.

        `code` is an expression, or a function that makes lines of the name which they shall define; without any, the
        numbers are written down.
        """
        name, words, formula, latex = said.filled(fillings)
        name = self._fresh(name)
        variable = as_variable(name)
        lines = code(variable) if callable(code) else f"{variable} = {code}" if code else ""
        whole = whole[(None,) * (2 + len(axes) - whole.dim())]  # what all heads share has no dimensions of its own
        self.stages.append(Stage(name, words, formula, latex, axes, whole, lines))
        return Written(whole, variable)

    def _fresh(self, name: str) -> str:
        taken = {stage.name for stage in self.stages}
        return next(n for n in (name, *(f"{name} {count}" for count in range(2, len(taken) + 3))) if n not in taken)
