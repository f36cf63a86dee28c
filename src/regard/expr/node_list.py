"""Expressions as flat lists of nodes, the form in which they are stored, sent to other processes and compared.

Each node is a tuple: `("constant", value)`, `("variable", name)`, `("lookup", slot, kind, arguments)` or
`(operation, arguments)`. Arguments are indices of earlier nodes. The last node is the expression. Shared
subexpressions are listed once.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from regard.errors import ArgumentError
from regard.expr.ir import (
    ARITHMETIC,
    BITWISE,
    CASTS,
    COMPARISONS,
    ELEMENTARY_FUNCTIONS,
    KIND_PRESERVING,
    VARIABLES,
    WRAP_RANGES,
    Expr,
    ScalarKind,
    apply,
    constant,
    lookup,
    slot_of,
    tree_sizes,
    variable,
    walk,
)

NodeTuple = tuple[Any, ...]

MAX_NODES = 20_000  # of a stored expression
MAX_TENSOR_DIMS = 64  # limit of torch
MAX_REPR_NODES = 100

ARITY: dict[str, int] = {
    **dict.fromkeys(ARITHMETIC | BITWISE | COMPARISONS | {"and", "or", "xor", "div"}, 2),
    **dict.fromkeys(ELEMENTARY_FUNCTIONS | KIND_PRESERVING | {*CASTS, *WRAP_RANGES, "not", "exact"}, 1),
    "where": 3,
}


def to_nodes(expr: Expr) -> tuple[NodeTuple, ...]:
    """Return the nodes of an expression, arguments before the nodes that use them."""
    positions: dict[Expr, int] = {}
    nodes: list[NodeTuple] = []
    for node in walk(expr):
        arguments = tuple(positions[a] for a in node.args)
        positions[node] = len(nodes)
        if node.op in ("constant", "variable"):
            nodes.append((node.op, node.value))
        elif node.op == "lookup":
            nodes.append((node.op, node.value, node.kind, arguments))
        else:
            nodes.append((node.op, arguments))
    return tuple(nodes)


def from_nodes(nodes: Sequence[Any]) -> Expr:
    """Return the expression of a list of nodes. An invalid list raises an `ArgumentError`.

    Whether lookups fit the captured tensors is checked by `check_lookups`.
    """
    if not isinstance(nodes, (list, tuple)) or not 0 < len(nodes) <= MAX_NODES:
        got = f"{len(nodes)} nodes" if isinstance(nodes, (list, tuple)) else type(nodes).__name__
        raise ArgumentError(f"a stored expression must be a list of 1 to {MAX_NODES} nodes; got {got}.")
    exprs: list[Expr] = []
    for node in nodes:
        exprs.append(_parse_node(node, exprs))
    return exprs[-1]


def _parse_node(node: Any, exprs: list[Expr]) -> Expr:
    if not isinstance(node, (list, tuple)) or not node or not isinstance(node[0], str):
        raise ArgumentError(
            f"a node of a stored expression must be a list that begins with an operation; got {_abbreviate(node)}."
        )
    op, *content = node
    if op in _LEAF_PARSERS:
        return _LEAF_PARSERS[op](content, exprs)
    if op not in ARITY:
        raise ArgumentError(f"a stored expression must use operations of regard; got {_abbreviate(op)}.")
    if len(content) != 1:
        raise ArgumentError(f"a node {op} must hold its arguments; got {_abbreviate(node)}.")
    return apply(op, *_parse_arguments(op, content[0], exprs, ARITY[op], ARITY[op]))


def _parse_arguments(op: str, indices: Any, exprs: list[Expr], min_count: int, max_count: int) -> tuple[Expr, ...]:
    if not isinstance(indices, (list, tuple)) or not min_count <= len(indices) <= max_count:
        count = f"{min_count}" if min_count == max_count else f"{min_count} to {max_count}"
        raise ArgumentError(f"a node {op} must have {count} arguments; got {_abbreviate(indices)}.")
    if not all(_is_int(n) and 0 <= n < len(exprs) for n in indices):
        raise ArgumentError(
            f"arguments of {op} must be nodes listed before it, 0 to {len(exprs) - 1}; got {_abbreviate(indices)}."
        )
    return tuple(exprs[n] for n in indices)


def _parse_constant(content: list[Any], exprs: list[Expr]) -> Expr:
    if len(content) != 1 or not isinstance(content[0], (bool, int, float)):
        raise ArgumentError(f"a constant in a stored expression must be one number; got {_abbreviate(content)}.")
    return constant(content[0])


def _parse_variable(content: list[Any], exprs: list[Expr]) -> Expr:
    if len(content) != 1 or not isinstance(content[0], str) or content[0] not in VARIABLES:
        raise ArgumentError(
            f"a variable in a stored expression must be one of {', '.join(VARIABLES)}; got {_abbreviate(content)}."
        )
    return variable(content[0])


def _parse_lookup(content: list[Any], exprs: list[Expr]) -> Expr:
    if len(content) != 3:
        raise ArgumentError(
            f"a lookup in a stored expression must have a slot, a kind and indices; got {_abbreviate(content)}."
        )
    slot, kind, arguments = content
    if not _is_int(slot) or slot < 0:
        raise ArgumentError(f"the slot of a lookup must be 0 or more; got {_abbreviate(slot)}.")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ArgumentError(f"the kind of a lookup must be bool, int or float; got {_abbreviate(kind)}.")
    indices = _parse_arguments("lookup", arguments, exprs, 0, MAX_TENSOR_DIMS)
    if any(index.kind != "int" for index in indices):
        raise ArgumentError(f"an index of a lookup must be an integer; got {[index.kind for index in indices]}.")
    return lookup(slot, indices, _KINDS[kind])


_KINDS: dict[str, ScalarKind] = {"bool": "bool", "int": "int", "float": "float"}
_LEAF_PARSERS: dict[str, Callable[[list[Any], list[Expr]], Expr]] = {
    "constant": _parse_constant,
    "variable": _parse_variable,
    "lookup": _parse_lookup,
}


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _abbreviate(value: Any) -> str:
    """Return a text of at most 60 characters for a value of any size."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (list, tuple)) and len(value) > 8:
        return f"a list of {len(value)}"
    if isinstance(value, (list, tuple)):
        items = (type(x).__name__ if isinstance(x, (list, tuple, dict)) else _abbreviate(x) for x in value)
        return f"[{', '.join(items)}]"
    if isinstance(value, dict):
        return f"a dict of {len(value)}"
    text = repr(value[:50]) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def digest(expr: Expr) -> str:
    """Return a hash of 16 hexadecimal digits: equal for equal expressions, in every process."""
    return hashlib.sha256(repr(to_nodes(expr)).encode()).hexdigest()[:16]


def nested_calls(expr: Expr) -> str:
    """Return an expression as nested calls; a large one as its size and digest."""
    if tree_sizes(expr)[expr] > MAX_REPR_NODES:
        return f"<{expr.op} of {sum(1 for _ in walk(expr))} nodes, {digest(expr)}>"
    texts: dict[Expr, str] = {}
    for node in walk(expr):
        value = [] if node.value is None else [repr(node.value)]
        texts[node] = f"{node.op}({', '.join(value + [texts[a] for a in node.args])})"
    return texts[expr]


def check_lookups(expr: Expr, tensor_kinds: Sequence[tuple[ScalarKind, int] | None]) -> None:
    """Check that the lookups of an expression fit the captured tensors, given as (kind, number of dimensions).

    None stands for a deferred tensor, which is not checked.
    """
    for node in walk(expr):
        if node.op != "lookup":
            continue
        slot = slot_of(node)
        if slot >= len(tensor_kinds):
            raise ArgumentError(
                f"the slot of a lookup must be below {len(tensor_kinds)}, the number of captured tensors; got {slot}."
            )
        expected = tensor_kinds[slot]
        if expected is not None and expected != (node.kind, len(node.args)):
            raise ArgumentError(
                f"a lookup in captured tensor {slot} must have the kind {expected[0]} and {expected[1]} indices; got "
                f"{node.kind} and {len(node.args)}."
            )
