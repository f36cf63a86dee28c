"""One of two processes that train one model with sharded parameters.

`sharded.py rank port kind file`: the first writes the parameters after one step to the file.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import regard
from regard import mask, normalizer, score

PROCESSES, EMBED_DIM, LENGTH = 2, 8, 6


class Layer(nn.Module):
    """Self-attention with a learned bias and a learned sink."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(EMBED_DIM, 3 * EMBED_DIM)
        self.back = nn.Linear(EMBED_DIM, EMBED_DIM)
        self.table = nn.Parameter(torch.randn(LENGTH, LENGTH))
        self.logit = nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 2, EMBED_DIM // 2)).permute(2, 0, 3, 1, 4).unbind(0)
        options = dict(
            mask=mask.causal() & mask.sliding_window(4),
            score=score.bias(self.table),
            normalizer=normalizer.sink(self.logit),
        )
        return x + self.back(regard.attention(q, k, v, **options).transpose(1, 2).flatten(-2))


def model() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(Layer(), Layer())


def batch() -> Tensor:
    return torch.randn(2 * PROCESSES, LENGTH, EMBED_DIM, generator=torch.Generator().manual_seed(1))


def step(trained: nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    trained(x).square().mean().backward()
    optimizer.step()


def main(rank: int, port: str, kind: str, path: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=rank, world_size=PROCESSES)
    try:
        full_model = model()
        names = [name for name, _ in full_model.named_parameters()]
        trained: nn.Module = full_model
        if kind == "wrapped":
            trained = FullyShardedDataParallel(full_model, device_id=torch.device("cpu"), use_orig_params=True)
        else:
            for layer in full_model:
                fully_shard(layer)
            fully_shard(full_model)
            if kind == "compiled":
                trained = torch.compile(full_model, backend="aot_eager")
        step(trained, batch().chunk(PROCESSES)[rank])
        if kind == "wrapped":
            with FullyShardedDataParallel.summon_full_params(trained):
                parameters = {name: p.detach().clone() for name, p in zip(names, trained.parameters(), strict=True)}
        else:
            parameters = {name: p.detach().full_tensor() for name, p in full_model.named_parameters()}
        if rank == 0:
            torch.save(parameters, path)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
    # The mesh keeps the threads of the group alive. A thread that frees a tensor while Python shuts down ends the
    # process with SIGABRT. The results are written by now, so leave without teardown.
    os._exit(0)
