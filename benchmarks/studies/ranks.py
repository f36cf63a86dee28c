"""Attention over ranks on one machine: the methods of regard and ring-attention-pytorch, in interleaved rounds.

    python -m benchmarks.studies.ranks

Starts 2 and 4 processes with gloo and writes results/ranks.json: the best and median time of a forward pass and of both
passes, and the bytes sent, counted and predicted. With more ranks than cores, times show the work per rank, not speed.
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

RESULTS = Path(__file__).parents[1] / "results" / "ranks.json"
SEQ_LEN, NUM_HEADS, HEAD_DIM, NUM_ROUNDS = 8192, 8, 64, 5
CONFIGURATIONS = (
    "ring zigzag",
    "ring striped",
    "ring contiguous",
    "ulysses contiguous",
    "all_gather zigzag",
    "ring-attention-pytorch contiguous",
)


def main() -> None:
    results: dict[str, Any] = {
        "cores": os.cpu_count(),
        "seq_len": SEQ_LEN,
        "num_heads": NUM_HEADS,
        "head_dim": HEAD_DIM,
        "dtype": "float32",
        "by_world_size": {},
    }
    for world_size in (2, 4):
        results["by_world_size"][world_size] = _run_ranks(world_size)
        _print_results(world_size, results["by_world_size"][world_size])
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf8")


def _run_ranks(world_size: int) -> dict[str, Any]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    common = {**os.environ, "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-m", "benchmarks.studies.ranks", "rank"]
    processes = [
        subprocess.Popen(command, env={**common, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(world_size)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"a rank ended with {[p.returncode for p in processes]}")
    result: dict[str, Any] = json.loads(outputs[0])
    return result


def _print_results(world_size: int, results: dict[str, Any]) -> None:
    base = results["ring zigzag"]
    print(f"{world_size} ranks, causal, {SEQ_LEN} tokens, {NUM_HEADS} heads of {HEAD_DIM}")
    for configuration, row in results.items():
        ratios = [row[kind]["best"] / base[kind]["best"] for kind in ("forward", "both")]
        milliseconds = row["both"]["best"] * 1e3
        numbers = f"{milliseconds:8.0f} ms   {ratios[0]:5.2f} {ratios[1]:5.2f}   {row.get('bytes_sent')}"
        print(f"  {configuration:36} {numbers}")


def run_rank() -> None:
    """Run all configurations on this rank; rank 0 prints the results."""
    import torch.distributed as dist

    from regard import distributed, mask
    from regard.distributed.ranks.rank_cost import predict_rank_cost

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    communicator = distributed.Communicator.from_group()
    inputs = [
        torch.randn(1, NUM_HEADS, SEQ_LEN, HEAD_DIM, generator=torch.Generator().manual_seed(n)) for n in range(3)
    ]
    causal = mask.causal()
    times: dict[str, dict[str, list[float]]] = {
        configuration: {"forward": [], "both": []} for configuration in CONFIGURATIONS
    }
    sent: dict[str, int] = {}
    for _ in range(NUM_ROUNDS + 1):
        for configuration in CONFIGURATIONS:
            method, layout = configuration.split()
            if method == "ulysses" and NUM_HEADS % communicator.world_size:
                continue
            shards = [distributed.shard(x, layout=layout).requires_grad_() for x in inputs]
            before = communicator.bytes_sent
            if method == "ring-attention-pytorch":
                seconds_by_pass = _time_call(lambda x=shards: _ring_attention_pytorch(x), dist)
            else:
                seconds_by_pass = _time_call(
                    lambda x=shards, m=method, layout=layout: distributed.attention(
                        *x, mask=causal, group=communicator, method=m, layout=layout
                    ),
                    dist,
                )
            sent[configuration] = communicator.bytes_sent - before
            for kind, seconds in zip(("forward", "both"), seconds_by_pass, strict=True):
                times[configuration][kind].append(seconds)
    if communicator.rank == 0:
        print(
            json.dumps(
                {
                    configuration: _row(
                        configuration,
                        times[configuration],
                        sent[configuration],
                        predict_rank_cost,
                        communicator.world_size,
                    )
                    for configuration in CONFIGURATIONS
                }
            )
        )
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def _time_call(call: Any, dist: Any) -> tuple[float, float]:
    """Return the seconds until every rank has its output, and until every rank has its gradients."""
    dist.barrier()
    start = time.perf_counter()
    output = call()
    dist.barrier()
    forward = time.perf_counter() - start
    output.backward(output.detach())
    dist.barrier()
    return forward, time.perf_counter() - start


def _ring_attention_pytorch(shards: list[torch.Tensor]) -> torch.Tensor:
    from ring_attention_pytorch.ring_flash_attention import ring_flash_attn

    q, k, v = (x.transpose(1, 2).contiguous() for x in shards)
    output: torch.Tensor = ring_flash_attn(q, k, v, causal=True, bucket_size=512, ring_reduce_col=True)
    return output.transpose(1, 2)


def _row(
    configuration: str, times: dict[str, list[float]], bytes_sent: int, predict_rank_cost: Any, world_size: int
) -> dict[str, Any]:
    """Return the times without the first round, which loads modules, and the bytes sent."""
    row: dict[str, Any] = {}
    for kind, seconds in times.items():
        row[kind] = {"best": min(seconds[1:]), "median": statistics.median(seconds[1:])}
    method, layout = configuration.split()
    if method != "ring-attention-pytorch":
        row["bytes_sent"] = bytes_sent
        if not (method == "ring" and layout == "contiguous"):  # the prediction assumes balanced work
            row["predicted_bytes_sent"] = predict_rank_cost(
                method, SEQ_LEN, HEAD_DIM, num_heads=NUM_HEADS, world_size=world_size, causal=True, training=True
            ).bytes_sent
    return row


if __name__ == "__main__":
    run_rank() if sys.argv[1:] == ["rank"] else main()
