"""Random formulas in small worlds: lengths, a start and captured tensors that are small enough to try every position.

Everything is drawn from one seed, so an example that fails once fails always.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.errors import SpecError
from regard.spec.bounds import Regions
from regard.spec.evaluate import Evaluation, Positions
from regard.spec.term import SMOOTH, Kind, Term, apply, constant, lookup, variable

WHOLE_VARIABLES = ("b", "h", "i", "j", "p", "n_q", "n_k")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
WHOLE_OPERATIONS = (
    *("add", "sub", "sub", "mul", "floordiv", "mod", "minimum", "maximum", "neg", "abs", "sign", "pow"),
    *("bitand", "bitor", "bitxor", "shift_left", "shift_right", "where", "to_int", "bool", "square"),
)
REAL_OPERATIONS = (
    *("add", "sub", "mul", "mul", "div", "div", "floordiv", "mod", "pow", "minimum", "maximum", "neg", "abs"),
    *("sign", "floor", "ceil", "round", "trunc", "where", "to_float", "square", "smooth", "mixed"),
)


@dataclass(frozen=True)
class World:
    """Positions and tensors a term is read in; look-up number n reads `tensors[n]`."""

    lengths: tuple[int, int, int, int]
    start: int | Tensor
    tensors: tuple[Tensor, ...]

    def positions(self) -> Positions:
        return Positions(
            *(range(n) for n in self.lengths),
            start=self.start,
            n_q=self.lengths[2],
            n_k=self.lengths[3],
            device=torch.device("cpu"),
        )

    def values(self, term: Term) -> np.ndarray:
        """The term at every position, (batch, heads, n_q, n_k)."""
        found = Evaluation(self.tensors, self.positions()).condition(term)
        return found.expand(self.lengths).numpy()

    def values_or_none(self, term: Term) -> np.ndarray | None:
        """The same; None where the term has no value (`test_evaluate` covers those errors)."""
        try:
            return self.values(term)
        except (RuntimeError, TypeError, SpecError):
            return None


def world(seed: int, *, scalars: bool = False, narrow: bool = False, finite: bool = False) -> World:
    """Lengths of 24 to 40, one start for all or one a batch element, and tables of every kind.

    `scalars` adds tensors of no dimension, `narrow` whole numbers of 8 and 32 bits; `finite` keeps NaN and inf out.
    """
    draw = random.Random(seed)
    batch, heads = draw.randint(1, 3), draw.randint(1, 3)
    n_q, n_k = draw.randint(24, 40), draw.randint(24, 40)
    starts: list[int | Tensor] = [
        n_k - n_q,
        0,
        draw.randint(-12, 12),
        torch.tensor([draw.randint(-12, 12) for _ in range(batch)]),
    ]
    noise = torch.Generator().manual_seed(seed)

    def whole(*shape: int, low: int = -9, high: int = 10) -> Tensor:
        return torch.randint(low, high, shape, generator=noise)

    def real(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=noise, dtype=torch.float64).to(dtype)

    def wild(table: Tensor) -> Tensor:
        if not finite:
            flat = table.view(-1)
            for special in (torch.nan, torch.inf, -torch.inf, torch.inf):
                flat[draw.randrange(len(flat))] = special
        return table

    tensors = [
        whole(batch, n_k).sort(dim=-1).values,
        whole(n_q),
        whole(heads, low=1, high=6),
        whole(7, 5),
        whole(batch, heads, 8),
        whole(n_k, low=0, high=4),
        torch.rand(n_q, n_k, generator=noise) < 0.4,
        torch.ones(n_q, n_k, dtype=torch.bool).tril(),
        torch.rand(batch, n_k, generator=noise) < 0.9,
        real(heads),
        wild(real(n_k)),
        real(11, 3),
        real(9, dtype=torch.float64),
        wild(real(batch, n_q, dtype=torch.float64)),
        wild(real(n_q, n_k)),
        real(13, dtype=torch.bfloat16),
        real(n_k, dtype=torch.float16).sort().values,
    ]
    if scalars:
        tensors += [torch.tensor(5), torch.tensor(0.3), torch.tensor(1.7, dtype=torch.float64), torch.tensor(True)]
    if narrow:
        tensors += [whole(n_k, low=0, high=9).to(torch.uint8), whole(n_q, low=-90, high=90).to(torch.int8)]
        tensors += [whole(n_q, low=-70_000, high=70_000).to(torch.int32)]
    return World((batch, heads, n_q, n_k), draw.choice(starts), tuple(tensors))


class Writer:
    """Draws formulas over all operations of `regard.spec.term` for a world."""

    def __init__(self, where: World, seed: int, *, smooth: bool = True, inside: bool = False) -> None:
        self.draw = random.Random(seed)
        self.tensors = where.tensors
        self.smooth = smooth
        self.inside = inside  # whether every look-up stays in its tensor

    def condition(self, depth: int) -> Term:
        choose = self.draw.random()
        if depth <= 0 or choose < 0.08:
            return self.looked_up("bool", depth) or self.compared(depth)
        if choose < 0.55:
            return self.compared(depth)
        if choose < 0.85:
            op = self.draw.choice(("and", "and", "or", "or", "xor"))
            left, right = self.condition(depth - 1), self.condition(depth - 1)
            return apply("or" if "constant" in (left.op, right.op) else op, left, right)
        if choose < 0.93:
            return apply("not", self.condition(depth - 1))
        if choose < 0.97:
            return apply("where", *(self.condition(depth - 1) for _ in range(3)))
        return apply("ne", self.whole(depth - 1), constant(0))

    def compared(self, depth: int) -> Term:
        op = self.draw.choice(COMPARISONS)
        kinds = self.draw.choice((("int", "int"), ("int", "int"), ("float", "float"), ("int", "float")))
        left, right = (self.number(kind, depth - 1) for kind in kinds)
        # torch compares tensors with numbers, not numbers with tensors, and Python turns `3 < i` into `i > 3`
        return apply(op, *((left, right) if left.depends & set("bhijp") or left.op == "lookup" else (right, left)))

    def number(self, kind: str, depth: int) -> Term:
        return self.whole(depth) if kind == "int" else self.real(depth)

    def whole(self, depth: int) -> Term:
        if depth <= 0 or self.draw.random() < 0.2:
            return self.whole_leaf(depth)
        op = self.draw.choice(WHOLE_OPERATIONS)
        below = depth - 1
        if op in ("neg", "abs", "sign"):
            return apply(op, self.whole(below))
        if op in ("floordiv", "mod"):
            return apply(op, self.whole(below), self.divisor(below))
        if op == "pow":
            return apply(op, self.whole(below), constant(self.draw.randint(0, 3)))
        if op.startswith("shift"):
            return apply(op, self.whole(below), constant(self.draw.randint(0, 4)))
        if op == "where":
            return apply(op, self.condition(below), self.whole(below), self.whole(below))
        if op == "to_int":
            return apply(op, self.real(below))
        if op == "bool":  # conditions count as 0 and 1
            return apply(self.draw.choice(("add", "sub", "mul")), self.condition(below), self.whole(below))
        if op == "square":
            same = self.whole(below)
            return apply(self.draw.choice(("mul", "sub")), same, same)
        return apply(op, self.whole(below), self.whole(below))

    def whole_leaf(self, depth: int) -> Term:
        choose = self.draw.random()
        if choose < 0.6:
            return variable(self.draw.choice(WHOLE_VARIABLES[:5] * 3 + WHOLE_VARIABLES))
        if choose < 0.8:
            return constant(self.draw.choice((0, 1, 2, 3, 5, 8, 13, 20, 33, -1, -4, -17)))
        return self.looked_up("int", depth) or variable("j")

    def divisor(self, depth: int) -> Term:
        """Whole and never zero: torch refuses to divide whole numbers by zero."""
        if self.draw.random() < 0.7:
            return constant(self.draw.choice((1, 2, 3, 4, 7, 8, 16, 31, -1, -3, -8)))
        return apply("maximum", self.whole(depth), constant(self.draw.randint(1, 4)))

    def real(self, depth: int) -> Term:
        if depth <= 0 or self.draw.random() < 0.2:
            return self.real_leaf(depth)
        op = self.draw.choice(REAL_OPERATIONS)
        below = depth - 1
        if op in ("neg", "abs", "sign", "floor", "ceil", "round", "trunc"):
            return apply(op, self.real(below))
        if op == "smooth":
            return apply(self.draw.choice(sorted(SMOOTH)), self.real(below)) if self.smooth else self.real(below)
        if op == "pow":
            return apply(op, self.real(below), self.draw.choice((constant(2), constant(3), constant(0.5))))
        if op == "where":
            return apply(op, self.condition(below), self.real(below), self.number_of_any_kind(below))
        if op == "to_float":
            return apply(op, self.whole(below))
        if op == "square":
            same = self.real(below)
            return apply(self.draw.choice(("mul", "sub")), same, same)
        if op == "div":
            return apply(op, self.number_of_any_kind(below), self.number_of_any_kind(below))
        if op == "mixed":
            one, other = self.real(below), self.whole(below)
            op = self.draw.choice(("add", "sub", "mul", "minimum", "maximum"))
            return apply(op, *((one, other) if self.draw.random() < 0.5 else (other, one)))
        return apply(op, self.real(below), self.real(below))

    def number_of_any_kind(self, depth: int) -> Term:
        return self.number(self.draw.choice(("int", "float")), depth)

    def real_leaf(self, depth: int) -> Term:
        choose = self.draw.random()
        if choose < 0.3:
            return constant(self.draw.choice((0.0, 0.1, 0.5, 1.0, 2.5, -0.3, -7.0, 1e-3)))
        if choose < 0.5:
            return apply("div", variable(self.draw.choice("hijp")), constant(self.draw.choice((3, 7, 10))))
        return self.looked_up("float", depth) or apply("to_float", variable("i"))

    def looked_up(self, kind: Kind, depth: int) -> Term | None:
        """A look-up at positions or at any whole numbers: below zero and far outside, too."""
        slots = [n for n, t in enumerate(self.tensors) if kind_of(t) == kind]
        slot = self.draw.choice(slots)
        indices = []
        for size in self.tensors[slot].shape:
            if depth > 0 and self.draw.random() < 0.4:
                indices.append(self.whole(depth - 1))
            elif self.draw.random() < 0.2:
                indices.append(constant(self.draw.randrange(-size, size)))
            else:
                one, other = (variable(self.draw.choice("bhijp")) for _ in range(2))
                indices.append(one if self.draw.random() < 0.6 else apply("sub", one, other))
        if self.inside:
            sizes = self.tensors[slot].shape
            indices = [apply("mod", index, constant(size)) for index, size in zip(indices, sizes, strict=True)]
        return lookup(slot, tuple(indices), kind)


def kind_of(tensor: Tensor) -> Kind:
    return "bool" if tensor.dtype == torch.bool else "float" if tensor.is_floating_point() else "int"


def random_regions(where: World, seed: int, count: int) -> Regions:
    """Rectangles of every shape: single positions, rows, columns, tiles, the whole plane."""
    draw = np.random.default_rng(seed)
    batch, heads, n_q, n_k = where.lengths
    first_i, first_j = draw.integers(0, n_q, count), draw.integers(0, n_k, count)
    reach = 2 ** draw.integers(0, 6, (2, count)) - draw.integers(0, 2, (2, count))
    return Regions(
        b=draw.integers(0, batch, count),
        h=draw.integers(0, heads, count),
        i_first=first_i,
        i_last=np.minimum(first_i + np.maximum(reach[0], 1), n_q) - 1,
        j_first=first_j,
        j_last=np.minimum(first_j + np.maximum(reach[1], 1), n_k) - 1,
    )


def tiles(where: World, size: int) -> Regions:
    """Every tile of a grid, for every batch element and head, as the search for empty tiles asks about them."""
    batch, heads, n_q, n_k = where.lengths
    grids = np.arange(batch), np.arange(heads), np.arange(0, n_q, size), np.arange(0, n_k, size)
    b, h, i, j = (x.ravel() for x in np.meshgrid(*grids, indexing="ij"))
    return Regions(b, h, i, np.minimum(i + size, n_q) - 1, j, np.minimum(j + size, n_k) - 1)


def parts(values: np.ndarray, regions: Regions) -> Sequence[np.ndarray]:
    """The values inside each region."""
    ends = (regions.b, regions.h, regions.i_first, regions.i_last, regions.j_first, regions.j_last)
    return [values[b, h, i : i_end + 1, j : j_end + 1] for b, h, i, i_end, j, j_end in zip(*ends, strict=True)]
