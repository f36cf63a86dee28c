"""A small language model in float64 and the task that it learns, for ranks and for a single process."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.models.language import LanguageModel
from regard.models.training import BatchResult, ContextParallelModel, Recipe, classification_result
from regard.nn import (
    ALiBi,
    BlockConfig,
    Decoder,
    Encoder,
    LatentAttention,
    LearnedPositionalEmbedding,
    PositionEncoding,
    RotaryEmbedding,
)

VOCAB_SIZE = 17
POSITION_ENCODINGS: dict[str, Callable[[], PositionEncoding | None]] = {
    "rotary": lambda: RotaryEmbedding(8),
    "alibi": lambda: ALiBi(4),
    "learned": lambda: LearnedPositionalEmbedding(64, 32),
    "none": lambda: None,
}


def tiny_model(position_encoding: str = "rotary", seed: int = 3) -> LanguageModel:
    """Return a model of two layers: one with a sliding window and grouped heads, one with full causal attention."""
    torch.manual_seed(seed)
    configs = [
        BlockConfig(embed_dim=32, num_heads=4, num_kv_heads=2, sliding_window=5),
        BlockConfig(embed_dim=32, num_heads=4),
    ]
    position = POSITION_ENCODINGS[position_encoding]()
    return LanguageModel(VOCAB_SIZE, num_layers=2, block_config=configs, position_encoding=position).double()


def tiny_stack(kind: str) -> nn.Module:
    """Return a stack of two layers for inputs (batch, n, 32): an encoder, or a decoder with latent attention."""
    torch.manual_seed(5)
    if kind == "encoder":
        return Encoder(BlockConfig(embed_dim=32, num_heads=4), num_layers=2, position_encoding=ALiBi(4)).double()
    latent = BlockConfig(
        embed_dim=32,
        num_heads=4,
        attention_factory=lambda c: LatentAttention(c.embed_dim, c.num_heads, kv_lora_rank=12, rope_dim=4),
    )
    return Decoder(latent, num_layers=2, position_encoding=RotaryEmbedding(4)).double()


class TinyTask:
    """Predict the next token, 3t + 1 after t; the first six targets are ignored."""

    name = "tiny"
    supports_context_parallel = True
    recipe = Recipe(steps=50, lr=1e-2, warmup_steps=10)

    def untrained_model(self) -> nn.Module:
        return tiny_model()

    def model_config(self) -> dict[str, object]:
        return {}

    def training_step(self, model: nn.Module, step: int, generator: torch.Generator, recipe: Recipe) -> BatchResult:
        columns = [torch.randint(VOCAB_SIZE, (3,), generator=generator)]
        for _ in range(25):
            columns.append((3 * columns[-1] + 1) % VOCAB_SIZE)
        tokens = torch.stack(columns, dim=1)
        targets = tokens[:, 1:].clone()
        targets[:, :6] = -100
        local_targets = model.shard(targets) if isinstance(model, ContextParallelModel) else targets
        return classification_result(model(tokens[:, :-1]), local_targets, recipe.label_smoothing)

    def test(self, model: nn.Module) -> dict[str, float]:
        return {}


def prompt(n: int = 11) -> Tensor:
    return torch.randint(VOCAB_SIZE, (2, n), generator=torch.Generator().manual_seed(n))
