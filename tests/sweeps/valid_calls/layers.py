"""Valid calls of `regard.nn`: layers and their methods, positions, caches, generation."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard import mask, nn
from tests.sweeps.valid_calls.inputs import numbers, qkv
from tests.sweeps.valid_calls.table import Arguments, ValidCall, given

X, MEMORY, AT = numbers(1, 6, 8), numbers(1, 4, 8, seed=1), torch.arange(6)
DESIGN = nn.Design(8, 2, hidden=16)
LOGITS = numbers(2, 11)


def made(name: str, *positional: Any, use: Callable[[Any], object] | None = None, **keywords: Any) -> ValidCall:
    return ValidCall(f"regard.nn.{name}", lambda: getattr(nn, name), lambda: given(*positional, **keywords), use)


def method(name: str, make: Callable[[], Any], *positional: Any, **keywords: Any) -> ValidCall:
    """A method of an object that is made anew for each call."""

    def function() -> Any:
        torch.manual_seed(0)
        return getattr(make(), name.split(".")[1])

    def arguments() -> Arguments:
        return given(*positional, **keywords)

    return ValidCall(f"regard.nn.{name}", function, arguments)


class Alphabet(torch.nn.Module):
    """A smallest causal language model: an embedding, a decoder, and the logits of the last token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.decoder = nn.TokenEmbedding(11, 8), nn.Decoder(DESIGN, 1, mask=mask.causal())
        self.eval()

    def following(self, tokens: Tensor, cache: nn.KeyValueCache) -> Tensor:
        return self.tokens.logits(self.decoder(self.tokens(tokens), cache=cache)[:, -1:])[:, -1]


ALPHABET = Alphabet()
PROMPT = torch.tensor([[1, 2, 3]])


def filled() -> nn.KeyValueCache:
    cache = nn.KeyValueCache()
    with torch.no_grad():
        ALPHABET.following(PROMPT, cache)
    return cache


def used(cache: nn.KeyValueCache) -> Tensor:
    with torch.no_grad():
        return ALPHABET.following(PROMPT, cache)


def rows() -> nn.LayerCache:
    cache = nn.LayerCache()
    cache.append(*qkv()[:2])
    return cache


def generation(name: str, **keywords: Any) -> ValidCall:
    return ValidCall(
        f"regard.nn.{name}",
        lambda: getattr(nn, name),
        lambda: given(ALPHABET, PROMPT, most=3, **keywords),
        list if name == "stream" else None,
    )


def attention() -> Any:
    return nn.MultiHeadAttention(8, 2)


def latent() -> Any:
    return nn.LatentAttention(8, 2, latent=4, turning=2)


def on_x(layer: Any) -> Any:
    return layer(X)


CALLS = [
    made("ALiBi", 2, use=lambda one: attention()(X, position=one)),
    made("Block", DESIGN, use=on_x),
    made("Decoder", DESIGN, 1, use=on_x),
    made("Design", 8, 2, use=lambda one: nn.Block(one)(X)),
    made("Encoder", DESIGN, 1, use=on_x),
    made("FeedForward", 8, 16, use=on_x),
    made("KeyValueCache", use=used),
    made("LatentAttention", 8, 2, latent=4, turning=2, use=on_x),
    made("LayerCache", use=lambda cache: cache.append(*qkv()[:2])),
    made("Learned", 10, 8, use=lambda one: one.added(X, AT)),
    made("LinearScaling", 2.0, use=lambda one: nn.Rotary(8, scaling=one).turned(*qkv()[:2], AT)),
    made("Llama3Scaling", 2.0, 16, use=lambda one: nn.Rotary(8, scaling=one).turned(*qkv()[:2], AT)),
    made("MultiHeadAttention", 8, 2, use=on_x),
    made("NTKScaling", 2.0, use=lambda one: nn.Rotary(8, scaling=one).turned(*qkv()[:2], AT)),
    made("RMSNorm", 8, use=on_x),
    made("RelativeBias", 2, use=lambda one: attention()(X, position=one)),
    made("Rotary", 8, use=lambda one: one.turned(*qkv()[:2], AT)),
    made("Sample", 0.5, 3, 0.9, 1, use=lambda one: one(LOGITS)),
    made("Sinusoidal", 8, use=lambda one: one.added(X, AT)),
    made("Stack", DESIGN, 1, use=on_x),
    made("TokenEmbedding", 11, 8, use=lambda one: one(PROMPT)),
    made("Transformer", DESIGN, 1, use=lambda one: one(X, MEMORY)),
    made("YarnScaling", 2.0, 16, use=lambda one: nn.Rotary(8, scaling=one).turned(*qkv()[:2], AT)),
    made("greedy", LOGITS),
    generation("generate"),
    generation("stream"),
    generation("beam", width=2),
    method("Block.forward", lambda: nn.Block(DESIGN, cross=True), X, memory=MEMORY),
    method("Block.attend", lambda: nn.Block(DESIGN, cross=True), X, memory=MEMORY),
    method("FeedForward.forward", lambda: nn.FeedForward(8), X),
    method("KeyValueCache.memory", filled, 0),
    method("KeyValueCache.positions", filled, 2),
    method("KeyValueCache.seen", filled, 2),
    method("KeyValueCache.check_whole", filled, 1),
    method("KeyValueCache.crop", filled, 2),
    method("KeyValueCache.reorder", filled, torch.tensor([0, 0])),
    method("LatentAttention.forward", latent, X, position=nn.Rotary(2)),
    method("LatentAttention.attend", latent, X),
    method("LayerCache.append", rows, *qkv()[:2]),
    method("LayerCache.crop", rows, 2),
    method("LayerCache.reorder", rows, torch.tensor([0, 0])),
    method("Learned.added", lambda: nn.Learned(10, 8), X, AT),
    method("MultiHeadAttention.forward", attention, X, MEMORY, MEMORY),
    method("MultiHeadAttention.attend", attention, X, MEMORY, MEMORY),
    method("Rotary.turned", lambda: nn.Rotary(8), *qkv()[:2], AT),
    method("Sample.probabilities", lambda: nn.Sample(0.5, 3), LOGITS),
    method("Sinusoidal.added", lambda: nn.Sinusoidal(8), X, AT),
    method("Sinusoidal.table", lambda: nn.Sinusoidal(8), AT),
    method("RMSNorm.forward", lambda: nn.RMSNorm(8), X),
    method("Stack.forward", lambda: nn.Stack(DESIGN, 1, cross=True), X, MEMORY),
    method("Stack.attend", lambda: nn.Stack(DESIGN, 1, cross=True), X, MEMORY),
    method("TokenEmbedding.forward", lambda: nn.TokenEmbedding(11, 8), PROMPT),
    method("TokenEmbedding.logits", lambda: nn.TokenEmbedding(11, 8), X),
    method("Transformer.forward", lambda: nn.Transformer(DESIGN, 1), X, MEMORY),
    *(
        method(f"{name}.speeds", lambda name=name, extra=extra: getattr(nn, name)(2.0, *extra), torch.ones(4), 1e4)  # type: ignore[misc]
        for name, extra in (("LinearScaling", ()), ("NTKScaling", ()), ("YarnScaling", (16,)), ("Llama3Scaling", (16,)))
    ),
]

LEFT_OUT = {
    "regard.nn.Beams": "a result, made by beam",
    "regard.nn.Position": "a base class",
    "regard.nn.Writer": "a protocol",
}
