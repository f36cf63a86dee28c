"""Handing tensors over so that gradients find their way back."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.distributed.peers import Peers


def exchanged(outgoing: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], peers: Peers) -> tuple[Tensor, ...]:
    """One tensor to each rank, and one of these shapes from each; gradients go the other way."""
    if peers.count == 1:
        return tuple(outgoing)
    found: tuple[Tensor, ...] = _apply(_Exchanged, peers, list(shapes), *outgoing)
    return found


def gathered(x: Tensor, peers: Peers, lengths: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """What all ranks hold, along the first dimension in the order of ranks. The gradient of a part is the sum over all
    ranks. With a `dtype` that is what comes out, and what gradients travel and are summed in."""
    if peers.count == 1:
        return x if dtype is None else x.to(dtype)
    found: Tensor = _apply(_Gathered, x, peers, list(lengths), dtype or x.dtype)
    return found


def _apply(function: Any, *args: Any) -> Any:
    return function.apply(*args)


class _Gathered(torch.autograd.Function):
    """(part, peers, lengths, dtype) -> all parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers, lengths: list[int], dtype: torch.dtype) -> Tensor:
        ctx.peers, ctx.lengths, ctx.dtype = peers, lengths, x.dtype
        whole = x.new_empty((sum(lengths), *x.shape[1:]))
        parts = whole.split(lengths)
        parts[peers.rank].copy_(x.detach())
        others = [r for r in range(peers.count) if r != peers.rank]
        peers.start({r: [parts[peers.rank]] for r in others}, {r: [parts[r]] for r in others}).wait()
        return whole.to(dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None, None, None]:
        parts = [part.contiguous() for part in d.split(ctx.lengths)]
        back = ctx.peers.exchange(parts, [tuple(parts[ctx.peers.rank].shape)] * ctx.peers.count)
        total = back[0].clone()
        for part in back[1:]:  # in the order of ranks: the same bits on every run
            total += part
        return total.to(ctx.dtype), None, None, None


class _Exchanged(torch.autograd.Function):
    """(peers, shapes, tensor to each rank...) -> tensor from each rank."""

    @staticmethod
    def forward(ctx: Any, peers: Peers, shapes: list[tuple[int, ...]], *outgoing: Tensor) -> tuple[Tensor, ...]:
        ctx.peers, ctx.shapes = peers, [tuple(x.shape) for x in outgoing]
        received = peers.exchange([x.detach().contiguous() for x in outgoing], shapes)
        return tuple(x.clone() if n == peers.rank else x for n, x in enumerate(received))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *d: Tensor) -> tuple[Any, ...]:
        back = ctx.peers.exchange([x.contiguous() for x in d], ctx.shapes)
        return None, None, *back
