"""The attention matrix that is never there: any part of it, computed exactly when it is asked for.

a_ij follows from q_i, k_j and one number a row, so indexing computes just those entries, and measures run over tiles.
"""

import functools
import math
import operator
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.engine.dense import block, positions_of
from regard.engine.parts import NOTHING, Matrix, Part, Parts, Wanted
from regard.errors import BudgetError, OutOfRangeError, SpecError
from regard.measure import Measure, Measured, WeightTile
from regard.plan.blocks import blocks, strips
from regard.plan.choose import Plan
from regard.spec.array import as_tensor
from regard.spec.finite import all_finite
from regard.spec.precision import without_autocast
from regard.spec.regions import Cover
from regard.spec.spec import Inputs, Question


class Weights:
    """The weights a_ij of one call, before dropout, as an array that computes what is taken from it.

    Index it like a tensor: whole numbers, slices, `...` and lists, each acting on its own dimension. The result is
    differentiable. `measure` reduces all of it in one pass over tiles; `dense` makes it, if it is small.
    """

    def __init__(
        self,
        question: Question,
        plan: Plan,
        inputs: Inputs,
        statistic: Tensor | None,
        matrix: Callable[[], Matrix],
        parts: Callable[[Matrix], Parts],
    ) -> None:
        self._question, self._plan, self._inputs, self._statistic = question, plan, inputs, statistic
        self._found, self._parts = matrix, parts  # what weights follow from, and who computes tiles of them

    @property
    def shape(self) -> tuple[int, ...]:
        """The caller's dimensions before the length, then (n_q, n_k)."""
        return (*self._question.leading, self._plan.spec.n_q, self._plan.spec.n_k)

    @property
    def iterations(self) -> int:
        """How often rows were normalised: more than once where columns were as well."""
        return self._question.weigh.iterations

    @property
    def plan(self) -> Plan:
        """How the call was answered, with the tiles that its mask left."""
        return self._plan.covering(self._cover)

    @cached_property
    def _cover(self) -> Cover:
        return blocks(self._plan.spec, self._inputs.tensors, self._inputs.start, self._plan.tiles)

    @cached_property
    def _matrix(self) -> Matrix:
        return self._found()

    def __repr__(self) -> str:
        return f"Weights(shape={self.shape}, computed on request)"

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        raise SpecError(
            "weights are computed on request and not walked through; index them, or make them with dense()."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.dense(), dtype=dtype)

    def __getitem__(self, index: Any) -> Any:
        chosen = _indices(index, self.shape)
        *leading, i, j = (c if isinstance(c, Tensor) else torch.tensor([c]) for c in chosen)
        b, h = self._heads(list(leading))
        with without_autocast(self._inputs.q.device.type):
            found = self._entries(b, h, i, j)
        if self._plan.spec.dtype != torch.float64:
            found = found.float()
        whole = found.reshape([len(c) for c in (*leading, i, j)])
        whole = whole[tuple(0 if isinstance(c, int) else slice(None) for c in chosen)]
        return whole.detach().cpu().numpy() if self._question.is_numpy else whole

    def dense(self, budget: str | float = "1GB") -> Any:
        """All of it as one tensor, refused beyond the budget."""
        number = torch.empty((), dtype=self._plan.spec.precision).element_size()
        needed = number * self._plan.cost.pairs
        if needed > byte_count(budget):
            raise BudgetError(
                f"the dense weights {self.shape} must fit the budget of {budget}; they take {needed:,} bytes. "
                "Index the rows you need, use measure(...), or give a larger budget."
            )
        return self[...]

    def measure(self, *measures: Measure) -> Measured:
        """Any number of measures in one pass over the tiles that are not empty, in the order given.

        >>> import regard
        >>> x = torch.randn(100, 8)
        >>> found = regard.attend(x, x, x).weights.measure(regard.measure.entropy, regard.measure.top(3))
        >>> found.entropy.shape, found.top.indices.shape
        (torch.Size([100]), torch.Size([100, 3]))
        """
        for measure in measures:
            if not isinstance(measure, Measure):
                raise SpecError(f"measure takes measures such as measure.entropy; got {measure!r}.")
        with torch.no_grad(), without_autocast(self._inputs.q.device.type):
            running = [m.begin(self._plan.spec, self._inputs) for m in measures]
            wanted = functools.reduce(operator.or_, (state.wanted for state in running), NOTHING)
            for tile in self._tiles(wanted):
                for state in running:
                    state.step(tile)
            return Measured(measures, [state.finish(self._question.shaped) for state in running])

    def _heads(self, leading: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Batch elements and heads from the caller's leading dimensions, the outer ones counted through."""
        sizes = list(self._question.leading)
        zero = torch.zeros(1, dtype=torch.int64)
        h = leading.pop() if self._question.has_heads else zero
        b = zero
        for index, size in zip(leading, sizes, strict=False):
            b = (b[:, None] * size + index).flatten()
        return b, h

    def _entries(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        spec, inputs, rows = self._matrix.spec, self._matrix.inputs, self._matrix.statistic
        device = inputs.q.device
        b, h, i, j = (x.to(device) for x in (b, h, i, j))
        q = inputs.q[b][:, h][:, :, i].to(spec.precision)
        k = inputs.k[b][:, h // spec.group][:, :, j].to(spec.precision)
        positions = positions_of(spec, inputs, b, h, i, j)
        found = block(spec, inputs, positions, q, k, all_finite(q, k))
        statistic = None if rows is None else rows[b][:, h][:, :, i].unsqueeze(-1)
        weights = self._matrix.weights(found.scores, statistic)
        share = self._share()
        return weights * (share[b][:, h][:, :, i].unsqueeze(-1) if isinstance(share, Tensor) else share)

    def _share(self) -> Tensor | float:
        """By how much the weighing shrinks all weights, or those of each row."""
        factor, spec = self._question.weigh.factor, self._plan.spec
        share = 1.0 if factor is None else factor(self._statistic, spec.n_k)
        return share.expand(spec.lengths[:3]) if isinstance(share, Tensor) else share

    def _tiles(self, wanted: Wanted) -> Iterator[WeightTile]:
        spec, inputs, parts, share = self._plan.spec, self._inputs, self._parts(self._matrix), self._share()
        shrinks = self._question.weigh.factor is not None
        if shrinks:  # then what is known of weights is made of them, when they have been shrunk
            wanted = Wanted(pairs=True)
        tiles = parts.tiles(wanted)
        for strip in strips(spec, blocks(spec, inputs.tensors, inputs.start, tiles), tiles):
            b, h, i = (slice(r.start, r.stop) for r in (strip.b, strip.h, strip.i))
            for keys, full in strip.keys:
                found = parts.part(strip, keys, full, wanted)
                if shrinks:
                    assert found.weights is not None
                    rows = share[b, h, i].unsqueeze(-1) if isinstance(share, Tensor) else share
                    found = Part(found.scores, found.weights * rows)
                yield WeightTile(positions_of(spec, inputs, strip.b, strip.h, strip.i, keys), found)


def _indices(index: Any, shape: tuple[int, ...]) -> list[int | Tensor]:
    """An index for every dimension: a whole number, or the positions that are taken."""
    entries = list(index) if isinstance(index, tuple) else [index]
    if sum(e is Ellipsis for e in entries) > 1:
        raise SpecError("an index must have at most one `...`.")
    if not any(e is Ellipsis for e in entries):
        entries.append(Ellipsis)
    at = next(n for n, e in enumerate(entries) if e is Ellipsis)
    missing = len(shape) - len(entries) + 1
    if missing < 0:
        raise SpecError(f"weights of shape {shape} must get at most {len(shape)} indices; got {len(entries) - 1}.")
    entries[at : at + 1] = [slice(None)] * missing
    return [_along(e, size, axis) for axis, (e, size) in enumerate(zip(entries, shape, strict=True))]


def _along(entry: Any, size: int, axis: int) -> int | Tensor:
    if isinstance(entry, slice):
        if entry.step == 0:
            raise SpecError(f"a slice of dimension {axis} must have a step other than 0; got {entry!r}.")
        return torch.tensor(list(range(*entry.indices(size))), dtype=torch.int64)
    refusal = SpecError(f"an index of weights must be a whole number, a slice or a list of them; got {entry!r}.")
    if entry is None or isinstance(entry, (str, bool)):
        raise refusal
    taken = as_tensor(entry, "an index of weights")
    single = taken.dim() == 0
    if taken.dtype == torch.bool and taken.dim() == 1:
        if len(taken) != size:
            raise SpecError(f"truth values must be as many as dimension {axis} is long, {size}; got {len(taken)}.")
        taken = taken.nonzero().flatten()
    taken = taken.long() if taken.numel() == 0 else taken.reshape(-1) if single else taken
    if taken.is_floating_point() or taken.dtype == torch.bool or taken.dim() != 1:
        raise refusal
    taken = taken.long()
    if len(taken) and (int(taken.min()) < -size or int(taken.max()) >= size):
        raise OutOfRangeError(f"index {entry!r} is out of range for dimension {axis} of size {size}.")
    taken = taken % size if size else taken
    return int(taken[0]) if single else taken


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def byte_count(budget: Any) -> int:
    """A number of bytes from 1000, "1GB", "512 MiB"."""
    if isinstance(budget, (int, float, np.number)) and not isinstance(budget, bool):
        if not 0 <= budget < math.inf:  # also NaN
            raise SpecError(f"a budget must be a number of bytes from 0, such as '1GB' or 10**9; got {budget!r}.")
        return int(budget)
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([A-Za-z]*)\s*", budget) if isinstance(budget, str) else None
    if match is None or match[2].upper() not in _UNITS:
        raise SpecError(f"a budget must be a number of bytes such as '1GB' or '512MiB'; got {budget!r}.")
    return int(float(match[1]) * _UNITS[match[2].upper()])
