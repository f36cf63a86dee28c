"""The direct definition of attention in plain float64 torch, independent of the library.

Every intermediate value is materialized, down to one number for each (b, h, i, j, c). It is slow and easy to verify.

    s_ij = f(q_i, k_j), then the modifiers        score
    only j with M(b, h, i, j) and s_ij > -inf     mask
    a_i  = N(s_i over those j)                    normalizer
    o_i  = sum_j a_ij g(v_j) over those j         value

Masks and modifiers are functions of `Positions`, with the query index i and the position p = query_offset + i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

INFINITY = math.inf


@dataclass(frozen=True)
class Positions:
    """The indices of every pair, each broadcasting over (batch, heads, n_q, n_k)."""

    b: Tensor
    h: Tensor
    i: Tensor
    j: Tensor
    p: Tensor
    shape: tuple[int, int, int, int]


@dataclass(frozen=True)
class Result:
    output: Tensor  # (batch, heads, n_q, d_v)
    weights: Tensor  # (batch, heads, n_q, n_k), before dropout
    lse: Tensor  # (batch, heads, n_q), over visible keys, without a sink


Score = Callable[[Tensor, Tensor], Tensor]
Modifier = Callable[[Tensor, Positions], Tensor]
Mask = Callable[[Positions], Tensor]
Normalizer = Callable[[Tensor, Tensor], Tensor]


def positions(shape: Sequence[int], query_offset: int | Sequence[int] | None = None) -> Positions:
    batch, heads, n_q, n_k = shape
    b = torch.arange(batch).view(batch, 1, 1, 1)
    i = torch.arange(n_q).view(1, 1, n_q, 1)
    offset = torch.as_tensor(n_k - n_q if query_offset is None else query_offset, dtype=torch.int64)
    return Positions(
        b=b,
        h=torch.arange(heads).view(1, heads, 1, 1),
        i=i,
        j=torch.arange(n_k).view(1, 1, 1, n_k),
        p=offset.reshape(-1, 1, 1, 1) + i,
        shape=(batch, heads, n_q, n_k),
    )


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score: Score | None = None,
    modifiers: Sequence[Modifier] = (),
    mask: Mask | None = None,
    normalizer: Normalizer | None = None,
    value: Callable[[Tensor], Tensor] | None = None,
    pair_value: Callable[[Positions], Tensor] | None = None,
    dropout_mask: Tensor | None = None,
    query_offset: int | Sequence[int] | None = None,
    dtype: torch.dtype = torch.float64,
) -> Result:
    """Compute attention for q (batch, heads, n_q, d); the heads of k and v divide those of q, and batch 1 broadcasts.

    `dropout_mask` (0 or 1/(1-p)) multiplies the weights; `pair_value` (n_q, n_k, d_v) is added to v_j. In another
    `dtype` every step is rounded to it, as in the usual formula.
    """
    batch = torch.broadcast_shapes(q.shape[:1], k.shape[:1], v.shape[:1])[0]
    values = v if value is None else value(v)
    q, k, values = (x.to(dtype).expand(batch, *x.shape[1:]) for x in (q, k, values))
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    values = values.repeat_interleave(q.shape[1] // values.shape[1], dim=1)
    where = positions((batch, q.shape[1], q.shape[2], k.shape[2]), query_offset)

    scores = (score or scaled_dot())(q, k)
    for modifier in modifiers:
        scores = modifier(scores, where)
    scores = scores.to(dtype)
    allowed = mask(where) if mask is not None else torch.ones((), dtype=torch.bool)
    visible = (allowed & (scores != -INFINITY)).expand(where.shape)

    weights = (normalizer or softmax())(scores, visible)
    dropped = weights if dropout_mask is None else weights * dropout_mask
    if dtype != torch.float64 and pair_value is None:
        return Result(dropped @ values, weights, log_sum_exp(scores, visible))
    pair_values = values.unsqueeze(2)
    if pair_value is not None:
        pair_values = pair_values + pair_value(where)
    contributes = visible.unsqueeze(-1)
    if getattr(normalizer, "is_sparse", False):  # a value with weight exactly 0 may be nonfinite
        contributes = contributes & ((weights != 0.0).unsqueeze(-1) | pair_values.isfinite())
    terms = torch.where(contributes, dropped.unsqueeze(-1) * pair_values, 0.0)
    return Result(terms.sum(3), weights, log_sum_exp(scores, visible))


def log_sum_exp(scores: Tensor, visible: Tensor) -> Tensor:
    row_max, exponentials = _exponentials(scores, visible)
    total = exponentials.sum(-1)
    empty = ~visible.any(-1)
    return torch.where(empty, -INFINITY, row_max.squeeze(-1) + torch.where(empty, 1.0, total).log())


def _exponentials(scores: Tensor, visible: Tensor, floor: float | Tensor = -INFINITY) -> tuple[Tensor, Tensor]:
    """Return the row maximum of visible scores (at least `floor`), and exp(s - maximum), 0 for hidden pairs."""
    visible_scores = torch.where(visible, scores, -INFINITY)
    if scores.shape[-1] == 0:
        row_max = visible_scores.new_full((*visible_scores.shape[:-1], 1), -INFINITY)
    else:
        row_max = visible_scores.detach().amax(-1, keepdim=True)
    row_max = torch.maximum(row_max, torch.as_tensor(floor, dtype=scores.dtype).detach().expand_as(row_max))
    row_max = torch.where(row_max == -INFINITY, 0.0, row_max)
    exponentials = torch.where(visible, torch.exp(torch.where(visible, scores, 0.0) - row_max), 0.0)
    return row_max, exponentials


# Scores: functions of q (..., n_q, d) and k (..., n_k, d).


def dot() -> Score:
    return lambda q, k: q @ k.mT


def scaled_dot(scale: float | Tensor | None = None) -> Score:
    return lambda q, k: (q @ k.mT) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)


def bilinear(w: Tensor) -> Score:
    return lambda q, k: q @ w @ k.mT


def cosine(scale: float | Tensor) -> Score:
    return lambda q, k: (
        scale * (q / q.square().sum(-1, keepdim=True).sqrt()) @ (k / k.square().sum(-1, keepdim=True).sqrt()).mT
    )


def gaussian(sigma: float | Tensor) -> Score:
    return lambda q, k: -(q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1) / (2 * sigma**2)


def mahalanobis(m: Tensor) -> Score:
    def score(q: Tensor, k: Tensor) -> Tensor:
        gap = q.unsqueeze(-2) - k.unsqueeze(-3)
        return -((gap @ m) * gap).sum(-1) / 2

    return score


def additive(w_q: Tensor, w_k: Tensor, u: Tensor, bias: Tensor | None = None) -> Score:
    def score(q: Tensor, k: Tensor) -> Tensor:
        hidden = (q @ w_q).unsqueeze(-2) + (k @ w_k).unsqueeze(-3)
        return torch.tanh(hidden if bias is None else hidden + bias) @ u

    return score


# Modifiers: functions of the scores and the positions.


def alibi(slopes: Tensor) -> Modifier:
    return lambda s, where: s - slopes.view(1, -1, 1, 1) * (where.p - where.j).abs()


def softcap(c: float | Tensor) -> Modifier:
    return lambda s, where: c * torch.tanh(s / c)


def bias(tensor: Tensor) -> Modifier:
    return lambda s, where: s + tensor


def t5_bias(table: Tensor, bidirectional: bool = True, max_distance: int = 128) -> Modifier:
    """Return the bias of T5: table (buckets, heads), indexed by the bucket of j - p."""

    def modifier(s: Tensor, where: Positions) -> Tensor:
        gaps = where.j - where.p
        buckets = torch.tensor(
            [t5_bucket(int(gap), table.shape[0], bidirectional, max_distance) for gap in gaps.reshape(-1)],
            dtype=torch.int64,
        ).view(gaps.shape)
        return s + table[buckets, where.h]

    return modifier


def t5_bucket(gap: int, buckets: int, bidirectional: bool, max_distance: int) -> int:
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if gap > 0 else 0
        distance = abs(gap)
    else:
        distance = max(-gap, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    steps = math.log(distance / exact) / math.log(max_distance / exact) * (buckets - exact)
    return first + min(exact + int(steps), buckets - 1)


def shaw_keys(q: Tensor, table: Tensor) -> Modifier:
    """Return q_i · table[clip(j - p)] / sqrt(d); table (2 max_distance + 1, d)."""
    return lambda s, where: s + (q.unsqueeze(3) * _relative_rows(table, where)).sum(-1) / math.sqrt(q.shape[-1])


def shaw_values(table: Tensor) -> Callable[[Positions], Tensor]:
    return lambda where: _relative_rows(table, where)


def _relative_rows(table: Tensor, where: Positions) -> Tensor:
    max_distance = table.shape[0] // 2
    return table[(where.j - where.p).clamp(-max_distance, max_distance) + max_distance]


# Normalizers: functions of the scores and the visible pairs; hidden pairs get weight 0.


def softmax() -> Normalizer:
    def normalizer(scores: Tensor, visible: Tensor) -> Tensor:
        _, exponentials = _exponentials(scores, visible)
        total = exponentials.sum(-1, keepdim=True)
        return exponentials / torch.where(visible.any(-1, keepdim=True), total, 1.0)

    return normalizer


def sink(logit: float | Tensor = 0.0) -> Normalizer:
    """Return exp(s_j) / (exp(logit) + sum exp(s)); a tensor has one logit per head."""

    def normalizer(scores: Tensor, visible: Tensor) -> Tensor:
        extra = torch.as_tensor(logit, dtype=scores.dtype).reshape(1, -1, 1, 1)
        row_max, exponentials = _exponentials(scores, visible, floor=extra)
        return exponentials / (torch.exp(extra - row_max) + exponentials.sum(-1, keepdim=True))

    return normalizer


def sigmoid(bias: float | Tensor = 0.0) -> Normalizer:
    return lambda scores, visible: torch.where(visible, torch.sigmoid(torch.where(visible, scores, 0.0) + bias), 0.0)


def relu(scale: float | Tensor | None = None) -> Normalizer:
    def normalizer(scores: Tensor, visible: Tensor) -> Tensor:
        factor = 1 / max(scores.shape[-1], 1) if scale is None else scale
        return torch.where(visible, torch.relu(torch.where(visible, scores, 0.0)) * factor, 0.0)

    return normalizer


def sparse(normalizer: Normalizer) -> Normalizer:
    normalizer.is_sparse = True  # type: ignore[attr-defined]
    return normalizer


def sparsemax() -> Normalizer:
    """Compute sparsemax by sorting: the support is the k largest scores, with the largest k such that
    1 + k z_(k) > z_(1) + ... + z_(k)."""

    def normalizer(scores: Tensor, visible: Tensor) -> Tensor:
        if scores.shape[-1] == 0:
            return scores
        z = torch.where(visible, scores, -INFINITY)
        ordered = z.sort(-1, descending=True).values
        ordered = torch.where(ordered == -INFINITY, -1e30, ordered)
        counts = torch.arange(1, z.shape[-1] + 1)
        in_support = (1 + counts * ordered > ordered.cumsum(-1)) & (ordered > -1e29)
        size = in_support.sum(-1, keepdim=True).clamp(min=1)
        tau = (torch.where(in_support, ordered, 0.0).sum(-1, keepdim=True) - 1) / size
        return _propagate_nan(
            torch.where(visible, torch.relu(torch.where(visible, scores, 0.0) - tau), 0.0), scores, visible
        )

    return sparse(normalizer)


def entmax(alpha: float | Tensor) -> Normalizer:
    """Compute entmax by bisection. Two differentiable Newton steps at the end provide the gradient."""

    def normalizer(scores: Tensor, visible: Tensor) -> Tensor:
        if scores.shape[-1] == 0:
            return scores
        factor = torch.as_tensor(alpha, dtype=scores.dtype).reshape(1, -1, 1, 1) - 1
        z = torch.where(visible, scores, 0.0) * factor
        has_keys = visible.any(-1, keepdim=True)
        row_max = torch.where(visible, z, -INFINITY).detach().amax(-1, keepdim=True)
        low, high = torch.where(has_keys, row_max, 0.0) - 1, torch.where(has_keys, row_max, 0.0)
        for _ in range(60):
            middle = (low + high) / 2
            is_low = _sum_of_powers(z, middle, visible, 1 / factor).detach() > 1
            low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
        tau = low
        for _ in range(2):
            slope = _sum_of_powers(z, tau, visible, 1 / factor - 1) / factor
            tau = tau + (_sum_of_powers(z, tau, visible, 1 / factor) - 1) / torch.where(slope == 0, 1.0, slope)
        return _propagate_nan(_powers_above(z, tau, visible, 1 / factor) * has_keys, scores, visible)

    return sparse(normalizer)


def _powers_above(z: Tensor, tau: Tensor, visible: Tensor, power: Tensor) -> Tensor:
    above = visible & (z > tau)
    return torch.where(above, torch.where(above, z - tau, 1.0) ** power, 0.0)


def _sum_of_powers(z: Tensor, tau: Tensor, visible: Tensor, power: Tensor) -> Tensor:
    return _powers_above(z, tau, visible, power).sum(-1, keepdim=True)


def _propagate_nan(weights: Tensor, scores: Tensor, visible: Tensor) -> Tensor:
    """Set the visible weights of a row with a visible nonfinite score to NaN."""
    return torch.where((visible & ~scores.isfinite()).any(-1, keepdim=True) & visible, math.nan, weights)


def topk(k: int) -> Normalizer:
    def normalizer(scores: Tensor, visible: Tensor) -> Tensor:
        if scores.shape[-1] == 0:
            return scores
        ordered = torch.where(visible, scores, -INFINITY).detach().sort(-1, descending=True).values
        last = ordered[..., min(k, scores.shape[-1]) - 1].unsqueeze(-1)
        return _propagate_nan(softmax()(scores, visible & (scores >= last)), scores, visible)

    return sparse(normalizer)


def hardmax() -> Normalizer:
    """Return hard weights with the gradient of softmax."""

    def normalizer(scores: Tensor, visible: Tensor) -> Tensor:
        if scores.shape[-1] == 0:
            return scores
        z = torch.where(visible, scores, -INFINITY).detach()
        hard = ((z == z.amax(-1, keepdim=True)) & visible).to(scores.dtype)
        hard = hard / hard.sum(-1, keepdim=True).clamp(min=1)
        soft = softmax()(scores, visible)
        return _propagate_nan(hard + soft - soft.detach(), scores, visible)

    return sparse(normalizer)


# Masks: predicates of the positions, True = may attend.


def causal() -> Mask:
    return lambda where: where.j <= where.p


def sliding_window(before: int, after: int | None = None) -> Mask:
    after = before if after is None else after
    return lambda where: (where.p - before < where.j) & (where.j < where.p + after)


def dilated(window_size: int, dilation: int) -> Mask:
    def mask(where: Positions) -> Tensor:
        gap = (where.p - where.j).abs()
        return (gap % dilation == 0) & (gap < window_size * dilation)

    return mask


def prefix(length: int) -> Mask:
    return lambda where: where.j < length


def longformer(attention_window: int, indices: Sequence[int]) -> Mask:
    return lambda where: ((where.p - where.j).abs() <= attention_window // 2) | global_tokens(indices)(where)


def chunked(chunk_size: int, look_back: int = 0) -> Mask:
    def mask(where: Positions) -> Tensor:
        gap = _floor_div(where.p, chunk_size) - _floor_div(where.j, chunk_size)
        return (gap >= 0) & (gap <= look_back)

    return mask


def strided(stride: int) -> Mask:
    def mask(where: Positions) -> Tensor:
        gap = where.p - where.j
        return (gap >= 0) & ((gap <= stride) | (gap % stride == 0))

    return mask


def fixed(stride: int, num_summary_keys: int = 1) -> Mask:
    def mask(where: Positions) -> Tensor:
        same_block = _floor_div(where.j, stride) == _floor_div(where.p, stride)
        return (where.j <= where.p) & (same_block | (where.j % stride >= stride - num_summary_keys))

    return mask


def padding(lengths: Tensor, side: str = "right") -> Mask:
    def mask(where: Positions) -> Tensor:
        length = lengths[where.b]
        return where.j < length if side == "right" else where.j >= where.shape[3] - length

    return mask


def document_of_keys(ids: Tensor) -> Mask:
    """Return the mask of ids (batch, n_k): the query at p has the id of key p."""
    return lambda where: ids[where.b, where.p] == ids[where.b, where.j]


def document(ids_q: Tensor, ids_k: Tensor) -> Mask:
    """Return the mask of separate ids of queries (batch, n_q) and keys (batch, n_k)."""
    return lambda where: ids_q[where.b, where.i] == ids_k[where.b, where.j]


def global_tokens(indices: Sequence[int]) -> Mask:
    positions = torch.tensor(list(indices))
    return lambda where: torch.isin(where.p, positions) | torch.isin(where.j, positions)


def _floor_div(a: Tensor, b: int) -> Tensor:
    return torch.div(a, b, rounding_mode="floor")
