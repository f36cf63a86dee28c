"""Ulysses attention: ranks exchange tokens for heads, so that each rank has all tokens of some heads.

A second exchange returns the output to the ranks of its tokens. Everything that a single process supports is supported,
as long as the number of ranks divides the number of heads.
"""

from dataclasses import replace

import torch
from torch import Tensor

from regard.backends.execute import apply_epilogue
from regard.backends.shared.autograd import differentiable_forward
from regard.backends.shared.sinkhorn import reduce_to_softmax
from regard.call.spec import BackendInputs
from regard.call.subcall import StridedRange
from regard.distributed.partials import finalize_partial
from regard.distributed.ranks.collectives import all_to_all_autograd
from regard.distributed.ranks.communicator import Communicator
from regard.distributed.ranks.sharded_call import ShardedCall
from regard.distributed.ranks.sharding import shard_lengths, split_by_rank, to_token_order
from regard.errors import ArgumentError
from regard.tensors.precision import without_autocast


def ulysses_attention(sharded_call: ShardedCall) -> Tensor:
    """Return the output (batch, heads, local n_q, value_dim) of this rank's queries."""
    call, comm = sharded_call.call, sharded_call.comm
    spec = call.spec
    if spec.num_heads % comm.world_size:
        raise ArgumentError(
            f'method="ulysses" needs a number of ranks that divides num_heads; got {comm.world_size} ranks and '
            f'num_heads={spec.num_heads}. Use method="ring" or method="all_gather".'
        )
    local_heads = spec.num_heads // comm.world_size
    with without_autocast(call.q.device.type):
        inputs = _gather_inputs(sharded_call, sharded_call.inputs(), local_heads)
        all_queries, all_keys = StridedRange(0, spec.n_q), StridedRange(0, spec.n_k)
        plan, inputs, backend = sharded_call.plan_subcall(
            inputs, all_queries, all_keys, first_head=comm.rank * local_heads
        )
        if call.normalizer.iterations > 1:
            softmax_spec, inputs = reduce_to_softmax(backend, plan.spec, inputs, call.normalizer.iterations)
            plan = replace(plan, spec=softmax_spec)
        output, statistic, *_ = differentiable_forward(backend, plan.spec, plan.tiling, inputs)
        # the factor may differ between heads, so it is applied after the exchange
        without_factor = replace(call, normalizer=replace(call.normalizer, factor=None))
        output = apply_epilogue(without_factor, plan, inputs, output, statistic)
        output = _heads_to_tokens(output, sharded_call)
        if call.normalizer.factor is None:
            return output
        local_statistic = (
            None if statistic is None else _heads_to_tokens(statistic.unsqueeze(-1), sharded_call).squeeze(-1)
        )
        return finalize_partial(call, (output, local_statistic))


def _gather_inputs(sharded_call: ShardedCall, inputs: BackendInputs, local_heads: int) -> BackendInputs:
    """Exchange this rank's tokens for all tokens of its heads."""
    comm, spec = sharded_call.comm, sharded_call.call.spec
    query_dependent = sharded_call.query_dependent_tensors()
    q = _tokens_to_heads(inputs.q, sharded_call, spec.n_q)
    k, v = (_tokens_to_heads(_repeat_kv(x, comm), sharded_call, spec.n_k) for x in (inputs.k, inputs.v))
    tensors = (
        _tokens_to_heads(tensor, sharded_call, spec.n_q) if index in query_dependent else tensor
        for index, tensor in enumerate(inputs.tensors)
    )
    heads = slice(comm.rank * local_heads, (comm.rank + 1) * local_heads)
    parameters = (p[heads] if spec.score_kind == "additive" and p.dim() == 2 else p for p in inputs.parameters)
    return replace(inputs, q=q, k=k, v=v, tensors=tuple(tensors), parameters=tuple(parameters))


def _repeat_kv(x: Tensor, comm: Communicator) -> Tensor:
    """Repeat key heads if there are fewer of them than ranks."""
    num_kv_heads = x.shape[1]
    if num_kv_heads % comm.world_size == 0:
        return x
    if comm.world_size % num_kv_heads:
        raise ArgumentError(
            'method="ulysses" needs a number of ranks that divides num_kv_heads or is a multiple of it; got '
            f'{comm.world_size} ranks and num_kv_heads={num_kv_heads}. Use method="ring" or method="all_gather".'
        )
    return x.repeat_interleave(comm.world_size // num_kv_heads, dim=1)


def _tokens_to_heads(x: Tensor, sharded_call: ShardedCall, num_tokens: int) -> Tensor:
    """Exchange (batch, heads, local tokens, dim) for (batch, local heads, tokens, dim)."""
    world_size = sharded_call.comm.world_size
    if world_size == 1:
        return x
    lengths = shard_lengths(sharded_call.layout, num_tokens, world_size)
    batch_size, num_heads, _, dim = x.shape
    shapes = [(batch_size, num_heads // world_size, length, dim) for length in lengths]
    received = all_to_all_autograd(x.chunk(world_size, dim=1), shapes, sharded_call.comm)
    return to_token_order(torch.cat(received, dim=2), sharded_call.layout, 2, world_size)


def _heads_to_tokens(x: Tensor, sharded_call: ShardedCall) -> Tensor:
    """Exchange (batch, local heads, tokens, dim) for (batch, heads, local tokens, dim)."""
    world_size = sharded_call.comm.world_size
    if world_size == 1:
        return x
    outgoing = split_by_rank(x, sharded_call.layout, 2, world_size)
    shape = tuple(outgoing[sharded_call.comm.rank].shape)
    return torch.cat(all_to_all_autograd(outgoing, [shape] * world_size, sharded_call.comm), dim=1)
