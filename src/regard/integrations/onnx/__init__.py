"""The ONNX operators Attention, RotaryEmbedding and LinearAttention, computed by regard."""

from regard.integrations.onnx.attention_operators import AttentionOutputs, attention, rotary_embedding
from regard.integrations.onnx.linear_attention_operators import LinearAttentionOutputs, linear_attention

__all__ = ["AttentionOutputs", "LinearAttentionOutputs", "attention", "linear_attention", "rotary_embedding"]


def __dir__() -> list[str]:
    return sorted(__all__)
