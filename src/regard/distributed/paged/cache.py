"""Paged key-value cache: many sequences in one pool of pages, with shared prefixes.

Each sequence has a page table. A fork copies the page table, not the tokens. Pages are copied on write. If the number
of pages is limited, the least recently used sequences are evicted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard import checks
from regard.distributed.paged.attention import paged_attention
from regard.distributed.paged.page_pool import PagePool, row_format
from regard.distributed.paged.prefix_sharing import PagedSequence
from regard.errors import ArgumentError, BudgetError
from regard.mask import MaskLike
from regard.normalizer import NormalizerLike
from regard.score import ScoreLike, ValueLike

MAX_PAGE_SIZE = 2**20  # tokens
MAX_LAYERS = 100_000


@dataclass(eq=False)
class _SequenceState:
    """The page table of a sequence and its number of tokens in each layer."""

    page_table: list[int] = field(default_factory=list)
    layer_lengths: dict[int, int] = field(default_factory=dict)
    last_used: int = 0  # number of the last call that used the sequence

    @property
    def length(self) -> int:
        return max(self.layer_lengths.values(), default=0)


def check_layer(layer: int) -> int:
    return checks.integer(layer, "layer", at_least=0, at_most=MAX_LAYERS)


class PagedCache:
    """Keys and values of many sequences, in pages that sequences with a common prefix share.

    `add_sequence` and `fork` return the id of a new sequence, which the other methods take as `sequence_id`. Layers are
    numbered from 0.

    Args:
        page_size: number of tokens per page; default 16.
        max_pages: maximum number of pages; None, the default, means no limit. When all pages are in use, the least
            recently used sequences that are not part of the current call are evicted.
        on_evict: called with the id and the length of each evicted sequence.

    >>> cache = PagedCache(page_size=4)
    >>> prompt = cache.add_sequence()
    >>> cache.append(0, [prompt], torch.randn(1, 2, 10, 8), torch.randn(1, 2, 10, 8))
    >>> other = cache.fork(prompt)
    >>> cache.append(0, [other], torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8))
    >>> cache.length(prompt), cache.length(other), cache.num_used_pages  # two pages are shared, the third is copied
    (10, 11, 4)
    >>> cache.attention(0, [prompt, other], torch.randn(2, 4, 1, 8)).shape
    torch.Size([2, 4, 1, 8])
    """

    def __init__(
        self, page_size: int = 16, max_pages: int | None = None, on_evict: Callable[[int, int], object] | None = None
    ) -> None:
        checks.integer(page_size, "page_size", at_least=1, at_most=MAX_PAGE_SIZE)
        if max_pages is not None:
            checks.size(max_pages, "max_pages")
        if on_evict is not None:
            checks.function(on_evict, "on_evict", "of a sequence id and a length")
        self.page_size, self.max_pages, self._on_evict = page_size, max_pages, on_evict
        self._pool = PagePool(page_size, max_pages)
        self._sequences: dict[int, _SequenceState] = {}
        self._evicted_ids: set[int] = set()
        self._next_id, self._call_count = 0, 0

    @property
    def sequence_ids(self) -> tuple[int, ...]:
        """The ids of all sequences, least recently used first."""
        return tuple(sorted(self._sequences, key=lambda sequence_id: self._sequences[sequence_id].last_used))

    @property
    def num_used_pages(self) -> int:
        """The number of pages in use; a shared page counts once."""
        return self._pool.num_used_pages

    @property
    def nbytes(self) -> int:
        """The size of all pages in bytes, including free ones."""
        return self._pool.nbytes

    def length(self, sequence_id: int) -> int:
        """Return the number of tokens of a sequence."""
        return self._state(sequence_id).length

    def layer_length(self, layer: int, sequence_id: int) -> int:
        """Return the number of tokens of a sequence that have been appended to a layer."""
        return self._state(sequence_id).layer_lengths.get(check_layer(layer), 0)

    def add_sequence(self) -> int:
        """Add an empty sequence and return its id."""
        return self._register(_SequenceState())

    def fork(self, sequence_id: int, length: int | None = None) -> int:
        """Add a sequence that shares the first `length` tokens of another, by default all, and return its id."""
        parent = self._state(sequence_id)
        length = parent.length if length is None else length
        self._check_length(sequence_id, parent, length)
        page_table = parent.page_table[: self._num_pages_for(length)]
        for page in page_table:
            self._pool.retain(page)
        self._touch([sequence_id])
        layer_lengths = {layer: min(n, length) for layer, n in parent.layer_lengths.items()}
        return self._register(_SequenceState(page_table, layer_lengths))

    def crop(self, sequence_id: int, length: int) -> None:
        """Remove all but the first `length` tokens of a sequence."""
        sequence = self._state(sequence_id)
        self._check_length(sequence_id, sequence, length)
        num_pages = self._num_pages_for(length)
        for page in sequence.page_table[num_pages:]:
            self._pool.release(page)
        del sequence.page_table[num_pages:]
        sequence.layer_lengths = {layer: min(n, length) for layer, n in sequence.layer_lengths.items()}

    def drop(self, sequence_id: int) -> None:
        """Remove a sequence and free the pages that no other sequence uses."""
        for page in self._state(sequence_id).page_table:
            self._pool.release(page)
        del self._sequences[sequence_id]

    def append(
        self, layer: int, sequence_ids: Sequence[int], *rows: Tensor, counts: Sequence[int] | None = None
    ) -> None:
        """Append the rows of new tokens of one layer to some sequences.

        Every layer must receive the same tokens.

        Args:
            layer: index of the layer.
            sequence_ids: ids of the sequences, without repetition.
            rows: tensors (sequences, heads, n, dim), usually keys and values.
            counts: number of new tokens of each sequence. Only the last counts[s] rows of sequence s are appended;
                None, the default, appends all n rows.
        """
        sequences = self._states_of_call(sequence_ids)
        counts = self._check_rows(check_layer(layer), sequence_ids, rows, counts)
        starts = [sequence.layer_lengths.get(layer, 0) for sequence in sequences]
        spans = [(start, start + count) for start, count in zip(starts, counts, strict=True)]
        self._allocate_pages(sequence_ids, sequences, spans)
        slots = [self._slots(sequence, *span) for sequence, span in zip(sequences, spans, strict=True)]
        new_rows = tuple(
            torch.cat([x[index, :, x.shape[2] - count :] for index, count in enumerate(counts)], dim=1) for x in rows
        )
        self._pool.write(layer, torch.cat(slots).to(rows[0].device), new_rows)
        for sequence, (_, end) in zip(sequences, spans, strict=True):
            sequence.layer_lengths[layer] = end

    def rows(self, layer: int, sequence_id: int) -> tuple[Tensor, ...]:
        """Return the rows of a sequence in one layer, (heads, n, dim) for each tensor, in token order.

        The result is a view if the pages are adjacent, and then valid only until the next `append`.
        """
        check_layer(layer)
        (sequence,) = self._states_of_call([sequence_id])
        n = sequence.layer_lengths.get(layer, 0)
        pages = sequence.page_table[: self._num_pages_for(n)]
        if not pages:
            raise ArgumentError(
                f"layer {layer} must have tokens of sequence {sequence_id}; got none. Append some first."
            )
        return tuple(x[:, :n] for x in self._pool.read(layer, pages))

    def left_padded_rows(self, layer: int, sequence_ids: Sequence[int], max_length: int) -> tuple[Tensor, ...]:
        """Return the rows of several sequences, (sequences, heads, max_length, dim) for each tensor.

        Sequences are left-padded with arbitrary rows.
        """
        sequences = self._states_of_call(sequence_ids)
        lengths = [sequence.layer_lengths.get(check_layer(layer), 0) for sequence in sequences]
        checks.integer(max_length, "max_length", at_least=max(lengths), at_most=checks.MAX_DIM_SIZE)
        if self._pool.row_formats(layer) is None:
            raise ArgumentError(f"layer {layer} must have tokens of these sequences; got none. Append some first.")
        slots = torch.zeros((len(sequences), max_length), dtype=torch.long)
        for sequence_slots, sequence, n in zip(slots, sequences, lengths, strict=True):
            if n:
                sequence_slots[max_length - n :] = self._slots(sequence, 0, n)
        return tuple(x.transpose(0, 1) for x in self._pool.read_slots(layer, slots))

    def attention(
        self,
        layer: int,
        sequence_ids: Sequence[int],
        q: Tensor,
        *,
        score: ScoreLike | None = None,
        mask: MaskLike | None = None,
        normalizer: NormalizerLike | None = None,
        value: ValueLike | None = None,
        dropout: float = 0.0,
        seed: int | None = None,
        backend: str | None = None,
    ) -> Tensor:
        """Compute the attention of the last n tokens of some sequences over the cached keys and values of a layer.

        Each sequence attends only to its own tokens. With softmax and sink, pages shared by several sequences are
        attended to once, with the queries of all of them. There are no gradients.

        Args:
            layer: index of the layer.
            sequence_ids: ids of the sequences, without repetition.
            q: queries (sequences, heads, n, head_dim) of the last n tokens, whose keys must have been appended.
            score, mask, normalizer, value, dropout, seed, backend: see `regard.attention`. The batch index b is the
                index in `sequence_ids`.

        Returns:
            The output (sequences, heads, n, value_dim).
        """
        check_layer(layer)
        states = self._states_of_call(sequence_ids)
        sequences = [PagedSequence(state.page_table, state.layer_lengths.get(layer, 0)) for state in states]
        options = {
            "score": score,
            "mask": mask,
            "normalizer": normalizer,
            "value": value,
            "dropout": dropout,
            "seed": seed,
        }
        return paged_attention(self._pool, layer, sequences, q, options, backend)

    def _register(self, sequence: _SequenceState) -> int:
        sequence_id = self._next_id
        self._next_id += 1
        self._sequences[sequence_id] = sequence
        self._touch([sequence_id])
        return sequence_id

    def _states_of_call(self, sequence_ids: Sequence[int]) -> list[_SequenceState]:
        if not isinstance(sequence_ids, Sequence) or isinstance(sequence_ids, (str, bytes)):
            raise ArgumentError(f"sequence_ids must be a list of sequence ids; got {checks.describe(sequence_ids)}.")
        states = [self._state(sequence_id) for sequence_id in sequence_ids]
        if not states or len(set(sequence_ids)) < len(states):
            raise ArgumentError(
                f"sequence_ids must hold at least one id, and no id twice; got {list(sequence_ids)}. Fork a sequence "
                "to continue it in two ways."
            )
        self._touch(sequence_ids)
        return states

    def _state(self, sequence_id: int) -> _SequenceState:
        checks.integer(sequence_id, "sequence_id")
        if sequence_id not in self._sequences:
            reason = "it was evicted" if sequence_id in self._evicted_ids else "it was dropped"
            reason = reason if 0 <= sequence_id < self._next_id else "it never existed"
            raise ArgumentError(
                f"sequence_id must be in the cache; got {sequence_id}: {reason}. Add a sequence and append its tokens."
            )
        return self._sequences[sequence_id]

    def _touch(self, sequence_ids: Sequence[int]) -> None:
        self._call_count += 1
        for sequence_id in sequence_ids:
            self._sequences[sequence_id].last_used = self._call_count

    def _num_pages_for(self, length: int) -> int:
        return -(-length // self.page_size)

    def _slots(self, sequence: _SequenceState, start: int, end: int) -> Tensor:
        """Return the slots of tokens start to end - 1 of a sequence in the pool."""
        positions = torch.arange(start, end)
        pages = torch.tensor(sequence.page_table, dtype=torch.long)[positions // self.page_size]
        return pages * self.page_size + positions % self.page_size

    def _check_length(self, sequence_id: int, sequence: _SequenceState, length: int) -> None:
        checks.integer(length, "length")
        if not 0 <= length <= sequence.length:
            raise ArgumentError(
                f"length must be from 0 to {sequence.length}, the length of sequence {sequence_id}; got {length}."
            )

    def _check_rows(
        self, layer: int, sequence_ids: Sequence[int], rows: tuple[Tensor, ...], counts: Sequence[int] | None
    ) -> Sequence[int]:
        """Return the number of new tokens of each sequence; raise if the rows do not fit the layer."""
        num_sequences = len(sequence_ids)
        shapes = [tuple(checks.tensor(x, "rows").shape) for x in rows]
        if not shapes or any(
            len(shape) != 4 or shape[0] != num_sequences or shape[2] != shapes[0][2] for shape in shapes
        ):
            raise ArgumentError(f"rows must be ({num_sequences} sequences, heads, n, dim); got {shapes}.")
        n = shapes[0][2]
        if counts is None:
            counts = [n] * num_sequences
        checks.instance(counts, "counts", (list, tuple), "a list of integers")
        for count in counts:
            checks.integer(count, "counts")
        if len(counts) != num_sequences or not all(0 <= count <= n for count in counts):
            raise ArgumentError(
                f"counts must be from 0 to {n}, one for each of {num_sequences} sequences; got {list(counts)}."
            )
        expected, formats = self._pool.row_formats(layer), tuple(row_format(x[0]) for x in rows)
        if expected is not None and expected != formats:
            raise ArgumentError(f"rows of layer {layer} must be {', '.join(expected)}; got {', '.join(formats)}.")
        if any(x.requires_grad for x in rows) and torch.is_grad_enabled():
            raise ArgumentError(
                "a cache holds tensors without gradients; got rows that require gradients. Append them under "
                "torch.no_grad()."
            )
        return counts

    def _allocate_pages(
        self, sequence_ids: Sequence[int], sequences: list[_SequenceState], spans: list[tuple[int, int]]
    ) -> None:
        """Give each sequence unshared pages for the tokens in its span: allocate new pages and copy shared ones."""
        page_ranges = [
            range(start // self.page_size, self._num_pages_for(end) if end > start else 0) for start, end in spans
        ]
        num_new = [
            len(set(pages) - set(range(len(sequence.page_table))))
            for sequence, pages in zip(sequences, page_ranges, strict=True)
        ]
        shared = [
            [p for p in pages if p < len(s.page_table) and self._pool.ref_counts[s.page_table[p]] > 1]
            for s, pages in zip(sequences, page_ranges, strict=True)
        ]
        self._evict_for(sum(num_new) + sum(len(indices) for indices in shared), set(sequence_ids))
        for sequence, num_pages, shared_indices in zip(sequences, num_new, shared, strict=True):
            for index in shared_indices:
                page = sequence.page_table[index]
                sequence.page_table[index] = self._pool.copy(page)
                self._pool.release(page)
            sequence.page_table.extend(self._pool.allocate() for _ in range(num_pages))

    def _evict_for(self, num_pages: int, protected_ids: set[int]) -> None:
        """Evict sequences until `num_pages` pages are free; raise before evicting any if they cannot suffice."""
        if self.max_pages is None or self._pool.num_used_pages + num_pages <= self.max_pages:
            return
        protected_pages = {page for sequence_id in protected_ids for page in self._sequences[sequence_id].page_table}
        candidates = [sequence_id for sequence_id in self.sequence_ids if sequence_id not in protected_ids]
        candidate_pages = {page for sequence_id in candidates for page in self._sequences[sequence_id].page_table}
        num_evictable = len(candidate_pages - protected_pages)
        num_free = self.max_pages - self._pool.num_used_pages
        if num_free + num_evictable < num_pages:
            raise BudgetError(
                f"the call needs {num_pages} pages of {self.page_size} tokens; got {num_free} free and {num_evictable} "
                f"evictable pages with max_pages={self.max_pages}. Use more pages, or fewer sequences per call."
            )
        for sequence_id in candidates:
            if self._pool.num_used_pages + num_pages <= self.max_pages:
                return
            if not protected_pages.issuperset(self._sequences[sequence_id].page_table):
                length = self.length(sequence_id)
                self.drop(sequence_id)
                self._evicted_ids.add(sequence_id)
                if self._on_evict is not None:
                    self._on_evict(sequence_id, length)
