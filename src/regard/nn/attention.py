"""Attention as a layer: projections around `regard.attention`, with the parameters of `torch.nn.MultiheadAttention`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from regard import checks
from regard.attention import attend, attention
from regard.errors import SpecError
from regard.nn import inputs
from regard.nn.cache import LayerCache
from regard.nn.position import Position
from regard.result import Attended
from regard.spec.mask import Mask, as_mask, causal
from regard.spec.named import Named
from regard.spec.score import scaled_dot


class MultiHeadAttention(nn.Module):
    """Self-attention, or with `keys` cross-attention: x (batch, n, width) in, (batch, n, width) out.

    Fewer `key_heads` than `heads` share keys and values in groups. `key_width` and `value_width` are those of what is
    looked at, where they differ from `width`. `score`, `mask` and `weigh` are those of `regard.attention`; a module in
    the place of one of them is called for it at each call, so that it may learn.

    Parameters have the names and shapes of `torch.nn.MultiheadAttention`: states load in both directions.

    >>> layer = MultiHeadAttention(64, heads=8, key_heads=2)
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
        width: int,
        heads: int,
        *,
        key_heads: int | None = None,
        head_width: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        score: Any = None,
        mask: Any = None,
        weigh: Any = None,
    ) -> None:
        super().__init__()
        self.head_width = head_width_of(width, heads, head_width)
        key_heads = heads if key_heads is None else checks.size(key_heads, "key_heads")
        if heads % key_heads:
            raise SpecError(f"key_heads must divide heads; got heads={heads}, key_heads={key_heads}.")
        self.heads, self.key_heads = heads, key_heads
        self.dropout = checks.probability(dropout, "dropout", below_one=True)
        checks.flag(bias, "bias")
        self.score, self.mask, self.weigh = score, mask, weigh
        self.operator: Callable[..., Tensor] | None = None  # who computes in place of `regard.attention`, as ranks do
        self._split = [heads * self.head_width, key_heads * self.head_width, key_heads * self.head_width]
        of_keys = width if key_width is None else checks.size(key_width, "key_width")
        of_values = of_keys if value_width is None else checks.size(value_width, "value_width")
        checks.parameter("in_proj_weight", sum(self._split), max(width, of_keys, of_values))
        self._widths = {"x": width, "keys": of_keys, "values": of_values}
        packed = of_keys == of_values == width
        shapes = dict(zip("qkv", zip(self._split, (width, of_keys, of_values), strict=True), strict=True))
        self.in_proj_weight = nn.Parameter(torch.empty(sum(self._split), width)) if packed else None
        for name, shape in shapes.items():
            self.register_parameter(f"{name}_proj_weight", None if packed else nn.Parameter(torch.empty(shape)))
        self.in_proj_bias = nn.Parameter(torch.zeros(sum(self._split))) if bias else None
        self.out_proj = nn.Linear(self._split[0], width, bias=bias)
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        if bias:
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        x: Tensor,
        keys: Tensor | None = None,
        values: Tensor | None = None,
        *,
        mask: Any = None,
        position: Position | None = None,
        at: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """What each token takes from those it looks at.

        `keys` and `values` (batch, n_k, ...) are looked at instead of x; `values` are the keys unless given. `position`
        and `at`, where the tokens stand, are for self-attention. A `cache` is what x looks back at and is added to; in
        cross-attention the first call fills it, and later ones read it in the place of `keys`, which they still name.
        """
        q, k, v, options = self._question(x, keys, values, mask, position, at, cache)
        compute = self.operator or attention
        o = compute(q, k, v, dropout=self.dropout if self.training else 0.0, **options)
        return self.out_proj(o.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]  # modules are untyped

    def attend(
        self,
        x: Tensor,
        keys: Tensor | None = None,
        values: Tensor | None = None,
        *,
        mask: Any = None,
        position: Position | None = None,
        at: Tensor | None = None,
    ) -> Attended:
        """The attention inside this layer, kept open: weights by head, before the heads are joined."""
        q, k, v, options = self._question(x, keys, values, mask, position, at, None)
        return attend(q, k, v, **options)

    def _question(
        self,
        x: Tensor,
        keys: Tensor | None,
        values: Tensor | None,
        mask: Any,
        position: Position | None,
        at: Tensor | None,
        cache: LayerCache | None,
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        crosses = keys is not None or values is not None
        self._check(x, keys, values)
        check_context(x, position, at, cache)
        known = cache.rows() if crosses and cache is not None else ()
        if crosses and not known:
            _check_lengths(x, keys, values)
        if known:
            q = self._by_head(self._projected(x, "q"))
            k, v = known
        else:
            q, k, v = self._rows(x, keys, values)
            if position is not None and not crosses:
                q, k = position.turned(q, k, torch.arange(x.shape[1], device=x.device) if at is None else at)
            if cache is not None:
                k, v = cache.append(k, v)
        score = made(self.score)
        rule = None if position is None or crosses else position.rule()
        if rule is not None:
            score = rule if score is None else _then(score, rule)
        return q, k, v, {"score": score, "mask": self._seen(mask, q), "weigh": made(self.weigh)}

    def _check(self, x: Tensor, keys: Tensor | None, values: Tensor | None) -> None:
        """Checks shapes and dtypes of what comes in."""
        parameter = self.out_proj.weight
        for name, rows in (("x", x), ("keys", keys), ("values", values)):
            if rows is not None or name == "x":
                inputs.vectors(rows, name, self._widths[name], parameter)

    def _rows(self, x: Tensor, keys: Tensor | None, values: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (batch, heads, n, width)."""
        if keys is None and values is None and self.in_proj_weight is not None:  # one product for all three
            parts = linear(x, self.in_proj_weight, self.in_proj_bias).split(self._split, dim=-1)
        else:
            keys = x if keys is None else keys
            values = keys if values is None else values
            parts = (self._projected(x, "q"), self._projected(keys, "k"), self._projected(values, "v"))
        q, k, v = (self._by_head(part) for part in parts)
        return q, k, v

    def _projected(self, x: Tensor, name: str) -> Tensor:
        place = "qkv".index(name)
        begin, end = sum(self._split[:place]), sum(self._split[: place + 1])
        weight = getattr(self, f"{name}_proj_weight")
        weight = self.in_proj_weight[begin:end] if self.in_proj_weight is not None else weight
        return linear(x, weight, None if self.in_proj_bias is None else self.in_proj_bias[begin:end])

    def _by_head(self, rows: Tensor) -> Tensor:
        batch, n, width = rows.shape
        return rows.view(batch, n, width // self.head_width, self.head_width).transpose(1, 2)

    def _seen(self, mask: Any, q: Tensor) -> Any:
        seen = joined(made(self.mask), mask)
        last = q.shape[2] == 1 and self.operator is None  # one query at the end looks back at everything
        return None if last and seen is causal() else seen

    def extra_repr(self) -> str:
        return f"heads={self.heads}, key_heads={self.key_heads}, head_width={self.head_width}"


def head_width_of(width: int, heads: int, head_width: int | None) -> int:
    """The width of a head, which is the part of the width that each head has unless another one is set."""
    checks.size(width, "width")
    checks.size(heads, "heads")
    if head_width is not None:
        return checks.size(head_width, "head_width")
    if width % heads:
        raise SpecError(f"heads must divide width, or give head_width; got width={width}, heads={heads}.")
    return width // heads


def check_context(x: Tensor, position: Position | None, at: Tensor | None, cache: LayerCache | None) -> None:
    """Checks the options of a layer's call."""
    if position is not None:
        checks.instance(position, "position", Position, "a position, such as regard.nn.Rotary(64), or None")
    if cache is not None:
        checks.instance(cache, "cache", LayerCache, "a LayerCache, such as KeyValueCache()[0], or None")
    if at is not None:
        inputs.positions(at, x.shape[0], x.shape[1])


def _check_lengths(x: Tensor, keys: Tensor | None, values: Tensor | None) -> None:
    length = x.shape[1] if keys is None else keys.shape[1]
    for name, rows in (("keys", keys), ("values", values)):
        if rows is not None and (rows.shape[0] != x.shape[0] or rows.shape[1] != length):
            raise SpecError(
                f"{name} must be (batch, n_k, width) with batch={x.shape[0]} and n_k={length}; got shape "
                f"{tuple(rows.shape)}."
            )


def check_mask(mask: Any) -> None:
    """Refuses anything that is not a mask; None allows everything."""
    if mask is not None:
        _mask_of(mask)


def joined(*masks: Any) -> Any:
    """What all masks allow; None allows everything."""
    result = None
    for mask in masks:
        if mask is not None:
            result = mask if result is None else _mask_of(result) & mask
    return result


def _mask_of(value: Any) -> Any:
    return value if isinstance(value, (Mask, Named)) else as_mask(value)


def made(choice: Any) -> Any:
    """A score, mask or weighing; a module in the place of one is called for it."""
    return choice() if isinstance(choice, nn.Module) else choice


def _then(score: Any, rule: Any) -> Any:
    return score.then(rule) if hasattr(score, "then") else scaled_dot().then(score).then(rule)
