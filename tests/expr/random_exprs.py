"""Random expressions, and random captured tensors and shapes small enough to evaluate every position.

Everything follows from one seed, so a failing example can be repeated.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.expr.bounds import IndexBoxes
from regard.expr.evaluate import Evaluator, IndexGrid
from regard.expr.ir import ELEMENTARY_FUNCTIONS, Expr, ScalarKind, apply, constant, lookup, variable

INTEGER_VARIABLES = ("b", "h", "i", "j", "p", "n_q", "n_k")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
INTEGER_OPS = (
    *("add", "sub", "sub", "mul", "floordiv", "mod", "minimum", "maximum", "neg", "abs", "sign", "pow"),
    *("bitand", "bitor", "bitxor", "shift_left", "shift_right", "where", "to_int", "bool", "square"),
)
FLOAT_OPS = (
    *("add", "sub", "mul", "mul", "div", "div", "floordiv", "mod", "pow", "minimum", "maximum", "neg", "abs"),
    *("sign", "floor", "ceil", "round", "trunc", "where", "to_float", "square", "elementary", "mixed"),
)


@dataclass(frozen=True)
class EvalContext:
    """The score shape, query offset and captured tensors with which expressions are evaluated."""

    score_shape: tuple[int, int, int, int]
    query_offset: int | Tensor
    tensors: tuple[Tensor, ...]

    def grid(self) -> IndexGrid:
        return IndexGrid(
            *(range(n) for n in self.score_shape),
            query_offset=self.query_offset,
            n_q=self.score_shape[2],
            n_k=self.score_shape[3],
            device=torch.device("cpu"),
        )

    def values(self, expr: Expr) -> np.ndarray:
        """Return the value at every position, (batch, heads, n_q, n_k)."""
        value = Evaluator(self.tensors, self.grid()).mask_value(expr)
        return value.expand(self.score_shape).numpy()

    def values_or_none(self, expr: Expr) -> np.ndarray | None:
        """Like `values`, but return None if evaluation raises an error (`test_evaluate` covers the errors)."""
        try:
            return self.values(expr)
        except (RuntimeError, TypeError, ArgumentError):
            return None


def random_context(seed: int, *, scalars: bool = False, narrow: bool = False, finite: bool = False) -> EvalContext:
    """Return lengths of 24 to 40, a query offset (one int, or one per batch element), and tensors of every kind.

    `scalars` adds scalar tensors, `narrow` adds integers of 8 and 32 bits, and `finite` leaves out NaN and inf.
    """
    rng = random.Random(seed)
    batch, heads = rng.randint(1, 3), rng.randint(1, 3)
    n_q, n_k = rng.randint(24, 40), rng.randint(24, 40)
    query_offsets: list[int | Tensor] = [
        n_k - n_q,
        0,
        rng.randint(-12, 12),
        torch.tensor([rng.randint(-12, 12) for _ in range(batch)]),
    ]
    generator = torch.Generator().manual_seed(seed)

    def integers(*shape: int, low: int = -9, high: int = 10) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    def with_nonfinite(table: Tensor) -> Tensor:
        if not finite:
            flat = table.view(-1)
            for special in (torch.nan, torch.inf, -torch.inf, torch.inf):
                flat[rng.randrange(len(flat))] = special
        return table

    tensors = [
        integers(batch, n_k).sort(dim=-1).values,
        integers(n_q),
        integers(heads, low=1, high=6),
        integers(7, 5),
        integers(batch, heads, 8),
        integers(n_k, low=0, high=4),
        torch.rand(n_q, n_k, generator=generator) < 0.4,
        torch.ones(n_q, n_k, dtype=torch.bool).tril(),
        torch.rand(batch, n_k, generator=generator) < 0.9,
        floats(heads),
        with_nonfinite(floats(n_k)),
        floats(11, 3),
        floats(9, dtype=torch.float64),
        with_nonfinite(floats(batch, n_q, dtype=torch.float64)),
        with_nonfinite(floats(n_q, n_k)),
        floats(13, dtype=torch.bfloat16),
        floats(n_k, dtype=torch.float16).sort().values,
    ]
    if scalars:
        tensors += [torch.tensor(5), torch.tensor(0.3), torch.tensor(1.7, dtype=torch.float64), torch.tensor(True)]
    if narrow:
        tensors += [integers(n_k, low=0, high=9).to(torch.uint8), integers(n_q, low=-90, high=90).to(torch.int8)]
        tensors += [integers(n_q, low=-70_000, high=70_000).to(torch.int32)]
    return EvalContext((batch, heads, n_q, n_k), rng.choice(query_offsets), tuple(tensors))


class ExprGenerator:
    """Generates random expressions over all operations of `regard.expr.ir`, for the tensors of a context.

    With `in_range`, every index of a lookup is in range. Without `elementary`, exp, log and the like are not used.
    """

    def __init__(self, context: EvalContext, seed: int, *, elementary: bool = True, in_range: bool = False) -> None:
        self.rng = random.Random(seed)
        self.tensors = context.tensors
        self.elementary = elementary
        self.in_range = in_range

    def boolean(self, depth: int) -> Expr:
        chance = self.rng.random()
        if depth <= 0 or chance < 0.08:
            return self.lookup("bool", depth) or self.comparison(depth)
        if chance < 0.55:
            return self.comparison(depth)
        if chance < 0.85:
            op = self.rng.choice(("and", "and", "or", "or", "xor"))
            left, right = self.boolean(depth - 1), self.boolean(depth - 1)
            return apply("or" if "constant" in (left.op, right.op) else op, left, right)
        if chance < 0.93:
            return apply("not", self.boolean(depth - 1))
        if chance < 0.97:
            return apply("where", *(self.boolean(depth - 1) for _ in range(3)))
        return apply("ne", self.integer(depth - 1), constant(0))

    def comparison(self, depth: int) -> Expr:
        op = self.rng.choice(COMPARISONS)
        kinds = self.rng.choice((("int", "int"), ("int", "int"), ("float", "float"), ("int", "float")))
        left, right = (self.number(kind, depth - 1) for kind in kinds)
        # the tensor comes first: torch cannot compare a number with a tensor, and Python turns `3 < i` into `i > 3`
        return apply(
            op, *((left, right) if left.free_variables & set("bhijp") or left.op == "lookup" else (right, left))
        )

    def number(self, kind: str, depth: int) -> Expr:
        return self.integer(depth) if kind == "int" else self.floating(depth)

    def integer(self, depth: int) -> Expr:
        if depth <= 0 or self.rng.random() < 0.2:
            return self.integer_leaf(depth)
        op = self.rng.choice(INTEGER_OPS)
        child_depth = depth - 1
        if op in ("neg", "abs", "sign"):
            return apply(op, self.integer(child_depth))
        if op in ("floordiv", "mod"):
            return apply(op, self.integer(child_depth), self.divisor(child_depth))
        if op == "pow":
            return apply(op, self.integer(child_depth), constant(self.rng.randint(0, 3)))
        if op.startswith("shift"):
            return apply(op, self.integer(child_depth), constant(self.rng.randint(0, 4)))
        if op == "where":
            return apply(op, self.boolean(child_depth), self.integer(child_depth), self.integer(child_depth))
        if op == "to_int":
            return apply(op, self.floating(child_depth))
        if op == "bool":  # booleans count as 0 and 1
            return apply(self.rng.choice(("add", "sub", "mul")), self.boolean(child_depth), self.integer(child_depth))
        if op == "square":
            same = self.integer(child_depth)
            return apply(self.rng.choice(("mul", "sub")), same, same)
        return apply(op, self.integer(child_depth), self.integer(child_depth))

    def integer_leaf(self, depth: int) -> Expr:
        chance = self.rng.random()
        if chance < 0.6:
            return variable(self.rng.choice(INTEGER_VARIABLES[:5] * 3 + INTEGER_VARIABLES))
        if chance < 0.8:
            return constant(self.rng.choice((0, 1, 2, 3, 5, 8, 13, 20, 33, -1, -4, -17)))
        return self.lookup("int", depth) or variable("j")

    def divisor(self, depth: int) -> Expr:
        """Return an integer expression that is never zero, since torch raises an error for integer division by zero."""
        if self.rng.random() < 0.7:
            return constant(self.rng.choice((1, 2, 3, 4, 7, 8, 16, 31, -1, -3, -8)))
        return apply("maximum", self.integer(depth), constant(self.rng.randint(1, 4)))

    def floating(self, depth: int) -> Expr:
        if depth <= 0 or self.rng.random() < 0.2:
            return self.float_leaf(depth)
        op = self.rng.choice(FLOAT_OPS)
        child_depth = depth - 1
        if op in ("neg", "abs", "sign", "floor", "ceil", "round", "trunc"):
            return apply(op, self.floating(child_depth))
        if op == "elementary":
            return (
                apply(self.rng.choice(sorted(ELEMENTARY_FUNCTIONS)), self.floating(child_depth))
                if self.elementary
                else self.floating(child_depth)
            )
        if op == "pow":
            return apply(op, self.floating(child_depth), self.rng.choice((constant(2), constant(3), constant(0.5))))
        if op == "where":
            return apply(
                op, self.boolean(child_depth), self.floating(child_depth), self.number_of_random_kind(child_depth)
            )
        if op == "to_float":
            return apply(op, self.integer(child_depth))
        if op == "square":
            same = self.floating(child_depth)
            return apply(self.rng.choice(("mul", "sub")), same, same)
        if op == "div":
            return apply(op, self.number_of_random_kind(child_depth), self.number_of_random_kind(child_depth))
        if op == "mixed":
            one, other = self.floating(child_depth), self.integer(child_depth)
            op = self.rng.choice(("add", "sub", "mul", "minimum", "maximum"))
            return apply(op, *((one, other) if self.rng.random() < 0.5 else (other, one)))
        return apply(op, self.floating(child_depth), self.floating(child_depth))

    def number_of_random_kind(self, depth: int) -> Expr:
        return self.number(self.rng.choice(("int", "float")), depth)

    def float_leaf(self, depth: int) -> Expr:
        chance = self.rng.random()
        if chance < 0.3:
            return constant(self.rng.choice((0.0, 0.1, 0.5, 1.0, 2.5, -0.3, -7.0, 1e-3)))
        if chance < 0.5:
            return apply("div", variable(self.rng.choice("hijp")), constant(self.rng.choice((3, 7, 10))))
        return self.lookup("float", depth) or apply("to_float", variable("i"))

    def lookup(self, kind: ScalarKind, depth: int) -> Expr | None:
        """Return a lookup at positions or other integers, which may be negative or out of range."""
        slots = [n for n, t in enumerate(self.tensors) if kind_of(t) == kind]
        slot = self.rng.choice(slots)
        indices = []
        for size in self.tensors[slot].shape:
            if depth > 0 and self.rng.random() < 0.4:
                indices.append(self.integer(depth - 1))
            elif self.rng.random() < 0.2:
                indices.append(constant(self.rng.randrange(-size, size)))
            else:
                one, other = (variable(self.rng.choice("bhijp")) for _ in range(2))
                indices.append(one if self.rng.random() < 0.6 else apply("sub", one, other))
        if self.in_range:
            sizes = self.tensors[slot].shape
            indices = [apply("mod", index, constant(size)) for index, size in zip(indices, sizes, strict=True)]
        return lookup(slot, tuple(indices), kind)


def kind_of(tensor: Tensor) -> ScalarKind:
    return "bool" if tensor.dtype == torch.bool else "float" if tensor.is_floating_point() else "int"


def random_boxes(context: EvalContext, seed: int, count: int) -> IndexBoxes:
    """Return boxes of every shape: single positions, rows, columns, tiles, all positions."""
    rng = np.random.default_rng(seed)
    batch, heads, n_q, n_k = context.score_shape
    first_i, first_j = rng.integers(0, n_q, count), rng.integers(0, n_k, count)
    sizes = 2 ** rng.integers(0, 6, (2, count)) - rng.integers(0, 2, (2, count))
    return IndexBoxes(
        b=rng.integers(0, batch, count),
        h=rng.integers(0, heads, count),
        i_first=first_i,
        i_last=np.minimum(first_i + np.maximum(sizes[0], 1), n_q) - 1,
        j_first=first_j,
        j_last=np.minimum(first_j + np.maximum(sizes[1], 1), n_k) - 1,
    )


def tile_boxes(context: EvalContext, size: int) -> IndexBoxes:
    """Return every tile of a grid, for every batch element and head."""
    batch, heads, n_q, n_k = context.score_shape
    grids = np.arange(batch), np.arange(heads), np.arange(0, n_q, size), np.arange(0, n_k, size)
    b, h, i, j = (x.ravel() for x in np.meshgrid(*grids, indexing="ij"))
    return IndexBoxes(b, h, i, np.minimum(i + size, n_q) - 1, j, np.minimum(j + size, n_k) - 1)


def box_values(values: np.ndarray, boxes: IndexBoxes) -> Sequence[np.ndarray]:
    """Return the values in each box."""
    ends = (boxes.b, boxes.h, boxes.i_first, boxes.i_last, boxes.j_first, boxes.j_last)
    return [values[b, h, i : i_end + 1, j : j_end + 1] for b, h, i, i_end, j, j_end in zip(*ends, strict=True)]
