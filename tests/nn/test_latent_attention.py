"""Latent attention compared with Hugging Face's DeepSeek-V3, with the same weights."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from regard import mask, normalizer
from regard.errors import ArgumentError
from regard.nn import ALiBi, LatentAttention, RotaryEmbedding

HEADS, KV_LORA_RANK, Q_LORA_RANK, ROPE_DIM, HEAD_DIM, V_HEAD_DIM, EMBED_DIM = 4, 12, 20, 8, 16, 10, 32


def test_latent_attention_matches_deepseek() -> None:
    torch.manual_seed(0)
    config = DeepseekV3Config(
        hidden_size=EMBED_DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        kv_lora_rank=KV_LORA_RANK,
        q_lora_rank=Q_LORA_RANK,
        qk_rope_head_dim=ROPE_DIM,
        qk_nope_head_dim=HEAD_DIM,
        v_head_dim=V_HEAD_DIM,
        attention_bias=False,
    )
    config._attn_implementation = "eager"
    hf_layer = DeepseekV3Attention(config, layer_idx=0).eval()
    layer = LatentAttention(
        EMBED_DIM,
        HEADS,
        kv_lora_rank=KV_LORA_RANK,
        rope_dim=ROPE_DIM,
        q_lora_rank=Q_LORA_RANK,
        head_dim=HEAD_DIM,
        v_head_dim=V_HEAD_DIM,
    )
    with torch.no_grad():
        for norm in (hf_layer.q_a_layernorm, hf_layer.kv_a_layernorm):
            norm.weight.add_(0.3 * torch.randn_like(norm.weight))
    k_up, v_up = (
        hf_layer.kv_b_proj.weight.detach()
        .view(HEADS, HEAD_DIM + V_HEAD_DIM, KV_LORA_RANK)
        .mT.split([HEAD_DIM, V_HEAD_DIM], dim=-1)
    )
    layer.load_state_dict(
        {
            "q_down_proj.0.weight": hf_layer.q_a_proj.weight,
            "q_down_proj.1.weight": hf_layer.q_a_layernorm.weight,
            "q_up_proj.weight": hf_layer.q_b_proj.weight,
            "kv_down_proj.weight": hf_layer.kv_a_proj_with_mqa.weight,
            "kv_norm.weight": hf_layer.kv_a_layernorm.weight,
            "k_up_proj": k_up,
            "v_up_proj": v_up,
            "out_proj.weight": hf_layer.o_proj.weight,
        }
    )
    n = 11
    x, causal_bias = torch.randn(2, n, EMBED_DIM), torch.full((n, n), -torch.inf).triu(1)
    angles = DeepseekV3RotaryEmbedding(config)(x, torch.arange(n)[None])
    with torch.no_grad():
        expected, weights = hf_layer(x, position_embeddings=angles, attention_mask=causal_bias)
        rotary = RotaryEmbedding(ROPE_DIM, layout="interleaved")
        for absorb in (False, True):
            output = layer(x, mask=mask.causal(), position_encoding=rotary, absorb=absorb)
            torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
        result = layer.attention_with_weights(x, mask=mask.causal(), position_encoding=rotary)
        torch.testing.assert_close(result.weights[...], weights, rtol=1e-4, atol=1e-5)


def test_invalid_sizes_raise() -> None:
    with pytest.raises(ArgumentError, match=r"num_heads must divide embed_dim; got embed_dim=32, num_heads=5"):
        LatentAttention(32, 5, kv_lora_rank=8, rope_dim=4)
    with pytest.raises(ArgumentError, match="num_heads must be an integer from 1 to 2147483647; got 0"):
        LatentAttention(32, 0, kv_lora_rank=8, rope_dim=4)
    with pytest.raises(ArgumentError, match=r"x must have shape \(batch, n, 32\); got \(5, 32\)"):
        LatentAttention(32, 4, kv_lora_rank=8, rope_dim=4)(torch.randn(5, 32))


def test_a_score_modifying_position_encoding_raises() -> None:
    with pytest.raises(ArgumentError, match=r"position encodings that modify scores; got ALiBi. Use RotaryEmbedding"):
        LatentAttention(32, 4, kv_lora_rank=8, rope_dim=4)(torch.randn(1, 5, 32), position_encoding=ALiBi(4))


def test_a_normalizer_module_gets_gradients() -> None:
    class Sink(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = nn.Parameter(torch.zeros(4))

        def forward(self) -> Any:
            return normalizer.sink(self.logits)

    sink = Sink()
    layer = LatentAttention(32, 4, kv_lora_rank=8, rope_dim=4, normalizer=sink)
    layer(torch.randn(1, 5, 32)).sum().backward()
    assert sink.logits.grad is not None and bool((sink.logits.grad != 0).all())
