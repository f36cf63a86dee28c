"""Linear attention: weights φ(q_i)·φ(k_j) divided by their sum, in time that grows with the length.

    o_i = φ(q_i)·S_i / φ(q_i)·z_i,      S_i = sum φ(k_j) v_j',   z_i = sum φ(k_j)     over the keys that i sees

Three ways give the same numbers: `quadratic` is the definition, with every weight; `recurrence` takes one key after
another, as a decoder does; `chunks` takes many at once and multiplies matrices.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import SpecError
from regard.spec.feature import FeatureMap, Rows, as_features


@dataclass(frozen=True, eq=False)
class LinearState:
    """All that is kept of the keys so far, however many: S (..., features, value width), z (..., features)."""

    sums: Tensor
    totals: Tensor
    length: int

    def after(self, keys: Tensor, v: Tensor) -> "LinearState":
        """The state when these keys, as features, and their values have come."""
        return LinearState(self.sums + keys.mT @ v, self.totals + keys.sum(-2), self.length + keys.shape[-2])

    def seen_by(self, queries: Tensor) -> Tensor:
        """What queries, as features, get that see all of it."""
        return _shared(queries @ self.sums, queries @ self.totals.unsqueeze(-1))


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    features: FeatureMap | Rows | None = None,
    causal: bool = False,
    method: str = "chunks",
    chunk: int = 64,
) -> Tensor:
    """o_i = sum_j w_ij v_j / sum_j w_ij with w_ij = φ(q_i)·φ(k_j); the same as `weigh.kernel`, in linear time.

    `features` is one of `regard.feature`, or a function of rows; None is elu. q is (..., heads, n_q, width), k and v
    (..., key heads, n_k, width). With `causal` a query sees the keys up to its own position, which is the last one for
    the last query. A query whose weights are all 0 gets 0.

    >>> x = torch.randn(2, 100, 8)
    >>> linear_attention(x, x, x, causal=True).shape
    torch.Size([2, 100, 8])
    """
    if method not in WAYS:
        raise SpecError(f"method must be one of {', '.join(WAYS)}; got {method!r}.")
    if chunk < 1:
        raise SpecError(f"a chunk must hold at least 1 key; got {chunk}.")
    phi = as_features(features)
    k, v = _for_each_head(q, k, v)
    n_q, n_k = q.shape[-2], k.shape[-2]
    start = n_k - n_q
    if causal and start < 0:
        raise SpecError(f"causal queries must be no more than the keys; got {n_q} queries and {n_k} keys.")
    at = torch.arange(max(n_q, n_k), device=q.device)
    queries = phi.turned(phi.of_queries(q), at[:n_q] + max(start, 0))
    keys = phi.turned(phi.of_keys(k), at[:n_k])
    if not causal:
        return _quadratic(queries, keys, v, None) if method == "quadratic" else _state_of(keys, v).seen_by(queries)
    return WAYS[method](queries, keys, v, chunk)


def linear_step(
    q: Tensor, k: Tensor, v: Tensor, state: LinearState | None = None, *, features: FeatureMap | Rows | None = None
) -> tuple[Tensor, LinearState]:
    """One key, value and query more: what the query gets, and the state after them. Shapes (..., heads, 1, width)."""
    phi = as_features(features)
    k, v = _for_each_head(q, k, v)
    at = torch.full((1,), 0 if state is None else state.length, device=q.device)
    keys = phi.turned(phi.of_keys(k), at)
    after = _state_of(keys, v) if state is None else state.after(keys, v)
    return after.seen_by(phi.turned(phi.of_queries(q), at)), after


def _for_each_head(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    if q.dim() < 2 or not q.dim() == k.dim() == v.dim() or k.shape[-2] != v.shape[-2]:
        shapes = ", ".join(f"{name}={tuple(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
        raise SpecError(f"q, k and v must have the same dimensions, and k and v the same length; got {shapes}.")
    if q.dim() < 3 or q.shape[-3] == k.shape[-3]:
        return k, v
    if k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]:
        raise SpecError(f"the number of key heads must divide that of q; got {k.shape[-3]} and {q.shape[-3]}.")
    group = q.shape[-3] // k.shape[-3]
    return k.repeat_interleave(group, dim=-3), v.repeat_interleave(group, dim=-3)


def _state_of(keys: Tensor, v: Tensor) -> LinearState:
    return LinearState(keys.mT @ v, keys.sum(-2), keys.shape[-2])


def _shared(sums: Tensor, totals: Tensor) -> Tensor:
    nothing = totals == 0.0
    return torch.where(nothing, 0.0, sums / torch.where(nothing, 1.0, totals))


def _quadratic(queries: Tensor, keys: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
    weights = queries @ keys.mT
    if seen is not None:
        weights = torch.where(seen, weights, 0.0)
    return _shared(weights @ v, weights.sum(-1, keepdim=True))


def _causal_quadratic(queries: Tensor, keys: Tensor, v: Tensor, chunk: int) -> Tensor:
    n_q, n_k = queries.shape[-2], keys.shape[-2]
    seen = torch.ones(n_q, n_k, dtype=torch.bool, device=queries.device).tril(n_k - n_q)
    return _quadratic(queries, keys, v, seen)


def _causal_recurrence(queries: Tensor, keys: Tensor, v: Tensor, chunk: int) -> Tensor:
    before = keys.shape[-2] - queries.shape[-2]
    state = _state_of(keys[..., :before, :], v[..., :before, :])
    outputs = [v.new_zeros((*queries.shape[:-2], 0, v.shape[-1]))]
    for i in range(queries.shape[-2]):
        here = slice(before + i, before + i + 1)
        state = state.after(keys[..., here, :], v[..., here, :])
        outputs.append(state.seen_by(queries[..., i : i + 1, :]))
    return torch.cat(outputs, -2)


def _causal_chunks(queries: Tensor, keys: Tensor, v: Tensor, chunk: int) -> Tensor:
    """What lies before a chunk comes by way of the state, what lies in it by weights; the sum of weights as one more
    column of the values."""
    n, before = queries.shape[-2], keys.shape[-2] - queries.shape[-2]
    values = torch.cat((v, torch.ones_like(v[..., :1])), -1)
    first = keys[..., :before, :].mT @ values[..., :before, :]
    parts = [_in_chunks(x, chunk) for x in (queries, keys[..., before:, :], values[..., before:, :])]
    inside = (parts[0] @ parts[1].mT).tril() @ parts[2]
    sums = torch.cat((first.unsqueeze(-3), parts[1].mT @ parts[2]), -3)
    earlier = sums.cumsum(-3)[..., :-1, :, :]
    found = (inside + parts[0] @ earlier).flatten(-3, -2)[..., :n, :]
    return _shared(found[..., :-1], found[..., -1:])


def _in_chunks(x: Tensor, chunk: int) -> Tensor:
    """(..., n, width) as (..., chunks, chunk, width), with zeros behind the last row."""
    missing = -x.shape[-2] % chunk
    whole = torch.nn.functional.pad(x, (0, 0, 0, missing))
    return whole.reshape(*x.shape[:-2], -(-x.shape[-2] // chunk), chunk, x.shape[-1])


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor, int], Tensor]] = {
    "chunks": _causal_chunks,
    "recurrence": _causal_recurrence,
    "quadratic": _causal_quadratic,
}
