"""Attention over a prefix that sequences share, compared with one copy of the prefix per sequence.

    python -m benchmarks.studies.paged_cache [--sequences 16] [--prefix 8192]

One query per sequence, 8 heads of dimension 64 in float32, attends to a prefix and to 100 private tokens, in pages of
16 tokens. The sequences share the prefix (forks), or each has a copy. `regard.attention` over contiguous keys is
measured as well. Writes the best times of interleaved rounds in milliseconds, and the bytes of the page pool, to
benchmarks/results/paged_cache.json.
"""

import argparse
import json
from collections.abc import Callable
from datetime import UTC, datetime

import torch
from torch import Tensor

import regard
from benchmarks.harness.timing import as_timed_call
from benchmarks.run import RESULTS, machine_info
from regard import mask
from regard.distributed.paged.cache import PagedCache

NUM_HEADS, HEAD_DIM, NUM_PRIVATE_TOKENS, PAGE_SIZE, NUM_ROUNDS = 8, 64, 100, 16, 15


def fill_cache(num_sequences: int, prefix_len: int, share_prefix: bool) -> tuple[PagedCache, list[int]]:
    cache, generator = PagedCache(PAGE_SIZE), torch.Generator().manual_seed(0)
    prefix = torch.randn(2, 1, NUM_HEADS, prefix_len, HEAD_DIM, generator=generator)
    private = torch.randn(2, num_sequences, NUM_HEADS, NUM_PRIVATE_TOKENS, HEAD_DIM, generator=generator)
    if share_prefix:
        root = cache.add_sequence()
        cache.append(0, [root], *prefix)
        sequence_ids = [root, *(cache.fork(root) for _ in range(num_sequences - 1))]
    else:
        sequence_ids = [cache.add_sequence() for _ in range(num_sequences)]
        for sequence_id in sequence_ids:
            cache.append(0, [sequence_id], *prefix)
    cache.append(0, sequence_ids, *private)
    return cache, sequence_ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--prefix", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    q = torch.randn(options.sequences, NUM_HEADS, 1, HEAD_DIM, generator=torch.Generator().manual_seed(1))
    caches = {name: fill_cache(options.sequences, options.prefix, name == "shared") for name in ("shared", "copied")}
    k, v = (
        torch.stack(rows) for rows in zip(*(caches["copied"][0].rows(0, s) for s in caches["copied"][1]), strict=True)
    )
    calls: dict[str, Callable[[], Tensor]] = {
        name: lambda c=c, ids=ids: c.attention(0, ids, q, mask=mask.causal())  # type: ignore[misc]
        for name, (c, ids) in caches.items()
    }
    calls["contiguous"] = lambda: regard.attention(q, k, v, mask=mask.causal())
    outputs = [call() for call in calls.values()]
    max_difference = max(float((output - outputs[-1]).abs().max()) for output in outputs)
    timed_calls = [as_timed_call(call) for call in calls.values()]
    rounds = [[timed() for timed in timed_calls] for _ in range(NUM_ROUNDS)]
    best = dict(zip(calls, (1000 * min(times) for times in zip(*rounds, strict=True)), strict=True))
    results = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "sequences": options.sequences,
        "prefix": options.prefix,
        "private_tokens": NUM_PRIVATE_TOKENS,
        "threads": options.threads,
        "milliseconds": best,
        "bytes": {name: c.num_used_pages * PAGE_SIZE * NUM_HEADS * HEAD_DIM * 2 * 4 for name, (c, _) in caches.items()},
        "max_difference": max_difference,
    }
    (RESULTS / "paged_cache.json").write_text(json.dumps({"machine": machine_info(), **results}, indent=1) + "\n")
    print(results)


if __name__ == "__main__":
    main()
