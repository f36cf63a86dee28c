"""Who holds which tokens: a sequence in parts, one a rank.

    contiguous    rank r holds the r-th stretch
    zigzag        2P stretches; rank r holds the r-th from the beginning and the r-th from the end
    striped       rank r holds tokens r, r + P, r + 2P, ...

Under a causal mask the last rank of a contiguous layout sees the most. The other two give every rank about as much.
Lengths need not be multiples of anything; parts differ by a token then.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import checks
from regard.distributed.exchange import gathered
from regard.distributed.peers import Peers
from regard.errors import RankError, SpecError
from regard.spec.array import as_tensor
from regard.spec.place import Places

LAYOUTS = ("contiguous", "zigzag", "striped")
MAX_POSITIONS = 2**26  # of one list of positions


def held(layout: str, n: int, ranks: int, rank: int) -> tuple[Places, ...]:
    """The places of n tokens that a rank holds, in the order in which it holds them.

    >>> [list(part.positions()) for part in held("zigzag", 8, ranks=2, rank=0)]
    [[0, 1], [6, 7]]
    """
    if layout == "contiguous":
        return (_stretch(n, ranks, rank),)
    if layout == "zigzag":
        return _stretch(n, 2 * ranks, rank), _stretch(n, 2 * ranks, 2 * ranks - 1 - rank)
    if layout == "striped":
        return (Places(rank, max(0, -(-(n - rank) // ranks)), ranks),)
    raise SpecError(f"layout must be one of {', '.join(LAYOUTS)}; got {layout!r}.")


def _stretch(n: int, parts: int, part: int) -> Places:
    first, last = n * part // parts, n * (part + 1) // parts
    return Places(first, last - first)


def order(layout: str, n: int, ranks: int) -> Tensor:
    """The positions of all tokens in the order of ranks: row m of all parts laid end to end is token order[m]."""
    parts = [torch.tensor(list(p.positions())) for rank in range(ranks) for p in held(layout, n, ranks, rank)]
    return torch.cat(parts).long()


def shard(x: Any, *, dim: int = -2, group: Any = None, layout: str = "contiguous") -> Tensor:
    """This rank's part of a tensor that every rank has as a whole, along its dimension of tokens.

    q, k, v are (..., tokens, width), so `dim` is -2; token numbers (batch, tokens) have dim=-1.
    """
    peers = Peers.of(group)
    checks.choice(layout, "layout", LAYOUTS)
    whole: Tensor = as_tensor(x, "x")
    check_dim(whole, dim)
    parts = held(layout, whole.shape[dim], peers.count, peers.rank)
    return torch.cat([whole.index_select(dim, _index(p, whole)) for p in parts], dim=dim)


def positions(n: int, *, group: Any = None, layout: str = "contiguous") -> Tensor:
    """Where this rank's tokens stand among all n."""
    peers = Peers.of(group)
    checks.choice(layout, "layout", LAYOUTS)
    checks.whole_number(n, "n", at_least=0, at_most=MAX_POSITIONS)
    return torch.cat([torch.tensor(list(p.positions())) for p in held(layout, n, peers.count, peers.rank)]).long()


def unshard(x: Tensor, *, dim: int = -2, group: Any = None, layout: str = "contiguous") -> Tensor:
    """The whole of what ranks hold parts of; gradients go back to who holds the part, summed over ranks."""
    peers = Peers.of(group)
    checks.choice(layout, "layout", LAYOUTS)
    check_dim(checks.tensor(x, "x"), dim)
    lengths = [n for (n,) in peers.every([x.shape[dim]])]
    check(lengths, layout, "x")
    together = gathered(x.movedim(dim, 0), peers, lengths)
    return in_order(together, layout, 0, peers.count).movedim(0, dim)


def check_dim(x: Tensor, dim: int) -> None:
    """Refuses a dimension that the tensor does not have."""
    if x.dim() == 0:
        raise SpecError("x must have a dimension of tokens; got a tensor of shape ().")
    checks.whole_number(dim, "dim", at_least=-x.dim(), at_most=x.dim() - 1)


def row_count(x: Any) -> int:
    """The number of rows of q or k; 0 for what has none, which `check_parts` refuses on all ranks."""
    return int(x.shape[-2]) if isinstance(x, (Tensor, np.ndarray)) and x.ndim >= 2 else 0


def check_parts(q: Any, k: Any, v: Any, engine: Any) -> None:
    """Refuses parts that are not tensors or arrays (..., rows, width), and an engine that is no name."""
    if engine is not None:
        checks.text(engine, "engine")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, (Tensor, np.ndarray)) or not 2 <= x.ndim <= 4:
            raise SpecError(
                f"{name} must be a tensor (..., rows, width) of 2 to 4 dimensions; got {checks.describe(x)}."
            )


def check(lengths: list[int], layout: str, name: str) -> None:
    """Refuses parts that are not those of the layout."""
    n, ranks = sum(lengths), len(lengths)
    wanted = [sum(p.count for p in held(layout, n, ranks, rank)) for rank in range(ranks)]
    if lengths != wanted:
        raise RankError(
            f"{n} rows of {name} over {ranks} ranks must lie as {wanted}, {layout}; got {lengths}. "
            "Take each rank's part with regard.distributed.shard."
        )


def in_order(rows: Tensor, layout: str, dim: int, ranks: int) -> Tensor:
    """Rows that lie in the order of ranks, in that of the tokens."""
    if layout == "contiguous" or ranks == 1:
        return rows
    return rows.index_select(dim, order(layout, rows.shape[dim], ranks).argsort().to(rows.device))


def by_rank(rows: Tensor, layout: str, dim: int, ranks: int) -> list[Tensor]:
    """Rows in the order of the tokens, as the parts of the ranks."""
    n = rows.shape[dim]
    if layout != "contiguous":
        rows = rows.index_select(dim, order(layout, n, ranks).to(rows.device))
    sizes = [sum(p.count for p in held(layout, n, ranks, rank)) for rank in range(ranks)]
    return list(rows.split(sizes, dim=dim))


def _index(places: Places, x: Tensor) -> Tensor:
    return torch.tensor(list(places.positions()), dtype=torch.long, device=x.device)
