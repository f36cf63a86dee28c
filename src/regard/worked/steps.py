"""`regard.steps`: attention with every number between the inputs and the output on the table."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.errors import SpecError
from regard.spec.read import read
from regard.worked.call import called
from regard.worked.follow import follow
from regard.worked.page import html_of, page_of
from regard.worked.plain import text_of
from regard.worked.program import code_of, program_of
from regard.worked.projection import product
from regard.worked.stage import Stage
from regard.worked.table import DIGITS, Labels
from regard.worked.tex import latex_of


@check_types
def steps(
    q: Any,
    k: Any,
    v: Any,
    *,
    score: Any = None,
    mask: Any = None,
    weigh: Any = None,
    value: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
    start: Any = None,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
) -> "Steps":
    """Every intermediate of `attention`, in float64: print it, show it in a notebook, or ask for a stage by its name.

    The arguments are those of `attention`; lists of numbers do as well, and `projected(x, w)` in the place of q, k or v
    shows how they are made of tokens. `tokens` name the queries and, unless `key_tokens` do, the keys. A call with more
    numbers than can be read is refused.

    >>> found = steps([[1, 0], [0, 2]], [[1, 0], [0, 1]], [[1.0], [0.0]], tokens=["to", "be"])
    >>> print(found[["weights"]])
    weights: each divided by the sum of its row: the weights
      a_ij = exp(s_ij - m_i) / z_i
              to     be
      to  0.6698 0.3302
      be  0.1956 0.8044
    """
    given = {"Q": q, "K": k, "V": v}
    plain = _one_dtype([product(x, letter.lower()) for letter, x in given.items()])
    asked = read(*plain, score=score, mask=mask, weigh=weigh, value=value, dropout=dropout, seed=seed, start=start)
    call = called(asked)
    labels = Labels.of(asked.spec.n_q, asked.spec.n_k, tokens, key_tokens)
    with torch.no_grad():
        stages = follow(call, given, called(read(*plain, score=score, start=start)).v)
    return Steps(tuple(stages), labels, asked.spec.formula, asked.start, asked.seed)


def _one_dtype(plain: list[Tensor]) -> list[Tensor]:
    """Numbers that were typed join those of a tensor in float64."""
    return plain if len({x.dtype for x in plain}) == 1 else [x.double() for x in plain]


@dataclass(frozen=True, eq=False)
class Steps(Sequence[Stage]):
    """The stages of one call, in order: `steps["weights"].values`, `steps[-1]`, `for stage in steps`.

    `steps[["Q", "weights"]]` are some of them. `str` gives text, a notebook shows HTML. Of several heads one is shown;
    `at` shows another.
    """

    stages: tuple[Stage, ...]
    labels: Labels
    formula: str
    start: int | Tensor
    seed: int

    @overload
    def __getitem__(self, which: int | str) -> Stage: ...
    @overload
    def __getitem__(self, which: slice | list[str]) -> "Steps": ...
    def __getitem__(self, which: int | str | slice | list[str]) -> "Stage | Steps":
        if isinstance(which, slice):
            return replace(self, stages=self.stages[which])
        if isinstance(which, list):
            return replace(self, stages=tuple(self._named(name) for name in which))
        return self._named(which) if isinstance(which, str) else self.stages[which]

    def _named(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise SpecError(f"a stage must be one of {', '.join(self.names)}; got {name!r}.")

    def __len__(self) -> int:
        return len(self.stages)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages)

    @property
    def names(self) -> list[str]:
        """The names of all stages."""
        return [stage.name for stage in self.stages]

    @property
    def sizes(self) -> tuple[int, int]:
        """How many batch elements and heads there are."""
        shapes = [stage.whole.shape for stage in self.stages]
        return max(s[0] for s in shapes), max(s[1] for s in shapes)

    @check_types
    def at(self, batch: int = 0, head: int = 0) -> "Steps":
        """The same computation, showing another batch element and head."""
        batches, heads = self.sizes
        if not (0 <= batch < batches and 0 <= head < heads):
            raise SpecError(
                f"batch must be from 0 to {batches - 1} and head from 0 to {heads - 1}; got batch={batch}, head={head}."
            )
        return replace(self, stages=tuple(stage.at(batch, head) for stage in self.stages))

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"Steps({self.formula}: {', '.join(self.names)})"

    @check_types
    def text(self, digits: int = DIGITS) -> str:
        """Every stage as aligned matrices, with so many digits behind the point."""
        return text_of(self.stages, self.labels, digits)

    @check_types
    def latex(self, digits: int = DIGITS) -> str:
        """Every stage as a line of amsmath's `align*`."""
        return latex_of(self.stages, self.labels, digits)

    @check_types
    def html(self, digits: int = DIGITS) -> str:
        """A page of its own, which needs nothing from elsewhere."""
        return page_of(self.stages, self.labels, self.formula, digits)

    def _repr_html_(self) -> str:
        return html_of(self.stages, self.labels, self.formula)

    def code(self) -> str:
        """Lines of torch, without regard, that give every stage of the head shown and end with `output`."""
        return program_of(self.stages, self.start, len(self.labels.queries), len(self.labels.keys))

    def as_dict(self) -> dict[str, Any]:
        """Everything about the head shown as JSON can say it; "inf", "-inf" and "nan" are texts."""
        batch, head = (self.stages[0].batch, self.stages[0].head) if self.stages else (0, 0)
        return {
            "formula": self.formula,
            "batch": batch,
            "head": head,
            "queries": list(self.labels.queries),
            "keys": list(self.labels.keys),
            "stages": [_spoken(stage) for stage in self.stages],
        }

    def json(self) -> str:
        """The same as text."""
        return json.dumps(self.as_dict(), indent=1, ensure_ascii=False)


def _spoken(stage: Stage) -> dict[str, Any]:
    return {
        "name": stage.name,
        "words": stage.words,
        "formula": stage.formula,
        "latex": stage.latex,
        "code": code_of(stage),
        "axes": list(stage.axes),
        "shape": list(stage.values.shape),
        "values": _sayable(stage.values.tolist()),
    }


def _sayable(part: Any) -> Any:
    if isinstance(part, list):
        return [_sayable(each) for each in part]
    is_finite = isinstance(part, bool) or abs(part) < float("inf")
    return part if is_finite else str(part)
