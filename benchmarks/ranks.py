"""Attention over ranks on this machine: our methods and ring-attention-pytorch, one after another, again and again.

`python -m benchmarks.ranks` starts 2 and 4 processes that talk by gloo, and writes results/ranks.json: the least and
the median time of a call forward and of one with its backward pass, as ratios to ours, beside bytes that were counted
and predicted. With more ranks than cores, times say what is left of the work, not how fast ranks would be.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results" / "ranks.json"
N, HEADS, WIDTH, ROUNDS = 8192, 8, 64, 5
WAYS = ("ring zigzag", "ring striped", "ring contiguous", "ulysses contiguous", "gather zigzag", "peer contiguous")


def main() -> None:
    found = {"cores": os.cpu_count(), "n": N, "heads": HEADS, "width": WIDTH, "dtype": "float32", "worlds": {}}
    for ranks in (2, 4):
        found["worlds"][ranks] = _world(ranks)
        _say(ranks, found["worlds"][ranks])
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf8")


def _world(ranks: int) -> dict[str, Any]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    common = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-m", "benchmarks.ranks", "rank"]
    processes = [
        subprocess.Popen(command, env={**common, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    told = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"a rank ended with {[p.returncode for p in processes]}")
    result: dict[str, Any] = json.loads(told[0])
    return result


def _say(ranks: int, world: dict[str, Any]) -> None:
    base = world["ring zigzag"]
    print(f"{ranks} ranks, causal, {N} tokens, {HEADS} heads of {WIDTH}")
    for way, row in world.items():
        ratios = [row[kind]["least"] / base[kind]["least"] for kind in ("forward", "both")]
        print(
            f"  {way:20} {row['both']['least'] * 1e3:8.0f} ms   {ratios[0]:5.2f} {ratios[1]:5.2f}   {row.get('sent')}"
        )


def rank() -> None:
    """What one rank does; the first prints what was measured."""
    import torch.distributed as dist

    from regard import distributed, mask
    from regard.distributed.cost import predicted

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    peers = distributed.Peers.of()
    whole = [torch.randn(1, HEADS, N, WIDTH, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    causal = mask.causal()
    times: dict[str, dict[str, list[float]]] = {way: {"forward": [], "both": []} for way in WAYS}
    sent: dict[str, int] = {}
    for _ in range(ROUNDS + 1):
        for way in WAYS:
            method, layout = way.split()
            if method == "ulysses" and HEADS % peers.count:
                continue
            own = [distributed.shard(x, layout=layout).requires_grad_() for x in whole]
            before = peers.sent
            if method == "peer":
                took = _timed(lambda x=own: _peer(x), dist)
            else:
                took = _timed(
                    lambda x=own, m=method, at=layout: distributed.attention(
                        *x, mask=causal, group=peers, method=m, layout=at
                    ),
                    dist,
                )
            sent[way] = peers.sent - before
            for kind, seconds in zip(("forward", "both"), took, strict=True):
                times[way][kind].append(seconds)
    if peers.rank == 0:
        print(json.dumps({way: _row(way, times[way], sent[way], predicted, peers.count) for way in WAYS}))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def _timed(call: Any, dist: Any) -> tuple[float, float]:
    """Seconds until every rank has its output, and until every rank has its gradients."""
    dist.barrier()
    begin = time.perf_counter()
    output = call()
    dist.barrier()
    forward = time.perf_counter() - begin
    output.backward(output.detach())
    dist.barrier()
    return forward, time.perf_counter() - begin


def _peer(own: list[torch.Tensor]) -> torch.Tensor:
    from ring_attention_pytorch.ring_flash_attention import ring_flash_attn

    q, k, v = (x.transpose(1, 2).contiguous() for x in own)
    output: torch.Tensor = ring_flash_attn(q, k, v, causal=True, bucket_size=512, ring_reduce_col=True)
    return output.transpose(1, 2)


def _row(way: str, times: dict[str, list[float]], sent: int, predicted: Any, ranks: int) -> dict[str, Any]:
    """The first round is left out: it loads."""
    row: dict[str, Any] = {}
    for kind, seconds in times.items():
        row[kind] = {"least": min(seconds[1:]), "median": statistics.median(seconds[1:])}
    method, layout = way.split()
    if method != "peer":
        row["sent"] = sent
        if not (method == "ring" and layout == "contiguous"):  # there the first rank's keys go to all, but none come
            row["predicted"] = predicted(method, N, WIDTH, heads=HEADS, ranks=ranks, causal=True, training=True).sent
    return row


if __name__ == "__main__":
    rank() if sys.argv[1:] == ["rank"] else main()
