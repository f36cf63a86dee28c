"""Multi-head latent attention (MLA): keys and values of all heads are projections of one small vector per token.

    c_j = norm(x_j W_dc)      k_j^h = [c_j W_uk^h ; r_j]      v_j^h = c_j W_uv^h       r_j = rope(x_j W_r)
    q_i^h = [.. W_uq^h ; rope(..)]        s = q·k / √(head_dim + rope_dim)            (DeepSeek-V2, 2024)

Only c_j and r_j are cached. The absorbed form does not compute keys and values: the query q_i W_uk' attends to c_j, and
the weighted sum of c_j is projected afterwards. All heads then share one key head, which decoding reads once.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard import checks
from regard.attention import attention, attention_with_weights
from regard.errors import ArgumentError
from regard.mask import MaskLike
from regard.nn import input_checks
from regard.nn.attention import check_call_options, combine_masks, resolve_head_dim, resolve_option
from regard.nn.kv_cache import LayerCache
from regard.nn.norm import RMSNorm
from regard.nn.position_encoding import PositionEncoding
from regard.normalizer import NormalizerLike
from regard.result import AttentionResult
from regard.score import scaled_dot


class LatentAttention(nn.Module):
    """Multi-head latent attention (MLA) from x (batch, n, embed_dim) to the same shape.

    The cache holds `kv_lora_rank + rope_dim` numbers per token for all heads. `kv_lora_rank` is the dimension of the
    latent vector of keys and values; `q_lora_rank` is the dimension of that of queries (None: no latent vector).
    `position_encoding` rotates `rope_dim` features of each head, in addition to `head_dim` features without positions.
    `head_dim` defaults to `embed_dim // num_heads`, and `v_head_dim` to `head_dim`. `dropout`, `mask` and `normalizer`
    are those of `MultiHeadAttention`.

    >>> from regard.mask import causal
    >>> layer = LatentAttention(64, num_heads=4, kv_lora_rank=16, rope_dim=8)
    >>> layer(torch.randn(2, 10, 64), mask=causal()).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        kv_lora_rank: int,
        rope_dim: int,
        q_lora_rank: int | None = None,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        dropout: float = 0.0,
        mask: MaskLike | nn.Module | None = None,
        normalizer: NormalizerLike | nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.head_dim = resolve_head_dim(embed_dim, num_heads, head_dim)
        self.num_heads = num_heads
        self.kv_lora_rank, self.rope_dim = checks.size(kv_lora_rank, "kv_lora_rank"), checks.size(rope_dim, "rope_dim")
        self.v_head_dim = self.head_dim if v_head_dim is None else checks.size(v_head_dim, "v_head_dim")
        self.dropout = checks.probability(dropout, "dropout", below_one=True)
        self.mask, self.normalizer = mask, normalizer
        self.attention_fn: Callable[..., Tensor] | None = None  # as in `MultiHeadAttention`
        q_up_dim = num_heads * (self.head_dim + rope_dim)
        query_dim = embed_dim if q_lora_rank is None else checks.size(q_lora_rank, "q_lora_rank")
        checks.parameter_size("q_up_proj.weight", q_up_dim, max(query_dim, kv_lora_rank))
        checks.parameter_size("kv_down_proj.weight", kv_lora_rank + rope_dim + query_dim, embed_dim)
        checks.parameter_size("v_up_proj", num_heads * self.v_head_dim, max(embed_dim, kv_lora_rank))
        self.q_down_proj: nn.Module = nn.Identity()
        if q_lora_rank is not None:
            self.q_down_proj = nn.Sequential(nn.Linear(embed_dim, q_lora_rank, bias=False), RMSNorm(q_lora_rank))
        self.q_up_proj = nn.Linear(query_dim, q_up_dim, bias=False)
        self.kv_down_proj = nn.Linear(embed_dim, kv_lora_rank + rope_dim, bias=False)
        self.kv_norm = RMSNorm(kv_lora_rank)
        self.k_up_proj = nn.Parameter(torch.randn(num_heads, kv_lora_rank, self.head_dim) / math.sqrt(kv_lora_rank))
        self.v_up_proj = nn.Parameter(torch.randn(num_heads, kv_lora_rank, self.v_head_dim) / math.sqrt(kv_lora_rank))
        self.out_proj = nn.Linear(num_heads * self.v_head_dim, embed_dim, bias=False)

    def forward(
        self,
        x: Tensor,
        *,
        mask: MaskLike | None = None,
        position_encoding: PositionEncoding | None = None,
        position_ids: Tensor | None = None,
        cache: LayerCache | None = None,
        absorb: bool | None = None,
    ) -> Tensor:
        """Return the output of the layer for x (batch, n, embed_dim), of the same shape.

        `mask`, `position_encoding`, `position_ids` and `cache` are those of `MultiHeadAttention`.

        `absorb=True` uses the absorbed form. `absorb=False` computes keys and values, which is cheaper for many
        queries. None absorbs if there is a cache. The two forms agree up to rounding.
        """
        if absorb is not None:
            checks.flag(absorb, "absorb")
        q_nope, q_rope, kv_latent = self._project(x, position_encoding, position_ids, cache)
        if cache is not None:
            (kv_latent,) = cache.append(kv_latent)
        options = {**self._attention_options(mask, x), "dropout": self.dropout if self.training else 0.0}
        compute = self.attention_fn or attention
        if cache is not None if absorb is None else absorb:
            q = torch.cat((q_nope @ self.k_up_proj.mT, q_rope), dim=-1)
            o = compute(q, kv_latent, kv_latent[..., : self.kv_lora_rank], **options) @ self.v_up_proj
        else:
            o = compute(*self._expand_heads(q_nope, q_rope, kv_latent), **options)
        output: Tensor = self.out_proj(o.transpose(1, 2).flatten(2))
        return output

    def attention_with_weights(
        self,
        x: Tensor,
        *,
        mask: MaskLike | None = None,
        position_encoding: PositionEncoding | None = None,
        position_ids: Tensor | None = None,
    ) -> AttentionResult[Tensor]:
        """Return the output and the weights of each head, before the output projection; arguments as in `forward`."""
        return attention_with_weights(
            *self._expand_heads(*self._project(x, position_encoding, position_ids)), **self._attention_options(mask, x)
        )

    def _attention_options(self, mask: MaskLike | None, x: Tensor) -> dict[str, Any]:
        return {
            "score": scaled_dot(1.0 / math.sqrt(self.head_dim + self.rope_dim)),
            "mask": combine_masks(self.mask, mask, x.shape[1] == 1 and self.attention_fn is None),
            "normalizer": resolve_option(self.normalizer),
        }

    def _expand_heads(self, q_nope: Tensor, q_rope: Tensor, kv_latent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of each head."""
        c, r = kv_latent.split([self.kv_lora_rank, self.rope_dim], dim=-1)
        k = torch.cat((c @ self.k_up_proj, r.expand(-1, self.num_heads, -1, -1)), dim=-1)
        return torch.cat((q_nope, q_rope), dim=-1), k, c @ self.v_up_proj

    def _project(
        self,
        x: Tensor,
        position_encoding: PositionEncoding | None,
        position_ids: Tensor | None,
        cache: LayerCache | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return query parts without and with positions, and latent vectors.

        The query parts are (batch, heads, n, head_dim) and (batch, heads, n, rope_dim), the latent vectors
        (batch, 1, n, kv_lora_rank + rope_dim).
        """
        input_checks.check_hidden_states(x, "x", self.out_proj.out_features, self.out_proj.weight)
        check_call_options(x, position_encoding, position_ids, cache)
        if position_encoding is not None and position_encoding.score_modifier() is not None:
            raise ArgumentError(
                "LatentAttention does not support position encodings that modify scores; got "
                f"{type(position_encoding).__name__}. Use RotaryEmbedding."
            )
        q = self.q_up_proj(self.q_down_proj(x)).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        q_nope, q_rope = q.split([self.head_dim, self.rope_dim], dim=-1)
        c, r = self.kv_down_proj(x).unsqueeze(1).split([self.kv_lora_rank, self.rope_dim], dim=-1)
        if position_encoding is not None:
            q_rope, r = position_encoding.apply_to_qk(
                q_rope, r, torch.arange(x.shape[1], device=x.device) if position_ids is None else position_ids
            )
        return q_nope, q_rope, torch.cat((self.kv_norm(c), r), dim=-1)
