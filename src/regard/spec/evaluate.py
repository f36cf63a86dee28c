"""Reading a term: its value on index tensors.

Whole numbers and what is made of them behave as in torch: a division of positions is a float32. Captured floats
that flow into the score are computed in the precision of the score; whatever decides something (a comparison, a
bucket) is computed the same way on every engine, so that all of them see the same mask.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from regard.errors import SpecError
from regard.spec.term import COMPARISONS, LOGIC, ROUNDING, SMOOTH, WRAPS, Term, postorder, slot_of

Index = range | Tensor
Value = Tensor | bool | int | float

# what turns floats into decisions: the arguments are rounded alike on every engine
DECIDES = COMPARISONS | ROUNDING | {"to_int", "floordiv", "sign"}

# A part of a formula, and whether it flows into the score.
State = tuple[Term, bool]

MAX_KEPT = 256  # values of parts that are kept until the end; in a larger formula they go after their last use


@lru_cache(maxsize=256)
def steps_of(term: Term, precise: bool) -> tuple[tuple[State, tuple[State, ...]], ...]:
    """The parts of a formula in the order in which they are computed, each with its arguments."""
    order = postorder(((term, precise),), lambda state: argument_states(*state))
    return tuple((state, tuple(argument_states(*state))) for state in order)


def argument_states(term: Term, precise: bool) -> list[State]:
    """The arguments of a part, with the precision in which the part reads each of them."""
    if term.op == "lookup" or (term.op in DECIDES and "s" not in term.depends):
        precise = False
    return [(a, precise) for a in term.args]


class Positions:
    """Which pairs are looked at: batch elements b, heads h, queries i, keys j, as ranges or index tensors.

    As tensors they broadcast to (batch, heads, queries, keys).
    """

    def __init__(
        self,
        b: Index,
        h: Index,
        i: Index,
        j: Index,
        *,
        start: int | Tensor,
        n_q: int,
        n_k: int,
        device: torch.device,
    ) -> None:
        self.indices: dict[str, Index] = {"b": b, "h": h, "i": i, "j": j}
        self.start = start
        self.lengths = {"n_q": n_q, "n_k": n_k}
        self.device = device
        self._tensors: dict[str, Tensor] = {}

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        b, h, i, j = (len(index) for index in self.indices.values())
        return b, h, i, j

    def __getitem__(self, name: str) -> Value:
        if name in self.lengths:
            return self.lengths[name]
        if name not in self._tensors:
            self._tensors[name] = self._position() if name == "p" else self._along(name)
        return self._tensors[name]

    def _along(self, name: str) -> Tensor:
        index = self.indices[name]
        if isinstance(index, range):
            index = torch.arange(index.start, index.stop, device=self.device)
        shape = [1, 1, 1, 1]
        shape["bhij".index(name)] = -1
        return index.view(shape)

    def _position(self) -> Tensor:
        queries = self._along("i")
        if isinstance(self.start, int):
            return queries + self.start
        return self.start[self._along("b").flatten()].view(-1, 1, 1, 1) + queries


class Evaluation:
    """One look at some positions: gives the value of any term there, computing shared parts once.

    `out_of_range` marks pairs for which a look-up fell outside its tensor; that is an error only if they are seen.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        positions: Positions,
        score: Tensor | None = None,
        precision: torch.dtype | None = None,
    ) -> None:
        self.tensors = tensors
        self.positions = positions
        self.score = score
        self.precision = precision
        self.out_of_range: Tensor | None = None
        self._known: dict[tuple[Term, bool], Value] = {}

    def value(self, term: Term, precise: bool) -> Tensor:
        """A term's value in its own kind; `precise` says that it flows into the score."""
        return torch.as_tensor(self._value(term, precise), device=self.positions.device)

    def condition(self, term: Term) -> Tensor:
        """A mask's value: booleans that broadcast to the positions' shape."""
        return torch.as_tensor(self._value(term, False), device=self.positions.device)

    def number(self, term: Term) -> Tensor:
        """A score's value, in the precision of the score."""
        value = self._value(term, True)
        if not isinstance(value, Tensor):
            return torch.as_tensor(value, device=self.positions.device, dtype=self.precision)  # rounded once
        return value.to(self.precision) if self.precision else value

    def check_range(self, seen: Tensor | None) -> None:
        """Refuse if a pair that is seen looked something up outside its tensor; None means all are seen."""
        if self.out_of_range is None:
            return
        wrong = (self.out_of_range.expand(self.positions.shape) & (True if seen is None else seen)).nonzero()
        if len(wrong):
            found = wrong[0].tolist()
            sizes = ", ".join(str(tuple(t.shape)) for t in self.tensors)
            at = [int(torch.as_tensor(self.positions[n]).flatten()[f]) for n, f in zip("bhij", found, strict=True)]
            raise SpecError(
                f"a look-up in a rule must stay inside its tensor wherever the mask lets a query see; at b={at[0]}, "
                f"h={at[1]}, i={at[2]}, j={at[3]} it does not (tensors of shape {sizes}). Hide such pairs, "
                "or clamp the index."
            )

    def _value(self, term: Term, precise: bool) -> Value:
        known, root = self._known, (term, precise)
        if root not in known:
            steps = steps_of(term, precise)
            if len(steps) > MAX_KEPT:
                return self._value_of_large(root)
            for state, arguments in steps:
                if state not in known:
                    known[state] = self._compute(*state, arguments)
        return known[root]

    def _value_of_large(self, root: State) -> Value:
        """The same for a large formula: a value goes after its last use, or thousands of tiles would be kept."""
        order = list(postorder((root,), lambda state: () if state in self._known else argument_states(*state)))
        uses = Counter(each for state in order for each in argument_states(*state))
        for state in order:
            arguments = argument_states(*state)
            if state not in self._known:
                self._known[state] = self._compute(*state, arguments)
            for each in arguments:
                uses[each] -= 1
                if not uses[each] and each[0].args:
                    self._known.pop(each, None)
        return self._known[root]

    def _compute(self, term: Term, precise: bool, arguments: Sequence[State]) -> Value:
        if term.op == "constant":
            assert not isinstance(term.value, str | None)
            return term.value
        if term.op == "variable":
            if term.value == "s":
                assert self.score is not None, "a mask does not see the score"
                return self.score
            return self.positions[str(term.value)]
        if term.op == "lookup":
            return widened(self._look_up(term), self.precision if precise else None)
        args: list[Any] = [self._known[state] for state in arguments]
        if term.op == "exact":
            return torch.as_tensor(args[0], dtype=self.precision, device=self.positions.device)
        try:
            return applied(term.op, args, self.positions.device)
        except RuntimeError as error:
            if "ZeroDivisionError" not in str(error):
                raise
            raise SpecError(
                f"a formula must not divide a whole number by 0; got {term.op} with a divisor that is 0 at some pair. "
                "Use torch.maximum(divisor, 1)."
            ) from None

    def _look_up(self, term: Term) -> Tensor:
        tensor = self.tensors[slot_of(term)]
        sliced = self.sliced(tensor, term.args)
        if sliced is not None:
            return sliced
        index = tuple(
            self._within(self._value(a, False), size) for a, size in zip(term.args, tensor.shape, strict=True)
        )
        return tensor[index]

    def sliced(self, tensor: Tensor, args: tuple[Term, ...]) -> Tensor | None:
        """The block of the tensor that is looked up, the same memory, where its indices are plain positions."""
        names = [str(a.value) for a in args if a.op == "variable"]
        if len(set(names)) < len(names):
            return None
        index: list[int | slice] = []
        for arg, size in zip(args, tensor.shape, strict=True):
            along = self.positions.indices.get(str(arg.value)) if arg.op == "variable" else None
            if arg.op == "constant" and 0 <= int(arg.value) < size:  # type: ignore[arg-type]  # constants hold numbers
                index.append(int(arg.value))  # type: ignore[arg-type]  # constants hold numbers
            elif isinstance(along, range) and along.stop <= size:
                index.append(slice(along.start, along.stop))
            else:
                return None
        block = tensor[tuple(index)]
        order = sorted(range(len(names)), key=lambda n: "bhij".index(names[n]))
        shape = [1, 1, 1, 1]
        for n in order:
            shape["bhij".index(names[n])] = block.shape[n]
        return block.permute(order).view(shape)

    def places(self, term: Term) -> Tensor:
        """Where a look-up reads, counted through its flattened tensor."""
        place = torch.zeros((1, 1, 1, 1), dtype=torch.int64, device=self.positions.device)
        for arg, size in zip(term.args, self.tensors[slot_of(term)].shape, strict=True):
            index = self._within(self._value(arg, False), size)
            place = place * size + index % size
        return place

    def _within(self, index: Value, size: int) -> Tensor:
        """An index as torch takes it; what lies outside is moved inside and remembered."""
        if not isinstance(index, Tensor):
            index = torch.as_tensor(index, device=self.positions.device)
        if index.numel() == 0 or (int(index.min()) >= -size and int(index.max()) < size):
            return index
        outside = (index < -size) | (index >= size)
        self.out_of_range = outside if self.out_of_range is None else self.out_of_range | outside
        return index.clamp(-size, size - 1)


def widened(entries: Tensor, precision: torch.dtype | None) -> Tensor:
    """What a look-up found: in the precision of the score if one is given, else in float32 or better."""
    if not entries.is_floating_point():  # narrow whole numbers would wrap around
        return entries if entries.dtype == torch.bool else entries.long()
    if precision:
        return entries.to(precision)
    return entries if entries.dtype == torch.float64 else entries.float()


def applied(op: str, args: list[Any], device: torch.device) -> Tensor:
    """op(args). Numbers stay numbers, so that they adapt to the tensors they meet; but torch wants some as tensors."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    for n, a in enumerate(args):
        if isinstance(a, Tensor) or not (n == 0 or op in LOGIC):
            continue
        finer = next((t.dtype for t in tensors if t.is_floating_point()), None) if isinstance(a, float) else None
        args[n] = torch.full((), a, dtype=finer, device=device)
    return FUNCTIONS[op](*args)


def _counted(value: Value) -> Value:
    if isinstance(value, Tensor):
        return value.long() if value.dtype == torch.bool else value
    return int(value) if isinstance(value, bool) else value


def _whole(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Arithmetic on conditions counts them as 0 and 1."""

    def counted(*args: Value) -> Tensor:
        return function(*(_counted(a) for a in args))

    return counted


def _extreme(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """torch.minimum takes no numbers; a number joins in the other's dtype unless it is finer."""

    def chosen(x: Value, y: Value) -> Tensor:
        if not isinstance(x, Tensor):
            x, y = y, x
        assert isinstance(x, Tensor)
        if x.dtype == torch.bool and not isinstance(y, bool) and not (isinstance(y, Tensor) and y.dtype == torch.bool):
            x = x.long()
        if not isinstance(y, Tensor):
            exact = x.dtype if x.is_floating_point() or not isinstance(y, float) else torch.get_default_dtype()
            y = torch.full((), y, dtype=exact, device=x.device)
        return function(x, y)

    return chosen


def _wrapped(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Whole numbers as they wrap around in a narrow dtype."""
    return lambda x: x.to(dtype).long()


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "add": _whole(torch.add),
    "sub": _whole(torch.sub),
    "mul": _whole(torch.mul),
    "div": torch.true_divide,
    "floordiv": _whole(torch.floor_divide),
    "mod": _whole(torch.remainder),
    "pow": torch.pow,
    "neg": _whole(torch.neg),
    "abs": _whole(torch.abs),
    "sign": _whole(torch.sign),
    "minimum": _extreme(torch.minimum),
    "maximum": _extreme(torch.maximum),
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
    **{op: _wrapped(getattr(torch, op.removeprefix("to_"))) for op in WRAPS},
    "to_float": lambda x: x.to(torch.get_default_dtype()) if not x.is_floating_point() else x,
    **{name: getattr(torch, name) for name in SMOOTH | ROUNDING},
}
