"""LSH attention (Reformer): a query attends to the keys of its hash bucket, in time nearly linear in the length.

    s_ij = scale · q_i·k_j,   k_j = q_j / |q_j|,   h(x) = argmax [x R; -x R]      R random, one per round

One vector per token is its query and, normalized, its key. A round sorts the tokens by bucket and position, and splits
the sorted tokens into chunks. Token i attends to

    P_i = the other tokens of i's bucket in i's chunk or in the previous chunk, and before i if causal

With several rounds, P_i is the union over rounds. A token with an empty P_i attends to itself (Kitaev et al.,
2020).

Other implementations deviate from the paper: the first chunk attends to the last one, and some, such as Hugging Face's,
do not hide other buckets of the same chunks, and count a pair once for each round that selects it.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attention_with_weights
from regard.backends.shared.merge import merge_states
from regard.checks import same_float_dtype
from regard.errors import ArgumentError
from regard.score import scaled_dot

MAX_HASH_ELEMENTS = 2**28


@check_types
def lsh_attention(
    qk: Tensor,
    v: Tensor,
    *,
    num_buckets: int | Sequence[int] | None = None,
    num_hashes: int = 1,
    chunk_size: int = 64,
    seed: int = 0,
    causal: bool = False,
    bucket_ids: Tensor | None = None,
    scale: float = 1.0,
    same_bucket_only: bool = True,
    count_pairs_once: bool = True,
) -> Tensor:
    """Compute o_i = sum of softmax(s_ij) v_j over j in P_i, the tokens that share a bucket with i.

    The result is exact for these sets. With one chunk and one bucket every token attends to all others. qk is
    (..., num_heads, n, head_dim), v (..., num_heads, n, value_dim). No gradient flows through the hashes.

    num_buckets, num_hashes, seed: see `lsh_bucket_ids`; None is two buckets per chunk, as in the paper.
    chunk_size: tokens per chunk, 64 by default.
    causal: token i attends only to earlier tokens.
    bucket_ids: buckets from another hash function instead, integers (num_hashes, n) up to (num_hashes, ..., num_heads,
    n). Padding with its own bucket is hidden from all real tokens.
    scale: 1, as in the authors' implementation; the usual scale is 1/√d.
    same_bucket_only: if False, token i also attends to other buckets in its chunk and the previous one.
    count_pairs_once: if False, a pair counts once for each round that selects it.

    Kitaev, Kaiser and Levskaya, 2020.

    >>> x = torch.randn(2, 4, 100, 8)
    >>> lsh_attention(x, x, num_hashes=2, chunk_size=16, causal=True).shape
    torch.Size([2, 4, 100, 8])
    """
    _check(qk, v, chunk_size)
    n = qk.shape[-2]
    if bucket_ids is None:
        bucket_ids = lsh_bucket_ids(
            qk,
            num_buckets=_default_num_buckets(n, chunk_size) if num_buckets is None else num_buckets,
            num_hashes=num_hashes,
            seed=seed,
        )
    else:
        _check_bucket_ids(bucket_ids, num_buckets, qk)
    batch, heads = (qk.shape[:-3], qk.shape[-3]) if qk.dim() >= 4 else (qk.shape[:-2], 1)
    shape = (math.prod(batch), heads, n)
    qk, values = (x.reshape(*shape, x.shape[-1]) for x in (qk, v))
    bucket_ids = torch.stack([ids.expand(v.shape[:-1]).reshape(shape) for ids in bucket_ids])
    sorted_ids, orders = bucket_ids.sort(dim=-1, stable=True)
    ranks = _chunk_ranks(sorted_ids if same_bucket_only else torch.zeros_like(sorted_ids), orders, chunk_size)
    parts = [_hash_round(qk, values, r, orders[r], ranks, scale, causal, count_pairs_once) for r in range(len(orders))]
    output, lse = merge_states(*parts)
    is_empty = (lse == -torch.inf).unsqueeze(-1)
    return torch.where(is_empty, values, output).reshape(v.shape)


@check_types
def lsh_bucket_ids(qk: Tensor, *, num_buckets: int | Sequence[int], num_hashes: int = 1, seed: int = 0) -> Tensor:
    """Return the bucket of each token in each round, h(x) = argmax [x R; -x R], as (num_hashes, ..., n).

    Parallel vectors share a bucket, near vectors often do, opposite ones never. R is normal, drawn from `seed` for each
    head and round. A sequence `num_buckets` combines one hash per factor: the number of buckets is the product of the
    factors, at the cost of their sum (Andoni et al., 2015). qk is (..., num_heads, n, head_dim).

    >>> lsh_bucket_ids(torch.tensor([[3.0, 1.0], [6.0, 2.0], [-3.0, -1.0]]), num_buckets=2)
    tensor([[0, 0, 1]])
    """
    factors = (num_buckets,) if isinstance(num_buckets, int) else tuple(num_buckets)
    if not factors or any(b < 2 or b % 2 for b in factors):
        raise ArgumentError(f"num_buckets must be even and at least 2; got {num_buckets}.")
    if num_hashes < 1:
        raise ArgumentError(f"num_hashes must be at least 1; got {num_hashes}.")
    same_float_dtype({"qk": qk}, min_dims=2)
    x = qk.detach() if qk.dim() >= 4 else qk.detach().unsqueeze(-3)
    columns = [b // 2 for b in factors]
    generator = torch.Generator().manual_seed(seed)
    size = (x.shape[-3], x.shape[-1], num_hashes, sum(columns))
    if math.prod(size) > MAX_HASH_ELEMENTS or num_hashes * x.shape[:-1].numel() > MAX_HASH_ELEMENTS:
        raise ArgumentError(
            f"num_hashes times num_buckets must need at most {MAX_HASH_ELEMENTS:,} random numbers; got "
            f"{num_hashes} hashes and {num_buckets} buckets."
        )
    rotations = torch.randn(size, generator=generator, dtype=torch.float64).to(x)
    bucket = torch.zeros(num_hashes, *x.shape[:-1], dtype=torch.long, device=x.device)
    stride = 1
    for rotation, factor in zip(rotations.split(columns, dim=-1), factors, strict=True):
        rotated = torch.einsum("...hnd,hdrc->r...hnc", x, rotation)
        bucket = bucket + stride * torch.cat((rotated, -rotated), -1).argmax(-1)
        stride *= factor
    return bucket if qk.dim() >= 4 else bucket.squeeze(-2)


def _check(qk: Tensor, v: Tensor, chunk_size: int) -> None:
    same_float_dtype({"qk": qk, "v": v})
    if qk.dim() < 2 or qk.shape[:-1] != v.shape[:-1]:
        raise ArgumentError(
            f"v must have the shape of qk except for the last dimension; got qk={tuple(qk.shape)}, v={tuple(v.shape)}."
        )
    if chunk_size < 1:
        raise ArgumentError(f"chunk_size must be at least 1; got {chunk_size}.")


def _check_bucket_ids(bucket_ids: Tensor, num_buckets: int | Sequence[int] | None, qk: Tensor) -> None:
    if num_buckets is not None:
        raise ArgumentError(f"num_buckets must be None with bucket_ids; got {num_buckets}. Pass only one of them.")
    if bucket_ids.is_floating_point() or bucket_ids.is_complex() or bucket_ids.dtype == torch.bool:
        raise ArgumentError(f"bucket_ids must be integers; got {bucket_ids.dtype}.")
    shape, got = tuple(qk.shape[:-1]), tuple(bucket_ids.shape)
    fits = 2 <= len(got) <= len(shape) + 1 and got[0] > 0
    if not fits or any(size not in (1, full_size) for size, full_size in zip(got[:0:-1], shape[::-1], strict=False)):
        raise ArgumentError(
            f"bucket_ids must be (num_hashes, ...) and broadcast to {shape} after the first dimension; got {got}."
        )


def _default_num_buckets(n: int, chunk_size: int) -> tuple[int, ...]:
    """Return two buckets per chunk; many as two factors, since one large hash costs more than it saves."""
    count = max(2, 2 * -(-n // chunk_size))
    if count <= 2 * chunk_size:
        return (count,)
    side = 2 * math.ceil(math.sqrt(count) / 2)
    return (side, 2 * math.ceil(count / side / 2))


def _chunk_ranks(sorted_bucket_ids: Tensor, orders: Tensor, chunk_size: int) -> Tensor:
    """Return a rank for each token and round: i may attend to j if rank_i - rank_j is 0 or 1.

    Along the sorted tokens the rank grows by 1 from a chunk to the next, and by 2 from a bucket to the next.
    """
    chunk_ids = torch.arange(sorted_bucket_ids.shape[-1], device=sorted_bucket_ids.device) // chunk_size
    steps = chunk_ids.diff().expand(*sorted_bucket_ids.shape[:-1], -1)
    steps = torch.where(sorted_bucket_ids.diff(dim=-1) != 0, 2, steps)
    sorted_ranks = torch.nn.functional.pad(steps.cumsum(-1), (1, 0))
    return torch.zeros_like(orders).scatter(-1, orders, sorted_ranks)


def _hash_round(
    qk: Tensor, v: Tensor, r: int, order: Tensor, ranks: Tensor, scale: float, causal: bool, count_pairs_once: bool
) -> tuple[Tensor, Tensor]:
    """Return the output and lse of one round, in the original order of the tokens.

    The sorted tokens are not split into chunks: the mask hides all other pairs, and hidden tiles are skipped.
    """
    own_ranks, *other_ranks = (rank.gather(-1, order) for rank in (ranks[r], *ranks[:r], *ranks[r + 1 :]))

    def visible(b: Any, h: Any, i: Any, j: Any) -> Any:
        is_other = order[b, h, j] < order[b, h, i] if causal else order[b, h, j] != order[b, h, i]
        return _is_visible(own_ranks, b, h, i, j) & is_other

    def divide_by_count(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        """Split the weight of a pair evenly among the rounds that select it."""
        count: Any = sum((_is_visible(rank, b, h, i, j).float() for rank in other_ranks), start=1.0)
        return s - torch.log(count)

    score = scaled_dot(scale)
    rows = _reorder_rows(qk, order)
    keys = torch.nn.functional.normalize(rows, dim=-1)
    result = attention_with_weights(
        rows,
        keys,
        _reorder_rows(v, order),
        score=score.then(divide_by_count) if other_ranks and count_pairs_once else score,
        mask=visible,
    )
    inverse = order.argsort(-1)
    return _reorder_rows(result.output, inverse), result.lse.gather(-1, inverse)


def _is_visible(rank: Tensor, b: Any, h: Any, i: Any, j: Any) -> Any:
    difference = rank[b, h, i] - rank[b, h, j]
    return (difference == 0) | (difference == 1)


def _reorder_rows(x: Tensor, order: Tensor) -> Tensor:
    """Return the rows of each head in this order; copies whole rows, unlike `gather`."""
    batch, heads, n, _ = x.shape
    first = n * torch.arange(batch * heads, device=x.device).view(batch, heads, 1)
    return x.flatten(0, 2).index_select(0, (first + order).flatten()).view(x.shape)
