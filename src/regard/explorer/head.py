"""One head of a layer over one text, open for questions about its weights."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.attention import attend
from regard.errors import SpecError
from regard.heard import unheard
from regard.inside.take import Take, taken
from regard.measure import Measure, Measured
from regard.result import Attended
from regard.spec import mask


class Head:
    """Weights of one head, (n_q, n_k), any part; those of `hidden` keys are 0 and the rows share out the rest.

    `take` is the call of the head alone where heads can be taken apart, and of its layer else; `place` says where in it
    the head is.
    """

    def __init__(self, take: Take, place: int, hidden: Sequence[int] = ()) -> None:
        self.take, self.place = take, place
        if hidden:
            self.take = without(take, hidden)

    @classmethod
    def of(cls, take: Take, place: int, hidden: Sequence[int] = ()) -> "Head":
        """Number `place` of a call's heads."""
        try:
            asked = {"q": take.q, "k": take.k, "v": take.v, **take.options}
            return cls(taken(asked, [place], lambda tensor: tensor, take.source), 0, hidden)
        except SpecError:  # its score or weighing may have numbers for each head
            return cls(take, place, hidden)

    @property
    def shape(self) -> tuple[int, int]:
        return self.take.q.shape[2], self.take.k.shape[2]

    @property
    def nbytes(self) -> int:
        """About what it keeps, with its answer."""
        return 2 * (self.take.q.nbytes + self.take.k.nbytes + self.take.v.nbytes)

    @cached_property
    def attended(self) -> Attended:
        with torch.no_grad(), unheard():
            return attend(self.take.q, self.take.k, self.take.v, **self.take.options)

    def weights(self, i: Any, j: Any) -> Tensor:
        """The weights of some queries and keys, slices or lists: (queries, keys)."""
        with torch.no_grad():
            found: Tensor = self.attended.weights[0, self.place, i, j].float()
        return found.clamp(max=1.0) if can_hide(self.take) else found  # rounding may lift a weight of 1 above it

    def measure(self, measure: Measure) -> Measured:
        """A measure of the head, or of all heads of its layer where they cannot be taken apart."""
        return self.attended.weights.measure(measure)


def can_hide(take: Take) -> bool:
    """Whether a key that is hidden leaves its weight to the others, in proportion: softmax alone does that."""
    return take.options["weigh"] is None


def without(take: Take, hidden: Sequence[int]) -> Take:
    if not can_hide(take):
        raise SpecError(
            "keys can be hidden where softmax weighs, which shares their weight out in proportion; this layer has "
            "another weighing. Show it with its sink."
        )
    seen = take.options["mask"]
    for key in hidden:
        others = mask.where(_other_than(key))
        seen = others if seen is None else seen & others
    return Take(take.q, take.k, take.v, {**take.options, "mask": seen}, None, take.source)


def _other_than(key: int) -> Any:
    return lambda b, h, i, j: j != key
