"""The LRU cache that all of regard uses: thread-safe, and bounded in entries and bytes.

An entry may also depend on the contents of tensors. Such an entry keeps a copy of them and is found again only for
equal bits, so a tensor that was changed in place never matches an old entry.
"""

import functools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

Value = TypeVar("Value")
P = ParamSpec("P")

MAX_CACHED_BYTES = 2**24  # of one cache; a larger value is computed each time
MAX_ENTRIES = 64
BYTES_PER_OBJECT = 64  # approximate size of a Python object
BYTES_PER_SMALL_RESULT = 1024  # approximate size of an entry of `memoize`

_MISSING: Any = object()
_caches: "weakref.WeakSet[BoundedCache[Any]]" = weakref.WeakSet()


class CacheInfo(NamedTuple):
    """The size of one cache."""

    name: str
    num_entries: int
    max_entries: int
    num_bytes: int
    max_bytes: int


def clear_caches() -> None:
    """Empty every cache of regard: plans, compiled masks and score modifiers, kernels and tables.

    Results do not change; the next calls take longer. The memory of the caches returns to torch and Python.

    >>> import regard
    >>> regard.clear_caches()
    """
    for cache in list(_caches):
        cache.clear()


def cache_info() -> list[CacheInfo]:
    """The sizes of all caches that hold something, by name."""
    return sorted(cache.info() for cache in list(_caches) if cache.num_entries)


class BoundedCache(Generic[Value]):
    """Values by key. The least recently used entries are removed when the cache exceeds its bounds.

    Threads that need the same missing key wait for one computation; other keys do not wait.
    """

    def __init__(
        self,
        name: str,
        *,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_CACHED_BYTES,
        sizeof: Callable[[Value], int] | None = None,
    ) -> None:
        """`sizeof` returns the bytes that a value keeps alive; the default is `retained_bytes`."""
        self.name, self.max_entries, self.max_bytes = name, max_entries, max_bytes
        self._sizeof = sizeof or retained_bytes
        self._entries: OrderedDict[Hashable, tuple[Value, list[Tensor], int]] = OrderedDict()
        self._newest: tuple[Value, list[Tensor], int] | None = None
        self._num_bytes = 0
        self._lock = threading.Lock()
        self._creation_locks: dict[Hashable, threading.RLock] = {}
        _caches.add(self)

    def get(self, key: Hashable, tensors: Sequence[Tensor] = ()) -> Value | None:
        """The value of `key` and tensors with these contents, or None."""
        if tensors:
            value = self._lookup(key, tensors)
            return None if value is _MISSING else value
        with self._lock:  # inlined from `_lookup`: the fast path of small calls spends its time here
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._touch(key, entry)
            return entry[0]

    def put(self, key: Hashable, value: Value, tensors: Sequence[Tensor] = ()) -> None:
        """Store a value with copies of the tensors, unless they exceed the whole cache."""
        size = self._sizeof(value) + sum(BYTES_PER_OBJECT + t.nbytes for t in tensors)
        copies: list[Tensor] = []
        if tensors:
            words, key = _content_key(key, tensors)
            copies = [w.clone() for w in words] if size <= self.max_bytes else []
        with self._lock:
            self._remove(key)
            if size > self.max_bytes:
                return
            self._newest = self._entries[key] = (value, copies, size)
            self._num_bytes += size
            while self._num_bytes > self.max_bytes or len(self._entries) > self.max_entries:
                self._remove(next(iter(self._entries)))

    def get_or_create(self, key: Hashable, create: Callable[[], Value], tensors: Sequence[Tensor] = ()) -> Value:
        """The value of `key` and tensors with these contents; `create` must depend on nothing else."""
        value: Value = self._lookup(key, tensors)
        if value is not _MISSING:
            return value
        with self._lock:
            creation = self._creation_locks.setdefault(key, threading.RLock())
        with creation:
            value = self._lookup(key, tensors)
            if value is _MISSING:
                try:
                    value = create()
                    self.put(key, value, tensors)
                finally:
                    with self._lock:
                        self._creation_locks.pop(key, None)
        return value

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._entries

    def discard_where(self, predicate: Callable[[Any], bool]) -> None:
        """Remove the entries whose key satisfies `predicate`."""
        with self._lock:
            for key in [key for key in self._entries if predicate(key)]:
                self._remove(key)

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
            self._newest = None
            self._num_bytes = 0

    @property
    def num_entries(self) -> int:
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        """The bytes that the entries keep alive: values and copies of tensors."""
        return self._num_bytes

    def info(self) -> CacheInfo:
        return CacheInfo(self.name, self.num_entries, self.max_entries, self.num_bytes, self.max_bytes)

    def _lookup(self, key: Hashable, tensors: Sequence[Tensor]) -> Any:
        words: list[Tensor] = []
        if tensors:
            words, key = _content_key(key, tensors)
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return _MISSING
            if not words:
                self._touch(key, entry)
                return entry[0]
        if not all(_equal_bits(a, b) for a, b in zip(entry[1], words, strict=True)):
            return _MISSING
        with self._lock:
            if key in self._entries:
                self._touch(key, entry)
        return entry[0]

    def _touch(self, key: Hashable, entry: tuple[Value, list[Tensor], int]) -> None:
        if entry is not self._newest:  # hashing the key again takes longer than this check
            self._entries.move_to_end(key)
            self._newest = entry

    def _remove(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        self._num_bytes -= 0 if entry is None else entry[2]


def memoize(
    max_entries: int = 256,
    *,
    max_bytes: int = MAX_CACHED_BYTES,
    sizeof: Callable[[Any], int] | None = None,
) -> Callable[[Callable[P, Value]], Callable[P, Value]]:
    """Decorate a function of hashable positional arguments, to compute each result once.

    `sizeof` returns the bytes of a result; by default results count as small.
    """

    def decorate(function: Callable[P, Value]) -> Callable[P, Value]:
        name = f"{function.__module__}.{function.__qualname__}".removeprefix("regard.")
        cache: BoundedCache[Value] = BoundedCache(
            name, max_entries=max_entries, max_bytes=max_bytes, sizeof=sizeof or _small_result_size
        )

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Value:
            if kwargs or torch.compiler.is_compiling():  # a graph cannot contain locks
                return function(*args, **kwargs)
            return cache.get_or_create(args, lambda: function(*args, **kwargs))

        return call

    return decorate


def _small_result_size(_: object) -> int:
    return BYTES_PER_SMALL_RESULT


def retained_bytes(value: Any) -> int:
    """The bytes that a value keeps alive: storages of tensors, arrays and the objects around them.

    Expressions count as one object each, since equal expressions are shared.
    """
    total, visited, stack = 0, set[int](), [value]
    while stack:
        x = stack.pop()
        memory: Any = x
        if isinstance(x, Tensor):
            memory = x.untyped_storage()
        elif isinstance(x, np.ndarray):
            memory = _base_array(x)
        identity = memory.data_ptr() if isinstance(x, Tensor) else id(memory)
        if x is None or identity in visited:
            continue
        visited.add(identity)
        total += BYTES_PER_OBJECT + (memory.nbytes() if isinstance(x, Tensor) else getattr(memory, "nbytes", 0))
        if isinstance(x, (bytes, bytearray, str)):
            total += len(x)
        elif isinstance(x, (list, tuple, set, frozenset)):
            stack.extend(x)
        elif isinstance(x, Mapping):
            stack.extend([*x, *x.values()])
        elif not isinstance(x, (Tensor, np.ndarray, type)):
            stack.extend(getattr(x, "__dict__", {}).values())
    return total


def _base_array(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array that owns the memory of a view."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def _content_key(key: Hashable, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Hashable]:
    """The tensors as integers, and the key extended by their shapes, dtypes and devices."""
    words = [_as_integers(t) for t in tensors]
    return words, (key, *((t.shape, t.dtype, t.device, w.dtype) for t, w in zip(tensors, words, strict=True)))


def _equal_bits(a: Tensor, b: Tensor) -> bool:
    # NumPy compares twice as fast as torch
    return np.array_equal(a.numpy(), b.numpy()) if a.is_cpu else torch.equal(a, b)


def _as_integers(x: Tensor) -> Tensor:
    """The memory of x as integers, 64 bits each if possible.

    Integers are equal only if the bits are: 0.0 differs from -0.0, and a NaN equals itself.
    """
    x = x.detach()
    if x.is_contiguous() and x.nbytes % 8 == 0 and x.storage_offset() * x.element_size() % 8 == 0:
        return x.view(-1).view(torch.int64)
    integer_dtypes = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.view(integer_dtypes[x.element_size()]) if x.is_floating_point() else x
