"""Latent attention: keys and values of all heads are made from one narrow vector a token, and only that is kept.

    c_j = norm(x_j W_dc)      k_j^h = [c_j W_uk^h ; r_j]      v_j^h = c_j W_uv^h       r_j = turned(x_j W_r)
    q_i^h = [.. W_uq^h ; turned(..)]      s = q·k / √(head width + turning width)     (DeepSeek-V2, 2024)

The absorbed form never makes keys and values: q_i W_uk' is compared with c_j itself, and what is mixed is c_j, widened
afterwards. All heads then share one key head, which decoding reads once for all of them.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard import checks
from regard.attention import attend, attention
from regard.errors import SpecError
from regard.nn import inputs
from regard.nn.attention import check_context, head_width_of, joined, made
from regard.nn.cache import LayerCache
from regard.nn.norm import RMSNorm
from regard.nn.position import Position
from regard.result import Attended
from regard.spec.mask import causal
from regard.spec.score import scaled_dot


class LatentAttention(nn.Module):
    """x (batch, n, width) in, (batch, n, width) out; a cache keeps `latent` + `turning` numbers a token, for all heads.

    `latent` is the width of what keys and values are made from, `query_latent` that of queries (None: straight from x),
    `turning` how many features of a head know the position, through `position`. `absorbed` None takes the absorbed form
    when there is a cache, and otherwise the one that makes keys and values, which is cheaper for many queries.

    >>> layer = LatentAttention(64, heads=4, latent=16, turning=8)
    >>> layer(torch.randn(2, 10, 64), mask=causal()).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        latent: int,
        turning: int,
        query_latent: int | None = None,
        head_width: int | None = None,
        value_width: int | None = None,
        dropout: float = 0.0,
        mask: Any = None,
        weigh: Any = None,
    ) -> None:
        super().__init__()
        self.head_width = head_width_of(width, heads, head_width)
        self.heads = heads
        self.latent, self.turning = checks.size(latent, "latent"), checks.size(turning, "turning")
        self.value_width = self.head_width if value_width is None else checks.size(value_width, "value_width")
        self.dropout = checks.probability(dropout, "dropout", below_one=True)
        self.mask, self.weigh = mask, weigh
        self.operator: Callable[..., Tensor] | None = None  # as in `MultiHeadAttention`
        whole = heads * (self.head_width + turning)
        query_width = width if query_latent is None else checks.size(query_latent, "query_latent")
        checks.parameter("up_query.weight", whole, max(query_width, latent))
        checks.parameter("down.weight", latent + turning + query_width, width)
        checks.parameter("up_value", heads * self.value_width, max(width, latent))
        self.down_query: nn.Module = nn.Identity()
        if query_latent is not None:
            self.down_query = nn.Sequential(nn.Linear(width, query_latent, bias=False), RMSNorm(query_latent))
        self.up_query = nn.Linear(query_width, whole, bias=False)
        self.down = nn.Linear(width, latent + turning, bias=False)
        self.norm = RMSNorm(latent)
        self.up_key = nn.Parameter(torch.randn(heads, latent, self.head_width) / math.sqrt(latent))
        self.up_value = nn.Parameter(torch.randn(heads, latent, self.value_width) / math.sqrt(latent))
        self.out_proj = nn.Linear(heads * self.value_width, width, bias=False)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Any = None,
        position: Position | None = None,
        at: Tensor | None = None,
        cache: LayerCache | None = None,
        absorbed: bool | None = None,
    ) -> Tensor:
        """See `MultiHeadAttention`. Both forms give the same up to rounding."""
        if absorbed is not None:
            checks.flag(absorbed, "absorbed")
        still, turned, kept = self._rows(x, position, at, cache)
        if cache is not None:
            (kept,) = cache.append(kept)
        options = {**self._options(mask, x), "dropout": self.dropout if self.training else 0.0}
        compute = self.operator or attention
        if cache is not None if absorbed is None else absorbed:
            q = torch.cat((still @ self.up_key.mT, turned), dim=-1)
            o = compute(q, kept, kept[..., : self.latent], **options) @ self.up_value
        else:
            o = compute(*self._by_head(still, turned, kept), **options)
        return self.out_proj(o.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]  # modules are untyped

    def attend(
        self, x: Tensor, *, mask: Any = None, position: Position | None = None, at: Tensor | None = None
    ) -> Attended:
        """The attention inside this layer, kept open: weights by head, before the heads are joined."""
        return attend(*self._by_head(*self._rows(x, position, at)), **self._options(mask, x))

    def _options(self, mask: Any, x: Tensor) -> dict[str, Any]:
        seen = joined(made(self.mask), mask)
        return {
            "score": scaled_dot(1.0 / math.sqrt(self.head_width + self.turning)),
            "mask": None if x.shape[1] == 1 and self.operator is None and seen is causal() else seen,
            "weigh": made(self.weigh),
        }

    def _by_head(self, still: Tensor, turned: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of each head, made from what is kept."""
        c, r = kept.split([self.latent, self.turning], dim=-1)
        k = torch.cat((c @ self.up_key, r.expand(-1, self.heads, -1, -1)), dim=-1)
        return torch.cat((still, turned), dim=-1), k, c @ self.up_value

    def _rows(
        self, x: Tensor, position: Position | None, at: Tensor | None, cache: LayerCache | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries without and with positions (batch, heads, n, ...), what is kept
        (batch, 1, n, latent + turning)."""
        inputs.vectors(x, "x", self.out_proj.out_features, self.out_proj.weight)
        check_context(x, position, at, cache)
        if position is not None and position.rule() is not None:
            raise SpecError(
                f"latent attention takes positions that turn or are added; got {type(position).__name__}, a rule on "
                "scores. Use Rotary."
            )
        q = self.up_query(self.down_query(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        still, turned = q.split([self.head_width, self.turning], dim=-1)
        c, r = self.down(x).unsqueeze(1).split([self.latent, self.turning], dim=-1)
        if position is not None:
            turned, r = position.turned(turned, r, torch.arange(x.shape[1], device=x.device) if at is None else at)
        return still, turned, torch.cat((self.norm(c), r), dim=-1)
