"""What was made from tensors lately, kept as long as the same numbers come again.

A mask is often used many times: by every layer of a model, forward and backward. What is made of it is found again by
comparing the numbers themselves with a copy, so a tensor that was changed in place is never mistaken.

Caches are bounded by the bytes that they keep alive: the copies of inputs and the results. `clear_caches` empties all.
"""

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import _lru_cache_wrapper
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from regard.spec.term import Term

Made = TypeVar("Made")

BYTES = 2**24  # of copies and results in one cache; larger ones are made anew each time
MAX_ENTRIES = 64
OBJECT_BYTES = 64  # of a Python object, about


def clear_caches() -> None:
    """Empty every cache of regard: plans, prepared masks and rules, compiled kernels and tables.

    Results do not change; the next calls take longer. Memory that the caches held returns to torch and Python.

    >>> import regard
    >>> regard.clear_caches()
    """
    for name, module in list(sys.modules.items()):
        if name == "regard" or name.startswith("regard."):
            for value in list(vars(module).values()):
                if isinstance(value, Bounded | Recent):
                    value.clear()
                elif isinstance(value, _lru_cache_wrapper):
                    value.cache_clear()


class Bounded(Generic[Made]):
    """Values by a key, up to a number of bytes in all; the oldest go first."""

    def __init__(self, max_bytes: int = BYTES) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Hashable, tuple[Made, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Made | None:
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def put(self, key: Hashable, value: Made) -> None:
        """Keeps a value, unless it is larger than the whole cache."""
        size = retained_bytes(value)
        with self._lock:
            self._remove(key)
            if size > self._max_bytes:
                return
            self._entries[key] = (value, size)
            self._bytes += size
            while self._bytes > self._max_bytes or len(self._entries) > MAX_ENTRIES:
                self._remove(next(iter(self._entries)))

    def use(self, key: Hashable) -> None:
        """Makes an entry the youngest."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    @property
    def bytes_kept(self) -> int:
        return self._bytes

    def _remove(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        self._bytes -= 0 if entry is None else entry[1]


def retained_bytes(value: Any) -> int:
    """About how many bytes a value keeps alive: storages of tensors, arrays and the objects around them.

    Terms count as one object each, since they are shared by everything that names the same formula.
    """
    total, seen, stack = 0, set[int](), [value]
    while stack:
        x = stack.pop()
        memory = x.untyped_storage() if isinstance(x, Tensor) else _owner(x) if isinstance(x, np.ndarray) else x
        mark = memory.data_ptr() if isinstance(x, Tensor) else id(memory)
        if x is None or mark in seen:
            continue
        seen.add(mark)
        total += OBJECT_BYTES + (memory.nbytes() if isinstance(x, Tensor) else getattr(memory, "nbytes", 0))
        if isinstance(x, (bytes, bytearray, str)):
            total += len(x)
        elif isinstance(x, (list, tuple, set, frozenset)):
            stack.extend(x)
        elif isinstance(x, Mapping):
            stack.extend([*x, *x.values()])
        elif not isinstance(x, (Tensor, np.ndarray, Term, type)):
            stack.extend(getattr(x, "__dict__", {}).values())
    return total


def _owner(x: np.ndarray[Any, Any]) -> Any:
    """The array whose memory a view shows."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


class Recent(Generic[Made]):
    """Results by a key and the contents of tensors; the least recently used go first."""

    def __init__(self, bytes_kept: int = BYTES) -> None:
        self._max_bytes = bytes_kept
        self._known: Bounded[tuple[list[Tensor], Made]] = Bounded(bytes_kept)

    def get(self, key: Hashable, tensors: Sequence[Tensor], make: Callable[[], Made]) -> Made:
        """What `make` gives for this key and tensors of this content; `make` must depend on nothing else."""
        found = self.find(key, tensors)
        if found is None:
            found = make()
            self.keep(key, tensors, found)
        return found

    def find(self, key: Hashable, tensors: Sequence[Tensor]) -> Made | None:
        words, key = _recognised(key, tensors)
        entry = self._known.get(key)
        if entry is None or not all(_same(a, w) for a, w in zip(entry[0], words, strict=True)):
            return None
        self._known.use(key)
        return entry[1]

    def keep(self, key: Hashable, tensors: Sequence[Tensor], made: Made) -> None:
        if sum(t.nbytes for t in tensors) > self._max_bytes:
            return
        words, key = _recognised(key, tensors)
        self._known.put(key, ([w.clone() for w in words], made))

    def clear(self) -> None:
        self._known.clear()

    @property
    def bytes_kept(self) -> int:
        return self._known.bytes_kept


def _recognised(key: Hashable, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Hashable]:
    """The tensors' numbers, and a key that tells tensors apart which cannot be equal."""
    words = [_words(t) for t in tensors]
    return words, (key, *((t.shape, t.dtype, t.device, w.dtype) for t, w in zip(tensors, words, strict=True)))


def _same(a: Tensor, b: Tensor) -> bool:
    """torch takes twice as long as NumPy to compare."""
    return np.array_equal(a.numpy(), b.numpy()) if a.is_cpu else torch.equal(a, b)


def _words(x: Tensor) -> Tensor:
    """The same memory as whole numbers, 64 bits each if that goes: equal only where x is the same. As floats 0.0 would
    equal -0.0 and NaN not even itself, and booleans are compared one by one."""
    x = x.detach()
    if x.is_contiguous() and x.nbytes % 8 == 0 and x.storage_offset() * x.element_size() % 8 == 0:
        return x.view(-1).view(torch.int64)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.view(whole[x.element_size()]) if x.is_floating_point() else x
