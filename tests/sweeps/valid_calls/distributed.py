"""Valid calls of `regard.distributed` in one process: attention over files, paged caches, and one rank by itself."""

from typing import Any

import numpy as np
import torch

from regard import distributed
from tests.sweeps.valid_calls.inputs import numbers, qkv
from tests.sweeps.valid_calls.table import Arguments, ValidCall, given


def group() -> None:
    """Starts a process group of this one process, unless there is one."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def named(name: str, *positional: Any, use: Any = None, **keywords: Any) -> ValidCall:
    def function() -> Any:
        group()
        return getattr(distributed, name)

    def arguments() -> Arguments:
        return given(*positional, **keywords)

    return ValidCall(f"regard.distributed.{name}", function, arguments, use)


def pages() -> Any:
    paged = distributed.PagedCache(size=2)
    paged.add()
    paged.append(0, [0], numbers(1, 2, 3, 8), numbers(1, 2, 3, 8, seed=1))
    return paged


def method(name: str, *positional: Any, **keywords: Any) -> ValidCall:
    def arguments() -> Arguments:
        return given(*positional, **keywords)

    return ValidCall(f"regard.distributed.PagedCache.{name}", lambda: getattr(pages(), name), arguments)


def batch() -> Any:
    return distributed.PagedBatch(pages(), [0])


def files() -> Arguments:
    for name, array in zip("qkv", qkv(), strict=True):
        np.save(f"{name}.npy", array.numpy())
    return given("q.npy", "k.npy", "v.npy")


def file() -> Arguments:
    return given(files().positional[0])


CALLS = [
    named("attention", *qkv()),
    named("decode", qkv()[0][:, :, :1], *qkv()[1:]),
    named("positions", 6),
    named("shard", qkv()[0]),
    named("unshard", qkv()[0]),
    ValidCall("regard.distributed.attention_from_files", lambda: distributed.attention_from_files, files),
    ValidCall("regard.distributed.mapped", lambda: distributed.mapped, file),
    named("PagedCache", use=lambda paged: paged.append(0, [paged.add()], numbers(1, 2, 3, 8))),
    ValidCall("regard.distributed.PagedBatch", lambda: distributed.PagedBatch, lambda: given(pages(), [0])),
    method("length", 0),
    method("length_in", 0, 0),
    method("fork", 0),
    method("crop", 0, 1),
    method("drop", 0),
    method("append", 0, [0], numbers(1, 2, 3, 8), numbers(1, 2, 3, 8, seed=1)),
    method("rows", 0, 0),
    method("aligned", 0, [0], 4),
    method("attention", 0, [0], numbers(1, 2, 1, 8)),
    ValidCall("regard.distributed.PagedBatch.crop", lambda: batch().crop, lambda: given(1)),
    ValidCall("regard.distributed.PagedBatch.reorder", lambda: batch().reorder, lambda: given(torch.tensor([0]))),
]

LEFT_OUT = {
    "regard.distributed.Peers": "made by the functions of the package",
    "regard.distributed.SequenceParallel": "needs ranks; tests/distributed",
}
