"""Block-sparse attention: each block of queries attends to the blocks of keys with the best mean scores.

    query block I attends to key block J    if mean(q in I)·mean(k in J) is among the `topk` largest of row I,
                                            or J covers the positions of I

Attention within the chosen blocks is exact; the other blocks are dropped. `measure.mass` returns the attention weight
that the chosen blocks cover. The pattern is the block-sparse one of MInference (Jiang et al., 2024).
"""

import torch
from torch import Tensor

from regard import mask
from regard.argument_types import check_types
from regard.attention import attention
from regard.checks import same_float_dtype
from regard.errors import ArgumentError
from regard.mechanisms.head_layout import as_4d, num_key_value_groups
from regard.tensors.precision import upcast


@check_types
def block_sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, *, block_size: int, topk: int, causal: bool = False
) -> Tensor:
    """Compute attention within `topk_block_mask`: at most topk + 1 blocks of keys for each block of queries.

    q is (..., num_heads, n_q, head_dim), k and v (..., num_kv_heads, n_k, head_dim). See `topk_block_mask`.

    >>> x = torch.randn(2, 100, 8)
    >>> block_sparse_attention(x, x, x, block_size=16, topk=2, causal=True).shape
    torch.Size([2, 100, 8])
    """
    output: Tensor = attention(q, k, v, mask=topk_block_mask(q, k, block_size=block_size, topk=topk, causal=causal))
    return output


@check_types
def topk_block_mask(q: Tensor, k: Tensor, *, block_size: int, topk: int, causal: bool = False) -> mask.Mask:
    """Return the mask of the `topk` best blocks of keys for each block of queries and each head.

    q is (..., num_heads, n_q, head_dim) and k (..., num_kv_heads, n_k, head_dim). The last query has the position of
    the last key. Blocks start at multiples of `block_size`; the first and the last may be shorter. With `causal` only
    earlier blocks compete, and later keys are hidden. No gradient flows through the choice. The mask stores
    (n_q / block_size) (n_k / block_size) booleans per head.

    >>> from regard import attention_with_weights, measure
    >>> k = torch.eye(4).repeat_interleave(8, 0)
    >>> q = 20.0 * k.flip(0)
    >>> blocks = topk_block_mask(q, k, block_size=8, topk=1)
    >>> print(blocks.tile_coverage(32, tile_size=8).tile_counts)
    {'empty': 8, 'partial': 0, 'full': 8}
    >>> mass = attention_with_weights(q, k, k).weights.measure(measure.mass(blocks)).mass
    >>> print(f"{mass.mean():.3f} of the weight in {blocks.density(32):.0%} of the pairs")
    1.000 of the weight in 50% of the pairs
    """
    group = _check_and_count_groups(q, k, block_size, topk)
    block_size = min(block_size, max(1, k.shape[-2]))  # bounds the padding of a single block
    first_block, offset = divmod(k.shape[-2] - q.shape[-2], block_size)
    with torch.no_grad():
        queries = _block_means(upcast(as_4d(q)), offset, block_size)
        keys = _block_means(upcast(as_4d(k)), 0, block_size).repeat_interleave(group, dim=1)
        scores = queries @ keys.mT
        query_block = torch.arange(first_block, first_block + scores.shape[-2], device=q.device).unsqueeze(-1)
        key_block = torch.arange(scores.shape[-1], device=q.device)
        if causal:  # hidden blocks must not displace visible ones among the topk
            scores = scores.masked_fill(key_block > query_block, -torch.inf)
        best = scores.topk(min(topk, scores.shape[-1])).indices
        visible = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True) | (key_block == query_block)
    block_mask = mask.from_function(lambda b, h, i, j: visible[b, h, (i + offset) // block_size, j // block_size])
    return block_mask & mask.causal() if causal else block_mask


def _check_and_count_groups(q: Tensor, k: Tensor, block_size: int, topk: int) -> int:
    """Return the number of query heads per key head."""
    same_float_dtype({"q": q, "k": k})
    outer = -3 if q.dim() >= 4 else -2
    if q.dim() < 2 or q.dim() != k.dim() or q.shape[:outer] != k.shape[:outer] or q.shape[-1] != k.shape[-1]:
        raise ArgumentError(
            f"q and k must have the same batch and the same head dimension; got q={tuple(q.shape)}, k={tuple(k.shape)}."
        )
    group = num_key_value_groups(q, k)
    if q.shape[-2] > k.shape[-2]:
        raise ArgumentError(f"q must not have more positions than k; got {q.shape[-2]} queries and {k.shape[-2]} keys.")
    if block_size < 1 or topk < 0:
        raise ArgumentError(
            f"block_size must be at least 1 and topk at least 0; got block_size={block_size}, topk={topk}."
        )
    return group


def _block_means(x: Tensor, offset: int, block_size: int) -> Tensor:
    """Return the mean row of each block; the first block lacks its first `offset` rows."""
    n = x.shape[-2]
    count = -(-(offset + n) // block_size) if n else 0
    padding = (offset, count * block_size - offset - n) if n else (0, 0)
    sums: Tensor = torch.nn.functional.pad(x, (0, 0, *padding)).unflatten(-2, (count, block_size)).sum(-2)
    sizes: Tensor = torch.nn.functional.pad(x.new_ones(n), padding).unflatten(-1, (count, block_size)).sum(-1)
    return sums / sizes.unsqueeze(-1)
