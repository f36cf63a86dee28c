"""Linear attention: weights φ(q_i)·φ(k_j) divided by their sum, in time that grows with the length.

    o_i = φ(q_i)·S_i / φ(q_i)·z_i,      S_i = sum φ(k_j) v_j',   z_i = sum φ(k_j)     over the keys that i sees

Three ways give the same numbers: `quadratic` is the definition, with every weight; `recurrence` takes one key after
another, as a decoder does; `chunks` takes many at once and multiplies matrices, a stretch of rows after another, so
that what it makes on the way stays in the caches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.checks import same_floats
from regard.errors import SpecError
from regard.spec.feature import FeatureMap, Rows, as_features

STRETCH = 2**16  # features at a time


@dataclass(frozen=True, eq=False)
class LinearState:
    """All that is kept of the keys so far, however many: S and z side by side, (..., features, width of v + 1)."""

    sums: Tensor
    length: int

    @property
    def totals(self) -> Tensor:
        """z, (..., features)."""
        return self.sums[..., -1]

    def after(self, keys: Tensor, v: Tensor) -> "LinearState":
        """The state when these keys, as features, and their values have come."""
        return LinearState(self.sums + keys.mT @ _and_ones(v), self.length + keys.shape[-2])

    def seen_by(self, queries: Tensor) -> Tensor:
        """What queries, as features, get that see all of it."""
        return _shared(queries @ self.sums)


@check_types
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
    if method not in METHODS:
        raise SpecError(f"method must be one of {', '.join(METHODS)}; got {method!r}.")
    if chunk < 1:
        raise SpecError(f"a chunk must hold at least 1 key; got {chunk}.")
    phi = as_features(features)
    k, v = _for_each_head(q, k, v)
    n_q, n_k = q.shape[-2], k.shape[-2]
    start = n_k - n_q
    if causal and start < 0:
        raise SpecError(f"causal queries must be no more than the keys; got {n_q} queries and {n_k} keys.")
    if method == "quadratic":
        return _quadratic(_queries(phi, q, max(start, 0)), _keys(phi, k, 0), v, causal)
    first = start if causal else n_k
    state = LinearState(_nothing(phi, k, v), 0)
    a_row = state.totals.numel()  # of features, in all heads
    rows = max(chunk, STRETCH // max(1, a_row) // chunk * chunk)
    for here in _stretches(0, first, rows):
        state = state.after(_keys(phi, k[..., here, :], here.start), v[..., here, :])
    outputs = [v.new_zeros((*q.shape[:-2], 0, v.shape[-1]))]
    for here in _stretches(0, n_q, rows):
        queries = _queries(phi, q[..., here, :], max(start, 0) + here.start)
        if not causal:
            outputs.append(state.seen_by(queries))
            continue
        there = slice(start + here.start, start + here.stop)
        output, state = WAYS[method](state, queries, _keys(phi, k[..., there, :], there.start), v[..., there, :], chunk)
        outputs.append(output)
    return torch.cat(outputs, -2)


@check_types
def linear_step(
    q: Tensor, k: Tensor, v: Tensor, state: LinearState | None = None, *, features: FeatureMap | Rows | None = None
) -> tuple[Tensor, LinearState]:
    """One key, value and query more: what the query gets, and the state after them. Shapes (..., heads, 1, width)."""
    phi = as_features(features)
    k, v = _for_each_head(q, k, v)
    if state is None:
        state = LinearState(_nothing(phi, k, v), 0)
    after = state.after(_keys(phi, k, state.length), v)
    return after.seen_by(_queries(phi, q, state.length)), after


def _for_each_head(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    same_floats({"q": q, "k": k, "v": v})
    if q.dim() < 2 or not q.dim() == k.dim() == v.dim() or k.shape[-2] != v.shape[-2]:
        shapes = ", ".join(f"{name}={tuple(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
        raise SpecError(f"q, k and v must have the same dimensions, and k and v the same length; got {shapes}.")
    shapes = ", ".join(f"{name}={tuple(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
    if q.shape[:-3] != k.shape[:-3] or k.shape[:-2] != v.shape[:-2] or not 0 < q.shape[-1] == k.shape[-1]:
        raise SpecError(f"q, k and v must have one batch, and q and k one width of at least 1; got {shapes}.")
    if q.dim() < 3 or q.shape[-3] == k.shape[-3]:
        return k, v
    if k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]:
        raise SpecError(f"the number of key heads must divide that of q; got {k.shape[-3]} and {q.shape[-3]}.")
    group = q.shape[-3] // k.shape[-3]
    return k.repeat_interleave(group, dim=-3), v.repeat_interleave(group, dim=-3)


def _queries(phi: FeatureMap, q: Tensor, first: int) -> Tensor:
    """The features of queries of which the first one stands at `first`."""
    return phi.turned(phi.of_queries(q), torch.arange(first, first + q.shape[-2], device=q.device))


def _keys(phi: FeatureMap, k: Tensor, first: int) -> Tensor:
    return phi.turned(phi.of_keys(k), torch.arange(first, first + k.shape[-2], device=k.device))


def _nothing(phi: FeatureMap, k: Tensor, v: Tensor) -> Tensor:
    """The state before any key."""
    return _keys(phi, k[..., :0, :], 0).mT @ _and_ones(v[..., :0, :])


def _stretches(first: int, last: int, rows: int) -> Iterator[slice]:
    return (slice(at, min(last, at + rows)) for at in range(first, last, rows))


def _and_ones(v: Tensor) -> Tensor:
    """With one more column, whose weighted sum is that of the weights."""
    return torch.nn.functional.pad(v, (0, 1), value=1.0)


def _shared(sums: Tensor) -> Tensor:
    """Sums over the last of them, that of the weights; 0 where they are all 0."""
    totals = sums[..., -1:]
    nothing = totals == 0.0
    return torch.where(nothing, 0.0, sums[..., :-1] / torch.where(nothing, 1.0, totals))


def _quadratic(queries: Tensor, keys: Tensor, v: Tensor, causal: bool) -> Tensor:
    weights = queries @ keys.mT
    if causal:
        weights = weights.tril(keys.shape[-2] - queries.shape[-2])
    return _shared(weights @ _and_ones(v))


def _recurrence(state: LinearState, queries: Tensor, keys: Tensor, v: Tensor, chunk: int) -> tuple[Tensor, LinearState]:
    outputs = []
    for i in range(queries.shape[-2]):
        here = slice(i, i + 1)
        state = state.after(keys[..., here, :], v[..., here, :])
        outputs.append(state.seen_by(queries[..., here, :]))
    return torch.cat(outputs, -2), state


def _chunks(state: LinearState, queries: Tensor, keys: Tensor, v: Tensor, chunk: int) -> tuple[Tensor, LinearState]:
    """What lies before a chunk comes by way of the state, what lies in it by weights."""
    q, k, values = (_in_chunks(x, chunk) for x in (queries, keys, _and_ones(v)))
    inside = (q @ k.mT).tril_() @ values
    sums = torch.cat((state.sums.unsqueeze(-3), k.mT @ values), -3).cumsum(-3)
    found = (inside + q @ sums[..., :-1, :, :]).flatten(-3, -2)[..., : v.shape[-2], :]
    return _shared(found), LinearState(sums[..., -1, :, :], state.length + v.shape[-2])


def _in_chunks(x: Tensor, chunk: int) -> Tensor:
    """(..., n, width) as (..., chunks, chunk, width), with zeros behind the last row."""
    missing = -x.shape[-2] % chunk
    whole = torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x
    return whole.reshape(*x.shape[:-2], -1, chunk, x.shape[-1])


WAYS: dict[str, Callable[[LinearState, Tensor, Tensor, Tensor, int], tuple[Tensor, LinearState]]] = {
    "chunks": _chunks,
    "recurrence": _recurrence,
}
METHODS = (*WAYS, "quadratic")
