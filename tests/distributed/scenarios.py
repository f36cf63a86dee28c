"""Scenarios that ranks run together: `scenarios NAME FILE` writes one line of JSON to FILE.rank.

Started with torchrun's environment variables.
"""

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ring_attention_pytorch.ring_flash_attention import ring_flash_attn
from torch import nn
from torch.distributed.fsdp import fully_shard

import regard
from regard import distributed, mask, score
from regard.errors import RegardError
from regard.models.training import Trainer
from regard.nn import beam_search, generate
from tests.distributed.tiny_model import POSITION_ENCODINGS, VOCAB_SIZE, TinyTask, prompt, tiny_model, tiny_stack

METHODS = ("ring", "all_gather", "ulysses")


def random_qkv(n: int, num_heads: int = 4, num_kv_heads: int = 4, dtype: torch.dtype = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(1)
    shapes = (1, num_heads, n, 8), (1, num_kv_heads, n, 8), (1, num_kv_heads, n, 8)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def count_bytes_sent(method: str, layout: str, n: int, options: dict[str, Any], **sizes: int) -> dict[str, int]:
    """Return the bytes that this rank sends in the forward and in the backward pass."""
    comm = distributed.Communicator.from_group()
    qkv = [distributed.shard(x, layout=layout).requires_grad_() for x in random_qkv(n, **sizes)]
    output = distributed.attention(*qkv, **options, group=comm, method=method, layout=layout)
    forward = comm.bytes_sent
    output.sum().backward()
    return {"forward": forward, "backward": comm.bytes_sent - forward}


def traffic() -> dict[str, Any]:
    """Bytes that this rank sends, by call."""
    causal = {"mask": mask.causal()}
    window = {"mask": mask.causal() & mask.sliding_window(8)}
    documents = {"mask": mask.document(torch.arange(64) // 16)}
    results: dict[str, Any] = {}
    for method in METHODS:
        results[f"{method} full"] = count_bytes_sent(method, "contiguous", 24, {}, num_heads=8, num_kv_heads=4)
    results["ring causal"] = count_bytes_sent("ring", "contiguous", 24, causal)
    results["ring zigzag"] = count_bytes_sent("ring", "zigzag", 24, causal)
    results["ring window"] = count_bytes_sent("ring", "contiguous", 64, window)
    results["ring documents"] = count_bytes_sent("ring", "contiguous", 64, documents)
    return results


def errors() -> dict[str, Any]:
    """Error messages on this rank for calls that differ between ranks or are not supported."""
    rank = dist.get_rank()
    q, k, v = (distributed.shard(x) for x in random_qkv(24))
    uneven = q[:, :, : q.shape[2] - rank]
    bias = torch.zeros(24, 24)
    entmax, sinkhorn = regard.normalizer.entmax(1.5), regard.normalizer.sinkhorn(3)
    calls: dict[str, Any] = {
        "heads": lambda: distributed.attention(q[:, : 4 - rank], k[:, : 4 - rank], v[:, : 4 - rank]),
        "mask": lambda: distributed.attention(q, k, v, mask=mask.sliding_window(4 + rank)),
        "tensor": lambda: distributed.attention(q, k, v, score=score.bias(bias + rank)),
        "dtype": lambda: distributed.attention(*((q, k, v) if rank == 0 else (q.double(), k.double(), v.double()))),
        "method": lambda: distributed.attention(q, k, v, method="ring" if rank == 0 else "all_gather"),
        "lengths": lambda: distributed.attention(uneven, uneven, uneven),
        "invalid on one rank": lambda: distributed.attention(q, k, v, dropout=0.5 if rank == 0 else 1.5, seed=1),
        "invalid on all ranks": lambda: distributed.attention(q, k, v, dropout=1.5, seed=1),
        "entmax": lambda: distributed.attention(q, k, v, normalizer=entmax),
        "sinkhorn": lambda: distributed.attention(q, k, v, normalizer=sinkhorn, method="all_gather"),
        "heads of ulysses": lambda: distributed.attention(q[:, :3], k[:, :3], v[:, :3], method="ulysses"),
        "unknown method": lambda: distributed.attention(q, k, v, method="star"),
        "unknown layout": lambda: distributed.attention(q, k, v, layout="spiral"),
        "relative values": lambda: distributed.attention(q, k, v, value=score.shaw_values(torch.zeros(3, 8))),
    }
    return {name: _error_message(call) for name, call in calls.items()}


def _error_message(call: Callable[[], Any]) -> str:
    try:
        call()
    except RegardError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def killed() -> dict[str, Any]:
    """The last rank ends in the middle of a call."""
    num_calls = 0

    def score_function(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        if num_calls > 1 and dist.get_rank() == dist.get_world_size() - 1:
            os._exit(9)
        return q @ k.mT

    q, k, v = (distributed.shard(x) for x in random_qkv(24))
    q, v = q.requires_grad_(), v.requires_grad_()
    start = time.monotonic()
    message = _error_message(
        lambda: distributed.attention(q, k, v, score=score.custom(score_function)).sum().backward()
    )
    return {"message": message, "seconds": time.monotonic() - start}


def late() -> dict[str, Any]:
    """The last rank does not reach the call before the timeout of the others."""
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(8)
        return {"message": "no call", "seconds": 8.0}
    q, k, v = (distributed.shard(x) for x in random_qkv(24))
    start = time.monotonic()
    message = _error_message(lambda: distributed.attention(q, k, v))
    return {"message": message, "seconds": time.monotonic() - start}


def decoding() -> dict[str, Any]:
    """Largest difference between decoding over a sharded cache and a single process."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sink = torch.tensor([0.5, 0.0, -1.0, 2.0], dtype=torch.float64)
    cases: dict[str, dict[str, Any]] = {
        "plain": {},
        "window": {"mask": mask.causal() & mask.sliding_window(5)},
        "alibi": {"score": score.alibi()},
        "gaussian": {"score": score.gaussian(2.0)},
        "sink": {"normalizer": regard.normalizer.sink(sink)},
        "sigmoid": {"normalizer": regard.normalizer.sigmoid(-3.0)},
        "documents": {"mask": mask.document(torch.arange(29) // 7)},
        "heads without visible keys": {"mask": lambda b, h, i, j: (j < 0) | (h > 1)},
    }
    q, k, v = random_qkv(29, dtype=torch.float64)
    q = q[:, :, -2:]
    differences = {}
    for name, options in cases.items():
        expected = regard.attention(q, k, v, **options)
        for layout in ("contiguous", "zigzag", "striped"):
            local_kv = [distributed.shard(x, layout=layout) for x in (k, v)]
            output = distributed.decode(q, *local_kv, **options, layout=layout)
            differences[f"{name} {layout}"] = float((output - expected).abs().max())
    first = 0 if rank == 0 else 20
    last = 29 if rank == world_size - 1 else 20  # the ranks between the first and the last have no keys
    local_kv = [x[:, :, first:last] for x in (k, v)]
    output = distributed.decode(q, *local_kv)
    differences["uneven"] = float((output - regard.attention(q, k, v)).abs().max())
    return differences


def memory() -> dict[str, Any]:
    """Peak memory of a call beyond its inputs in bytes, for the forward pass and with the backward pass."""
    n, head_dim = 1024, 512  # much memory for few pairs
    comm = distributed.Communicator.from_group()
    local_len = n // comm.world_size
    results: dict[str, Any] = {}
    for method, num_kv_heads in product(METHODS, (8, 2)):
        q, k, v = (torch.randn(1, h, local_len, head_dim, requires_grad=True) for h in (8, num_kv_heads, num_kv_heads))
        small = [x[:, :, : 64 // comm.world_size].detach().requires_grad_() for x in (q, k, v)]
        distributed.attention(*small, method=method).sum().backward()  # loads libraries
        for kind in ("forward", "training"):
            comm.all_gather_ints([0])
            ctypes.CDLL(None).malloc_trim(0)  # freed memory must not be reused without being counted
            Path("/proc/self/clear_refs").write_text("5")
            before = _process_memory("VmRSS")
            with torch.set_grad_enabled(kind == "training"):
                output = distributed.attention(q, k, v, method=method)
            if kind == "training":
                output.backward(output.detach())
            results[f"{method} {num_kv_heads} {kind}"] = _process_memory("VmHWM") - before
            del output
        del q, k, v
    return results


def training() -> dict[str, Any]:
    """Losses of fifty steps, final accuracy, and sums of the final parameters."""
    trainer = Trainer(TinyTask(), parallel_wrapper=distributed.ContextParallel)
    while not trainer.is_done:
        trainer.advance()
    sums = [float(p.detach().abs().sum()) for p in trainer.model.parameters()]
    losses = [report.loss for report in trainer.curve]
    return {"losses": losses, "accuracy": trainer.curve[-1].accuracy, "sums": sums}


def generation() -> dict[str, Any]:
    """Tokens that ranks generate together."""
    results = {}
    for position_encoding in POSITION_ENCODINGS:
        parallel = distributed.ContextParallel(tiny_model(position_encoding).eval())
        for n in (11, 2):  # more tokens than ranks, and fewer
            results[f"{position_encoding} {n}"] = generate(parallel, prompt(n), max_new_tokens=8).tolist()
        beams = beam_search(parallel, prompt(6), max_new_tokens=4, num_beams=3)
        results[f"{position_encoding} beam"] = beams.tokens.tolist()
    return results


def stacks() -> dict[str, Any]:
    """Largest difference between stacks of blocks over ranks and a single process, in outputs and gradients."""
    results = {}
    x = torch.randn(2, 13, 32, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    for kind in ("encoder", "latent"):
        for method in METHODS:
            reference, stack = tiny_stack(kind), tiny_stack(kind)
            parallel = distributed.ContextParallel(stack, method=method)
            expected, output = reference(x), parallel(x)
            expected.square().sum().backward()
            output.square().sum().backward()
            parallel.sum_gradients()
            differences = [(output - parallel.shard(expected)).abs().max()]
            pairs = zip(stack.parameters(), reference.parameters(), strict=True)
            differences += [(a.grad - b.grad).abs().max() / b.grad.abs().max().clamp(min=1.0) for a, b in pairs]
            results[f"{kind} {method}"] = max(float(difference.detach()) for difference in differences)
    return results


def mesh() -> dict[str, Any]:
    """Checksums of gradients, with tokens over one dimension of a mesh and DDP or FSDP over the other."""
    device_mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("batch", "tokens"))
    tokens = torch.randint(VOCAB_SIZE, (4, 12), generator=torch.Generator().manual_seed(5))
    local_tokens = tokens.chunk(2)[device_mesh.get_local_rank("batch")]
    results = {}
    for kind in ("ddp", "fsdp"):
        model = tiny_model()
        if kind == "fsdp":
            for layer in model.decoder.layers:
                fully_shard(layer, mesh=device_mesh["batch"])
            fully_shard(model, mesh=device_mesh["batch"])
        parallel = distributed.ContextParallel(model, group=device_mesh["tokens"])
        wrapped: Any = parallel
        if kind == "ddp":
            wrapped = nn.parallel.DistributedDataParallel(parallel, process_group=device_mesh.get_group("batch"))
        logits = wrapped(local_tokens[:, :-1])
        targets = parallel.shard(local_tokens[:, 1:])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        (loss / local_tokens[:, 1:].numel()).backward()
        parallel.sum_gradients()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        results[kind] = {
            name: gradient_checksum(gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient)
            for name, gradient in gradients.items()
        }
    return results


def gradient_checksum(gradient: torch.Tensor) -> float:
    """Return a number that depends on every entry and on its position."""
    weights = torch.linspace(1, 2, gradient.numel(), dtype=torch.float64)
    return float((gradient.detach().double().flatten() * weights).sum())


def ring_attention_pytorch() -> dict[str, Any]:
    """Relative differences from ring-attention-pytorch on the same ranks: output, d_q, d_k + d_v.

    Its query heads of one group are `num_kv_heads` apart. On a CPU it stacks the gradients of keys and values, and
    autograd adds up the stack: the gradient of the keys is the sum of both (version 0.5.20).
    """
    results = {}
    for name, causal in (("full", False), ("causal", True)):
        for num_kv_heads in (4, 2):
            order = torch.arange(4).view(num_kv_heads, -1).T.flatten()
            qkv = [distributed.shard(x).requires_grad_() for x in random_qkv(64, num_kv_heads=num_kv_heads)]
            reordered = (qkv[0][:, order], qkv[1], qkv[2])
            their_qkv = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in reordered]
            output = distributed.attention(*qkv, mask=mask.causal() if causal else None)
            their_output = ring_flash_attn(*their_qkv, causal=causal, bucket_size=8, ring_reduce_col=True)
            their_output = their_output.transpose(1, 2)
            weights = distributed.shard(torch.randn(1, 4, 64, 8, generator=torch.Generator().manual_seed(2)))
            (output * weights).sum().backward()
            (their_output * weights[:, order]).sum().backward()
            d_q, d_k, d_v = (x.grad for x in qkv)
            their_d_q, their_d_kv = (x.grad.transpose(1, 2) for x in their_qkv[:2])
            pairs = (output[:, order], their_output), (d_q[:, order], their_d_q), (d_k + d_v, their_d_kv)
            results[f"{name} {num_kv_heads}"] = [
                float((a - b).detach().abs().max() / b.detach().abs().max()) for a, b in pairs
            ]
    return results


def _process_memory(name: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def main(name: str, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=4 if name == "late" else 30))
    result = globals()[name]()
    Path(f"{path}.{dist.get_rank()}").write_text(json.dumps({"name": name, **result}) + "\n", encoding="utf8")
    if name not in ("killed", "late"):
        dist.barrier()
    os._exit(0)  # threads of gloo may crash while Python shuts down


if __name__ == "__main__":
    main(*sys.argv[1:])
