"""All-gather and all-to-all that propagate gradients."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.distributed.ranks.communicator import Communicator


def all_to_all_autograd(
    outgoing: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], comm: Communicator
) -> tuple[Tensor, ...]:
    """Send outgoing[r] to each rank r and return the tensors received, of shape shapes[r] from rank r."""
    if comm.world_size == 1:
        return tuple(outgoing)
    received: tuple[Tensor, ...] = _apply(_AllToAll, comm, list(shapes), *outgoing)
    return received


def all_gather_autograd(
    x: Tensor, comm: Communicator, lengths: Sequence[int], dtype: torch.dtype | None = None
) -> Tensor:
    """Concatenate the tensors of all ranks along the first dimension; rank r contributes lengths[r] rows.

    The gradient of a rank's rows is the sum over all ranks. `dtype` is the dtype of the result, and that in which
    gradients are sent and summed; None keeps the dtype of x.
    """
    if comm.world_size == 1:
        return x if dtype is None else x.to(dtype)
    gathered: Tensor = _apply(_AllGather, x, comm, list(lengths), dtype or x.dtype)
    return gathered


def _apply(function: Any, *args: Any) -> Any:
    return function.apply(*args)


class _AllGather(torch.autograd.Function):
    """(local rows, comm, lengths, dtype) -> rows of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Communicator, lengths: list[int], dtype: torch.dtype) -> Tensor:
        ctx.comm, ctx.lengths, ctx.dtype = comm, lengths, x.dtype
        gathered = x.new_empty((sum(lengths), *x.shape[1:]))
        parts = gathered.split(lengths)
        parts[comm.rank].copy_(x.detach())
        other_ranks = [r for r in range(comm.world_size) if r != comm.rank]
        outgoing, incoming = {r: [parts[comm.rank]] for r in other_ranks}, {r: [parts[r]] for r in other_ranks}
        comm.batch_isend_irecv(outgoing, incoming).wait()
        return gathered.to(dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_gathered: Tensor) -> tuple[Tensor, None, None, None]:
        parts = [part.contiguous() for part in d_gathered.split(ctx.lengths)]
        received = ctx.comm.all_to_all(parts, [tuple(parts[ctx.comm.rank].shape)] * ctx.comm.world_size)
        total = received[0].clone()
        for part in received[1:]:  # in rank order, so that every run gives the same bits
            total += part
        return total.to(ctx.dtype), None, None, None


class _AllToAll(torch.autograd.Function):
    """(comm, shapes, one tensor for each rank...) -> one tensor from each rank."""

    @staticmethod
    def forward(ctx: Any, comm: Communicator, shapes: list[tuple[int, ...]], *outgoing: Tensor) -> tuple[Tensor, ...]:
        ctx.comm, ctx.shapes = comm, [tuple(x.shape) for x in outgoing]
        received = comm.all_to_all([x.detach().contiguous() for x in outgoing], shapes)
        return tuple(x.clone() if rank == comm.rank else x for rank, x in enumerate(received))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *d_received: Tensor) -> tuple[Any, ...]:
        d_outgoing = ctx.comm.all_to_all([x.contiguous() for x in d_received], ctx.shapes)
        return None, None, *d_outgoing
