"""Reading a term: as a function of one pair, which is how FlexAttention takes a mask and a rule.

torch makes a kernel of such a function, or maps it over all pairs. So the formula is laid out beforehand, as steps that
are torch operations on earlier results. The numbers are those of `evaluate`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.spec.bounds import Bounds, Regions
from regard.spec.evaluate import DECIDES, State, applied, argument_states, widened
from regard.spec.formula import Start
from regard.spec.regions import Lengths
from regard.spec.term import SMOOTH, VARIABLES, Number, Term, apply, postorder, slot_of, variable, walk

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
ScoreFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

# where a tensor without dimensions is looked up: a number that belongs to no pair would adapt to the dtype of others
_NOTHING = apply("sub", variable("b"), variable("b"))
_ROUNDS = SMOOTH | {"add", "sub", "mul", "div", "floordiv", "mod", "pow"}


class Closures:
    """The functions of one call. Where it starts and how long it is are captured tensors: other lengths need no other
    kernel."""

    def __init__(self, tensors: Sequence[Tensor], lengths: Lengths, start: Start, device: torch.device) -> None:
        batch, _, n_q, n_k = lengths
        self.tensors = [t.detach() if t.dim() else t.detach().reshape(1) for t in tensors]
        self.start = torch.full((batch,), start, device=device) if isinstance(start, int) else start
        self.n_q, self.n_k = (torch.full((), n, device=device) for n in (n_q, n_k))
        self.device = device

    def mask(self, term: Term) -> MaskFunction:
        """Whether a pair is seen: (b, h, i, j) -> bool."""
        value = self._reader(term, None)

        def mask_function(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return value(None, b, h, i, j)

        return mask_function

    def score(self, term: Term, precision: torch.dtype) -> ScoreFunction:
        """What becomes of a score: (s, b, h, i, j) -> score."""
        value = self._reader(term, precision)

        def score_function(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return value(s.to(precision), b, h, i, j).to(precision)

        return score_function

    def _reader(self, term: Term, precision: torch.dtype | None) -> Callable[..., Tensor]:
        numbers, steps, result = _laid_out(term, precision, len(self.tensors))
        tensors, start, n_q, n_k, device = self.tensors, self.start, self.n_q, self.n_k, self.device
        has_position = "p" in term.depends

        def value(s: Tensor | None, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            b, h, i, j = b.long(), h.long(), i.long(), j.long()  # products of positions may not fit into 32 bits
            p = i + start[b] if has_position else None
            values: list[Any] = [b, h, i, j, p, s, n_q, n_k, *tensors, *numbers]
            for function, places in steps:
                values.append(function([values[n] for n in places], device))
            found = values[result]
            return found if isinstance(found, Tensor) else torch.full((), found, device=device)

        return value


Step = tuple[Callable[[list[Any], torch.device], Tensor], tuple[int, ...]]


@lru_cache(maxsize=512)
def _laid_out(
    term: Term, precision: torch.dtype | None, tensors: int
) -> tuple[tuple[Number, ...], tuple[Step, ...], int]:
    """Numbers, steps and the place of the result. Places count variables, tensors, numbers, then results of steps."""
    layout = _Layout(term, precision, tensors)
    result = layout.place(term, precision is not None)
    return tuple(node.value for node in layout.numbers), tuple(layout.steps), result  # type: ignore[misc]  # numbers


class _Layout:
    def __init__(self, term: Term, precision: torch.dtype | None, tensors: int) -> None:
        self.precision = precision
        constants = [node for node in walk(term) if node.op == "constant"]
        self.numbers: dict[Term, int] = {node: n for n, node in enumerate(constants)}
        self.steps: list[Step] = []
        self._places: dict[State, int] = {}
        self._first_number = len(VARIABLES) + tensors

    def place(self, term: Term, precise: bool) -> int:
        """Where the value of a part lies, once the steps that compute it are laid out."""
        for state in postorder(((term, precise),), _parts):
            self._places[state] = self._place(*state)
        return self._places[term, precise]

    def _place(self, term: Term, precise: bool) -> int:
        if term.op == "variable":
            return list(VARIABLES).index(str(term.value))
        if term.op == "constant":
            return self._first_number + self.numbers[term]
        places = tuple(self._places[state] for state in _parts((term, precise)))
        if term.op == "lookup":
            read = partial(_entry, self.precision if precise else None)
            self.steps.append((read, (len(VARIABLES) + slot_of(term), *places)))
        else:
            self.steps.append((partial(applied, term.op), places))
        return self._first_number + len(self.numbers) + len(self.steps) - 1


def _parts(state: State) -> list[State]:
    term, precise = state
    if term.op == "lookup" and not term.args:
        return [(_NOTHING, False)]
    return argument_states(term, precise)


def _entry(precision: torch.dtype | None, of: list[Any], device: torch.device) -> Tensor:
    tensor, *index = of
    return widened(tensor[tuple(index)], precision)


def may_leave(terms: Sequence[Term], tensors: Sequence[Tensor], lengths: Lengths, start: Start) -> bool:
    """Whether a look-up might fall outside of its tensor for some pair. These functions would not say so."""
    looked_up = [node for term in terms for node in walk(term) if node.op == "lookup" and node.args]
    if not looked_up:
        return False
    b, h = (x.ravel() for x in np.meshgrid(*(np.arange(n) for n in lengths[:2]), indexing="ij"))
    zero = np.zeros_like(b)
    everywhere = Regions(b, h, zero, zero + lengths[2] - 1, zero, zero + lengths[3] - 1)
    bounds = Bounds(tensors, lengths, start)
    for node in looked_up:
        for index, size in zip(node.args, tensors[slot_of(node)].shape, strict=True):
            low, high = bounds.of(index, everywhere)
            if low.min() < -size or high.max() >= size:
                return True
    return False


def rounding_that_decides(terms: Sequence[Term]) -> Iterator[str]:
    """Operations on floats that a decision hangs on: another compiler may round them, and so decide, in its own way."""
    deciding = [node for term in terms for node in walk(term) if node.op in DECIDES and "s" not in node.depends]
    for part in postorder(deciding, lambda node: node.args):
        if part.kind == "float" and part.op in _ROUNDS:
            yield part.op
