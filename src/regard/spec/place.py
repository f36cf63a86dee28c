"""A part of a call as a call of its own: some queries and some keys, which know where they stand in the whole.

Formulas speak of positions, so a part is asked by moving these: i becomes `first + step·i`, and likewise j, h and p.
Whatever an engine can do, it can do with a part.
"""

from dataclasses import dataclass, replace
from typing import Any

from regard.spec.formula import FromQueries
from regard.spec.spec import Inputs, Origin, Question, Spec
from regard.spec.term import Term, apply, constant, lookup, slot_of, variable, walk


@dataclass(frozen=True)
class Places:
    """`count` positions: first, first + step, first + 2 step, ..."""

    first: int
    count: int
    step: int = 1

    def positions(self) -> range:
        return range(self.first, self.first + self.step * self.count, self.step)


def part(question: Question, inputs: Inputs, queries: Places, keys: Places, first_head: int = 0) -> tuple[Spec, Inputs]:
    """The part of a question at these places, whose rows `inputs` holds: q of those queries, k and v of those keys.

    What `inputs` looks up that was made from queries is that of those queries and heads. Heads count from `first_head`.
    """
    spec = question.spec
    local = frozenset(n for n, t in enumerate(question.formula.tensors) if isinstance(t, FromQueries))
    move = _Move(local, queries, keys, first_head, spec)
    parameter = spec.normaliser.parameter
    normaliser: Any = spec.normaliser
    asked = replace(
        spec,
        heads=inputs.q.shape[1],
        key_heads=inputs.k.shape[1],
        n_q=queries.count,
        n_k=keys.count,
        rule=None if spec.rule is None else move.term(spec.rule),
        mask=move.term(spec.mask),
        normaliser=normaliser if parameter is None else normaliser.given(move.term(parameter)),
        start=None if spec.start is None else spec.start + queries.first,
        tensors=tuple((tuple(t.shape), t.dtype) for t in inputs.tensors),
    )
    origin = Origin(first_head, queries.first, queries.step, keys.first, keys.step)
    return asked, replace(inputs, start=inputs.start + queries.first, origin=origin)


class _Move:
    """How the positions of a part are spelled in those of the whole."""

    def __init__(self, local: frozenset[int], queries: Places, keys: Places, first_head: int, spec: Spec) -> None:
        i, p = variable("i"), variable("p")
        self._local = local
        # p is start + i; the part's start already has `queries.first` in it
        behind = p if queries.step == 1 else apply("add", p, apply("mul", constant(queries.step - 1), i))
        self._places = {
            i: _affine(i, queries),
            variable("j"): _affine(variable("j"), keys),
            p: behind,
            variable("h"): apply("add", variable("h"), constant(first_head)),
            variable("n_q"): constant(spec.n_q),
            variable("n_k"): constant(spec.n_k),
        }

    def term(self, term: Term) -> Term:
        done: dict[Term, Term] = {}
        for node in walk(term):
            if node in self._places:
                done[node] = self._places[node]
            elif not node.args:
                done[node] = node
            elif node.op == "lookup":
                done[node] = lookup(slot_of(node), tuple(self._index(node, a, done) for a in node.args), node.kind)
            else:
                done[node] = apply(node.op, *(done[a] for a in node.args))
        return done[term]

    def _index(self, node: Term, index: Term, done: dict[Term, Term]) -> Term:
        """What was made from the part's own queries is looked up by their own numbers."""
        own = index in (variable("h"), variable("i")) and slot_of(node) in self._local
        return index if own else done[index]


def _affine(position: Term, places: Places) -> Term:
    stretched = position if places.step == 1 else apply("mul", constant(places.step), position)
    return apply("add", stretched, constant(places.first))
