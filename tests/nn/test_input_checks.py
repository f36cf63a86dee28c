"""Invalid sizes, options and tensors of layers, position encodings, caches and generation raise before any work."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.errors import ArgumentError, BudgetError
from regard.nn import (
    ALiBi,
    Block,
    BlockConfig,
    BlockStack,
    Decoder,
    Encoder,
    FeedForward,
    KeyValueCache,
    LatentAttention,
    LayerCache,
    LearnedPositionalEmbedding,
    LinearRopeScaling,
    Llama3RopeScaling,
    MultiHeadAttention,
    NTKRopeScaling,
    RMSNorm,
    RotaryEmbedding,
    Sampler,
    SinusoidalPositionalEmbedding,
    T5Bias,
    TokenEmbedding,
    Transformer,
    YarnRopeScaling,
    beam_search,
    generate,
    generate_stream,
    greedy,
)

CONFIG = BlockConfig(8, 2, ffn_dim=16)
X, MEMORY = torch.randn(2, 6, 8), torch.randn(2, 4, 8)
PROMPT = torch.tensor([[1, 2, 3]])
SIZE = "an integer from 1 to 2147483647"


class ConstantModel:
    """A model that always returns the same logits."""

    def __init__(self, logits: Any) -> None:
        self.logits = logits

    def next_token_logits(self, tokens: Tensor, cache: KeyValueCache) -> Any:
        return self.logits


MODEL = ConstantModel(torch.zeros(1, 5))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: MultiHeadAttention("x", 2), f"embed_dim must be {SIZE}; got 'x'"),
        (lambda: MultiHeadAttention(8, 2, num_kv_heads=-1), f"num_kv_heads must be {SIZE}; got -1"),
        (lambda: MultiHeadAttention(8, 2, vdim=0), f"vdim must be {SIZE}; got 0"),
        (
            lambda: MultiHeadAttention(8, 2, dropout=math.nan),
            "dropout must be a number at least 0 and less than 1; got",
        ),
        (lambda: MultiHeadAttention(8, 2, bias=1), "bias must be True or False; got 1"),
        (lambda: LatentAttention(8, 2, kv_lora_rank=0, rope_dim=2), f"kv_lora_rank must be {SIZE}; got 0"),
        (lambda: LatentAttention(8, 2, kv_lora_rank=4, rope_dim=2.0), f"rope_dim must be {SIZE}; got 2.0"),
        (lambda: BlockConfig(0, 2), f"embed_dim must be {SIZE}; got 0"),
        (lambda: BlockConfig(8, 2, ffn_dim=1.5), f"ffn_dim must be {SIZE}; got 1.5"),
        (lambda: BlockConfig(8, 2, eps=math.nan), "eps must be a finite number of at least 0; got nan"),
        (lambda: BlockConfig(8, 2, activation="x"), "activation must be one of 'relu', 'gelu', .* got 'x'"),
        (lambda: BlockConfig(8, 2, norm=None), "norm must be one of 'layer', 'rms'; got None"),
        (lambda: BlockConfig(8, 2, norm_first="x"), "norm_first must be True or False; got 'x'"),
        (
            lambda: BlockConfig(8, 2, attention_factory="x"),
            "attention_factory must be a function from a BlockConfig to a layer; got 'x'",
        ),
        (
            lambda: Block(BlockConfig(8, 2, attention_factory=lambda: None)),
            "from a BlockConfig to a layer; calling it failed: .*lambda",
        ),
        (
            lambda: Block(BlockConfig(8, 2, attention_factory=lambda _: 3)),
            "the result of attention_factory must be a torch.nn.Module; got 3",
        ),
        (lambda: Block(8), "block_config must be a BlockConfig; got 8"),
        (lambda: Encoder(CONFIG, -1), "num_layers must be an integer from 1 to 100000; got -1"),
        (lambda: Decoder(CONFIG, 10**9), "num_layers must be an integer from 1 to 100000; got 1000000000"),
        (lambda: BlockStack([CONFIG, None], 2), "block_config must be a BlockConfig or a sequence of them; got None"),
        (lambda: BlockStack([CONFIG, BlockConfig(4, 2)], 2), r"must have the same embed_dim; got \[8, 4\]"),
        (
            lambda: BlockStack(CONFIG, 1, position_encoding="x"),
            "position_encoding must be a PositionEncoding, such as .* got 'x'",
        ),
        (lambda: BlockStack(CONFIG, 1, mask="x"), "mask must be a mask, .* got str"),
        (lambda: Transformer(None, 1), "block_config must be a BlockConfig; got None"),
        (lambda: FeedForward(-8), f"embed_dim must be {SIZE}; got -8"),
        (lambda: FeedForward(8, ffn_dim=0), f"ffn_dim must be {SIZE}; got 0"),
        (lambda: RMSNorm(8, eps=-1.0), "eps must be a number of at least 0; got -1.0"),
        (lambda: TokenEmbedding(0, 8), f"vocab_size must be {SIZE}; got 0"),
        (lambda: TokenEmbedding(5, 8, scale_embedding=None), "scale_embedding must be True or False; got None"),
        (lambda: SinusoidalPositionalEmbedding(8, base=math.nan), "base must be a finite number above 1.*; got nan"),
        (lambda: LearnedPositionalEmbedding(-1, 8), f"max_len must be {SIZE}; got -1"),
        (lambda: LinearRopeScaling(math.nan), "factor must be a finite number above 0.*; got nan"),
        (lambda: NTKRopeScaling(0), "factor must be a finite number above 0.*; got 0"),
        (
            lambda: YarnRopeScaling(2.0, 16, beta_fast=1.0),
            "beta_fast must be larger than beta_slow; got beta_fast=1.0, beta_slow=1.0",
        ),
        (
            lambda: Llama3RopeScaling(2.0, 16, low_freq_factor=-1.0),
            "low_freq_factor must be a finite number above 0; got -1.0",
        ),
        (lambda: Llama3RopeScaling(2.0, 0), f"original_max_len must be {SIZE}; got 0"),
        (
            lambda: RotaryEmbedding(8, scaling=2.0),
            "scaling must be one of LinearRopeScaling, NTKRopeScaling, .* got 2.0",
        ),
        (lambda: ALiBi(10**9), "num_heads must be an integer from 1 to 65536; got 1000000000"),
        (lambda: T5Bias(2, max_distance=-1), f"max_distance must be {SIZE}; got -1"),
        (lambda: LayerCache(max_len="x"), f"max_len must be {SIZE}; got 'x'"),
        (lambda: LayerCache(length=-1), "length must be an integer from 0 to 2147483647; got -1"),
        (lambda: KeyValueCache(left_padding=[1]), r"left_padding must be a tensor of shape \(batch,\); got list of 1"),
        (lambda: Sampler(seed="x"), "seed must be an integer from 0 to 9223372036854775807; got 'x'"),
        (lambda: Sampler(temperature=None), "temperature must be a number above 0; got None"),
    ],
)
def test_invalid_constructor_arguments_raise(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
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
        (
            lambda: LearnedPositionalEmbedding(2**31 - 1, 2**20),
            r"weight of shape \(2147483647, 1048576\) would need 9.01e\+15 bytes",
        ),
    ],
)
def test_parameters_too_large_for_memory_raise(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(BudgetError, match=message):
        make()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: MultiHeadAttention(8, 2)(None), r"query must be a tensor of shape \(batch, n, 8\); got None"),
        (lambda: MultiHeadAttention(8, 2)(X[..., :7]), r"query must have shape \(batch, n, 8\); got \(2, 6, 7\)"),
        (lambda: MultiHeadAttention(8, 2)(X.long()), "query must hold floating point numbers; got torch.int64"),
        (lambda: MultiHeadAttention(8, 2)(X.double()), "dtype of the layer, torch.float32; got torch.float64"),
        (lambda: MultiHeadAttention(8, 2)(X, MEMORY[:1]), r"key must be .* batch=2 and n_k=4; got shape \(1, 4, 8\)"),
        (lambda: MultiHeadAttention(8, 2)(X, MEMORY, X), r"value must be .* n_k=4; got shape \(2, 6, 8\)"),
        (
            lambda: MultiHeadAttention(8, 2)(X, position_encoding="x"),
            "position_encoding must be a PositionEncoding, .* got 'x'",
        ),
        (lambda: MultiHeadAttention(8, 2)(X, position_ids=[0]), "position_ids must be a tensor; got list of 1"),
        (
            lambda: MultiHeadAttention(8, 2)(X, position_ids=torch.arange(5)),
            r"position_ids must have shape \(6,\) or \(2, 6\).* got \(5,\)",
        ),
        (lambda: MultiHeadAttention(8, 2)(X, cache={}), "cache must be a LayerCache.* got dict of 0"),
        (
            lambda: LatentAttention(8, 2, kv_lora_rank=4, rope_dim=2)(X[0]),
            r"x must have shape \(batch, n, 8\); got \(6, 8\)",
        ),
        (
            lambda: LatentAttention(8, 2, kv_lora_rank=4, rope_dim=2)(X, absorb="x"),
            "absorb must be True or False; got 'x'",
        ),
        (lambda: Block(CONFIG)(X[:, :, :4]), r"x must have shape \(batch, n, 8\); got \(2, 6, 4\)"),
        (lambda: Block(CONFIG, add_cross_attention=True)(X), "add_cross_attention=True needs a memory; got None"),
        (lambda: Block(CONFIG)(X, memory=MEMORY), "memory needs a block with add_cross_attention=True"),
        (
            lambda: Block(CONFIG, add_cross_attention=True)(X, memory="x"),
            r"memory must be a tensor of shape \(batch, n, 8\); got 'x'",
        ),
        (lambda: Encoder(CONFIG, 1)(X.double()), "dtype of the layer, torch.float32; got torch.float64"),
        (lambda: Decoder(CONFIG, 1)(X, cache={}), "cache must be a KeyValueCache or None; got dict of 0"),
        (lambda: Transformer(CONFIG, 1)(X, None), r"x must be a tensor of shape \(batch, n, 8\); got None"),
        (lambda: FeedForward(8)(X[..., :3]), r"x must have shape \(..., 8\); got \(2, 6, 3\)"),
        (lambda: RMSNorm(8)(X[..., :3]), r"x must have shape \(..., 8\); got \(2, 6, 3\)"),
        (lambda: TokenEmbedding(5, 8)(torch.tensor([1, 5])), "tokens must be from 0 to vocab_size - 1 = 4; got 1 to 5"),
        (lambda: TokenEmbedding(5, 8)(torch.tensor([-1])), "tokens must be from 0 to vocab_size - 1 = 4; got -1 to -1"),
        (lambda: TokenEmbedding(5, 8)(torch.tensor([1.0])), "tokens must hold integers; got torch.float32"),
        (lambda: TokenEmbedding(5, 8).logits(X[..., :3]), r"x must have shape \(..., 8\); got \(2, 6, 3\)"),
        (
            lambda: SinusoidalPositionalEmbedding(8).apply_to_embeddings(X, torch.arange(5)),
            r"position_ids must have shape \(6,\) or \(2, 6\).* got \(5,\)",
        ),
        (
            lambda: LearnedPositionalEmbedding(9, 8).apply_to_embeddings(X, torch.arange(6) - 1),
            "position_ids must be from 0 to 8; got -1 to 4",
        ),
        (
            lambda: RotaryEmbedding(4).apply_to_qk(X, X, torch.arange(6)),
            r"q must have shape \(batch, heads, n, head_dim\); got \(2, 6, 8",
        ),
        (
            lambda: LinearRopeScaling(2.0).scale_frequencies([1.0], 1e4),
            r"inv_freq must be a tensor of shape \(pairs,\); got list of 1",
        ),
    ],
)
def test_invalid_forward_arguments_raise(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


def _filled_cache() -> LayerCache:
    cache = LayerCache()
    cache.append(torch.zeros(2, 3, 4, 8), torch.zeros(2, 3, 4, 8))
    return cache


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: LayerCache().append(), "append needs at least one tensor; got none"),
        (lambda: LayerCache().append("x"), r"tensors must be a tensor of shape \(batch, heads, n, head_dim\); got 'x'"),
        (
            lambda: LayerCache().append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4)),
            r"\(1, 2, 3, 4\), \(1, 2, 5, 4",
        ),
        (lambda: _filled_cache().append(torch.zeros(2, 3, 1, 8)), "holds 2 tensors; got 1"),
        (
            lambda: _filled_cache().append(*2 * [torch.zeros(2, 3, 1, 7)]),
            r"shape \(batch, 3, n, 8\) .*; got \(2, 3, 1, 7\)",
        ),
        (
            lambda: _filled_cache().append(*2 * [torch.zeros(2, 3, 1, 8).double()]),
            "cache, torch.float32; got torch.float64",
        ),
        (lambda: _filled_cache().crop("x"), "length must be an integer; got 'x'"),
        (lambda: _filled_cache().reorder(torch.tensor([0, 2])), "order must be from 0 to 1; got 0 to 2"),
        (lambda: _filled_cache().reorder([0]), r"order must be a tensor of shape \(batch,\); got list of 1"),
        (lambda: KeyValueCache()["x"], "layer must be an integer from 0 to 100000; got 'x'"),
        (lambda: KeyValueCache().cross_attention_cache(-1), "layer must be an integer from 0 to 100000; got -1"),
        (lambda: KeyValueCache().position_ids(-1), "n must be an integer from 0 to 2147483647; got -1"),
        (lambda: KeyValueCache().position_ids(1, "x"), "device must be a torch device .*; got 'x'"),
        (lambda: KeyValueCache().padding_mask("x"), "n must be an integer from 0 to 2147483647; got 'x'"),
        (
            lambda: KeyValueCache().check_equal_lengths(10**9),
            "num_layers must be an integer from 0 to 100000; got 1000000000",
        ),
        (lambda: KeyValueCache().crop(None), "length must be an integer of at least 0; got None"),
    ],
)
def test_invalid_cache_arguments_raise(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: generate(None, PROMPT, max_new_tokens=3),
            r"model must have a method next_token_logits\(tokens, cache\); got None",
        ),
        (lambda: generate(MODEL, "x", max_new_tokens=3), "tokens must be a tensor; got 'x'"),
        (
            lambda: generate(MODEL, PROMPT.float(), max_new_tokens=3),
            "tokens must hold integers; got torch.float32",
        ),
        (
            lambda: generate(MODEL, PROMPT, max_new_tokens=-1),
            "max_new_tokens must be an integer from 0 to 16777216; got -1",
        ),
        (
            lambda: generate(MODEL, PROMPT, max_new_tokens=10**9),
            "max_new_tokens must be an integer from 0 to 16777216; got 1000000000",
        ),
        (
            lambda: generate(MODEL, PROMPT, max_new_tokens=3, sampler=3),
            r"sampler must be a function from logits .*; got 3",
        ),
        (
            lambda: generate(MODEL, PROMPT, max_new_tokens=3, sampler=lambda: 0),
            "tokens .batch,.; calling it failed: .*lambda",
        ),
        (
            lambda: generate(MODEL, PROMPT, max_new_tokens=3, sampler=lambda _: 0),
            r"result of sampler must be a tensor of shape \(1,",
        ),
        (
            lambda: generate(MODEL, PROMPT, max_new_tokens=3, eos_token_id="x"),
            "eos_token_id must be an integer from 0 .*; got 'x'",
        ),
        (
            lambda: generate(MODEL, PROMPT, max_new_tokens=3, prompt_lengths=[3]),
            "prompt_lengths must be a tensor; got list of 1",
        ),
        (
            lambda: generate(MODEL, PROMPT, max_new_tokens=3, cache="x"),
            "cache must be a KeyValueCache or None; got 'x'",
        ),
        (
            lambda: generate(ConstantModel(None), PROMPT, max_new_tokens=3),
            "the result of next_token_logits must be a tensor; got None",
        ),
        (
            lambda: generate(ConstantModel(torch.ones(2, 5)), PROMPT, max_new_tokens=3),
            r"must be \(1, vocab_size\); got shape \(2, 5\)",
        ),
        (
            lambda: beam_search(MODEL, PROMPT, max_new_tokens=3, num_beams=2**70),
            "num_beams must be an integer from 1 to 65536; got 118",
        ),
        (
            lambda: beam_search(MODEL, PROMPT, max_new_tokens=3, num_beams=2, length_penalty=math.nan),
            "length_penalty must be a finite number",
        ),
        (lambda: greedy(torch.zeros(1, 0)), r"logits must cover at least one token; got shape \(1, 0\)"),
        (lambda: Sampler()(torch.full((1, 3), math.nan)), "the largest logit of each row must be finite; got nan"),
        (lambda: Sampler()(torch.full((1, 3), -math.inf)), "the largest logit of each row must be finite; got -inf"),
        (lambda: Sampler()(torch.zeros(1, 1, 3)), r"logits must have 1 or 2 dimensions; got shape \(1, 1, 3\)"),
    ],
)
def test_invalid_generation_arguments_raise(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


def test_a_stream_checks_its_arguments_before_the_first_token() -> None:
    with pytest.raises(ArgumentError, match="max_new_tokens must be an integer from 0 to 16777216; got -1"):
        generate_stream(MODEL, PROMPT, max_new_tokens=-1)


@pytest.mark.parametrize(
    "position",
    [RotaryEmbedding(4), LearnedPositionalEmbedding(9, 8), ALiBi(2)],
    ids=lambda position: type(position).__name__,
)
def test_checks_do_not_break_the_graph(position: Any) -> None:
    torch.manual_seed(0)
    model = Encoder(CONFIG, 1, position_encoding=position)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for x in (X, torch.randn(3, 7, 8)):
        torch.testing.assert_close(compiled(x), model(x))
    with pytest.raises(Exception, match=r"x must have shape \(batch, n, 8\)"):
        compiled(X[..., :4])
