"""Transformer layers as `torch.nn` modules, from multi-head attention to encoders, decoders and generation."""

from regard.nn.attention import MultiHeadAttention
from regard.nn.block import Block, BlockConfig
from regard.nn.embedding import TokenEmbedding
from regard.nn.feed_forward import FeedForward
from regard.nn.generation import BeamSearchResult, CausalLM, Sampler, beam_search, generate, generate_stream, greedy
from regard.nn.kv_cache import KeyValueCache, LayerCache
from regard.nn.latent_attention import LatentAttention
from regard.nn.norm import RMSNorm
from regard.nn.position_encoding import (
    ALiBi,
    LearnedPositionalEmbedding,
    PositionEncoding,
    RotaryEmbedding,
    SinusoidalPositionalEmbedding,
    T5Bias,
)
from regard.nn.rope_scaling import LinearRopeScaling, Llama3RopeScaling, NTKRopeScaling, YarnRopeScaling
from regard.nn.transformer import BlockStack, Decoder, Encoder, Transformer

__all__ = [
    "ALiBi",
    "BeamSearchResult",
    "Block",
    "BlockConfig",
    "BlockStack",
    "CausalLM",
    "Decoder",
    "Encoder",
    "FeedForward",
    "KeyValueCache",
    "LatentAttention",
    "LayerCache",
    "LearnedPositionalEmbedding",
    "LinearRopeScaling",
    "Llama3RopeScaling",
    "MultiHeadAttention",
    "NTKRopeScaling",
    "PositionEncoding",
    "RMSNorm",
    "RotaryEmbedding",
    "Sampler",
    "SinusoidalPositionalEmbedding",
    "T5Bias",
    "TokenEmbedding",
    "Transformer",
    "YarnRopeScaling",
    "beam_search",
    "generate",
    "generate_stream",
    "greedy",
]


def __dir__() -> list[str]:
    return sorted(__all__)
