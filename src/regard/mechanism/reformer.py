"""Hashed attention: a query looks at the keys that fall into its bucket, so time grows with the length.

    s_ij = scale · q_i·k_j,   k_j = q_j / |q_j|,   h(x) = argmax [x R; -x R]      R random, drawn anew for each round

One vector of a token is its query and, made of length 1, its key. A round sorts the tokens by bucket and position and
cuts the sorted row into chunks. Token i then sees

    P_i = the tokens of i's bucket that lie in i's chunk or in the one before it, without i, and if causal up to i

and with several rounds the union of their P_i. Who sees nobody else sees itself (Kitaev and others, 2020).

This is what the paper says. Programs differ from it: they let the first chunk look at the last, and some of them, as
Hugging Face's, do not hide other buckets in the same chunks, and count a pair once for each round that finds it.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attend
from regard.checks import same_floats
from regard.engine.merge import merge
from regard.errors import SpecError
from regard.spec.score import scaled_dot

MAX_NUMBERS = 2**28


@check_types
def lsh_attention(
    qk: Tensor,
    v: Tensor,
    *,
    buckets: int | Sequence[int] | None = None,
    rounds: int = 1,
    chunk: int = 64,
    seed: int = 0,
    causal: bool = False,
    hashes: Tensor | None = None,
    scale: float = 1.0,
    same_bucket: bool = True,
    once: bool = True,
) -> Tensor:
    """o_i = sum of softmax(s_ij) v_j over the j in P_i, the tokens that share a bucket with i. Exact for these sets;
    one chunk and one bucket for all tokens make it attention of all over all others.

    qk is (..., heads, n, width), v the same but for its width. The order of the tokens passes no gradient.

    buckets, rounds, seed: see `lsh_hashes`; None is two buckets a chunk, as in the paper.
    hashes: in their place the bucket of each token in each round, whole numbers (rounds, n) up to (rounds, ..., heads,
    n), from another hash function. Padding in a bucket of its own is seen by nobody.
    scale: 1 as in the authors' program. The paper leaves it out of its formulas; the usual one would be 1/√d.
    same_bucket: False shows all of i's chunk and of the one before, whatever the bucket.
    once: False counts a pair that several rounds find as often as it is found.

    Kitaev, Kaiser and Levskaya, 2020.

    >>> x = torch.randn(2, 4, 100, 8)
    >>> lsh_attention(x, x, rounds=2, chunk=16, causal=True).shape
    torch.Size([2, 4, 100, 8])
    """
    _check(qk, v, chunk)
    n = qk.shape[-2]
    if hashes is None:
        hashes = lsh_hashes(qk, buckets=_enough(n, chunk) if buckets is None else buckets, rounds=rounds, seed=seed)
    else:
        _check_hashes(hashes, buckets, qk)
    batch, heads = (qk.shape[:-3], qk.shape[-3]) if qk.dim() >= 4 else (qk.shape[:-2], 1)
    whole = (math.prod(batch), heads, n)
    qk, values = (x.reshape(*whole, x.shape[-1]) for x in (qk, v))
    hashes = torch.stack([each.expand(v.shape[:-1]).reshape(whole) for each in hashes])
    in_order, orders = hashes.sort(dim=-1, stable=True)
    places = _places(in_order if same_bucket else torch.zeros_like(in_order), orders, chunk)
    parts = [_round(qk, values, r, orders[r], places, scale, causal, once) for r in range(len(orders))]
    output, lse = merge(*parts)
    alone = (lse == -torch.inf).unsqueeze(-1)
    return torch.where(alone, values, output).reshape(v.shape)


@check_types
def lsh_hashes(qk: Tensor, *, buckets: int | Sequence[int], rounds: int = 1, seed: int = 0) -> Tensor:
    """The bucket of each token in each round, (rounds, ..., n): h(x) = argmax [x R; -x R] with R (width, buckets / 2).

    Vectors of one direction share a bucket, near ones often, opposite ones never. R is normal, drawn by `seed` for
    each head and round. Several numbers of buckets are as many hashes, of which one number is made: as many buckets as
    their product, for products with as many columns as their sum (Andoni and others, 2015).

    >>> lsh_hashes(torch.tensor([[3.0, 1.0], [6.0, 2.0], [-3.0, -1.0]]), buckets=2)
    tensor([[0, 0, 1]])
    """
    factors = (buckets,) if isinstance(buckets, int) else tuple(buckets)
    if not factors or any(b < 2 or b % 2 for b in factors):
        raise SpecError(f"buckets must be even and at least 2; got {buckets}.")
    if rounds < 1:
        raise SpecError(f"rounds must be at least 1; got {rounds}.")
    same_floats({"qk": qk}, least_dims=2)
    x = qk.detach() if qk.dim() >= 4 else qk.detach().unsqueeze(-3)
    columns = [b // 2 for b in factors]
    numbers = torch.Generator().manual_seed(seed)
    size = (x.shape[-3], x.shape[-1], rounds, sum(columns))
    if math.prod(size) > MAX_NUMBERS or rounds * x.shape[:-1].numel() > MAX_NUMBERS:
        raise SpecError(
            f"rounds times buckets must be small enough for {MAX_NUMBERS:,} random numbers; got {rounds} rounds and "
            f"{buckets} buckets."
        )
    rotations = torch.randn(size, generator=numbers, dtype=torch.float64).to(x)
    bucket = torch.zeros(rounds, *x.shape[:-1], dtype=torch.long, device=x.device)
    before = 1
    for part, many in zip(rotations.split(columns, dim=-1), factors, strict=True):
        turned = torch.einsum("...hnd,hdrc->r...hnc", x, part)
        bucket = bucket + before * torch.cat((turned, -turned), -1).argmax(-1)
        before *= many
    return bucket if qk.dim() >= 4 else bucket.squeeze(-2)


def _check(qk: Tensor, v: Tensor, chunk: int) -> None:
    same_floats({"qk": qk, "v": v})
    if qk.dim() < 2 or qk.shape[:-1] != v.shape[:-1]:
        raise SpecError(f"v must be as qk but for its width; got qk={tuple(qk.shape)}, v={tuple(v.shape)}.")
    if chunk < 1:
        raise SpecError(f"a chunk must hold at least 1 token; got {chunk}.")


def _check_hashes(hashes: Tensor, buckets: int | Sequence[int] | None, qk: Tensor) -> None:
    if buckets is not None:
        raise SpecError(f"buckets must not be given with hashes, which are buckets already; got {buckets}.")
    if hashes.is_floating_point() or hashes.is_complex() or hashes.dtype == torch.bool:
        raise SpecError(f"hashes must be whole numbers; got {hashes.dtype}.")
    wanted, got = tuple(qk.shape[:-1]), tuple(hashes.shape)
    fits = 2 <= len(got) <= len(wanted) + 1 and got[0] > 0
    if not fits or any(size not in (1, whole) for size, whole in zip(got[:0:-1], wanted[::-1], strict=False)):
        raise SpecError(f"hashes must be (rounds, ...) and broadcast over {wanted} behind that; got {got}.")


def _enough(n: int, chunk: int) -> tuple[int, ...]:
    """Two buckets a chunk. Many come from two hashes: one would take longer than the attention that it saves."""
    count = max(2, 2 * -(-n // chunk))
    if count <= 2 * chunk:
        return (count,)
    side = 2 * math.ceil(math.sqrt(count) / 2)
    return (side, 2 * math.ceil(count / side / 2))


def _places(buckets: Tensor, orders: Tensor, chunk: int) -> Tensor:
    """A number for each token and round: i may see j if its own is that of j, or one more.

    It grows along the sorted tokens: by 1 from a chunk to the next, and by 2 from a bucket to the next.
    """
    n = buckets.shape[-1]
    steps = (torch.arange(n, device=buckets.device) // chunk).diff().expand(*buckets.shape[:-1], -1)
    steps = torch.where(buckets.diff(dim=-1) != 0, 2, steps)
    along = torch.nn.functional.pad(steps.cumsum(-1), (1, 0))
    return torch.zeros_like(orders).scatter(-1, orders, along)


def _round(
    qk: Tensor, v: Tensor, r: int, order: Tensor, places: Tensor, scale: float, causal: bool, once: bool
) -> tuple[Tensor, Tensor]:
    """Output and lse of one round, in the order of the tokens. The chunks need no cutting: all that they do not hold
    is hidden, and what is hidden is not visited."""
    own, *others = (p.gather(-1, order) for p in (places[r], *places[:r], *places[r + 1 :]))

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        other = order[b, h, j] < order[b, h, i] if causal else order[b, h, j] != order[b, h, i]
        return _meet(own, b, h, i, j) & other

    def shared(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        """Of a pair that N rounds find, each has an N-th."""
        count: Any = sum((_meet(p, b, h, i, j).float() for p in others), start=1.0)
        return s - torch.log(count)

    score = scaled_dot(scale)
    rows = _ordered(qk, order)
    keys = torch.nn.functional.normalize(rows, dim=-1)
    kept = attend(rows, keys, _ordered(v, order), score=score.then(shared) if others and once else score, mask=seen)
    back = order.argsort(-1)
    return _ordered(kept.output, back), kept.lse.gather(-1, back)


def _meet(place: Tensor, b: Any, h: Any, i: Any, j: Any) -> Any:
    more = place[b, h, i] - place[b, h, j]
    return (more == 0) | (more == 1)


def _ordered(x: Tensor, order: Tensor) -> Tensor:
    """The rows of each head in another order; whole rows are moved, which `gather` would do number by number."""
    batch, heads, n, _ = x.shape
    first = n * torch.arange(batch * heads, device=x.device).view(batch, heads, 1)
    return x.flatten(0, 2).index_select(0, (first + order).flatten()).view(x.shape)
