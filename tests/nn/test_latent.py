"""Latent attention against Hugging Face's DeepSeek-V3, weights copied."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from regard import mask, weigh
from regard.errors import SpecError
from regard.nn import ALiBi, LatentAttention, Rotary

HEADS, LATENT, QUERY, TURNING, STILL, VALUE, WIDTH = 4, 12, 20, 8, 16, 10, 32


def test_latent_attention_is_that_of_deepseek() -> None:
    torch.manual_seed(0)
    config = DeepseekV3Config(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        kv_lora_rank=LATENT,
        q_lora_rank=QUERY,
        qk_rope_head_dim=TURNING,
        qk_nope_head_dim=STILL,
        v_head_dim=VALUE,
        attention_bias=False,
    )
    config._attn_implementation = "eager"
    theirs = DeepseekV3Attention(config, layer_idx=0).eval()
    ours = LatentAttention(
        WIDTH, HEADS, latent=LATENT, turning=TURNING, query_latent=QUERY, head_width=STILL, value_width=VALUE
    )
    with torch.no_grad():
        for norm in (theirs.q_a_layernorm, theirs.kv_a_layernorm):
            norm.weight.add_(0.3 * torch.randn_like(norm.weight))
    up_key, up_value = (
        theirs.kv_b_proj.weight.detach().view(HEADS, STILL + VALUE, LATENT).mT.split([STILL, VALUE], dim=-1)
    )
    ours.load_state_dict(
        {
            "down_query.0.weight": theirs.q_a_proj.weight,
            "down_query.1.weight": theirs.q_a_layernorm.weight,
            "up_query.weight": theirs.q_b_proj.weight,
            "down.weight": theirs.kv_a_proj_with_mqa.weight,
            "norm.weight": theirs.kv_a_layernorm.weight,
            "up_key": up_key,
            "up_value": up_value,
            "out_proj.weight": theirs.o_proj.weight,
        }
    )
    n = 11
    x, hidden = torch.randn(2, n, WIDTH), torch.full((n, n), -torch.inf).triu(1)
    angles = DeepseekV3RotaryEmbedding(config)(x, torch.arange(n)[None])
    with torch.no_grad():
        expected, weights = theirs(x, position_embeddings=angles, attention_mask=hidden)
        turning = Rotary(TURNING, layout="interleaved")
        for absorbed in (False, True):
            found = ours(x, mask=mask.causal(), position=turning, absorbed=absorbed)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        kept = ours.attend(x, mask=mask.causal(), position=turning)
        torch.testing.assert_close(kept.weights[...], weights, rtol=1e-4, atol=1e-5)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SpecError, match=r"heads must divide width, or give head_width; got width=32, heads=5"):
        LatentAttention(32, 5, latent=8, turning=4)
    with pytest.raises(SpecError, match="heads must be a whole number from 1 to 2147483647; got 0"):
        LatentAttention(32, 0, latent=8, turning=4)
    with pytest.raises(SpecError, match=r"x must have shape \(batch, n, 32\); got \(5, 32\)"):
        LatentAttention(32, 4, latent=8, turning=4)(torch.randn(5, 32))


def test_a_rule_on_scores_is_refused() -> None:
    with pytest.raises(SpecError, match=r"positions that turn or are added; got ALiBi, a rule on scores. Use Rotary"):
        LatentAttention(32, 4, latent=8, turning=4)(torch.randn(1, 5, 32), position=ALiBi(4))


def test_a_module_in_the_place_of_a_weighing_is_asked_at_each_call() -> None:
    class Sink(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = nn.Parameter(torch.zeros(4))

        def forward(self) -> Any:
            return weigh.sink(self.logits)

    sink = Sink()
    layer = LatentAttention(32, 4, latent=8, turning=4, weigh=sink)
    layer(torch.randn(1, 5, 32)).sum().backward()
    assert sink.logits.grad is not None and bool((sink.logits.grad != 0).all())
