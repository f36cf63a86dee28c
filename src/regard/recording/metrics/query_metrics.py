"""Metrics of each query of a layer, computed in a few passes over tiles, without the attention matrix.

Most metrics are attention with other values. With weights a_ij and values f_j the output is the weighted mean of f:

    mass on some keys       f_j = 1 for these keys                separators, the first token
    distance                f_j = j, if no key is after its query
    entropy                 H_i = lse_i - s q_i·E[k]              f_j = k_j, for scores s q·k

One call computes all of these. The mass under a mask M is exp(lse under M - lse), by a call that visits only the tiles
of M. A mask of equal tokens is block diagonal if queries and keys are sorted by token, so that call sorts them.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard import mask, measure, normalizer
from regard.attention import attention_with_weights
from regard.expr.ir import variable, walk
from regard.hooks import disable_hooks
from regard.mask import Mask
from regard.recording.recorded_call import RecordedCall
from regard.result import AttentionResult

TokenBatch = Sequence[Sequence[Hashable]]  # the tokens of each sequence of a batch
_NO_TOKEN = object()  # of a query beyond the keys
FIRST_KEY_COLUMN, SEPARATOR_COLUMN, POSITION_COLUMN = range(3)  # columns of the probe values
NUM_PROBE_COLUMNS = 3


class QueryMetrics:
    """Metrics of each query of a call, tensors (batch, heads, n_q), computed when they are read."""

    def __init__(self, call: RecordedCall, tokens: TokenBatch | None, separators: Sequence[Hashable]) -> None:
        self.call, self.tokens = call.upcast(), tokens
        self._separators = set(separators)

    @cached_property
    def probe_result(self) -> AttentionResult[Tensor]:
        """The call with probe values: indicators of the first key and of separators, positions, and the keys."""
        batch_size, num_heads, n_k, _ = self.call.k.shape
        columns = torch.zeros(batch_size, num_heads, n_k, NUM_PROBE_COLUMNS)
        columns[:, :, :1, FIRST_KEY_COLUMN] = 1.0
        if self.tokens is not None:
            is_separator = torch.tensor([[token in self._separators for token in text] for text in self.tokens])
            columns[..., SEPARATOR_COLUMN] = is_separator[:, None]
        columns[..., POSITION_COLUMN] = torch.arange(n_k)
        values = torch.cat((columns.to(self.call.k), self.call.k), dim=-1)
        return _attention_without_hooks(self.call.q, self.call.k, values, {**self.call.options, "value": None})

    @property
    def lse(self) -> Tensor:
        return self.probe_result.lse

    def probe_mass(self, column: int) -> Tensor:
        """Return the mass on the first key or on separators, by the column of the probe values."""
        return self.probe_result.output[..., column].float()

    @property
    def query_positions(self) -> Tensor:
        """The positions of the queries among the keys, (n_q,)."""
        return torch.arange(self.call.q.shape[2]) + self.call.query_offset

    @property
    def is_softmax(self) -> bool:
        return self.call.options["normalizer"] is None

    @property
    def has_plain_scores(self) -> bool:
        """Whether the weights are a softmax of s q·k."""
        return self.is_softmax and self.call.plain_scale is not None

    @cached_property
    def is_causal(self) -> bool:
        """Whether no query may attend to a later key."""
        call_mask = self.call.options["mask"]
        if call_mask is None or isinstance(self.call.query_offset, Tensor):
            return False
        batch_size, num_heads, n_q, _ = self.call.q.shape
        later: Mask = call_mask & ~mask.causal()
        density = later.density(
            n_q, self.call.k.shape[2], batch_size=batch_size, num_heads=num_heads, query_offset=self.call.query_offset
        )
        return density == 0.0

    @cached_property
    def measurements(self) -> Any:
        """The measures that need a pass over all weights, such as column mass and the largest weight of each query."""
        measures = [measure.column_mass, measure.topk(1)]
        if not self.has_plain_scores:
            measures.append(measure.entropy)
        if not self.is_causal:
            measures.append(measure.distance)
        return self.probe_result.weights.measure(*measures)

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy -sum a log a of each row, in nats."""
        if not self.has_plain_scores:
            output: Tensor = self.measurements.entropy
            return output
        assert self.call.plain_scale is not None
        mean_key = self.probe_result.output[..., NUM_PROBE_COLUMNS:]
        mean_score = (self.call.q.double() * mean_key.double()).sum(-1) * self.call.plain_scale
        has_key = self.lse > -torch.inf
        return torch.where(has_key, (self.lse.double() - mean_score).clamp(min=0), 0.0).float()

    @cached_property
    def distance(self) -> Tensor:
        """Mean distance of each query to its keys."""
        if not self.is_causal:
            output: Tensor = self.measurements.distance
            return output
        mean_position = self.probe_result.output[..., POSITION_COLUMN] / self._row_mass.clamp(min=1e-30)
        distance: Tensor = self.query_positions - mean_position
        has_key = self.lse > -torch.inf if self.is_softmax else self._row_mass > 0
        return torch.where(has_key, distance, 0.0)

    @cached_property
    def _row_mass(self) -> Tensor:
        """Sum of the weights of each query: 1 for softmax, less with a sink."""
        if self.is_softmax:
            return torch.ones(())
        ones = torch.ones_like(self.call.k[..., :1])
        result = _attention_without_hooks(self.call.q, self.call.k, ones, {**self.call.options, "value": None})
        return result.output[..., 0]

    @property
    def column_mass(self) -> Tensor:
        """Sum of the weights on each key over all queries, (batch, heads, n_k)."""
        output: Tensor = self.measurements.column_mass
        return output

    @property
    def row_max(self) -> tuple[Tensor, Tensor]:
        """The largest weight of each query, and its key."""
        return self.measurements.topk.values[..., 0], self.measurements.topk.indices[..., 0]

    def mass_under(self, extra_mask: Mask) -> Tensor:
        """Return the mass on the pairs of a sparse mask."""
        if not self.is_softmax:
            output: Tensor = self.probe_result.weights.measure(measure.mass(extra_mask)).mass
            return output
        call_mask = self.call.options["mask"]
        return _mass_ratio(self.call, extra_mask if call_mask is None else call_mask & extra_mask, self.lse)

    def mass_on_equal_tokens(self, key_tokens: Callable[[Sequence[Hashable]], Sequence[Hashable]]) -> Tensor:
        """Return the mass on earlier keys whose token equals the query's token.

        `key_tokens` maps the tokens of a sequence to the tokens of its keys; None equals no token.
        """
        assert self.tokens is not None
        call = self.call
        mass = torch.zeros(call.q.shape[:3])
        for b, tokens in enumerate(self.tokens):
            offset = call.query_offset if isinstance(call.query_offset, int) else int(call.query_offset[b])
            positions = range(offset, offset + call.q.shape[2])
            query_tokens = [tokens[p] if 0 <= p < len(tokens) else _NO_TOKEN for p in positions]
            token_ids = {token: n for n, token in enumerate(dict.fromkeys(query_tokens))}
            ids_q = torch.tensor([token_ids[token] for token in query_tokens])
            ids_k = torch.tensor([-1 if token is None else token_ids.get(token, -1) for token in key_tokens(tokens)])
            if not self.is_softmax:
                equal = mask.from_function(_equal_key_before_query(ids_q, ids_k, offset))
                mass[b] = self.probe_result.weights.measure(measure.mass(equal)).mass[b]
                continue
            order_q, order_k = ids_q.argsort(stable=True), ids_k.argsort(stable=True)
            order_k = order_k[ids_k[order_k] >= 0]
            if not len(order_k):
                continue
            visible = mask.document(ids_q[order_q], ids_k[order_k]) & mask.from_function(
                _key_before_query(order_q + offset, order_k)
            )
            options = call.reindex_options({"b": b, "i": order_q, "j": order_k})
            visible = visible if options["mask"] is None else visible & options["mask"]
            q, k = call.q[b : b + 1, :, order_q], call.k[b : b + 1, :, order_k]
            sorted_call = RecordedCall(q, k, call.v, options, None, "")
            mass[b, :, order_q] = _mass_ratio(sorted_call, visible, self.lse[b : b + 1, :, order_q])[0]
        return mass


def _mass_ratio(call: RecordedCall, mask: Mask, lse: Tensor) -> Tensor:
    """Return the fraction of each query's weight that lies under a mask; `lse` is that of the call's own mask."""
    masked_lse = _attention_without_hooks(
        call.q, call.k, call.k[..., :1], {**call.options, "value": None, "mask": mask}
    ).lse
    return torch.where(masked_lse == -torch.inf, 0.0, (masked_lse - lse).exp())


def _attention_without_hooks(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> AttentionResult[Tensor]:
    with torch.no_grad(), disable_hooks():
        return attention_with_weights(q, k, v, **options)


def _key_before_query(p: Tensor, order_k: Tensor) -> Callable[..., Any]:
    return lambda b, h, i, j: order_k[j] < p[i]


def _equal_key_before_query(ids_q: Tensor, ids_k: Tensor, query_offset: Any) -> Callable[..., Any]:
    return lambda b, h, i, j: (ids_q[i] == ids_k[j]) & (j < i + query_offset)


class UniformBaseline(QueryMetrics):
    """The metrics of a uniform head, which attends equally to all visible keys of a call."""

    def __init__(self, call: RecordedCall, tokens: TokenBatch | None, separators: Sequence[Hashable]) -> None:
        super().__init__(_uniform_call(call), tokens, separators)
        self._cache: dict[str, Tensor] = {}

    def get_or_compute(self, cache_key: str, compute: Callable[[QueryMetrics], Tensor]) -> Tensor:
        """Return a metric from the cache; compute it on first use."""
        if cache_key not in self._cache:
            self._cache[cache_key] = compute(self)
        return self._cache[cache_key]

    @cached_property
    def num_visible_keys(self) -> Tensor:
        """Number of keys that each query may attend to, (batch, heads, n_q)."""
        return self.lse.exp().round()

    @cached_property
    def num_attending_queries(self) -> Tensor:
        """Number of queries that may attend to each key, (..., n_k)."""
        query_offset, n_q, n_k = self.call.query_offset, self.call.q.shape[2], self.call.k.shape[2]
        call_mask = self.call.options["mask"]
        if call_mask is None:
            return torch.full((n_k,), float(n_q))
        if call_mask is mask.causal() and isinstance(query_offset, int):
            return (n_q + query_offset - torch.arange(n_k)).clamp(0, n_q).float()
        options = {**self.call.options, "normalizer": normalizer.sigmoid(0.0)}  # 1/2 for every visible pair
        halves = _attention_without_hooks(self.call.q, self.call.k, self.call.v, options).weights.measure(
            measure.column_mass
        )
        output: Tensor = 2 * halves.column_mass
        return output


def _uniform_call(call: RecordedCall) -> RecordedCall:
    """Return a call with equal scores for all pairs. It has one head unless the mask depends on the head."""
    (batch_size, num_heads, n_q, _), n_k = call.q.shape, call.k.shape[2]
    call_mask = call.options["mask"]
    depends_on_head = call_mask is not None and variable("h") in walk(call_mask.expr)
    num_heads = num_heads if depends_on_head else 1
    options = {**dict.fromkeys(call.options), "mask": call_mask, "query_offset": call.options["query_offset"]}
    k = torch.zeros(batch_size, num_heads, n_k, 8)
    return RecordedCall(torch.zeros(batch_size, num_heads, n_q, 8), k, k, options, None, "")
