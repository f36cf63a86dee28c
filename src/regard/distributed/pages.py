"""A key-value cache in pages: many sequences in one pool of memory, which share what they have in common.

Every sequence has a table of pages. A fork takes the numbers of pages instead of their tokens; who then writes into a
page that others hold gets a copy of its own first. Where pages are limited, sequences that were not used for the
longest time give way, and the caller is told.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard import checks
from regard.distributed.branches import Held
from regard.distributed.paged_attention import attention_over_pages
from regard.distributed.pool import Pool, kind
from regard.errors import BudgetError, SpecError

MAX_PAGE = 2**20  # tokens of one page
MAX_LAYERS = 100_000


@dataclass(eq=False)
class _Sequence:
    """A table of pages, and how many tokens each layer has written into them."""

    table: list[int] = field(default_factory=list)
    lengths: dict[int, int] = field(default_factory=dict)
    used: int = 0  # when, in calls

    @property
    def length(self) -> int:
        return max(self.lengths.values(), default=0)


def layer_of(layer: int) -> int:
    return checks.whole_number(layer, "layer", at_least=0, at_most=MAX_LAYERS)


class PagedCache:
    """What models have computed of many sequences, in pages of `size` tokens.

    With `most` there are at most so many pages. When they are used up, sequences that are not part of the call and were
    not used for the longest time are dropped, and `evicted` is called with the number of each and its length.

    >>> cache = PagedCache(size=4)
    >>> prompt = cache.add()
    >>> cache.append(0, [prompt], torch.randn(1, 2, 10, 8), torch.randn(1, 2, 10, 8))
    >>> other = cache.fork(prompt)
    >>> cache.append(0, [other], torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8))
    >>> cache.length(prompt), cache.length(other), cache.pages  # two pages are shared, the third was copied
    (10, 11, 4)
    >>> cache.attention(0, [prompt, other], torch.randn(2, 4, 1, 8)).shape
    torch.Size([2, 4, 1, 8])
    """

    def __init__(
        self, size: int = 16, most: int | None = None, evicted: Callable[[int, int], object] | None = None
    ) -> None:
        checks.whole_number(size, "size", at_least=1, at_most=MAX_PAGE)
        if most is not None:
            checks.size(most, "most")
        if evicted is not None:
            checks.function(evicted, "evicted", "of a sequence's number and length")
        self.size, self.most, self._evicted = size, most, evicted
        self._pool = Pool(size, most)
        self._sequences: dict[int, _Sequence] = {}
        self._gave_way: set[int] = set()
        self._next, self._calls = 0, 0

    @property
    def sequences(self) -> tuple[int, ...]:
        """The numbers of all sequences, the one that would give way first at the beginning."""
        return tuple(sorted(self._sequences, key=lambda number: self._sequences[number].used))

    @property
    def pages(self) -> int:
        """How many pages are in use; one that several sequences share counts once."""
        return self._pool.used

    @property
    def nbytes(self) -> int:
        return self._pool.nbytes

    def length(self, sequence: int) -> int:
        """How many tokens a sequence has."""
        return self._of(sequence).length

    def length_in(self, layer: int, sequence: int) -> int:
        """How many of them a layer has been told of."""
        return self._of(sequence).lengths.get(layer_of(layer), 0)

    def add(self) -> int:
        """A new sequence without tokens; its number."""
        return self._kept(_Sequence())

    def fork(self, sequence: int, length: int | None = None) -> int:
        """A new sequence with the first `length` tokens of another, all of them unless told; nothing is copied."""
        old = self._of(sequence)
        length = old.length if length is None else length
        self._check_length(sequence, old, length)
        table = old.table[: self._pages_of(length)]
        for page in table:
            self._pool.hold(page)
        self._used([sequence])
        return self._kept(_Sequence(table, {layer: min(n, length) for layer, n in old.lengths.items()}))

    def crop(self, sequence: int, length: int) -> None:
        """Forgets all but the first `length` tokens of a sequence."""
        old = self._of(sequence)
        self._check_length(sequence, old, length)
        keep = self._pages_of(length)
        for page in old.table[keep:]:
            self._pool.release(page)
        del old.table[keep:]
        old.lengths = {layer: min(n, length) for layer, n in old.lengths.items()}

    def drop(self, sequence: int) -> None:
        """Forgets a sequence; pages that nobody else holds are free again."""
        for page in self._of(sequence).table:
            self._pool.release(page)
        del self._sequences[sequence]

    def append(self, layer: int, sequences: Sequence[int], *rows: Tensor, counts: Sequence[int] | None = None) -> None:
        """Rows (sequences, heads, n, width) of a layer's new tokens behind those of these sequences.

        With `counts` only the last counts[s] rows of sequence number s are tokens. All layers must be told the same
        tokens, one after the other.
        """
        held = self._called(sequences)
        counts = self._checked(layer_of(layer), sequences, rows, counts)
        spans = [(s.lengths.get(layer, 0), s.lengths.get(layer, 0) + n) for s, n in zip(held, counts, strict=True)]
        self._make_room(sequences, held, spans)
        slots = [self._slots(s, *span) for s, span in zip(held, spans, strict=True)]
        tokens = tuple(torch.cat([x[s, :, x.shape[2] - n :] for s, n in enumerate(counts)], dim=1) for x in rows)
        self._pool.write(layer, torch.cat(slots).to(rows[0].device), tokens)
        for sequence, (_, end) in zip(held, spans, strict=True):
            sequence.lengths[layer] = end

    def rows(self, layer: int, sequence: int) -> tuple[Tensor, ...]:
        """What a layer has kept of a sequence, (heads, n, width) each, in the order of its tokens.

        These are views where the pages lie side by side, so they are good until something is appended.
        """
        layer_of(layer)
        (held,) = self._called([sequence])
        n = held.lengths.get(layer, 0)
        pages = held.table[: self._pages_of(n)]
        if not pages:
            raise SpecError(f"layer {layer} must have tokens of sequence {sequence}; it has none. Append some first.")
        return tuple(x[:, :n] for x in self._pool.read(layer, pages))

    def aligned(self, layer: int, sequences: Sequence[int], longest: int) -> tuple[Tensor, ...]:
        """The same of several, (sequences, heads, longest, width), each at the end of its row. What stands before a
        sequence's tokens is anything."""
        every = self._called(sequences)
        lengths = [held.lengths.get(layer_of(layer), 0) for held in every]
        checks.whole_number(longest, "longest", at_least=max(lengths), at_most=checks.MAX_SIZE)
        if self._pool.kinds(layer) is None:
            raise SpecError(f"layer {layer} must have tokens of these sequences; it has none. Append some first.")
        slots = torch.zeros((len(every), longest), dtype=torch.long)
        for place, held, n in zip(slots, every, lengths, strict=True):
            if n:
                place[longest - n :] = self._slots(held, 0, n)
        return tuple(x.transpose(0, 1) for x in self._pool.pick(layer, slots))

    def attention(
        self,
        layer: int,
        sequences: Sequence[int],
        q: Tensor,
        *,
        score: Any = None,
        mask: Any = None,
        weigh: Any = None,
        value: Any = None,
        dropout: float = 0.0,
        seed: int | None = None,
        engine: str | None = None,
    ) -> Tensor:
        """The attention of q (sequences, heads, n, width) over what a layer has kept of these sequences.

        The queries are each sequence's last n tokens, which have been appended. The rest is as in `regard.attention`,
        for each sequence as if it were alone, but that b counts the sequences of the call. Under softmax and sinks,
        pages that several of the sequences begin with are attended to once, by the queries of all of them, and merged
        with what each has for itself.
        """
        layer_of(layer)
        held = [Held(s.table, s.lengths.get(layer, 0)) for s in self._called(sequences)]
        options = {"score": score, "mask": mask, "weigh": weigh, "value": value, "dropout": dropout, "seed": seed}
        return attention_over_pages(self._pool, layer, held, q, options, engine)

    def _kept(self, sequence: _Sequence) -> int:
        number = self._next
        self._next += 1
        self._sequences[number] = sequence
        self._used([number])
        return number

    def _called(self, sequences: Sequence[int]) -> list[_Sequence]:
        if not isinstance(sequences, Sequence) or isinstance(sequences, (str, bytes)):
            raise SpecError(f"sequences must be a list of numbers of sequences; got {checks.describe(sequences)}.")
        every = [self._of(number) for number in sequences]
        if not every or len(set(sequences)) < len(every):
            raise SpecError(
                f"a call must name at least one sequence, and each once; got {list(sequences)}. Fork a sequence to "
                "have two that go on differently."
            )
        self._used(sequences)
        return every

    def _of(self, sequence: int) -> _Sequence:
        checks.whole_number(sequence, "a sequence")
        if sequence not in self._sequences:
            why = "it gave way to others" if sequence in self._gave_way else "it was dropped"
            why = why if 0 <= sequence < self._next else "there was none of that number"
            raise SpecError(f"a sequence must be one of this cache's; got {sequence}: {why}. Compute it anew.")
        return self._sequences[sequence]

    def _used(self, sequences: Sequence[int]) -> None:
        self._calls += 1
        for number in sequences:
            self._sequences[number].used = self._calls

    def _pages_of(self, length: int) -> int:
        return -(-length // self.size)

    def _slots(self, held: _Sequence, begin: int, end: int) -> Tensor:
        """Where tokens `begin` up to `end` of a sequence lie in the pool."""
        at = torch.arange(begin, end)
        return torch.tensor(held.table, dtype=torch.long)[at // self.size] * self.size + at % self.size

    def _check_length(self, sequence: int, held: _Sequence, length: int) -> None:
        checks.whole_number(length, "length")
        if not 0 <= length <= held.length:
            raise SpecError(f"sequence {sequence} has {held.length} tokens; got a length of {length}.")

    def _checked(
        self, layer: int, sequences: Sequence[int], rows: tuple[Tensor, ...], counts: Sequence[int] | None
    ) -> Sequence[int]:
        """How many tokens of each sequence there are, if the rows are what this layer keeps."""
        shapes = [tuple(checks.tensor(x, "rows").shape) for x in rows]
        if not shapes or any(len(s) != 4 or s[0] != len(sequences) or s[2] != shapes[0][2] for s in shapes):
            raise SpecError(f"rows must be ({len(sequences)} sequences, heads, n, width); got {shapes}.")
        if counts is None:
            counts = [shapes[0][2]] * len(sequences)
        checks.instance(counts, "counts", (list, tuple), "a list of whole numbers")
        for count in counts:
            checks.whole_number(count, "counts")
        if len(counts) != len(sequences) or not all(0 <= n <= shapes[0][2] for n in counts):
            wanted = f"from 0 to {shapes[0][2]}, one for each of {len(sequences)} sequences"
            raise SpecError(f"counts must be {wanted}; got {list(counts)}.")
        known, given = self._pool.kinds(layer), tuple(kind(x[0]) for x in rows)
        if known is not None and known != given:
            raise SpecError(f"layer {layer} keeps {', '.join(known)}; got {', '.join(given)}.")
        if any(x.requires_grad for x in rows) and torch.is_grad_enabled():
            raise SpecError(
                "a cache keeps numbers, not how they were made; got rows that require gradients. Append them under "
                "torch.no_grad()."
            )
        return counts

    def _make_room(self, called: Sequence[int], held: list[_Sequence], spans: list[tuple[int, int]]) -> None:
        """Pages for what is to be written, of which nobody else holds any."""
        writes = [range(begin // self.size, self._pages_of(end) if end > begin else 0) for begin, end in spans]
        fresh = [len(set(w) - set(range(len(s.table)))) for s, w in zip(held, writes, strict=True)]
        copies = [
            [p for p in w if p < len(s.table) and self._pool.counts[s.table[p]] > 1]
            for s, w in zip(held, writes, strict=True)
        ]
        self._find(sum(fresh) + sum(len(c) for c in copies), set(called))
        for sequence, more, shared in zip(held, fresh, copies, strict=True):
            for place in shared:
                page = sequence.table[place]
                sequence.table[place] = self._pool.copy(page)
                self._pool.release(page)
            sequence.table.extend(self._pool.take() for _ in range(more))

    def _find(self, wanted: int, called: set[int]) -> None:
        """Lets sequences give way until so many pages are free; none does if all together would not be enough."""
        if self.most is None or self._pool.used + wanted <= self.most:
            return
        stays = {page for number in called for page in self._sequences[number].table}
        others = [number for number in self.sequences if number not in called]
        could = {page for number in others for page in self._sequences[number].table} - stays
        free = self.most - self._pool.used
        if free + len(could) < wanted:
            raise BudgetError(
                f"the cache must find {wanted} pages of {self.size} tokens; {free} of most={self.most} are free and "
                f"{len(could)} could become so. Give more pages, or call with fewer sequences at a time."
            )
        for number in others:
            if self._pool.used + wanted <= self.most:
                return
            if not stays.issuperset(self._sequences[number].table):
                length = self.length(number)
                self.drop(number)
                self._gave_way.add(number)
                if self._evicted is not None:
                    self._evicted(number, length)
