"""Valid calls of `regard.distributed` in one process: attention over files, paged caches, and a group of one rank."""

from typing import Any

import numpy as np
import torch

from regard import distributed
from tests.sweeps.valid_calls.inputs import numbers, qkv
from tests.sweeps.valid_calls.table import Arguments, ValidCall, args


def group() -> None:
    """Start a process group of this process, unless a group exists."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def valid_call(name: str, *positional: Any, use: Any = None, **keywords: Any) -> ValidCall:
    def function() -> Any:
        group()
        return getattr(distributed, name)

    def arguments() -> Arguments:
        return args(*positional, **keywords)

    return ValidCall(f"regard.distributed.{name}", function, arguments, use)


def pages() -> Any:
    paged = distributed.PagedCache(page_size=2)
    paged.add_sequence()
    paged.append(0, [0], numbers(1, 2, 3, 8), numbers(1, 2, 3, 8, seed=1))
    return paged


def method(name: str, *positional: Any, **keywords: Any) -> ValidCall:
    def arguments() -> Arguments:
        return args(*positional, **keywords)

    return ValidCall(f"regard.distributed.PagedCache.{name}", lambda: getattr(pages(), name), arguments)


def batch() -> Any:
    return distributed.PagedBatchCache(pages(), [0])


def files() -> Arguments:
    for name, array in zip("qkv", qkv(), strict=True):
        np.save(f"{name}.npy", array.numpy())
    return args("q.npy", "k.npy", "v.npy")


def file() -> Arguments:
    return args(files().positional[0])


CALLS = [
    valid_call("attention", *qkv()),
    valid_call("decode", qkv()[0][:, :, :1], *qkv()[1:]),
    valid_call("positions", 6),
    valid_call("shard", qkv()[0]),
    valid_call("unshard", qkv()[0]),
    ValidCall("regard.distributed.attention_from_files", lambda: distributed.attention_from_files, files),
    ValidCall("regard.distributed.open_memmap", lambda: distributed.open_memmap, file),
    valid_call("PagedCache", use=lambda paged: paged.append(0, [paged.add_sequence()], numbers(1, 2, 3, 8))),
    ValidCall("regard.distributed.PagedBatchCache", lambda: distributed.PagedBatchCache, lambda: args(pages(), [0])),
    method("length", 0),
    method("layer_length", 0, 0),
    method("fork", 0),
    method("crop", 0, 1),
    method("drop", 0),
    method("append", 0, [0], numbers(1, 2, 3, 8), numbers(1, 2, 3, 8, seed=1)),
    method("rows", 0, 0),
    method("left_padded_rows", 0, [0], 4),
    method("attention", 0, [0], numbers(1, 2, 1, 8)),
    ValidCall("regard.distributed.PagedBatchCache.crop", lambda: batch().crop, lambda: args(1)),
    ValidCall("regard.distributed.PagedBatchCache.reorder", lambda: batch().reorder, lambda: args(torch.tensor([0]))),
]

LEFT_OUT = {
    "regard.distributed.Communicator": "created by the functions of the package",
    "regard.distributed.ContextParallel": "needs ranks; tests/distributed",
}
