"""LongNet's dilated attention: near rows all, far rows thinly, in time that grows with the length.

For a segment length w and a dilation r the rows are cut into segments of w; in each, head h takes the rows h mod r,
h mod r + r, ... and attends among these. Several such patterns are mixed by what their softmax was divided by:

    o_i = sum_p s_ip o_ip / sum_p s_ip,     s_ip = sum of exp(q_i·k_j / √d) over the keys j that pattern p gives i

(Ding and others, 2023). That is one softmax in which a key counts once for each pattern that has it. A pattern that
does not take row i has s_ip = 0; a row that none takes gets 0.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attend
from regard.engine.merge import merge
from regard.errors import SpecError
from regard.mechanism.heads import by_head, heads_of
from regard.spec import mask


@check_types
def longnet(
    q: Tensor, k: Tensor, v: Tensor, *, segments: Sequence[int], dilations: Sequence[int], causal: bool = False
) -> Tensor:
    """Dilated attention with one pattern for each pair of `segments` and `dilations`.

    q is (..., heads, n, width), k and v (..., key heads, n, width). A pattern takes n w / r² pairs a head, so w and r
    that grow by the same factor cost little more than the first. Give the first a dilation of 1, so that every row is
    taken.

    >>> x = torch.randn(1, 4, 100, 8)
    >>> longnet(x, x, x, segments=[16, 64], dilations=[1, 4], causal=True).shape
    torch.Size([1, 4, 100, 8])
    """
    _check(q, k, v, segments, dilations)
    group = heads_of(q) // heads_of(k)
    flat = [by_head(q), *(by_head(x).repeat_interleave(group, dim=1) for x in (k, v))]
    patterns = zip(segments, dilations, strict=True)
    output: Tensor = merge(*(_pattern(flat[0], flat[1], flat[2], w, r, causal) for w, r in patterns))[0]
    return output.reshape(*q.shape[:-1], v.shape[-1])


def _check(q: Tensor, k: Tensor, v: Tensor, segments: Sequence[int], dilations: Sequence[int]) -> None:
    outer = -3 if q.dim() >= 4 else -2
    same = all(x.dim() == q.dim() and x.shape[:outer] == q.shape[:outer] for x in (k, v))
    if q.dim() < 2 or not same or not q.shape[-2] == k.shape[-2] == v.shape[-2]:
        shapes = f"q={tuple(q.shape)}, k={tuple(k.shape)}, v={tuple(v.shape)}"
        raise SpecError(f"q, k and v must be of the same rows, so of one batch and one length; got {shapes}.")
    heads, key_heads, value_heads = (heads_of(x) for x in (q, k, v))
    if key_heads != value_heads or key_heads == 0 or heads % key_heads:
        raise SpecError(
            f"k and v must have the same number of heads, and it must divide that of q; got {key_heads}, {value_heads} "
            f"and {heads}."
        )
    if not len(segments) == len(dilations) > 0:
        raise SpecError(
            f"segments and dilations must be as many, and at least 1; got {len(segments)} and {len(dilations)}."
        )
    if min(*segments, *dilations) < 1:
        raise SpecError(
            f"segments and dilations must be at least 1; got {min(segments)} and {min(dilations)} as the smallest."
        )


def _pattern(q: Tensor, k: Tensor, v: Tensor, w: int, r: int, causal: bool) -> tuple[Tensor, Tensor]:
    """(output, lse) of one pattern, as long as q; rows that are not taken have 0 and -inf."""
    heads, n = q.shape[1:3]
    w = max(1, min(w, n))
    count = -(-n // w)
    head = torch.arange(heads, device=q.device).unsqueeze(-1)
    inside = torch.arange(0, w, r, device=q.device) + head % r
    at = torch.arange(count, device=q.device).view(-1, 1, 1) * w + inside
    is_row = (inside < w) & (at < n)  # (segments, heads, rows of each)
    seen = mask.causal() if causal else None
    if not is_row.all():
        real = mask.where(lambda b, h, i, j: is_row[b % count, h, j])
        seen = real if seen is None else seen & real
    found = attend(*(x[:, head, at.clamp(max=n - 1)] for x in (q, k, v)), mask=seen)

    def spread(rows: Tensor, absent: float) -> Tensor:
        """What is no row goes behind the last one, and is cut off there."""
        whole = rows.new_full((len(q), heads, n + 1, rows.shape[-1]), absent)
        whole[:, head, torch.where(is_row, at, n)] = rows
        return whole[:, :, :n]

    return spread(found.output, 0.0), spread(found.lse.unsqueeze(-1), -torch.inf).squeeze(-1)
