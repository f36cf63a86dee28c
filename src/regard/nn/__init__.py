"""Layers: everything between `regard.attention` and a whole transformer, as `torch.nn` modules."""

from regard.nn.attention import MultiHeadAttention
from regard.nn.block import Block, Design
from regard.nn.cache import KeyValueCache, LayerCache
from regard.nn.embedding import TokenEmbedding
from regard.nn.feedforward import FeedForward
from regard.nn.generate import Beams, Sample, Writer, beam, generate, greedy, stream
from regard.nn.latent import LatentAttention
from regard.nn.norm import RMSNorm
from regard.nn.position import (
    ALiBi,
    Learned,
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    Position,
    RelativeBias,
    Rotary,
    Sinusoidal,
    YarnScaling,
)
from regard.nn.transformer import Decoder, Encoder, Stack, Transformer

__all__ = [
    "ALiBi",
    "Beams",
    "Block",
    "Decoder",
    "Design",
    "Encoder",
    "FeedForward",
    "KeyValueCache",
    "LatentAttention",
    "LayerCache",
    "Learned",
    "LinearScaling",
    "Llama3Scaling",
    "MultiHeadAttention",
    "NTKScaling",
    "Position",
    "RMSNorm",
    "RelativeBias",
    "Rotary",
    "Sample",
    "Sinusoidal",
    "Stack",
    "TokenEmbedding",
    "Transformer",
    "Writer",
    "YarnScaling",
    "beam",
    "generate",
    "greedy",
    "stream",
]
