"""Pages: equal pieces of memory, each with room for some tokens of every layer, handed out and counted."""

import heapq

import torch
from torch import Tensor

LEAST = 16  # pages a pool has room for when it is first written to


class Pool:
    """Pages of `size` tokens. `counts[page]` says how many hold it; what nobody holds is free again.

    There is never room for more than `most`; who takes pages sees to it that these are enough.

    A layer keeps one or more tensors (heads, pages, size, width): page p of layer l is `[:, p]` of each. Pages that lie
    side by side are one stretch of memory for each head.
    """

    def __init__(self, size: int, most: int | None = None) -> None:
        self.size, self.most = size, most
        self.counts: list[int] = []
        self._free: list[int] = []
        self._layers: dict[int, tuple[Tensor, ...]] = {}

    @property
    def used(self) -> int:
        """How many pages are held."""
        return len(self.counts) - len(self._free)

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for rows in self._layers.values() for x in rows)

    def take(self) -> int:
        """A page that nobody held: the first free one, so that pages taken one after another lie side by side."""
        if not self._free:
            self._free.append(len(self.counts))
            self.counts.append(0)
        page = heapq.heappop(self._free)
        self.counts[page] = 1
        return page

    def hold(self, page: int) -> None:
        """One more holds the page."""
        self.counts[page] += 1

    def release(self, page: int) -> None:
        """One less holds the page."""
        self.counts[page] -= 1
        if not self.counts[page]:
            heapq.heappush(self._free, page)

    def copy(self, page: int) -> int:
        """A new page with the same tokens, of every layer."""
        new = self.take()
        for layer, rows in self._layers.items():
            for there in self._roomy(layer, rows):
                there[:, new] = there[:, page]
        return new

    def write(self, layer: int, slots: Tensor, rows: tuple[Tensor, ...]) -> None:
        """Rows (heads, tokens, width) to these places: token t of page p is place p · size + t."""
        if layer not in self._layers:
            self._layers[layer] = tuple(x.new_empty((x.shape[0], 0, self.size, x.shape[-1])) for x in rows)
        for there, new in zip(self._roomy(layer, self._layers[layer]), rows, strict=True):
            there.flatten(1, 2).index_copy_(1, slots, new)

    def read(self, layer: int, pages: list[int]) -> tuple[Tensor, ...]:
        """The tokens of these pages, (heads, pages · size, width); a view where they lie side by side."""
        found = self._roomy(layer, self._layers[layer])
        if pages == list(range(pages[0], pages[0] + len(pages))):
            return tuple(x[:, pages[0] : pages[0] + len(pages)].flatten(1, 2) for x in found)
        order = torch.tensor(pages, device=found[0].device)
        return tuple(x.index_select(1, order).flatten(1, 2) for x in found)

    def pick(self, layer: int, slots: Tensor) -> tuple[Tensor, ...]:
        """The tokens at these places, (heads, *slots' shape, width)."""
        found = self._roomy(layer, self._layers[layer])
        flat = slots.flatten().to(found[0].device)
        return tuple(x.flatten(1, 2).index_select(1, flat).unflatten(1, tuple(slots.shape)) for x in found)

    def kinds(self, layer: int) -> tuple[str, ...] | None:
        """What a layer keeps of a token, in words: one for each tensor; None before anything was written."""
        known = self._layers.get(layer)
        return None if known is None else tuple(kind(x) for x in known)

    def _roomy(self, layer: int, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """A layer's tensors with room for every page there is."""
        room = rows[0].shape[1]
        if room < len(self.counts):
            wanted = max(LEAST, len(self.counts), 2 * room)
            wanted = wanted if self.most is None else min(wanted, self.most)
            grown = tuple(x.new_empty((x.shape[0], wanted, *x.shape[2:])) for x in rows)
            for old, new in zip(rows, grown, strict=True):
                new[:, :room] = old
            self._layers[layer] = grown
        return self._layers[layer]


def kind(rows: Tensor) -> str:
    """Heads, width and dtype of rows (heads, ..., width)."""
    return f"{rows.shape[0]} heads of {rows.shape[-1]} in {rows.dtype}".replace("torch.", "")
