"""Compiles a mask and a score modifier to a short program for the tile interpreter of the native backend.

The interpreter works on tiles of pairs. Expressions of the query alone or of the key alone are precomputed, once for
each query or key. So are expressions of the difference of their positions, if they take more than a few operations.
Only the rest runs in the tile.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from regard.backends.protocol import UnsupportedCall
from regard.cache import memoize
from regard.expr.affine import KEY_VARIABLES, AffineAnalysis, is_pairwise, pairwise_nodes
from regard.expr.derivative import ONE, derivatives
from regard.expr.evaluate import DISCONTINUOUS_OPS, NodeUse
from regard.expr.ir import COMPARISONS, TRUE, WRAP_RANGES, Expr, apply, constant, postorder, slot_of, variable

# in the order of the enum Op in csrc/include/program.h
OPCODES = (
    *("f_add", "f_sub", "f_mul", "f_div", "f_min", "f_max", "f_neg", "f_abs", "f_sign", "f_sqrt", "f_exp", "f_tanh"),
    *("f_sigmoid", "f_log", "f_exp2", "f_expm1", "f_log1p", "f_log2", "f_sin", "f_cos", "f_pow", "f_floor", "f_ceil"),
    *("f_round", "f_trunc", "i_add", "i_sub", "i_mul", "i_min", "i_max", "i_neg", "i_abs", "i_sign", "i_floordiv"),
    *("i_mod", "i_and", "i_or", "i_xor", "i_not", "i_shl", "i_shr", "i_to_f", "f_to_i", "b_to_i", "f_eq", "f_ne"),
    *("f_lt", "f_le", "i_eq", "i_ne", "i_lt", "i_le", "select", "lookup", "lookup_byte", "mask", "mask_eq", "mask_ne"),
    *("mask_lt", "mask_le", "scatter_add"),
)
OPERAND_KINDS = ("register", "per_query", "per_key", "immediate", "none")  # in the order of the enum OperandKind
SCORE_REGISTER = 0
SCRATCH_REGISTER = 1  # comparisons in a mask may overwrite it, and the derivative ends up in it

MAX_PAIRWISE_NODES = 1000  # subexpressions with a value for each pair: each may take a register

_MIN_NODES_FOR_TABLE = 3
_OPCODE_SUFFIXES = {"minimum": "min", "maximum": "max", "bitand": "and", "bitor": "or", "bitxor": "xor"}
_OPCODE_SUFFIXES |= {"shift_left": "shl", "shift_right": "shr"}
_CORRECTLY_ROUNDED = frozenset({"add", "sub", "mul", "div", "min", "max", "neg", "abs", "sign", "sqrt"})
_CORRECTLY_ROUNDED |= {"floor", "ceil", "round", "trunc"}


class UnsupportedExpr(UnsupportedCall):
    """An expression that the interpreter does not support; the message names the reason."""


@dataclass(frozen=True)
class Operand:
    kind: str
    index: int = 0  # of the register or array; the bits of an immediate


NO_OPERAND = Operand("none")


@dataclass(frozen=True)
class TileInstruction:
    op: str
    dest: int
    a: Operand
    b: Operand = NO_OPERAND
    c: Operand = NO_OPERAND
    table: int = 0


@dataclass(frozen=True)
class Precomputed:
    """An expression that is computed before the tiles, for each query, each key, or each difference of positions.

    `in_score_dtype`: whether the score depends on it.
    """

    expr: Expr
    in_score_dtype: bool


@dataclass(frozen=True)
class TableOffset(Precomputed):
    """The offset of a query's values in a table with a value for each difference; the key adds its own offset."""

    table: int = 0


@dataclass(frozen=True)
class Table:
    """The table of a lookup: captured tensor `slot`, or `precomputed` for each difference of `query_variable` and j."""

    slot: int = -1
    precomputed: Precomputed | None = None
    query_variable: str = "p"


@dataclass(frozen=True)
class TileProgram:
    """A compiled program.

    The instructions up to `score_mod_end` modify the scores, those up to `mask_end` apply the mask, those up to
    `derivative_end` compute the derivative of the score modifier, and the rest add up gradients of captured tensors.
    """

    instructions: tuple[TileInstruction, ...]
    score_mod_end: int
    mask_end: int
    derivative_end: int
    num_registers: int
    per_query: tuple[Precomputed, ...]
    per_key: tuple[Precomputed, ...]
    tables: tuple[Table, ...]
    int32_exprs: tuple[Expr, ...]  # integers computed in tiles: they must fit into 32 bits
    lookup_indices: tuple[tuple[Expr, int], ...]  # indices that must stay from 0 to less than a size
    gradient_lookups: tuple[tuple[Expr, ...], ...]  # for each slot of grad_slots, its lookups

    @cached_property
    def precomputed_slots(self) -> frozenset[int]:
        """The captured tensors that precomputed expressions read; tiles read the others."""
        tables = [t.precomputed for t in self.tables if t.precomputed is not None]
        exprs = [x.expr for x in (*self.per_query, *self.per_key, *tables)]
        exprs += [*self.int32_exprs, *(index for index, _ in self.lookup_indices)]
        return frozenset[int]().union(*(x.captured_slots for x in exprs))


@memoize(512)
def compile_program(
    mask: Expr,
    score_mod: Expr | None,
    shapes: tuple[tuple[int, ...], ...],
    strides: tuple[tuple[int, ...], ...],
    grad_slots: tuple[int, ...] = (),
) -> TileProgram:
    """The program of a mask and a score modifier. `shapes` and `strides` are those of the captured tensors.

    `grad_slots` are the captured tensors whose gradients the program adds up, each in a contiguous tensor of its shape.
    """
    for expr in (mask, score_mod):
        if expr is not None and len(pairwise_nodes(expr, MAX_PAIRWISE_NODES + 1)) > MAX_PAIRWISE_NODES:
            raise UnsupportedExpr(
                f"it supports expressions of at most {MAX_PAIRWISE_NODES} operations on a query and a key together"
            )
    compiler = _ProgramCompiler(shapes, strides)
    if score_mod is not None:
        compiler.emit_value(score_mod, SCORE_REGISTER)
    score_mod_end = len(compiler.instructions)
    if mask is not TRUE:
        for part in _conjuncts(mask):
            compiler.emit_mask(part)
    mask_end = len(compiler.instructions)
    partial_derivatives = {variable("s"): ONE} if score_mod is None else derivatives(score_mod)
    score_derivative = partial_derivatives.get(variable("s"), constant(0.0))
    if score_derivative is not ONE:
        compiler.emit_value(score_derivative, SCRATCH_REGISTER)
    derivative_end = len(compiler.instructions)
    gradient_lookups = tuple(
        tuple(n for n in partial_derivatives if n.op == "lookup" and slot_of(n) == slot) for slot in grad_slots
    )
    for sum_index, nodes in enumerate(gradient_lookups):
        for node in nodes:
            compiler.emit_gradient(node, partial_derivatives[node], sum_index)
    return TileProgram(
        tuple(compiler.instructions),
        score_mod_end,
        mask_end,
        derivative_end,
        compiler.num_registers,
        tuple(compiler.per_query),
        tuple(compiler.per_key),
        tuple(compiler.tables),
        tuple(compiler.int32_exprs),
        tuple(compiler.lookup_indices),
        gradient_lookups,
    )


def _conjuncts(mask: Expr) -> list[Expr]:
    parts = postorder((mask,), lambda node: node.args if node.op == "and" else ())
    return [part for part in parts if part.op != "and"]


class _ProgramCompiler:
    def __init__(self, shapes: Sequence[tuple[int, ...]], strides: Sequence[tuple[int, ...]]) -> None:
        self.shapes, self.strides = shapes, strides
        self.instructions: list[TileInstruction] = []
        self.per_query: list[Precomputed] = []
        self.per_key: list[Precomputed] = []
        self.tables: list[Table] = []
        self.int32_exprs: list[Expr] = []
        self.lookup_indices: list[tuple[Expr, int]] = []
        self.num_registers = SCRATCH_REGISTER
        self._affine_analysis = AffineAnalysis()
        self._used_registers: set[int] = set()

    def emit_value(self, expr: Expr, dest: int) -> None:
        """Compute the score modifier or its derivative, into register `dest`."""
        operands: dict[NodeUse, Operand] = {}
        self._emit_subexprs(expr, True, operands)
        result = self._operand(expr, True, operands)
        self._used_registers.clear()
        if (
            result.kind == "register"
            and self.instructions
            and self.instructions[-1].dest == result.index
            and result.index > SCRATCH_REGISTER
        ):
            last = self.instructions.pop()
            self.instructions.append(TileInstruction(last.op, dest, last.a, last.b, last.c, last.table))
        elif result != Operand("register", dest):
            self.instructions.append(TileInstruction("select", dest, result, result, Operand("immediate", -1)))

    def emit_mask(self, condition: Expr) -> None:
        """Set scores to -inf where the condition is false."""
        operands: dict[NodeUse, Operand] = {}
        self._emit_subexprs(condition, False, operands)
        if condition.op in COMPARISONS and all(a.kind != "float" for a in condition.args) and is_pairwise(condition):
            name, x, y = _as_less_than(condition.op, *condition.args)
            if not self._should_tabulate(condition):
                a, b = (self._int_operand(t, operands) for t in (x, y))
                self.instructions.append(TileInstruction(f"mask_{name}", SCORE_REGISTER, a, b))
                self._used_registers.clear()
                return
        self.instructions.append(TileInstruction("mask", SCORE_REGISTER, self._operand(condition, False, operands)))
        self._used_registers.clear()

    def emit_gradient(self, node: Expr, derivative: Expr, sum_index: int) -> None:
        """Add each pair's gradient, times `derivative`, to the element of sum `sum_index` that the lookup reads."""
        operands: dict[NodeUse, Operand] = {}
        self._emit_subexprs(derivative, True, operands)
        shape = self.shapes[slot_of(node)]
        factor = self._operand(derivative, True, operands)
        a, b = self._address(node, [math.prod(shape[n + 1 :]) for n in range(len(shape))], operands)
        self.instructions.append(TileInstruction("scatter_add", SCRATCH_REGISTER, a, b, factor, sum_index))
        self._used_registers.clear()

    def _allocate_register(self) -> int:
        free = next(
            r
            for r in range(SCRATCH_REGISTER + 1, len(self._used_registers) + SCRATCH_REGISTER + 3)
            if r not in self._used_registers
        )
        self._used_registers.add(free)
        self.num_registers = max(self.num_registers, free)
        return free

    def _emit(self, op: str, *operands: Operand, table: int = 0) -> Operand:
        if op not in OPCODES:
            raise UnsupportedExpr(f"it has no instruction for {op[2:]} of a query and a key together")
        dest = self._allocate_register()
        a, b, c = (*operands, NO_OPERAND, NO_OPERAND)[:3]
        self.instructions.append(TileInstruction(op, dest, a, b, c, table))
        return Operand("register", dest)

    def _emit_subexprs(self, expr: Expr, in_score_dtype: bool, operands: dict[NodeUse, Operand]) -> None:
        """Compute subexpressions before the expression itself, so that a deep one does not recurse deeply."""
        for state in postorder(((expr, in_score_dtype),), self._pairwise_args):
            if state != (expr, in_score_dtype) and state[0].op != "exact":
                self._operand(*state, operands)

    def _pairwise_args(self, node_use: NodeUse) -> list[NodeUse]:
        """The arguments of an expression that are computed in a tile, in the order of their computation."""
        expr, in_score_dtype = node_use
        if expr.op != "exact" and (not is_pairwise(expr) or expr.op == "lookup" or self._should_tabulate(expr)):
            return []
        if expr.op in DISCONTINUOUS_OPS and "s" not in expr.free_variables:
            in_score_dtype = False
        args = (*expr.args[1:], expr.args[0]) if expr.op == "where" else expr.args
        args = args[::-1] if expr.op in ("gt", "ge") else args
        is_condition = expr.kind == "bool" and expr.op not in COMPARISONS
        unconverted_kinds = {"float"} | ({"bool"} if is_condition or expr.op == "where" else set())
        return [(a, in_score_dtype and a.kind in unconverted_kinds) for a in args if is_pairwise(a)]

    def _operand(self, expr: Expr, in_score_dtype: bool, operands: dict[NodeUse, Operand]) -> Operand:
        if expr.op == "exact":
            return self._float_operand(expr.args[0], in_score_dtype, operands)
        if expr.op in DISCONTINUOUS_OPS and "s" not in expr.free_variables:
            in_score_dtype = False
        key = (expr, in_score_dtype)
        if key not in operands:
            operands[key] = self._new_operand(expr, in_score_dtype, operands)
        return operands[key]

    def _new_operand(self, expr: Expr, in_score_dtype: bool, operands: dict[NodeUse, Operand]) -> Operand:
        if expr.op == "constant":
            return Operand("immediate", _constant_bits(expr))
        if expr is variable("s"):
            return Operand("register", SCORE_REGISTER)
        if not is_pairwise(expr):
            return self._precompute(expr, in_score_dtype)
        if self._should_tabulate(expr):
            return self._difference_table(expr, in_score_dtype)
        if expr.kind == "int":
            self.int32_exprs.append(expr)
        if expr.op == "lookup":
            return self._emit_lookup(expr, operands)
        return self._emit_op(expr, in_score_dtype, operands)

    def _precompute(self, expr: Expr, in_score_dtype: bool) -> Operand:
        is_per_key = bool(expr.free_variables & KEY_VARIABLES)
        kind, arrays = ("per_key", self.per_key) if is_per_key else ("per_query", self.per_query)
        array = Precomputed(expr, in_score_dtype)
        if array not in arrays:
            arrays.append(array)
        return Operand(kind, arrays.index(array))

    def _difference_table(self, expr: Expr, in_score_dtype: bool) -> Operand:
        query_variable = "p" if "p" in expr.free_variables else "i"
        table = Table(precomputed=Precomputed(expr, in_score_dtype), query_variable=query_variable)
        if table not in self.tables:
            self.tables.append(table)
        table_index = self.tables.index(table)
        offset = TableOffset(variable(query_variable), False, table_index)
        if offset not in self.per_query:
            self.per_query.append(offset)
        op = "lookup_byte" if expr.kind == "bool" else "lookup"
        on_keys = self._precompute(apply("neg", variable("j")), False)
        return self._emit(op, Operand("per_query", self.per_query.index(offset)), on_keys, table=table_index)

    def _emit_lookup(self, expr: Expr, operands: dict[NodeUse, Operand]) -> Operand:
        a, b = self._address(expr, self.strides[slot_of(expr)], operands)
        table = Table(slot_of(expr))
        if table not in self.tables:
            self.tables.append(table)
        op = "lookup_byte" if expr.kind == "bool" else "lookup"
        return self._emit(op, a, b, table=self.tables.index(table))

    def _address(self, expr: Expr, strides: Sequence[int], operands: dict[NodeUse, Operand]) -> tuple[Operand, Operand]:
        """The index that a lookup reads, as the sum of two operands: one per query, if possible, and one per key."""
        on_lanes = on_keys = on_tiles = constant(0)
        address: Operand | None = None
        for index, size, stride in zip(expr.args, self.shapes[slot_of(expr)], strides, strict=True):
            self.lookup_indices.append((index, size))
            parts = self._affine_analysis.split_query_key(index)
            step = constant(stride)
            if parts is not None:
                on_lanes = apply("add", on_lanes, apply("mul", parts[0], step))
                on_keys = apply("add", on_keys, apply("mul", parts[1], step))
                continue
            part = self._emit("i_mul", self._int_operand(index, operands), self._operand(step, False, operands))
            address = part if address is None else self._emit("i_add", address, part)
            on_tiles = apply("add", on_tiles, apply("mul", index, step))
        a, b = self._operand(on_lanes, False, operands), self._operand(on_keys, False, operands)
        if address is None:
            return a, b
        self.int32_exprs += [on_tiles, apply("add", on_tiles, on_lanes)]  # an address has 32 bits, before b is added
        return self._emit("i_add", address, a), b

    def _emit_op(self, expr: Expr, in_score_dtype: bool, operands: dict[NodeUse, Operand]) -> Operand:
        op, args = expr.op, expr.args
        if op == "where":
            parts = [self._operand_as(expr.kind, a, in_score_dtype, operands) for a in args[1:]]
            return self._emit("select", *parts, self._operand(args[0], in_score_dtype, operands))
        if op == "not":
            return self._emit("i_not", self._operand(args[0], in_score_dtype, operands))
        if op in ("and", "or", "xor"):
            return self._emit(f"i_{op}", *(self._operand(a, in_score_dtype, operands) for a in args))
        if op in COMPARISONS:
            name, *sides = _as_less_than(op, *args)
            if any(a.kind == "float" for a in args):
                return self._emit(f"f_{name}", *(self._float_operand(a, in_score_dtype, operands) for a in sides))
            return self._emit(f"i_{name}", *(self._int_operand(a, operands) for a in sides))
        if op == "to_float":
            return self._float_operand(args[0], in_score_dtype, operands)
        if op in WRAP_RANGES:
            return self._emit_wrap(op, self._int_operand(args[0], operands))
        if op == "to_int":
            if args[0].kind == "float":
                return self._emit("f_to_i", self._operand(args[0], in_score_dtype, operands))
            return self._int_operand(args[0], operands)
        if expr.kind == "bool":  # the minimum or maximum of two booleans
            return self._emit(
                "i_and" if op == "minimum" else "i_or", *(self._operand(a, in_score_dtype, operands) for a in args)
            )
        if op in ("floordiv", "mod"):
            divisor = args[1]
            if expr.kind == "float" or divisor.op != "constant" or divisor.value == 0:
                raise UnsupportedExpr(
                    f"it supports // and % by a constant integer other than 0 only, not by {divisor.op}"
                )
        if op == "pow" and args[1].op == "constant" and args[1].value == 2:
            x = self._operand_as(expr.kind, args[0], in_score_dtype, operands)
            return self._emit(f"{expr.kind[0]}_mul", x, x)
        # multiplying by the reciprocal is accurate to one rounding
        if op == "div" and in_score_dtype and args[1].op == "constant" and args[1].value:
            args = (args[0], constant(1.0 / args[1].value))  # type: ignore[operator]  # constants hold numbers
            op = "mul"
        name = _OPCODE_SUFFIXES.get(op, op)
        if expr.kind == "float":
            if not in_score_dtype and "s" not in expr.free_variables and name not in _CORRECTLY_ROUNDED:
                raise UnsupportedExpr(f"its {name} may round differently from torch's, and a comparison depends on it")
            return self._emit(f"f_{name}", *(self._float_operand(a, in_score_dtype, operands) for a in args))
        return self._emit(f"i_{name}", *(self._int_operand(a, operands) for a in args))

    def _emit_wrap(self, op: str, x: Operand) -> Operand:
        """Wrap an integer to fewer bits. All integers fit into 32 bits: `packing._PrecomputedArrays` checks it."""
        smallest, largest = WRAP_RANGES[op]
        if op == "to_int32":
            return x
        low = self._emit("i_and", x, Operand("immediate", largest - smallest))
        if smallest == 0:
            return low
        sign = self._emit("i_and", low, Operand("immediate", largest + 1))  # the sign bit, which is subtracted twice
        return self._emit("i_sub", self._emit("i_sub", low, sign), sign)

    def _should_tabulate(self, expr: Expr) -> bool:
        """Whether an expression depends on the difference of positions alone, and is long or unsupported in a tile."""
        if (
            "s" in expr.free_variables
            or {"i", "p"} <= expr.free_variables
            or not self._affine_analysis.depends_on_difference_only(expr)
        ):
            return False
        steps = pairwise_nodes(expr, _MIN_NODES_FOR_TABLE)
        return len(steps) >= _MIN_NODES_FOR_TABLE or any(node.op in ("floordiv", "mod") for node in steps)

    def _operand_as(self, kind: str, expr: Expr, in_score_dtype: bool, operands: dict[NodeUse, Operand]) -> Operand:
        if kind == "float":
            return self._float_operand(expr, in_score_dtype, operands)
        return self._int_operand(expr, operands) if kind == "int" else self._operand(expr, in_score_dtype, operands)

    def _float_operand(self, expr: Expr, in_score_dtype: bool, operands: dict[NodeUse, Operand]) -> Operand:
        if expr.kind == "float":
            return self._operand(expr, in_score_dtype, operands)
        if not is_pairwise(expr):
            return self._operand(apply("to_float", expr), in_score_dtype, operands)
        return self._emit("i_to_f", self._int_operand(expr, operands))

    def _int_operand(self, expr: Expr, operands: dict[NodeUse, Operand]) -> Operand:
        if expr.kind == "int":
            return self._operand(expr, False, operands)
        if not is_pairwise(expr):
            return self._operand(apply("to_int", expr), False, operands)
        return self._emit("b_to_i", self._operand(expr, False, operands))


def _as_less_than(op: str, x: Expr, y: Expr) -> tuple[str, Expr, Expr]:
    return {"gt": ("lt", y, x), "ge": ("le", y, x)}.get(op, (op, x, y))


def _constant_bits(expr: Expr) -> int:
    if isinstance(expr.value, bool):
        return -int(expr.value)
    if isinstance(expr.value, float):
        rounded = torch.tensor(expr.value, dtype=torch.float32).item()
        return int(struct.unpack("=i", struct.pack("=f", rounded))[0])
    assert isinstance(expr.value, int)
    if not -(2**31) <= expr.value < 2**31:
        raise UnsupportedExpr(f"it computes integers in 32 bits, and {expr.value} does not fit")
    return expr.value
