"""Attention over several processes, over files larger than memory, and over a paged key-value cache.

`attention`, `decode`, `shard`, `unshard`, `positions` and `ContextParallel` need a process group of
`torch.distributed`. `attention_from_files`, `open_memmap`, `PagedCache` and `PagedBatchCache` run in a single process.
"""

from regard.distributed.out_of_core.attention import attention_from_files
from regard.distributed.out_of_core.tensor_file import open_memmap
from regard.distributed.paged.batch_cache import PagedBatchCache
from regard.distributed.paged.cache import PagedCache
from regard.distributed.ranks.attention import attention
from regard.distributed.ranks.communicator import Communicator
from regard.distributed.ranks.context_parallel import ContextParallel
from regard.distributed.ranks.decode import decode
from regard.distributed.ranks.sharding import positions, shard, unshard

__all__ = [
    "Communicator",
    "ContextParallel",
    "PagedBatchCache",
    "PagedCache",
    "attention",
    "attention_from_files",
    "decode",
    "open_memmap",
    "positions",
    "shard",
    "unshard",
]


def __dir__() -> list[str]:
    return sorted(__all__)
