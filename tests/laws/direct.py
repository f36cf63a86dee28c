"""Attention written out as its definition says, in plain float64 torch, with nothing of the library in it.

Everything is materialised, down to one number for each (b, h, i, j, c): slow, small, and easy to believe.

    s_ij = f(q_i, k_j), then the rules            score
    only j with M(b, h, i, j) and s_ij > -inf     mask
    a_i  = N(s_i over those j)                    weigh
    o_i  = sum_j a_ij g(v_j) over those j         value

Masks and rules are functions of `Places`, which knows the raw query number i and the position p = start + i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

INFINITY = math.inf


@dataclass(frozen=True)
class Places:
    """Where every pair stands: `b`, `h`, `i`, `j`, `p`, each broadcasting over (batch, heads, n_q, n_k)."""

    b: Tensor
    h: Tensor
    i: Tensor
    j: Tensor
    p: Tensor
    shape: tuple[int, int, int, int]


@dataclass(frozen=True)
class Answer:
    output: Tensor  # (batch, heads, n_q, d_v)
    weights: Tensor  # (batch, heads, n_q, n_k), before dropout
    lse: Tensor  # (batch, heads, n_q), over what is seen, without any sink


Score = Callable[[Tensor, Tensor], Tensor]
Rule = Callable[[Tensor, Places], Tensor]
Mask = Callable[[Places], Tensor]
Weigh = Callable[[Tensor, Tensor], Tensor]


def places(shape: Sequence[int], start: int | Sequence[int] | None = None) -> Places:
    batch, heads, n_q, n_k = shape
    b = torch.arange(batch).view(batch, 1, 1, 1)
    i = torch.arange(n_q).view(1, 1, n_q, 1)
    begin = torch.as_tensor(n_k - n_q if start is None else start, dtype=torch.int64)
    return Places(
        b=b,
        h=torch.arange(heads).view(1, heads, 1, 1),
        i=i,
        j=torch.arange(n_k).view(1, 1, 1, n_k),
        p=begin.reshape(-1, 1, 1, 1) + i,
        shape=(batch, heads, n_q, n_k),
    )


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score: Score | None = None,
    rules: Sequence[Rule] = (),
    mask: Mask | None = None,
    weigh: Weigh | None = None,
    value: Callable[[Tensor], Tensor] | None = None,
    pair_value: Callable[[Places], Tensor] | None = None,
    kept: Tensor | None = None,
    start: int | Sequence[int] | None = None,
    dtype: torch.dtype = torch.float64,
) -> Answer:
    """q (batch, heads, n_q, d), k and v with as many heads or a divisor of them, batch 1 broadcasts.

    `kept` multiplies the weights (dropout: 0 or 1/(1-p)); `pair_value` (n_q, n_k, d_v) adds to v_j. In another `dtype`
    it is the direct formula as people write it, each step rounded.
    """
    batch = torch.broadcast_shapes(q.shape[:1], k.shape[:1], v.shape[:1])[0]
    values = v if value is None else value(v)
    q, k, values = (x.to(dtype).expand(batch, *x.shape[1:]) for x in (q, k, values))
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    values = values.repeat_interleave(q.shape[1] // values.shape[1], dim=1)
    where = places((batch, q.shape[1], q.shape[2], k.shape[2]), start)

    scores = (score or scaled_dot())(q, k)
    for rule in rules:
        scores = rule(scores, where)
    scores = scores.to(dtype)
    allowed = mask(where) if mask is not None else torch.ones((), dtype=torch.bool)
    seen = (allowed & (scores != -INFINITY)).expand(where.shape)

    weights = (weigh or softmax())(scores, seen)
    dropped = weights if kept is None else weights * kept
    if dtype != torch.float64 and pair_value is None:
        return Answer(dropped @ values, weights, log_sum_exp(scores, seen))
    each = values.unsqueeze(2)
    if pair_value is not None:
        each = each + pair_value(where)
    counts = seen.unsqueeze(-1)
    if getattr(weigh, "is_sparse", False):
        counts = counts & (
            (weights != 0.0).unsqueeze(-1) | each.isfinite()
        )  # what such a weighing leaves out is hidden
    parts = torch.where(counts, dropped.unsqueeze(-1) * each, 0.0)
    return Answer(parts.sum(3), weights, log_sum_exp(scores, seen))


def log_sum_exp(scores: Tensor, seen: Tensor) -> Tensor:
    top, powers = _powers(scores, seen)
    total = powers.sum(-1)
    empty = ~seen.any(-1)
    return torch.where(empty, -INFINITY, top.squeeze(-1) + torch.where(empty, 1.0, total).log())


def _powers(scores: Tensor, seen: Tensor, floor: float | Tensor = -INFINITY) -> tuple[Tensor, Tensor]:
    """The row maximum of what is seen (at least `floor`), and exp(s - maximum) where seen, 0 elsewhere."""
    visible = torch.where(seen, scores, -INFINITY)
    if scores.shape[-1] == 0:
        top = visible.new_full((*visible.shape[:-1], 1), -INFINITY)
    else:
        top = visible.detach().amax(-1, keepdim=True)
    top = torch.maximum(top, torch.as_tensor(floor, dtype=scores.dtype).detach().expand_as(top))
    top = torch.where(top == -INFINITY, 0.0, top)
    powers = torch.where(seen, torch.exp(torch.where(seen, scores, 0.0) - top), 0.0)
    return top, powers


# Scores: functions of whole q (..., n_q, d) and k (..., n_k, d).


def dot() -> Score:
    return lambda q, k: q @ k.mT


def scaled_dot(scale: float | Tensor | None = None) -> Score:
    return lambda q, k: (q @ k.mT) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)


def multiplicative(w: Tensor) -> Score:
    return lambda q, k: q @ w @ k.mT


def cosine(scale: float | Tensor) -> Score:
    return lambda q, k: (
        scale * (q / q.square().sum(-1, keepdim=True).sqrt()) @ (k / k.square().sum(-1, keepdim=True).sqrt()).mT
    )


def metric(sigma: float | Tensor) -> Score:
    return lambda q, k: -(q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1) / (2 * sigma**2)


def mahalanobis(m: Tensor) -> Score:
    def score(q: Tensor, k: Tensor) -> Tensor:
        gap = q.unsqueeze(-2) - k.unsqueeze(-3)
        return -((gap @ m) * gap).sum(-1) / 2

    return score


def additive(w_q: Tensor, w_k: Tensor, u: Tensor, bias: Tensor | None = None) -> Score:
    def score(q: Tensor, k: Tensor) -> Tensor:
        both = (q @ w_q).unsqueeze(-2) + (k @ w_k).unsqueeze(-3)
        return torch.tanh(both if bias is None else both + bias) @ u

    return score


# Rules: functions of the scores so far and the places.


def alibi(slopes: Tensor) -> Rule:
    return lambda s, where: s - slopes.view(1, -1, 1, 1) * (where.p - where.j).abs()


def softcap(c: float | Tensor) -> Rule:
    return lambda s, where: c * torch.tanh(s / c)


def bias(tensor: Tensor) -> Rule:
    return lambda s, where: s + tensor


def relative(table: Tensor, bidirectional: bool = True, max_distance: int = 128) -> Rule:
    """T5: table (buckets, heads), looked up at the bucket of j - p."""

    def rule(s: Tensor, where: Places) -> Tensor:
        gaps = where.j - where.p
        buckets = torch.tensor(
            [t5_bucket(int(gap), table.shape[0], bidirectional, max_distance) for gap in gaps.reshape(-1)],
            dtype=torch.int64,
        ).view(gaps.shape)
        return s + table[buckets, where.h]

    return rule


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


def shaw_keys(q: Tensor, table: Tensor) -> Rule:
    """q_i · table[clip(j - p)] / sqrt(d); table (2 reach + 1, d)."""
    return lambda s, where: s + (q.unsqueeze(3) * _relative_rows(table, where)).sum(-1) / math.sqrt(q.shape[-1])


def shaw_values(table: Tensor) -> Callable[[Places], Tensor]:
    return lambda where: _relative_rows(table, where)


def _relative_rows(table: Tensor, where: Places) -> Tensor:
    reach = table.shape[0] // 2
    return table[(where.j - where.p).clamp(-reach, reach) + reach]


# Weighing: from scores and what is seen to weights; hidden pairs weigh 0.


def softmax() -> Weigh:
    def weigh(scores: Tensor, seen: Tensor) -> Tensor:
        _, powers = _powers(scores, seen)
        total = powers.sum(-1, keepdim=True)
        return powers / torch.where(seen.any(-1, keepdim=True), total, 1.0)

    return weigh


def sink(logit: float | Tensor = 0.0) -> Weigh:
    """exp(s_j) / (exp(logit) + sum exp(s)); a tensor holds one logit for each head."""

    def weigh(scores: Tensor, seen: Tensor) -> Tensor:
        extra = torch.as_tensor(logit, dtype=scores.dtype).reshape(1, -1, 1, 1)
        top, powers = _powers(scores, seen, floor=extra)
        return powers / (torch.exp(extra - top) + powers.sum(-1, keepdim=True))

    return weigh


def sigmoid(bias: float | Tensor = 0.0) -> Weigh:
    return lambda scores, seen: torch.where(seen, torch.sigmoid(torch.where(seen, scores, 0.0) + bias), 0.0)


def relu(scale: float | Tensor | None = None) -> Weigh:
    def weigh(scores: Tensor, seen: Tensor) -> Tensor:
        factor = 1 / max(scores.shape[-1], 1) if scale is None else scale
        return torch.where(seen, torch.relu(torch.where(seen, scores, 0.0)) * factor, 0.0)

    return weigh


def sparse(weigh: Weigh) -> Weigh:
    weigh.is_sparse = True  # type: ignore[attr-defined]
    return weigh


def sparsemax() -> Weigh:
    """By sorting: the k largest scores are kept, with k the most for which 1 + k z_(k) > z_(1) + ... + z_(k)."""

    def weigh(scores: Tensor, seen: Tensor) -> Tensor:
        if scores.shape[-1] == 0:
            return scores
        z = torch.where(seen, scores, -INFINITY)
        ordered = z.sort(-1, descending=True).values
        ordered = torch.where(ordered == -INFINITY, -1e30, ordered)
        counts = torch.arange(1, z.shape[-1] + 1)
        kept = (1 + counts * ordered > ordered.cumsum(-1)) & (ordered > -1e29)
        size = kept.sum(-1, keepdim=True).clamp(min=1)
        tau = (torch.where(kept, ordered, 0.0).sum(-1, keepdim=True) - 1) / size
        return _poisoned(torch.where(seen, torch.relu(torch.where(seen, scores, 0.0) - tau), 0.0), scores, seen)

    return sparse(weigh)


def entmax(alpha: float | Tensor) -> Weigh:
    """By bisection. The gradient comes in by two steps of Newton's method from where it ends."""

    def weigh(scores: Tensor, seen: Tensor) -> Tensor:
        if scores.shape[-1] == 0:
            return scores
        factor = torch.as_tensor(alpha, dtype=scores.dtype).reshape(1, -1, 1, 1) - 1
        z = torch.where(seen, scores, 0.0) * factor
        sees = seen.any(-1, keepdim=True)
        top = torch.where(seen, z, -INFINITY).detach().amax(-1, keepdim=True)
        low, high = torch.where(sees, top, 0.0) - 1, torch.where(sees, top, 0.0)
        for _ in range(60):
            middle = (low + high) / 2
            large = _sum_of_powers(z, middle, seen, 1 / factor).detach() > 1
            low, high = torch.where(large, middle, low), torch.where(large, high, middle)
        tau = low
        for _ in range(2):
            slope = _sum_of_powers(z, tau, seen, 1 / factor - 1) / factor
            tau = tau + (_sum_of_powers(z, tau, seen, 1 / factor) - 1) / torch.where(slope == 0, 1.0, slope)
        return _poisoned(_powers_above(z, tau, seen, 1 / factor) * sees, scores, seen)

    return sparse(weigh)


def _powers_above(z: Tensor, tau: Tensor, seen: Tensor, power: Tensor) -> Tensor:
    above = seen & (z > tau)
    return torch.where(above, torch.where(above, z - tau, 1.0) ** power, 0.0)


def _sum_of_powers(z: Tensor, tau: Tensor, seen: Tensor, power: Tensor) -> Tensor:
    return _powers_above(z, tau, seen, power).sum(-1, keepdim=True)


def _poisoned(weights: Tensor, scores: Tensor, seen: Tensor) -> Tensor:
    """A row that sees a score of NaN or inf is NaN."""
    return torch.where((seen & ~scores.isfinite()).any(-1, keepdim=True) & seen, math.nan, weights)


def top(k: int) -> Weigh:
    def weigh(scores: Tensor, seen: Tensor) -> Tensor:
        if scores.shape[-1] == 0:
            return scores
        ordered = torch.where(seen, scores, -INFINITY).detach().sort(-1, descending=True).values
        last = ordered[..., min(k, scores.shape[-1]) - 1].unsqueeze(-1)
        return _poisoned(softmax()(scores, seen & (scores >= last)), scores, seen)

    return sparse(weigh)


def argmax() -> Weigh:
    """Hard weights, with softmax's gradient."""

    def weigh(scores: Tensor, seen: Tensor) -> Tensor:
        if scores.shape[-1] == 0:
            return scores
        z = torch.where(seen, scores, -INFINITY).detach()
        hard = ((z == z.amax(-1, keepdim=True)) & seen).to(scores.dtype)
        hard = hard / hard.sum(-1, keepdim=True).clamp(min=1)
        soft = softmax()(scores, seen)
        return _poisoned(hard + soft - soft.detach(), scores, seen)

    return sparse(weigh)


# Masks: predicates on places, True = may attend.


def causal() -> Mask:
    return lambda where: where.j <= where.p


def window(before: int, after: int | None = None) -> Mask:
    reach = before if after is None else after
    return lambda where: (where.p - before < where.j) & (where.j < where.p + reach)


def dilated(width: int, step: int) -> Mask:
    def mask(where: Places) -> Tensor:
        gap = (where.p - where.j).abs()
        return (gap % step == 0) & (gap < width * step)

    return mask


def prefix(n: int) -> Mask:
    return lambda where: where.j < n


def longformer(width: int, indices: Sequence[int]) -> Mask:
    return lambda where: ((where.p - where.j).abs() <= width // 2) | tokens(indices)(where)


def blocks(size: int, look_back: int = 0) -> Mask:
    def mask(where: Places) -> Tensor:
        gap = _floor(where.p, size) - _floor(where.j, size)
        return (gap >= 0) & (gap <= look_back)

    return mask


def strided(stride: int) -> Mask:
    def mask(where: Places) -> Tensor:
        gap = where.p - where.j
        return (gap >= 0) & ((gap <= stride) | (gap % stride == 0))

    return mask


def fixed(stride: int, summary: int = 1) -> Mask:
    def mask(where: Places) -> Tensor:
        own = _floor(where.j, stride) == _floor(where.p, stride)
        return (where.j <= where.p) & (own | (where.j % stride >= stride - summary))

    return mask


def padding(lengths: Tensor, side: str = "right") -> Mask:
    def mask(where: Places) -> Tensor:
        counts = lengths[where.b]
        return where.j < counts if side == "right" else where.j >= where.shape[3] - counts

    return mask


def documents_of_keys(ids: Tensor) -> Mask:
    """ids (batch, n_k): a query belongs where the key at its position does."""
    return lambda where: ids[where.b, where.p] == ids[where.b, where.j]


def documents(ids_q: Tensor, ids_k: Tensor) -> Mask:
    """ids (batch, length): the query's by its row, the key's by its column."""
    return lambda where: ids_q[where.b, where.i] == ids_k[where.b, where.j]


def tokens(indices: Sequence[int]) -> Mask:
    chosen = torch.tensor(list(indices))
    return lambda where: torch.isin(where.p, chosen) | torch.isin(where.j, chosen)


def _floor(a: Tensor, b: int) -> Tensor:
    return torch.div(a, b, rounding_mode="floor")
