"""Attention to chosen blocks of keys: which ones, the means of the blocks say.

    block I of queries sees block J of keys     if mean(q in I)·mean(k in J) is among the `keep` largest of I, or J is
                                                where the queries of I stand

What is seen is attended to exactly; what is not is left out. So the choice is an approximation, and `measure.mass` says
how much of the weight it keeps (the block-sparse pattern of Jiang and others, MInference, 2024).
"""

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attention
from regard.checks import same_floats
from regard.errors import SpecError
from regard.mechanism.heads import by_head, sharing
from regard.spec import mask
from regard.spec.precision import fine


@check_types
def block_sparse(q: Tensor, k: Tensor, v: Tensor, *, block: int, keep: int, causal: bool = False) -> Tensor:
    """Attention within `block_choice`: at most keep + 1 blocks of keys for each block of queries.

    >>> x = torch.randn(2, 100, 8)
    >>> block_sparse(x, x, x, block=16, keep=2, causal=True).shape
    torch.Size([2, 100, 8])
    """
    output: Tensor = attention(q, k, v, mask=block_choice(q, k, block=block, keep=keep, causal=causal))
    return output


@check_types
def block_choice(q: Tensor, k: Tensor, *, block: int, keep: int, causal: bool = False) -> mask.Mask:
    """The mask of the blocks that each block of queries chooses, by head; no gradient flows through the choice.

    q is (..., heads, n_q, width) and k (..., key heads, n_k, width). The last query stands at the last key. Blocks are
    counted among the keys, and those at the ends may be shorter. It takes (n_q / block) (n_k / block) numbers a head.

    >>> from regard import attend, measure
    >>> k = torch.eye(4).repeat_interleave(8, 0)
    >>> q = 20.0 * k.flip(0)
    >>> chosen = block_choice(q, k, block=8, keep=1)
    >>> print(chosen.regions(32, size=8).counts)
    {'empty': 8, 'partial': 0, 'full': 8}
    >>> kept = attend(q, k, k).weights.measure(measure.mass(chosen)).mass
    >>> print(f"{kept.mean():.3f} of the weight in {chosen.density(32):.0%} of the pairs")
    1.000 of the weight in 50% of the pairs
    """
    group = _check(q, k, block, keep)
    block = min(block, max(1, k.shape[-2]))  # a longer block is one block as well
    first, offset = divmod(k.shape[-2] - q.shape[-2], block)
    with torch.no_grad():
        queries = _means(fine(by_head(q)), offset, block)
        keys = _means(fine(by_head(k)), 0, block).repeat_interleave(group, dim=1)
        scores = queries @ keys.mT
        own = torch.arange(first, first + scores.shape[-2], device=q.device).unsqueeze(-1)
        column = torch.arange(scores.shape[-1], device=q.device)
        if causal:  # later blocks take nobody's place
            scores = scores.masked_fill(column > own, -torch.inf)
        best = scores.topk(min(keep, scores.shape[-1])).indices
        blocks = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True) | (column == own)
    chosen = mask.where(lambda b, h, i, j: blocks[b, h, (i + offset) // block, j // block])
    return chosen & mask.causal() if causal else chosen


def _check(q: Tensor, k: Tensor, block: int, keep: int) -> int:
    """How many query heads share a key head."""
    same_floats({"q": q, "k": k})
    outer = -3 if q.dim() >= 4 else -2
    if q.dim() < 2 or q.dim() != k.dim() or q.shape[:outer] != k.shape[:outer] or q.shape[-1] != k.shape[-1]:
        raise SpecError(f"q and k must have one batch and one width; got q={tuple(q.shape)}, k={tuple(k.shape)}.")
    group = sharing(q, k)
    if q.shape[-2] > k.shape[-2]:
        raise SpecError(
            f"queries must be no more than the keys, among which they stand; got {q.shape[-2]} queries and "
            f"{k.shape[-2]} keys."
        )
    if block < 1 or keep < 0:
        raise SpecError(f"block must be at least 1 and keep at least 0; got block={block}, keep={keep}.")
    return group


def _means(x: Tensor, offset: int, block: int) -> Tensor:
    """The mean row of each block, of which the first lacks `offset` rows."""
    n = x.shape[-2]
    count = -(-(offset + n) // block) if n else 0
    missing = (offset, count * block - offset - n) if n else (0, 0)
    sums: Tensor = torch.nn.functional.pad(x, (0, 0, *missing)).unflatten(-2, (count, block)).sum(-2)
    sizes: Tensor = torch.nn.functional.pad(x.new_ones(n), missing).unflatten(-1, (count, block)).sum(-1)
    return sums / sizes.unsqueeze(-1)
