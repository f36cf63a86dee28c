"""LongNet's dilated attention: dense for near keys, sparse for distant keys, in time linear in the length.

A pattern has a segment length w and a dilation r. It splits the rows into segments of w; within each segment, head h
selects the rows h mod r, h mod r + r, ... and attends among them. Patterns are combined by their softmax denominators:

    o_i = sum_p s_ip o_ip / sum_p s_ip,     s_ip = sum of exp(q_i·k_j / √d) over the keys j of pattern p for row i

(Ding et al., 2023). This is one softmax in which a key counts once for each pattern that contains it. If pattern p
does not select row i, s_ip = 0; the output of a row that no pattern selects is 0.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard import mask
from regard.argument_types import check_types
from regard.attention import attention_with_weights
from regard.backends.shared.merge import merge_states
from regard.errors import ArgumentError
from regard.mechanisms.head_layout import as_4d, num_heads


@check_types
def longnet_attention(
    q: Tensor, k: Tensor, v: Tensor, *, segment_lengths: Sequence[int], dilations: Sequence[int], causal: bool = False
) -> Tensor:
    """Compute dilated attention with one pattern for each pair of `segment_lengths` and `dilations`.

    q is (..., num_heads, n, head_dim), k and v (..., num_kv_heads, n, head_dim). A pattern has n w / r² pairs per head,
    so patterns whose w and r grow by the same factor cost little more than the first. With a dilation of 1 in one
    pattern every row is selected. With `causal` a row attends to rows up to its own position.

    >>> x = torch.randn(1, 4, 100, 8)
    >>> longnet_attention(x, x, x, segment_lengths=[16, 64], dilations=[1, 4], causal=True).shape
    torch.Size([1, 4, 100, 8])
    """
    _check(q, k, v, segment_lengths, dilations)
    group = num_heads(q) // num_heads(k)
    flat = [as_4d(q), *(as_4d(x).repeat_interleave(group, dim=1) for x in (k, v))]
    patterns = zip(segment_lengths, dilations, strict=True)
    output: Tensor = merge_states(*(_pattern(flat[0], flat[1], flat[2], w, r, causal) for w, r in patterns))[0]
    return output.reshape(*q.shape[:-1], v.shape[-1])


def _check(q: Tensor, k: Tensor, v: Tensor, segment_lengths: Sequence[int], dilations: Sequence[int]) -> None:
    outer = -3 if q.dim() >= 4 else -2
    same = all(x.dim() == q.dim() and x.shape[:outer] == q.shape[:outer] for x in (k, v))
    if q.dim() < 2 or not same or not q.shape[-2] == k.shape[-2] == v.shape[-2]:
        shapes = f"q={tuple(q.shape)}, k={tuple(k.shape)}, v={tuple(v.shape)}"
        raise ArgumentError(f"q, k and v must have the same batch and the same length; got {shapes}.")
    heads, key_heads, value_heads = (num_heads(x) for x in (q, k, v))
    if key_heads != value_heads or key_heads == 0 or heads % key_heads:
        raise ArgumentError(
            "k and v must have the same number of heads, and it must divide the number of heads of q; got "
            f"{key_heads}, {value_heads} and {heads}."
        )
    if not len(segment_lengths) == len(dilations) > 0:
        raise ArgumentError(
            "segment_lengths and dilations must have the same length of at least 1; got "
            f"{len(segment_lengths)} and {len(dilations)}."
        )
    if min(*segment_lengths, *dilations) < 1:
        raise ArgumentError(
            "segment_lengths and dilations must be at least 1; got the minima "
            f"{min(segment_lengths)} and {min(dilations)}."
        )


def _pattern(q: Tensor, k: Tensor, v: Tensor, w: int, r: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Return the output and lse of one pattern for all rows; 0 and -inf for rows that it does not select."""
    heads, n = q.shape[1:3]
    w = max(1, min(w, n))
    count = -(-n // w)
    head = torch.arange(heads, device=q.device).unsqueeze(-1)
    in_segment = torch.arange(0, w, r, device=q.device) + head % r
    positions = torch.arange(count, device=q.device).view(-1, 1, 1) * w + in_segment  # (segments, heads, rows)
    is_row = (in_segment < w) & (positions < n)
    visible = mask.causal() if causal else None
    if not is_row.all():
        row_mask = mask.from_function(lambda b, h, i, j: is_row[b % count, h, j])
        visible = row_mask if visible is None else visible & row_mask
    result = attention_with_weights(*(x[:, head, positions.clamp(max=n - 1)] for x in (q, k, v)), mask=visible)

    def scatter(rows: Tensor, fill_value: float) -> Tensor:
        """Write the rows to their positions; padding goes to an extra row n, which is dropped."""
        padded = rows.new_full((len(q), heads, n + 1, rows.shape[-1]), fill_value)
        padded[:, head, torch.where(is_row, positions, n)] = rows
        return padded[:, :, :n]

    return scatter(result.output, 0.0), scatter(result.lse.unsqueeze(-1), -torch.inf).squeeze(-1)
