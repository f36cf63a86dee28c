"""Sequences of a paged cache as the cache of a batch, so that any model of `regard.nn` writes with it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard import checks
from regard.distributed.pages import PagedCache
from regard.errors import SpecError
from regard.nn import inputs
from regard.nn.cache import KeyValueCache, LayerCache, check_rows


class PagedBatch(KeyValueCache):
    """The cache of a batch whose element b is sequence number `sequences[b]` of a paged cache.

    Sequences may have different lengths. After a beam search, or another `reorder`, `.sequences` has the numbers that
    the batch elements have then.

    >>> from regard.models.language import LanguageModel
    >>> from regard.nn import Design, Rotary, generate
    >>> model = LanguageModel(100, layers=2, design=Design(width=64, heads=4), position=Rotary(16))
    >>> pages = PagedCache()
    >>> prompt = pages.add()
    >>> generate(model, torch.tensor([[1, 2, 3]]), most=1, cache=PagedBatch(pages, [prompt])).shape
    torch.Size([1, 1])
    >>> both = PagedBatch(pages, [prompt, pages.fork(prompt)])  # the prompt was computed once
    >>> generate(model, torch.tensor([[4], [5]]), most=6, cache=both).shape
    torch.Size([2, 6])
    """

    def __init__(self, pages: PagedCache, sequences: Sequence[int]) -> None:
        super().__init__()
        checks.instance(pages, "pages", PagedCache, "a PagedCache")
        self.pages, self.sequences = pages, list(checks.instance(sequences, "sequences", (list, tuple), "a list"))
        if not self.sequences:
            raise SpecError("a batch must have at least one sequence; got none.")
        lengths = torch.tensor([pages.length(s) for s in self.sequences])
        if bool((lengths != lengths.max()).any()):
            self.padding = lengths.max() - lengths

    def _made(self, layer: int) -> LayerCache:
        return PagedLayer(self, layer)

    @property
    def nbytes(self) -> int:
        return self.pages.nbytes

    def crop(self, length: int) -> None:
        """Forgets all but the first `length` tokens, as the longest sequence counts them."""
        checks.whole_number(length, "length")
        if not 0 <= length <= self.length:
            raise SpecError(f"a cache can go back to between 0 and {self.length} tokens; got {length}.")
        for sequence, before in zip(self.sequences, self.before(), strict=True):
            self.pages.crop(sequence, min(self.pages.length(sequence), max(0, length - before)))
        for layer, kind in list(self._layers):
            if kind == "own":
                self._layers[layer, kind].length = length
            elif length == 0:
                del self._layers[layer, kind]

    def reorder(self, order: Tensor) -> None:
        """Batch element b goes on with what order[b] has seen: the first who does keeps the sequence, others fork it,
        and sequences that nobody goes on with are dropped."""
        inputs.order(order, len(self.sequences))
        parents = [self.sequences[n] for n in order.tolist()]
        for sequence in set(self.sequences) - set(parents):
            self.pages.drop(sequence)
        taken: set[int] = set()
        self.sequences = []
        for parent in parents:
            self.sequences.append(self.pages.fork(parent) if parent in taken else parent)
            taken.add(parent)
        for (_, kind), layer in self._layers.items():
            if kind == "memory":
                layer.reorder(order)
        if self.padding is not None:
            self.padding = self.padding.index_select(0, order)

    def before(self) -> list[int]:
        """How many places stand empty before each sequence, so that all end together."""
        return [0] * len(self.sequences) if self.padding is None else self.padding.tolist()


class PagedLayer(LayerCache):
    """One layer's rows of the sequences of a batch, which end together. Before a shorter one stands anything."""

    def __init__(self, batch: PagedBatch, layer: int) -> None:
        lengths = [batch.pages.length_in(layer, s) for s in batch.sequences]
        super().__init__(length=max(lengths, default=0))
        self._batch, self._layer = batch, layer

    def append(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """These rows behind what is kept; returns all of it. Places before a sequence begins are not kept."""
        check_rows(rows)
        n, batch = rows[0].shape[-2], self._batch
        counts = [n - min(n, max(0, before - self.length)) for before in batch.before()]
        batch.pages.append(self._layer, batch.sequences, *rows, counts=counts)
        self.length += n
        return self.rows()

    def rows(self) -> tuple[Tensor, ...]:
        """What is kept, (batch, heads, n, width), gathered from its pages."""
        if not self.length:
            return ()
        return self._batch.pages.aligned(self._layer, self._batch.sequences, self.length)

    @property
    def kept(self) -> int:
        return self.length

    def crop(self, length: int) -> None:
        raise SpecError("pages belong to all layers of a sequence; crop the whole cache, as in cache.crop(length).")

    def reorder(self, order: Tensor) -> None:
        raise SpecError(
            "pages belong to all layers of a sequence; reorder the whole cache, as in cache.reorder(order)."
        )
