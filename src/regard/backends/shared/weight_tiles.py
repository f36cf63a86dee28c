"""Tiles of the attention matrix, for measures, by torch operations. The native backend has its own kernel."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor

from regard.backends.shared.dense import make_positions, score_block
from regard.call.spec import BackendInputs, CallSpec
from regard.normalizers.streaming import StreamingNormalizer
from regard.plan.tiling import QueryStrip, Tiling
from regard.tensors.nonfinite import all_finite


@dataclass(frozen=True)
class WeightTileRequest:
    """The statistics to compute of a tile: all of its pairs, or only those that are set here."""

    all_pairs: bool = True
    entropy: bool = False
    column_sums: bool = False
    max_weight: bool = False
    cell_size: int = 0  # keys in a cell; 0 for no cells

    def __or__(self, other: "WeightTileRequest") -> "WeightTileRequest":
        """Return the union of two requests. Requests with different cell sizes are merged to a request of all pairs."""
        sizes_differ = bool(self.cell_size and other.cell_size and self.cell_size != other.cell_size)
        return WeightTileRequest(
            self.all_pairs or other.all_pairs or sizes_differ,
            self.entropy or other.entropy,
            self.column_sums or other.column_sums,
            self.max_weight or other.max_weight,
            self.cell_size or other.cell_size,
        )


EMPTY_REQUEST = WeightTileRequest(all_pairs=False)


@dataclass(frozen=True, eq=False)
class WeightTileData:
    """The statistics of a tile (batch, heads, queries, keys); None if absent. The next tile may overwrite them."""

    scores: Tensor | None = None  # -inf where the pair is hidden
    weights: Tensor | None = None
    entropy: Tensor | None = None  # (batch, heads, queries): the sum of -a log a over the keys
    column_sums: Tensor | None = None  # (batch, heads, keys): the sum of the weights over the queries
    # (batch, heads, queries): the largest weight and its key; -1 if no key is visible
    max_weight: tuple[Tensor, Tensor] | None = None
    cell_size: int = 0
    # (batch, heads, queries, cells): the sum and the maximum of a row's weights in each cell of `cell_size` keys
    cell_statistics: tuple[Tensor, Tensor] | None = None


class WeightTileSource(Protocol):
    """Computes tiles of the attention matrix. `tiling` returns the tile sizes for a request."""

    def tiling(self, request: WeightTileRequest) -> Tiling: ...

    def compute_tile(self, strip: QueryStrip, keys: range, is_full: bool, request: WeightTileRequest) -> WeightTileData:
        """The requested statistics of a tile, or more."""
        ...


@dataclass(frozen=True, eq=False)
class WeightInputs:
    """The inputs that any weight follows from: a call with a streaming normalizer, and its row statistic."""

    spec: CallSpec
    inputs: BackendInputs
    statistic: Tensor | None

    def weights(self, scores: Tensor, statistic: Tensor | None) -> Tensor:
        """The weights of any entries, given their scores and the statistic of their rows."""
        assert isinstance(self.spec.normalizer, StreamingNormalizer)
        return self.spec.normalizer.weights(scores, statistic)


@dataclass(frozen=True, eq=False)
class TorchWeightTiles:
    """Tiles of any call on any device."""

    weight_inputs: WeightInputs
    fixed_tiling: Tiling

    def tiling(self, request: WeightTileRequest) -> Tiling:
        return self.fixed_tiling

    @cached_property
    def _is_finite(self) -> bool:
        return all_finite(self.weight_inputs.inputs.q, self.weight_inputs.inputs.k)

    def compute_tile(self, strip: QueryStrip, keys: range, is_full: bool, request: WeightTileRequest) -> WeightTileData:
        spec, inputs, row_statistic = self.weight_inputs.spec, self.weight_inputs.inputs, self.weight_inputs.statistic
        b, h, i, j = (slice(r.start, r.stop) for r in (strip.b, strip.h, strip.i, keys))
        groups = slice(h.start // spec.queries_per_kv_head, (h.stop - 1) // spec.queries_per_kv_head + 1)
        q = inputs.q[b, h, i].to(spec.score_dtype)
        k = inputs.k[b, groups, j].to(spec.score_dtype)
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        positions = make_positions(spec, inputs, strip.b, strip.h, strip.i, keys)
        scores = score_block(spec, inputs, positions, q, k, self._is_finite).scores
        statistic = None if row_statistic is None else row_statistic[b, h, i].unsqueeze(-1)
        return WeightTileData(scores, self.weight_inputs.weights(scores, statistic))
