"""Attention beyond one machine: sequences that ranks hold parts of, over `torch.distributed`."""

from regard.distributed.attention import attention
from regard.distributed.decode import decode
from regard.distributed.layout import positions, shard, unshard
from regard.distributed.peers import Peers

__all__ = ["Peers", "attention", "decode", "positions", "shard", "unshard"]
