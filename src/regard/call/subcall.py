"""A part of a call as a call of its own: some queries and some keys, at their positions in the whole call.

Expressions depend on positions, so the part's expressions substitute i by `start + step·i`, and likewise j, h and p.
Any backend can run the part.
"""

from dataclasses import dataclass, replace

from regard.call.spec import BackendInputs, CallSpec, DropoutOrigin, ParsedCall
from regard.expr.closed_expr import TensorFromQueries
from regard.expr.ir import Expr, apply, constant, lookup, slot_of, substitute, variable, walk


@dataclass(frozen=True)
class StridedRange:
    """`count` positions: start, start + step, start + 2 step, ..."""

    start: int
    count: int
    step: int = 1

    def to_range(self) -> range:
        return range(self.start, self.start + self.step * self.count, self.step)


def make_subcall(
    call: ParsedCall, inputs: BackendInputs, queries: StridedRange, keys: StridedRange, head_offset: int = 0
) -> tuple[CallSpec, BackendInputs]:
    """The spec and inputs of the part of a call with these queries and keys.

    `inputs` holds the rows of the part: q of its queries, k and v of its keys. Captured tensors that are computed from
    the queries are those of its queries and heads. `head_offset` is the part's first head in the whole call.
    """
    spec = call.spec
    query_slots = frozenset(n for n, t in enumerate(call.closed_expr.tensors) if isinstance(t, TensorFromQueries))
    substitution = _IndexSubstitution(query_slots, queries, keys, head_offset, spec)
    parameter, normalizer = spec.normalizer.parameter, spec.normalizer
    part = replace(
        spec,
        num_heads=inputs.q.shape[1],
        num_kv_heads=inputs.k.shape[1],
        n_q=queries.count,
        n_k=keys.count,
        score_mod=None if spec.score_mod is None else substitution.apply(spec.score_mod),
        mask=substitution.apply(spec.mask),
        normalizer=normalizer if parameter is None else normalizer.with_parameter(substitution.apply(parameter)),
        query_offset=None if spec.query_offset is None else spec.query_offset + queries.start,
        captured_specs=tuple((tuple(t.shape), t.dtype) for t in inputs.tensors),
    )
    origin = DropoutOrigin(head_offset, queries.start, queries.step, keys.start, keys.step)
    return part, replace(inputs, query_offset=inputs.query_offset + queries.start, dropout_origin=origin)


class _IndexSubstitution:
    """Replaces the positions of a part by its positions in the whole call."""

    def __init__(
        self,
        query_slots: frozenset[int],
        queries: StridedRange,
        keys: StridedRange,
        head_offset: int,
        spec: CallSpec,
    ) -> None:
        i, p = variable("i"), variable("p")
        self._query_slots = query_slots
        # p is query_offset + i, and the part's query_offset already includes `queries.start`
        position = p if queries.step == 1 else apply("add", p, apply("mul", constant(queries.step - 1), i))
        self._replacements = {
            i: _strided_index(i, queries),
            variable("j"): _strided_index(variable("j"), keys),
            p: position,
            variable("h"): apply("add", variable("h"), constant(head_offset)),
            variable("n_q"): constant(spec.n_q),
            variable("n_k"): constant(spec.n_k),
        }

    def apply(self, expr: Expr) -> Expr:
        lookups = (node for node in walk(expr) if node.op == "lookup" and slot_of(node) in self._query_slots)
        return substitute(expr, {**self._replacements, **{node: self._local_lookup(node) for node in lookups}})

    def _local_lookup(self, node: Expr) -> Expr:
        """A tensor computed from the part's queries is indexed by the part's own heads and queries."""
        local = (variable("h"), variable("i"))
        indices = (a if a in local else substitute(a, self._replacements) for a in node.args)
        return lookup(slot_of(node), tuple(indices), node.kind)


def _strided_index(position: Expr, index_range: StridedRange) -> Expr:
    scaled = position if index_range.step == 1 else apply("mul", constant(index_range.step), position)
    return apply("add", scaled, constant(index_range.start))
