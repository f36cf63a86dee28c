"""Attention beyond one machine: sequences that ranks hold parts of, over `torch.distributed`."""

from regard.distributed.attention import attention
from regard.distributed.decode import decode
from regard.distributed.layout import positions, shard, unshard
from regard.distributed.parallel import SequenceParallel
from regard.distributed.peers import Peers

__all__ = ["Peers", "SequenceParallel", "attention", "decode", "positions", "shard", "unshard"]
