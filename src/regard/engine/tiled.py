"""The engine that runs anywhere: torch operations over tiles, O(n) memory, forward and backward.

A strip of queries walks over the tiles of keys it sees. Forward keeps a running normaliser and a running sum;
backward makes each tile's weights again from the row statistic. Sums run in an order given by the shapes alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from regard.engine.dense import additive, all_finite, positions_of
from regard.engine.dropout import dropped
from regard.engine.gradient import Saved
from regard.plan.blocks import Strip, Tiles, blocks, strips
from regard.spec.derivative import derivatives
from regard.spec.evaluate import Evaluation, Positions
from regard.spec.hiding import visible
from regard.spec.spec import Inputs, Spec
from regard.spec.term import ARITHMETIC, SMOOTH, Term, constant, slot_of, variable

_S, _ONE = variable("s"), constant(1.0)
_MAKES_NEW = ARITHMETIC | SMOOTH | {"where", "div", "neg", "abs"}  # other terms may hand out a tensor that is not ours


class Tiled:
    """Everything that can be asked, in linear memory, on any device torch knows."""

    name = "tiled"
    linear_memory = True

    def objections(self, spec: Spec) -> tuple[str, ...]:
        return ()

    def tiles(self, spec: Spec) -> Tiles:
        if spec.score == "dot":
            rows = min(256, max(1, spec.n_q))
            keys = max(512, 2**17 // (rows * spec.group)) if rows * spec.group < 128 else 512
            return Tiles(rows, keys, 2**18)
        # a pair of these costs as many numbers as it is wide
        side = 128 if spec.width <= 32 else 64
        return Tiles(side, side, 2**22 // max(1, spec.width))

    def forward(self, spec: Spec, inputs: Inputs, tiles: Tiles) -> tuple[Tensor, Tensor | None]:
        walk = _Walk(spec, inputs, tiles)
        output = inputs.q.new_empty((spec.batch, spec.heads, spec.n_q, spec.value_width), dtype=spec.dtype)
        statistic = output.new_empty((spec.batch, spec.heads, spec.n_q), dtype=spec.precision)
        for strip in walk.strips():
            rows, found = walk.attend(strip)
            _place(output, strip).copy_(rows)
            if found is not None:
                _place(statistic, strip).copy_(found)
        return output, statistic if spec.normaliser.statistic else None

    def backward(self, spec: Spec, inputs: Inputs, tiles: Tiles, saved: Saved, needs: Sequence[bool]) -> list[Tensor]:
        walk = _Walk(spec, inputs, tiles)
        gradients = _Gradients(walk, saved, needs)
        for strip in walk.strips():
            gradients.add(strip)
        return gradients.result()


def _place(whole: Tensor, strip: Strip) -> Tensor:
    """The part of a (batch, heads, n_q, ...) tensor that belongs to a strip's queries."""
    return whole[strip.b.start : strip.b.stop, strip.h.start : strip.h.stop, strip.i.start : strip.i.stop]


@dataclass(frozen=True, eq=False)
class _Tile:
    """The scores of a strip's queries with some keys, before and after the rule; hidden ones are -inf."""

    positions: Positions
    raw: Tensor
    scores: Tensor
    evaluation: Evaluation | None
    tracked: tuple[Tensor, ...]  # the leaves of `raw` where it is differentiated by autograd


class _Walk:
    """One pass over the tiles of a spec: knows how a tile's scores are made."""

    def __init__(self, spec: Spec, inputs: Inputs, tiles: Tiles) -> None:
        self.spec, self.inputs, self.tiles = spec, inputs, tiles
        self.q, self.k, self.v = (x.detach().to(spec.precision) for x in (inputs.q, inputs.k, inputs.v))
        self.condition = visible(spec.mask, spec.rule, inputs.tensors)
        self._space: dict[str, Tensor] = {}

    @cached_property
    def finite(self) -> bool:
        """Whether 0 times anything is 0. Otherwise hidden NaN must be kept out of sums with care."""
        return all_finite(self.q, self.k, self.v)

    def strips(self) -> Iterator[Strip]:
        return strips(self.spec, blocks(self.spec, self.inputs.tensors, self.inputs.start, self.tiles), self.tiles)

    def product(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        """x @ y.mT in a space of that name that every tile uses again: fresh memory costs more than the softmax."""
        shape = (x.shape[0], x.shape[1], y.shape[1])
        size = shape[0] * shape[1] * shape[2]
        if name not in self._space or len(self._space[name]) < size:
            self._space[name] = x.new_empty(size)
        return torch.bmm(x, y.mT, out=self._space[name][:size].view(shape))

    def keys_of(self, whole: Tensor, strip: Strip, j: range) -> Tensor:
        """Keys or values a strip needs: (batch x key heads, keys, width)."""
        group = self.spec.group
        g = slice(strip.h.start // group, (strip.h.stop - 1) // group + 1)
        return whole[strip.b.start : strip.b.stop, g, j.start : j.stop].flatten(0, 1)

    def rows_of(self, whole: Tensor, strip: Strip) -> Tensor:
        """A strip's part of a (batch, heads, n_q, ...) tensor as (batch x key heads, group x queries, ...)."""
        part = _place(whole, strip)
        key_heads = -(-len(strip.h) // self.spec.group)
        return part.reshape(len(strip.b) * key_heads, -1, *whole.shape[3:])

    def per_head(self, tile: Tensor, strip: Strip) -> Tensor:
        """(batch x key heads, group x queries, keys) as (batch, heads, queries, keys), the same memory."""
        return tile.view(len(strip.b), len(strip.h), len(strip.i), -1)

    def attend(self, strip: Strip) -> tuple[Tensor, Tensor | None]:
        """Output and statistic of a strip's rows."""
        spec, normaliser = self.spec, self.spec.normaliser
        q = self.queries(strip)
        state = normaliser.begin(q.new_zeros(q.shape[:2]))
        total = q.new_zeros((*q.shape[:2], spec.value_width))
        for j, full in strip.keys:
            tile = self.tile(strip, j, full, q)
            seen = None if self.finite else tile.scores != -torch.inf
            state, weights, shrink = normaliser.step(state, tile.scores)
            self.drop(weights, strip, tile.positions)
            if shrink is not None:
                total.mul_(shrink.unsqueeze(-1))
            accumulate(total, weights, self.keys_of(self.v, strip, j), seen)
        scale, statistic = normaliser.end(state)
        if scale is not None:
            total.mul_(scale.unsqueeze(-1))
        if spec.dropout:
            total.mul_(1.0 / (1.0 - spec.dropout))
        shape = (len(strip.b), len(strip.h), len(strip.i))
        return total.view(*shape, -1), None if statistic is None else statistic.view(shape)

    def queries(self, strip: Strip) -> Tensor:
        q = self.rows_of(self.q, strip)
        return q * self.spec.scale if self.spec.score == "dot" and self.spec.scale != 1.0 else q

    def tile(self, strip: Strip, j: range, full: bool, q: Tensor, track: bool = False) -> _Tile:
        """A tile's scores. With `track`, scores that are no product remember how they were made."""
        spec, inputs = self.spec, self.inputs
        positions = positions_of(spec, inputs, strip.b, strip.h, strip.i, j)
        tracked: tuple[Tensor, ...] = ()
        if spec.score == "dot":
            raw = self.product("scores", q, self.keys_of(self.k, strip, j))
        else:
            raw, tracked = self.pairwise(strip, j, q, track)
        scores, evaluation, seen = raw.detach(), None, None
        if spec.rule is not None:
            evaluation = Evaluation(inputs.tensors, positions, self.per_head(scores, strip), spec.precision)
            changed = evaluation.number(spec.rule).expand(positions.shape)
            scores = (changed.contiguous() if not track and spec.rule.op in _MAKES_NEW else _copy(changed)).view(
                raw.shape
            )
        elif tracked:
            scores = _copy(scores)
        if not full:
            looked = Evaluation(inputs.tensors, positions)
            seen = looked.condition(self.condition).expand(positions.shape)
            looked.check_range(seen)
            self.per_head(scores, strip).masked_fill_(~seen, -torch.inf)
        if evaluation is not None and evaluation.out_of_range is not None:
            evaluation.check_range(torch.ones((), dtype=torch.bool) if seen is None else seen)
        return _Tile(positions, raw, scores, evaluation, tracked)

    def pairwise(self, strip: Strip, j: range, q: Tensor, track: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Additive and custom scores, and with `track` the tensors they can be differentiated in."""
        spec, inputs = self.spec, self.inputs
        group = len(strip.h) * len(strip.b) // q.shape[0]
        with torch.set_grad_enabled(track):
            q = q.view(len(strip.b), len(strip.h), len(strip.i), -1).detach().requires_grad_(track)
            k = self.keys_of(self.k, strip, j).detach().requires_grad_(track)
            spread = k.view(len(strip.b), -1, *k.shape[1:]).repeat_interleave(group, dim=1)
            if spec.score == "additive":
                u = inputs.parameters[0].detach().requires_grad_(track)
                scores = additive(q, spread, u if u.dim() == 1 else u[strip.h.start : strip.h.stop])
                parameters: tuple[Tensor, ...] = (u,)
            else:
                assert inputs.function is not None
                scores = inputs.function(q, spread)
                parameters = inputs.parameters  # a custom function uses its own tensors
            raw = scores.reshape(-1, group * len(strip.i), len(j)).to(spec.precision)
            raw = raw if track else raw.clone()  # the function may hand out what is its own
        return raw, (q, k, *parameters) if track else ()

    def drop(self, weights: Tensor, strip: Strip, positions: Positions) -> None:
        if self.spec.dropout:
            gone = dropped(self.inputs.seed, self.spec.dropout, positions)
            self.per_head(weights, strip).masked_fill_(gone, 0.0)


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def accumulate(total: Tensor, weights: Tensor, x: Tensor, seen: Tensor | None) -> None:
    """total += weights @ x. With `seen`, an x that is not finite counts only where it is seen."""
    if seen is None:
        total.baddbmm_(weights, x)
        return
    bad = ~torch.isfinite(x).all(-1)
    total.baddbmm_(weights, x.masked_fill(bad.unsqueeze(-1), 0.0))
    for n in bad.any(0).nonzero().flatten().tolist():
        counts = (seen[:, :, n] & bad[:, n : n + 1]).unsqueeze(-1)
        total.add_(torch.where(counts, weights[:, :, n, None] * x[:, n, None], 0.0))


class _Gradients:
    """The gradients of q, k, v, captured tensors and parameters, summed strip by strip."""

    def __init__(self, walk: _Walk, saved: Saved, needs: Sequence[bool]) -> None:
        self.walk, self.needs = walk, needs
        spec, inputs = walk.spec, walk.inputs
        self.d_output = saved.d_output.to(spec.precision)
        self.finite = walk.finite and all_finite(self.d_output)
        self.statistic = saved.statistic if spec.normaliser.statistic else None
        self.level = torch.zeros_like(self.d_output[..., 0])
        if self.statistic is not None:
            self.level = (self.d_output * saved.output).sum(-1) - saved.d_statistic
        self.sums = [
            torch.zeros(t.shape, dtype=spec.precision, device=t.device) if needed else None
            for t, needed in zip(inputs.every(), needs, strict=True)
        ]
        self.dtypes = [t.dtype for t in inputs.every()]

    def result(self) -> list[Tensor]:
        d_q = self.sums[0]
        if d_q is not None and self.walk.spec.score == "dot":
            d_q.mul_(self.walk.spec.scale)
        return [s.to(dtype) for s, dtype in zip(self.sums, self.dtypes, strict=True) if s is not None]

    def add(self, strip: Strip) -> None:
        walk, spec = self.walk, self.walk.spec
        q, d_output = walk.queries(strip), walk.rows_of(self.d_output, strip)
        level = walk.rows_of(self.level, strip).unsqueeze(-1)
        statistic = None if self.statistic is None else walk.rows_of(self.statistic, strip).unsqueeze(-1)
        d_q = torch.zeros_like(q) if self.sums[0] is not None else None
        for j, full in strip.keys:
            tile = walk.tile(strip, j, full, q, track=True)
            seen = None if self.finite else tile.scores != -torch.inf
            weights = spec.normaliser.rebuilt(tile.scores, statistic)
            d_weights = walk.product("d_weights", d_output, walk.keys_of(walk.v, strip, j))
            kept = weights
            if spec.dropout:
                gone = dropped(walk.inputs.seed, spec.dropout, tile.positions)
                kept = weights.clone()
                for x in (kept, d_weights):
                    walk.per_head(x, strip).masked_fill_(gone, 0.0).mul_(1.0 / (1.0 - spec.dropout))
            self._into_keys(2, strip, j, kept.mT, d_output, seen)
            d_scores = spec.normaliser.backward(weights, d_weights, level)
            if seen is not None:
                d_scores.masked_fill_(~seen, 0.0)
            d_scores = self._through_rule(tile, strip, d_scores, seen)
            if spec.score == "dot":
                if d_q is not None:
                    accumulate(d_q, d_scores, walk.keys_of(walk.k, strip, j), seen)
                self._into_keys(1, strip, j, d_scores.mT, q, seen)
            else:
                self._through_function(tile, strip, j, d_scores, d_q)
        if d_q is not None:
            _place(self.sums[0], strip).copy_(d_q.view(len(strip.b), len(strip.h), len(strip.i), -1))  # type: ignore[arg-type]  # d_q exists with it

    def _into_keys(self, which: int, strip: Strip, j: range, weights: Tensor, x: Tensor, seen: Tensor | None) -> None:
        total = self.sums[which]
        if total is None:
            return
        accumulate(self._keys_in_place(total, strip, j), weights, x, None if seen is None else seen.mT)

    def _keys_in_place(self, total: Tensor, strip: Strip, j: range) -> Tensor:
        into = self.walk.keys_of(total, strip, j)
        assert into._base is total, "a sum must be added to in place"
        return into

    def _through_rule(self, tile: _Tile, strip: Strip, d_scores: Tensor, seen: Tensor | None) -> Tensor:
        if tile.evaluation is None:
            return d_scores
        assert self.walk.spec.rule is not None
        changes = _derivatives(self.walk.spec.rule)
        outer = self.walk.per_head(d_scores, strip)
        for node, change in changes.items():
            total = self.sums[3 + slot_of(node)] if node.op == "lookup" else None
            if total is not None:
                _scatter(total, node, tile.evaluation, self._times(outer, change, tile.evaluation))
        if _S not in changes:
            return torch.zeros_like(d_scores)
        return self._times(outer, changes[_S], tile.evaluation).reshape(d_scores.shape)

    def _times(self, outer: Tensor, change: Term, evaluation: Evaluation) -> Tensor:
        if change is _ONE:
            return outer
        # where no gradient arrives (hidden pairs among them) an infinite slope must not make a NaN
        return torch.where(outer == 0.0, 0.0, outer * evaluation.number(change))

    def _through_function(self, tile: _Tile, strip: Strip, j: range, d_scores: Tensor, d_q: Tensor | None) -> None:
        wanted = [n for n, t in enumerate(tile.tracked) if t.requires_grad]
        found = torch.autograd.grad(
            tile.raw, [tile.tracked[n] for n in wanted], d_scores.to(tile.raw.dtype), allow_unused=True
        )
        offset = 3 + len(self.walk.inputs.tensors) - 2
        parts: dict[int, Tensor] = {n: part for n, part in zip(wanted, found, strict=True) if part is not None}
        if d_q is not None and 0 in parts:
            d_q.add_(parts[0].reshape(d_q.shape))
        if self.sums[1] is not None and 1 in parts:
            self._keys_in_place(self.sums[1], strip, j).add_(parts[1])
        for n, part in parts.items():
            total = self.sums[offset + n] if n > 1 else None
            if total is not None:
                total.add_(part)


@lru_cache(maxsize=512)
def _derivatives(rule: Term) -> dict[Term, Term]:
    return derivatives(rule)


def _scatter(total: Tensor, node: Term, evaluation: Evaluation, parts: Tensor) -> None:
    """Add each pair's part where its look-up read."""
    block = evaluation.sliced(total, node.args)
    if block is not None:
        block.add_(parts.sum_to_size(block.shape) if block.shape != parts.shape else parts)
        return
    place = evaluation.places(node)
    parts = parts.sum_to_size(place.shape)
    total.view(-1).index_add_(0, place.flatten(), parts.flatten())
