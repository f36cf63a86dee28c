"""Clustered attention: queries that lie close together ask once, by their mean (Vyas and others, 2020).

    o_i = softmax(c·k/√d) v                            with c the mean of the queries in i's group

    improved, with the `top` keys T that c weighs most, and s the weight it gives them in all:
    o_i = s softmax_T(q_i·k/√d) v + sum over the other keys of c's weights times v

`clustered` is the attention, `grouped` finds groups. Time n·(groups + top) in the place of n².
"""

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attend, attention
from regard.checks import same_floats
from regard.errors import SpecError
from regard.measure import top as largest
from regard.mechanism.routing import gathered
from regard.packed import attention_packed

MAX_GROUPS, MAX_BITS, MAX_ITERATIONS = 2**20, 2**16, 1000


@check_types
def clustered(q: Tensor, k: Tensor, v: Tensor, groups: Tensor, *, top: int | None = None) -> Tensor:
    """Attention by groups of queries. q, k, v are (..., heads, n, width), groups (..., heads, n) numbers from 0 on.

    With `top` each query weighs the best keys of its group by itself. Exact if every query is a group of its own, and
    if `top` is the number of keys. Gradients reach q, k and v; which group and which keys is not differentiable.

    >>> q, k, v = torch.randn(3, 2, 100, 8)
    >>> clustered(q, k, v, grouped(q, clusters=10), top=16).shape
    torch.Size([2, 100, 8])
    """
    _check(q, k, v, groups)
    n_k, groups = k.shape[-2], groups.long()
    if top is not None and not 1 <= top <= n_k:
        raise SpecError(f"top must be from 1 to the number of keys, {n_k}; got {top}.")
    if q.shape[-2] == 0:
        return v.new_zeros((*q.shape[:-1], v.shape[-1]))
    centres = _means(q, groups)
    if top is None:
        return _each(attention(centres, k, v), groups)
    best = attend(centres.detach(), k.detach(), v[..., :1].detach()).weights.measure(largest(top)).top.indices
    k_best, v_best = (gathered(x, best) for x in (k, v))
    others = torch.ones(*centres.shape[:-1], n_k, dtype=torch.bool, device=q.device).scatter(-1, best, False)
    rest = attend(centres, k, v, mask=others)
    lse = attend(centres.unsqueeze(-2), k_best, v_best[..., :1]).lse.squeeze(-1)
    share = _each(torch.sigmoid(lse - rest.lse).unsqueeze(-1).to(q.dtype), groups)
    return share * _by_themselves(q, k_best, v_best, groups) + (1.0 - share) * _each(rest.output, groups)


@torch.no_grad()
@check_types
def grouped(q: Tensor, *, clusters: int, bits: int = 32, iterations: int = 10, seed: int = 0) -> Tensor:
    """A group from 0 to clusters - 1 for each query, (..., heads, n): near directions, most likely the same group.

    A query's code is on which side of `bits` random planes it lies. Codes are clustered by Lloyd's way: to the centre
    that differs in the fewest bits; then each centre takes the bits that most of its codes have. The planes and the
    queries that are the first centres are drawn by `seed`. A group may stay empty.

    >>> x = torch.tensor([[[1.0, 2.0], [-1.0, 1.0], [2.0, 4.0], [-3.0, 3.0]]])
    >>> groups = grouped(x, clusters=2)[0]
    >>> bool(groups[0] == groups[2] != groups[1] == groups[3])
    True
    """
    same_floats({"q": q}, least_dims=2)
    n, numbers = q.shape[-2], torch.Generator().manual_seed(seed)
    if not 1 <= clusters <= n:
        raise SpecError(f"clusters must be from 1 to the number of queries, {n}; got {clusters}.")
    if not 1 <= bits <= MAX_BITS or not 0 <= iterations <= MAX_ITERATIONS:
        limits = f"bits must be from 1 to {MAX_BITS:,} and iterations from 0 to {MAX_ITERATIONS:,}"
        raise SpecError(f"{limits}; got {bits} and {iterations}.")
    planes = torch.randn(q.shape[-1], bits, generator=numbers, dtype=torch.float64).to(q)
    codes = torch.where(q @ planes > 0, 1.0, -1.0)
    centres = codes[..., torch.randperm(n, generator=numbers)[:clusters].to(q.device), :]
    for _ in range(iterations):
        belongs = torch.nn.functional.one_hot(_nearest(codes, centres), clusters).to(codes)
        votes = belongs.mT @ codes
        centres = torch.where(votes == 0.0, centres, votes.sign())  # a tie, or nobody there: as it was
    return _nearest(codes, centres)


def _nearest(codes: Tensor, centres: Tensor) -> Tensor:
    """The centre of the fewest different bits: with bits of ±1 that is the largest product."""
    return (codes @ centres.mT).argmax(-1)


def _check(q: Tensor, k: Tensor, v: Tensor, groups: Tensor) -> None:
    same_floats({"q": q, "k": k, "v": v})
    if q.dim() < 3 or not q.shape[:-2] == k.shape[:-2] == v.shape[:-2] or k.shape[-2] != v.shape[-2]:
        shapes = f"q={tuple(q.shape)}, k={tuple(k.shape)}, v={tuple(v.shape)}"
        raise SpecError(
            f"q, k and v must be (..., heads, n, width) with equal heads, k and v equally long; got {shapes}."
        )
    if groups.shape != q.shape[:-1] or groups.is_floating_point() or groups.dtype == torch.bool:
        got = f"{groups.dtype} of shape {tuple(groups.shape)}"
        raise SpecError(f"groups must have a whole number for each query, {tuple(q.shape[:-1])}; got {got}.")
    if groups.numel() and int(groups.min()) < 0:
        raise SpecError(f"groups must be numbered from 0 on; got {int(groups.min())}.")
    if groups.numel() and int(groups.max()) >= MAX_GROUPS:
        raise SpecError(f"groups must be numbered below {MAX_GROUPS:,}; got {int(groups.max())}.")


def _means(q: Tensor, groups: Tensor) -> Tensor:
    """The mean of each group's queries, (..., groups, width); 0 where a group is empty."""
    shape = (*q.shape[:-2], int(groups.max()) + 1)
    sums = q.new_zeros((*shape, q.shape[-1])).scatter_add(-2, groups.unsqueeze(-1).expand_as(q), q)
    count = q.new_zeros(shape).scatter_add(-1, groups, q.new_ones(groups.shape))
    return sums / count.clamp(min=1.0).unsqueeze(-1)


def _each(rows: Tensor, groups: Tensor) -> Tensor:
    """What each query's group has."""
    return rows.gather(-2, groups.unsqueeze(-1).expand(*groups.shape, rows.shape[-1]))


def _by_themselves(q: Tensor, k_best: Tensor, v_best: Tensor, groups: Tensor) -> Tensor:
    """Each query's own attention over the best keys of its group: groups of unequal size, laid end to end."""
    count, top = k_best.shape[-3:-1]
    flat = groups.flatten(0, -2)
    numbers = (flat + count * torch.arange(len(flat), device=q.device).unsqueeze(-1)).flatten()
    order = numbers.argsort(stable=True)
    sizes = numbers.bincount(minlength=count * len(flat))
    rows = q.flatten(0, -2)[order]
    keys, values = (x.flatten(0, -2) for x in (k_best, v_best))
    output = attention_packed(rows, keys, values, sizes, torch.full_like(sizes, top))
    back = torch.empty_like(order).index_put((order,), torch.arange(len(order), device=q.device))
    found: Tensor = output[back].unflatten(0, q.shape[:-1])
    return found
