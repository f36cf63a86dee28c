"""The flex backend: lowers a call to torch's FlexAttention, which compiles a kernel for it.

The mask and the score modifier become functions of one pair, and the mask's coverage becomes the block mask. On the CPU
torch has no such kernel with gradients. If flex is requested there by name, torch's definition of the operator runs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_definition
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from regard.backends.flex.lowering import (
    FlexLowering,
    MaskMod,
    ScoreMod,
    may_index_out_of_range,
    rounding_sensitive_ops,
)
from regard.backends.protocol import Backend, SavedForBackward, UnsupportedCall
from regard.cache import memoize
from regard.call.spec import BackendInputs, CallSpec
from regard.expr.bounds import Array
from regard.expr.derivative import derivatives
from regard.expr.hidden_pairs import effective_mask
from regard.expr.ir import TRUE, variable, walk
from regard.expr.tile_coverage import TileCoverage
from regard.normalizers.streaming import Softmax
from regard.plan.tiling import Tiling, call_coverage
from regard.tensors.nonfinite import all_finite, nonfinite_rows

DEVICES = ("cpu", "cuda", "xpu")  # on which torch returns the lse and gradients
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MIN_HEAD_DIM = 16  # of the kernels
BLOCK_SIZE = 128  # queries and keys of a block

FlexCall = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
FlexKernel = Callable[[ScoreMod, BlockMask | None, float, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class FlexBackend:
    """Softmax attention by the kernels of torch's FlexAttention.

    Rows that attend to NaN or infinity are computed by `fallback`. So is a whole call in which a lookup index may be
    out of range.
    """

    name = "flex"
    variant = ""
    compute_dtype: torch.dtype | None = None

    def __init__(self, fallback: Backend) -> None:
        self.fallback = fallback

    def has_linear_memory(self, spec: CallSpec) -> bool:
        return spec.device != "cpu"

    def unsupported_reasons(self, spec: CallSpec) -> tuple[str, ...]:
        reasons = []
        if spec.device not in DEVICES:
            reasons.append(f"it runs on {', '.join(DEVICES)}, and the tensors are on {spec.device}")
        if spec.dtype not in DTYPES or spec.score_dtype != torch.float32:
            reasons.append("it computes scores in float32, and this call needs float64")
        if spec.score_kind != "dot":
            reasons.append(f"it supports dot-product scores, not {spec.score_kind} scores")
        if not isinstance(spec.normalizer, Softmax):
            reasons.append(f"it does not support the {spec.normalizer.name} normalizer (it supports softmax)")
        if spec.score_mod is not None and variable("s") not in derivatives(spec.score_mod):
            reasons.append("it needs a score modifier with a derivative in the score")
        if spec.dropout:
            reasons.append("it does not support dropout")
        if 0 in (*spec.score_shape, spec.value_dim):
            reasons.append("it does not support empty tensors")
        return (*reasons, *_kernel_unsupported_reasons(spec)) if spec.device != "cpu" else tuple(reasons)

    def tiling(self, spec: CallSpec) -> Tiling:
        return Tiling(BLOCK_SIZE, BLOCK_SIZE, BLOCK_SIZE * BLOCK_SIZE)

    def forward(self, spec: CallSpec, inputs: BackendInputs, tiling: Tiling) -> tuple[Tensor, Tensor | None]:
        flex_call = _lower_call(spec, inputs, tiling)
        output, lse = flex_call(inputs.q, inputs.k, inputs.v)
        if not all_finite(output):
            exposed = self._rows_attending_to_nonfinite(spec, inputs)
            finite = flex_call(*_zero_nonfinite_rows(inputs))
            nonfinite = self._run_fallback(spec, inputs)
            output, lse = (_select_rows(exposed, *pair) for pair in zip(nonfinite, finite, strict=True))
        return output, lse

    def backward(
        self,
        spec: CallSpec,
        inputs: BackendInputs,
        tiling: Tiling,
        saved: SavedForBackward,
        needs_input_grad: Sequence[bool],
    ) -> list[Tensor]:
        fallback_tiling = self.fallback.tiling(spec)
        if any(needs_input_grad[3:]):
            # torch sums the gradients of captured tensors in any order, so the bits differ from run to run. Its lse is
            # in powers of two, so it is rounded twice, and weights recomputed from it would not be exact enough
            output, lse = self._run_fallback(spec, inputs)
            saved = replace(saved, output=output, statistic=lse)
            return self.fallback.backward(spec, inputs, fallback_tiling, saved, needs_input_grad)
        flex_call = _lower_call(spec, inputs, tiling)
        gradients = _vjp(flex_call, (inputs.q, inputs.k, inputs.v), saved, needs_input_grad)
        if all_finite(*gradients):
            return gradients
        exposed = self._rows_attending_to_nonfinite(spec, inputs)
        finite = _vjp(flex_call, _zero_nonfinite_rows(inputs), _mask_gradients(~exposed, saved), needs_input_grad)
        if not all_finite(*finite):  # overflow, or a score modifier with an infinite derivative at a hidden pair
            return self.fallback.backward(spec, inputs, fallback_tiling, saved, needs_input_grad)
        nonfinite = self.fallback.backward(
            spec, inputs, fallback_tiling, _mask_gradients(exposed, saved), needs_input_grad
        )
        return [a + b for a, b in zip(finite, nonfinite, strict=True)]

    def _run_fallback(self, spec: CallSpec, inputs: BackendInputs) -> tuple[Tensor, Tensor]:
        output, lse = self.fallback.forward(spec, inputs, self.fallback.tiling(spec))
        assert lse is not None
        return output, lse

    def _rows_attending_to_nonfinite(self, spec: CallSpec, inputs: BackendInputs) -> Tensor:
        """Which queries are not finite, or may attend to a key or value that is not finite.

        A kernel multiplies hidden values by 0, and 0 times NaN is NaN. So `fallback` computes these rows. The kernel
        computes the other rows with zeros at these keys, which gives the same bits as without them.
        """
        marks = (nonfinite_rows(inputs.k) | nonfinite_rows(inputs.v)).to(inputs.v.dtype)
        q, k = (torch.zeros_like(x) for x in (inputs.q, inputs.k))
        condition = effective_mask(spec.mask, spec.score_mod, inputs.tensors)
        uniform = replace(spec, score_mod=None, mask=condition, value_dim=1)
        mass, _ = self._run_fallback(uniform, replace(inputs, q=q, k=k, v=marks))
        return ((mass > 0.0) | nonfinite_rows(inputs.q)).squeeze(-1)


def _zero_nonfinite_rows(inputs: BackendInputs) -> list[Tensor]:
    """q, k and v with zeros in the rows that are not finite."""
    return [torch.where(nonfinite_rows(x), 0.0, x) for x in (inputs.q, inputs.k, inputs.v)]


def _select_rows(rows: Tensor, selected: Tensor, other: Tensor) -> Tensor:
    return torch.where(rows.unsqueeze(-1) if selected.dim() > rows.dim() else rows, selected, other)


def _mask_gradients(rows: Tensor, saved: SavedForBackward) -> SavedForBackward:
    """`saved` with the gradients of these rows only."""
    parts = (_select_rows(rows, x, torch.zeros_like(x)) for x in (saved.d_output, saved.d_statistic))
    return SavedForBackward(saved.output, saved.statistic, *parts)


def _vjp(
    flex_call: FlexCall, x: Sequence[Tensor], saved: SavedForBackward, needs_input_grad: Sequence[bool]
) -> list[Tensor]:
    """The gradients of q, k and v that are needed, by autograd."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in x]
        sources = [leaf for leaf, needed in zip(leaves, needs_input_grad, strict=False) if needed]
        return list(torch.autograd.grad(flex_call(*leaves), sources, (saved.d_output, saved.d_statistic)))


def _kernel_unsupported_reasons(spec: CallSpec) -> list[str]:
    reasons = []
    min_dim = min(spec.head_dim, spec.value_dim)
    if min_dim < MIN_HEAD_DIM:
        reasons.append(f"its kernels need a head dimension of at least {MIN_HEAD_DIM}, not {min_dim}")
    exprs = [x for x in (spec.mask, spec.score_mod) if x is not None]
    op = next(rounding_sensitive_ops(exprs), None)
    if op is not None:
        reasons.append(f"its {op} may round differently from torch's, and a comparison depends on it")
    powers = (node for x in exprs for node in walk(x) if node.op == "pow" and node.kind == "int")
    if any(node.args[1].op != "constant" for node in powers):
        reasons.append("its kernels support constant powers of integers only")
    return reasons


def _lower_call(spec: CallSpec, inputs: BackendInputs, tiling: Tiling) -> FlexCall:
    """The call as a function of q, k and v."""
    score_mod = variable("s") if spec.score_mod is None else spec.score_mod
    if may_index_out_of_range((spec.mask, score_mod), inputs.tensors, spec.score_shape, inputs.query_offset):
        raise UnsupportedCall("a lookup index may be out of range, and its kernels do not check")
    device = inputs.q.device
    lowering = FlexLowering(inputs.tensors, spec.score_shape, inputs.query_offset, device)
    score_function = lowering.score_mod(score_mod, spec.score_dtype)
    blocks = None
    if device.type == "cpu" or effective_mask(spec.mask, spec.score_mod, inputs.tensors) is not TRUE:
        coverage = call_coverage(spec, inputs.tensors, inputs.query_offset, tiling)
        blocks = block_mask(coverage, lowering.mask_mod(spec.mask), (spec.n_q, spec.n_k), device)
    kernel = _eager_kernel if device.type == "cpu" else _compiled_kernel(_kernel_key(spec))
    # the score may have prepared q and k in float32, and flex_attention needs one dtype
    return lambda q, k, v: kernel(score_function, blocks, spec.scale, q, k.to(q.dtype), v.to(q.dtype))


def _eager_kernel(
    score_mod: ScoreMod, block_mask: BlockMask | None, scale: float, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """torch's definition of flex_attention, which supports gradients on the CPU; the public function does not."""
    assert block_mask is not None
    output, lse, *_ = flex_attention_definition(q, k, v, score_mod, block_mask.as_tuple(), scale, {})
    return output, lse * math.log(2.0)  # torch returns a base-2 logarithm


@memoize(256)
def _compiled_kernel(spec: CallSpec) -> FlexKernel:
    return compile_copy(_flex_attention, f"flex_attention {hash(spec)}")


def _flex_attention(
    score_mod: ScoreMod, block_mask: BlockMask | None, scale: float, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    shared = q.shape[1] != k.shape[1]
    output, aux = flex_attention(
        q, k, v, score_mod, block_mask, scale, enable_gqa=shared, return_aux=AuxRequest(lse=True)
    )
    assert aux.lse is not None
    return output, aux.lse


def compile_copy(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Compile a copy of a function for one kind of call.

    torch limits the number of kernels of one function. Beyond the limit it runs the function eagerly, with every score
    in memory. So each kind of call has its own copy, and with `fullgraph` torch raises instead. Each copy needs its own
    name: under a shared name, torch treats a number that differs between kinds as a variable, which no kernel supports.
    """
    code = function.__code__.replace(co_name=name)
    return torch.compile(FunctionType(code, function.__globals__), fullgraph=True)


def _kernel_key(spec: CallSpec) -> CallSpec:
    """The spec without the parts that one kernel supports dynamically: captured tensors and most lengths."""
    return replace(
        spec,
        batch_size=min(spec.batch_size, 2),
        n_q=min(spec.n_q, 2) if spec.n_q < BLOCK_SIZE else BLOCK_SIZE,
        n_k=min(spec.n_k, 2),
        query_offset=None,
        captured_specs=(),
    )


def block_mask(
    coverage: TileCoverage, mask_function: MaskMod, seq_lengths: tuple[int, int], device: torch.device
) -> BlockMask:
    """A mask's coverage as FlexAttention's BlockMask: the partial and the full blocks of each row."""
    lists = [_block_lists(coverage, is_full, device) for is_full in (False, True)]
    return BlockMask.from_kv_blocks(
        *lists[0], *lists[1], BLOCK_SIZE=coverage.tile_shape, mask_mod=mask_function, seq_lengths=seq_lengths
    )


def _block_lists(coverage: TileCoverage, is_full: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """The number of full or partial blocks of each row, and their columns, padded to the length of a row."""
    tiles = coverage.to_tile_list()
    b, h, row, column = (x[tiles.is_full == is_full] for x in tiles[:4])
    rows = (coverage.batch_size, coverage.num_heads, coverage.grid_shape[0])
    lists: Array = np.ravel_multi_index((b, h, row), rows)
    counts = np.bincount(lists, minlength=math.prod(rows))
    order = np.arange(len(lists)) - (np.cumsum(counts) - counts)[lists]  # tiles are sorted by row
    columns = np.zeros((len(counts), coverage.grid_shape[1]), np.int32)
    columns[lists, order] = column
    num_blocks = torch.from_numpy(counts.astype(np.int32)).view(rows)
    return num_blocks.to(device), torch.from_numpy(columns).view(*rows, -1).to(device)
