"""Ranks together: bytes sent, error messages, failures of a rank, memory, and agreement with ring-attention-pytorch."""

import re
import time
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from regard.distributed.ranks.rank_cost import predict_rank_cost
from regard.errors import ArgumentError
from tests.distributed.launch import read_results, start_ranks, wait_for_ranks


@cache
def run_scenario(name: str, world_size: int) -> list[dict]:
    """Return the result of each rank."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "results"
        processes = start_ranks(world_size, "tests.distributed.scenarios", name, str(path))
        assert wait_for_ranks(processes, timeout=120) == [0] * world_size
        return read_results(path, world_size)[name]


def test_ranks_send_as_many_bytes_as_the_formulas_predict():
    world_size = 4
    rows = 24 // world_size
    for result in run_scenario("traffic", world_size):
        kv_bytes = 2 * 4 * rows * 8 * 4  # keys and values: 4 heads, rows of 8 floats
        qo_bytes = 2 * 8 * rows * 8 * 4  # queries and outputs: 8 heads
        others = world_size - 1
        assert result["ring full"] == {"forward": others * kv_bytes, "backward": 2 * others * kv_bytes}
        assert result["all_gather full"] == {"forward": others * kv_bytes, "backward": others * kv_bytes}
        exchanged = others * (kv_bytes + qo_bytes) // world_size
        assert result["ulysses full"] == {"forward": exchanged, "backward": exchanged}
        assert result["ring zigzag"] == result["ring full"]


def test_causal_ring_sends_keys_only_to_later_ranks():
    world_size, kv_bytes = 4, 2 * 4 * 6 * 8 * 4
    for rank, result in enumerate(run_scenario("traffic", world_size)):
        later, earlier = world_size - 1 - rank, rank
        assert result["ring causal"] == {"forward": later * kv_bytes, "backward": (later + earlier) * kv_bytes}


def test_ranks_without_visible_pairs_exchange_nothing():
    kv_bytes = 2 * 4 * 16 * 8 * 4
    results = run_scenario("traffic", 4)
    # under the window each rank sends to the next rank only
    assert [result["ring window"]["forward"] for result in results] == [kv_bytes, kv_bytes, kv_bytes, 0]
    assert [result["ring window"]["backward"] for result in results] == [kv_bytes, 2 * kv_bytes, 2 * kv_bytes, kv_bytes]
    # each rank holds one document
    assert all(result["ring documents"] == {"forward": 0, "backward": 0} for result in results)


ERROR_MESSAGES = {
    "heads": "every rank must make the same call; got rank 0: num_heads 4, rank 1: num_heads 3",
    "mask": "rank 0: mask p - 4 < j and j < p + 4",
    "tensor": "rank 1: tensor bias of shape (24, 24) with checksum",
    "dtype": "rank 0: dtype torch.float32, rank 1: dtype torch.float64",
    "method": "rank 0: method ring, rank 1: method all_gather",
    "lengths": "23 rows of q over 2 ranks in the contiguous layout must have the lengths [11, 12]; got [12, 11]",
    "invalid on all ranks": "ArgumentError: dropout must be a number at least 0 and less than 1; got 1.5.",
    "entmax": 'got 1.5-entmax, whose tau needs the whole row. Use method="ulysses" or method="all_gather"',
    "sinkhorn": 'Use method="ulysses", where each rank has all tokens of some heads',
    "heads of ulysses": "needs a number of ranks that divides num_heads; got 2 ranks and num_heads=3",
    "unknown method": "method must be one of 'ring', 'ulysses', 'all_gather'; got 'star'",
    "unknown layout": "layout must be one of 'contiguous', 'zigzag', 'striped'; got 'spiral'",
    "relative values": 'got relative values. Use method="all_gather"',
}


@pytest.mark.parametrize("name", ERROR_MESSAGES)
def test_mismatched_or_unsupported_calls_raise_on_every_rank(name):
    for result in run_scenario("errors", 2):
        assert ERROR_MESSAGES[name] in result[name]


def test_other_ranks_name_the_rank_with_an_invalid_argument():
    first, second = (result["invalid on one rank"] for result in run_scenario("errors", 2))
    assert "RankError: every rank must make the same call; got rank 1 error: dropout must be" in first
    assert second == "ArgumentError: dropout must be a number at least 0 and less than 1; got 1.5."


def test_when_a_rank_is_killed_the_others_raise_an_error():
    with TemporaryDirectory() as folder:
        path = Path(folder) / "results"
        start = time.monotonic()
        processes = start_ranks(3, "tests.distributed.scenarios", "killed", str(path))
        assert wait_for_ranks(processes, timeout=60) == [0, 0, 9]
        assert time.monotonic() - start < 30  # the timeout of the group: no rank waited for it
        for rank, result in enumerate(read_results(path, 2)["killed"]):
            assert f"RankError: rank {rank} of 3 must receive a reply from rank" in result["message"]
            assert "A rank has ended" in result["message"]


@pytest.mark.long
def test_ranks_raise_an_error_if_another_rank_does_not_arrive_before_the_timeout():
    for result in run_scenario("late", 3)[:2]:
        assert "RankError" in result["message"] and "4000ms" in result["message"]
        assert 3 < result["seconds"] < 8


def test_ring_matches_ring_attention_pytorch():
    for result in run_scenario("ring_attention_pytorch", 2):
        assert len(result) == 4
        # float32 on both sides, about sixty terms of size 1
        assert {name: differences for name, differences in result.items() if not max(differences) < 5e-6} == {}


@pytest.mark.parametrize("world_size", [1, 3])
def test_decoding_over_a_sharded_cache_matches_a_single_process(world_size):
    for result in run_scenario("decoding", world_size):
        assert len(result) == 25
        # about thirty terms of size 1
        assert {name: difference for name, difference in result.items() if not difference <= 2e-15} == {}


@pytest.mark.long
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_peak_memory_matches_the_prediction(world_size):
    results = run_scenario("memory", world_size)
    for method, num_kv_heads, kind in product(("ring", "all_gather", "ulysses"), (8, 2), ("forward", "training")):
        sizes = dict(num_heads=8, num_kv_heads=num_kv_heads, world_size=world_size, training=kind == "training")
        predicted = predict_rank_cost(method, 1024, 512, **sizes).extra_memory
        name = f"{method} {num_kv_heads} {kind}"
        measured = max(result[name] for result in results)
        # Below: not everything is held at once in every run. Above: workspace of kernels and pages that the
        # allocator keeps, a few MB for any size.
        assert 0.5 * predicted <= measured <= 1.2 * predicted + 12e6, f"{name}: {measured / predicted:.2f}"


@pytest.mark.long
@pytest.mark.parametrize("method", ["ring", "ulysses"])
@pytest.mark.parametrize("kind", ["forward", "training"])
def test_memory_of_a_rank_falls_with_the_number_of_ranks(method, kind):
    measured = {n: max(result[f"{method} 8 {kind}"] for result in run_scenario("memory", n)) for n in (2, 4)}
    assert measured[4] <= 0.95 * measured[2]  # a ring of two needs no buffer for keys in transit
    sizes = dict(num_heads=32, num_kv_heads=8, training=kind == "training")
    predicted = {n: predict_rank_cost(method, 2**20, 128, world_size=n, **sizes).extra_memory for n in (4, 8, 16, 32)}
    assert predicted[8] <= predicted[4] // 2
    assert predicted[32] <= (predicted[4] // 8 if method == "ring" else predicted[4] // 4)


def test_predicted_bytes_match_the_bytes_sent():
    for result in run_scenario("traffic", 4):
        for method in ("ring", "all_gather", "ulysses"):
            sizes = dict(num_heads=8, num_kv_heads=4, world_size=4)
            forward, total = (predict_rank_cost(method, 24, 8, **sizes, training=t).bytes_sent for t in (False, True))
            assert result[f"{method} full"] == {"forward": forward, "backward": total - forward}


def test_predicted_time_of_a_ring_overlaps_computing_and_sending():
    ring, all_gather = (predict_rank_cost(m, 4096, 64, num_heads=8, world_size=4) for m in ("ring", "all_gather"))
    computing, sending = ring.flops / 1e9, ring.bytes_sent / 1e6
    assert ring.seconds(1e9, 1e6) == max(computing, sending)
    assert all_gather.seconds(1e9, 1e6) == computing + sending


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(method="star"), "method must be one of 'ring', 'all_gather', 'ulysses'; got 'star'"),
        (dict(world_size=0), "world_size must be an integer of at least 1; got 0"),
        (dict(method="ulysses", world_size=3), "got world_size=3, num_heads=8 and num_kv_heads=8"),
    ],
)
def test_cost_prediction_rejects_invalid_arguments(change, message):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        predict_rank_cost(**{"method": "ring", "seq_len": 8, "head_dim": 8, "num_heads": 8, "world_size": 2, **change})
