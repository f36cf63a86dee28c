"""Attention beyond one machine and beyond memory: over ranks, over files, over caches in pages.

`attention` over ranks, `shard` and `unshard`, `decode` over a cache in parts and `SequenceParallel` for models need a
process group of `torch.distributed`; `attention_from_files` and `PagedCache` need nothing.
"""

from regard.distributed.attention import attention
from regard.distributed.decode import decode
from regard.distributed.files import attention_from_files
from regard.distributed.layout import positions, shard, unshard
from regard.distributed.paged_batch import PagedBatch
from regard.distributed.pages import PagedCache
from regard.distributed.parallel import SequenceParallel
from regard.distributed.peers import Peers
from regard.distributed.stored import mapped

__all__ = [
    "PagedBatch",
    "PagedCache",
    "Peers",
    "SequenceParallel",
    "attention",
    "attention_from_files",
    "decode",
    "mapped",
    "positions",
    "shard",
    "unshard",
]
