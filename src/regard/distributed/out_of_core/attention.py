"""Attention over files: queries, keys, values and the output may each be larger than memory.

Queries are processed in blocks. Each block attends to its visible keys in several steps, and a thread reads the rows of
the next step meanwhile. Partial outputs are merged by their lse, or added for elementwise normalizers.
"""

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.argument_types import check_signature
from regard.attention import QueryOffsetLike
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.call.spec import ParsedCall
from regard.call.subcall import StridedRange
from regard.distributed.out_of_core.file_writer import (
    MemoryWriter,
    OutputFile,
    memory_writer,
    open_writer,
    resolve_output,
)
from regard.distributed.out_of_core.prefetch import prefetch_rows
from regard.distributed.out_of_core.row_source import RowSource, as_row_source
from regard.distributed.out_of_core.schedule import ScheduleStep, build_schedule
from regard.distributed.out_of_core.tensor_file import open_memmap
from regard.distributed.partials import PartialOutput, finalize_partial, merge_partial_, partial_attention
from regard.errors import ArgumentError
from regard.expr.closed_expr import TensorFromShape
from regard.mask import MaskLike
from regard.normalizer import NormalizerLike
from regard.score import ScoreLike, ValueLike
from regard.tensors.precision import without_autocast
from regard.weights import parse_byte_count

Progress = Callable[[float], object]
SourceLike = str | Path | Tensor | np.ndarray[Any, Any]


def attention_from_files(
    q: SourceLike,
    k: SourceLike,
    v: SourceLike,
    out: SourceLike | None = None,
    *,
    score: ScoreLike | None = None,
    mask: MaskLike | None = None,
    normalizer: NormalizerLike | None = None,
    value: ValueLike | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    query_offset: QueryOffsetLike | None = None,
    backend: str | None = None,
    budget: str | float = "1GB",
    progress: Progress | None = None,
) -> Tensor:
    """Compute `regard.attention` of tensors in files, with at most `budget` bytes of their rows in memory.

    Keys that no query of a block may attend to are neither read nor computed. Softmax, sink, sigmoid and ReLU process
    the keys in parts. Normalizers that need whole rows (entmax, top-k) work as long as the visible keys of a few
    queries fit in the budget. Sinkhorn is not supported, and there are no gradients.

    Args:
        q, k, v: path of a .npy file ("k.npy"), path of a safetensors file with the name of a tensor
            ("qkv.safetensors:k"), or a tensor or array, memory-mapped or not. Shapes are those of `regard.attention`.
        out: path of a new .npy or .safetensors file ("o.safetensors:name", with the default name "o"), or a tensor or
            array to write into. The file appears when it is complete. None, the default, returns a new tensor.
        score, mask, normalizer, dropout, seed, query_offset, backend: see `regard.attention`.
        value: function applied to v. It is called with a part of the rows, so it must treat each row separately.
        budget: memory for rows and for the backend, in bytes or as text such as "1GB" (the default).
        progress: called after each step with the fraction of the work that is done, up to 1.

    Returns:
        The output as a tensor, memory-mapped if `out` is a path.

    >>> import tempfile, numpy as np
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in "qkv":
    ...     np.save(folder / f"{name}.npy", np.random.default_rng(0).standard_normal((4, 300, 8), np.float32))
    >>> from regard import mask
    >>> o = attention_from_files(*(folder / f"{name}.npy" for name in "qkv"), folder / "o.npy", mask=mask.causal())
    >>> o.shape, np.load(folder / "o.npy").shape
    (torch.Size([4, 300, 8]), (4, 300, 8))
    """
    if progress is not None:
        check_signature(progress, "progress", "fraction")
    sources = [as_row_source(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v"))]
    _check_shapes(sources, score)
    output_file = resolve_output(out) if isinstance(out, (str, Path)) else None
    full_lengths = (sources[0].shape[-2], sources[1].shape[-2])

    def parse(q_rows: Tensor, k_rows: Tensor, v_rows: Tensor, seed: int | None) -> ParsedCall:
        arguments = AttentionCall(q_rows, k_rows, v_rows, score, mask, normalizer, value, dropout, seed, query_offset)
        return parse_call(arguments, full_lengths)

    call = _check_out_of_core(_parse_call_with_first_rows(parse, sources, seed))
    steps = build_schedule(call, backend, parse_byte_count(budget))
    shape = (*call.leading_shape, call.spec.n_q, call.spec.value_dim)
    in_memory = memory_writer(out, shape, call.spec.dtype) if output_file is None else None
    out_of_core_call = _OutOfCoreCall(partial(parse, seed=call.seed), sources, call, backend)
    with (
        torch.no_grad(),
        without_autocast("cpu"),
        _open_output(output_file, in_memory, shape, call.spec.dtype) as writer,
    ):
        for fraction, step, block in out_of_core_call.output_blocks(steps):
            if block is not None:
                writer.write_rows(step.queries, block)
            _trim_heap()
            if progress is not None:
                progress(fraction)
    return open_memmap(_target_source(output_file)) if output_file is not None else writer.tensor


def _trim_heap() -> None:
    """Return free memory to the system; otherwise fragmentation would accumulate over the steps."""
    if _malloc_trim is not None:
        _malloc_trim(0)


_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # glibc only


def _check_shapes(sources: list[RowSource], score: Any) -> None:
    """Raise for shapes or dtypes that do not match, before any row is read."""
    q, k, v = (x.meta_tensor() for x in sources)
    with without_autocast("cpu"):
        # autocast ignores meta tensors, so dtypes are checked with real ones
        q_row, k_row, v_row = (torch.empty((1, 1), dtype=x.dtype) for x in (q, k, v))
        parse_call(AttentionCall(q_row, k_row, v_row))
        parse_call(AttentionCall(q, k, v, score))


def _open_output(
    target: OutputFile | None, writer: MemoryWriter | None, shape: tuple[int, ...], dtype: torch.dtype
) -> Any:
    return nullcontext(writer) if target is None else open_writer(target, shape, dtype)


def _target_source(target: OutputFile) -> str:
    return str(target.path) if target.path.suffix == ".npy" else f"{target.path}:{target.tensor_name}"


def _parse_call_with_first_rows(
    parse: Callable[..., ParsedCall], sources: list[RowSource], seed: int | None
) -> ParsedCall:
    """Parse the call with the first row of each source; tensors made from shapes are built once for all steps."""
    call = parse(*(x.read_rows(range(min(1, x.shape[-2]))) for x in sources), seed=seed)
    inputs = call.prepare_inputs()
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs.all_tensors()):
        raise ArgumentError(
            "attention over files has no gradients; got tensors that require gradients. Call it under "
            "torch.no_grad(), or pass detached tensors."
        )
    tensors = tuple(
        built if isinstance(captured, TensorFromShape) else captured
        for captured, built in zip(call.closed_expr.tensors, inputs.tensors, strict=True)
    )
    return replace(call, closed_expr=replace(call.closed_expr, tensors=tensors))


def _check_out_of_core(call: ParsedCall) -> ParsedCall:
    if call.normalizer.iterations > 1:
        raise ArgumentError(
            f"attention over files needs a normalizer of single rows; got {call.normalizer.formula}, which also "
            "normalizes columns. Use normalizer.softmax(), or regard.attention with all tensors in memory."
        )
    if call.relative_values is not None and isinstance(call.query_offset, Tensor):
        raise ArgumentError(
            "relative values over files need one query_offset for the whole batch; got one per batch element. Call it "
            "for each batch element separately."
        )
    return call


@dataclass(frozen=True, eq=False)
class _OutOfCoreCall:
    """A call with the sources of its rows; `call` was parsed with the first rows alone."""

    parse: Callable[..., ParsedCall]
    sources: list[RowSource]
    call: ParsedCall
    backend: str | None

    def output_blocks(self, steps: list[ScheduleStep]) -> Iterator[tuple[float, ScheduleStep, Tensor | None]]:
        """Yield for each step the fraction done, the step, and the output of its queries if it is their last step."""
        total_pairs, done_pairs = sum(step.pairs for step in steps), 0
        accumulated: PartialOutput | None = None
        for step, rows in prefetch_rows(self.sources, steps):
            if step.keys:
                accumulated = merge_partial_(accumulated, self._step_partial(step, rows))
            done_pairs += step.pairs
            yield (
                done_pairs / max(total_pairs, 1),
                step,
                self._block_output(accumulated, step) if step.is_last else None,
            )
            accumulated = None if step.is_last else accumulated

    def _step_partial(self, step: ScheduleStep, rows: list[Tensor]) -> PartialOutput:
        step_call = replace(self.parse(*rows), closed_expr=self.call.closed_expr)
        queries, keys = (StridedRange(x.start, len(x)) for x in (step.queries, step.keys))
        return partial_attention(step_call, queries, keys, self.backend)

    def _block_output(self, partial: PartialOutput | None, step: ScheduleStep) -> Tensor:
        """Return the output of a block of queries in the caller's shape; zeros if they have no visible keys."""
        spec = self.call.spec
        shape = spec.batch_size, spec.num_heads, len(step.queries), spec.value_dim
        output = torch.zeros(shape, dtype=spec.dtype) if partial is None else finalize_partial(self.call, partial)
        return output.reshape(*self.call.leading_shape, *output.shape[2:])
