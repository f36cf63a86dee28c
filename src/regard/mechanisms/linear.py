"""Linear attention: weights φ(q_i)·φ(k_j) divided by their sum, in time linear in the length.

    o_i = φ(q_i)·S_i / φ(q_i)·z_i,      S_i = sum φ(k_j) v_j',   z_i = sum φ(k_j)     over the keys visible to i

Three methods compute the same result: "quadratic" is the definition and builds every weight; "recurrent" takes one key
at a time, as a decoder does; "chunk" multiplies matrices, in ranges of rows that are small enough for the caches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.checks import same_float_dtype
from regard.errors import ArgumentError
from regard.feature_map import FeatureMap, FeatureMapLike, as_feature_map

MAX_CHUNK_FEATURES = 2**16


@dataclass(frozen=True, eq=False)
class LinearAttentionState:
    """The sums over all keys so far: `sums` is S with z as its last column, (..., features, value_dim + 1).

    `length` is the number of these keys.
    """

    sums: Tensor
    length: int

    @property
    def key_sum(self) -> Tensor:
        """The sum z of the key features, (..., features)."""
        return self.sums[..., -1]

    def update(self, key_features: Tensor, v: Tensor) -> "LinearAttentionState":
        """Return the state after n more keys: `key_features` (..., n, features) and values v (..., n, value_dim)."""
        return LinearAttentionState(self.sums + key_features.mT @ _append_ones(v), self.length + key_features.shape[-2])

    def output_for(self, query_features: Tensor) -> Tensor:
        """Return the outputs of queries, as features (..., n, features), that attend to all keys so far."""
        return _divide_by_total(query_features @ self.sums)


@check_types
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature_map: FeatureMapLike | None = None,
    causal: bool = False,
    method: str = "chunk",
    chunk_size: int = 64,
) -> Tensor:
    """Compute o_i = sum_j w_ij v_j / sum_j w_ij with w_ij = φ(q_i)·φ(k_j), in linear time.

    q is (..., num_heads, n_q, head_dim), k and v (..., num_kv_heads, n_k, head_dim). `feature_map` is φ: one of
    `regard.feature_map`, or a function of rows; None is elu + 1. With `causal` a query attends to the keys up to its
    own position, and the last query has the position of the last key. `method` is "chunk", "recurrent" or "quadratic";
    `chunk_size` is the number of keys per chunk. The output is 0 if all weights of a query are 0. The result equals
    `attention` with `normalizer.kernel`.

    >>> x = torch.randn(2, 100, 8)
    >>> linear_attention(x, x, x, causal=True).shape
    torch.Size([2, 100, 8])
    """
    if method not in METHODS:
        raise ArgumentError(f"method must be one of {', '.join(METHODS)}; got {method!r}.")
    if chunk_size < 1:
        raise ArgumentError(f"chunk_size must be at least 1; got {chunk_size}.")
    phi = as_feature_map(feature_map)
    k, v = _repeat_kv(q, k, v)
    n_q, n_k = q.shape[-2], k.shape[-2]
    start = n_k - n_q
    if causal and start < 0:
        raise ArgumentError(f"causal attention must not have more queries than keys; got n_q={n_q} and n_k={n_k}.")
    if method == "quadratic":
        return _quadratic(_query_features(phi, q, max(start, 0)), _key_features(phi, k, 0), v, causal)
    prefix_length = start if causal else n_k
    state = LinearAttentionState(_empty_sums(phi, k, v), 0)
    features_per_row = state.key_sum.numel()
    num_rows = max(chunk_size, MAX_CHUNK_FEATURES // max(1, features_per_row) // chunk_size * chunk_size)
    for rows in _row_slices(0, prefix_length, num_rows):
        state = state.update(_key_features(phi, k[..., rows, :], rows.start), v[..., rows, :])
    outputs = [v.new_zeros((*q.shape[:-2], 0, v.shape[-1]))]
    for rows in _row_slices(0, n_q, num_rows):
        queries = _query_features(phi, q[..., rows, :], max(start, 0) + rows.start)
        if not causal:
            outputs.append(state.output_for(queries))
            continue
        key_rows = slice(start + rows.start, start + rows.stop)
        output, state = CAUSAL_METHODS[method](
            state, queries, _key_features(phi, k[..., key_rows, :], key_rows.start), v[..., key_rows, :], chunk_size
        )
        outputs.append(output)
    return torch.cat(outputs, -2)


@check_types
def linear_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearAttentionState | None = None,
    *,
    feature_map: FeatureMapLike | None = None,
) -> tuple[Tensor, LinearAttentionState]:
    """Add one key and value to the state; return the output of the query and the new state.

    q, k and v are (..., num_heads, 1, head_dim). `state` is the result of the previous step, None before the first.
    `feature_map` is that of `linear_attention`.

    >>> q, k, v = torch.randn(3, 2, 5, 8)
    >>> state, outputs = None, []
    >>> for i in range(5):
    ...     output, state = linear_attention_step(q[:, i : i + 1], k[:, i : i + 1], v[:, i : i + 1], state)
    ...     outputs.append(output)
    >>> torch.allclose(torch.cat(outputs, -2), linear_attention(q, k, v, causal=True), atol=1e-5)
    True
    """
    phi = as_feature_map(feature_map)
    k, v = _repeat_kv(q, k, v)
    if state is None:
        state = LinearAttentionState(_empty_sums(phi, k, v), 0)
    new_state = state.update(_key_features(phi, k, state.length), v)
    return new_state.output_for(_query_features(phi, q, state.length)), new_state


def _repeat_kv(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    same_float_dtype({"q": q, "k": k, "v": v})
    shapes = ", ".join(f"{name}={tuple(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
    if q.dim() < 2 or not q.dim() == k.dim() == v.dim() or k.shape[-2] != v.shape[-2]:
        raise ArgumentError(
            f"q, k and v must have the same number of dimensions, and k and v the same length; got {shapes}."
        )
    if q.shape[:-3] != k.shape[:-3] or k.shape[:-2] != v.shape[:-2] or not 0 < q.shape[-1] == k.shape[-1]:
        raise ArgumentError(
            f"q, k and v must have the same batch, and q and k the same head dimension of at least 1; got {shapes}."
        )
    if q.dim() < 3 or q.shape[-3] == k.shape[-3]:
        return k, v
    if k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]:
        raise ArgumentError(
            f"num_kv_heads must divide num_heads; got num_kv_heads={k.shape[-3]} and num_heads={q.shape[-3]}."
        )
    group = q.shape[-3] // k.shape[-3]
    return k.repeat_interleave(group, dim=-3), v.repeat_interleave(group, dim=-3)


def _query_features(phi: FeatureMap, q: Tensor, offset: int) -> Tensor:
    """Return the features of queries; the first query has the position `offset`."""
    return phi.encode_positions(phi.map_queries(q), torch.arange(offset, offset + q.shape[-2], device=q.device))


def _key_features(phi: FeatureMap, k: Tensor, offset: int) -> Tensor:
    return phi.encode_positions(phi.map_keys(k), torch.arange(offset, offset + k.shape[-2], device=k.device))


def _empty_sums(phi: FeatureMap, k: Tensor, v: Tensor) -> Tensor:
    """Return the sums over no keys."""
    return _key_features(phi, k[..., :0, :], 0).mT @ _append_ones(v[..., :0, :])


def _row_slices(start: int, stop: int, size: int) -> Iterator[slice]:
    return (slice(first, min(stop, first + size)) for first in range(start, stop, size))


def _append_ones(v: Tensor) -> Tensor:
    """Append a column of ones, whose weighted sum is the sum of the weights."""
    return torch.nn.functional.pad(v, (0, 1), value=1.0)


def _divide_by_total(sums: Tensor) -> Tensor:
    """Divide by the last column, the sum of the weights; the result is 0 where that sum is 0."""
    totals = sums[..., -1:]
    is_empty = totals == 0.0
    return torch.where(is_empty, 0.0, sums[..., :-1] / torch.where(is_empty, 1.0, totals))


def _quadratic(query_features: Tensor, key_features: Tensor, v: Tensor, causal: bool) -> Tensor:
    weights = query_features @ key_features.mT
    if causal:
        weights = weights.tril(key_features.shape[-2] - query_features.shape[-2])
    return _divide_by_total(weights @ _append_ones(v))


def _recurrent(
    state: LinearAttentionState, query_features: Tensor, key_features: Tensor, v: Tensor, chunk_size: int
) -> tuple[Tensor, LinearAttentionState]:
    outputs = []
    for i in range(query_features.shape[-2]):
        row = slice(i, i + 1)
        state = state.update(key_features[..., row, :], v[..., row, :])
        outputs.append(state.output_for(query_features[..., row, :]))
    return torch.cat(outputs, -2), state


def _chunked(
    state: LinearAttentionState, query_features: Tensor, key_features: Tensor, v: Tensor, chunk_size: int
) -> tuple[Tensor, LinearAttentionState]:
    """Keys before a chunk contribute through the state, keys of the chunk through explicit weights."""
    q, k, values = (_split_chunks(x, chunk_size) for x in (query_features, key_features, _append_ones(v)))
    within_chunk = (q @ k.mT).tril_() @ values
    sums = torch.cat((state.sums.unsqueeze(-3), k.mT @ values), -3).cumsum(-3)
    totals = (within_chunk + q @ sums[..., :-1, :, :]).flatten(-3, -2)[..., : v.shape[-2], :]
    return _divide_by_total(totals), LinearAttentionState(sums[..., -1, :, :], state.length + v.shape[-2])


def _split_chunks(x: Tensor, chunk_size: int) -> Tensor:
    """Reshape (..., n, dim) to (..., chunks, chunk_size, dim), padded with rows of zeros."""
    missing = -x.shape[-2] % chunk_size
    padded = torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x
    return padded.reshape(*x.shape[:-2], -1, chunk_size, x.shape[-1])


CAUSAL_METHODS: dict[
    str, Callable[[LinearAttentionState, Tensor, Tensor, Tensor, int], tuple[Tensor, LinearAttentionState]]
] = {
    "chunk": _chunked,
    "recurrent": _recurrent,
}
METHODS = (*CAUSAL_METHODS, "quadratic")
