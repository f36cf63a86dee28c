"""The key-value cache: keys and values of earlier tokens, so that each step computes only those of the new tokens.

A `KeyValueCache` has a `LayerCache` for each layer. New keys and values are appended to a buffer. The cache returns
views of the buffer in token order, which kernels read without a copy. Three kinds differ in their capacity:

    default             the capacity doubles when the buffer is full
    max_len=n           capacity for n tokens, allocated at once; more tokens raise an error
    sliding_window=w    holds the last w - 1 tokens, as `causal() & sliding_window(w)` needs. The capacity is 2w: when
                        the buffer is full, the remaining tokens move to its start, once every w tokens
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard import checks
from regard.errors import ArgumentError
from regard.mask import Mask, padding
from regard.nn import input_checks

MIN_CAPACITY_TOKENS = 64  # of a growing cache
MAX_LAYERS = 100_000


@dataclass(eq=False)
class LayerCache:
    """The cache of one layer: keys and values, or other tensors (batch, heads, n, dim) with one row per token.

    `max_len` and `sliding_window` are those of `KeyValueCache`.

    >>> cache = LayerCache()
    >>> k, v = cache.append(torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8))
    >>> k, v = cache.append(torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8))
    >>> k.shape, cache.length
    (torch.Size([1, 2, 7, 8]), 7)
    """

    max_len: int | None = None
    sliding_window: int | None = None
    length: int = 0  # tokens appended so far, including dropped ones
    _buffers: tuple[Tensor, ...] = field(default=(), init=False)
    _start: int = field(default=0, init=False)
    _end: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check_cache_size(self.max_len, self.sliding_window)
        checks.integer(self.length, "length", at_least=0, at_most=checks.MAX_DIM_SIZE)

    def append(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Append `tensors`, (batch, heads, n, dim) each, and return all that the new tokens attend to, as views."""
        check_cache_tensors(tensors)
        if any(x.requires_grad for x in tensors) and torch.is_grad_enabled():
            raise ArgumentError(
                "a cache holds tensors without gradients; got tensors that require gradients. "
                "Generate under torch.no_grad(), or call without a cache."
            )
        if self._buffers and (batch_size := len(self._buffers[0])) != len(tensors[0]):
            raise ArgumentError(
                f"tensors must have the batch size of the cache, {batch_size}; got {len(tensors[0])}. Reorder the "
                "cache, or make a new one."
            )
        if self._buffers:
            check_same_layout(tensors, self._buffers)
        n = tensors[0].shape[-2]
        self._reserve(n, tensors)
        for buffer, new in zip(self._buffers, tensors, strict=True):
            buffer[..., self._end : self._end + n, :] = new
        self._end += n
        self.length += n
        visible = self.tensors()
        if self.sliding_window is not None:
            self._start = max(self._start, self._end - self.sliding_window + 1)
        return visible

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the cached tensors, as views."""
        return tuple(buffer[..., self._start : self._end, :] for buffer in self._buffers)

    @property
    def num_cached_tokens(self) -> int:
        """The number of cached tokens, without dropped ones."""
        return self._end - self._start

    def crop(self, length: int) -> None:
        """Remove all but the first `length` tokens.

        With a sliding window, the window before the next token must still be in the buffer.
        """
        min_length = self._min_crop_length()
        checks.integer(length, "length")
        if not min_length <= length <= self.length:
            raise ArgumentError(
                f"length must be from {min_length} to {self.length}, the tokens this cache can be cropped to; got "
                f"{length}."
            )
        self._end -= self.length - length
        self.length = length
        if self.sliding_window is not None:
            self._start = self._end - min(length, self.sliding_window - 1)

    def _min_crop_length(self) -> int:
        first = self.length - self._end  # the token in the first row of the buffer
        return 0 if self.sliding_window is None or first == 0 else min(first + self.sliding_window - 1, self.length)

    def reorder(self, order: Tensor) -> None:
        """Replace batch element b with batch element `order[b]`, as in beam search."""
        if self._buffers:
            input_checks.check_batch_indices(order, len(self._buffers[0]))
            self._buffers = tuple(buffer.index_select(0, order) for buffer in self._buffers)

    def _reserve(self, n: int, like: tuple[Tensor, ...]) -> None:
        capacity = self._buffers[0].shape[-2] if self._buffers else 0
        if self._buffers and self._end + n <= capacity:
            return
        cached = self.num_cached_tokens
        if self.max_len is not None and self.length + n > self.max_len:
            raise ArgumentError(
                f"a cache with max_len={self.max_len} holds at most {self.max_len} tokens; got {self.length} and {n} "
                "more. Use a larger max_len, omit max_len so that the cache grows, or set sliding_window."
            )
        if not self._buffers or cached + n > capacity:
            capacity = max(cached + n, self._next_capacity(capacity))
            with torch.inference_mode(False):  # inference tensors cannot be written to outside that mode
                buffers = tuple(x.new_empty(*x.shape[:-2], capacity, x.shape[-1]) for x in like)
        else:
            buffers = self._buffers
        for old, new in zip(self._buffers, buffers, strict=False):
            rows = old[..., self._start : self._end, :]
            new[..., :cached, :] = rows.clone() if new is old and self._start < cached else rows
        self._buffers, self._start, self._end = buffers, 0, cached

    def _next_capacity(self, capacity: int) -> int:
        if self.max_len is not None:
            return self.max_len
        return 2 * self.sliding_window if self.sliding_window is not None else max(MIN_CAPACITY_TOKENS, 2 * capacity)


@dataclass(eq=False)
class KeyValueCache:
    """The key-value cache of a model: one `LayerCache` per layer.

    By default the cache grows. `max_len` allocates capacity for this number of tokens; `sliding_window` keeps only the
    last `sliding_window - 1` tokens. `left_padding` (batch,) is the number of padding tokens before each prompt.

    >>> cache = KeyValueCache(sliding_window=4)
    >>> k, v = cache[0].append(torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8))
    >>> k.shape[-2], cache[0].num_cached_tokens, cache.length
    (6, 3, 6)
    """

    max_len: int | None = None
    sliding_window: int | None = None
    left_padding: Tensor | None = None
    _layers: dict[tuple[int, str], LayerCache] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        check_cache_size(self.max_len, self.sliding_window)
        if self.left_padding is not None:
            checks.tensor(self.left_padding, "left_padding", shape=("batch",), dtype_kind="integers")

    def __getitem__(self, layer: int) -> LayerCache:
        """Return the self-attention cache of a layer; the first access creates it."""
        checks.integer(layer, "layer", at_least=0, at_most=MAX_LAYERS)
        if (layer, "self") not in self._layers:
            self._layers[layer, "self"] = self._make_layer_cache(layer)
        return self._layers[layer, "self"]

    def _make_layer_cache(self, layer: int) -> LayerCache:
        return LayerCache(self.max_len, self.sliding_window)

    def cross_attention_cache(self, layer: int) -> LayerCache:
        """Return the cross-attention cache of a layer, which the first call fills."""
        checks.integer(layer, "layer", at_least=0, at_most=MAX_LAYERS)
        return self._layers.setdefault((layer, "cross"), LayerCache())

    @property
    def length(self) -> int:
        """The number of tokens appended so far."""
        return self[0].length

    @property
    def nbytes(self) -> int:
        """The size of all buffers in bytes, including unused capacity."""
        return sum(buffer.nbytes for layer in self._layers.values() for buffer in layer._buffers)

    def position_ids(self, n: int, device: torch.device | None = None) -> Tensor:
        """Return the positions of the next n tokens: (n,), or (batch, n) with `left_padding`."""
        checks.integer(n, "n", at_least=0, at_most=checks.MAX_DIM_SIZE)
        return make_position_ids(self.length, n, self.left_padding, None if device is None else checks.device(device))

    def padding_mask(self, n: int) -> Mask | None:
        """Return the mask that hides padding from the next n tokens, or None if no padding is cached."""
        checks.integer(n, "n", at_least=0, at_most=checks.MAX_DIM_SIZE)
        if self.left_padding is None:
            return None
        cached = self[0].num_cached_tokens
        hidden = (self.left_padding - (self.length - cached)).clamp(min=0)
        return padding(cached + n - hidden, side="left") if bool(hidden.any()) else None

    def check_equal_lengths(self, num_layers: int) -> None:
        """Raise if layers hold different numbers of tokens, as after a forward pass that raised midway."""
        checks.integer(num_layers, "num_layers", at_least=0, at_most=MAX_LAYERS)
        lengths = [self[layer].length for layer in range(num_layers)]
        if min(lengths, default=0) != max(lengths, default=0):
            raise ArgumentError(
                f"all layers of a cache must hold the same number of tokens; got {max(lengths)} and {min(lengths)}, as "
                f"after an interrupted call. Use crop({min(lengths)}), or make a new cache."
            )

    def crop(self, length: int) -> None:
        """Remove all but the first `length` tokens; `crop(0)` also clears the cross-attention caches."""
        checks.integer(length, "length", at_least=0)
        for layer, kind in list(self._layers):
            if kind == "self":
                self._layers[layer, kind].crop(length)
            elif length == 0:
                del self._layers[layer, kind]

    def reorder(self, order: Tensor) -> None:
        """Replace batch element b with batch element `order[b]` in all layers."""
        checks.tensor(order, "order", shape=("batch",), dtype_kind="integers")
        for layer in self._layers.values():
            layer.reorder(order)
        if self.left_padding is not None:
            self.left_padding = self.left_padding.index_select(0, order)


def check_cache_size(max_len: int | None, sliding_window: int | None) -> None:
    for name, number in (("max_len", max_len), ("sliding_window", sliding_window)):
        if number is not None:
            checks.size(number, name)
    if max_len is not None and sliding_window is not None:
        raise ArgumentError(
            f"a cache takes max_len or sliding_window, not both; got max_len={max_len}, "
            f"sliding_window={sliding_window}."
        )


def check_cache_tensors(tensors: tuple[Tensor, ...]) -> None:
    """Raise unless all are tensors (batch, heads, n, dim) with the same batch size and length."""
    if not tensors:
        raise ArgumentError(
            "append needs at least one tensor; got none. Pass keys and values, (batch, heads, n, head_dim) each."
        )
    for x in tensors:
        checks.tensor(x, "tensors", shape=("batch", "heads", "n", "head_dim"))
        if (x.shape[0], x.shape[2]) != (tensors[0].shape[0], tensors[0].shape[2]):
            raise ArgumentError(
                "tensors of one call must have the same batch size and length; got shapes "
                f"{', '.join(str(tuple(tensor.shape)) for tensor in tensors)}."
            )


def check_same_layout(tensors: tuple[Tensor, ...], cached: tuple[Tensor, ...]) -> None:
    """Raise if the number, heads, head dimension or dtype of the tensors differ from those in the cache."""
    if len(tensors) != len(cached):
        raise ArgumentError(f"this cache holds {len(cached)} tensors; got {len(tensors)}.")
    for x, old in zip(tensors, cached, strict=True):
        if x.shape[1] != old.shape[1] or x.shape[3] != old.shape[3]:
            raise ArgumentError(
                f"tensors must have shape (batch, {old.shape[1]}, n, {old.shape[3]}) like those in the cache; got "
                f"{tuple(x.shape)}."
            )
        if x.dtype != old.dtype:
            raise ArgumentError(f"tensors must have the dtype of those in the cache, {old.dtype}; got {x.dtype}.")


def make_position_ids(
    start: int, n: int, left_padding: Tensor | None = None, device: torch.device | None = None
) -> Tensor:
    """Return the positions of n tokens after the first `start` tokens; padding tokens do not count."""
    positions = torch.arange(start, start + n, device=device)
    if left_padding is None:
        return positions
    return (positions - left_padding.to(positions.device).unsqueeze(-1)).clamp(min=0)
