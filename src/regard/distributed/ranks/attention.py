"""Attention over ranks: `regard.attention` of a sequence that is sharded over a process group."""

from typing import Any

import torch

from regard import checks
from regard.attention import QueryOffsetLike
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.call.spec import ParsedCall
from regard.distributed.ranks.all_gather import all_gather_attention
from regard.distributed.ranks.communicator import Communicator, GroupLike
from regard.distributed.ranks.consistency import check_consistent_call
from regard.distributed.ranks.gaussian_center import synchronize_center
from regard.distributed.ranks.ring import ring_attention
from regard.distributed.ranks.sharded_call import ShardedCall
from regard.distributed.ranks.sharding import LAYOUTS, check_local_tensors, check_shard_lengths, row_count
from regard.distributed.ranks.ulysses import ulysses_attention
from regard.mask import MaskLike
from regard.normalizer import NormalizerLike
from regard.score import ScoreLike, ValueLike
from regard.tensors.convert import Array

METHODS = {"ring": ring_attention, "ulysses": ulysses_attention, "all_gather": all_gather_attention}


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    score: ScoreLike | None = None,
    mask: MaskLike | None = None,
    normalizer: NormalizerLike | None = None,
    value: ValueLike | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    query_offset: QueryOffsetLike | None = None,
    backend: str | None = None,
    group: "GroupLike | None" = None,
    method: str = "ring",
    layout: str = "contiguous",
) -> Array:
    """Compute `regard.attention` of a sequence that is sharded over ranks.

    Mask, score, `query_offset` and the tensors that they capture refer to the whole sequence, so every rank passes the
    same. Mismatched calls raise the same error on every rank. Gradients of q, k and v include the contributions of all
    ranks. Gradients of tensors that every rank has (slopes, biases, a sink) are this rank's contribution: sum them over
    ranks like those of any other parameter.

    Args:
        q, k, v: this rank's rows (..., heads, local length, head_dim), as `shard` returns them.
        score, mask, normalizer, value, dropout, query_offset, backend: see `regard.attention`.
        seed: seed of the dropout pattern; None, the default, takes a random seed of the first rank for all ranks.
        group: process group or one-dimensional device mesh; None, the default, means all ranks.
        method: "ring" (the default) sends keys from rank to rank and supports softmax, sink, sigmoid and ReLU;
            "ulysses" exchanges tokens for heads and supports everything, if the number of ranks divides the heads;
            "all_gather" sends all keys to every rank and supports everything except Sinkhorn.
        layout: distribution of the tokens over the ranks, "contiguous" (the default), "zigzag" or "striped"; see
            `regard.distributed.ranks.sharding`.

    Returns:
        This rank's rows of the output.

    >>> import torch.distributed as dist
    >>> from regard.distributed import shard
    >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    >>> q, k, v = torch.randn(3, 1, 4, 10, 8)
    >>> attention(shard(q), shard(k), shard(v)).shape
    torch.Size([1, 4, 10, 8])
    >>> dist.destroy_process_group()
    """
    comm = Communicator.from_group(group)
    checks.choice(method, "method", METHODS)
    checks.choice(layout, "layout", LAYOUTS)
    gathered = comm.all_gather_ints([row_count(q), row_count(k), _local_seed(seed, dropout)])
    seed = gathered[0][2] if seed is None else seed  # all ranks use the dropout pattern of the first
    q_lengths, k_lengths = [n_q for n_q, _, _ in gathered], [n_k for _, n_k, _ in gathered]

    def parse() -> ParsedCall:  # runs inside the consistency check, so that an error on one rank raises on all
        check_local_tensors(q, k, v, backend)
        check_shard_lengths(q_lengths, layout, "q")
        check_shard_lengths(k_lengths, layout, "k")
        arguments = AttentionCall(q, k, v, score, mask, normalizer, value, dropout, seed, query_offset)
        return parse_call(arguments, full_lengths=(sum(q_lengths), sum(k_lengths)))

    extra = {"method": method, "layout": layout, "backend": backend, "gradients": _requires_grad(q, k, v)}
    call = check_consistent_call(comm, parse, extra)
    sharded_call = ShardedCall(synchronize_center(call, comm), comm, layout, backend)
    output: Array = call.restore_shape(METHODS[method](sharded_call))
    return output


def _local_seed(seed: object, dropout: object) -> int:
    """Return the seed, or a new random one if dropout is used; invalid values are rejected later, on all ranks."""
    if isinstance(seed, int):
        return seed % 2**63
    return int(torch.randint(2**62, ())) if isinstance(dropout, (int, float)) and dropout else 0


def _requires_grad(*tensors: Any) -> list[bool]:
    return [torch.is_grad_enabled() and bool(getattr(x, "requires_grad", False)) for x in tensors]
