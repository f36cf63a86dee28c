"""Invalid arguments of paged caches, of attention over ranks and of predicted costs raise before any work."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from regard.distributed import PagedBatchCache, PagedCache, attention, decode, positions, shard, unshard
from regard.distributed.ranks.rank_cost import predict_rank_cost
from regard.errors import ArgumentError, RankError

Q = torch.randn(1, 2, 6, 8)


@pytest.fixture
def one_rank() -> Iterator[None]:
    if dist.is_initialized():  # by an earlier test
        dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _cache() -> PagedCache:
    cache = PagedCache(page_size=2)
    cache.append(0, [cache.add_sequence()], torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8))
    return cache


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: PagedCache("x"), "page_size must be an integer from 1 to 1048576; got 'x'"),
        (lambda: PagedCache(max_pages=math.nan), "max_pages must be an integer from 1 to 2147483647; got nan"),
        (lambda: PagedCache(on_evict=3), "on_evict must be a function of a sequence id and a length; got 3"),
        (lambda: _cache().length("x"), "sequence_id must be an integer; got 'x'"),
        (lambda: _cache().layer_length(-1, 0), "layer must be an integer from 0 to 100000; got -1"),
        (lambda: _cache().fork(0, 1.5), "length must be an integer; got 1.5"),
        (lambda: _cache().crop(0, "x"), "length must be an integer; got 'x'"),
        (lambda: _cache().append(0, 0, Q), "sequence_ids must be a list of sequence ids; got 0"),
        (lambda: _cache().append(0, [0]), r"rows must be \(1 sequences, heads, n, dim\); got \[\]"),
        (lambda: _cache().append(0, [0], None), "rows must be a tensor; got None"),
        (lambda: _cache().append(0, [0], Q, Q, counts=["x"]), "counts must be an integer; got 'x'"),
        (lambda: _cache().rows("x", 0), "layer must be an integer from 0 to 100000; got 'x'"),
        (lambda: _cache().left_padded_rows(0, [0], 2), "max_length must be an integer from 3 to 2147483647; got 2"),
        (lambda: _cache().left_padded_rows(1, [0], 2), "layer 1 must have tokens of these sequences; got none"),
        (lambda: _cache().attention(0, [0], "x"), "q must be a tensor; got 'x'"),
        (lambda: PagedBatchCache(None, [0]), "paged_cache must be a PagedCache; got None"),
        (lambda: PagedBatchCache(_cache(), []), "sequence_ids must hold at least one sequence; got none"),
        (lambda: PagedBatchCache(_cache(), [0]).crop("x"), "length must be an integer; got 'x'"),
        (
            lambda: PagedBatchCache(_cache(), [0]).reorder(torch.tensor([1])),
            "order must be from 0 to 0; got 1 to 1",
        ),
        (
            lambda: predict_rank_cost("x", 8, 4, num_heads=2, world_size=2),
            "method must be one of 'ring', 'all_gather', 'ulysses'; got 'x'",
        ),
        (
            lambda: predict_rank_cost("ring", 8, 4, num_heads=2, world_size=1.5),
            "world_size must be an integer of at least 1; got 1.5",
        ),
        (
            lambda: predict_rank_cost("ring", 8, 4, num_heads=2, world_size=2).seconds(0, 1.0),
            "flops_per_second must be a finite number above 0",
        ),
    ],
)
def test_paged_caches_and_costs_reject_invalid_arguments(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: attention("x", Q, Q), r"q must be a tensor \(..., n, head_dim\) of 2 to 4 dimensions; got 'x'"),
        (lambda: attention(Q, Q, None), r"v must be a tensor \(..., n, head_dim\) of 2 to 4 dimensions; got None"),
        (lambda: attention(Q, Q, Q, method=[]), "method must be one of 'ring', 'ulysses', 'all_gather'; got list of 0"),
        (lambda: attention(Q, Q, Q, layout=None), "layout must be one of 'contiguous', 'zigzag', 'striped'; got None"),
        (lambda: attention(Q, Q, Q, backend=3), "backend must be a string; got 3"),
        (lambda: decode(Q, Q[0, 0, 0], Q), r"k must be a tensor .* got a tensor of shape \(8,\)"),
        (lambda: positions(-1), "n must be an integer from 0 to 67108864; got -1"),
        (lambda: shard("x"), "x must be a tensor or an array of numbers; got str"),
        (lambda: shard(Q, dim=4), "dim must be an integer from -4 to 3; got 4"),
        (lambda: unshard(torch.tensor(1.0)), r"must have a dimension of tokens; got a tensor of shape \(\)"),
    ],
)
def test_attention_over_ranks_rejects_invalid_arguments(one_rank: None, call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


@pytest.mark.parametrize("group", ["x", -1, True, []])
def test_invalid_group_is_rejected(one_rank: None, group: Any) -> None:
    with pytest.raises(RankError, match="group must be a process group, a one-dimensional device mesh or None; got"):
        attention(Q, Q, Q, group=group)
