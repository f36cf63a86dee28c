"""Attention over a paged cache: each sequence attends to its own tokens, and shared prefixes are attended to once.

The page tables of the sequences of a call form a tree: shared segments, followed by pages of single sequences. The
partial output over each segment is computed for the queries of all its sequences and merged along each sequence.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import checks
from regard.backends.execute import execute
from regard.backends.registry import BACKENDS
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.call.spec import ParsedCall
from regard.call.subcall import StridedRange
from regard.distributed.paged.page_pool import PagePool
from regard.distributed.paged.prefix_sharing import PagedSequence, PageSegment, page_segments
from regard.distributed.partials import PartialOutput, finalize_partial, merge_partial_, partial_attention
from regard.errors import ArgumentError
from regard.expr.bounds import BoundsEvaluator, IndexBoxes
from regard.expr.closed_expr import TensorFromQueries
from regard.expr.hidden_pairs import effective_mask
from regard.expr.ir import TRUE
from regard.mask import as_mask, padding
from regard.plan.choose import choose_backend
from regard.tensors.precision import without_autocast


def paged_attention(
    pool: PagePool,
    layer: int,
    sequences: Sequence[PagedSequence],
    q: Tensor,
    options: dict[str, Any],
    backend: str | None,
) -> Tensor:
    """See `PagedCache.attention`."""
    _check_inputs(pool, layer, sequences, q)
    with torch.no_grad(), without_autocast(q.device.type):
        call = _PagedCall(pool, layer, sequences, q, options, backend)
        return call.prefix_shared_output() if call.can_share_prefixes() else call.padded_output()


class _PagedCall:
    """The queries of some sequences, and the pages of one layer."""

    def __init__(
        self,
        pool: PagePool,
        layer: int,
        sequences: Sequence[PagedSequence],
        q: Tensor,
        options: dict[str, Any],
        backend: str | None,
    ) -> None:
        self.pool, self.layer, self.sequences, self.q, self.backend = pool, layer, sequences, q, backend
        self.lengths = torch.tensor([sequence.length for sequence in sequences])
        self.max_length = int(self.lengths.max())
        self.has_equal_lengths = bool((self.lengths == self.max_length).all())
        query_offset = self.max_length - q.shape[2] if self.has_equal_lengths else self.lengths - q.shape[2]
        self.options = {**options, "query_offset": query_offset}
        self.segments = page_segments(sequences, pool.page_size)
        self.call = self._parse_call(range(len(sequences)), *self._read_pages([sequences[0].page_table[0]]))
        _check_paged_call(self.call, self.has_equal_lengths)

    def can_share_prefixes(self) -> bool:
        """Return whether partial outputs merge and nothing depends on the index of the sequence."""
        spec = self.call.spec
        depends_on_sequence = "b" in spec.mask.free_variables or (
            spec.score_mod is not None and "b" in spec.score_mod.free_variables
        )
        depends_on_queries = any(isinstance(t, TensorFromQueries) for t in self.call.closed_expr.tensors)
        merges = spec.normalizer.statistic == "lse" and self.call.normalizer.iterations == 1
        is_plain = not (depends_on_sequence or depends_on_queries or spec.dropout) and self.call.relative_values is None
        return bool(self.segments) and merges and is_plain and self.q.shape[2] > 0

    def padded_output(self) -> Tensor:
        """Return the output of one call over all keys; shorter sequences are right-padded and masked."""
        k, v = self._padded_rows(range(len(self.sequences)), 0)
        options = dict(self.options)
        if not self.has_equal_lengths:
            is_real = padding(self.lengths)
            options["mask"] = is_real if options["mask"] is None else as_mask(options["mask"]) & is_real
        call = parse_call(AttentionCall(self.q, k, v, **options))
        return execute(call, choose_backend(call.spec, BACKENDS, self.backend), self._num_keys()).output

    def prefix_shared_output(self) -> Tensor:
        """Return the output merged from the segments and the remaining pages of each sequence."""
        accumulated: list[PartialOutput | None] = [None] * len(self.sequences)
        num_done_pages = [0] * len(self.sequences)
        for segment in self.segments:
            self._merge_into(accumulated, segment.sequence_indices, self._segment_partial(segment))
            for index in segment.sequence_indices:
                num_done_pages[index] = segment.first_page + len(segment.pages)
        for first_page in sorted(set(num_done_pages)):
            indices = [
                index
                for index, num_pages in enumerate(num_done_pages)
                if num_pages == first_page and self.sequences[index].length > first_page * self.pool.page_size
            ]
            if indices:
                self._merge_into(accumulated, indices, self._private_partial(indices, first_page))
        partials = [partial for partial in accumulated if partial is not None]
        output, lse = (torch.cat(tensors) for tensors in zip(*partials, strict=True))
        return finalize_partial(self.call, (output, lse), self._num_keys())

    def _segment_partial(self, segment: PageSegment) -> PartialOutput:
        """Return the partial output over a segment for the queries of all its sequences."""
        page_size = self.pool.page_size
        keys = StridedRange(segment.first_page * page_size, len(segment.pages) * page_size)
        k, v = self._read_pages(list(segment.pages))
        call = self._parse_call(segment.sequence_indices, k, v)
        if not self._attends_to_all(call, keys):
            return partial_attention(call, StridedRange(0, self.q.shape[2]), keys, self.backend)
        # nothing depends on positions, so the queries of all sequences are stacked into one matrix product
        stacked = self.q[list(segment.sequence_indices)].transpose(0, 1).flatten(1, 2)[None]
        stacked_call = parse_call(AttentionCall(stacked, k, v, **{**self.options, "mask": None, "query_offset": None}))
        output, lse = partial_attention(
            stacked_call, StridedRange(0, stacked.shape[2]), StridedRange(0, keys.count), self.backend
        )
        assert lse is not None
        num_sequences = len(segment.sequence_indices)
        output, lse = (x[0].unflatten(1, (num_sequences, -1)).transpose(0, 1) for x in (output, lse))
        return output, lse

    def _private_partial(self, sequence_indices: Sequence[int], first_page: int) -> PartialOutput:
        """Return the partial output of some sequences over their own pages from index `first_page` on."""
        start = first_page * self.pool.page_size
        k, v = self._padded_rows(sequence_indices, first_page)
        counts = self.lengths[list(sequence_indices)] - start
        call = self._parse_call(sequence_indices, k, v)
        key_counts = None if bool((counts == k.shape[2]).all()) else counts
        queries, keys = StridedRange(0, self.q.shape[2]), StridedRange(start, k.shape[2])
        return partial_attention(call, queries, keys, self.backend, key_counts)

    def _attends_to_all(self, call: ParsedCall, keys: StridedRange) -> bool:
        """Return whether every query attends to all of these keys and scores do not depend on positions."""
        spec = call.spec
        if spec.score_mod is not None and not spec.score_mod.free_variables <= {"s", "h"}:
            return False
        tensors = call.captured_tensors()
        mask = effective_mask(spec.mask, spec.score_mod, tensors)
        if mask is TRUE:
            return True
        b, h = (x.ravel() for x in np.meshgrid(np.arange(spec.batch_size), np.arange(spec.num_heads), indexing="ij"))
        zero = np.zeros_like(b)
        boxes = IndexBoxes(b, h, zero, zero + spec.n_q - 1, zero + keys.start, zero + keys.start + keys.count - 1)
        lower, _ = BoundsEvaluator(tensors, spec.score_shape, call.query_offset).bounds(mask, boxes)
        return bool((lower == 1).all())

    def _merge_into(
        self, accumulated: list[PartialOutput | None], sequence_indices: Sequence[int], partial: PartialOutput
    ) -> None:
        output, lse = partial
        assert lse is not None  # prefixes are shared only under softmax and sink
        for row, index in enumerate(sequence_indices):
            accumulated[index] = merge_partial_(accumulated[index], (output[row : row + 1], lse[row : row + 1]))

    def _parse_call(self, sequence_indices: Sequence[int], k: Tensor, v: Tensor) -> ParsedCall:
        """Parse the call of some sequences with some of their keys."""
        query_offset = self.options["query_offset"]
        if isinstance(query_offset, Tensor):
            query_offset = query_offset[list(sequence_indices)]
        options = {**self.options, "query_offset": query_offset}
        full_lengths = self.q.shape[2], self.max_length
        return parse_call(AttentionCall(self.q[list(sequence_indices)], k, v, **options), full_lengths)

    def _read_pages(self, pages: list[int]) -> tuple[Tensor, Tensor]:
        """Return keys and values (1, heads, tokens, dim) of some pages."""
        k, v = self.pool.read(self.layer, pages)
        return k[None], v[None]

    def _padded_rows(self, sequence_indices: Sequence[int], first_page: int) -> tuple[Tensor, Tensor]:
        """Return keys and values (sequences, heads, max length, dim) from page index `first_page` on."""
        page_size = self.pool.page_size
        max_tokens = max(self.sequences[index].length for index in sequence_indices) - first_page * page_size
        num_pages = -(-max_tokens // page_size)
        tables = [self.sequences[index].page_table[first_page : first_page + num_pages] for index in sequence_indices]
        # any page can serve as padding, since it is masked
        padded_tables = [table + table[:1] * (num_pages - len(table)) if table else [0] * num_pages for table in tables]
        rows = self.pool.read(self.layer, [page for table in padded_tables for page in table])
        num_sequences = len(sequence_indices)
        k, v = (x.unflatten(1, (num_sequences, num_pages * page_size)).transpose(0, 1)[:, :, :max_tokens] for x in rows)
        return k, v

    def _num_keys(self) -> int | Tensor:
        """Return the number of keys for the normalizer, broadcastable to (batch, heads, n_q)."""
        return self.max_length if self.has_equal_lengths else self.lengths.view(-1, 1, 1)


def _check_inputs(pool: PagePool, layer: int, sequences: Sequence[PagedSequence], q: Tensor) -> None:
    checks.tensor(q, "q", dtype_kind="floats")
    if q.dim() != 4 or q.shape[0] != len(sequences):
        raise ArgumentError(f"q must be ({len(sequences)} sequences, heads, n, head_dim); got shape {tuple(q.shape)}.")
    lengths = [sequence.length for sequence in sequences]
    if min(lengths) < 1:
        raise ArgumentError(f"every sequence must have tokens in layer {layer}; got lengths {lengths}.")
    formats = pool.row_formats(layer) or ()
    if len(formats) != 2:
        raise ArgumentError(f"attention needs keys and values in layer {layer}; got {len(formats)} tensors per token.")
    if torch.is_grad_enabled() and q.requires_grad:
        raise ArgumentError(
            "attention over a paged cache has no gradients; got q with requires_grad=True. Call it under "
            "torch.no_grad(), or pass q.detach()."
        )


def _check_paged_call(call: ParsedCall, has_equal_lengths: bool) -> None:
    if call.normalizer.iterations > 1:
        raise ArgumentError(
            f"attention over a paged cache needs a normalizer of single rows; got {call.normalizer.formula}, which "
            "also normalizes columns. Use normalizer.softmax()."
        )
    spec = call.spec
    if not has_equal_lengths and any("n_k" in t.free_variables for t in (spec.mask, spec.score_mod) if t is not None):
        raise ArgumentError(
            "a mask or score modifier that counts from the end of the keys needs sequences of one length; got several "
            "lengths. Call it for each sequence separately."
        )
