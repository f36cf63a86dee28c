"""Scenes that ranks play: `scenes NAME FILE`, started with torchrun's environment; FILE.rank gets a line of JSON."""

import ctypes
import json
import os
import sys
import time
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
from regard.models.train import Training
from regard.nn import beam, generate
from tests.distributed.tiny import POSITIONS, VOCABULARY, Tiny, model, prompt, stack


def tensors(n: int, heads: int = 4, key_heads: int = 4, width: int = 8, dtype: torch.dtype = torch.float32) -> Any:
    draw = torch.Generator().manual_seed(1)
    shapes = (1, heads, n, width), (1, key_heads, n, width), (1, key_heads, n, width)
    return [torch.randn(shape, generator=draw).to(dtype) for shape in shapes]


def sent(method: str, layout: str, n: int, options: dict[str, Any], **sizes: int) -> dict[str, int]:
    """Bytes that this rank sent, forward and backward."""
    peers = distributed.Peers.of()
    own = [distributed.shard(x, layout=layout).requires_grad_() for x in tensors(n, **sizes)]
    output = distributed.attention(*own, **options, group=peers, method=method, layout=layout)
    forward = peers.sent
    output.sum().backward()
    return {"forward": forward, "backward": peers.sent - forward}


def traffic() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for method in ("ring", "gather", "ulysses"):
        found[f"{method} full"] = sent(method, "contiguous", 24, {}, heads=8, key_heads=4)
    found["ring causal"] = sent("ring", "contiguous", 24, {"mask": mask.causal()})
    found["ring zigzag"] = sent("ring", "zigzag", 24, {"mask": mask.causal()})
    found["ring window"] = sent("ring", "contiguous", 64, {"mask": mask.causal() & mask.window(8)})
    found["ring documents"] = sent("ring", "contiguous", 64, {"mask": mask.documents(torch.arange(64) // 16)})
    return found


def refusals() -> dict[str, Any]:
    """What each rank is told where ranks do not agree, or ask what cannot be split."""
    rank = dist.get_rank()
    q, k, v = (distributed.shard(x) for x in tensors(24))
    uneven = q[:, :, : q.shape[2] - rank]
    table = torch.zeros(24, 24)
    calls: dict[str, Any] = {
        "heads": lambda: distributed.attention(q[:, : 4 - rank], k[:, : 4 - rank], v[:, : 4 - rank]),
        "mask": lambda: distributed.attention(q, k, v, mask=mask.window(4 + rank)),
        "tensor": lambda: distributed.attention(q, k, v, score=score.bias(table + rank)),
        "dtype": lambda: distributed.attention(*((q, k, v) if rank == 0 else (q.double(), k.double(), v.double()))),
        "method": lambda: distributed.attention(q, k, v, method="ring" if rank == 0 else "gather"),
        "lengths": lambda: distributed.attention(uneven, uneven, uneven),
        "one is refused": lambda: distributed.attention(q, k, v, dropout=0.5 if rank == 0 else 1.5, seed=1),
        "all are refused": lambda: distributed.attention(q, k, v, dropout=1.5, seed=1),
        "entmax": lambda: distributed.attention(q, k, v, weigh=regard.weigh.entmax(1.5)),
        "sinkhorn": lambda: distributed.attention(q, k, v, weigh=regard.weigh.sinkhorn(3), method="gather"),
        "heads of ulysses": lambda: distributed.attention(q[:, :3], k[:, :3], v[:, :3], method="ulysses"),
        "unknown method": lambda: distributed.attention(q, k, v, method="star"),
        "unknown layout": lambda: distributed.attention(q, k, v, layout="spiral"),
        "relative values": lambda: distributed.attention(q, k, v, value=score.shaw_values(torch.zeros(3, 8))),
    }
    return {name: _refused(call) for name, call in calls.items()}


def _refused(call: Any) -> str:
    try:
        call()
    except RegardError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def killed() -> dict[str, Any]:
    """The last rank ends in the middle of a call."""
    calls = []

    def slow(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 1 and dist.get_rank() == dist.get_world_size() - 1:
            os._exit(9)
        return q @ k.mT

    q, k, v = (distributed.shard(x) for x in tensors(24))
    begin = time.monotonic()
    q = q.requires_grad_()
    said = _refused(lambda: distributed.attention(q, k, v.requires_grad_(), score=score.custom(slow)).sum().backward())
    return {"said": said, "took": _since(begin)}


def late() -> dict[str, Any]:
    """The last rank does not come to the call before the others' patience ends."""
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(8)
        return {"said": "slept", "took": 8.0}
    q, k, v = (distributed.shard(x) for x in tensors(24))
    begin = time.monotonic()
    return {"said": _refused(lambda: distributed.attention(q, k, v)), "took": _since(begin)}


def _since(begin: float) -> float:
    return time.monotonic() - begin


def decoding() -> dict[str, Any]:
    """How far decoding over a cache in parts is off from that of one process."""
    found = {}
    rank, count = dist.get_rank(), dist.get_world_size()
    documents = mask.documents(torch.arange(29) // 7)
    asked: dict[str, dict[str, Any]] = {
        "plain": {},
        "window": {"mask": mask.causal() & mask.window(5)},
        "alibi": {"score": score.alibi()},
        "metric": {"score": score.metric(2.0)},
        "sink": {"weigh": regard.weigh.sink(torch.tensor([0.5, 0.0, -1.0, 2.0], dtype=torch.float64))},
        "sigmoid": {"weigh": regard.weigh.sigmoid(-3.0)},
        "documents": {"mask": documents},
        "blind": {"mask": lambda b, h, i, j: (j < 0) | (h > 1)},
    }
    q, k, v = tensors(29, dtype=torch.float64)
    q = q[:, :, -2:]
    for name, options in asked.items():
        whole = regard.attention(q, k, v, **options)
        for layout in ("contiguous", "zigzag", "striped"):
            own = [distributed.shard(x, layout=layout) for x in (k, v)]
            together = distributed.decode(q, *own, **options, layout=layout)
            found[f"{name} {layout}"] = float((together - whole).abs().max())
    first, last = (0 if rank == 0 else 20), (29 if rank == count - 1 else 20)  # those between have nothing
    own = [x[:, :, first:last] for x in (k, v)]
    found["uneven"] = float((distributed.decode(q, *own) - regard.attention(q, k, v)).abs().max())
    return found


def memory() -> dict[str, Any]:
    """The most memory that a call took beyond its inputs, alone and with its backward pass, in bytes."""
    n, width = 1024, 512  # much memory for few pairs
    peers = distributed.Peers.of()
    own = n // peers.count
    found: dict[str, Any] = {}
    for method, key_heads in product(("ring", "gather", "ulysses"), (8, 2)):
        q, k, v = (torch.randn(1, h, own, width, requires_grad=True) for h in (8, key_heads, key_heads))
        small = [x[:, :, : 64 // peers.count].detach().requires_grad_() for x in (q, k, v)]
        distributed.attention(*small, method=method).sum().backward()  # what is loaded once
        for kind in ("forward", "training"):
            peers.every([0])
            ctypes.CDLL(None).malloc_trim(0)  # what was freed before must not be taken again unseen
            Path("/proc/self/clear_refs").write_text("5")
            before = _held("VmRSS")
            with torch.set_grad_enabled(kind == "training"):
                output = distributed.attention(q, k, v, method=method)
            if kind == "training":
                output.backward(output.detach())
            found[f"{method} {key_heads} {kind}"] = _held("VmHWM") - before
            del output
        del q, k, v
    return found


def training() -> dict[str, Any]:
    """The losses of fifty steps, and the parameters at the end."""
    run = Training(Tiny(), spread=distributed.SequenceParallel)
    while not run.is_over:
        run.advance()
    sums = [float(p.detach().abs().sum()) for p in run.model.parameters()]
    return {"losses": [report.loss for report in run.curve], "right": run.curve[-1].accuracy, "sums": sums}


def writing() -> dict[str, Any]:
    """Tokens that ranks write together."""
    found = {}
    for kind in POSITIONS:
        parallel = distributed.SequenceParallel(model(kind).eval())
        for n in (11, 2):  # more tokens than ranks, and fewer
            found[f"{kind} {n}"] = generate(parallel, prompt(n), most=8).tolist()
        best = beam(parallel, prompt(6), most=4, width=3)
        found[f"{kind} beam"] = best.tokens.tolist()
    return found


def stacks() -> dict[str, Any]:
    """How far stacks of blocks over ranks are off from one process, and their parameters' gradients."""
    found = {}
    x = torch.randn(2, 13, 32, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    for kind in ("encoder", "latent"):
        for method in ("ring", "gather", "ulysses"):
            alone, whole = stack(kind), stack(kind)
            parallel = distributed.SequenceParallel(whole, method=method)
            expected, output = alone(x), parallel(x)
            expected.square().sum().backward()
            output.square().sum().backward()
            parallel.sum_gradients()
            apart = [(output - parallel.own(expected)).abs().max()]
            pairs = zip(whole.parameters(), alone.parameters(), strict=True)
            apart += [(a.grad - b.grad).abs().max() / b.grad.abs().max().clamp(min=1.0) for a, b in pairs]
            found[f"{kind} {method}"] = max(float(a.detach()) for a in apart)
    return found


def mesh() -> dict[str, Any]:
    """Gradients, summed over parts of texts and averaged over texts, with DDP and with FSDP on the other dimension."""
    device = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("texts", "tokens"))
    tokens = torch.randint(VOCABULARY, (4, 12), generator=torch.Generator().manual_seed(5))
    mine = tokens.chunk(2)[device.get_local_rank("texts")]
    found = {}
    for kind in ("ddp", "fsdp"):
        whole = model()
        if kind == "fsdp":
            for layer in whole.decoder.layers:
                fully_shard(layer, mesh=device["texts"])
            fully_shard(whole, mesh=device["texts"])
        parallel = distributed.SequenceParallel(whole, group=device["tokens"])
        running: Any = parallel
        if kind == "ddp":
            running = nn.parallel.DistributedDataParallel(parallel, process_group=device.get_group("texts"))
        logits = running(mine[:, :-1])
        targets = parallel.own(mine[:, 1:])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        (loss / mine[:, 1:].numel()).backward()
        parallel.sum_gradients()
        every = {n: p.grad for n, p in whole.named_parameters()}
        found[kind] = {n: _sum(g.full_tensor() if hasattr(g, "full_tensor") else g) for n, g in every.items()}
    return found


def witness() -> dict[str, Any]:
    """How far ring-attention-pytorch is from us, on the same ranks: shares of the largest number.

    Its heads of one group stand `key heads` apart. On a CPU it hands out the gradients of keys and values stacked, and
    autograd adds up the stack: what comes out as that of the keys is the sum of both (0.5.20).
    """
    found = {}
    for name, causal in (("full", False), ("causal", True)):
        for key_heads in (4, 2):
            order = torch.arange(4).view(key_heads, -1).T.flatten()
            ours = [distributed.shard(x).requires_grad_() for x in tensors(64, key_heads=key_heads)]
            turned = (ours[0][:, order], ours[1], ours[2])
            theirs = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in turned]
            one = distributed.attention(*ours, mask=mask.causal() if causal else None)
            other = ring_flash_attn(*theirs, causal=causal, bucket_size=8, ring_reduce_col=True).transpose(1, 2)
            weights = distributed.shard(torch.randn(1, 4, 64, 8, generator=torch.Generator().manual_seed(2)))
            (one * weights).sum().backward()
            (other * weights[:, order]).sum().backward()
            d_q, d_k, d_v = (x.grad for x in ours)
            of_q, of_both = (x.grad.transpose(1, 2) for x in theirs[:2])
            pairs = (one[:, order], other), (d_q[:, order], of_q), (d_k + d_v, of_both)
            found[f"{name} {key_heads}"] = [
                float((a - b).detach().abs().max() / b.detach().abs().max()) for a, b in pairs
            ]
    return found


def _sum(gradient: torch.Tensor) -> float:
    """A number that depends on every entry and on where it stands."""
    weights = torch.linspace(1, 2, gradient.numel(), dtype=torch.float64)
    return float((gradient.detach().double().flatten() * weights).sum())


def _held(name: str) -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def main(name: str, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=4 if name == "late" else 30))
    found = globals()[name]()
    Path(f"{path}.{dist.get_rank()}").write_text(json.dumps({"what": name, **found}) + "\n", encoding="utf8")
    if name not in ("killed", "late"):
        dist.barrier()
    os._exit(0)  # as in tests/graphs/sharded.py


if __name__ == "__main__":
    main(*sys.argv[1:])
