"""A formula: a term together with what it captures, ready to be joined with others and checked against lengths."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.errors import SpecError
from regard.spec.nodes import check_tensors
from regard.spec.regions import Lengths
from regard.spec.term import Kind, Term, renumber
from regard.spec.trace import trace_once

Start = int | Tensor


@dataclass(frozen=True, eq=False)
class FromLengths:
    """A tensor that is made once (batch, heads, n_q, n_k) are known."""

    make: Callable[[Lengths], Tensor]


@dataclass(frozen=True, eq=False)
class FromQueries:
    """A tensor that is made from the queries (batch, heads, n_q, width), differentiably; its shape from theirs."""

    make: Callable[[Tensor], Tensor]


Captured = Tensor | FromLengths | FromQueries
Check = Callable[[Lengths, Start], None]


@dataclass(frozen=True, eq=False)
class Formula:
    """A term and the tensors it looks things up in: look-up number n reads `tensors[n]`, printed as `names[n]`.

    `checks` refuse lengths that the tensors do not fit.
    """

    term: Term
    tensors: tuple[Captured, ...] = ()
    names: tuple[str, ...] = ()
    checks: tuple[Check, ...] = field(default=())
    named: ClassVar[Any] = None  # what it was made by, where that has a name; see `spec/named.py`

    def check(self, lengths: Lengths, start: Start) -> None:
        for check in self.checks:
            check(lengths, start)

    def resolved(self, lengths: Lengths, start: Start, queries: Tensor | None = None) -> tuple[Tensor, ...]:
        """The captured tensors, checked, and made where they waited for the lengths or the queries."""
        self.check(lengths, start)
        return tuple(_resolve(t, lengths, queries) for t in self.tensors)


def check_formula(term: Term, tensors: Sequence[Captured], names: Sequence[str], kind: Kind) -> None:
    """Refuses a formula that is not of this kind, or whose look-ups do not fit its captured tensors.

    A mask is of kind bool and cannot depend on the score.
    """
    if not isinstance(term, Term) or term.kind != kind:
        raise SpecError(f"the formula must be of kind {kind}; got {getattr(term, 'kind', type(term).__name__)}.")
    if kind == "bool" and "s" in term.depends:
        raise SpecError("the formula of a mask must not depend on the score s; got one that does.")
    if not all(isinstance(t, (Tensor, FromLengths, FromQueries)) for t in tensors):
        raise SpecError(f"a formula must capture tensors; got {sorted({type(t).__name__ for t in tensors})}.")
    if not all(isinstance(name, str) for name in names):
        raise SpecError(f"names of captured tensors must be strings; got {sorted({type(n).__name__ for n in names})}.")
    check_tensors(term, [(kind_of(t.dtype), t.dim()) if isinstance(t, Tensor) else None for t in tensors])


def kind_of(dtype: torch.dtype) -> Kind:
    """The kind of number that a look-up in a tensor of this dtype gives."""
    if dtype.is_complex or dtype == torch.uint64:
        raise SpecError(f"a captured tensor must hold booleans, floats or whole numbers up to 63 bits; got {dtype}.")
    return "bool" if dtype == torch.bool else "float" if dtype.is_floating_point else "int"


def _resolve(captured: Captured, lengths: Lengths, queries: Tensor | None) -> Tensor:
    if isinstance(captured, FromLengths):
        return captured.make(lengths)
    if isinstance(captured, FromQueries):
        assert queries is not None, "a mask does not see the queries"
        return captured.make(queries)
    return captured


def written(
    function: Callable[..., Any],
    *variables: str,
    names: Iterable[str] = (),
    checks: Iterable[Check] = (),
    later: tuple[Tensor, FromLengths | FromQueries] | None = None,
) -> Formula:
    """The formula that a function of these variables writes, one of regard's own.

    `later` is a stand-in tensor that the function captures and what takes its place when a call is read.
    """
    traced = trace_once(function, variables)
    stand_in, make = later or (None, None)
    tensors = tuple(make if make is not None and t is stand_in else t for t in traced.tensors)
    return Formula(traced.term, tensors, tuple(names) or traced.names, tuple(checks))


def gather(
    formulas: Iterable[Formula],
) -> tuple[list[Term], tuple[Captured, ...], tuple[str, ...], tuple[Check, ...]]:
    """Several formulas counted in one list of tensors; a tensor that several capture is counted once."""
    terms: list[Term] = []
    tensors: list[Captured] = []
    names: list[str] = []
    checks: list[Check] = []
    for formula in formulas:
        slots = {}
        for number, tensor in enumerate(formula.tensors):
            slots[number] = next((n for n, known in enumerate(tensors) if known is tensor), len(tensors))
            if slots[number] == len(tensors):
                tensors.append(tensor)
                names.append(_fresh(formula.names[number] if number < len(formula.names) else "t", names))
        terms.append(renumber(formula.term, slots))
        checks.extend(formula.checks)
    return terms, tuple(tensors), tuple(names), tuple(checks)


def _fresh(name: str, taken: list[str]) -> str:
    if name not in taken:
        return name
    return next(f"{name}{n}" for n in range(2, len(taken) + 3) if f"{name}{n}" not in taken)
