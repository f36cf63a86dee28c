"""Reading a term: as a flat list of its nodes, which is how a formula is stored, sent to another process and compared.

Each node is a tuple: `("constant", value)`, `("variable", name)`, `("lookup", slot, kind, arguments)` or
`(operation, arguments)`. Arguments are numbers of earlier nodes. The last node is the formula. Shared parts are listed
once, so the list is as long as the formula is large, however often its parts occur.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from regard.errors import SpecError
from regard.spec.term import (
    ARITHMETIC,
    BITWISE,
    CASTS,
    COMPARISONS,
    SAME_KIND,
    SMOOTH,
    VARIABLES,
    WRAPS,
    Kind,
    Term,
    apply,
    constant,
    lookup,
    slot_of,
    tree_sizes,
    variable,
    walk,
)

Node = tuple[Any, ...]

MAX_NODES = 20_000  # of a formula that is stored or sent
MAX_INDICES = 64  # dimensions of a torch tensor
MAX_SHOWN = 100  # nodes that are printed

ARITY: dict[str, int] = {
    **dict.fromkeys(ARITHMETIC | BITWISE | COMPARISONS | {"and", "or", "xor", "div"}, 2),
    **dict.fromkeys(SMOOTH | SAME_KIND | {*CASTS, *WRAPS, "not", "exact"}, 1),
    "where": 3,
}


def to_nodes(term: Term) -> tuple[Node, ...]:
    """The nodes of a formula, arguments before the nodes that use them."""
    places: dict[Term, int] = {}
    nodes: list[Node] = []
    for node in walk(term):
        arguments = tuple(places[a] for a in node.args)
        places[node] = len(nodes)
        if node.op in ("constant", "variable"):
            nodes.append((node.op, node.value))
        elif node.op == "lookup":
            nodes.append((node.op, node.value, node.kind, arguments))
        else:
            nodes.append((node.op, arguments))
    return tuple(nodes)


def from_nodes(nodes: Sequence[Any]) -> Term:
    """The formula of a list of nodes, built and checked by the constructors of terms; refuses any other list.

    Slots and kinds of look-ups must fit the captured tensors: `Formula` checks them, since it has the tensors.
    """
    if not isinstance(nodes, (list, tuple)) or not 0 < len(nodes) <= MAX_NODES:
        got = f"{len(nodes)} nodes" if isinstance(nodes, (list, tuple)) else type(nodes).__name__
        raise SpecError(f"a stored formula must be a list of 1 to {MAX_NODES} nodes; got {got}.")
    terms: list[Term] = []
    for node in nodes:
        terms.append(_built(node, terms))
    return terms[-1]


def _built(node: Any, terms: list[Term]) -> Term:
    if not isinstance(node, (list, tuple)) or not node or not isinstance(node[0], str):
        raise SpecError(f"a node of a stored formula must be a list that begins with an operation; got {_brief(node)}.")
    op, *content = node
    if op in _LEAVES:
        return _LEAVES[op](content, terms)
    if op not in ARITY:
        raise SpecError(f"a stored formula must use operations of regard; got {_brief(op)}.")
    if len(content) != 1:
        raise SpecError(f"a node of {op} must hold its arguments; got {_brief(node)}.")
    return apply(op, *_arguments(op, content[0], terms, ARITY[op], ARITY[op]))


def _arguments(op: str, places: Any, terms: list[Term], least: int, most: int) -> tuple[Term, ...]:
    if not isinstance(places, (list, tuple)) or not least <= len(places) <= most:
        count = f"{least}" if least == most else f"{least} to {most}"
        raise SpecError(f"a node of {op} must have {count} arguments; got {_brief(places)}.")
    if not all(_is_whole(n) and 0 <= n < len(terms) for n in places):
        raise SpecError(
            f"arguments of {op} must be nodes listed before it, 0 to {len(terms) - 1}; got {_brief(places)}."
        )
    return tuple(terms[n] for n in places)


def _constant(content: list[Any], terms: list[Term]) -> Term:
    if len(content) != 1 or not isinstance(content[0], (bool, int, float)):
        raise SpecError(f"a constant in a stored formula must be one number; got {_brief(content)}.")
    return constant(content[0])


def _variable(content: list[Any], terms: list[Term]) -> Term:
    if len(content) != 1 or not isinstance(content[0], str) or content[0] not in VARIABLES:
        raise SpecError(f"a variable in a stored formula must be one of {', '.join(VARIABLES)}; got {_brief(content)}.")
    return variable(content[0])


def _lookup(content: list[Any], terms: list[Term]) -> Term:
    if len(content) != 3:
        raise SpecError(f"a look-up in a stored formula must have a slot, a kind and indices; got {_brief(content)}.")
    slot, kind, places = content
    if not _is_whole(slot) or slot < 0:
        raise SpecError(f"a look-up must read captured tensor 0 or more; got {_brief(slot)}.")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise SpecError(f"a look-up must give bool, int or float; got {_brief(kind)}.")
    indices = _arguments("lookup", places, terms, 0, MAX_INDICES)
    if any(index.kind != "int" for index in indices):
        raise SpecError(f"an index of a look-up must be a whole number; got {[index.kind for index in indices]}.")
    return lookup(slot, indices, _KINDS[kind])


_KINDS: dict[str, Kind] = {"bool": "bool", "int": "int", "float": "float"}
_LEAVES: dict[str, Callable[[list[Any], list[Term]], Term]] = {
    "constant": _constant,
    "variable": _variable,
    "lookup": _lookup,
}


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _brief(value: Any) -> str:
    """A value of any size in at most 60 letters."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, (list, tuple)) and len(value) > 8:
        return f"a list of {len(value)}"
    if isinstance(value, (list, tuple)):
        inside = (type(x).__name__ if isinstance(x, (list, tuple, dict)) else _brief(x) for x in value)
        return f"[{', '.join(inside)}]"
    if isinstance(value, dict):
        return f"a dict of {len(value)}"
    written = repr(value[:50]) if isinstance(value, str) else repr(value)
    return written if len(written) <= 60 else f"{written[:57]}..."


def digest(term: Term) -> str:
    """A text of 16 digits that is the same for equal formulas, in every process, and differs for others."""
    return hashlib.sha256(repr(to_nodes(term)).encode()).hexdigest()[:16]


def short(term: Term) -> str:
    """A formula as nested calls; a long one as its size and its digest."""
    if tree_sizes(term)[term] > MAX_SHOWN:
        return f"<{term.op} of {sum(1 for _ in walk(term))} nodes, {digest(term)}>"
    written: dict[Term, str] = {}
    for node in walk(term):
        value = [] if node.value is None else [repr(node.value)]
        written[node] = f"{node.op}({', '.join(value + [written[a] for a in node.args])})"
    return written[term]


def check_tensors(term: Term, kinds: Sequence[tuple[Kind, int] | None]) -> None:
    """Refuses a formula whose look-ups do not fit the captured tensors, given the kind and rank of each.

    None stands for a tensor that is not made yet.
    """
    for node in walk(term):
        if node.op != "lookup":
            continue
        slot = slot_of(node)
        if slot >= len(kinds):
            raise SpecError(f"a look-up must read one of {len(kinds)} captured tensors; got number {slot}.")
        known = kinds[slot]
        if known is not None and known != (node.kind, len(node.args)):
            raise SpecError(
                f"a look-up in captured tensor {slot} must give {known[0]} and have {known[1]} indices, as the tensor "
                f"does; got {node.kind} and {len(node.args)}."
            )
