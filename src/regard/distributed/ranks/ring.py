"""Ring attention: every rank keeps its queries and receives the keys and values of the other ranks in turn.

At distance t rank r processes the keys of rank r - t, while the keys of rank r - t - 1 are in transit. Partial outputs
are merged, so only normalizers that merge are supported: softmax and sink, which merge by lse, and elementwise
normalizers, which add up.

Keys are sent directly to the ranks that need them. This takes as many bytes as passing them from neighbor to neighbor,
and ranks without visible pairs exchange nothing. In the backward pass the keys are sent again, and the gradients of
keys and values are sent directly back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.backends.protocol import Backend, SavedForBackward
from regard.backends.shared.autograd import run_backward, run_forward
from regard.call.spec import BackendInputs
from regard.call.subcall import StridedRange
from regard.distributed.partials import PartialOutput, finalize_partial, merge_partial_
from regard.distributed.ranks.communicator import PendingTransfer
from regard.distributed.ranks.sharded_call import HALF_DTYPES, ShardedCall, local_slices
from regard.errors import ArgumentError
from regard.plan.choose import Plan
from regard.tensors.precision import without_autocast

ShardSlice = tuple[StridedRange, slice]  # positions in the sequence, and rows of the rank's tensors
Q, K, V = 0, 1, 2  # indices in `BackendInputs.all_tensors`; captured tensors follow


def ring_attention(sharded_call: ShardedCall) -> Tensor:
    """Return the output (batch, heads, local n_q, value_dim) of this rank's queries."""
    check_mergeable(sharded_call)
    call = sharded_call.call
    with without_autocast(call.q.device.type):
        inputs = sharded_call.inputs()
        function: Any = _RingFunction
        output: Tensor
        output, statistic = function.apply(_RingCall(sharded_call, inputs.detached()), *inputs.all_tensors())
        return finalize_partial(call, (output, statistic if call.spec.normalizer.statistic else None))


def check_mergeable(sharded_call: ShardedCall, function: str = "attention") -> None:
    """Raise if the output cannot be merged from parts of the keys; `function` is the name of the called function."""
    call = sharded_call.call
    statistic = call.spec.normalizer.statistic
    use = "Use" if function == "attention" else "Use regard.distributed.attention with"
    if call.normalizer.iterations > 1:
        raise ArgumentError(
            "keys on several ranks need a normalizer whose partial outputs merge; got sinkhorn, which also normalizes "
            f'columns. {use} method="ulysses", where each rank has all tokens of some heads.'
        )
    if statistic not in (None, "lse"):
        raise ArgumentError(
            "keys on several ranks need a normalizer whose partial outputs merge, such as softmax or sink; got "
            f"{call.normalizer.formula}, whose {statistic} needs the whole row. "
            f'{use} method="ulysses" or method="all_gather".'
        )
    if call.relative_values is not None:
        raise ArgumentError(
            "keys on several ranks need values that do not depend on the query; got relative values. "
            f'{use} method="all_gather".'
        )


class _RingFunction(torch.autograd.Function):
    """(ring call, q, k, v, captured tensors..., parameters...) -> output and row statistic of this rank's queries."""

    @staticmethod
    def forward(ctx: Any, ring_call: "_RingCall", *tensors: Tensor) -> tuple[Tensor, Tensor]:
        output, statistic = ring_call.forward()
        ctx.ring_call = ring_call
        ctx.save_for_backward(output, statistic, *tensors)
        return output, statistic

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_output: Tensor, d_statistic: Tensor) -> tuple[Any, ...]:
        output, statistic, *tensors = ctx.saved_tensors
        ring_call: _RingCall = replace(ctx.ring_call, inputs=ctx.ring_call.inputs.with_tensors(tensors))
        needs_grad = list(ctx.needs_input_grad[1:])
        return None, *ring_call.backward(SavedForBackward(output, statistic, d_output, d_statistic), needs_grad)


@dataclass(frozen=True, eq=False)
class _RingCall:
    """The forward and backward pass of one call on this rank; `inputs` are detached."""

    sharded_call: ShardedCall
    inputs: BackendInputs

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the output and the row statistic, which is empty if the normalizer has none."""
        accumulated: list[PartialOutput | None] = [None for _ in self.sharded_call.local_query_positions]
        for _, source_rank, kv in self._rotate_kv():
            for chunk_index, queries, keys in self._chunk_pairs(source_rank if kv else None):
                plan, inputs, backend = self._plan_chunk(queries, keys, kv)
                accumulated[chunk_index] = merge_partial_(
                    accumulated[chunk_index], run_forward(backend, plan.spec, inputs, plan.tiling)[:2]
                )
        counts = (chunk.count for chunk in self.sharded_call.local_query_positions)
        partials = [
            partial or self.sharded_call.empty_partial(self.inputs, count)
            for partial, count in zip(accumulated, counts, strict=True)
        ]
        output = _concat_chunks([chunk_output for chunk_output, _ in partials])
        statistics = [lse for _, lse in partials if lse is not None]
        return output, _concat_chunks(statistics) if statistics else output.new_empty(0)

    def backward(self, saved: SavedForBackward, needs_grad: list[bool]) -> list[Tensor | None]:
        """Return the gradients of `BackendInputs.all_tensors`, with None where no gradient is needed."""
        comm = self.sharded_call.comm
        sums = _RingGradientSums(self.inputs.all_tensors(), needs_grad)
        pending: tuple[PendingTransfer, list[Tensor]] | None = None
        for distance, source_rank, kv in self._rotate_kv():
            gradients = self._kv_gradients(source_rank, kv, saved, needs_grad, sums) if kv else []
            if distance == 0:
                sums.add_kv(gradients)
                continue
            sums.add_received(pending)
            pending = None
            target_rank = (comm.rank + distance) % comm.world_size
            is_visible = self.sharded_call.has_visible_keys(target_rank, comm.rank)
            buffers = sums.kv_receive_buffers() if is_visible else []
            pending = comm.batch_isend_irecv({source_rank: gradients}, {target_rank: buffers}), buffers
            del gradients, buffers  # only the transfer holds them while the next gradients are computed
        sums.add_received(pending)
        return sums.gradients()

    def _rotate_kv(self) -> Iterator[tuple[int, int, list[Tensor]]]:
        """Yield (distance, rank, its keys and values), nearest first; the next ones are in transit meanwhile.

        The list is empty if no key of that rank is visible.
        """
        sharded_call, comm = self.sharded_call, self.sharded_call.comm
        local_kv = [self.inputs.k.contiguous(), self.inputs.v.contiguous()]
        kv = local_kv if sharded_call.has_visible_keys(comm.rank, comm.rank) else []
        for distance in range(comm.world_size):
            current_rank = (comm.rank - distance) % comm.world_size
            target_rank = (comm.rank + distance + 1) % comm.world_size
            source_rank = (comm.rank - distance - 1) % comm.world_size
            has_next = distance + 1 < comm.world_size
            outgoing = local_kv if has_next and sharded_call.has_visible_keys(target_rank, comm.rank) else []
            needs_next = has_next and sharded_call.has_visible_keys(comm.rank, source_rank)
            incoming = self._receive_buffers(source_rank) if needs_next else []
            pending = comm.batch_isend_irecv({target_rank: outgoing}, {source_rank: incoming})
            yield distance, current_rank, kv
            pending.wait()
            kv = incoming

    def _receive_buffers(self, source_rank: int) -> list[Tensor]:
        num_keys = sum(chunk.count for chunk in self.sharded_call.key_positions(source_rank))
        return [x.new_empty((*x.shape[:2], num_keys, x.shape[-1])) for x in (self.inputs.k, self.inputs.v)]

    def _chunk_pairs(self, source_rank: int | None) -> Iterator[tuple[int, ShardSlice, ShardSlice]]:
        """Yield each chunk of this rank's queries, with its index, and each chunk of the keys of a rank."""
        if source_rank is None:
            return
        for chunk_index, queries in enumerate(local_slices(self.sharded_call.local_query_positions)):
            for keys in local_slices(self.sharded_call.key_positions(source_rank)):
                if queries[0].count and keys[0].count:
                    yield chunk_index, queries, keys

    def _plan_chunk(
        self, queries: ShardSlice, keys: ShardSlice, kv: Sequence[Tensor]
    ) -> tuple[Plan, BackendInputs, Backend]:
        """Plan the attention of a chunk of queries over a chunk of keys.

        Half precision is computed in float32, so that the merged output is rounded once.
        """
        (query_positions, query_rows), (key_positions, key_rows) = queries, keys
        inputs = self.sharded_call.slice_queries(self.inputs, query_rows)
        k, v = (x[:, :, key_rows] for x in kv)
        dtype = torch.float32 if self.sharded_call.call.spec.dtype in HALF_DTYPES else None
        if dtype is not None:
            inputs, k, v = replace(inputs, q=inputs.q.to(dtype)), k.to(dtype), v.to(dtype)
        return self.sharded_call.plan_subcall(replace(inputs, k=k, v=v), query_positions, key_positions, dtype)

    def _kv_gradients(
        self,
        source_rank: int,
        kv: Sequence[Tensor],
        saved: SavedForBackward,
        needs_grad: list[bool],
        sums: "_RingGradientSums",
    ) -> list[Tensor]:
        """Return the gradients of a rank's keys and values from this rank's queries; add all others to `sums`."""
        kv_sums = _RingGradientSums([self.inputs.q, *kv], [False, *needs_grad[1:3]])
        query_dependent = self.sharded_call.query_dependent_tensors()
        for _, queries, keys in self._chunk_pairs(source_rank):
            query_rows, key_rows = queries[1], keys[1]
            plan, inputs, backend = self._plan_chunk(queries, keys, kv)
            saved_tensors = saved.output, saved.statistic, saved.d_output, saved.d_statistic
            chunk_saved = SavedForBackward(*(_slice_queries(x, query_rows) for x in saved_tensors))
            gradients = iter(run_backward(backend, plan.spec, inputs, plan.tiling, chunk_saved, needs_grad))
            for index in (index for index, needed in enumerate(needs_grad) if needed):
                if index in (K, V):
                    kv_sums.add(index, next(gradients), key_rows)
                else:
                    has_query_rows = index == Q or index - 3 in query_dependent
                    sums.add(index, next(gradients), query_rows if has_query_rows else None)
        return kv_sums.kv_sums()


class _RingGradientSums:
    """Sums of the gradients of q, k, v and further tensors; in float32 if the tensors are half precision."""

    def __init__(self, tensors: Sequence[Tensor], needs_grad: Sequence[bool]) -> None:
        self.tensors, self.needs_grad = tensors, needs_grad
        self._sums: dict[int, Tensor] = {}

    def add(self, index: int, gradient: Tensor, rows: slice | None = None) -> None:
        """Add to the gradient of tensor number `index`, or to some of its rows."""
        if index not in self._sums and gradient.shape == self.tensors[index].shape:
            self._sums[index] = gradient.to(_sum_dtype(gradient))  # reuses the backend's tensor instead of zeros
            return
        total = self._sum_at(index)
        target = total if rows is None else total[:, :, rows]
        target += gradient

    def add_kv(self, gradients: Sequence[Tensor]) -> None:
        for index, gradient in zip(self._kv_indices(), gradients, strict=False):
            self.add(index, gradient)

    def add_received(self, pending: tuple[PendingTransfer, list[Tensor]] | None) -> None:
        """Wait for gradients from another rank and add them."""
        if pending is not None:
            transfer, gradients = pending
            transfer.wait()
            self.add_kv(gradients)

    def kv_sums(self) -> list[Tensor]:
        return [self._sum_at(index) for index in self._kv_indices()]

    def kv_receive_buffers(self) -> list[Tensor]:
        tensors = (self.tensors[index] for index in self._kv_indices())
        return [x.new_empty(x.shape, dtype=_sum_dtype(x)) for x in tensors]

    def gradients(self) -> list[Tensor | None]:
        return [
            self._sum_at(index).to(tensor.dtype) if needed else None
            for index, (tensor, needed) in enumerate(zip(self.tensors, self.needs_grad, strict=True))
        ]

    def _kv_indices(self) -> list[int]:
        return [index for index in (K, V) if self.needs_grad[index]]

    def _sum_at(self, index: int) -> Tensor:
        if index not in self._sums:
            x = self.tensors[index]
            self._sums[index] = x.new_zeros(x.shape, dtype=_sum_dtype(x))
        return self._sums[index]


def _concat_chunks(chunks: list[Tensor]) -> Tensor:
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=2)


def _slice_queries(x: Tensor, rows: slice) -> Tensor:
    return x[:, :, rows] if x.dim() > 1 else x


def _sum_dtype(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in HALF_DTYPES else x.dtype
