"""Valid calls of `regard.nn`: layers and their methods, position encodings, caches and generation."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard import mask, nn
from tests.sweeps.valid_calls.inputs import numbers, qkv
from tests.sweeps.valid_calls.table import Arguments, ValidCall, args

X, MEMORY, POSITION_IDS = numbers(1, 6, 8), numbers(1, 4, 8, seed=1), torch.arange(6)
CONFIG = nn.BlockConfig(8, 2, ffn_dim=16)
LOGITS = numbers(2, 11)


def constructor(name: str, *positional: Any, use: Callable[[Any], object] | None = None, **keywords: Any) -> ValidCall:
    return ValidCall(f"regard.nn.{name}", lambda: getattr(nn, name), lambda: args(*positional, **keywords), use)


def method(name: str, make: Callable[[], Any], *positional: Any, **keywords: Any) -> ValidCall:
    """Return a call of a method; every call gets a new object."""

    def function() -> Any:
        torch.manual_seed(0)
        return getattr(make(), name.split(".")[1])

    def arguments() -> Arguments:
        return args(*positional, **keywords)

    return ValidCall(f"regard.nn.{name}", function, arguments)


class TinyLanguageModel(torch.nn.Module):
    """A small causal language model: an embedding, a decoder, and the logits of the last token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.decoder = nn.TokenEmbedding(11, 8), nn.Decoder(CONFIG, 1, mask=mask.causal())
        self.eval()

    def next_token_logits(self, tokens: Tensor, cache: nn.KeyValueCache) -> Tensor:
        return self.tokens.logits(self.decoder(self.tokens(tokens), cache=cache)[:, -1:])[:, -1]


MODEL = TinyLanguageModel()
PROMPT = torch.tensor([[1, 2, 3]])


def filled_cache() -> nn.KeyValueCache:
    cache = nn.KeyValueCache()
    with torch.no_grad():
        MODEL.next_token_logits(PROMPT, cache)
    return cache


def use_cache(cache: nn.KeyValueCache) -> Tensor:
    with torch.no_grad():
        return MODEL.next_token_logits(PROMPT, cache)


def filled_layer_cache() -> nn.LayerCache:
    cache = nn.LayerCache()
    cache.append(*qkv()[:2])
    return cache


def generation(name: str, **keywords: Any) -> ValidCall:
    return ValidCall(
        f"regard.nn.{name}",
        lambda: getattr(nn, name),
        lambda: args(MODEL, PROMPT, max_new_tokens=3, **keywords),
        list if name == "generate_stream" else None,
    )


def attention() -> Any:
    return nn.MultiHeadAttention(8, 2)


def latent() -> Any:
    return nn.LatentAttention(8, 2, kv_lora_rank=4, rope_dim=2)


def apply_to_x(layer: Any) -> Any:
    return layer(X)


CALLS = [
    constructor("ALiBi", 2, use=lambda layer: attention()(X, position_encoding=layer)),
    constructor("Block", CONFIG, use=apply_to_x),
    constructor("Decoder", CONFIG, 1, use=apply_to_x),
    constructor("BlockConfig", 8, 2, use=lambda layer: nn.Block(layer)(X)),
    constructor("Encoder", CONFIG, 1, use=apply_to_x),
    constructor("FeedForward", 8, 16, use=apply_to_x),
    constructor("KeyValueCache", use=use_cache),
    constructor("LatentAttention", 8, 2, kv_lora_rank=4, rope_dim=2, use=apply_to_x),
    constructor("LayerCache", use=lambda cache: cache.append(*qkv()[:2])),
    constructor("LearnedPositionalEmbedding", 10, 8, use=lambda layer: layer.apply_to_embeddings(X, POSITION_IDS)),
    constructor(
        "LinearRopeScaling",
        2.0,
        use=lambda layer: nn.RotaryEmbedding(8, scaling=layer).apply_to_qk(*qkv()[:2], POSITION_IDS),
    ),
    constructor(
        "Llama3RopeScaling",
        2.0,
        16,
        use=lambda layer: nn.RotaryEmbedding(8, scaling=layer).apply_to_qk(*qkv()[:2], POSITION_IDS),
    ),
    constructor("MultiHeadAttention", 8, 2, use=apply_to_x),
    constructor(
        "NTKRopeScaling",
        2.0,
        use=lambda layer: nn.RotaryEmbedding(8, scaling=layer).apply_to_qk(*qkv()[:2], POSITION_IDS),
    ),
    constructor("RMSNorm", 8, use=apply_to_x),
    constructor("T5Bias", 2, use=lambda layer: attention()(X, position_encoding=layer)),
    constructor("RotaryEmbedding", 8, use=lambda layer: layer.apply_to_qk(*qkv()[:2], POSITION_IDS)),
    constructor("Sampler", 0.5, 3, 0.9, 1, use=lambda layer: layer(LOGITS)),
    constructor("SinusoidalPositionalEmbedding", 8, use=lambda layer: layer.apply_to_embeddings(X, POSITION_IDS)),
    constructor("BlockStack", CONFIG, 1, use=apply_to_x),
    constructor("TokenEmbedding", 11, 8, use=lambda layer: layer(PROMPT)),
    constructor("Transformer", CONFIG, 1, use=lambda layer: layer(X, MEMORY)),
    constructor(
        "YarnRopeScaling",
        2.0,
        16,
        use=lambda layer: nn.RotaryEmbedding(8, scaling=layer).apply_to_qk(*qkv()[:2], POSITION_IDS),
    ),
    constructor("greedy", LOGITS),
    generation("generate"),
    generation("generate_stream"),
    generation("beam_search", num_beams=2),
    method("Block.forward", lambda: nn.Block(CONFIG, add_cross_attention=True), X, memory=MEMORY),
    method("Block.attention_with_weights", lambda: nn.Block(CONFIG, add_cross_attention=True), X, memory=MEMORY),
    method("FeedForward.forward", lambda: nn.FeedForward(8), X),
    method("KeyValueCache.cross_attention_cache", filled_cache, 0),
    method("KeyValueCache.position_ids", filled_cache, 2),
    method("KeyValueCache.padding_mask", filled_cache, 2),
    method("KeyValueCache.check_equal_lengths", filled_cache, 1),
    method("KeyValueCache.crop", filled_cache, 2),
    method("KeyValueCache.reorder", filled_cache, torch.tensor([0, 0])),
    method("LatentAttention.forward", latent, X, position_encoding=nn.RotaryEmbedding(2)),
    method("LatentAttention.attention_with_weights", latent, X),
    method("LayerCache.append", filled_layer_cache, *qkv()[:2]),
    method("LayerCache.crop", filled_layer_cache, 2),
    method("LayerCache.reorder", filled_layer_cache, torch.tensor([0, 0])),
    method(
        "LearnedPositionalEmbedding.apply_to_embeddings", lambda: nn.LearnedPositionalEmbedding(10, 8), X, POSITION_IDS
    ),
    method("MultiHeadAttention.forward", attention, X, MEMORY, MEMORY),
    method("MultiHeadAttention.attention_with_weights", attention, X, MEMORY, MEMORY),
    method("RotaryEmbedding.apply_to_qk", lambda: nn.RotaryEmbedding(8), *qkv()[:2], POSITION_IDS),
    method("Sampler.probabilities", lambda: nn.Sampler(0.5, 3), LOGITS),
    method(
        "SinusoidalPositionalEmbedding.apply_to_embeddings",
        lambda: nn.SinusoidalPositionalEmbedding(8),
        X,
        POSITION_IDS,
    ),
    method("SinusoidalPositionalEmbedding.encode", lambda: nn.SinusoidalPositionalEmbedding(8), POSITION_IDS),
    method("RMSNorm.forward", lambda: nn.RMSNorm(8), X),
    method("BlockStack.forward", lambda: nn.BlockStack(CONFIG, 1, add_cross_attention=True), X, MEMORY),
    method("BlockStack.attention_with_weights", lambda: nn.BlockStack(CONFIG, 1, add_cross_attention=True), X, MEMORY),
    method("TokenEmbedding.forward", lambda: nn.TokenEmbedding(11, 8), PROMPT),
    method("TokenEmbedding.logits", lambda: nn.TokenEmbedding(11, 8), X),
    method("Transformer.forward", lambda: nn.Transformer(CONFIG, 1), X, MEMORY),
    *(
        method(
            f"{name}.scale_frequencies",
            lambda name=name, extra=extra: getattr(nn, name)(2.0, *extra),
            torch.ones(4),
            1e4,
        )  # type: ignore[misc]
        for name, extra in (
            ("LinearRopeScaling", ()),
            ("NTKRopeScaling", ()),
            ("YarnRopeScaling", (16,)),
            ("Llama3RopeScaling", (16,)),
        )
    ),
]

LEFT_OUT = {
    "regard.nn.BeamSearchResult": "a result of beam_search",
    "regard.nn.PositionEncoding": "a base class",
    "regard.nn.CausalLM": "a protocol",
}
