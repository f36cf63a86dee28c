"""Sharding: how the tokens of a sequence are distributed over ranks.

    contiguous    rank r holds the r-th of P chunks
    zigzag        rank r holds the r-th of 2P chunks from the start and the r-th from the end
    striped       rank r holds tokens r, r + P, r + 2P, ...

Under a causal mask the last rank of the contiguous layout has the most work. The other two layouts balance the work.
The length need not be a multiple of P: shards then differ by one token.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import checks
from regard.call.subcall import StridedRange
from regard.distributed.ranks.collectives import all_gather_autograd
from regard.distributed.ranks.communicator import Communicator, GroupLike
from regard.errors import ArgumentError, RankError
from regard.tensors.convert import as_tensor

LAYOUTS = ("contiguous", "zigzag", "striped")
MAX_POSITIONS = 2**26  # entries of the result of `positions`


def shard_positions(layout: str, n: int, world_size: int, rank: int) -> tuple[StridedRange, ...]:
    """Return the positions of the tokens of a rank, in one or two chunks.

    >>> [list(chunk.to_range()) for chunk in shard_positions("zigzag", 8, world_size=2, rank=0)]
    [[0, 1], [6, 7]]
    """
    if layout == "contiguous":
        return (_chunk(n, world_size, rank),)
    if layout == "zigzag":
        return _chunk(n, 2 * world_size, rank), _chunk(n, 2 * world_size, 2 * world_size - 1 - rank)
    if layout == "striped":
        return (StridedRange(rank, max(0, -(-(n - rank) // world_size)), world_size),)
    raise ArgumentError(f"layout must be one of {', '.join(LAYOUTS)}; got {layout!r}.")


def _chunk(n: int, num_chunks: int, chunk_index: int) -> StridedRange:
    first, last = n * chunk_index // num_chunks, n * (chunk_index + 1) // num_chunks
    return StridedRange(first, last - first)


def shard_permutation(layout: str, n: int, world_size: int) -> Tensor:
    """Return the positions (n,) of the rows of all shards, concatenated in rank order."""
    return torch.cat([_shard_index(layout, n, world_size, rank) for rank in range(world_size)])


def shard(
    x: Tensor | np.ndarray[Any, Any], *, dim: int = -2, group: "GroupLike | None" = None, layout: str = "contiguous"
) -> Tensor:
    """Return this rank's shard of a tensor that every rank has.

    Args:
        x: tensor or array, the same on every rank.
        dim: dimension of the tokens; the default -2 fits q, k and v (..., n, head_dim). Use -1 for token ids
            (batch, n).
        group, layout: see `regard.distributed.attention`.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    >>> shard(torch.zeros(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    >>> dist.destroy_process_group()
    """
    comm = Communicator.from_group(group)
    checks.choice(layout, "layout", LAYOUTS)
    tensor: Tensor = as_tensor(x, "x")
    check_dim(tensor, dim)
    index = _shard_index(layout, tensor.shape[dim], comm.world_size, comm.rank)
    return tensor.index_select(dim, index.to(tensor.device))


def positions(n: int, *, group: "GroupLike | None" = None, layout: str = "contiguous") -> Tensor:
    """Return the positions of this rank's tokens in a sequence of n tokens, as an int64 tensor.

    group, layout: see `regard.distributed.attention`.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    >>> positions(4)
    tensor([0, 1, 2, 3])
    >>> dist.destroy_process_group()
    """
    comm = Communicator.from_group(group)
    checks.choice(layout, "layout", LAYOUTS)
    checks.integer(n, "n", at_least=0, at_most=MAX_POSITIONS)
    return _shard_index(layout, n, comm.world_size, comm.rank)


def unshard(x: Tensor, *, dim: int = -2, group: "GroupLike | None" = None, layout: str = "contiguous") -> Tensor:
    """Return the whole tensor on every rank, given each rank's shard x; the inverse of `shard`.

    `dim` is the dimension of the tokens (default -2), and `group` and `layout` are those of `shard`. Gradients are
    summed over ranks and returned to the rank of the shard.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    >>> unshard(shard(torch.arange(4.0), dim=0), dim=0)
    tensor([0., 1., 2., 3.])
    >>> dist.destroy_process_group()
    """
    comm = Communicator.from_group(group)
    checks.choice(layout, "layout", LAYOUTS)
    check_dim(checks.tensor(x, "x"), dim)
    lengths = [length for (length,) in comm.all_gather_ints([x.shape[dim]])]
    check_shard_lengths(lengths, layout, "x")
    gathered = all_gather_autograd(x.movedim(dim, 0), comm, lengths)
    return to_token_order(gathered, layout, 0, comm.world_size).movedim(0, dim)


def check_dim(x: Tensor, dim: int) -> None:
    """Raise if the tensor has no dimension `dim`."""
    if x.dim() == 0:
        raise ArgumentError("x must have a dimension of tokens; got a tensor of shape ().")
    checks.integer(dim, "dim", at_least=-x.dim(), at_most=x.dim() - 1)


def row_count(x: Any) -> int:
    """Return the number of rows of q or k; 0 for invalid values, which `check_local_tensors` rejects on all ranks."""
    return int(x.shape[-2]) if isinstance(x, (Tensor, np.ndarray)) and x.ndim >= 2 else 0


def check_local_tensors(q: Any, k: Any, v: Any, backend: Any) -> None:
    """Raise unless q, k and v are tensors or arrays of 2 to 4 dimensions and `backend` is a string or None."""
    if backend is not None:
        checks.string(backend, "backend")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, (Tensor, np.ndarray)) or not 2 <= x.ndim <= 4:
            raise ArgumentError(
                f"{name} must be a tensor (..., n, head_dim) of 2 to 4 dimensions; got {checks.describe(x)}."
            )


def check_shard_lengths(lengths: list[int], layout: str, name: str) -> None:
    """Raise unless `lengths` are the shard lengths of the layout, by rank."""
    n, world_size = sum(lengths), len(lengths)
    expected = shard_lengths(layout, n, world_size)
    if lengths != expected:
        raise RankError(
            f"{n} rows of {name} over {world_size} ranks in the {layout} layout must have the lengths {expected}; got "
            f"{lengths}. Use regard.distributed.shard."
        )


def to_token_order(rows: Tensor, layout: str, dim: int, world_size: int) -> Tensor:
    """Return rows in token order, given the shards concatenated in rank order."""
    if layout == "contiguous" or world_size == 1:
        return rows
    return rows.index_select(dim, shard_permutation(layout, rows.shape[dim], world_size).argsort().to(rows.device))


def split_by_rank(rows: Tensor, layout: str, dim: int, world_size: int) -> list[Tensor]:
    """Split rows in token order into the shards of all ranks."""
    n = rows.shape[dim]
    if layout != "contiguous":
        rows = rows.index_select(dim, shard_permutation(layout, n, world_size).to(rows.device))
    return list(rows.split(shard_lengths(layout, n, world_size), dim=dim))


def shard_lengths(layout: str, n: int, world_size: int) -> list[int]:
    """Return the number of tokens of each rank."""
    return [sum(chunk.count for chunk in shard_positions(layout, n, world_size, rank)) for rank in range(world_size)]


def _shard_index(layout: str, n: int, world_size: int, rank: int) -> Tensor:
    chunks = shard_positions(layout, n, world_size, rank)
    return torch.cat([torch.tensor(list(chunk.to_range()), dtype=torch.long) for chunk in chunks])
