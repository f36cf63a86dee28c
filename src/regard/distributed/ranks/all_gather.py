"""All-gather attention: every rank receives all keys and values and computes the output of its own queries.

All normalizers except Sinkhorn are supported.
"""

from dataclasses import replace

import torch
from torch import Tensor

from regard.backends.execute import apply_epilogue
from regard.backends.shared.autograd import differentiable_forward
from regard.call.subcall import StridedRange
from regard.distributed.ranks.collectives import all_gather_autograd
from regard.distributed.ranks.sharded_call import HALF_DTYPES, ShardedCall, local_slices
from regard.distributed.ranks.sharding import shard_lengths, to_token_order
from regard.errors import ArgumentError
from regard.tensors.precision import without_autocast


def all_gather_attention(sharded_call: ShardedCall) -> Tensor:
    """Return the output (batch, heads, local n_q, value_dim) of this rank's queries."""
    call, comm = sharded_call.call, sharded_call.comm
    if call.normalizer.iterations > 1:
        raise ArgumentError(
            'method="all_gather" needs a normalizer of single rows; got sinkhorn, which also normalizes columns. '
            'Use method="ulysses", where each rank has all tokens of some heads.'
        )
    lengths = shard_lengths(sharded_call.layout, call.spec.n_k, comm.world_size)
    with without_autocast(call.q.device.type):
        inputs = sharded_call.inputs()
        dtype = torch.float32 if call.spec.dtype in HALF_DTYPES else None  # gradients are summed over ranks
        inputs = inputs if dtype is None else replace(inputs, q=inputs.q.to(dtype))
        gathered = (all_gather_autograd(x.movedim(2, 0), comm, lengths, dtype) for x in (inputs.k, inputs.v))
        k, v = (to_token_order(x, sharded_call.layout, 0, comm.world_size).movedim(0, 2) for x in gathered)
        all_keys = StridedRange(0, call.spec.n_k)
        outputs = []
        for queries, rows in local_slices(sharded_call.local_query_positions):
            chunk_inputs = replace(sharded_call.slice_queries(inputs, rows), k=k, v=v)
            plan, chunk_inputs, backend = sharded_call.plan_subcall(chunk_inputs, queries, all_keys, dtype)
            output, statistic, *_ = differentiable_forward(backend, plan.spec, plan.tiling, chunk_inputs)
            positions = _token_positions(sharded_call, queries) if call.relative_values is not None else None
            outputs.append(apply_epilogue(call, plan, chunk_inputs, output, statistic, call.spec.n_k, positions))
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return output.to(call.spec.dtype)


def _token_positions(sharded_call: ShardedCall, queries: StridedRange) -> tuple[Tensor, Tensor]:
    """Return the positions of `queries` and of all keys."""
    query_offset = sharded_call.call.query_offset
    if isinstance(query_offset, Tensor):
        raise ArgumentError(
            "relative values over ranks need one query_offset for the whole batch; got one per batch element. Call it "
            "for each batch element separately."
        )
    return torch.tensor(list(queries.to_range())) + query_offset, torch.arange(sharded_call.call.spec.n_k)
