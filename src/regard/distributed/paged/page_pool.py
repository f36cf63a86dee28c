"""Page pool: reference-counted pages, each with room for some tokens of every layer."""

import heapq

import torch
from torch import Tensor

MIN_POOL_PAGES = 16  # initial capacity of a layer's tensors


class PagePool:
    """Pages of `page_size` tokens; `ref_counts[page]` is the number of sequences that use a page.

    A layer has one or more tensors (heads, pages, page_size, dim): page p is `[:, p]` of each. Adjacent pages are
    contiguous in memory for each head. The tensors never have room for more than `max_pages` pages, and callers must
    not allocate more.
    """

    def __init__(self, page_size: int, max_pages: int | None = None) -> None:
        self.page_size, self.max_pages = page_size, max_pages
        self.ref_counts: list[int] = []
        self._free_pages: list[int] = []
        self._layers: dict[int, tuple[Tensor, ...]] = {}

    @property
    def num_used_pages(self) -> int:
        return len(self.ref_counts) - len(self._free_pages)

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for tensors in self._layers.values() for x in tensors)

    def allocate(self) -> int:
        """Return a free page with reference count 1: the lowest one, so that consecutive allocations are adjacent."""
        if not self._free_pages:
            self._free_pages.append(len(self.ref_counts))
            self.ref_counts.append(0)
        page = heapq.heappop(self._free_pages)
        self.ref_counts[page] = 1
        return page

    def retain(self, page: int) -> None:
        """Increment the reference count of a page."""
        self.ref_counts[page] += 1

    def release(self, page: int) -> None:
        """Decrement the reference count of a page, and free the page if it becomes 0."""
        self.ref_counts[page] -= 1
        if not self.ref_counts[page]:
            heapq.heappush(self._free_pages, page)

    def copy(self, page: int) -> int:
        """Allocate a page, copy the tokens of all layers into it, and return it."""
        new_page = self.allocate()
        for layer, tensors in self._layers.items():
            for x in self._ensure_capacity(layer, tensors):
                x[:, new_page] = x[:, page]
        return new_page

    def write(self, layer: int, slots: Tensor, rows: tuple[Tensor, ...]) -> None:
        """Write rows (heads, tokens, dim) to slots (tokens,); token t of page p has slot p * page_size + t."""
        if layer not in self._layers:
            self._layers[layer] = tuple(x.new_empty((x.shape[0], 0, self.page_size, x.shape[-1])) for x in rows)
        for x, new_rows in zip(self._ensure_capacity(layer, self._layers[layer]), rows, strict=True):
            x.flatten(1, 2).index_copy_(1, slots, new_rows)

    def read(self, layer: int, pages: list[int]) -> tuple[Tensor, ...]:
        """Return the tokens of some pages, (heads, pages * page_size, dim); a view if the pages are adjacent."""
        tensors = self._ensure_capacity(layer, self._layers[layer])
        if pages == list(range(pages[0], pages[0] + len(pages))):
            return tuple(x[:, pages[0] : pages[0] + len(pages)].flatten(1, 2) for x in tensors)
        index = torch.tensor(pages, device=tensors[0].device)
        return tuple(x.index_select(1, index).flatten(1, 2) for x in tensors)

    def read_slots(self, layer: int, slots: Tensor) -> tuple[Tensor, ...]:
        """Return the tokens at some slots, (heads, *slots.shape, dim)."""
        tensors = self._ensure_capacity(layer, self._layers[layer])
        index = slots.flatten().to(tensors[0].device)
        return tuple(x.flatten(1, 2).index_select(1, index).unflatten(1, tuple(slots.shape)) for x in tensors)

    def row_formats(self, layer: int) -> tuple[str, ...] | None:
        """Return the format of each tensor of a layer as text; None before the first write."""
        tensors = self._layers.get(layer)
        return None if tensors is None else tuple(row_format(x) for x in tensors)

    def _ensure_capacity(self, layer: int, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the layer's tensors, enlarged if they have no room for some allocated page."""
        capacity = tensors[0].shape[1]
        if capacity < len(self.ref_counts):
            new_capacity = max(MIN_POOL_PAGES, len(self.ref_counts), 2 * capacity)
            new_capacity = new_capacity if self.max_pages is None else min(new_capacity, self.max_pages)
            enlarged = tuple(x.new_empty((x.shape[0], new_capacity, *x.shape[2:])) for x in tensors)
            for old, new in zip(tensors, enlarged, strict=True):
                new[:, :capacity] = old
            self._layers[layer] = enlarged
        return self._layers[layer]


def row_format(x: Tensor) -> str:
    """Return heads, dim and dtype of a tensor (heads, ..., dim) as text."""
    return f"{x.shape[0]} heads of dim {x.shape[-1]} in {x.dtype}".replace("torch.", "")
