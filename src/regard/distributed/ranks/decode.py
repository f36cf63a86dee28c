"""Decoding over ranks: every rank has the queries and a part of the cached keys and values.

Each rank attends to its own keys. Two reductions merge the outputs by their lse. Their cost grows with the logarithm of
the number of ranks and does not depend on the number of keys.
"""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from regard import checks
from regard.attention import QueryOffsetLike
from regard.backends.shared.autograd import run_forward
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.call.spec import ParsedCall
from regard.call.subcall import StridedRange
from regard.distributed.partials import PartialOutput, finalize_partial, merge_partial_
from regard.distributed.ranks.communicator import Communicator, GroupLike
from regard.distributed.ranks.consistency import check_consistent_call
from regard.distributed.ranks.gaussian_center import synchronize_center
from regard.distributed.ranks.ring import check_mergeable
from regard.distributed.ranks.sharded_call import HALF_DTYPES, ShardedCall, local_slices
from regard.distributed.ranks.sharding import LAYOUTS, check_local_tensors, check_shard_lengths, row_count
from regard.mask import MaskLike
from regard.normalizer import NormalizerLike
from regard.score import ScoreLike, ValueLike
from regard.tensors.convert import Array
from regard.tensors.precision import without_autocast


def decode(
    q: Array,
    k: Array,
    v: Array,
    *,
    score: ScoreLike | None = None,
    mask: MaskLike | None = None,
    normalizer: NormalizerLike | None = None,
    value: ValueLike | None = None,
    query_offset: QueryOffsetLike | None = None,
    backend: str | None = None,
    group: "GroupLike | None" = None,
    layout: str = "contiguous",
) -> Array:
    """Compute attention of the same queries on every rank over keys and values that are sharded over ranks.

    There are no gradients. Only normalizers that merge are supported: softmax, sink, sigmoid and ReLU.

    Args:
        q: queries (..., heads, n_q, head_dim), the same on every rank.
        k, v: this rank's keys and values. With the contiguous layout a rank may hold any number of keys, such as a
            cache that grows on one rank.
        score, mask, normalizer, value, backend: see `regard.attention`.
        query_offset: position of the first query among all keys; None, the default, puts the queries at the end.
        group, layout: see `regard.distributed.attention`.

    Returns:
        The output (..., heads, n_q, value_dim), the same on every rank.

    >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    >>> q, k, v = torch.randn(1, 4, 1, 8), torch.randn(1, 4, 10, 8), torch.randn(1, 4, 10, 8)
    >>> decode(q, k, v).shape
    torch.Size([1, 4, 1, 8])
    >>> dist.destroy_process_group()
    """
    comm = Communicator.from_group(group)
    checks.choice(layout, "layout", LAYOUTS)
    with torch.no_grad():
        k_lengths = [n_k for (n_k,) in comm.all_gather_ints([row_count(k)])]

        def parse() -> ParsedCall:
            check_local_tensors(q, k, v, backend)
            if layout != "contiguous":
                check_shard_lengths(k_lengths, layout, "k")
            arguments = AttentionCall(q, k, v, score, mask, normalizer, value, query_offset=query_offset)
            return parse_call(arguments, full_lengths=(row_count(q), sum(k_lengths)))

        extra = {"layout": layout, "backend": backend, "queries": tuple(getattr(q, "shape", ()))}
        call = check_consistent_call(comm, parse, extra)
        sharded_call = ShardedCall(synchronize_center(call, comm), comm, layout, backend)
        check_mergeable(sharded_call, "decode")
        output: Array = call.restore_shape(_decode_output(sharded_call, _local_key_positions(k_lengths, sharded_call)))
        return output


def _local_key_positions(k_lengths: list[int], sharded_call: ShardedCall) -> tuple[StridedRange, ...]:
    """Return the positions of this rank's keys."""
    rank = sharded_call.comm.rank
    if sharded_call.layout == "contiguous":
        return (StridedRange(sum(k_lengths[:rank]), k_lengths[rank]),)
    return sharded_call.key_positions(rank)


def _decode_output(sharded_call: ShardedCall, key_positions: tuple[StridedRange, ...]) -> Tensor:
    with without_autocast(sharded_call.call.q.device.type):
        output, statistic = _local_partial(sharded_call, key_positions)
        if statistic is None:
            sharded_call.comm.all_reduce(output)
        else:
            output, statistic = _merge_across_ranks(sharded_call.comm, output, statistic)
        return finalize_partial(sharded_call.call, (output, statistic))


def _local_partial(sharded_call: ShardedCall, key_positions: tuple[StridedRange, ...]) -> PartialOutput:
    """Return the partial output over this rank's keys; half precision is computed in float32 and rounded once."""
    spec, inputs = sharded_call.call.spec, sharded_call.inputs()
    dtype = torch.float32 if spec.dtype in HALF_DTYPES else None
    if dtype is not None:
        inputs = replace(inputs, q=inputs.q.to(dtype), k=inputs.k.to(dtype), v=inputs.v.to(dtype))
    accumulated: PartialOutput | None = None
    for keys, rows in local_slices(key_positions):
        if keys.count and spec.n_q:
            chunk_inputs = replace(inputs, k=inputs.k[:, :, rows], v=inputs.v[:, :, rows])
            all_queries = StridedRange(0, spec.n_q)
            plan, chunk_inputs, backend = sharded_call.plan_subcall(chunk_inputs, all_queries, keys, dtype)
            accumulated = merge_partial_(accumulated, run_forward(backend, plan.spec, chunk_inputs, plan.tiling)[:2])
    return sharded_call.empty_partial(inputs, spec.n_q) if accumulated is None else accumulated


def _merge_across_ranks(comm: Communicator, output: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Return (output, lse) over the keys of all ranks."""
    max_lse = comm.all_reduce(lse.clone(), dist.ReduceOp.MAX)
    reference = torch.where(max_lse == -torch.inf, 0.0, max_lse)
    weight = torch.exp(lse - reference).unsqueeze(-1)
    sums = comm.all_reduce(torch.cat([output.to(lse.dtype) * weight, weight], dim=-1).contiguous())
    total = sums[..., -1]
    is_empty = total == 0
    divisor = torch.where(is_empty, 1.0, total)
    return sums[..., :-1] / divisor.unsqueeze(-1), torch.where(is_empty, -torch.inf, reference + divisor.log())
