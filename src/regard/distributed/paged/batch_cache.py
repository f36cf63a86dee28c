"""A batch of sequences of a `PagedCache` as a `KeyValueCache`, for the models of `regard.nn`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard import checks
from regard.distributed.paged.cache import PagedCache
from regard.errors import ArgumentError
from regard.nn import input_checks
from regard.nn.kv_cache import KeyValueCache, LayerCache, check_cache_tensors


class PagedBatchCache(KeyValueCache):
    """The cache of a batch whose element b is the sequence sequence_ids[b] of a `PagedCache`.

    Sequences may have different lengths. `reorder`, and with it beam search, forks and drops sequences and updates
    `sequence_ids`.

    Args:
        paged_cache: cache that holds the sequences.
        sequence_ids: id of the sequence of each batch element.

    >>> from regard.models.language import LanguageModel
    >>> from regard.nn import BlockConfig, RotaryEmbedding, generate
    >>> config = BlockConfig(embed_dim=64, num_heads=4)
    >>> model = LanguageModel(100, num_layers=2, block_config=config, position_encoding=RotaryEmbedding(16))
    >>> cache = PagedCache()
    >>> prompt = cache.add_sequence()
    >>> generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=1, cache=PagedBatchCache(cache, [prompt])).shape
    torch.Size([1, 1])
    >>> both = PagedBatchCache(cache, [prompt, cache.fork(prompt)])  # the prompt is computed once
    >>> generate(model, torch.tensor([[4], [5]]), max_new_tokens=6, cache=both).shape
    torch.Size([2, 6])
    """

    def __init__(self, paged_cache: PagedCache, sequence_ids: Sequence[int]) -> None:
        super().__init__()
        self.paged_cache = checks.instance(paged_cache, "paged_cache", PagedCache, "a PagedCache")
        self.sequence_ids = list(checks.instance(sequence_ids, "sequence_ids", (list, tuple), "a list"))
        if not self.sequence_ids:
            raise ArgumentError("sequence_ids must hold at least one sequence; got none.")
        lengths = torch.tensor([paged_cache.length(sequence_id) for sequence_id in self.sequence_ids])
        if bool((lengths != lengths.max()).any()):
            self.left_padding = lengths.max() - lengths

    def _make_layer_cache(self, layer: int) -> LayerCache:
        return PagedLayerCache(self, layer)

    @property
    def nbytes(self) -> int:
        return self.paged_cache.nbytes

    def crop(self, length: int) -> None:
        """Keep only the first `length` tokens, counted in the longest sequence."""
        checks.integer(length, "length")
        if not 0 <= length <= self.length:
            raise ArgumentError(f"length must be from 0 to {self.length}, the length of the cache; got {length}.")
        for sequence_id, num_padding in zip(self.sequence_ids, self.padding_lengths(), strict=True):
            cropped_length = min(self.paged_cache.length(sequence_id), max(0, length - num_padding))
            self.paged_cache.crop(sequence_id, cropped_length)
        for layer, kind in list(self._layers):
            if kind == "self":
                self._layers[layer, kind].length = length
            elif length == 0:
                del self._layers[layer, kind]

    def reorder(self, order: Tensor) -> None:
        """Make batch element b continue the sequence of the former element order[b].

        Sequences that several elements continue are forked, and sequences that no element continues are dropped.
        """
        input_checks.check_batch_indices(order, len(self.sequence_ids))
        parents = [self.sequence_ids[index] for index in order.tolist()]
        for sequence_id in set(self.sequence_ids) - set(parents):
            self.paged_cache.drop(sequence_id)
        continued: set[int] = set()
        self.sequence_ids = []
        for parent in parents:
            self.sequence_ids.append(self.paged_cache.fork(parent) if parent in continued else parent)
            continued.add(parent)
        for (_, kind), layer in self._layers.items():
            if kind == "cross":
                layer.reorder(order)
        if self.left_padding is not None:
            self.left_padding = self.left_padding.index_select(0, order)

    def padding_lengths(self) -> list[int]:
        """Return the number of padding tokens before each sequence; all sequences end at the same position."""
        return [0] * len(self.sequence_ids) if self.left_padding is None else self.left_padding.tolist()


class PagedLayerCache(LayerCache):
    """One layer of a `PagedBatchCache`. Sequences are left-padded to one length; padding rows are arbitrary."""

    def __init__(self, batch_cache: PagedBatchCache, layer: int) -> None:
        lengths = [batch_cache.paged_cache.layer_length(layer, s) for s in batch_cache.sequence_ids]
        super().__init__(length=max(lengths, default=0))
        self._batch_cache, self._layer = batch_cache, layer

    def append(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Append tensors (batch, heads, n, dim) and return all cached rows; padding is not stored."""
        check_cache_tensors(tensors)
        n, batch_cache = tensors[0].shape[-2], self._batch_cache
        counts = [n - min(n, max(0, num_padding - self.length)) for num_padding in batch_cache.padding_lengths()]
        batch_cache.paged_cache.append(self._layer, batch_cache.sequence_ids, *tensors, counts=counts)
        self.length += n
        return self.tensors()

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the cached rows (batch, heads, n, dim), gathered from their pages."""
        if not self.length:
            return ()
        return self._batch_cache.paged_cache.left_padded_rows(self._layer, self._batch_cache.sequence_ids, self.length)

    @property
    def num_cached_tokens(self) -> int:
        return self.length

    def crop(self, length: int) -> None:
        raise ArgumentError("pages are shared by all layers; crop the whole cache, as in cache.crop(length).")

    def reorder(self, order: Tensor) -> None:
        raise ArgumentError("pages are shared by all layers; reorder the whole cache, as in cache.reorder(order).")
