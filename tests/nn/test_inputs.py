"""Wrong sizes, options and tensors of layers, positions, caches and generation: refused before any work."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.errors import BudgetError, SpecError
from regard.nn import (
    ALiBi,
    Block,
    Decoder,
    Design,
    Encoder,
    FeedForward,
    KeyValueCache,
    LatentAttention,
    LayerCache,
    Learned,
    LinearScaling,
    Llama3Scaling,
    MultiHeadAttention,
    NTKScaling,
    RelativeBias,
    RMSNorm,
    Rotary,
    Sample,
    Sinusoidal,
    Stack,
    TokenEmbedding,
    Transformer,
    YarnScaling,
    beam,
    generate,
    greedy,
    stream,
)

DESIGN = Design(8, 2, hidden=16)
X, MEMORY = torch.randn(2, 6, 8), torch.randn(2, 4, 8)
PROMPT = torch.tensor([[1, 2, 3]])
SIZE = "a whole number from 1 to 2147483647"


class Constant:
    """A writer that always gives the same logits."""

    def __init__(self, logits: Any) -> None:
        self.logits = logits

    def following(self, tokens: Tensor, cache: KeyValueCache) -> Any:
        return self.logits


WRITER = Constant(torch.zeros(1, 5))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: MultiHeadAttention("x", 2), f"width must be {SIZE}; got 'x'"),
        (lambda: MultiHeadAttention(8, 2, key_heads=-1), f"key_heads must be {SIZE}; got -1"),
        (lambda: MultiHeadAttention(8, 2, value_width=0), f"value_width must be {SIZE}; got 0"),
        (
            lambda: MultiHeadAttention(8, 2, dropout=math.nan),
            "dropout must be a number at least 0 and less than 1; got",
        ),
        (lambda: MultiHeadAttention(8, 2, bias=1), "bias must be True or False; got 1"),
        (lambda: LatentAttention(8, 2, latent=0, turning=2), f"latent must be {SIZE}; got 0"),
        (lambda: LatentAttention(8, 2, latent=4, turning=2.0), f"turning must be {SIZE}; got 2.0"),
        (lambda: Design(0, 2), f"width must be {SIZE}; got 0"),
        (lambda: Design(8, 2, hidden=1.5), f"hidden must be {SIZE}; got 1.5"),
        (lambda: Design(8, 2, eps=math.nan), "eps must be a finite number of at least 0; got nan"),
        (lambda: Design(8, 2, activation="x"), "activation must be one of 'relu', 'gelu', .* got 'x'"),
        (lambda: Design(8, 2, norm=None), "norm must be one of 'layer', 'rms'; got None"),
        (lambda: Design(8, 2, norm_first="x"), "norm_first must be True or False; got 'x'"),
        (lambda: Design(8, 2, attention="x"), "attention must be a function from a Design to a layer; got 'x'"),
        (lambda: Block(Design(8, 2, attention=lambda: None)), "from a Design to a layer; calling it failed: .*lambda"),
        (
            lambda: Block(Design(8, 2, attention=lambda _: 3)),
            "layer that attention makes must be a torch.nn.Module; got 3",
        ),
        (lambda: Block(8), "design must be a Design; got 8"),
        (lambda: Encoder(DESIGN, -1), "layers must be a whole number from 1 to 100000; got -1"),
        (lambda: Decoder(DESIGN, 10**9), "layers must be a whole number from 1 to 100000; got 1000000000"),
        (lambda: Stack([DESIGN, None], 2), "design must be a Design or a sequence of designs; got None"),
        (lambda: Stack([DESIGN, Design(4, 2)], 2), r"must have the same width; got \[8, 4\]"),
        (lambda: Stack(DESIGN, 1, position="x"), "position must be a position, such as .* got 'x'"),
        (lambda: Stack(DESIGN, 1, mask="x"), "mask must be a mask, .* got str"),
        (lambda: Transformer(None, 1), "design must be a Design; got None"),
        (lambda: FeedForward(-8), f"width must be {SIZE}; got -8"),
        (lambda: FeedForward(8, hidden=0), f"hidden must be {SIZE}; got 0"),
        (lambda: RMSNorm(8, eps=-1.0), "eps must be a number of at least 0; got -1.0"),
        (lambda: TokenEmbedding(0, 8), f"vocabulary must be {SIZE}; got 0"),
        (lambda: TokenEmbedding(5, 8, scaled=None), "scaled must be True or False; got None"),
        (lambda: Sinusoidal(8, base=math.nan), "base must be a finite number above 1.*; got nan"),
        (lambda: Learned(-1, 8), f"longest must be {SIZE}; got -1"),
        (lambda: LinearScaling(math.nan), "factor must be a finite number above 0.*; got nan"),
        (lambda: NTKScaling(0), "factor must be a finite number above 0.*; got 0"),
        (lambda: YarnScaling(2.0, 16, fast=1.0), "fast must be larger than slow; got fast=1.0, slow=1.0"),
        (lambda: Llama3Scaling(2.0, 16, slow=-1.0), "slow must be a finite number above 0; got -1.0"),
        (lambda: Llama3Scaling(2.0, 0), f"longest must be {SIZE}; got 0"),
        (lambda: Rotary(8, scaling=2.0), "scaling must be LinearScaling, NTKScaling, .* got 2.0"),
        (lambda: ALiBi(10**9), "heads must be a whole number from 1 to 65536; got 1000000000"),
        (lambda: RelativeBias(2, max_distance=-1), f"max_distance must be {SIZE}; got -1"),
        (lambda: LayerCache(longest="x"), f"longest must be {SIZE}; got 'x'"),
        (lambda: LayerCache(length=-1), "length must be a whole number from 0 to 2147483647; got -1"),
        (lambda: KeyValueCache(padding=[1]), r"padding must be a tensor of shape \(batch,\); got list of 1"),
        (lambda: Sample(seed="x"), "seed must be a whole number from 0 to 9223372036854775807; got 'x'"),
        (lambda: Sample(temperature=None), "temperature must be a number above 0; got None"),
    ],
)
def test_wrong_sizes_and_options_are_refused_by_the_constructor(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: MultiHeadAttention(10**9, 1),
            r"in_proj_weight of shape \(3000000000, 1000000000\) would need 1.2e\+19",
        ),
        (lambda: FeedForward(10**9), r"linear1.weight of shape \(4000000000, 1000000000\) would need 1.6e\+19 bytes"),
        (lambda: TokenEmbedding(2**31 - 1, 2**20), r"weight of shape \(2147483647, 1048576\) would need 9.01e\+15"),
        (lambda: Learned(2**31 - 1, 2**20), r"weight of shape \(2147483647, 1048576\) would need 9.01e\+15 bytes"),
    ],
)
def test_parameters_that_no_machine_can_hold_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(BudgetError, match=message):
        make()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: MultiHeadAttention(8, 2)(None), r"x must be a tensor of shape \(batch, n, 8\); got None"),
        (lambda: MultiHeadAttention(8, 2)(X[..., :7]), r"x must have shape \(batch, n, 8\); got \(2, 6, 7\)"),
        (lambda: MultiHeadAttention(8, 2)(X.long()), "x must hold floating point numbers; got torch.int64"),
        (lambda: MultiHeadAttention(8, 2)(X.double()), "dtype of the layer, torch.float32; got torch.float64"),
        (lambda: MultiHeadAttention(8, 2)(X, MEMORY[:1]), r"keys must be .* batch=2 and n_k=4; got shape \(1, 4, 8\)"),
        (lambda: MultiHeadAttention(8, 2)(X, MEMORY, X), r"values must be .* n_k=4; got shape \(2, 6, 8\)"),
        (lambda: MultiHeadAttention(8, 2)(X, position="x"), "position must be a position, .* got 'x'"),
        (lambda: MultiHeadAttention(8, 2)(X, at=[0]), "at must be a tensor; got list of 1"),
        (
            lambda: MultiHeadAttention(8, 2)(X, at=torch.arange(5)),
            r"at must have shape \(6,\) or \(2, 6\).* got \(5,\)",
        ),
        (lambda: MultiHeadAttention(8, 2)(X, cache={}), "cache must be a LayerCache.* got dict of 0"),
        (lambda: LatentAttention(8, 2, latent=4, turning=2)(X[0]), r"x must have shape \(batch, n, 8\); got \(6, 8\)"),
        (
            lambda: LatentAttention(8, 2, latent=4, turning=2)(X, absorbed="x"),
            "absorbed must be True or False; got 'x'",
        ),
        (lambda: Block(DESIGN)(X[:, :, :4]), r"x must have shape \(batch, n, 8\); got \(2, 6, 4\)"),
        (lambda: Block(DESIGN, cross=True)(X), "cross=True attends to a memory; got none"),
        (lambda: Block(DESIGN)(X, memory=MEMORY), "memory is for blocks with cross=True"),
        (
            lambda: Block(DESIGN, cross=True)(X, memory="x"),
            r"memory must be a tensor of shape \(batch, n, 8\); got 'x'",
        ),
        (lambda: Encoder(DESIGN, 1)(X.double()), "dtype of the layer, torch.float32; got torch.float64"),
        (lambda: Decoder(DESIGN, 1)(X, cache={}), "cache must be a KeyValueCache or None; got dict of 0"),
        (lambda: Transformer(DESIGN, 1)(X, None), r"x must be a tensor of shape \(batch, n, 8\); got None"),
        (lambda: FeedForward(8)(X[..., :3]), r"x must have shape \(..., 8\); got \(2, 6, 3\)"),
        (lambda: RMSNorm(8)(X[..., :3]), r"x must have shape \(..., 8\); got \(2, 6, 3\)"),
        (lambda: TokenEmbedding(5, 8)(torch.tensor([1, 5])), "tokens must be from 0 to 4, the vocabulary; got 1 to 5"),
        (lambda: TokenEmbedding(5, 8)(torch.tensor([-1])), "tokens must be from 0 to 4, the vocabulary; got -1 to -1"),
        (lambda: TokenEmbedding(5, 8)(torch.tensor([1.0])), "tokens must hold whole numbers; got torch.float32"),
        (lambda: TokenEmbedding(5, 8).logits(X[..., :3]), r"x must have shape \(..., 8\); got \(2, 6, 3\)"),
        (lambda: Sinusoidal(8).added(X, torch.arange(5)), r"at must have shape \(6,\) or \(2, 6\).* got \(5,\)"),
        (lambda: Learned(9, 8).added(X, torch.arange(6) - 1), "learned positions begin at 0; got a token at -1"),
        (
            lambda: Rotary(4).turned(X, X, torch.arange(6)),
            r"q must have shape \(batch, heads, n, width\); got \(2, 6, 8",
        ),
        (lambda: LinearScaling(2.0).speeds([1.0], 1e4), r"speed must be a tensor of shape \(pairs,\); got list of 1"),
    ],
)
def test_wrong_tensors_and_options_are_refused_by_the_call(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()


def _filled() -> LayerCache:
    cache = LayerCache()
    cache.append(torch.zeros(2, 3, 4, 8), torch.zeros(2, 3, 4, 8))
    return cache


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: LayerCache().append(), "needs rows to append; got none"),
        (lambda: LayerCache().append("x"), r"rows must be a tensor of shape \(batch, heads, n, width\); got 'x'"),
        (
            lambda: LayerCache().append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4)),
            r"\(1, 2, 3, 4\), \(1, 2, 5, 4",
        ),
        (lambda: _filled().append(torch.zeros(2, 3, 1, 8)), "holds 2 kinds of rows a token; got 1"),
        (lambda: _filled().append(*2 * [torch.zeros(2, 3, 1, 7)]), r"shape \(batch, 3, n, 8\) .*; got \(2, 3, 1, 7\)"),
        (lambda: _filled().append(*2 * [torch.zeros(2, 3, 1, 8).double()]), "cache, torch.float32; got torch.float64"),
        (lambda: _filled().crop("x"), "length must be a whole number; got 'x'"),
        (lambda: _filled().reorder(torch.tensor([0, 2])), "order must hold numbers from 0 to 1; got 0 to 2"),
        (lambda: _filled().reorder([0]), r"order must be a tensor of shape \(batch,\); got list of 1"),
        (lambda: KeyValueCache()["x"], "layer must be a whole number from 0 to 100000; got 'x'"),
        (lambda: KeyValueCache().memory(-1), "layer must be a whole number from 0 to 100000; got -1"),
        (lambda: KeyValueCache().positions(-1), "n must be a whole number from 0 to 2147483647; got -1"),
        (lambda: KeyValueCache().positions(1, "x"), "device must be a device of torch, .* got 'x'"),
        (lambda: KeyValueCache().seen("x"), "n must be a whole number from 0 to 2147483647; got 'x'"),
        (lambda: KeyValueCache().check_whole(10**9), "layers must be a whole number from 0 to 100000; got 1000000000"),
        (lambda: KeyValueCache().crop(None), "length must be a whole number of at least 0; got None"),
    ],
)
def test_wrong_calls_of_caches_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: generate(None, PROMPT, most=3), r"writer must have a method following\(tokens, cache\); got None"),
        (lambda: generate(WRITER, "x", most=3), "tokens must be a tensor; got 'x'"),
        (lambda: generate(WRITER, PROMPT.float(), most=3), "tokens must hold whole numbers; got torch.float32"),
        (lambda: generate(WRITER, PROMPT, most=-1), "most must be a whole number from 0 to 16777216; got -1"),
        (
            lambda: generate(WRITER, PROMPT, most=10**9),
            "most must be a whole number from 0 to 16777216; got 1000000000",
        ),
        (lambda: generate(WRITER, PROMPT, most=3, choose=3), r"choose must be a function from logits .*; got 3"),
        (lambda: generate(WRITER, PROMPT, most=3, choose=lambda: 0), "tokens .batch,.; calling it failed: .*lambda"),
        (
            lambda: generate(WRITER, PROMPT, most=3, choose=lambda _: 0),
            r"result of choose must be a tensor of shape \(1,",
        ),
        (lambda: generate(WRITER, PROMPT, most=3, stop="x"), "stop must be a whole number from 0 .*; got 'x'"),
        (lambda: generate(WRITER, PROMPT, most=3, lengths=[3]), "lengths must be a tensor; got list of 1"),
        (lambda: generate(WRITER, PROMPT, most=3, cache="x"), "cache must be a KeyValueCache or None; got 'x'"),
        (lambda: generate(Constant(None), PROMPT, most=3), "the result of following must be a tensor; got None"),
        (
            lambda: generate(Constant(torch.ones(2, 5)), PROMPT, most=3),
            r"must be \(1, vocabulary\); got shape \(2, 5\)",
        ),
        (lambda: beam(WRITER, PROMPT, most=3, width=2**70), "width must be a whole number from 1 to 65536; got 118"),
        (lambda: beam(WRITER, PROMPT, most=3, width=2, length_power=math.nan), "length_power must be a finite number"),
        (lambda: greedy(torch.zeros(1, 0)), r"logits must be of at least one token; got shape \(1, 0\)"),
        (lambda: Sample()(torch.full((1, 3), math.nan)), "the largest logit of each row must be finite; got nan"),
        (lambda: Sample()(torch.full((1, 3), -math.inf)), "the largest logit of each row must be finite; got -inf"),
        (lambda: Sample()(torch.zeros(1, 1, 3)), r"logits must have 1 or 2 dimensions; got shape \(1, 1, 3\)"),
    ],
)
def test_wrong_calls_of_generation_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()


def test_a_stream_refuses_its_arguments_before_the_first_token() -> None:
    with pytest.raises(SpecError, match="most must be a whole number from 0 to 16777216; got -1"):
        stream(WRITER, PROMPT, most=-1)


@pytest.mark.parametrize("position", [Rotary(4), Learned(9, 8), ALiBi(2)], ids=lambda position: type(position).__name__)
def test_checks_stay_inside_one_graph(position: Any) -> None:
    torch.manual_seed(0)
    model = Encoder(DESIGN, 1, position=position)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for x in (X, torch.randn(3, 7, 8)):
        torch.testing.assert_close(compiled(x), model(x))
    with pytest.raises(Exception, match=r"x must have shape \(batch, n, 8\)"):
        compiled(X[..., :4])
