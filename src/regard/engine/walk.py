"""A walk over the tiles of a spec: how the scores of a strip of queries and some keys are made.

Heads that share keys lie side by side, so a tile is (batch x key heads, group x queries, keys) and one product.

A batch element gets the same bits alone as together with others. BLAS rounds a product by the alignment of each
matrix, and torch computes the end of a tensor that does not fill its vectors by another exp2. So widths are filled up
with zeros to whole cache lines, and each row of a tile begins at one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.engine.dense import pairwise, positions_of
from regard.engine.dropout import dropped
from regard.plan.blocks import Strip, Tiles, blocks, strips
from regard.spec.evaluate import Evaluation, Positions
from regard.spec.finite import all_finite, wild_rows
from regard.spec.hiding import visible
from regard.spec.linear import of_difference
from regard.spec.spec import Inputs, Spec
from regard.spec.term import ARITHMETIC, SMOOTH

LINE = 16  # numbers: a cache line of float32, two of float64
ROW = 32  # numbers that torch computes at once, in the widest vectors

_MAKES_NEW = ARITHMETIC | SMOOTH | {"where", "div", "neg", "abs"}  # other terms may hand out a tensor that is not ours


@dataclass(slots=True, eq=False)
class Tile:
    """The scores of a strip's queries with some keys, before and after the rule; hidden ones are -inf."""

    raw: Tensor
    scores: Tensor
    evaluation: Evaluation | None
    tracked: tuple[Tensor, ...]  # what `raw` can be differentiated in by autograd


@dataclass(frozen=True, eq=False)
class _Seen:
    """Which pairs of a tile are seen, broadcasting to (batch, heads, queries, keys), for scores of a dtype."""

    pairs: Tensor
    dtype: torch.dtype

    @cached_property
    def _bits(self) -> tuple[Tensor, Tensor]:
        """What is kept of a score's bits, and what is set: all and none where it is seen, else those of -inf."""
        whole = {4: torch.int32, 8: torch.int64}[self.dtype.itemsize]
        keep = self.pairs.to(whole).neg_()
        return keep, ~keep & int(torch.tensor(-torch.inf, dtype=self.dtype).view(whole))

    def hide_(self, scores: Tensor) -> None:
        """Make the scores of all other pairs -inf; torch's masked_fill_ takes twice as long."""
        keep, hidden = self._bits
        scores.view(keep.dtype).bitwise_and_(keep).bitwise_or_(hidden)


class Walk:
    """One pass over the tiles of a spec."""

    def __init__(self, spec: Spec, inputs: Inputs, tiles: Tiles) -> None:
        self.spec, self.inputs, self.tiles = spec, inputs, tiles
        whole = [x.detach().to(spec.precision) for x in (inputs.q, inputs.k, inputs.v)]
        # a function of rows must get them as they are
        self.q, self.k = (filled(x) if spec.score == "dot" else x for x in whole[:2])
        self.v = filled(whole[2])
        # a rule must see the score as it is; a plain product can come in the normaliser's own unit
        self.plain = spec.score == "dot" and spec.rule is None
        self.normaliser, self.unit = spec.normaliser.prescaled() if self.plain else (spec.normaliser, 1.0)
        self.condition = visible(spec.mask, spec.rule, inputs.tensors)
        # whether tiles that lie equally far from the diagonal hide the same
        depends = self.condition.depends
        self.slides = spec.start is not None and not depends & {"b", "h", "s"} and of_difference(self.condition)
        self._alike: dict[tuple[int, int, int], _Seen] = {}
        self._space: dict[str, Tensor] = {}

    @cached_property
    def finite(self) -> bool:
        """Whether 0 times anything is 0. Otherwise hidden NaN must be kept out of sums with care."""
        return all_finite(self.q, self.k, self.v)

    def strips(self) -> Iterator[Strip]:
        return strips(self.spec, blocks(self.spec, self.inputs.tensors, self.inputs.start, self.tiles), self.tiles)

    def keys_of(self, whole: Tensor, strip: Strip) -> Tensor:
        """All keys or values of a strip's heads: (batch x key heads, n_k, width)."""
        group = self.spec.group
        g = slice(strip.h.start // group, (strip.h.stop - 1) // group + 1)
        return whole[strip.b.start : strip.b.stop, g].flatten(0, 1)

    def rows_of(self, whole: Tensor, strip: Strip) -> Tensor:
        """A strip's part of a (batch, heads, n_q, ...) tensor as (batch x key heads, group x queries, ...)."""
        key_heads = -(-len(strip.h) // self.spec.group)
        rows = len(strip.h) // key_heads * len(strip.i)
        return place(whole, strip).reshape(len(strip.b) * key_heads, rows, *whole.shape[3:])

    def positions_of(self, strip: Strip, j: range) -> Positions:
        return positions_of(self.spec, self.inputs, strip.b, strip.h, strip.i, j)

    def per_head(self, tile: Tensor, strip: Strip) -> Tensor:
        """(batch x key heads, group x queries, keys) as (batch, heads, queries, keys), the same memory."""
        return tile.view(len(strip.b), len(strip.h), len(strip.i), -1)

    def queries_of(self, strip: Strip) -> Tensor:
        """A strip's queries, scaled as the product wants them."""
        q = self.rows_of(self.q, strip)
        scale = self.spec.scale * self.unit
        return q * scale if self.spec.score == "dot" and scale != 1.0 else q

    def product(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        """x @ y.mT in a space of that name that every tile uses again: fresh memory costs more than the softmax."""
        keys, columns = y.shape[1], _up(y.shape[1], ROW)
        if columns != keys:
            rows = y.new_zeros((y.shape[0], columns, _up(y.shape[2], LINE)))[..., : y.shape[2]]
            rows[:, :keys].copy_(y)
            y = rows
        space = torch.bmm(x, y.mT, out=self._place(name, x, (x.shape[0], x.shape[1], columns)))
        return space[..., :keys]

    def settled(self, name: str, x: Tensor) -> Tensor:
        """A tile whose rows begin at a cache line: x itself, or a copy in the space of that name."""
        keys, columns = x.shape[2], _up(x.shape[2], ROW)
        if columns == keys or x.stride(1) == columns:
            return x
        return self._place(name, x, (x.shape[0], x.shape[1], columns))[..., :keys].copy_(x)

    def _place(self, name: str, like: Tensor, shape: tuple[int, int, int]) -> Tensor:
        space = self._space.get(name)
        if space is None or space.shape != shape:
            space = self._space[name] = _space(space, like, shape)
        return space

    def tile(self, strip: Strip, j: range, full: bool, q: Tensor, k: Tensor, track: bool = False) -> Tile:
        """The scores of queries q and keys k. With `track`, what made them can be differentiated."""
        spec, inputs = self.spec, self.inputs
        seen = None if full else self._seen(strip, j)
        tracked: tuple[Tensor, ...] = ()
        if spec.score == "dot":
            scores = raw = self.product("scores", q, k)
        else:
            raw, tracked = self._pairwise(strip, j, q, k, None if self.finite else seen, track)
            scores = raw.detach()
        evaluation = None
        if spec.rule is not None:
            positions = self.positions_of(strip, j)
            evaluation = Evaluation(inputs.tensors, positions, self.per_head(scores, strip), spec.precision)
            changed = evaluation.number(spec.rule).expand(positions.shape)
            own = not track and spec.rule.op in _MAKES_NEW
            scores = self.settled("changed", (changed.contiguous() if own else _copy(changed)).view(raw.shape))
        elif tracked:
            scores = _copy(scores)
        if seen is not None:
            seen.hide_(self.per_head(scores, strip))
        if evaluation is not None:
            evaluation.check_range(None if seen is None else seen.pairs)
        return Tile(raw, scores, evaluation, tracked)

    def _seen(self, strip: Strip, j: range) -> _Seen:
        """Which pairs of a tile are seen. Along the edge of a causal mask or a window tiles are all alike."""
        alike = (strip.i.start - j.start, len(strip.i), len(j)) if self.slides else None
        if alike is not None and alike in self._alike:
            return self._alike[alike]
        looked = Evaluation(self.inputs.tensors, self.positions_of(strip, j))
        pairs = looked.condition(self.condition)
        seen = _Seen(pairs, self.spec.precision)
        looked.check_range(pairs)
        if alike is not None and len(self._alike) < 8:
            self._alike[alike] = seen
        return seen

    def _pairwise(
        self, strip: Strip, j: range, q: Tensor, k: Tensor, seen: _Seen | None, track: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Additive and custom scores, and with `track` the tensors they can be differentiated in."""
        spec, inputs = self.spec, self.inputs
        positions = self.positions_of(strip, j)
        only = None if seen is None else seen.pairs.expand(positions.shape)
        group = len(strip.h) * len(strip.b) // q.shape[0]
        with torch.set_grad_enabled(track):
            q = self.per_head(q, strip).detach().requires_grad_(track)
            k = k.detach().requires_grad_(track)
            spread = k.reshape(len(strip.b), -1, *k.shape[1:]).repeat_interleave(group, dim=1)
            parameters = tuple(p.detach().requires_grad_(track) for p in inputs.parameters)
            scores = pairwise(spec, inputs, positions, q, spread, parameters, only)
            raw = scores.reshape(-1, group * len(strip.i), k.shape[1]).to(spec.precision)
        # the function may hand out a tensor of its own
        return (raw, (q, k, *parameters)) if track else (_copy(raw), ())

    def drop(self, strip: Strip, j: range, *weights: Tensor) -> None:
        """Leave out, in place, what dropout leaves out."""
        if self.spec.dropout:
            positions = self.positions_of(strip, j)
            gone = dropped(self.inputs.seed, self.spec.dropout, positions, self.inputs.origin)
            for x in weights:
                self.per_head(x, strip).masked_fill_(gone, 0.0).mul_(1.0 / (1.0 - self.spec.dropout))


def place(whole: Tensor, strip: Strip) -> Tensor:
    """The part of a (batch, heads, n_q, ...) tensor that belongs to a strip's queries, the same memory."""
    return whole[strip.b.start : strip.b.stop, strip.h.start : strip.h.stop, strip.i.start : strip.i.stop]


def accumulate(total: Tensor, weights: Tensor, x: Tensor, seen: Tensor | None) -> None:
    """total += weights @ x. With `seen`, an x that is not finite counts only where it is seen."""
    if seen is None:
        total.baddbmm_(weights, x)
        return
    wild = wild_rows(x)
    total.baddbmm_(weights, x.masked_fill(wild, 0.0))
    for n in wild.any(0).flatten().nonzero().flatten().tolist():
        counts = (seen[:, :, n] & wild[:, n]).unsqueeze(-1)
        total.add_(torch.where(counts, weights[:, :, n, None] * x[:, n, None], 0.0))


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def filled(x: Tensor) -> Tensor:
    """Rows filled up with zeros to whole cache lines, the first of which begins at one; x itself where that holds."""
    width = x.shape[-1]
    if width % LINE:
        whole = x.new_zeros((*x.shape[:-1], _up(width, LINE)))
        whole[..., :width] = x
        return whole
    if x.device.type == "cpu" and x.data_ptr() % (LINE * 4):
        return _copy(x)
    return x if 0 in x.stride() else x.contiguous()  # a batch that was expanded stays in one place


def beside(x: Tensor, column: Tensor) -> Tensor:
    """x with one more column (..., 1), its rows beginning at cache lines."""
    width = x.shape[-1]
    whole = x.new_empty((*x.shape[:-1], _up(width + 1, LINE)))[..., : width + 1]
    whole[..., :width] = x
    whole[..., width:] = column
    return whole


def _space(old: Tensor | None, like: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """A tensor of that shape in the old one's memory, or in new memory if that is too small."""
    size = math.prod(shape)
    if old is None or old.untyped_storage().nbytes() < size * like.element_size():
        return like.new_empty(shape)
    return old.as_strided(shape, (shape[1] * shape[2], shape[2], 1))


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)
