"""What was made from tensors lately, kept as long as the same numbers come again.

A mask is often used many times: by every layer of a model, forward and backward. What is made of it is found again by
comparing the numbers themselves with a copy, so a tensor that was changed in place is never mistaken.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

Made = TypeVar("Made")

BYTES = 2**24  # of copies, in all; what is larger is made anew each time


class Recent(Generic[Made]):
    """Results by a key and the contents of tensors; the least recently used go first."""

    def __init__(self, bytes_kept: int = BYTES) -> None:
        self._bytes_kept = bytes_kept
        self._known: OrderedDict[Hashable, tuple[list[Tensor], Made]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, tensors: Sequence[Tensor], make: Callable[[], Made]) -> Made:
        """What `make` gives for this key and tensors of this content; `make` must depend on nothing else."""
        found = self.find(key, tensors)
        if found is None:
            found = make()
            self.keep(key, tensors, found)
        return found

    def find(self, key: Hashable, tensors: Sequence[Tensor]) -> Made | None:
        words, key = _recognised(key, tensors)
        with self._lock:
            found = self._known.get(key)
        if found is None or not all(_same(a, w) for a, w in zip(found[0], words, strict=True)):
            return None
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
        return found[1]

    def keep(self, key: Hashable, tensors: Sequence[Tensor], made: Made) -> None:
        if sum(t.nbytes for t in tensors) > self._bytes_kept:
            return
        words, key = _recognised(key, tensors)
        with self._lock:
            self._known[key] = ([w.clone() for w in words], made)
            self._known.move_to_end(key)
            while self._size() > self._bytes_kept or len(self._known) > 64:
                self._known.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._known.clear()

    def _size(self) -> int:
        return sum(t.nbytes for copies, _ in self._known.values() for t in copies)


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
