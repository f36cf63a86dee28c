"""The tiled backend: torch operations over tiles in O(n) memory, forward and backward, on any device.

Each strip of queries iterates over its visible tiles of keys. The forward pass keeps a running normalizer state and a
running sum. The backward pass recomputes the weights of each tile from the row statistic. The order of all sums depends
on the shapes only.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.backends.protocol import Backend, SavedForBackward
from regard.backends.shared import thresholds
from regard.backends.shared.autograd import with_unrounded_output
from regard.backends.shared.tile_iterator import (
    FLOATS_PER_CACHE_LINE,
    ScoreTile,
    TileIterator,
    add_matmul,
    append_column,
    pad_rows,
    strip_view,
)
from regard.cache import memoize
from regard.call.spec import BackendInputs, CallSpec
from regard.expr.derivative import ONE, derivatives
from regard.expr.evaluate import Evaluator
from regard.expr.ir import TRUE, Expr, slot_of, variable
from regard.normalizers.streaming import StreamingNormalizer
from regard.normalizers.threshold import ThresholdNormalizer
from regard.plan.tiling import QueryStrip, Tiling
from regard.tensors.nonfinite import all_finite

_S = variable("s")


class TiledBackend:
    """Runs every call in linear memory, on any torch device."""

    name = "tiled"
    variant = ""
    fallback: Backend | None = None
    compute_dtype: torch.dtype | None = None

    def has_linear_memory(self, spec: CallSpec) -> bool:
        return True

    def unsupported_reasons(self, spec: CallSpec) -> tuple[str, ...]:
        return ()

    def tiling(self, spec: CallSpec) -> Tiling:
        if spec.score_kind != "dot":  # each pair takes head_dim numbers
            side = 128 if spec.head_dim <= 32 else 64
            return Tiling(side, side, 2**22 // max(1, spec.head_dim))
        if spec.n_q * spec.queries_per_kv_head < 128:  # few queries, as in decoding: use longer rows of keys
            rows = max(1, spec.n_q)
            return Tiling(rows, max(512, 2**17 // (rows * spec.queries_per_kv_head)), 2**18)
        # smaller tiles under a mask: half of each tile at its border is wasted
        return Tiling(512 if spec.mask is TRUE else 256, 256, 2**19, 1024)

    def forward(self, spec: CallSpec, inputs: BackendInputs, tiling: Tiling) -> tuple[Tensor, Tensor | None]:
        if isinstance(spec.normalizer, ThresholdNormalizer):
            return thresholds.forward(self, spec, inputs, tiling)
        tiles = TileIterator(spec, inputs, tiling)
        output = inputs.q.new_empty((spec.batch_size, spec.num_heads, spec.n_q, spec.value_dim), dtype=spec.dtype)
        statistic = output.new_empty((spec.batch_size, spec.num_heads, spec.n_q), dtype=spec.score_dtype)
        for strip in tiles.strips():
            strip_output, strip_statistic = _forward_strip(tiles, strip)
            strip_view(output, strip).copy_(strip_output)
            if strip_statistic is not None:
                strip_view(statistic, strip).copy_(strip_statistic)
        return output, statistic if spec.normalizer.statistic else None

    def backward(
        self,
        spec: CallSpec,
        inputs: BackendInputs,
        tiling: Tiling,
        saved: SavedForBackward,
        needs_input_grad: Sequence[bool],
    ) -> list[Tensor]:
        saved = with_unrounded_output(self, spec, inputs, tiling, saved)
        if isinstance(spec.normalizer, ThresholdNormalizer):
            return thresholds.backward(self, spec, inputs, tiling, saved, needs_input_grad)
        # each pair takes twice the memory of the forward pass, so only half of the row fits into the cache
        tiles = TileIterator(spec, inputs, replace(tiling, max_row_keys=tiling.max_row_keys // 2))
        gradients = _GradientSums(tiles, saved, needs_input_grad)
        for strip in tiles.strips():
            gradients.add_strip(strip)
        return gradients.result()


def _forward_strip(tile_iterator: TileIterator, strip: QueryStrip) -> tuple[Tensor, Tensor | None]:
    """The output and the row statistic of a strip."""
    normalizer = tile_iterator.normalizer
    assert isinstance(normalizer, StreamingNormalizer)
    q, k, v = (
        tile_iterator.scaled_queries(strip),
        tile_iterator.key_rows(tile_iterator.k, strip),
        tile_iterator.key_rows(tile_iterator.v, strip),
    )
    state = normalizer.init_state(q.new_zeros((*q.shape[:2], 1)))
    total = q.new_zeros((*q.shape[:2], v.shape[-1]))
    for j, is_full in strip.keys:
        tile = tile_iterator.score_tile(strip, j, is_full, q, k[:, j.start : j.stop])
        visible = None if tile_iterator.all_finite else tile.scores != -torch.inf
        state, weights, rescale = normalizer.update(state, tile.scores)
        tile_iterator.apply_dropout_(strip, j, weights)
        if rescale is not None:
            total.mul_(rescale)
        add_matmul(total, weights, v[:, j.start : j.stop], visible)
    scale, statistic = normalizer.finalize(state)
    if scale is not None:
        total.mul_(scale)
    shape = (len(strip.b), len(strip.h), len(strip.i))
    output = total.view(*shape, -1)[..., : tile_iterator.spec.value_dim]
    return output, None if statistic is None else statistic.view(shape)


class _GradientSums:
    """The gradients of q, k, v, captured tensors and parameters, summed strip by strip.

    Two values of each row are subtracted from a tile: the origin of the scores, and delta = (d_output · output) minus
    the gradient of the statistic. If a tile is a plain product, they are one more column of its left factor, with ones
    in its right factor, which saves a pass over the tile. Sums over queries are stored transposed, (head_dim, keys),
    since their product is fastest this way.
    """

    def __init__(self, tile_iterator: TileIterator, saved: SavedForBackward, needs_input_grad: Sequence[bool]) -> None:
        assert isinstance(tile_iterator.normalizer, StreamingNormalizer)
        self.tile_iterator, self.normalizer = tile_iterator, tile_iterator.normalizer
        spec, inputs = tile_iterator.spec, tile_iterator.inputs
        d_output = saved.d_output.to(spec.score_dtype)
        self.d_output = pad_rows(d_output)
        # scores of finite inputs may have overflowed
        self.all_finite = tile_iterator.all_finite and all_finite(d_output, saved.output)
        self.origin: Tensor | None = None
        self.delta: Tensor | None = None
        if spec.normalizer.statistic:
            self.origin = self.normalizer.score_origin(saved.statistic.unsqueeze(-1))
            self.delta = ((d_output * saved.output).sum(-1) - saved.d_statistic).unsqueeze(-1)
        # a score of -inf must be recognized before an origin of NaN is subtracted
        plain = tile_iterator.is_plain_product and self.all_finite
        ones = torch.ones((), dtype=spec.score_dtype, device=inputs.q.device)
        self.k = append_column(tile_iterator.k, ones) if self.origin is not None and plain else None
        self.v = append_column(tile_iterator.v, ones) if self.delta is not None and not spec.dropout else None
        like = [tile_iterator.q, tile_iterator.k, tile_iterator.v, *inputs.all_tensors()[3:]]
        self.sums = [
            _zeros(t, spec.score_dtype, transposed=n in (1, 2)) if needed else None
            for n, (t, needed) in enumerate(zip(like, needs_input_grad, strict=True))
        ]

    def result(self) -> list[Tensor]:
        tensors = self.tile_iterator.inputs.all_tensors()
        if self.sums[1] is not None and self.tile_iterator.score_unit != 1.0:
            self.sums[1].div_(self.tile_iterator.score_unit)  # the queries were multiplied by the unit
        sums = [
            total if total is None or n > 2 else total[..., : tensors[n].shape[-1]] for n, total in enumerate(self.sums)
        ]
        needed = [(total, t) for total, t in zip(sums, tensors, strict=True) if total is not None]
        return [total.to(t.dtype).contiguous() for total, t in needed]

    def add_strip(self, strip: QueryStrip) -> None:
        tiles, spec = self.tile_iterator, self.tile_iterator.spec
        q, k, v = tiles.scaled_queries(strip), tiles.key_rows(tiles.k, strip), tiles.key_rows(tiles.v, strip)
        d_output = tiles.query_rows(self.d_output, strip)
        origin, delta = (None if x is None else tiles.query_rows(x, strip) for x in (self.origin, self.delta))
        rows, keys, d_rows, values = q, k, d_output, v
        if self.k is not None and origin is not None:
            rows, keys, origin = append_column(q, -origin), tiles.key_rows(self.k, strip), None
        if self.v is not None and delta is not None:
            d_rows, values, delta = append_column(d_output, -delta), tiles.key_rows(self.v, strip), None
        d_q = torch.zeros_like(q)
        d_k, d_v = (self._key_rows_in_place(total, strip) for total in self.sums[1:3])
        for j, is_full in strip.keys:
            columns = slice(j.start, j.stop)
            tile = tiles.score_tile(strip, j, is_full, rows, keys[:, columns], needs_grad=True)
            visible = None if self.all_finite else tile.scores != -torch.inf
            weights = self.normalizer.recompute_weights(tile.scores if origin is None else tile.scores.sub_(origin))
            if visible is not None:
                weights.masked_fill_(~visible, 0.0)  # a NaN row has no zero weights
            d_weights = tiles.product("d_weights", d_rows, values[:, columns])
            remaining_weights = weights.clone() if spec.dropout else weights
            tiles.apply_dropout_(strip, j, remaining_weights, d_weights)
            if d_v is not None:
                add_matmul(d_v[:, columns], remaining_weights.mT, d_output, None if visible is None else visible.mT)
            d_scores = self.normalizer.backward(weights, d_weights if delta is None else d_weights.sub_(delta))
            if visible is not None:
                d_scores.masked_fill_(~visible, 0.0)
            d_scores = tiles.aligned("d_scores", self._through_score_mod(tile, strip, d_scores))
            if spec.score_kind != "dot":
                self._through_pairwise_score(tile, d_scores, d_q, None if d_k is None else d_k[:, columns])
                continue
            add_matmul(d_q, d_scores, k[:, columns], visible)
            if d_k is not None:
                add_matmul(d_k[:, columns], d_scores.mT, q, None if visible is None else visible.mT)
        if self.sums[0] is not None:
            strip_view(self.sums[0], strip).copy_(tiles.by_head(d_q, strip)).mul_(spec.scale)

    def _key_rows_in_place(self, total: Tensor | None, strip: QueryStrip) -> Tensor | None:
        if total is None:
            return None
        rows = self.tile_iterator.key_rows(total, strip)
        assert rows._base is total._base, "a sum must be updated in place"
        return rows

    def _through_score_mod(self, tile: ScoreTile, strip: QueryStrip, d_scores: Tensor) -> Tensor:
        """Return the gradient of the raw scores, and add the gradients of captured tensors to their sums."""
        if tile.evaluation is None:
            return d_scores
        assert self.tile_iterator.spec.score_mod is not None
        score_mod_grads = _score_mod_derivatives(self.tile_iterator.spec.score_mod)
        outer = self.tile_iterator.by_head(d_scores, strip)
        for node, derivative in score_mod_grads.items():
            total = self.sums[3 + slot_of(node)] if node.op == "lookup" else None
            if total is not None:
                _scatter(total, node, tile.evaluation, _scale_by_derivative(outer, derivative, tile.evaluation))
        if _S not in score_mod_grads:
            return torch.zeros_like(d_scores)
        return _scale_by_derivative(outer, score_mod_grads[_S], tile.evaluation).reshape(d_scores.shape)

    def _through_pairwise_score(self, tile: ScoreTile, d_scores: Tensor, d_q: Tensor, d_k: Tensor | None) -> None:
        """Differentiate additive and custom scores by autograd, tile by tile."""
        first = 3 + len(self.tile_iterator.inputs.tensors)
        targets = [d_q, d_k, *self.sums[first:]]
        needed = [n for n, t in enumerate(tile.grad_inputs) if t.requires_grad and targets[n] is not None]
        sources = [tile.grad_inputs[n] for n in needed]
        gradients = torch.autograd.grad(tile.raw_scores, sources, d_scores.to(tile.raw_scores.dtype), allow_unused=True)
        for n, gradient in zip(needed, gradients, strict=True):
            total = targets[n]
            if total is not None and gradient is not None:
                total.add_(gradient.view(total.shape))


def _zeros(like: Tensor, dtype: torch.dtype, transposed: bool) -> Tensor:
    if not transposed:
        return torch.zeros(like.shape, dtype=dtype, device=like.device)
    *leading, length, head_dim = like.shape
    padded = torch.zeros(
        (*leading, head_dim, -(-length // FLOATS_PER_CACHE_LINE) * FLOATS_PER_CACHE_LINE),
        dtype=dtype,
        device=like.device,
    )
    return padded[..., :length].mT  # each row begins at a cache line


@memoize(512)
def _score_mod_derivatives(score_mod: Expr) -> dict[Expr, Expr]:
    return derivatives(score_mod)


def _scale_by_derivative(grad_output: Tensor, derivative: Expr, evaluation: Evaluator) -> Tensor:
    if derivative is ONE:
        return grad_output
    # if the gradient is 0, as for hidden pairs, an infinite derivative must not give NaN
    return torch.where(grad_output == 0.0, 0.0, grad_output * evaluation.score_value(derivative))


def _scatter(total: Tensor, node: Expr, evaluation: Evaluator, values: Tensor) -> None:
    """Add the gradient of each pair to the element that its lookup read."""
    block = evaluation.slice_of_tensor(total, node.args)
    if block is not None:
        block.add_(values.sum_to_size(block.shape))
        return
    indices = evaluation.flat_indices(node)
    total.view(-1).index_add_(0, indices.flatten(), values.sum_to_size(indices.shape).flatten())
