"""The engine that runs anywhere: torch operations over tiles, O(n) memory, forward and backward.

A strip of queries walks over the tiles of keys it sees. Forward keeps a running normaliser and a running sum;
backward makes each tile's weights again from the row statistic. Sums run in an order given by the shapes alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from regard.engine import threshold
from regard.engine.gradient import Saved, with_exact_output
from regard.engine.walk import LINE, Tile, Walk, accumulate, beside, filled, place
from regard.plan.blocks import Strip, Tiles
from regard.spec.derivative import ONE, derivatives
from regard.spec.evaluate import Evaluation
from regard.spec.finite import all_finite
from regard.spec.normaliser import Streamed
from regard.spec.spec import Inputs, Spec
from regard.spec.term import TRUE, Term, slot_of, variable
from regard.spec.threshold import Thresholded

_S = variable("s")


class Tiled:
    """Everything that can be asked, in linear memory, on any device torch knows."""

    name = "tiled"
    variant = ""
    exact: torch.dtype | None = None

    def linear_memory(self, spec: Spec) -> bool:
        return True

    def objections(self, spec: Spec) -> tuple[str, ...]:
        return ()

    def tiles(self, spec: Spec) -> Tiles:
        if spec.score != "dot":  # a pair of these costs as many numbers as it is wide
            side = 128 if spec.width <= 32 else 64
            return Tiles(side, side, 2**22 // max(1, spec.width))
        if spec.n_q * spec.group < 128:  # as in decoding: longer rows of keys make up for it
            rows = max(1, spec.n_q)
            return Tiles(rows, max(512, 2**17 // (rows * spec.group)), 2**18)
        # at the edge of a mask half a tile is computed in vain: shorter ones
        return Tiles(512 if spec.mask is TRUE else 256, 256, 2**19, 1024)

    def forward(self, spec: Spec, inputs: Inputs, tiles: Tiles) -> tuple[Tensor, Tensor | None]:
        if isinstance(spec.normaliser, Thresholded):
            return threshold.forward(self, spec, inputs, tiles, threshold.levels)
        walk = Walk(spec, inputs, tiles)
        output = inputs.q.new_empty((spec.batch, spec.heads, spec.n_q, spec.value_width), dtype=spec.dtype)
        statistic = output.new_empty((spec.batch, spec.heads, spec.n_q), dtype=spec.precision)
        for strip in walk.strips():
            rows, found = _attend(walk, strip)
            place(output, strip).copy_(rows)
            if found is not None:
                place(statistic, strip).copy_(found)
        return output, statistic if spec.normaliser.statistic else None

    def backward(self, spec: Spec, inputs: Inputs, tiles: Tiles, saved: Saved, needs: Sequence[bool]) -> list[Tensor]:
        saved = with_exact_output(self, spec, inputs, tiles, saved)
        if isinstance(spec.normaliser, Thresholded):
            return threshold.backward(self, spec, inputs, tiles, saved, needs)
        # twice as many numbers a pair are at hand as in the forward pass: half the row stays in cache
        walk = Walk(spec, inputs, replace(tiles, row=tiles.row // 2))
        gradients = _Gradients(walk, saved, needs)
        for strip in walk.strips():
            gradients.add(strip)
        return gradients.result()


def _attend(walk: Walk, strip: Strip) -> tuple[Tensor, Tensor | None]:
    """Output and statistic of a strip's rows."""
    normaliser = walk.normaliser
    assert isinstance(normaliser, Streamed)
    q, k, v = walk.queries_of(strip), walk.keys_of(walk.k, strip), walk.keys_of(walk.v, strip)
    state = normaliser.begin(q.new_zeros((*q.shape[:2], 1)))
    total = q.new_zeros((*q.shape[:2], v.shape[-1]))
    for j, full in strip.keys:
        tile = walk.tile(strip, j, full, q, k[:, j.start : j.stop])
        seen = None if walk.finite else tile.scores != -torch.inf
        state, weights, shrink = normaliser.step(state, tile.scores)
        walk.drop(strip, j, weights)
        if shrink is not None:
            total.mul_(shrink)
        accumulate(total, weights, v[:, j.start : j.stop], seen)
    scale, statistic = normaliser.end(state)
    if scale is not None:
        total.mul_(scale)
    shape = (len(strip.b), len(strip.h), len(strip.i))
    return total.view(*shape, -1)[..., : walk.spec.value_width], None if statistic is None else statistic.view(shape)


class _Gradients:
    """The gradients of q, k, v, captured tensors and parameters, summed strip by strip.

    Two numbers a row are subtracted from a tile: the origin of its scores, and the level of the gradient of its
    weights. Where a tile is a product as it is, they are one more column of its left side, beside ones on its right:
    a pass over the tile less. Sums over queries lie on their side, (width, keys), as their product is fastest.
    """

    def __init__(self, walk: Walk, saved: Saved, needs: Sequence[bool]) -> None:
        assert isinstance(walk.normaliser, Streamed)
        self.walk, self.normaliser = walk, walk.normaliser
        spec, inputs = walk.spec, walk.inputs
        d_output = saved.d_output.to(spec.precision)
        self.d_output = filled(d_output)
        self.finite = walk.finite and all_finite(d_output, saved.output)  # finite scores may have overflowed
        self.origin: Tensor | None = None
        self.level: Tensor | None = None
        if spec.normaliser.statistic:
            self.origin = self.normaliser.origin(saved.statistic.unsqueeze(-1))
            self.level = ((d_output * saved.output).sum(-1) - saved.d_statistic).unsqueeze(-1)
        # a score that is -inf by itself must be told by its value, not by what an origin of NaN makes of it
        plain = walk.plain and self.finite
        ones = torch.ones((), dtype=spec.precision, device=inputs.q.device)
        self.k = beside(walk.k, ones) if self.origin is not None and plain else None
        self.v = beside(walk.v, ones) if self.level is not None and not spec.dropout else None
        like = [walk.q, walk.k, walk.v, *inputs.every()[3:]]
        self.sums = [
            _zeros(t, spec.precision, on_its_side=n in (1, 2)) if needed else None
            for n, (t, needed) in enumerate(zip(like, needs, strict=True))
        ]

    def result(self) -> list[Tensor]:
        every = self.walk.inputs.every()
        if self.sums[1] is not None and self.walk.unit != 1.0:
            self.sums[1].div_(self.walk.unit)  # it was summed over queries in that unit
        sums = [
            total if total is None or n > 2 else total[..., : every[n].shape[-1]] for n, total in enumerate(self.sums)
        ]
        found = [(total, t) for total, t in zip(sums, every, strict=True) if total is not None]
        return [total.to(t.dtype).contiguous() for total, t in found]

    def add(self, strip: Strip) -> None:
        walk, spec = self.walk, self.walk.spec
        q, k, v = walk.queries_of(strip), walk.keys_of(walk.k, strip), walk.keys_of(walk.v, strip)
        d_output = walk.rows_of(self.d_output, strip)
        origin, level = (None if x is None else walk.rows_of(x, strip) for x in (self.origin, self.level))
        rows, keys, d_rows, values = q, k, d_output, v
        if self.k is not None and origin is not None:
            rows, keys, origin = beside(q, -origin), walk.keys_of(self.k, strip), None
        if self.v is not None and level is not None:
            d_rows, values, level = beside(d_output, -level), walk.keys_of(self.v, strip), None
        d_q = torch.zeros_like(q)
        d_k, d_v = (self._keys_in_place(total, strip) for total in self.sums[1:3])
        for j, full in strip.keys:
            here = slice(j.start, j.stop)
            tile = walk.tile(strip, j, full, rows, keys[:, here], track=True)
            seen = None if self.finite else tile.scores != -torch.inf
            weights = self.normaliser.rebuilt(tile.scores if origin is None else tile.scores.sub_(origin))
            if seen is not None:
                weights.masked_fill_(~seen, 0.0)  # a row that is NaN has no zeros of its own
            d_weights = walk.product("d_weights", d_rows, values[:, here])
            kept = weights.clone() if spec.dropout else weights
            walk.drop(strip, j, kept, d_weights)
            if d_v is not None:
                accumulate(d_v[:, here], kept.mT, d_output, None if seen is None else seen.mT)
            d_scores = self.normaliser.backward(weights, d_weights if level is None else d_weights.sub_(level))
            if seen is not None:
                d_scores.masked_fill_(~seen, 0.0)
            d_scores = walk.settled("d_scores", self._through_rule(tile, strip, d_scores))
            if spec.score != "dot":
                self._through_function(tile, d_scores, d_q, None if d_k is None else d_k[:, here])
                continue
            accumulate(d_q, d_scores, k[:, here], seen)
            if d_k is not None:
                accumulate(d_k[:, here], d_scores.mT, q, None if seen is None else seen.mT)
        if self.sums[0] is not None:
            place(self.sums[0], strip).copy_(walk.per_head(d_q, strip)).mul_(spec.scale)

    def _keys_in_place(self, total: Tensor | None, strip: Strip) -> Tensor | None:
        if total is None:
            return None
        into = self.walk.keys_of(total, strip)
        assert into._base is total._base, "a sum must be added to in place"
        return into

    def _through_rule(self, tile: Tile, strip: Strip, d_scores: Tensor) -> Tensor:
        """The gradient of the scores before the rule; what the rule captured takes its share."""
        if tile.evaluation is None:
            return d_scores
        assert self.walk.spec.rule is not None
        changes = _derivatives(self.walk.spec.rule)
        outer = self.walk.per_head(d_scores, strip)
        for node, change in changes.items():
            total = self.sums[3 + slot_of(node)] if node.op == "lookup" else None
            if total is not None:
                _scatter(total, node, tile.evaluation, _times(outer, change, tile.evaluation))
        if _S not in changes:
            return torch.zeros_like(d_scores)
        return _times(outer, changes[_S], tile.evaluation).reshape(d_scores.shape)

    def _through_function(self, tile: Tile, d_scores: Tensor, d_q: Tensor, d_k: Tensor | None) -> None:
        """Scores that are no product are differentiated by autograd, tile by tile."""
        first = 3 + len(self.walk.inputs.tensors)
        into = [d_q, d_k, *self.sums[first:]]
        wanted = [n for n, t in enumerate(tile.tracked) if t.requires_grad and into[n] is not None]
        sources = [tile.tracked[n] for n in wanted]
        found = torch.autograd.grad(tile.raw, sources, d_scores.to(tile.raw.dtype), allow_unused=True)
        for n, part in zip(wanted, found, strict=True):
            total = into[n]
            if total is not None and part is not None:
                total.add_(part.view(total.shape))


def _zeros(like: Tensor, dtype: torch.dtype, on_its_side: bool) -> Tensor:
    if not on_its_side:
        return torch.zeros(like.shape, dtype=dtype, device=like.device)
    *leading, length, width = like.shape
    whole = torch.zeros((*leading, width, -(-length // LINE) * LINE), dtype=dtype, device=like.device)
    return whole[..., :length].mT  # each row begins at a cache line


@lru_cache(maxsize=512)
def _derivatives(rule: Term) -> dict[Term, Term]:
    return derivatives(rule)


def _times(outer: Tensor, change: Term, evaluation: Evaluation) -> Tensor:
    if change is ONE:
        return outer
    # where no gradient arrives (hidden pairs among them) an infinite slope must not make a NaN
    return torch.where(outer == 0.0, 0.0, outer * evaluation.number(change))


def _scatter(total: Tensor, node: Term, evaluation: Evaluation, parts: Tensor) -> None:
    """Add each pair's part where its look-up read."""
    block = evaluation.sliced(total, node.args)
    if block is not None:
        block.add_(parts.sum_to_size(block.shape))
        return
    places = evaluation.places(node)
    total.view(-1).index_add_(0, places.flatten(), parts.sum_to_size(places.shape).flatten())
