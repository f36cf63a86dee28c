"""Evaluate expressions on index tensors.

Dtypes follow torch: the quotient of two positions is a float32. Captured floats that flow into the score are computed
in the dtype of the score. Discontinuous operations, such as comparisons and rounding, are computed identically on every
backend, so that all backends use the same mask.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.cache import memoize
from regard.errors import ArgumentError
from regard.expr.ir import COMPARISONS, ELEMENTARY_FUNCTIONS, LOGIC, ROUNDING, WRAP_RANGES, Expr, postorder, slot_of

Index = range | Tensor
TensorOrNumber = Tensor | bool | int | float

# operations whose arguments must be rounded identically on every backend
DISCONTINUOUS_OPS = COMPARISONS | ROUNDING | {"to_int", "floordiv", "sign"}

# a node, and whether its value is needed in the dtype of the score
NodeUse = tuple[Expr, bool]

MAX_CACHED_NODES = 256  # in a larger expression, a value is freed after its last use


@memoize(256)
def evaluation_order(expr: Expr, in_score_dtype: bool) -> tuple[tuple[NodeUse, tuple[NodeUse, ...]], ...]:
    """Return the nodes of an expression in evaluation order, each with its arguments."""
    order = postorder(((expr, in_score_dtype),), lambda use: argument_uses(*use))
    return tuple((use, tuple(argument_uses(*use))) for use in order)


def argument_uses(expr: Expr, in_score_dtype: bool) -> list[NodeUse]:
    """Return the arguments of a node, and whether each is needed in the dtype of the score."""
    if expr.op == "lookup" or (expr.op in DISCONTINUOUS_OPS and "s" not in expr.free_variables):
        in_score_dtype = False
    return [(a, in_score_dtype) for a in expr.args]


class IndexGrid:
    """The indices at which expressions are evaluated: batch elements b, heads h, queries i and keys j.

    Each is a range or a tensor of indices. `grid[name]` is the value of a variable; it broadcasts to (batch, heads,
    queries, keys).
    """

    def __init__(
        self,
        b: Index,
        h: Index,
        i: Index,
        j: Index,
        *,
        query_offset: int | Tensor,
        n_q: int,
        n_k: int,
        device: torch.device,
    ) -> None:
        self.indices: dict[str, Index] = {"b": b, "h": h, "i": i, "j": j}
        self.query_offset = query_offset
        self.sequence_lengths = {"n_q": n_q, "n_k": n_k}
        self.device = device
        self._tensors: dict[str, Tensor] = {}

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        b, h, i, j = (len(index) for index in self.indices.values())
        return b, h, i, j

    def __getitem__(self, name: str) -> TensorOrNumber:
        if name in self.sequence_lengths:
            return self.sequence_lengths[name]
        if name not in self._tensors:
            self._tensors[name] = self._query_positions() if name == "p" else self._index_tensor(name)
        return self._tensors[name]

    def _index_tensor(self, name: str) -> Tensor:
        index = self.indices[name]
        if isinstance(index, range):
            index = torch.arange(index.start, index.stop, device=self.device)
        shape = [1, 1, 1, 1]
        shape["bhij".index(name)] = -1
        return index.view(shape)

    def _query_positions(self) -> Tensor:
        queries = self._index_tensor("i")
        if isinstance(self.query_offset, int):
            return queries + self.query_offset
        return self.query_offset[self._index_tensor("b").flatten()].view(-1, 1, 1, 1) + queries


class Evaluator:
    """Evaluates expressions on an index grid; shared subexpressions are computed once.

    `out_of_range` marks pairs for which a lookup was out of range. This is an error only if the mask allows the pair.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        grid: IndexGrid,
        scores: Tensor | None = None,
        score_dtype: torch.dtype | None = None,
    ) -> None:
        self.tensors = tensors
        self.grid = grid
        self.scores = scores
        self.score_dtype = score_dtype
        self.out_of_range: Tensor | None = None
        self._cache: dict[tuple[Expr, bool], TensorOrNumber] = {}

    def value(self, expr: Expr, in_score_dtype: bool) -> Tensor:
        """Return the value of an expression; with `in_score_dtype`, captured floats have the dtype of the score."""
        return torch.as_tensor(self._value(expr, in_score_dtype), device=self.grid.device)

    def mask_value(self, expr: Expr) -> Tensor:
        """Return the value of a mask: booleans that broadcast to the shape of the grid."""
        return self.value(expr, False)

    def score_value(self, expr: Expr) -> Tensor:
        """Return the value of a score modifier, in the dtype of the score."""
        value = self._value(expr, True)
        if not isinstance(value, Tensor):
            return torch.as_tensor(value, device=self.grid.device, dtype=self.score_dtype)  # rounded once
        return value.to(self.score_dtype) if self.score_dtype else value

    def check_lookups_in_range(self, visible: Tensor | None) -> None:
        """Raise an error if a lookup was out of range for a visible pair. None means that all pairs are visible."""
        if self.out_of_range is None:
            return
        pairs = (self.out_of_range.expand(self.grid.shape) & (True if visible is None else visible)).nonzero()
        if len(pairs):
            shapes = ", ".join(str(tuple(t.shape)) for t in self.tensors)
            offsets = pairs[0].tolist()
            b, h, i, j = (int(torch.as_tensor(self.grid[n]).flatten()[m]) for n, m in zip("bhij", offsets, strict=True))
            raise ArgumentError(
                f"an index of a captured tensor must be in range for every pair that the mask allows; at b={b}, h={h}, "
                f"i={i}, j={j} it is out of range (tensors of shape {shapes}). Mask such pairs, or clamp the index."
            )

    def _value(self, expr: Expr, in_score_dtype: bool) -> TensorOrNumber:
        cache, root = self._cache, (expr, in_score_dtype)
        if root not in cache:
            order = evaluation_order(expr, in_score_dtype)
            if len(order) > MAX_CACHED_NODES:
                return self._value_freeing_unused(root)
            for use, arguments in order:
                if use not in cache:
                    cache[use] = self._compute(*use, arguments)
        return cache[root]

    def _value_freeing_unused(self, root: NodeUse) -> TensorOrNumber:
        """Evaluate a large expression, freeing each value after its last use to save memory."""
        order = list(postorder((root,), lambda use: () if use in self._cache else argument_uses(*use)))
        remaining = Counter(argument for use in order for argument in argument_uses(*use))
        for use in order:
            arguments = argument_uses(*use)
            if use not in self._cache:
                self._cache[use] = self._compute(*use, arguments)
            for argument in arguments:
                remaining[argument] -= 1
                if not remaining[argument] and argument[0].args:
                    self._cache.pop(argument, None)
        return self._cache[root]

    def _compute(self, expr: Expr, in_score_dtype: bool, arguments: Sequence[NodeUse]) -> TensorOrNumber:
        if expr.op == "constant":
            assert not isinstance(expr.value, str | None)
            return expr.value
        if expr.op == "variable":
            if expr.value == "s":
                assert self.scores is not None, "a mask does not depend on the score"
                return self.scores
            return self.grid[str(expr.value)]
        if expr.op == "lookup":
            return upcast_entries(self._lookup_value(expr), self.score_dtype if in_score_dtype else None)
        args: list[Any] = [self._cache[argument] for argument in arguments]
        if expr.op == "exact":
            return torch.as_tensor(args[0], dtype=self.score_dtype, device=self.grid.device)
        try:
            return compute_op(expr.op, args, self.grid.device)
        except RuntimeError as error:
            if "ZeroDivisionError" not in str(error):
                raise
            raise ArgumentError(
                f"an expression must not divide an integer by 0; got {expr.op} with a divisor that is 0 for some pair. "
                "Use torch.maximum(divisor, 1)."
            ) from None

    def _lookup_value(self, expr: Expr) -> Tensor:
        tensor = self.tensors[slot_of(expr)]
        sliced = self.slice_of_tensor(tensor, expr.args)
        if sliced is not None:
            return sliced
        index = tuple(
            self._clamp_index(self._value(a, False), size) for a, size in zip(expr.args, tensor.shape, strict=True)
        )
        return tensor[index]

    def slice_of_tensor(self, tensor: Tensor, args: tuple[Expr, ...]) -> Tensor | None:
        """Return the looked-up block as a view of the tensor if the indices are plain positions, else None."""
        names = [str(a.value) for a in args if a.op == "variable"]
        if len(set(names)) < len(names):
            return None
        index: list[int | slice] = []
        for arg, size in zip(args, tensor.shape, strict=True):
            positions = self.grid.indices.get(str(arg.value)) if arg.op == "variable" else None
            if arg.op == "constant" and 0 <= int(arg.value) < size:  # type: ignore[arg-type]  # constants hold numbers
                index.append(int(arg.value))  # type: ignore[arg-type]  # constants hold numbers
            elif isinstance(positions, range) and positions.stop <= size:
                index.append(slice(positions.start, positions.stop))
            else:
                return None
        block = tensor[tuple(index)]
        order = sorted(range(len(names)), key=lambda n: "bhij".index(names[n]))
        shape = [1, 1, 1, 1]
        for n in order:
            shape["bhij".index(names[n])] = block.shape[n]
        return block.permute(order).view(shape)

    def flat_indices(self, expr: Expr) -> Tensor:
        """Return the indices that a lookup reads in the flattened tensor."""
        flat_index = torch.zeros((1, 1, 1, 1), dtype=torch.int64, device=self.grid.device)
        for arg, size in zip(expr.args, self.tensors[slot_of(expr)].shape, strict=True):
            index = self._clamp_index(self._value(arg, False), size)
            flat_index = flat_index * size + index % size
        return flat_index

    def _clamp_index(self, index: TensorOrNumber, size: int) -> Tensor:
        """Clamp an index to the valid range, and record the pairs for which it was out of range."""
        if not isinstance(index, Tensor):
            index = torch.as_tensor(index, device=self.grid.device)
        if index.numel() == 0 or (int(index.min()) >= -size and int(index.max()) < size):
            return index
        outside = (index < -size) | (index >= size)
        self.out_of_range = outside if self.out_of_range is None else self.out_of_range | outside
        return index.clamp(-size, size - 1)


def upcast_entries(entries: Tensor, score_dtype: torch.dtype | None) -> Tensor:
    """Convert looked-up entries to the dtype of the score if it is given, else to float32 or float64."""
    if not entries.is_floating_point():  # narrow integers would wrap around
        return entries if entries.dtype == torch.bool else entries.long()
    if score_dtype:
        return entries.to(score_dtype)
    return entries if entries.dtype == torch.float64 else entries.float()


def compute_op(op: str, args: list[Any], device: torch.device) -> Tensor:
    """Return op(*args). Python numbers stay numbers, so that they adapt to tensors, unless torch requires a tensor."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    for n, a in enumerate(args):
        if isinstance(a, Tensor) or not (n == 0 or op in LOGIC):
            continue
        dtype = next((t.dtype for t in tensors if t.is_floating_point()), None) if isinstance(a, float) else None
        args[n] = torch.full((), a, dtype=dtype, device=device)
    return TORCH_IMPLEMENTATIONS[op](*args)


def _bool_to_int(value: TensorOrNumber) -> TensorOrNumber:
    if isinstance(value, Tensor):
        return value.long() if value.dtype == torch.bool else value
    return int(value) if isinstance(value, bool) else value


def _with_bools_as_ints(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a function so that booleans count as 0 and 1."""

    def wrapped(*args: TensorOrNumber) -> Tensor:
        return function(*(_bool_to_int(a) for a in args))

    return wrapped


def _min_or_max(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Wrap torch.minimum or torch.maximum so that it accepts Python numbers, with torch's type promotion."""

    def wrapped(x: TensorOrNumber, y: TensorOrNumber) -> Tensor:
        if not isinstance(x, Tensor):
            x, y = y, x
        assert isinstance(x, Tensor)
        if x.dtype == torch.bool and not isinstance(y, bool) and not (isinstance(y, Tensor) and y.dtype == torch.bool):
            x = x.long()
        if not isinstance(y, Tensor):
            dtype = x.dtype if x.is_floating_point() or not isinstance(y, float) else torch.get_default_dtype()
            y = torch.full((), y, dtype=dtype, device=x.device)
        return function(x, y)

    return wrapped


def _wrap_tensor(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Return a function that wraps integers around in a narrow dtype."""
    return lambda x: x.to(dtype).long()


TORCH_IMPLEMENTATIONS: dict[str, Callable[..., Tensor]] = {
    "add": _with_bools_as_ints(torch.add),
    "sub": _with_bools_as_ints(torch.sub),
    "mul": _with_bools_as_ints(torch.mul),
    "div": torch.true_divide,
    "floordiv": _with_bools_as_ints(torch.floor_divide),
    "mod": _with_bools_as_ints(torch.remainder),
    "pow": torch.pow,
    "neg": _with_bools_as_ints(torch.neg),
    "abs": _with_bools_as_ints(torch.abs),
    "sign": _with_bools_as_ints(torch.sign),
    "minimum": _min_or_max(torch.minimum),
    "maximum": _min_or_max(torch.maximum),
    "bitand": torch.bitwise_and,
    "bitor": torch.bitwise_or,
    "bitxor": torch.bitwise_xor,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "xor": torch.logical_xor,
    "not": torch.logical_not,
    "where": torch.where,
    "to_int": lambda x: x.long(),
    **{op: _wrap_tensor(getattr(torch, op.removeprefix("to_"))) for op in WRAP_RANGES},
    "to_float": lambda x: x.to(torch.get_default_dtype()) if not x.is_floating_point() else x,
    **{name: getattr(torch, name) for name in ELEMENTARY_FUNCTIONS | ROUNDING},
}
