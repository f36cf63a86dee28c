"""What was computed once and may be asked for again: the latest of it, up to a number of bytes."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Kept:
    """Values by key, made when they are first asked for. Threads that ask for one key at a time wait for one making;
    other keys do not wait. What was not asked for longest goes first where `most` bytes are not enough."""

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._making: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return cast(T, self._values[key][0])
            lock = self._making.setdefault(key, threading.Lock())
        with lock:
            with self._lock:
                if key in self._values:
                    return cast(T, self._values[key][0])
            made = make()
            with self._lock:
                self._making.pop(key, None)
                self._values[key] = (made, size(made))
                self.used += self._values[key][1]
                while self.used > self.most and len(self._values) > 1:
                    self.used -= self._values.popitem(last=False)[1][1]
        return made

    def has(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._values

    def drop(self, holds: Callable[[Any], bool]) -> None:
        """Forgets the keys for which it holds."""
        with self._lock:
            for key in [key for key in self._values if holds(key)]:
                self.used -= self._values.pop(key)[1]
