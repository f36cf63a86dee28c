"""Iterates over the tiles of a spec and computes their scores.

Query heads that share a key head are adjacent, so a tile is one product of shape
(batch x key heads, group x queries, keys).

A batch element has the same bits alone and in a batch. The rounding of a BLAS product depends on the alignment of each
matrix, and torch computes the end of a tensor that does not fill its vectors with another exp2. So rows are padded with
zeros to whole cache lines, and each row of a tile begins at a cache line.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.backends.shared.dense import make_positions, pairwise_scores
from regard.backends.shared.dropout import dropout_mask
from regard.call.spec import BackendInputs, CallSpec
from regard.expr.affine import depends_on_difference_only
from regard.expr.evaluate import Evaluator, IndexGrid
from regard.expr.hidden_pairs import effective_mask
from regard.expr.ir import ARITHMETIC, ELEMENTARY_FUNCTIONS
from regard.plan.tiling import QueryStrip, Tiling, call_coverage, query_strips
from regard.tensors.nonfinite import all_finite, nonfinite_rows

FLOATS_PER_CACHE_LINE = 16  # of float32; two cache lines of float64
MIN_ROW_FLOATS = 32  # the floats that torch computes together in the widest vectors

# the value of any other op may be a view of a captured tensor
_ALLOCATING_OPS = ARITHMETIC | ELEMENTARY_FUNCTIONS | {"where", "div", "neg", "abs"}


@dataclass(slots=True, eq=False)
class ScoreTile:
    """The scores of a strip and some keys, before and after the score modifier; hidden scores are -inf."""

    raw_scores: Tensor
    scores: Tensor
    evaluation: Evaluator | None
    grad_inputs: tuple[Tensor, ...]  # the tensors that autograd can differentiate `raw_scores` in


@dataclass(frozen=True, eq=False)
class _VisiblePairs:
    """The visible pairs of a tile, broadcasting to (batch, heads, queries, keys), for scores of a dtype."""

    pairs: Tensor
    dtype: torch.dtype

    @cached_property
    def _bits(self) -> tuple[Tensor, Tensor]:
        """The bits of a score to keep, and the bits to set: those of -inf for a hidden pair."""
        integer = {4: torch.int32, 8: torch.int64}[self.dtype.itemsize]
        keep = self.pairs.to(integer).neg_()
        return keep, ~keep & int(torch.tensor(-torch.inf, dtype=self.dtype).view(integer))

    def hide_(self, scores: Tensor) -> None:
        """Set the scores of hidden pairs to -inf. torch's masked_fill_ takes twice as long."""
        keep, hidden = self._bits
        scores.view(keep.dtype).bitwise_and_(keep).bitwise_or_(hidden)


class TileIterator:
    """One pass over the tiles of a spec."""

    def __init__(self, spec: CallSpec, inputs: BackendInputs, tiling: Tiling) -> None:
        self.spec, self.inputs, self.tiling = spec, inputs, tiling
        tensors = [x.detach().to(spec.score_dtype) for x in (inputs.q, inputs.k, inputs.v)]
        # custom and additive scores need rows without padding
        self.q, self.k = (pad_rows(x) if spec.score_kind == "dot" else x for x in tensors[:2])
        self.v = pad_rows(tensors[2])
        # a score modifier needs the score itself; a plain product can be in the unit of the normalizer
        self.is_plain_product = spec.score_kind == "dot" and spec.score_mod is None
        self.normalizer, self.score_unit = (
            spec.normalizer.prescaled() if self.is_plain_product else (spec.normalizer, 1.0)
        )
        self.condition = effective_mask(spec.mask, spec.score_mod, inputs.tensors)
        # whether tiles at the same distance from the diagonal have the same mask
        variables = self.condition.free_variables
        self.is_translation_invariant = (
            spec.query_offset is not None
            and not variables & {"b", "h", "s"}
            and depends_on_difference_only(self.condition)
        )
        self._cached_masks: dict[tuple[int, int, int], _VisiblePairs] = {}
        self._workspaces: dict[str, Tensor] = {}

    @cached_property
    def all_finite(self) -> bool:
        """Whether q, k and v are finite, so that 0 times any value is 0. Otherwise sums must skip hidden values."""
        return all_finite(self.q, self.k, self.v)

    def strips(self) -> Iterator[QueryStrip]:
        return query_strips(
            self.spec, call_coverage(self.spec, self.inputs.tensors, self.inputs.query_offset, self.tiling), self.tiling
        )

    def key_rows(self, x: Tensor, strip: QueryStrip) -> Tensor:
        """All keys or values of the heads of a strip: (batch x key heads, n_k, dim)."""
        group = self.spec.queries_per_kv_head
        g = slice(strip.h.start // group, (strip.h.stop - 1) // group + 1)
        return x[strip.b.start : strip.b.stop, g].flatten(0, 1)

    def query_rows(self, x: Tensor, strip: QueryStrip) -> Tensor:
        """The rows of a strip in a (batch, heads, n_q, ...) tensor, as (batch x key heads, group x queries, ...)."""
        kv_heads = -(-len(strip.h) // self.spec.queries_per_kv_head)
        rows = len(strip.h) // kv_heads * len(strip.i)
        return strip_view(x, strip).reshape(len(strip.b) * kv_heads, rows, *x.shape[3:])

    def positions(self, strip: QueryStrip, j: range) -> IndexGrid:
        return make_positions(self.spec, self.inputs, strip.b, strip.h, strip.i, j)

    def by_head(self, tile: Tensor, strip: QueryStrip) -> Tensor:
        """View a tile (batch x key heads, group x queries, keys) as (batch, heads, queries, keys)."""
        return tile.view(len(strip.b), len(strip.h), len(strip.i), -1)

    def scaled_queries(self, strip: QueryStrip) -> Tensor:
        """The queries of a strip, multiplied by the scale of a dot-product score."""
        q = self.query_rows(self.q, strip)
        scale = self.spec.scale * self.score_unit
        return q * scale if self.spec.score_kind == "dot" and scale != 1.0 else q

    def product(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        """x @ y.mT in the workspace `name`, which all tiles reuse: fresh memory costs more than the softmax."""
        keys, columns = y.shape[1], _round_up(y.shape[1], MIN_ROW_FLOATS)
        if columns != keys:
            rows = y.new_zeros((y.shape[0], columns, _round_up(y.shape[2], FLOATS_PER_CACHE_LINE)))[..., : y.shape[2]]
            rows[:, :keys].copy_(y)
            y = rows
        workspace = torch.bmm(x, y.mT, out=self._workspace_view(name, x, (x.shape[0], x.shape[1], columns)))
        return workspace[..., :keys]

    def aligned(self, name: str, x: Tensor) -> Tensor:
        """x with rows that begin at cache lines: x itself, or a copy in the workspace `name`."""
        keys, columns = x.shape[2], _round_up(x.shape[2], MIN_ROW_FLOATS)
        if columns == keys or x.stride(1) == columns:
            return x
        return self._workspace_view(name, x, (x.shape[0], x.shape[1], columns))[..., :keys].copy_(x)

    def _workspace_view(self, name: str, like: Tensor, shape: tuple[int, int, int]) -> Tensor:
        workspace = self._workspaces.get(name)
        if workspace is None or workspace.shape != shape:
            workspace = self._workspaces[name] = _reuse_memory(workspace, like, shape)
        return workspace

    def score_tile(
        self, strip: QueryStrip, j: range, is_full: bool, q: Tensor, k: Tensor, needs_grad: bool = False
    ) -> ScoreTile:
        """The scores of queries q and keys k. With `needs_grad`, the raw scores can be differentiated."""
        spec, inputs = self.spec, self.inputs
        visible = None if is_full else self._visible_pairs(strip, j)
        grad_inputs: tuple[Tensor, ...] = ()
        if spec.score_kind == "dot":
            scores = raw_scores = self.product("scores", q, k)
        else:
            raw_scores, grad_inputs = self._pairwise_scores(
                strip, j, q, k, None if self.all_finite else visible, needs_grad
            )
            scores = raw_scores.detach()
        evaluation = None
        if spec.score_mod is not None:
            positions = self.positions(strip, j)
            evaluation = Evaluator(inputs.tensors, positions, self.by_head(scores, strip), spec.score_dtype)
            modified = evaluation.score_value(spec.score_mod).expand(positions.shape)
            is_fresh = not needs_grad and spec.score_mod.op in _ALLOCATING_OPS
            scores = self.aligned(
                "modified", (modified.contiguous() if is_fresh else _aligned_copy(modified)).view(raw_scores.shape)
            )
        elif grad_inputs:
            scores = _aligned_copy(scores)
        if visible is not None:
            visible.hide_(self.by_head(scores, strip))
        if evaluation is not None:
            evaluation.check_lookups_in_range(None if visible is None else visible.pairs)
        return ScoreTile(raw_scores, scores, evaluation, grad_inputs)

    def _visible_pairs(self, strip: QueryStrip, j: range) -> _VisiblePairs:
        """The visible pairs of a tile. Tiles along the border of a causal mask or a window share theirs."""
        cache_key = (strip.i.start - j.start, len(strip.i), len(j)) if self.is_translation_invariant else None
        if cache_key is not None and cache_key in self._cached_masks:
            return self._cached_masks[cache_key]
        evaluator = Evaluator(self.inputs.tensors, self.positions(strip, j))
        pairs = evaluator.mask_value(self.condition)
        visible = _VisiblePairs(pairs, self.spec.score_dtype)
        evaluator.check_lookups_in_range(pairs)
        if cache_key is not None and len(self._cached_masks) < 8:
            self._cached_masks[cache_key] = visible
        return visible

    def _pairwise_scores(
        self, strip: QueryStrip, j: range, q: Tensor, k: Tensor, visible: _VisiblePairs | None, needs_grad: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Additive or custom scores and, with `needs_grad`, the tensors they can be differentiated in."""
        spec, inputs = self.spec, self.inputs
        positions = self.positions(strip, j)
        pairs = None if visible is None else visible.pairs.expand(positions.shape)
        group = len(strip.h) * len(strip.b) // q.shape[0]
        with torch.set_grad_enabled(needs_grad):
            q = self.by_head(q, strip).detach().requires_grad_(needs_grad)
            k = k.detach().requires_grad_(needs_grad)
            expanded_k = k.reshape(len(strip.b), -1, *k.shape[1:]).repeat_interleave(group, dim=1)
            parameters = tuple(p.detach().requires_grad_(needs_grad) for p in inputs.parameters)
            scores = pairwise_scores(spec, inputs, positions, q, expanded_k, parameters, pairs)
            raw_scores = scores.reshape(-1, group * len(strip.i), k.shape[1]).to(spec.score_dtype)
        # a custom function may return a tensor that it also uses elsewhere
        return (raw_scores, (q, k, *parameters)) if needs_grad else (_aligned_copy(raw_scores), ())

    def apply_dropout_(self, strip: QueryStrip, j: range, *weights: Tensor) -> None:
        """Set dropped weights to 0 and scale the others, in place."""
        if self.spec.dropout:
            positions = self.positions(strip, j)
            is_dropped = dropout_mask(self.inputs.seed, self.spec.dropout, positions, self.inputs.dropout_origin)
            for x in weights:
                self.by_head(x, strip).masked_fill_(is_dropped, 0.0).mul_(1.0 / (1.0 - self.spec.dropout))


def strip_view(x: Tensor, strip: QueryStrip) -> Tensor:
    """View the rows of a strip in a (batch, heads, n_q, ...) tensor."""
    return x[strip.b.start : strip.b.stop, strip.h.start : strip.h.stop, strip.i.start : strip.i.stop]


def add_matmul(total: Tensor, weights: Tensor, x: Tensor, visible: Tensor | None) -> None:
    """total += weights @ x. With `visible`, rows of x that are not finite count for visible pairs only."""
    if visible is None:
        total.baddbmm_(weights, x)
        return
    nonfinite = nonfinite_rows(x)
    total.baddbmm_(weights, x.masked_fill(nonfinite, 0.0))
    for n in nonfinite.any(0).flatten().nonzero().flatten().tolist():
        is_visible = (visible[:, :, n] & nonfinite[:, n]).unsqueeze(-1)
        total.add_(torch.where(is_visible, weights[:, :, n, None] * x[:, n, None], 0.0))


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def pad_rows(x: Tensor) -> Tensor:
    """Pad rows with zeros to whole cache lines, and align the first row. Return x itself if it is already aligned."""
    dim = x.shape[-1]
    if dim % FLOATS_PER_CACHE_LINE:
        padded = x.new_zeros((*x.shape[:-1], _round_up(dim, FLOATS_PER_CACHE_LINE)))
        padded[..., :dim] = x
        return padded
    if x.device.type == "cpu" and x.data_ptr() % (FLOATS_PER_CACHE_LINE * 4):
        return _aligned_copy(x)
    return x if 0 in x.stride() else x.contiguous()  # an expanded batch is not copied


def append_column(x: Tensor, column: Tensor) -> Tensor:
    """x with one more column (..., 1) and rows that begin at cache lines."""
    dim = x.shape[-1]
    extended = x.new_empty((*x.shape[:-1], _round_up(dim + 1, FLOATS_PER_CACHE_LINE)))[..., : dim + 1]
    extended[..., :dim] = x
    extended[..., dim:] = column
    return extended


def _reuse_memory(old: Tensor | None, like: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """A tensor of this shape in the memory of `old`, or in new memory if that is too small."""
    size = math.prod(shape)
    if old is None or old.untyped_storage().nbytes() < size * like.element_size():
        return like.new_empty(shape)
    return old.as_strided(shape, (shape[1] * shape[2], shape[2], 1))


def _aligned_copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)
