"""Expressions over positions and the score, as immutable values.

Masks and score modifiers are expressions. This module builds them; `evaluate`, `bounds`, `derivative`, `printing` and
`node_list` interpret them. Expressions are interned: equal expressions are the same object, so comparison and hashing
are cheap and caches can use expressions as keys.

An expression is a graph with shared nodes, and it may be thousands of operations deep. `walk` and `postorder` visit
each node once, without recursion.
"""

import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, TypeVar, final
from weakref import WeakValueDictionary

from regard.errors import TraceError

ScalarKind = Literal["bool", "int", "float"]
Number = bool | int | float

VARIABLES: dict[str, ScalarKind] = {
    "b": "int",  # batch element
    "h": "int",  # query head
    "i": "int",  # query index, from 0
    "j": "int",  # key index, from 0
    "p": "int",  # position of the query among the keys: query_offset + i
    "s": "float",  # score
    "n_q": "int",  # number of queries
    "n_k": "int",  # number of keys
}

ARITHMETIC = frozenset({"add", "sub", "mul", "floordiv", "mod", "pow", "minimum", "maximum"})
BITWISE = frozenset({"bitand", "bitor", "bitxor", "shift_left", "shift_right"})
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
LOGIC = frozenset({"and", "or", "xor", "not"})
ELEMENTARY_FUNCTIONS = frozenset(
    {"exp", "exp2", "expm1", "log", "log1p", "log2", "sqrt", "tanh", "sigmoid", "sin", "cos"}
)
ROUNDING = frozenset({"floor", "ceil", "round", "trunc"})
KIND_PRESERVING = ROUNDING | {"neg", "abs", "sign"}
CASTS: dict[str, ScalarKind] = {"to_int": "int", "to_float": "float"}
# casts to narrow integer dtypes, which wrap around as in torch: smallest and largest value
WRAP_RANGES: dict[str, tuple[int, int]] = {
    "to_uint8": (0, 2**8 - 1),
    "to_int8": (-(2**7), 2**7 - 1),
    "to_int16": (-(2**15), 2**15 - 1),
    "to_int32": (-(2**31), 2**31 - 1),
}
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# `exact(x)` is the computed x, converted to the dtype of the score; derivatives consist of these.

_KIND_RANK: dict[ScalarKind, int] = {"bool": 0, "int": 1, "float": 2}

NodeT = TypeVar("NodeT")


@final
class Expr:
    """A node of an expression: an operation, its arguments, and the kind of its value.

    `value` is the value of a constant, the name of a variable, or the tensor slot of a lookup. `free_variables` and
    `captured_slots` hold the variables and the tensor slots of the expression. Build expressions with `constant`,
    `variable`, `lookup` and `apply`.
    """

    __slots__ = ("__weakref__", "args", "captured_slots", "free_variables", "kind", "op", "value")

    op: str
    args: tuple["Expr", ...]
    kind: ScalarKind
    value: Number | str | None
    free_variables: frozenset[str]
    captured_slots: frozenset[int]

    def __repr__(self) -> str:
        from regard.expr.node_list import nested_calls  # node_list imports this module

        return nested_calls(self)

    def __reduce__(self) -> tuple[object, ...]:
        from regard.expr.node_list import from_nodes, to_nodes

        return from_nodes, (to_nodes(self),)


_pool: WeakValueDictionary[tuple[object, ...], Expr] = WeakValueDictionary()
_pool_lock = threading.Lock()


def _intern(op: str, args: tuple[Expr, ...], kind: ScalarKind, value: Number | str | None = None) -> Expr:
    # 0.0 and -0.0, and 1 and True, are equal in Python but are different constants
    identity = struct.pack("d", value) if isinstance(value, float) else (type(value), value)
    key = (op, args, kind, identity)
    with _pool_lock:
        expr = _pool.get(key)
        if expr is None:
            expr = object.__new__(Expr)
            variables = frozenset({str(value)}) if op == "variable" else frozenset()
            slots = frozenset({value}) if op == "lookup" and isinstance(value, int) else frozenset()
            expr.op = op
            expr.args = args
            expr.kind = kind
            expr.value = value
            expr.free_variables = variables.union(*(a.free_variables for a in args))
            expr.captured_slots = slots.union(*(a.captured_slots for a in args))
            _pool[key] = expr
    return expr


def constant(value: Number) -> Expr:
    """Return a constant expression."""
    if not isinstance(value, float) and not INT64_MIN <= value <= INT64_MAX:
        raise TraceError(f"an integer in an expression must fit into 64 bits; got one of {value.bit_length()} bits.")
    kind: ScalarKind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
    return _intern("constant", (), kind, value)


def variable(name: str) -> Expr:
    """Return the variable of this name, one of `VARIABLES`."""
    return _intern("variable", (), VARIABLES[name], name)


def lookup(slot: int, indices: tuple[Expr, ...], kind: ScalarKind) -> Expr:
    """Return the entry of the captured tensor `slot` at these indices."""
    return _intern("lookup", indices, kind, slot)


TRUE, FALSE = constant(True), constant(False)


def apply(op: str, *args: Expr) -> Expr:
    """Return the simplified expression `op(*args)`."""
    if op in LOGIC:
        args = tuple(as_condition(a) for a in args)
    if op == "where":
        args = (as_condition(args[0]), *args[1:])
    if op in CASTS and args[0].kind == CASTS[op]:
        return args[0]
    if op in ROUNDING and args[0].kind != "float":
        return args[0]
    if op == "exact" and args[0].op == "exact":
        return args[0]
    _check_operands(op, args)
    return _simplify(op, args) or _intern(op, args, _result_kind(op, args))


def _check_operands(op: str, args: tuple[Expr, ...]) -> None:
    """Raise an error for operands that torch does not support."""
    if (op in BITWISE or op in WRAP_RANGES) and any(a.kind == "float" for a in args):
        raise TraceError(f"{op} takes integers, not floats. Convert them with .long().")
    if op not in ("floordiv", "mod", "pow") or args[1].op != "constant" or "float" in (args[0].kind, args[1].kind):
        return
    operand = int(args[1].value)  # type: ignore[arg-type]  # a constant that is not a float holds an integer
    if op == "pow" and operand < 0:
        raise TraceError(f"an integer cannot be raised to the power {operand}. Convert it with .float() first.")
    if op != "pow" and operand == 0:
        raise TraceError("an integer cannot be divided by 0.")


def as_condition(expr: Expr) -> Expr:
    """Convert an expression to a boolean: numbers are true where they are not zero."""
    return expr if expr.kind == "bool" else apply("ne", expr, constant(0))


def postorder(roots: Iterable[NodeT], children: Callable[[NodeT], Iterable[NodeT]]) -> Iterator[NodeT]:
    """Yield every distinct node below the roots once, children first, without recursion."""
    entered: set[NodeT] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, children_done = stack.pop()
        if children_done:
            yield node
        elif node not in entered:
            entered.add(node)
            stack.append((node, True))
            stack.extend([(child, False) for child in children(node)][::-1])


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield every distinct node once, arguments first."""
    return postorder((expr,), lambda node: node.args)


def tree_sizes(expr: Expr) -> dict[Expr, int]:
    """Return the number of nodes below each node, counting shared nodes at every occurrence."""
    sizes: dict[Expr, int] = {}
    for node in walk(expr):
        sizes[node] = 1 + sum(sizes[a] for a in node.args)
    return sizes


def substitute(expr: Expr, replacements: Mapping[Expr, Expr]) -> Expr:
    """Return the expression with some of its nodes replaced, simplified again."""
    results: dict[Expr, Expr] = {}
    for node in walk(expr):
        if node in replacements:
            results[node] = replacements[node]
        elif not node.args:
            results[node] = node
        elif node.op == "lookup":
            results[node] = _intern("lookup", tuple(results[a] for a in node.args), node.kind, node.value)
        else:
            results[node] = apply(node.op, *(results[a] for a in node.args))
    return results[expr]


def renumber_slots(expr: Expr, slots: Mapping[int, int]) -> Expr:
    """Return the expression with its tensor slots renumbered."""
    if all(slots[slot] == slot for slot in expr.captured_slots):
        return expr
    results: dict[Expr, Expr] = {}
    for node in walk(expr):
        args = tuple(results[a] for a in node.args)
        value = slots[slot_of(node)] if node.op == "lookup" else node.value
        unchanged = args == node.args and value == node.value
        results[node] = node if unchanged else _intern(node.op, args, node.kind, value)
    return results[expr]


def slot_of(node: Expr) -> int:
    """Return the tensor slot of a lookup."""
    assert node.op == "lookup" and isinstance(node.value, int)
    return node.value


def _result_kind(op: str, args: tuple[Expr, ...]) -> ScalarKind:
    if op in COMPARISONS or op in LOGIC:
        return "bool"
    if op == "div" or op in ELEMENTARY_FUNCTIONS or op in ("to_float", "exact"):
        return "float"
    if op == "to_int" or op in BITWISE or op in WRAP_RANGES:
        return "int"
    values = args[1:] if op == "where" else args
    widest = max((a.kind for a in values), key=_KIND_RANK.__getitem__)
    keeps_bool = op in ("where", "minimum", "maximum")
    return "int" if widest == "bool" and not keeps_bool else widest


def _simplify(op: str, args: tuple[Expr, ...]) -> Expr | None:
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
            # both branches determine the kind, even if only one remains
            branch = args[1] if first.value else args[2]
            return branch if branch.kind == _result_kind(op, args) else None
        return args[1] if args[1] is args[2] else None
    if op in WRAP_RANGES and (first.kind == "bool" or first.op == op or (op == "to_int32" and first.op == "variable")):
        return first if first.kind == "int" else None  # positions have at most 31 bits
    if op in ("add", "sub") and args[1].op == "constant" and args[1].kind == "int" and args[1].value == 0:
        return first if first.kind != "bool" else None
    if op == "add" and first.op == "constant" and first.kind == "int" and first.value == 0:
        return args[1] if args[1].kind != "bool" else None
    return _fold_constants(op, args)


def _fold_constants(op: str, args: tuple[Expr, ...]) -> Expr | None:
    """Compute integer constants. Float constants stay, because each backend rounds them itself."""
    if any(a.op != "constant" or a.kind == "float" for a in args) or op not in _INT_OPS:
        return None
    result = _INT_OPS[op](*(int(a.value) for a in args))  # type: ignore[arg-type]  # constants hold numbers
    return constant(result) if INT64_MIN <= result <= INT64_MAX else None  # torch would wrap around


def _wrap_int(min_value: int, max_value: int) -> Callable[[int], int]:
    return lambda x: (x - min_value) % (max_value - min_value + 1) + min_value


_INT_OPS: dict[str, Callable[..., bool | int]] = {
    **{op: _wrap_int(*limits) for op, limits in WRAP_RANGES.items()},
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
