"""The native backend: C++ kernels that keep scores in the caches, with masks and score modifiers as small programs.

A call is packed into the structs of `abi.py`.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.backends.native import abi
from regard.backends.native.abi import (
    DTYPES,
    MAX_LENGTH,
    PANELS_PER_BLOCK,
    AttentionParams,
    StridedRows,
    ThresholdMode,
    ThresholdParams,
    WeightTileParams,
)
from regard.backends.native.codegen.program_compiler import UnsupportedExpr, compile_program
from regard.backends.native.missing_core import missing_core_reason
from regard.backends.native.packing import PackedProgram, pack_program
from regard.backends.protocol import Backend, SavedForBackward
from regard.backends.shared import thresholds
from regard.backends.shared.autograd import with_unrounded_output
from regard.backends.shared.thresholds import entmax_exponent, entmax_gradients
from regard.backends.shared.weight_tiles import WeightTileData, WeightTileRequest
from regard.cache import memoize
from regard.call.parse import MAX_REUSED_BYTES
from regard.call.spec import BackendInputs, CallSpec
from regard.expr.hidden_pairs import MAX_FULL_SCAN_NUMEL, effective_mask
from regard.expr.ir import TRUE, Expr, slot_of, variable, walk
from regard.normalizers.streaming import Softmax
from regard.normalizers.threshold import Entmax, Hardmax, ThresholdNormalizer, TopK
from regard.plan.tiling import QueryStrip, Tiling
from regard.tensors.precision import dtype_name
from regard.tensors.storage import address, check_captured_storage, check_storage, required_bytes

THRESHOLD_MODES = {Entmax: ThresholdMode.ENTMAX, TopK: ThresholdMode.TOPK, Hardmax: ThresholdMode.HARDMAX}
BF16_BUILD = "AVX-512 BF16"  # multiplies pairs of bfloat16
COLUMN_SUM_GROUPS = 32  # groups of rows, summed separately; the same for any number of threads


@dataclass(frozen=True)
class KernelBuild:
    """One build of the kernels: its index, the name of its instruction set, and its tile sizes."""

    index: int
    name: str
    panel_queries: int  # queries that are computed together, in up to three vectors
    lanes: int  # queries in a vector
    chunk_keys: int  # granularity of a mask's runs, in keys


def builds() -> tuple[KernelBuild, ...]:
    """The builds that this processor can run, the fastest first; none if the core was not built."""
    return () if abi.core is None else tuple(KernelBuild(*entry) for entry in abi.core.builds())


def float32_build() -> KernelBuild | None:
    """The fastest build that multiplies in float32, whatever the dtype of the inputs."""
    return next((build for build in builds() if build.name != BF16_BUILD), None)


class NativeBackend:
    """Softmax and thresholded attention on the CPU.

    Sums are in float32. So are products, unless q, k and v are bfloat16 and the build multiplies pairs of bfloat16.

    It supports any mask and score modifier that compiles to a program. Some limits show only in the data, such as a
    lookup index out of range. The forward and backward pass then raise `UnsupportedCall`, and `fallback` runs instead.
    """

    compute_dtype: torch.dtype | None = None

    def __init__(self, fallback: Backend | None, build: KernelBuild | None = None, name: str = "native") -> None:
        self.name = name
        self.fallback = fallback
        self.build = build or next(iter(builds()), None)
        self.variant = self.build.name if self.build else ""

    def has_linear_memory(self, spec: CallSpec) -> bool:
        return True

    def unsupported_reasons(self, spec: CallSpec) -> tuple[str, ...]:
        if self.build is not None:
            return self.unsupported_spec_reasons(spec)
        return (missing_core_reason(),)

    def unsupported_spec_reasons(self, spec: CallSpec) -> tuple[str, ...]:
        """Why the kernels do not support a spec, whether or not they are built."""
        reasons = []
        if spec.device != "cpu":
            reasons.append(f"it runs on the CPU, and the tensors are on {spec.device}")
        if spec.score_dtype != torch.float32:
            reasons.append(f"it computes scores in float32, and this call needs {dtype_name(spec.score_dtype)}")
        if spec.score_kind not in ("dot", "additive"):
            reasons.append(f"it supports dot-product and additive scores, not {spec.score_kind} scores")
        if not isinstance(spec.normalizer, (Softmax, *THRESHOLD_MODES)):
            supported = "softmax, sink, sparsemax, entmax, topk, hardmax"
            reasons.append(f"it does not support the {spec.normalizer.name} normalizer (it supports {supported})")
        if max(spec.n_q, spec.n_k) > MAX_LENGTH:
            reasons.append(f"it supports at most {MAX_LENGTH} queries or keys, not n_q={spec.n_q} and n_k={spec.n_k}")
        expr_reason = _unsupported_expr_reason(spec.mask, spec.score_mod)
        if expr_reason is not None:
            reasons.append(expr_reason)
        return tuple(reasons)

    def tiling(self, spec: CallSpec) -> Tiling:
        build = self.build
        assert build is not None, "a backend without a build supports no spec"
        return Tiling(
            build.lanes, build.chunk_keys, 2**16, tiles_per_strip=PANELS_PER_BLOCK * build.panel_queries // build.lanes
        )

    def forward(self, spec: CallSpec, inputs: BackendInputs, tiling: Tiling) -> tuple[Tensor, Tensor | None]:
        if isinstance(spec.normalizer, ThresholdNormalizer):
            return self._forward_thresholded(spec, inputs, tiling, THRESHOLD_MODES[type(spec.normalizer)])
        sample_only = _adds_large_bias(spec, inputs)
        output, lse = self._forward(spec, inputs, tiling, sample_only)
        if sample_only and bool(lse.sum().isnan()):  # the NaN may come from a score that the bias hides
            return self._forward(spec, inputs, tiling, sample_only=False)
        return output, lse

    def _forward(
        self, spec: CallSpec, inputs: BackendInputs, tiling: Tiling, sample_only: bool
    ) -> tuple[Tensor, Tensor]:
        params, keepalive = _pack_params(spec, inputs, self._pack_program(spec, inputs, tiling, sample_only))
        output, lse = _allocate_outputs(spec, inputs, params)
        self._call_kernel("forward", params, keepalive)
        return output.to(spec.dtype), lse

    def _forward_thresholded(
        self,
        spec: CallSpec,
        inputs: BackendInputs,
        tiling: Tiling,
        mode: ThresholdMode,
        thresholds: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The output and the threshold of each row; with ENTMAX_SLOPE, the log of its sum of weights instead."""
        assert self.build is not None and abi.core is not None
        spec = _fold_constant_scale(spec)
        params, keepalive = _pack_params(spec, inputs, self._pack_program(spec, inputs, tiling, sample_only=False))
        output, statistic = _allocate_outputs(spec, inputs, params)
        k = spec.normalizer.k if isinstance(spec.normalizer, TopK) else 1
        vectors = [None if x is None else x.contiguous() for x in (_entmax_exponents(spec, inputs), thresholds)]
        exponents, thresholds_address = (0 if x is None else address(x) for x in vectors)
        threshold_params = ThresholdParams(mode, k, exponents, thresholds_address, 0)
        abi.core.thresholded(self.build.index, bytes(params), bytes(threshold_params))
        del keepalive, vectors  # the kernel has read them
        return output.to(spec.dtype), statistic

    def column_sums(self, spec: CallSpec, inputs: BackendInputs) -> tuple[Tensor, Tensor] | None:
        """The lse of each row (batch, heads, n_q), and the total weight of each key (batch, heads, n_k) in float64.

        None if the data are not supported.
        """
        assert self.build is not None and abi.core is not None and isinstance(spec.normalizer, Softmax)
        try:
            packed_program = self._pack_program(spec, inputs, self.tiling(spec), sample_only=False)
        except UnsupportedExpr:
            return None
        params, keepalive = _pack_params(spec, inputs, packed_program)
        lse = torch.empty((spec.batch_size, spec.num_heads, spec.n_q), dtype=torch.float32)
        parts = torch.empty((spec.batch_size, spec.num_heads, COLUMN_SUM_GROUPS, spec.n_k), dtype=torch.float32)
        params.row_statistic = address(lse)
        threshold_params = ThresholdParams(ThresholdMode.COLUMN_SUMS, COLUMN_SUM_GROUPS, 0, 0, address(parts))
        abi.core.thresholded(self.build.index, bytes(params), bytes(threshold_params))
        del keepalive
        total = torch.zeros((spec.batch_size, spec.num_heads, spec.n_k), dtype=torch.float64)
        for part in parts.unbind(2):  # in a fixed order, for the same bits in any run
            total += part
        return lse, total

    def backward(
        self,
        spec: CallSpec,
        inputs: BackendInputs,
        tiling: Tiling,
        saved: SavedForBackward,
        needs_input_grad: Sequence[bool],
    ) -> list[Tensor]:
        saved = with_unrounded_output(self, spec, inputs, tiling, saved)
        if not isinstance(spec.normalizer, ThresholdNormalizer):
            return self._backward(spec, inputs, tiling, saved, needs_input_grad)
        exponent = spec.normalizer.parameter
        if exponent is None or any(needs_input_grad[3 + slot] for slot in exponent.captured_slots):
            return thresholds.backward(self, spec, inputs, tiling, saved, needs_input_grad)
        slope_output, log_slope_sum = self._forward_thresholded(
            spec, inputs, tiling, ThresholdMode.ENTMAX_SLOPE, saved.statistic
        )
        saved = entmax_gradients(spec, inputs, saved, slope_output, log_slope_sum)
        return self._backward(_fold_constant_scale(spec), inputs, tiling, saved, needs_input_grad)

    def _backward(
        self,
        spec: CallSpec,
        inputs: BackendInputs,
        tiling: Tiling,
        saved: SavedForBackward,
        needs_input_grad: Sequence[bool],
    ) -> list[Tensor]:
        tensors = inputs.all_tensors()
        needed = [n for n, needs_grad in enumerate(needs_input_grad) if needs_grad]
        captured = [n for n in needed if 3 <= n < 3 + len(inputs.tensors)]
        sample_only = _adds_large_bias(spec, inputs) and _scores_are_finite(spec, inputs)
        packed_program = self._pack_program(spec, inputs, tiling, sample_only, tuple(n - 3 for n in captured))
        sums = {n: torch.empty(tensors[n].shape, dtype=torch.float32) for n in range(3)}
        sums |= {n: torch.zeros(tensors[n].shape, dtype=torch.float32) for n in captured}
        # a gradient that is not rounded to the dtype of the inputs stays as it is
        dtype = _kernel_dtype(inputs) if saved.d_output.dtype == inputs.q.dtype else torch.float32
        params, keepalive = _pack_params(spec, inputs, packed_program, dtype, [sums[n] for n in captured])
        params.output_dtype = DTYPES.index(torch.float32)
        saved_rows = [x.contiguous() for x in (saved.output.float(), saved.statistic, saved.d_statistic)]
        d_output = _with_contiguous_rows(saved.d_output.to(dtype))
        params.output, params.row_statistic, params.d_row_statistic = (address(x) for x in saved_rows)
        params.d_output = _strided_rows(d_output)
        params.d_q, params.d_k, params.d_v = (address(sums[n]) for n in range(3))
        exponents = _entmax_exponents(spec, inputs)
        params.entmax_exponents = 0 if exponents is None else address(exponents)
        if spec.score_kind == "additive":
            d_u = torch.zeros((spec.num_heads, spec.head_dim), dtype=torch.float64)
            params.d_u = address(d_u)
            sums[len(tensors) - 1] = d_u
        self._call_kernel("backward", params, (keepalive, saved_rows, d_output, exponents))
        return [sums[n].sum_to_size(tensors[n].shape).to(tensors[n].dtype) for n in needed]

    def _pack_program(
        self, spec: CallSpec, inputs: BackendInputs, tiling: Tiling, sample_only: bool, grad_slots: tuple[int, ...] = ()
    ) -> PackedProgram | None:
        """The mask and the score modifier as a program for the kernels; None if there is neither."""
        for x in (inputs.q, inputs.k, inputs.v):  # rejects a tensor without data before any work
            address(x)
        check_captured_storage(inputs.tensors)
        condition = spec.mask
        if spec.score_mod is not None:
            condition = effective_mask(spec.mask, spec.score_mod, inputs.tensors, sample_only)
        if (condition is TRUE and spec.score_mod is None) or 0 in spec.score_shape:
            return None
        assert self.build is not None
        vectors = self.build.panel_queries // self.build.lanes
        tensors = [_upcast_if_small(t) for t in inputs.tensors]
        return pack_program(
            condition, spec.score_mod, tensors, spec.score_shape, inputs.query_offset, tiling, vectors, grad_slots
        )

    def weight_tiles(
        self, spec: CallSpec, inputs: BackendInputs, tiling: Tiling, lse: Tensor
    ) -> "NativeWeightTileSource | None":
        """A source of tiles of the attention matrix, given the lse of each row; None if the data are not supported."""
        assert self.build is not None
        try:
            return NativeWeightTileSource(
                self.build, spec, inputs, self._pack_program(spec, inputs, tiling, sample_only=False), lse
            )
        except UnsupportedExpr:
            return None

    def make_fast_call(self, spec: CallSpec, inputs: BackendInputs, tiling: Tiling) -> "NativeFastCall | None":
        """Return a call that can run again on other q, k and v; None if it depends on more than their addresses."""
        if self.build is None or spec.dropout or 0 in spec.score_shape:
            return None
        if sum(t.nbytes for t in inputs.tensors) > MAX_REUSED_BYTES:
            return None
        if (spec.batch_size, spec.num_heads, spec.n_q, spec.head_dim) != tuple(inputs.q.shape):
            return None
        # a copy: a captured tensor may be changed in place before the next call
        inputs = replace(inputs, tensors=tuple(t.detach().clone() for t in inputs.tensors))
        try:
            return NativeFastCall(self.build, spec, inputs, self._pack_program(spec, inputs, tiling, sample_only=False))
        except UnsupportedExpr:
            return None

    def _call_kernel(self, kernel: str, params: AttentionParams, keepalive: object) -> None:
        """Run a kernel. `keepalive` holds the tensors whose addresses are in `params`."""
        assert abi.core is not None and self.build is not None
        getattr(abi.core, kernel)(self.build.index, bytes(params))


class NativeFastCall:
    """A packed call on plain tensors, which runs again on tensors of the same layout."""

    def __init__(
        self, build: KernelBuild, spec: CallSpec, inputs: BackendInputs, packed_program: PackedProgram | None
    ) -> None:
        params, (_, *self.keepalive) = _pack_params(spec, inputs, packed_program)  # all but q, k and v
        self.build_index, self.packed_params, self.dtype = build.index, bytes(params), spec.dtype
        self.shape = (spec.batch_size, spec.num_heads, spec.n_q, spec.value_dim)
        self.itemsize = spec.dtype.itemsize
        # the layout of the last call, and the bytes that its tensors need
        self.checked_layout: tuple[object, tuple[int, ...]] = (None, ())

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        """The output, or None if the kernels cannot read these tensors in place.

        The caller guarantees the shapes. Without a mask and a score modifier, the number of keys may differ.
        """
        assert abi.core is not None
        n_k, strides = k.shape[2], (q.stride(), k.stride(), v.stride())
        if not (q.dtype == k.dtype == v.dtype == self.dtype and q.is_cpu and k.is_cpu and v.is_cpu):
            return None
        if not (strides[0][3] == strides[1][3] == strides[2][3] == 1 and 0 < n_k == v.shape[2] <= MAX_LENGTH):
            return None
        if not self._fit_storage((q, k, v), (n_k, *strides)):
            return None
        output, lse = q.new_empty(self.shape), q.new_empty(self.shape[:3], dtype=torch.float32)
        packed_params = bytearray(self.packed_params)
        _INT64.pack_into(packed_params, _N_K_OFFSET, n_k)
        _INT64.pack_into(packed_params, _NUM_THREADS_OFFSET, torch.get_num_threads())
        for rows, x, stride in zip(_QKV_OFFSETS, (q, k, v), strides, strict=True):
            if not (data := x.data_ptr()):  # a zero tensor, which has no memory
                return None
            _FOUR_INT64.pack_into(packed_params, rows, data, *stride[:3])
        _TWO_INT64.pack_into(packed_params, _OUTPUT_OFFSET, output.data_ptr(), lse.data_ptr())
        abi.core.forward(self.build_index, bytes(packed_params))
        return output

    def _fit_storage(self, tensors: tuple[Tensor, Tensor, Tensor], layout: tuple[object, ...]) -> bool:
        """Whether each storage holds the last element of its tensor: the check of `address`, in half a microsecond."""
        (q, k, v), size = tensors, self.itemsize
        known, needs = self.checked_layout
        if known != layout:
            needs = tuple(required_bytes(x.shape, x.stride(), 0, size) for x in tensors)
            self.checked_layout = (layout, needs)
        return (
            q.untyped_storage().nbytes() - q.storage_offset() * size >= needs[0]
            and k.untyped_storage().nbytes() - k.storage_offset() * size >= needs[1]
            and v.untyped_storage().nbytes() - v.storage_offset() * size >= needs[2]
        )


class NativeWeightTileSource:
    """Tiles of the attention matrix."""

    def __init__(
        self,
        build: KernelBuild,
        spec: CallSpec,
        inputs: BackendInputs,
        packed_program: PackedProgram | None,
        lse: Tensor,
    ) -> None:
        self.build, self.spec, self.lse = build, spec, lse.detach().contiguous()
        self.scratch = torch.empty(0)
        params, self.keepalive = _pack_params(spec, inputs, packed_program)
        params.row_statistic = address(self.lse)
        self.packed_params = bytes(params)

    def tiling(self, request: WeightTileRequest) -> Tiling:
        """Tiles are small if all pairs are stored, and large if only their sums are."""
        queries = PANELS_PER_BLOCK * self.build.panel_queries
        return (
            Tiling(queries, 256, 2**18, max_row_keys=512)
            if request.all_pairs
            else Tiling(queries, 256, 2**26, max_row_keys=2**13)
        )

    def compute_tile(self, strip: QueryStrip, keys: range, is_full: bool, request: WeightTileRequest) -> WeightTileData:
        assert abi.core is not None
        ranges = (strip.b, strip.h, strip.i, keys)
        b, h, i, j = map(len, ranges)
        cell = request.cell_size
        cells = (keys.stop - 1) // cell - keys.start // cell + 1 if cell else 0
        shapes = {
            "scores": (b, h, i, j) if request.all_pairs else (),
            "weights": (b, h, i, j) if request.all_pairs else (),
            "entropy": (b, h, i) if request.entropy else (),
            "cell_sums": (b, h, i, cells) if cell else (),
            "cell_maxima": (b, h, i, cells) if cell else (),
            "column_sums": (b, h, -(-i // self.build.panel_queries), j) if request.column_sums else (),
            "max_weight": (b, h, i) if request.max_weight else (),
            "max_weight_key": (b, h, i) if request.max_weight else (),
        }
        outputs = self._allocate({name: shape for name, shape in shapes.items() if shape})
        edges = [edge for r in ranges for edge in (r.start, r.stop)]
        addresses = {name: address(x) for name, x in outputs.items()}
        weight_tile = WeightTileParams(*edges, is_partial=not is_full, cell_keys=cell, **addresses)
        abi.core.weights(self.build.index, self.packed_params, bytes(weight_tile))
        return WeightTileData(
            outputs.get("scores"),
            outputs.get("weights"),
            outputs.get("entropy"),
            column_sums=outputs["column_sums"].sum(2, dtype=torch.float64) if request.column_sums else None,
            max_weight=(outputs["max_weight"], outputs["max_weight_key"].view(torch.int32))
            if request.max_weight
            else None,
            cell_size=cell,
            cell_statistics=(outputs["cell_sums"], outputs["cell_maxima"]) if cell else None,
        )

    def _allocate(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Tensors of 32-bit numbers in memory that is reused: fresh memory would take as long as the computation."""
        sizes = [math.prod(shape) for shape in shapes.values()]
        if self.scratch.numel() < sum(sizes):
            self.scratch = torch.empty(sum(sizes))
        pieces = self.scratch[: sum(sizes)].split(sizes)
        return {name: x.view(shape) for (name, shape), x in zip(shapes.items(), pieces, strict=True)}


def _entmax_exponents(spec: CallSpec, inputs: BackendInputs) -> Tensor | None:
    """The exponent of entmax for each head, or None for another normalizer."""
    exponent = entmax_exponent(spec, inputs)
    return None if exponent is None else exponent.expand(1, spec.num_heads, 1).contiguous()


def _fold_constant_scale(spec: CallSpec) -> CallSpec:
    """The spec with the score modifier s·constant folded into the scale, if it is one."""
    score_mod = spec.score_mod
    if score_mod is None or spec.score_kind != "dot" or score_mod.op != "mul" or score_mod.args[0] is not variable("s"):
        return spec
    factor = score_mod.args[1].value
    return replace(spec, scale=spec.scale * factor, score_mod=None) if isinstance(factor, float) else spec


def _adds_large_bias(spec: CallSpec, inputs: BackendInputs) -> bool:
    """Whether the score modifier is s + bias with a bias that is too large to scan for -inf."""
    score_mod = spec.score_mod
    if score_mod is None or score_mod.op != "add" or score_mod.args[0] is not variable("s"):
        return False
    bias = score_mod.args[1]
    return bias.op == "lookup" and inputs.tensors[slot_of(bias)].numel() > MAX_FULL_SCAN_NUMEL


def _scores_are_finite(spec: CallSpec, inputs: BackendInputs) -> bool:
    """Whether all scores are finite: a product is bounded by the norms of q and k, and a tanh by 1."""
    if spec.score_kind == "additive":
        return bool(inputs.parameters[0].isfinite().all())
    norms = (torch.linalg.vector_norm(x.detach()) for x in (inputs.q, inputs.k))
    return math.prod(float(x) for x in norms) * abs(spec.scale) < 1e38


def _upcast_if_small(x: Tensor) -> Tensor:
    """A half-precision tensor in float32, unless it is large."""
    return x.float() if x.dtype in DTYPES[1:] and x.numel() <= MAX_FULL_SCAN_NUMEL else x


def _with_contiguous_rows(x: Tensor) -> Tensor:
    """x as the kernels read it: contiguous rows, no pending negation, and memory behind every element."""
    x = check_storage(x, "an input").resolve_neg()
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _strided_rows(x: Tensor) -> StridedRows:
    """The address of a tensor (batch, heads, length, dim) and its strides by batch element, head and row."""
    return StridedRows(address(x), *x.stride()[:3])


_INT64, _TWO_INT64, _FOUR_INT64 = struct.Struct("q"), struct.Struct("2q"), struct.Struct("4q")
_QKV_OFFSETS = (AttentionParams.q.offset, AttentionParams.k.offset, AttentionParams.v.offset)
_N_K_OFFSET, _NUM_THREADS_OFFSET = AttentionParams.n_k.offset, AttentionParams.num_threads.offset
_OUTPUT_OFFSET = AttentionParams.output.offset  # the row statistic follows


def _pack_params(
    spec: CallSpec,
    inputs: BackendInputs,
    packed_program: PackedProgram | None,
    dtype: torch.dtype | None = None,
    gradient_sums: Sequence[Tensor] = (),
) -> tuple[AttentionParams, tuple[object, ...]]:
    """The parameters of a call without its outputs, and the objects that must outlive the kernel, q, k and v first.

    q, k and v are converted to `dtype`, by default their own.
    """
    dtype = dtype or _kernel_dtype(inputs)
    tensors = [_with_contiguous_rows(x.detach().to(dtype)) for x in (inputs.q, inputs.k, inputs.v)]
    shape = (spec.batch_size, spec.num_heads, spec.num_kv_heads, spec.n_q, spec.n_k, spec.head_dim, spec.value_dim)
    program, keepalive = (
        packed_program.bind([_upcast_if_small(t) for t in inputs.tensors], gradient_sums)
        if packed_program
        else (0, None)
    )
    coverage = packed_program.coverage_fields if packed_program else (1, 1, 0, 0, 0)
    seed = (inputs.seed + 2**63) % 2**64 - 2**63  # the same 64 bits, signed
    dropout_threshold, dropout_scale = min(round(spec.dropout * 2**32), 2**32 - 1), 1.0 / (1.0 - spec.dropout)
    rows = (_strided_rows(x) for x in tensors)
    numbers = (torch.get_num_threads(), spec.scale, DTYPES.index(dtype), DTYPES.index(_output_dtype(spec, dtype)))
    params = AttentionParams(*shape, *numbers, *rows, *coverage, program, seed, dropout_threshold, dropout_scale)
    params.dropout_head_offset, *query_and_key = inputs.dropout_origin
    params.dropout_query_offset, params.dropout_query_step, params.dropout_key_offset, params.dropout_key_step = (
        query_and_key
    )
    u = None
    if spec.score_kind == "additive":
        u = inputs.parameters[0].detach().float().expand(spec.num_heads, spec.head_dim).contiguous()
        params.u = address(u)
    return params, (tensors, keepalive, packed_program, u)


def _allocate_outputs(spec: CallSpec, inputs: BackendInputs, params: AttentionParams) -> tuple[Tensor, Tensor]:
    """Allocate the output and the row statistic of a kernel, and write their addresses to `params`."""
    rows = (spec.batch_size, spec.num_heads, spec.n_q)
    output = torch.empty((*rows, spec.value_dim), dtype=_output_dtype(spec, _kernel_dtype(inputs)))
    statistic = torch.empty(rows, dtype=torch.float32)
    params.output, params.row_statistic = address(output), address(statistic)
    return output, statistic


def _kernel_dtype(inputs: BackendInputs) -> torch.dtype:
    """The dtype of q, k and v in the kernels: float32 if the score prepared q or k in float32."""
    q, k, v = inputs.q.dtype, inputs.k.dtype, inputs.v.dtype
    return q if q == k == v and q in DTYPES else torch.float32


def _output_dtype(spec: CallSpec, dtype: torch.dtype) -> torch.dtype:
    """The dtype of the output in the kernels, given that of q, k and v: the call's if it is the same, else float32."""
    return dtype if spec.dtype == dtype else torch.float32


@memoize(512)
def _unsupported_expr_reason(mask: Expr, score_mod: Expr | None) -> str | None:
    """Why this mask and score modifier do not compile, for any sizes of tensors; None if they do."""
    if mask is TRUE and score_mod is None:
        return None
    lookups = [node for t in (mask, score_mod) if t is not None for node in walk(t) if node.op == "lookup"]
    ranks = [0] * (1 + max((slot_of(node) for node in lookups), default=-1))
    for node in lookups:
        ranks[slot_of(node)] = len(node.args)
    ones = tuple((1,) * rank for rank in ranks)
    try:
        compile_program(mask, score_mod, ones, ones, tuple(range(len(ranks))))
    except UnsupportedExpr as reason:
        return str(reason)
    return None
