"""A prefix that sequences share: attended to once for all of them, or by each for itself.

    python -m benchmarks.pages [--sequences 16] [--prefix 8192]

One query of each sequence, 8 heads of width 64 in float32, over a prefix and 100 tokens of its own; pages of 16 tokens.
The sequences share the prefix (forks), or each holds a copy of it. Beside them `regard.attention` of the same keys as
one contiguous tensor a sequence. Best of interleaved rounds, in milliseconds, and the bytes of the pool. Writes
benchmarks/results/pages.json.
"""

import argparse
import json
from collections.abc import Callable
from datetime import UTC, datetime

import torch
from torch import Tensor

import regard
from benchmarks.rounds import timed
from benchmarks.run import RESULTS, machine
from regard import mask
from regard.distributed.pages import PagedCache

HEADS, WIDTH, OWN, SIZE, ROUNDS = 8, 64, 100, 16, 15


def filled(sequences: int, prefix: int, shares: bool) -> tuple[PagedCache, list[int]]:
    cache, numbers = PagedCache(SIZE), torch.Generator().manual_seed(0)
    same = torch.randn(2, 1, HEADS, prefix, WIDTH, generator=numbers)
    own = torch.randn(2, sequences, HEADS, OWN, WIDTH, generator=numbers)
    if shares:
        root = cache.add()
        cache.append(0, [root], *same)
        who = [root, *(cache.fork(root) for _ in range(sequences - 1))]
    else:
        who = [cache.add() for _ in range(sequences)]
        for one in who:
            cache.append(0, [one], *same)
    cache.append(0, who, *own)
    return cache, who


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--prefix", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    q = torch.randn(asked.sequences, HEADS, 1, WIDTH, generator=torch.Generator().manual_seed(1))
    caches = {name: filled(asked.sequences, asked.prefix, name == "shared") for name in ("shared", "apart")}
    k, v = (
        torch.stack(rows) for rows in zip(*(caches["apart"][0].rows(0, s) for s in caches["apart"][1]), strict=True)
    )
    turns: dict[str, Callable[[], Tensor]] = {
        name: lambda c=c, who=who: c.attention(0, who, q, mask=mask.causal())  # type: ignore[misc]
        for name, (c, who) in caches.items()
    }
    turns["contiguous"] = lambda: regard.attention(q, k, v, mask=mask.causal())
    answers = [turn() for turn in turns.values()]
    stray = max(float((a - answers[-1]).abs().max()) for a in answers)
    clocks = [timed(turn) for turn in turns.values()]
    rounds = [[clock() for clock in clocks] for _ in range(ROUNDS)]
    best = dict(zip(turns, (1000 * min(times) for times in zip(*rounds, strict=True)), strict=True))
    figures = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "sequences": asked.sequences,
        "prefix": asked.prefix,
        "own": OWN,
        "threads": asked.threads,
        "milliseconds": best,
        "bytes": {name: c.pages * SIZE * HEADS * WIDTH * 2 * 4 for name, (c, _) in caches.items()},
        "stray": stray,
    }
    (RESULTS / "pages.json").write_text(json.dumps({"machine": machine(), **figures}, indent=1) + "\n")
    print(figures)


if __name__ == "__main__":
    main()
