"""A term: a formula over positions and the score, as an immutable value.

Masks and score rules are terms. This file only builds them; each way of reading one has a file of its own
(`evaluate`, `bounds`, `derivative`, `text`, `nodes`). Terms are interned: two equal formulas are the same object, so
comparing and hashing cost nothing and caches can key on them.

A term is a graph: its parts are shared, and it may be thousands of operations deep. Read it with `walk` or `postorder`,
which visit each part once and do not recurse.
"""

import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, TypeVar, final
from weakref import WeakValueDictionary

from regard.errors import TraceError

Kind = Literal["bool", "int", "float"]
Number = bool | int | float

VARIABLES: dict[str, Kind] = {
    "b": "int",  # batch element
    "h": "int",  # query head
    "i": "int",  # query, counted from 0
    "j": "int",  # key, counted from 0
    "p": "int",  # the query's position among the keys: start + i
    "s": "float",  # the score so far
    "n_q": "int",  # number of queries
    "n_k": "int",  # number of keys
}

ARITHMETIC = frozenset({"add", "sub", "mul", "floordiv", "mod", "pow", "minimum", "maximum"})
BITWISE = frozenset({"bitand", "bitor", "bitxor", "shift_left", "shift_right"})
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
LOGIC = frozenset({"and", "or", "xor", "not"})
SMOOTH = frozenset({"exp", "exp2", "expm1", "log", "log1p", "log2", "sqrt", "tanh", "sigmoid", "sin", "cos"})
ROUNDING = frozenset({"floor", "ceil", "round", "trunc"})
SAME_KIND = ROUNDING | {"neg", "abs", "sign"}
CASTS: dict[str, Kind] = {"to_int": "int", "to_float": "float"}
# a whole number in fewer bits, where it wraps around as in torch: the least and the greatest one
WRAPS: dict[str, tuple[int, int]] = {
    "to_uint8": (0, 2**8 - 1),
    "to_int8": (-(2**7), 2**7 - 1),
    "to_int16": (-(2**15), 2**15 - 1),
    "to_int32": (-(2**31), 2**31 - 1),
}
LEAST_WHOLE, GREATEST_WHOLE = -(2**63), 2**63 - 1
# `exact(x)` is x as it was computed, from here on in the precision of the score: derivatives are made of these

_RANK: dict[Kind, int] = {"bool": 0, "int": 1, "float": 2}

Key = TypeVar("Key")


@final
class Term:
    """One node of a formula: an operation, its arguments, the kind of number it gives.

    `value` is the number of a constant, the name of a variable, or the number of the tensor a look-up reads.
    `depends` names the variables below it and `reads` the numbers of the tensors. Build terms with `constant`,
    `variable`, `lookup` and `apply`.
    """

    __slots__ = ("__weakref__", "args", "depends", "kind", "op", "reads", "value")

    op: str
    args: tuple["Term", ...]
    kind: Kind
    value: Number | str | None
    depends: frozenset[str]
    reads: frozenset[int]

    def __repr__(self) -> str:
        from regard.spec.nodes import short  # which reads terms, and so comes after them

        return short(self)

    def __reduce__(self) -> tuple[object, ...]:
        from regard.spec.nodes import from_nodes, to_nodes

        return from_nodes, (to_nodes(self),)


_pool: WeakValueDictionary[tuple[object, ...], Term] = WeakValueDictionary()
_pool_lock = threading.Lock()


def _intern(op: str, args: tuple[Term, ...], kind: Kind, value: Number | str | None = None) -> Term:
    # 0.0 and -0.0, and 1 and True, are equal in Python but are different constants
    identity = struct.pack("d", value) if isinstance(value, float) else (type(value), value)
    key = (op, args, kind, identity)
    with _pool_lock:
        term = _pool.get(key)
        if term is None:
            term = object.__new__(Term)
            own = frozenset({str(value)}) if op == "variable" else frozenset()
            term.op = op
            term.args = args
            term.kind = kind
            term.value = value
            term.depends = own.union(*(a.depends for a in args))
            looked_up = frozenset({value}) if op == "lookup" and isinstance(value, int) else frozenset()
            term.reads = looked_up.union(*(a.reads for a in args))
            _pool[key] = term
    return term


def constant(value: Number) -> Term:
    if not isinstance(value, float) and not LEAST_WHOLE <= value <= GREATEST_WHOLE:
        raise TraceError(f"a whole number in a formula must fit into 64 bits; got one of {value.bit_length()} bits.")
    kind: Kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
    return _intern("constant", (), kind, value)


def variable(name: str) -> Term:
    return _intern("variable", (), VARIABLES[name], name)


def lookup(slot: int, indices: tuple[Term, ...], kind: Kind) -> Term:
    """The entry of captured tensor number `slot` at these indices."""
    return _intern("lookup", indices, kind, slot)


TRUE, FALSE = constant(True), constant(False)


def apply(op: str, *args: Term) -> Term:
    """The term `op(args)`, with what is evident simplified away."""
    if op in LOGIC:
        args = tuple(truth(a) for a in args)
    if op == "where":
        args = (truth(args[0]), *args[1:])
    if op in CASTS and args[0].kind == CASTS[op]:
        return args[0]
    if op in ROUNDING and args[0].kind != "float":
        return args[0]
    if op == "exact" and args[0].op == "exact":
        return args[0]
    _refuse(op, args)
    return _simplified(op, args) or _intern(op, args, _kind(op, args))


def _refuse(op: str, args: tuple[Term, ...]) -> None:
    """Raises for operations that torch has no result for."""
    if (op in BITWISE or op in WRAPS) and any(a.kind == "float" for a in args):
        raise TraceError(f"{op} takes whole numbers, not floats. Convert them with .long().")
    if op not in ("floordiv", "mod", "pow") or args[1].op != "constant" or "float" in (args[0].kind, args[1].kind):
        return
    number = int(args[1].value)  # type: ignore[arg-type]  # a constant that is no float holds a whole number
    if op == "pow" and number < 0:
        raise TraceError(f"a whole number cannot be raised to the power {number}. Convert it with .float() first.")
    if op != "pow" and number == 0:
        raise TraceError("a whole number cannot be divided by 0.")


def truth(term: Term) -> Term:
    """A term as a condition: numbers count as true where they are not zero."""
    return term if term.kind == "bool" else apply("ne", term, constant(0))


def postorder(roots: Iterable[Key], children: Callable[[Key], Iterable[Key]]) -> Iterator[Key]:
    """Every distinct node below the roots once, children before the nodes that use them; it does not recurse."""
    entered: set[Key] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, children_done = stack.pop()
        if children_done:
            yield node
        elif node not in entered:
            entered.add(node)
            stack.append((node, True))
            stack.extend([(child, False) for child in children(node)][::-1])


def walk(term: Term) -> Iterator[Term]:
    """Every distinct node once, arguments before what uses them."""
    return postorder((term,), lambda node: node.args)


def tree_sizes(term: Term) -> dict[Term, int]:
    """How many nodes each part has when it is written out, where shared parts count each time they occur."""
    sizes: dict[Term, int] = {}
    for node in walk(term):
        sizes[node] = 1 + sum(sizes[a] for a in node.args)
    return sizes


def substitute(term: Term, replacements: Mapping[Term, Term]) -> Term:
    """The same formula with some of its nodes replaced."""
    done: dict[Term, Term] = {}
    for node in walk(term):
        if node in replacements:
            done[node] = replacements[node]
        elif not node.args:
            done[node] = node
        elif node.op == "lookup":
            done[node] = _intern("lookup", tuple(done[a] for a in node.args), node.kind, node.value)
        else:
            done[node] = apply(node.op, *(done[a] for a in node.args))
    return done[term]


def renumber(term: Term, slots: Mapping[int, int]) -> Term:
    """The same formula with its captured tensors counted differently."""
    if all(slots[slot] == slot for slot in term.reads):
        return term
    done: dict[Term, Term] = {}
    for node in walk(term):
        args = tuple(done[a] for a in node.args)
        value = slots[slot_of(node)] if node.op == "lookup" else node.value
        same = args == node.args and value == node.value
        done[node] = node if same else _intern(node.op, args, node.kind, value)
    return done[term]


def slot_of(node: Term) -> int:
    assert node.op == "lookup" and isinstance(node.value, int)
    return node.value


def _kind(op: str, args: tuple[Term, ...]) -> Kind:
    if op in COMPARISONS or op in LOGIC:
        return "bool"
    if op == "div" or op in SMOOTH or op in ("to_float", "exact"):
        return "float"
    if op == "to_int" or op in BITWISE or op in WRAPS:
        return "int"
    values = args[1:] if op == "where" else args
    widest = max((a.kind for a in values), key=_RANK.__getitem__)
    keeps_bool = op in ("where", "minimum", "maximum")
    return "int" if widest == "bool" and not keeps_bool else widest


def _simplified(op: str, args: tuple[Term, ...]) -> Term | None:
    first = args[0]
    if op == "not":
        if first.op == "not":
            return first.args[0]
        return constant(not first.value) if first.op == "constant" else None
    if op in ("and", "or"):
        absorbing = FALSE if op == "and" else TRUE
        neutral = TRUE if op == "and" else FALSE
        if absorbing in args:
            return absorbing
        rest = [a for a in dict.fromkeys(args) if a is not neutral]
        return neutral if not rest else rest[0] if len(rest) == 1 else None
    if op == "where":
        if first.op == "constant":
            # both branches decide the kind, also when only one is left
            chosen = args[1] if first.value else args[2]
            return chosen if chosen.kind == _kind(op, args) else None
        return args[1] if args[1] is args[2] else None
    if op in WRAPS and (first.kind == "bool" or first.op == op or (op == "to_int32" and first.op == "variable")):
        return first if first.kind == "int" else None  # positions have at most 31 bits
    if op in ("add", "sub") and args[1].op == "constant" and args[1].kind == "int" and args[1].value == 0:
        return first if first.kind != "bool" else None
    if op == "add" and first.op == "constant" and first.kind == "int" and first.value == 0:
        return args[1] if args[1].kind != "bool" else None
    return _folded(op, args)


def _folded(op: str, args: tuple[Term, ...]) -> Term | None:
    """Whole numbers are computed at once; floats keep the rounding of the engine that will compute them."""
    if any(a.op != "constant" or a.kind == "float" for a in args) or op not in _WHOLE:
        return None
    result = _WHOLE[op](*(int(a.value) for a in args))  # type: ignore[arg-type]  # constants hold numbers
    return constant(result) if LEAST_WHOLE <= result <= GREATEST_WHOLE else None  # torch wraps around


def _wrapped(least: int, greatest: int) -> Callable[[int], int]:
    return lambda x: (x - least) % (greatest - least + 1) + least


_WHOLE: dict[str, Callable[..., bool | int]] = {
    **{op: _wrapped(*limits) for op, limits in WRAPS.items()},
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "neg": lambda x: -x,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}
