"""Reading a term: as a short program for the vector machine of the native engine.

The machine works on tiles of pairs. What depends on the query alone or on the key alone is computed beforehand, once
for each of them, and so is what depends on the difference of their positions alone, if it takes more than a few steps.
Only the rest is left for the tile.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from regard.spec.derivative import ONE, derivatives
from regard.spec.evaluate import DECIDES, State
from regard.spec.linear import KEY, Affine, in_tile, steps_in_tile
from regard.spec.term import COMPARISONS, TRUE, WRAPS, Term, apply, constant, postorder, slot_of, variable

# in the order in which the machine counts them
OPS = (
    *("f_add", "f_sub", "f_mul", "f_div", "f_min", "f_max", "f_neg", "f_abs", "f_sign", "f_sqrt", "f_exp", "f_tanh"),
    *("f_sigmoid", "f_log", "f_exp2", "f_expm1", "f_log1p", "f_log2", "f_sin", "f_cos", "f_pow", "f_floor", "f_ceil"),
    *("f_round", "f_trunc", "i_add", "i_sub", "i_mul", "i_min", "i_max", "i_neg", "i_abs", "i_sign", "i_floordiv"),
    *("i_mod", "i_and", "i_or", "i_xor", "i_not", "i_shl", "i_shr", "i_to_f", "f_to_i", "b_to_i", "f_eq", "f_ne"),
    *("f_lt", "f_le", "i_eq", "i_ne", "i_lt", "i_le", "select", "lookup", "lookup_byte", "keep", "keep_eq", "keep_ne"),
    *("keep_lt", "keep_le", "add_to"),
)
PLACES = ("register", "lanes", "keys", "number", "nothing")
SCORES, SPARE = 0, 1  # registers: the scores, and one that hiding may overwrite and the slope ends up in

MAX_STEPS = 1000  # parts that are another number for each pair: each takes a register of a tile's size

_STEPS_FOR_A_TABLE = 3
_NAMES = {"minimum": "min", "maximum": "max", "bitand": "and", "bitor": "or", "bitxor": "xor"}
_NAMES |= {"shift_left": "shl", "shift_right": "shr"}
_EXACT = frozenset({"add", "sub", "mul", "div", "min", "max", "neg", "abs", "sign", "sqrt"})
_EXACT |= {"floor", "ceil", "round", "trunc"}


class Untold(Exception):
    """A formula that the machine has no instructions for; the message says what."""


@dataclass(frozen=True)
class Operand:
    place: str
    index: int = 0  # of the register or array; the bits of a number


NOTHING = Operand("nothing")


@dataclass(frozen=True)
class Instruction:
    op: str
    into: int
    a: Operand
    b: Operand = NOTHING
    c: Operand = NOTHING
    table: int = 0


@dataclass(frozen=True)
class Beforehand:
    """A term to be computed before the tiles: for each query, each key, or each difference of positions.

    `precise` says that it flows into the score.
    """

    term: Term
    precise: bool


@dataclass(frozen=True)
class TableOffset(Beforehand):
    """Where the numbers for a query lie in a table made for each difference, but for the key's part."""

    table: int = 0


@dataclass(frozen=True)
class Table:
    """What a look-up reads: captured tensor number `slot`, or else `made` for each difference of `along` and j."""

    slot: int = -1
    made: Beforehand | None = None
    along: str = "p"


@dataclass(frozen=True)
class Program:
    """Instructions: up to `rule` those that change the scores, up to `hiding` those that hide, up to `slope` those that
    find the rule's derivative in the score, and then those that add up the gradients of captured tensors."""

    instructions: tuple[Instruction, ...]
    rule: int
    hiding: int
    slope: int
    registers: int
    lanes: tuple[Beforehand, ...]
    keys: tuple[Beforehand, ...]
    tables: tuple[Table, ...]
    whole: tuple[Term, ...]  # whole numbers made in tiles: they must fit into 32 bits
    looked_up: tuple[tuple[Term, int], ...]  # indices that must stay from 0 to less than a size
    added: tuple[tuple[Term, ...], ...]  # for each wanted tensor the look-ups whose gradients are added up

    @cached_property
    def reads(self) -> frozenset[int]:
        """The captured tensors whose numbers are needed beforehand; a tile reads the others itself."""
        made = [t.made for t in self.tables if t.made is not None]
        terms = [x.term for x in (*self.lanes, *self.keys, *made)]
        terms += [*self.whole, *(index for index, _ in self.looked_up)]
        return frozenset[int]().union(*(t.reads for t in terms))


@lru_cache(maxsize=512)
def program(
    mask: Term,
    rule: Term | None,
    sizes: tuple[tuple[int, ...], ...],
    strides: tuple[tuple[int, ...], ...],
    wanted: tuple[int, ...] = (),
) -> Program:
    """The program of a mask and a rule. `sizes` and `strides` are those of the captured tensors.

    `wanted` are the captured tensors whose gradients it adds up, each in a contiguous tensor of the same size.
    """
    for term in (mask, rule):
        if term is not None and len(steps_in_tile(term, MAX_STEPS + 1)) > MAX_STEPS:
            raise Untold(f"it supports formulas of at most {MAX_STEPS} operations on a query and a key together")
    made = _Compiler(sizes, strides)
    if rule is not None:
        made.put(rule, SCORES)
    after_rule = len(made.code)
    if mask is not TRUE:
        for part in _conjuncts(mask):
            made.hide(part)
    after_mask = len(made.code)
    changes = {variable("s"): ONE} if rule is None else derivatives(rule)
    slope = changes.get(variable("s"), constant(0.0))
    if slope is not ONE:
        made.put(slope, SPARE)
    after_slope = len(made.code)
    added = tuple(tuple(n for n in changes if n.op == "lookup" and slot_of(n) == slot) for slot in wanted)
    for number, nodes in enumerate(added):
        for node in nodes:
            made.add_to(node, changes[node], number)
    return Program(
        tuple(made.code),
        after_rule,
        after_mask,
        after_slope,
        made.registers,
        tuple(made.lanes),
        tuple(made.keys),
        tuple(made.tables),
        tuple(made.whole),
        tuple(made.looked_up),
        added,
    )


def _conjuncts(mask: Term) -> list[Term]:
    parts = postorder((mask,), lambda node: node.args if node.op == "and" else ())
    return [part for part in parts if part.op != "and"]


class _Compiler:
    def __init__(self, sizes: Sequence[tuple[int, ...]], strides: Sequence[tuple[int, ...]]) -> None:
        self.sizes, self.strides = sizes, strides
        self.code: list[Instruction] = []
        self.lanes: list[Beforehand] = []
        self.keys: list[Beforehand] = []
        self.tables: list[Table] = []
        self.whole: list[Term] = []
        self.looked_up: list[tuple[Term, int]] = []
        self.registers = SPARE
        self._affine = Affine()
        self._used: set[int] = set()

    def put(self, term: Term, into: int) -> None:
        """The value of a score rule or of its slope, in a certain register."""
        known: dict[State, Operand] = {}
        self._prime(term, True, known)
        found = self._operand(term, True, known)
        self._used.clear()
        if found.place == "register" and self.code and self.code[-1].into == found.index and found.index > SPARE:
            last = self.code.pop()
            self.code.append(Instruction(last.op, into, last.a, last.b, last.c, last.table))
        elif found != Operand("register", into):
            self.code.append(Instruction("select", into, found, found, Operand("number", -1)))

    def hide(self, part: Term) -> None:
        """Scores become -inf where this condition does not hold."""
        known: dict[State, Operand] = {}
        self._prime(part, False, known)
        if part.op in COMPARISONS and all(a.kind != "float" for a in part.args) and in_tile(part):
            name, x, y = _ordered(part.op, *part.args)
            if not self._worth_a_table(part):
                a, b = (self._whole_number(t, known) for t in (x, y))
                self.code.append(Instruction(f"keep_{name}", SCORES, a, b))
                self._used.clear()
                return
        self.code.append(Instruction("keep", SCORES, self._operand(part, False, known)))
        self._used.clear()

    def add_to(self, node: Term, change: Term, number: int) -> None:
        """Each pair's gradient, times `change`, is added where the look-up reads, to sum number `number`."""
        known: dict[State, Operand] = {}
        self._prime(change, True, known)
        sizes = self.sizes[slot_of(node)]
        factor = self._operand(change, True, known)
        a, b = self._address(node, [math.prod(sizes[n + 1 :]) for n in range(len(sizes))], known)
        self.code.append(Instruction("add_to", SPARE, a, b, factor, number))
        self._used.clear()

    def _register(self) -> int:
        free = next(r for r in range(SPARE + 1, len(self._used) + SPARE + 3) if r not in self._used)
        self._used.add(free)
        self.registers = max(self.registers, free)
        return free

    def _emit(self, op: str, *operands: Operand, table: int = 0) -> Operand:
        if op not in OPS:
            raise Untold(f"it has no instruction for {op[2:]} of a query and a key together")
        into = self._register()
        a, b, c = (*operands, NOTHING, NOTHING)[:3]
        self.code.append(Instruction(op, into, a, b, c, table))
        return Operand("register", into)

    def _prime(self, term: Term, precise: bool, known: dict[State, Operand]) -> None:
        """Computes the parts of a formula before the formula itself, so that a deep one does not recurse deeply."""
        for state in postorder(((term, precise),), self._computed_parts):
            if state != (term, precise) and state[0].op != "exact":
                self._operand(*state, known)

    def _computed_parts(self, state: State) -> list[State]:
        """Arguments that the machine computes in a tile for this part, in the order in which it does."""
        term, precise = state
        if term.op != "exact" and (not in_tile(term) or term.op == "lookup" or self._worth_a_table(term)):
            return []
        if term.op in DECIDES and "s" not in term.depends:
            precise = False
        args = (*term.args[1:], term.args[0]) if term.op == "where" else term.args
        args = args[::-1] if term.op in ("gt", "ge") else args
        is_condition = term.kind == "bool" and term.op not in COMPARISONS
        as_they_are = {"float"} | ({"bool"} if is_condition or term.op == "where" else set())
        return [(a, precise and a.kind in as_they_are) for a in args if in_tile(a)]

    def _operand(self, term: Term, precise: bool, known: dict[State, Operand]) -> Operand:
        if term.op == "exact":
            return self._float(term.args[0], precise, known)
        if term.op in DECIDES and "s" not in term.depends:
            precise = False
        key = (term, precise)
        if key not in known:
            known[key] = self._made(term, precise, known)
        return known[key]

    def _made(self, term: Term, precise: bool, known: dict[State, Operand]) -> Operand:
        if term.op == "constant":
            return Operand("number", _number_bits(term))
        if term is variable("s"):
            return Operand("register", SCORES)
        if not in_tile(term):
            return self._beforehand(term, precise)
        if self._worth_a_table(term):
            return self._by_difference(term, precise)
        if term.kind == "int":
            self.whole.append(term)
        if term.op == "lookup":
            return self._look_up(term, known)
        return self._computed(term, precise, known)

    def _beforehand(self, term: Term, precise: bool) -> Operand:
        place, into = ("keys", self.keys) if term.depends & KEY else ("lanes", self.lanes)
        wanted = Beforehand(term, precise)
        if wanted not in into:
            into.append(wanted)
        return Operand(place, into.index(wanted))

    def _by_difference(self, term: Term, precise: bool) -> Operand:
        along = "p" if "p" in term.depends else "i"
        table = Table(made=Beforehand(term, precise), along=along)
        if table not in self.tables:
            self.tables.append(table)
        number = self.tables.index(table)
        place = TableOffset(variable(along), False, number)
        if place not in self.lanes:
            self.lanes.append(place)
        op = "lookup_byte" if term.kind == "bool" else "lookup"
        on_keys = self._beforehand(apply("neg", variable("j")), False)
        return self._emit(op, Operand("lanes", self.lanes.index(place)), on_keys, table=number)

    def _look_up(self, term: Term, known: dict[State, Operand]) -> Operand:
        a, b = self._address(term, self.strides[slot_of(term)], known)
        table = Table(slot_of(term))
        if table not in self.tables:
            self.tables.append(table)
        op = "lookup_byte" if term.kind == "bool" else "lookup"
        return self._emit(op, a, b, table=self.tables.index(table))

    def _address(self, term: Term, strides: Sequence[int], known: dict[State, Operand]) -> tuple[Operand, Operand]:
        """Where a look-up reads, as the sum of two: one for the query, if it is that simple, and one for the key."""
        on_lanes = on_keys = on_tiles = constant(0)
        address: Operand | None = None
        for index, size, stride in zip(term.args, self.sizes[slot_of(term)], strides, strict=True):
            self.looked_up.append((index, size))
            parts = self._affine.split(index)
            step = constant(stride)
            if parts is not None:
                on_lanes = apply("add", on_lanes, apply("mul", parts[0], step))
                on_keys = apply("add", on_keys, apply("mul", parts[1], step))
                continue
            part = self._emit("i_mul", self._whole_number(index, known), self._operand(step, False, known))
            address = part if address is None else self._emit("i_add", address, part)
            on_tiles = apply("add", on_tiles, apply("mul", index, step))
        a, b = self._operand(on_lanes, False, known), self._operand(on_keys, False, known)
        if address is None:
            return a, b
        self.whole += [on_tiles, apply("add", on_tiles, on_lanes)]  # an address has 32 bits too, until b is added
        return self._emit("i_add", address, a), b

    def _computed(self, term: Term, precise: bool, known: dict[State, Operand]) -> Operand:
        op, args = term.op, term.args
        if op == "where":
            parts = [self._as(term.kind, a, precise, known) for a in args[1:]]
            return self._emit("select", *parts, self._operand(args[0], precise, known))
        if op == "not":
            return self._emit("i_not", self._operand(args[0], precise, known))
        if op in ("and", "or", "xor"):
            return self._emit(f"i_{op}", *(self._operand(a, precise, known) for a in args))
        if op in COMPARISONS:
            name, *sides = _ordered(op, *args)
            if any(a.kind == "float" for a in args):
                return self._emit(f"f_{name}", *(self._float(a, precise, known) for a in sides))
            return self._emit(f"i_{name}", *(self._whole_number(a, known) for a in sides))
        if op in ("to_float", "exact"):
            return self._float(args[0], precise, known)
        if op in WRAPS:
            return self._wrapped(op, self._whole_number(args[0], known))
        if op == "to_int":
            if args[0].kind == "float":
                return self._emit("f_to_i", self._operand(args[0], precise, known))
            return self._whole_number(args[0], known)
        if term.kind == "bool":  # the least or greatest of two conditions
            return self._emit("i_and" if op == "minimum" else "i_or", *(self._operand(a, precise, known) for a in args))
        if op in ("floordiv", "mod"):
            divisor = args[1]
            if term.kind == "float" or divisor.op != "constant" or divisor.value == 0:
                raise Untold(f"it divides without remainder by constant whole numbers only, not by {divisor.op}")
        if op == "pow" and args[1].op == "constant" and args[1].value == 2:
            x = self._as(term.kind, args[0], precise, known)
            return self._emit(f"{term.kind[0]}_mul", x, x)
        if (
            op == "div" and precise and args[1].op == "constant" and args[1].value
        ):  # the reciprocal is right to a rounding
            args = (args[0], constant(1.0 / args[1].value))  # type: ignore[operator]  # constants hold numbers
            op = "mul"
        name = _NAMES.get(op, op)
        if term.kind == "float":
            if not precise and "s" not in term.depends and name not in _EXACT:
                raise Untold(f"what decides must be the same number everywhere, and its {name} is its own")
            return self._emit(f"f_{name}", *(self._float(a, precise, known) for a in args))
        return self._emit(f"i_{name}", *(self._whole_number(a, known) for a in args))

    def _wrapped(self, op: str, x: Operand) -> Operand:
        """A whole number in fewer bits. All of the machine's have 32, or there is no program: `_Arrays` checks it."""
        least, greatest = WRAPS[op]
        if op == "to_int32":
            return x
        low = self._emit("i_and", x, Operand("number", greatest - least))
        if least == 0:
            return low
        above = self._emit("i_and", low, Operand("number", greatest + 1))  # the sign, which counts twice below zero
        return self._emit("i_sub", self._emit("i_sub", low, above), above)

    def _worth_a_table(self, term: Term) -> bool:
        """Whether a term depends on the difference of positions alone, and is long or beyond the machine."""
        if "s" in term.depends or {"i", "p"} <= term.depends or not self._affine.of_difference(term):
            return False
        steps = steps_in_tile(term, _STEPS_FOR_A_TABLE)
        return len(steps) >= _STEPS_FOR_A_TABLE or any(node.op in ("floordiv", "mod") for node in steps)

    def _as(self, kind: str, term: Term, precise: bool, known: dict[State, Operand]) -> Operand:
        if kind == "float":
            return self._float(term, precise, known)
        return self._whole_number(term, known) if kind == "int" else self._operand(term, precise, known)

    def _float(self, term: Term, precise: bool, known: dict[State, Operand]) -> Operand:
        if term.kind == "float":
            return self._operand(term, precise, known)
        if not in_tile(term):
            return self._operand(apply("to_float", term), precise, known)
        return self._emit("i_to_f", self._whole_number(term, known))

    def _whole_number(self, term: Term, known: dict[State, Operand]) -> Operand:
        if term.kind == "int":
            return self._operand(term, False, known)
        if term.op == "constant" or not in_tile(term):
            return self._operand(apply("to_int", term), False, known)
        return self._emit("b_to_i", self._operand(term, False, known))


def _ordered(op: str, x: Term, y: Term) -> tuple[str, Term, Term]:
    return {"gt": ("lt", y, x), "ge": ("le", y, x)}.get(op, (op, x, y))


def _number_bits(term: Term) -> int:
    if isinstance(term.value, bool):
        return -int(term.value)
    if isinstance(term.value, float):
        number = torch.tensor(term.value, dtype=torch.float32).item()
        return int(struct.unpack("=i", struct.pack("=f", number))[0])
    assert isinstance(term.value, int)
    if not -(2**31) <= term.value < 2**31:
        raise Untold(f"its whole numbers have 32 bits, and {term.value} does not fit")
    return term.value
