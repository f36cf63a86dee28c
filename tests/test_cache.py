"""The cache: entries that depend on tensors are found again for equal bits only; sizes are bounded."""

import functools
import gc
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import mask, score
from regard.cache import BoundedCache, cache_info, clear_caches, memoize, retained_bytes


class Counter:
    """Counts how often a value is created."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self) -> int:
        self.num_calls += 1
        return self.num_calls


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([1.0, -0.0, torch.nan]),
        torch.tensor([True, False]),
        torch.tensor([3, 4]),
        torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        torch.arange(12.0).view(3, 4).mT,
        (torch.arange(24) % 3 == 0)[9:17],
        torch.zeros(0),
        torch.tensor(3.0),
    ],
    ids=lambda x: f"{x.dtype} {tuple(x.shape)}",
)
def test_equal_tensors_hit_the_cache(values: Tensor) -> None:
    cache, make = BoundedCache[int]("test"), Counter()

    assert [cache.get_or_create("key", make, [values]) for _ in range(2)] == [1, 1]


def test_copied_tensor_hits_the_cache() -> None:
    cache, make = BoundedCache[int]("test"), Counter()
    values = torch.arange(12.0)

    assert [cache.get_or_create("key", make, [x]) for x in (values, values.clone())] == [1, 1]


def test_tensor_changed_in_place_misses_the_cache() -> None:
    cache, make = BoundedCache[int]("test"), Counter()
    values = torch.tensor([1.0, 2.0])
    array = values.numpy()
    cache.get_or_create("key", make, [values])

    array[1] = 3.0  # torch does not detect this change

    assert cache.get_or_create("key", make, [values]) == 2


@pytest.mark.parametrize(
    "other",
    [torch.tensor([-0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0]), torch.tensor([[0.0, 1.0]]), torch.tensor([0, 1])],
    ids=["sign of zero", "longer", "more dimensions", "integers"],
)
def test_other_tensors_miss_the_cache(other: Tensor) -> None:
    cache, make = BoundedCache[int]("test"), Counter()
    cache.get_or_create("key", make, [torch.tensor([0.0, 1.0])])

    assert cache.get_or_create("key", make, [other]) == 2


def test_another_key_misses_the_cache() -> None:
    cache, make = BoundedCache[int]("test"), Counter()
    values = torch.ones(3)

    assert cache.get_or_create("one", make, [values]) == 1 and cache.get_or_create("other", make, [values]) == 2


def test_least_recently_used_copies_are_removed() -> None:
    cache, make = BoundedCache[int]("test", max_bytes=10_000), Counter()
    small = [torch.full((1000,), float(n)) for n in range(3)]  # 4,000 bytes each: two fit

    for n in (0, 1, 0, 2):  # entry 1 is the least recently used
        cache.get_or_create(n, make, [small[n]])

    assert make.num_calls == 3
    assert [cache.get_or_create(n, make, [small[n]]) for n in (0, 2)] == [1, 3]
    assert cache.get_or_create(1, make, [small[1]]) == 4


def test_tensor_larger_than_the_cache_is_not_copied() -> None:
    cache, make = BoundedCache[int]("test", max_bytes=100), Counter()
    large = torch.zeros(26)

    assert [cache.get_or_create("key", make, [large]) for _ in range(2)] == [1, 2]


def test_values_count_towards_the_size() -> None:
    cache = BoundedCache[Tensor]("test", max_bytes=10_000)
    for n in range(40):
        cache.get_or_create(n, lambda: torch.zeros(500), [torch.zeros(2)])

    assert 2_000 < cache.num_bytes <= 10_000
    assert cache.get(39, [torch.zeros(2)]) is not None and cache.get(0, [torch.zeros(2)]) is None


def test_value_larger_than_the_cache_is_not_stored() -> None:
    cache = BoundedCache[Tensor]("test", max_bytes=1_000)
    cache.get_or_create("key", lambda: torch.zeros(500), [torch.zeros(2)])

    assert cache.get("key", [torch.zeros(2)]) is None and cache.num_bytes == 0


def test_replaced_entry_counts_once() -> None:
    cache = BoundedCache[bytes]("test", max_bytes=1_000)
    for _ in range(50):
        cache.put("key", bytes(300))

    assert cache.get("key") == bytes(300) and 300 <= cache.num_bytes < 600


def test_retained_bytes_count_each_storage_once() -> None:
    whole, array = torch.zeros(1000), np.zeros(1000, np.int64)
    value = {"views": [whole[:2], whole[5:]], "arrays": (array[:3], array), "text": "x" * 500}

    assert 12_500 <= retained_bytes(value) < 14_000


def live_bytes() -> int:
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of torch's modules warn when they are inspected
        storages = [t.untyped_storage() for t in gc.get_objects() if type(t) is Tensor]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize(
    ("keys", "heads"), [(40_000, 16), pytest.param(200_000, 32, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_decoding_with_alibi_retains_little_memory(keys: int, heads: int) -> None:
    clear_caches()
    k = torch.randn(1, heads, keys + 64, 4)
    before = live_bytes()
    for step in range(64):
        q, past = torch.randn(1, heads, 1, 4), k[:, :, : keys + step]
        regard.attention(q, past, past, score=score.alibi())

    assert live_bytes() - before < 2**26


def test_clear_caches_empties_every_cache() -> None:
    q = torch.randn(1, 2, 70, 8)
    for backend in ("native", "tiled"):
        regard.attention(q, q, q, mask=mask.causal() & mask.padding([60]), score=score.alibi(), backend=backend)
    regard.attention(q, q, q, mask=mask.causal())
    assert len(cache_info()) > 5

    regard.clear_caches()

    assert cache_info() == []


def test_no_function_uses_lru_cache() -> None:
    modules = {name: vars(module) for name, module in sys.modules.items() if name.startswith("regard")}
    lru_cached = [
        f"{module}.{name}"
        for module, names in modules.items()
        for name, x in names.items()
        if isinstance(x, functools._lru_cache_wrapper)
    ]

    assert lru_cached == []


def test_every_cache_is_bounded() -> None:
    regard.attention(*torch.randn(3, 1, 2, 9, 8), mask=mask.causal())

    assert all(0 < x.num_entries <= x.max_entries and 0 <= x.num_bytes <= x.max_bytes for x in cache_info())


def test_debug_report_lists_the_caches() -> None:
    shape = (2, 64, 8)
    plan = regard.explain(shape, shape, shape, mask=mask.causal())

    assert "mask coverage: " in plan.report(debug=True)
    assert "mask coverage: " not in plan.report()


def test_memoize_computes_each_result_once_even_if_it_is_none() -> None:
    calls = []

    @memoize(max_entries=2)
    def square(x: int) -> int | None:
        calls.append(x)
        return x * x if x else None

    assert [square(x) for x in (0, 0, 3, 3)] == [None, None, 9, 9]
    assert calls == [0, 3]
    square(4)  # evicts 0, which was used least recently
    square(3)
    square(0)
    assert calls == [0, 3, 4, 0]


def test_an_error_is_not_cached() -> None:
    cache, calls = BoundedCache[int]("test"), []

    def fail() -> int:
        calls.append(1)
        raise ValueError("no value")

    for _ in range(2):
        with pytest.raises(ValueError, match="no value"):
            cache.get_or_create("key", fail)
    assert len(calls) == 2 and "key" not in cache


def test_threads_wait_for_one_computation_of_a_key() -> None:
    cache, calls, barrier = BoundedCache[int]("test"), [], threading.Barrier(4)
    values = []

    def create() -> int:
        calls.append(1)
        return 7

    def run() -> None:
        barrier.wait()
        values.append(cache.get_or_create("key", create))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [7] * 4 and len(calls) == 1


def test_entries_can_be_discarded_by_key() -> None:
    cache = BoundedCache[int]("test")
    for n in range(4):
        cache.put(("model", n % 2, n), n)

    cache.discard_where(lambda key: key[1] == 0)

    assert cache.num_entries == 2 and cache.get(("model", 1, 3)) == 3


def test_another_key_does_not_wait_for_a_computation() -> None:
    cache, release = BoundedCache[bool | int]("test"), threading.Event()
    slow = threading.Thread(target=lambda: cache.get_or_create("slow", lambda: release.wait(10)))
    slow.start()
    assert cache.get_or_create("quick", lambda: 3) == 3
    assert slow.is_alive()
    release.set()
    slow.join()


def test_least_recently_used_entry_is_removed_first() -> None:
    cache = BoundedCache[int]("test", max_bytes=10, sizeof=lambda _: 4)
    for key in "abac":
        cache.get_or_create(key, lambda: 0)
    assert [key in cache for key in "abc"] == [True, False, True]
    assert cache.num_bytes == 8
