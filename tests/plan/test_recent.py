"""What is kept for tensors is found again for the same numbers, and for no others."""

import functools
import gc
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import mask, score
from regard.plan.recent import Bounded, Recent, clear_caches, retained_bytes


class Maker:
    """Counts how often something is made."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> int:
        self.made += 1
        return self.made


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
def test_the_same_numbers_find_what_was_made(values: Tensor) -> None:
    recent, make = Recent[int](), Maker()

    assert [recent.get("key", [values], make) for _ in range(2)] == [1, 1]


def test_a_copy_finds_what_was_made() -> None:
    recent, make = Recent[int](), Maker()
    values = torch.arange(12.0)

    assert [recent.get("key", [x], make) for x in (values, values.clone())] == [1, 1]


def test_a_tensor_changed_in_place_is_not_mistaken() -> None:
    recent, make = Recent[int](), Maker()
    values = torch.tensor([1.0, 2.0])
    behind = values.numpy()
    recent.get("key", [values], make)

    behind[1] = 3.0  # torch does not notice

    assert recent.get("key", [values], make) == 2


@pytest.mark.parametrize(
    "other",
    [torch.tensor([-0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0]), torch.tensor([[0.0, 1.0]]), torch.tensor([0, 1])],
    ids=["sign of zero", "longer", "more dimensions", "whole numbers"],
)
def test_other_numbers_are_made_anew(other: Tensor) -> None:
    recent, make = Recent[int](), Maker()
    recent.get("key", [torch.tensor([0.0, 1.0])], make)

    assert recent.get("key", [other], make) == 2


def test_another_key_is_made_anew() -> None:
    recent, make = Recent[int](), Maker()
    values = torch.ones(3)

    assert recent.get("one", [values], make) == 1 and recent.get("other", [values], make) == 2


def test_copies_are_few_and_the_oldest_go_first() -> None:
    recent, make = Recent[int](bytes_kept=10_000), Maker()
    small = [torch.full((1000,), float(n)) for n in range(3)]  # 4,000 bytes each: two fit

    for n in (0, 1, 0, 2):  # number 1 is the one not used for longest
        recent.get(n, [small[n]], make)

    assert make.made == 3
    assert [recent.get(n, [small[n]], make) for n in (0, 2)] == [1, 3]
    assert recent.get(1, [small[1]], make) == 4


def test_what_is_large_is_not_copied() -> None:
    recent, make = Recent[int](bytes_kept=100), Maker()
    large = torch.zeros(26)

    assert [recent.get("key", [large], make) for _ in range(2)] == [1, 2]


def test_results_count_as_well_as_copies() -> None:
    recent = Recent[Tensor](bytes_kept=10_000)
    for n in range(40):
        recent.get(n, [torch.zeros(2)], lambda: torch.zeros(500))

    assert 2_000 < recent.bytes_kept <= 10_000
    assert recent.find(39, [torch.zeros(2)]) is not None and recent.find(0, [torch.zeros(2)]) is None


def test_a_result_larger_than_the_cache_is_not_kept() -> None:
    recent = Recent[Tensor](bytes_kept=1_000)
    recent.get("key", [torch.zeros(2)], lambda: torch.zeros(500))

    assert recent.find("key", [torch.zeros(2)]) is None and recent.bytes_kept == 0


def test_an_entry_that_is_replaced_counts_once() -> None:
    bounded = Bounded[bytes](max_bytes=1_000)
    for _ in range(50):
        bounded.put("key", bytes(300))

    assert bounded.get("key") == bytes(300) and 300 <= bounded.bytes_kept < 600


def test_retained_bytes_count_whole_storages_once() -> None:
    whole, array = torch.zeros(1000), np.zeros(1000, np.int64)
    value = {"views": [whole[:2], whole[5:]], "arrays": (array[:3], array), "text": "x" * 500}

    assert 12_500 <= retained_bytes(value) < 14_000


def live_bytes() -> int:
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's modules warn when they are looked at
        storages = [t.untyped_storage() for t in gc.get_objects() if type(t) is Tensor]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize(
    ("keys", "heads"), [(40_000, 16), pytest.param(200_000, 32, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_decoding_with_a_distance_rule_retains_little(keys: int, heads: int) -> None:
    clear_caches()
    k = torch.randn(1, heads, keys + 64, 4)
    before = live_bytes()
    for step in range(64):
        q, past = torch.randn(1, heads, 1, 4), k[:, :, : keys + step]
        regard.attention(q, past, past, score=score.alibi())

    assert live_bytes() - before < 2**26


def caches() -> dict[str, object]:
    kinds = (Bounded, Recent, functools._lru_cache_wrapper)
    modules = {name: vars(module) for name, module in sys.modules.items() if name.startswith("regard.")}
    return {f"{m}.{n}": x for m, names in modules.items() for n, x in names.items() if isinstance(x, kinds)}


def entries(cache: object) -> int:
    if isinstance(cache, functools._lru_cache_wrapper):
        return cache.cache_info().currsize
    return len((cache if isinstance(cache, Bounded) else cache._known)._entries)  # type: ignore[attr-defined]


def test_clear_caches_empties_every_cache() -> None:
    q = torch.randn(1, 2, 70, 8)
    for engine in ("native", "tiled"):
        regard.attention(q, q, q, mask=mask.causal() & mask.padding([60]), score=score.alibi(), engine=engine)
    regard.attention(q, q, q, mask=mask.causal())
    assert sum(entries(cache) > 0 for cache in caches().values()) > 5

    regard.clear_caches()

    assert {name: entries(cache) for name, cache in caches().items() if entries(cache)} == {}


def test_caches_of_calls_have_a_limit() -> None:
    """Those of the explorer and of models hold files and models by name."""
    of_calls = [x for name, x in caches().items() if not name.startswith(("regard.explorer.", "regard.models."))]
    by_argument = [
        x for x in of_calls if isinstance(x, functools._lru_cache_wrapper) and x.__wrapped__.__code__.co_argcount
    ]

    assert len(by_argument) > 5
    assert [x for x in by_argument if x.cache_parameters()["maxsize"] is None] == []
