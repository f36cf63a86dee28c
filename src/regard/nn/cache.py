"""What a model has computed of the tokens so far, so that the next one costs only itself.

A `KeyValueCache` has a `LayerCache` for each layer. What comes in is written behind what is there; what goes out are
views of it, in the order of the tokens, so that kernels read them as they lie. Three kinds differ in where the room
comes from:

    growing        room doubles when it is used up
    longest=n      room for n tokens, taken at once; more is an error
    window=w       only the w - 1 last tokens stay: all that `causal() & window(w)` asks for. Room for 2w: when the end
                   is reached, what stays moves to the beginning, once in w tokens
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard import checks
from regard.errors import SpecError
from regard.nn import inputs
from regard.spec.mask import Mask, padding

LEAST = 64  # tokens a growing cache has room for
MAX_LAYERS = 100_000


@dataclass(eq=False)
class LayerCache:
    """Rows (batch, heads, n, width) of one layer: keys and values, or whatever else it keeps of a token."""

    longest: int | None = None
    window: int | None = None
    length: int = 0  # tokens that came in so far, also those that are gone
    _rows: tuple[Tensor, ...] = field(default=(), init=False)
    _begin: int = field(default=0, init=False)
    _end: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check_sizes(self.longest, self.window)
        checks.whole_number(self.length, "length", at_least=0, at_most=checks.MAX_SIZE)

    def append(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """These rows behind what is kept; returns all of it, what the new tokens may look at."""
        check_rows(rows)
        if any(r.requires_grad for r in rows) and torch.is_grad_enabled():
            raise SpecError(
                "a cache keeps numbers, not how they were made; got rows that require gradients. "
                "Generate under torch.no_grad(), or call without a cache."
            )
        if self._rows and (begun := len(self._rows[0])) != len(rows[0]):
            raise SpecError(
                f"a cache goes on with the batch it began with, of {begun}; got one of {len(rows[0])}. Make a new "
                "cache, or reorder this one."
            )
        if self._rows:
            check_continues(rows, self._rows)
        n = rows[0].shape[-2]
        self._make_room(n, rows)
        for kept, new in zip(self._rows, rows, strict=True):
            kept[..., self._end : self._end + n, :] = new
        self._end += n
        self.length += n
        seen = self.rows()
        if self.window is not None:
            self._begin = max(self._begin, self._end - self.window + 1)
        return seen

    def rows(self) -> tuple[Tensor, ...]:
        """What is kept, as views."""
        return tuple(kept[..., self._begin : self._end, :] for kept in self._rows)

    @property
    def kept(self) -> int:
        """The number of tokens that the next ones will see."""
        return self._end - self._begin

    def crop(self, length: int) -> None:
        """Forgets all but the first `length` tokens that came in. With a window, it can go back only as far as what the
        next tokens will look at is still there."""
        least = self._earliest()
        checks.whole_number(length, "length")
        if not least <= length <= self.length:
            raise SpecError(f"a cache can go back to between {least} and {self.length} tokens; got {length}.")
        self._end -= self.length - length
        self.length = length
        if self.window is not None:
            self._begin = self._end - min(length, self.window - 1)

    def _earliest(self) -> int:
        """The smallest length it can go back to."""
        first = self.length - self._end  # the token in the first row of the room
        return 0 if self.window is None or first == 0 else min(first + self.window - 1, self.length)

    def reorder(self, order: Tensor) -> None:
        """Batch element b becomes what order[b] was: beams that go on."""
        if self._rows:
            inputs.order(order, len(self._rows[0]))
            self._rows = tuple(kept.index_select(0, order) for kept in self._rows)

    def _make_room(self, n: int, like: tuple[Tensor, ...]) -> None:
        room = self._rows[0].shape[-2] if self._rows else 0
        if self._rows and self._end + n <= room:
            return
        kept = self.kept
        if self.longest is not None and self.length + n > self.longest:
            raise SpecError(
                f"this cache has room for longest={self.longest} tokens; got {self.length} and {n} more. "
                "Make it longer, leave longest out so that it grows, or give a window."
            )
        if not self._rows or kept + n > room:
            room = max(kept + n, self._wanted(room))
            with torch.inference_mode(False):  # what is made in that mode could not be written into outside of it
                fresh = tuple(r.new_empty(*r.shape[:-2], room, r.shape[-1]) for r in like)
        else:
            fresh = self._rows
        for old, new in zip(self._rows, fresh, strict=False):
            stays = old[..., self._begin : self._end, :]
            new[..., :kept, :] = stays.clone() if new is old and self._begin < kept else stays
        self._rows, self._begin, self._end = fresh, 0, kept

    def _wanted(self, room: int) -> int:
        if self.longest is not None:
            return self.longest
        return 2 * self.window if self.window is not None else max(LEAST, 2 * room)


@dataclass(eq=False)
class KeyValueCache:
    """The caches of a model's layers; see this module for the kinds.

    `padding` says how many tokens at the beginning of each batch element are none: prompts of several lengths, aligned
    at their ends.

    >>> cache = KeyValueCache(window=4)
    >>> k, v = cache[0].append(torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8))
    >>> k.shape[-2], cache[0].kept, cache.length
    (6, 3, 6)
    """

    longest: int | None = None
    window: int | None = None
    padding: Tensor | None = None
    _layers: dict[tuple[int, str], LayerCache] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        check_sizes(self.longest, self.window)
        if self.padding is not None:
            checks.tensor(self.padding, "padding", shape=("batch",), dtype="integers")

    def __getitem__(self, layer: int) -> LayerCache:
        """The cache of a layer's attention to its own tokens, made when it is first asked for."""
        checks.whole_number(layer, "layer", at_least=0, at_most=MAX_LAYERS)
        if (layer, "own") not in self._layers:
            self._layers[layer, "own"] = self._made(layer)
        return self._layers[layer, "own"]

    def _made(self, layer: int) -> LayerCache:
        return LayerCache(self.longest, self.window)

    def memory(self, layer: int) -> LayerCache:
        """The cache of a layer's attention to an encoder's output, which is filled once."""
        checks.whole_number(layer, "layer", at_least=0, at_most=MAX_LAYERS)
        return self._layers.setdefault((layer, "memory"), LayerCache())

    @property
    def length(self) -> int:
        """How many tokens came in so far."""
        return self[0].length

    @property
    def nbytes(self) -> int:
        return sum(r.nbytes for layer in self._layers.values() for r in layer._rows)

    def positions(self, n: int, device: torch.device | None = None) -> Tensor:
        """Where the next n tokens stand: (n,), or (batch, n) where prompts differ in length."""
        checks.whole_number(n, "n", at_least=0, at_most=checks.MAX_SIZE)
        return places(self.length, n, self.padding, None if device is None else checks.device(device))

    def seen(self, n: int) -> Mask | None:
        """Which of the keys that the next n tokens will be shown are real ones; None: all are."""
        checks.whole_number(n, "n", at_least=0, at_most=checks.MAX_SIZE)
        if self.padding is None:
            return None
        kept = self[0].kept
        gone = self.length - kept
        hidden = (self.padding - gone).clamp(min=0)
        return padding(kept + n - hidden, side="left") if bool(hidden.any()) else None

    def check_whole(self, layers: int) -> None:
        """Refuses to go on where layers hold different numbers of tokens: a call broke off between them."""
        checks.whole_number(layers, "layers", at_least=0, at_most=MAX_LAYERS)
        lengths = [self[place].length for place in range(layers)]
        if min(lengths, default=0) != max(lengths, default=0):
            raise SpecError(
                f"all layers of a cache must hold the same tokens; got {max(lengths)} and {min(lengths)}, since a call "
                f"broke off. Go back with crop({min(lengths)}), or make a new one."
            )

    def crop(self, length: int) -> None:
        """Forgets all but the first `length` tokens; at 0 also what the memory was."""
        checks.whole_number(length, "length", at_least=0)
        for layer, kind in list(self._layers):
            if kind == "own":
                self._layers[layer, kind].crop(length)
            elif length == 0:
                del self._layers[layer, kind]

    def reorder(self, order: Tensor) -> None:
        """Batch element b goes on with what order[b] has seen."""
        checks.tensor(order, "order", shape=("batch",), dtype="integers")
        for layer in self._layers.values():
            layer.reorder(order)
        if self.padding is not None:
            self.padding = self.padding.index_select(0, order)


def check_sizes(longest: int | None, window: int | None) -> None:
    for name, number in (("longest", longest), ("window", window)):
        if number is not None:
            checks.size(number, name)
    if longest is not None and window is not None:
        raise SpecError(f"a cache has one size: longest or window; got {longest} and {window}.")


def check_rows(rows: tuple[Tensor, ...]) -> None:
    """Refuses anything but tensors (batch, heads, n, width) of one batch size and length."""
    if not rows:
        raise SpecError("a cache needs rows to append; got none. Give keys and values, (batch, heads, n, width) each.")
    for row in rows:
        checks.tensor(row, "rows", shape=("batch", "heads", "n", "width"))
        if (row.shape[0], row.shape[2]) != (rows[0].shape[0], rows[0].shape[2]):
            raise SpecError(
                "rows of one call must have the same batch size and length; got shapes "
                f"{', '.join(str(tuple(each.shape)) for each in rows)}."
            )


def check_continues(rows: tuple[Tensor, ...], earlier: tuple[Tensor, ...]) -> None:
    """Refuses rows of another number, head count, width or dtype than those in the cache."""
    if len(rows) != len(earlier):
        raise SpecError(f"this cache holds {len(earlier)} kinds of rows a token; got {len(rows)}.")
    for row, old in zip(rows, earlier, strict=True):
        if row.shape[1] != old.shape[1] or row.shape[3] != old.shape[3]:
            raise SpecError(
                f"rows must have shape (batch, {old.shape[1]}, n, {old.shape[3]}) as those in the cache; got "
                f"{tuple(row.shape)}."
            )
        if row.dtype != old.dtype:
            raise SpecError(f"rows must have the dtype of those in the cache, {old.dtype}; got {row.dtype}.")


def places(first: int, n: int, padding: Tensor | None = None, device: torch.device | None = None) -> Tensor:
    """Where n tokens stand that come after `first` others."""
    at = torch.arange(first, first + n, device=device)
    return at if padding is None else (at - padding.to(at.device).unsqueeze(-1)).clamp(min=0)
