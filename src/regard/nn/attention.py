"""Multi-head attention: projections around `regard.attention`, with the parameters of `torch.nn.MultiheadAttention`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from regard import checks
from regard.attention import attention, attention_with_weights
from regard.errors import ArgumentError
from regard.expr.serialize import ConstructorCall
from regard.mask import Mask, MaskLike, as_mask, causal
from regard.nn import input_checks
from regard.nn.kv_cache import LayerCache
from regard.nn.position_encoding import PositionEncoding, check_position_encoding
from regard.normalizer import NormalizerLike
from regard.result import AttentionResult
from regard.score import ScoreLike, scaled_dot


class MultiHeadAttention(nn.Module):
    """Multi-head attention: self-attention, or cross-attention when `key` is passed.

    The input `query` is (batch, n, embed_dim), and so is the output. With fewer `num_kv_heads` than `num_heads`, groups
    of query heads share keys and values (None: `num_heads`). `head_dim` defaults to `embed_dim // num_heads`. `kdim`
    and `vdim` are the dimensions of `key` and `value` (None: `embed_dim`, and `kdim`). `score`, `mask` and `normalizer`
    are the options of `regard.attention`. `dropout` (default 0) is the probability of dropping a weight in training.
    `bias` (default True) adds a bias to every projection. An option may be a module with learned parameters; every
    forward pass calls it.

    Parameters have the names and shapes of `torch.nn.MultiheadAttention`: state dicts load in both directions.

    >>> layer = MultiHeadAttention(64, num_heads=8, num_kv_heads=2)
    >>> layer(torch.randn(2, 10, 64), mask=causal()).shape
    torch.Size([2, 10, 64])
    """

    in_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None
    q_proj_weight: nn.Parameter | None
    k_proj_weight: nn.Parameter | None
    v_proj_weight: nn.Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        score: ScoreLike | nn.Module | None = None,
        mask: MaskLike | nn.Module | None = None,
        normalizer: NormalizerLike | nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.head_dim = resolve_head_dim(embed_dim, num_heads, head_dim)
        num_kv_heads = num_heads if num_kv_heads is None else checks.size(num_kv_heads, "num_kv_heads")
        if num_heads % num_kv_heads:
            raise ArgumentError(
                f"num_kv_heads must divide num_heads; got num_heads={num_heads}, num_kv_heads={num_kv_heads}."
            )
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.dropout = checks.probability(dropout, "dropout", below_one=True)
        checks.flag(bias, "bias")
        self.score, self.mask, self.normalizer = score, mask, normalizer
        self.attention_fn: Callable[..., Tensor] | None = None  # replaces `regard.attention`, for example across ranks
        self._qkv_dims = [num_heads * self.head_dim, num_kv_heads * self.head_dim, num_kv_heads * self.head_dim]
        key_dim = embed_dim if kdim is None else checks.size(kdim, "kdim")
        value_dim = key_dim if vdim is None else checks.size(vdim, "vdim")
        checks.parameter_size("in_proj_weight", sum(self._qkv_dims), max(embed_dim, key_dim, value_dim))
        self._input_dims = {"query": embed_dim, "key": key_dim, "value": value_dim}
        packed = key_dim == value_dim == embed_dim
        shapes = dict(zip("qkv", zip(self._qkv_dims, (embed_dim, key_dim, value_dim), strict=True), strict=True))
        self.in_proj_weight = nn.Parameter(torch.empty(sum(self._qkv_dims), embed_dim)) if packed else None
        for name, shape in shapes.items():
            self.register_parameter(f"{name}_proj_weight", None if packed else nn.Parameter(torch.empty(shape)))
        self.in_proj_bias = nn.Parameter(torch.zeros(sum(self._qkv_dims))) if bias else None
        self.out_proj = nn.Linear(self._qkv_dims[0], embed_dim, bias=bias)
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        if bias:
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: MaskLike | None = None,
        position_encoding: PositionEncoding | None = None,
        position_ids: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Return the output of the layer, (batch, n, embed_dim).

        `key` (batch, n_k, kdim) defaults to `query`, and `value` (batch, n_k, vdim) to `key`. `mask` is combined with
        the mask of the layer. `position_encoding` and `position_ids`, (n,) or (batch, n), apply to self-attention.

        In self-attention, `cache` holds the keys and values of earlier calls, and this call appends its own. In
        cross-attention, the first call fills the cache and later calls read it. Later calls still need `key`.
        """
        q, k, v, options = self._attention_inputs(query, key, value, mask, position_encoding, position_ids, cache)
        compute = self.attention_fn or attention
        o = compute(q, k, v, dropout=self.dropout if self.training else 0.0, **options)
        output: Tensor = self.out_proj(o.transpose(1, 2).flatten(2))
        return output

    def attention_with_weights(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: MaskLike | None = None,
        position_encoding: PositionEncoding | None = None,
        position_ids: Tensor | None = None,
    ) -> AttentionResult[Tensor]:
        """Return the output and the weights of each head, before the output projection; arguments as in `forward`."""
        q, k, v, options = self._attention_inputs(query, key, value, mask, position_encoding, position_ids, None)
        return attention_with_weights(q, k, v, **options)

    def _attention_inputs(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: MaskLike | None,
        position_encoding: PositionEncoding | None,
        position_ids: Tensor | None,
        cache: LayerCache | None,
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        is_cross_attention = key is not None or value is not None
        self._check_inputs(query, key, value)
        check_call_options(query, position_encoding, position_ids, cache)
        cached_kv = cache.tensors() if is_cross_attention and cache is not None else ()
        if is_cross_attention and not cached_kv:
            _check_key_value_shapes(query, key, value)
        if cached_kv:
            q = self._split_heads(self._project(query, "q"))
            k, v = cached_kv
        else:
            q, k, v = self._project_qkv(query, key, value)
            if position_encoding is not None and not is_cross_attention:
                q, k = position_encoding.apply_to_qk(
                    q, k, torch.arange(query.shape[1], device=query.device) if position_ids is None else position_ids
                )
            if cache is not None:
                k, v = cache.append(k, v)
        score = resolve_option(self.score)
        modifier = None if position_encoding is None or is_cross_attention else position_encoding.score_modifier()
        if modifier is not None:
            score = modifier if score is None else _add_score_modifier(score, modifier)
        is_last_query = q.shape[2] == 1 and self.attention_fn is None
        effective_mask = combine_masks(self.mask, mask, is_last_query)
        return q, k, v, {"score": score, "mask": effective_mask, "normalizer": resolve_option(self.normalizer)}

    def _check_inputs(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> None:
        parameter = self.out_proj.weight
        input_checks.check_hidden_states(query, "query", self._input_dims["query"], parameter)
        for name, x in (("key", key), ("value", value)):
            if x is not None:
                input_checks.check_hidden_states(x, name, self._input_dims[name], parameter)

    def _project_qkv(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, (batch, heads, n, head_dim) each."""
        if key is None and value is None and self.in_proj_weight is not None:  # a single matrix product
            parts = linear(query, self.in_proj_weight, self.in_proj_bias).split(self._qkv_dims, dim=-1)
        else:
            key = query if key is None else key
            value = key if value is None else value
            parts = (self._project(query, "q"), self._project(key, "k"), self._project(value, "v"))
        q, k, v = (self._split_heads(part) for part in parts)
        return q, k, v

    def _project(self, x: Tensor, name: str) -> Tensor:
        index = "qkv".index(name)
        start, end = sum(self._qkv_dims[:index]), sum(self._qkv_dims[: index + 1])
        weight = getattr(self, f"{name}_proj_weight")
        weight = self.in_proj_weight[start:end] if self.in_proj_weight is not None else weight
        return linear(x, weight, None if self.in_proj_bias is None else self.in_proj_bias[start:end])

    def _split_heads(self, projected: Tensor) -> Tensor:
        batch, n, dim = projected.shape
        return projected.view(batch, n, dim // self.head_dim, self.head_dim).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"


def resolve_head_dim(embed_dim: int, num_heads: int, head_dim: int | None) -> int:
    """Return `head_dim`, or `embed_dim // num_heads` if `head_dim` is None."""
    checks.size(embed_dim, "embed_dim")
    checks.size(num_heads, "num_heads")
    if head_dim is not None:
        return checks.size(head_dim, "head_dim")
    if embed_dim % num_heads:
        raise ArgumentError(
            f"num_heads must divide embed_dim; got embed_dim={embed_dim}, num_heads={num_heads}. Choose a divisor, or "
            "set head_dim."
        )
    return embed_dim // num_heads


def check_call_options(
    x: Tensor, position_encoding: PositionEncoding | None, position_ids: Tensor | None, cache: LayerCache | None
) -> None:
    """Raise unless the options of a layer's call have the right types and shapes."""
    check_position_encoding(position_encoding)
    if cache is not None:
        checks.instance(cache, "cache", LayerCache, "a LayerCache, such as KeyValueCache()[0], or None")
    if position_ids is not None:
        input_checks.check_position_ids(position_ids, x.shape[0], x.shape[1])


def _check_key_value_shapes(query: Tensor, key: Tensor | None, value: Tensor | None) -> None:
    length = query.shape[1] if key is None else key.shape[1]
    for name, x in (("key", key), ("value", value)):
        if x is not None and (x.shape[0] != query.shape[0] or x.shape[1] != length):
            raise ArgumentError(
                f"{name} must be (batch, n_k, {name[0]}dim) with batch={query.shape[0]} and n_k={length}; got shape "
                f"{tuple(x.shape)}."
            )


def check_mask(mask: Any) -> None:
    """Raise unless `mask` is a mask or None."""
    if mask is not None:
        _to_mask(mask)


def and_masks(*masks: Any) -> Any:
    """Return the intersection of the masks; None allows every pair."""
    result = None
    for mask in masks:
        if mask is not None:
            result = mask if result is None else _to_mask(result) & mask
    return result


def combine_masks(layer_mask: Any, mask: Any, is_last_query: bool) -> Any:
    """Return the intersection of the masks of a layer and of a call.

    If the only query is the last one, a causal mask allows all keys, and the result is None.
    """
    combined = and_masks(resolve_option(layer_mask), mask)
    return None if is_last_query and combined is causal() else combined


def _to_mask(value: Any) -> Any:
    return value if isinstance(value, (Mask, ConstructorCall)) else as_mask(value)


def resolve_option(option: Any) -> Any:
    """Return a score, mask or normalizer; if `option` is a module, return the result of calling it."""
    return option() if isinstance(option, nn.Module) else option


def _add_score_modifier(score: Any, modifier: Any) -> Any:
    return score.then(modifier) if hasattr(score, "then") else scaled_dot().then(score).then(modifier)
