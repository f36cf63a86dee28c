"""Wrong arguments of paged caches, of parts over ranks and of predicted costs: refused before any work."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from regard.distributed import PagedBatch, PagedCache, attention, decode, positions, shard, unshard
from regard.distributed.cost import predicted
from regard.errors import RankError, SpecError

Q = torch.randn(1, 2, 6, 8)


@pytest.fixture
def one_rank() -> Iterator[None]:
    if dist.is_initialized():  # by a test that left its group
        dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _pages() -> PagedCache:
    pages = PagedCache(size=2)
    pages.append(0, [pages.add()], torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8))
    return pages


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: PagedCache("x"), "size must be a whole number from 1 to 1048576; got 'x'"),
        (lambda: PagedCache(most=math.nan), "most must be a whole number from 1 to 2147483647; got nan"),
        (lambda: PagedCache(evicted=3), "evicted must be a function of a sequence's number and length; got 3"),
        (lambda: _pages().length("x"), "a sequence must be a whole number; got 'x'"),
        (lambda: _pages().length_in(-1, 0), "layer must be a whole number from 0 to 100000; got -1"),
        (lambda: _pages().fork(0, 1.5), "length must be a whole number; got 1.5"),
        (lambda: _pages().crop(0, "x"), "length must be a whole number; got 'x'"),
        (lambda: _pages().append(0, 0, Q), "sequences must be a list of numbers of sequences; got 0"),
        (lambda: _pages().append(0, [0]), r"rows must be \(1 sequences, heads, n, width\); got \[\]"),
        (lambda: _pages().append(0, [0], None), "rows must be a tensor; got None"),
        (lambda: _pages().append(0, [0], Q, Q, counts=["x"]), "counts must be a whole number; got 'x'"),
        (lambda: _pages().rows("x", 0), "layer must be a whole number from 0 to 100000; got 'x'"),
        (lambda: _pages().aligned(0, [0], 2), "longest must be a whole number from 3 to 2147483647; got 2"),
        (lambda: _pages().aligned(1, [0], 2), "layer 1 must have tokens of these sequences; it has none"),
        (lambda: _pages().attention(0, [0], "x"), "q must be a tensor; got 'x'"),
        (lambda: PagedBatch(None, [0]), "pages must be a PagedCache; got None"),
        (lambda: PagedBatch(_pages(), []), "a batch must have at least one sequence; got none"),
        (lambda: PagedBatch(_pages(), [0]).crop("x"), "length must be a whole number; got 'x'"),
        (
            lambda: PagedBatch(_pages(), [0]).reorder(torch.tensor([1])),
            "order must hold numbers from 0 to 0; got 1 to 1",
        ),
        (lambda: predicted("x", 8, 4, heads=2, ranks=2), "method must be one of 'ring', 'gather', 'ulysses'; got 'x'"),
        (lambda: predicted("ring", 8, 4, heads=2, ranks=1.5), "ranks must be a whole number of at least 1; got 1.5"),
        (lambda: predicted("ring", 8, 4, heads=2, ranks=2).seconds(0, 1.0), "flops must be a finite number above 0"),
    ],
)
def test_wrong_calls_of_pages_and_costs_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: attention("x", Q, Q), r"q must be a tensor \(..., rows, width\) of 2 to 4 dimensions; got 'x'"),
        (lambda: attention(Q, Q, None), r"v must be a tensor \(..., rows, width\) of 2 to 4 dimensions; got None"),
        (lambda: attention(Q, Q, Q, method=[]), "method must be one of 'ring', 'ulysses', 'gather'; got list of 0"),
        (lambda: attention(Q, Q, Q, layout=None), "layout must be one of 'contiguous', 'zigzag', 'striped'; got None"),
        (lambda: attention(Q, Q, Q, engine=3), "engine must be a string; got 3"),
        (lambda: decode(Q, Q[0, 0, 0], Q), r"k must be a tensor .* got a tensor of shape \(8,\)"),
        (lambda: positions(-1), "n must be a whole number from 0 to 67108864; got -1"),
        (lambda: shard("x"), "x must be a tensor or an array of numbers; got str"),
        (lambda: shard(Q, dim=4), "dim must be a whole number from -4 to 3; got 4"),
        (lambda: unshard(torch.tensor(1.0)), r"must have a dimension of tokens; got a tensor of shape \(\)"),
    ],
)
def test_wrong_calls_over_ranks_are_refused(one_rank: None, call: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()


@pytest.mark.parametrize("group", ["x", -1, True, []])
def test_a_group_that_is_none_is_refused(one_rank: None, group: Any) -> None:
    with pytest.raises(RankError, match="group must be a process group, a device mesh of one dimension or None; got"):
        attention(Q, Q, Q, group=group)
