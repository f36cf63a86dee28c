"""Key-value caches: decoding in steps equals one forward pass, for every kind of cache and position encoding."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import mask
from regard.errors import ArgumentError
from regard.models.language import LanguageModel
from regard.models.translation import Translator
from regard.nn import (
    ALiBi,
    BlockConfig,
    Decoder,
    KeyValueCache,
    LatentAttention,
    LayerCache,
    LearnedPositionalEmbedding,
    LinearRopeScaling,
    PositionEncoding,
    RotaryEmbedding,
    SinusoidalPositionalEmbedding,
    T5Bias,
    YarnRopeScaling,
)

CLOSE = dict(rtol=1e-4, atol=2e-5)  # float32; a single query uses another kernel
N, WINDOW, VOCAB_SIZE = 37, 8, 50

POSITIONS: dict[str, Callable[[], PositionEncoding | None]] = {
    "none": lambda: None,
    "sinusoidal": lambda: SinusoidalPositionalEmbedding(32),
    "learned": lambda: LearnedPositionalEmbedding(64, 32),
    "rotary": lambda: RotaryEmbedding(8),
    "rotary interleaved": lambda: RotaryEmbedding(8, layout="interleaved"),
    "rotary linear": lambda: RotaryEmbedding(8, scaling=LinearRopeScaling(4.0)),
    "rotary yarn": lambda: RotaryEmbedding(8, scaling=YarnRopeScaling(4.0, original_max_len=16)),
    "alibi": lambda: ALiBi(4),
    "t5": lambda: T5Bias(4, bidirectional=False),
}
CACHES: dict[str, Callable[[], KeyValueCache]] = {
    "growing": KeyValueCache,
    "fixed": lambda: KeyValueCache(max_len=N),
    "sliding": lambda: KeyValueCache(sliding_window=WINDOW),
}
CONFIGS: dict[str, dict[str, Any]] = {
    "mha": {},
    "gqa": {"num_kv_heads": 2},
    "mqa": {"num_kv_heads": 1},
    "latent": {
        "attention_factory": lambda config: LatentAttention(
            config.embed_dim, config.num_heads, kv_lora_rank=12, rope_dim=8, q_lora_rank=16
        )
    },
}


def _model(position: PositionEncoding | None, cache: KeyValueCache, **options: Any) -> LanguageModel:
    torch.manual_seed(0)
    config = BlockConfig(32, num_heads=4, sliding_window=cache.sliding_window, **options)
    return LanguageModel(VOCAB_SIZE, num_layers=3, block_config=config, position_encoding=position).eval()


def _tokens(batch: int = 2, n: int = N) -> Tensor:
    return torch.randint(VOCAB_SIZE, (batch, n), generator=torch.Generator().manual_seed(3))


def _decode_in_steps(model: LanguageModel, tokens: Tensor, cache: KeyValueCache, sizes: list[int]) -> Tensor:
    """Return the logits of all tokens, computed in steps of `sizes` tokens."""
    with torch.no_grad():
        return torch.cat([model(step, cache=cache) for step in tokens.split(sizes, dim=1)], dim=1)


# latent attention does not support score modifiers
POSITIONS_AND_CONFIGS = [
    (position, config)
    for position in POSITIONS
    for config in CONFIGS
    if config != "latent" or position not in ("alibi", "t5")
]


@pytest.mark.parametrize("position, config", POSITIONS_AND_CONFIGS)
@pytest.mark.parametrize("kind", CACHES)
def test_decoding_token_by_token_equals_one_forward_pass(kind: str, position: str, config: str) -> None:
    cache = CACHES[kind]()
    model, tokens = _model(POSITIONS[position](), cache, **CONFIGS[config]), _tokens()
    expected = model(tokens).detach()
    torch.testing.assert_close(_decode_in_steps(model, tokens, cache, [5, *[1] * (N - 5)]), expected, **CLOSE)
    assert cache.length == N


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("kind", CACHES)
def test_decoding_in_chunks_equals_one_forward_pass(kind: str, position: str) -> None:
    cache = CACHES[kind]()
    model, tokens = _model(POSITIONS[position](), cache, num_kv_heads=2), _tokens()
    logits = _decode_in_steps(model, tokens, cache, [1, 12, 3, 1, 20])
    torch.testing.assert_close(logits, model(tokens).detach(), **CLOSE)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("kind", CACHES)
def test_left_padded_prompts_equal_single_prompts(kind: str, position: str) -> None:
    prompt_len, lengths = 12, torch.tensor([12, 7, 3])
    tokens = _tokens(batch=3)
    cache = CACHES[kind]()
    cache.left_padding = prompt_len - lengths
    model = _model(POSITIONS[position](), cache)
    logits = _decode_in_steps(model, tokens, cache, [prompt_len, *[1] * (N - prompt_len)])
    for b, length in enumerate(lengths.tolist()):
        expected = model(tokens[b : b + 1, prompt_len - length :]).detach()
        torch.testing.assert_close(logits[b : b + 1, prompt_len - length :], expected, **CLOSE)


def test_layers_with_and_without_a_window_share_a_cache() -> None:
    torch.manual_seed(0)
    configs = (
        BlockConfig(32, num_heads=4, sliding_window=5),
        BlockConfig(32, num_heads=4, has_position_encoding=False),
    )
    model = LanguageModel(VOCAB_SIZE, num_layers=4, block_config=configs, position_encoding=RotaryEmbedding(8)).eval()
    tokens = _tokens()
    logits = _decode_in_steps(model, tokens, KeyValueCache(), [9, *[1] * (N - 9)])
    torch.testing.assert_close(logits, model(tokens).detach(), **CLOSE)


def test_a_cache_window_smaller_than_a_layers_window_raises() -> None:
    configs = (BlockConfig(32, num_heads=4, sliding_window=5), BlockConfig(32, num_heads=4))
    model, tokens = (
        LanguageModel(VOCAB_SIZE, num_layers=2, block_config=configs, position_encoding=None).eval(),
        _tokens(),
    )
    with pytest.raises(
        ArgumentError, match=r"got sliding_window=8, while layer 1 attends to all tokens\. Use KeyValueCache\(\)"
    ):
        model(tokens, cache=KeyValueCache(sliding_window=8))
    with pytest.raises(ArgumentError, match=r"got sliding_window=4, while layer 0 attends to a window of 5"):
        model(tokens, cache=KeyValueCache(sliding_window=4))
    cache, window = KeyValueCache(sliding_window=8), mask.sliding_window(8)
    with torch.no_grad():
        logits = [model(step, mask=window, cache=cache) for step in tokens.split([9, *[1] * (N - 9)], 1)]
        torch.testing.assert_close(torch.cat(logits, 1), model(tokens, mask=window), **CLOSE)
        decoder = Decoder(BlockConfig(32, num_heads=4), num_layers=1, mask=window)
        assert decoder(torch.randn(1, 1, 32), cache=KeyValueCache(sliding_window=8)).shape == (1, 1, 32)


def test_keys_and_values_of_a_memory_are_cached() -> None:
    torch.manual_seed(0)
    model = Translator(
        (30, 20),
        num_layers=2,
        block_config=BlockConfig(32, num_heads=4),
        position_encodings=(SinusoidalPositionalEmbedding(32), RotaryEmbedding(8)),
    ).eval()
    source, target = _tokens(2, 9) % 30, _tokens(2, 8) % 20
    encoded = model.encode_source(source, torch.tensor([9, 4]))
    expected = encoded.logits(target).detach()
    cache = KeyValueCache()
    with torch.no_grad():
        logits = torch.cat([encoded.logits(step, cache) for step in target.split(1, dim=1)], dim=1)
        torch.testing.assert_close(logits, expected, **CLOSE)
        encoded.memory = torch.full_like(encoded.memory, torch.nan)  # its keys and values are in the cache
        assert bool(encoded.logits(target[:, :1], cache).isfinite().all())


def test_a_sliding_cache_holds_the_window_and_no_more() -> None:
    cache = LayerCache(sliding_window=4)
    rows = torch.arange(20.0).view(1, 1, 20, 1)
    for position in range(20):
        (visible,) = cache.append(rows[:, :, position : position + 1])
        assert visible.flatten().tolist() == list(range(max(0, position - 3), position + 1))
        assert visible.untyped_storage().nbytes() <= 8 * 4
    assert (cache.length, cache.num_cached_tokens) == (20, 3)


def test_one_append_may_exceed_the_window() -> None:
    cache = LayerCache(sliding_window=4)
    rows = torch.arange(30.0).view(1, 1, 30, 1)
    cache.append(rows[:, :, :2])
    (visible,) = cache.append(rows[:, :, 2:25])
    assert visible.flatten().tolist() == list(range(25))
    (visible,) = cache.append(rows[:, :, 25:27])
    assert visible.flatten().tolist() == [22, 23, 24, 25, 26]


def test_a_growing_cache_rarely_reallocates() -> None:
    cache, num_reallocations, last_pointer = LayerCache(), 0, None
    for _ in range(1000):
        (visible,) = cache.append(torch.zeros(1, 1, 1, 4))
        num_reallocations += visible.data_ptr() != last_pointer
        last_pointer = visible.data_ptr()
    assert num_reallocations <= 6


def test_decoding_continues_after_crop() -> None:
    cache = KeyValueCache()
    model, tokens = _model(RotaryEmbedding(8), cache), _tokens()
    _decode_in_steps(model, tokens, cache, [N])
    cache.crop(10)
    with torch.no_grad():
        logits = model(tokens[:, 10:], cache=cache)
    torch.testing.assert_close(logits, model(tokens)[:, 10:].detach(), **CLOSE)


def test_decoding_continues_after_reorder() -> None:
    cache = KeyValueCache(left_padding=torch.tensor([0, 2, 4]))
    model, tokens, order = _model(RotaryEmbedding(8), cache), _tokens(3, 12), torch.tensor([2, 0, 0])
    with torch.no_grad():
        model(tokens[:, :11], cache=cache)
        cache.reorder(order)
        logits = model(tokens[order][:, 11:], cache=cache)
    for b, source in enumerate(order.tolist()):
        expected = model(tokens[source : source + 1, 2 * source :]).detach()
        torch.testing.assert_close(logits[b : b + 1], expected[:, -1:], **CLOSE)


def test_appending_to_a_full_cache_raises() -> None:
    cache = LayerCache(max_len=8)
    cache.append(torch.zeros(1, 1, 6, 2))
    with pytest.raises(ArgumentError, match="a cache with max_len=8 holds at most 8 tokens; got 6 and 3 more"):
        cache.append(torch.zeros(1, 1, 3, 2))


def test_appending_tensors_with_gradients_raises() -> None:
    with pytest.raises(ArgumentError, match=r"a cache holds tensors without gradients.*torch\.no_grad"):
        LayerCache().append(torch.zeros(1, 1, 6, 2, requires_grad=True))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_len": 0}, "max_len must be an integer from 1 to 2147483647; got 0"),
        ({"sliding_window": 0}, "sliding_window must be an integer from 1 to 2147483647; got 0"),
        (
            {"max_len": 4, "sliding_window": 4},
            "a cache takes max_len or sliding_window, not both; got max_len=4, sliding_window=4",
        ),
    ],
)
def test_invalid_cache_sizes_raise(options: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        KeyValueCache(**options)


def test_cropping_to_overwritten_tokens_raises() -> None:
    cache = LayerCache(sliding_window=4)
    for _ in range(10):
        cache.append(torch.zeros(1, 1, 1, 2))
    with pytest.raises(ArgumentError, match=r"length must be from 8 to 10, .* got 7"):
        cache.crop(7)


@pytest.mark.parametrize("sizes", [[8], [1] * 8, [3, 1, 4, 1, 1], [12, 5, 1, 1], [1] * 23])
def test_decoding_continues_after_cropping_a_sliding_cache(sizes: list[int]) -> None:
    model = _model(RotaryEmbedding(8), KeyValueCache(sliding_window=4))
    tokens = _tokens(n=sum(sizes) + 2)
    expected = model(tokens).detach()
    num_cropped = 0
    for length in range(sum(sizes) + 1):
        cache = KeyValueCache(sliding_window=4)
        _decode_in_steps(model, tokens[:, : sum(sizes)], cache, sizes)
        try:
            cache.crop(length)
        except ArgumentError:
            continue
        num_cropped += 1
        logits = _decode_in_steps(model, tokens[:, length : length + 2], cache, [1, 1])
        torch.testing.assert_close(logits, expected[:, length : length + 2], **CLOSE)
    assert num_cropped >= 2


def test_a_cache_after_an_interrupted_call_raises_until_cropped() -> None:
    cache = KeyValueCache()
    model, tokens = _model(RotaryEmbedding(8), cache), _tokens()
    with torch.no_grad():
        model(tokens[:, :5], cache=cache)
        with pytest.raises(ArgumentError, match="mask"):
            model(tokens[:, 5:6], cache=cache, mask=torch.ones(3, 3, dtype=torch.bool))
        with pytest.raises(
            ArgumentError, match=r"same number of tokens; got 6 and 5, as after an interrupted call. Use crop\(5\)"
        ):
            model(tokens[:, 5:6], cache=cache)
        cache.crop(5)
        torch.testing.assert_close(model(tokens[:, 5:6], cache=cache), model(tokens[:, :6])[:, -1:], **CLOSE)


def test_another_batch_size_than_that_of_the_cache_raises() -> None:
    cache = KeyValueCache()
    model, tokens = _model(None, cache), _tokens(batch=3)
    with torch.no_grad():
        model(tokens[:2, :5], cache=cache)
        for batch in (1, 3):
            with pytest.raises(ArgumentError, match=rf"must have the batch size of the cache, 2; got {batch}"):
                model(tokens[:batch, 5:6], cache=cache)


def test_cropping_to_zero_clears_the_memory() -> None:
    torch.manual_seed(0)
    model = Translator(
        (30, 20), num_layers=1, block_config=BlockConfig(32, num_heads=4), position_encodings=(None, None)
    ).eval()
    source, other_source = _tokens(1, 5) % 30, (_tokens(1, 7) + 3) % 30
    cache, target = KeyValueCache(), torch.tensor([[1]])
    with torch.no_grad():
        model.encode_source(source).logits(target, cache)
        cache.crop(0)
        logits = model.encode_source(other_source).logits(target, cache)
        torch.testing.assert_close(logits, model(other_source, target), **CLOSE)


@pytest.mark.parametrize("kind", CACHES)
def test_a_cache_filled_in_inference_mode_works_outside_of_it(kind: str) -> None:
    cache = CACHES[kind]()
    model, tokens = _model(RotaryEmbedding(8), cache), _tokens()
    with torch.inference_mode():
        model(tokens[:, :5], cache=cache)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens[:, 5:6], cache=cache), model(tokens[:, :6])[:, -1:], **CLOSE)


def test_absorbed_and_expanded_latent_attention_agree_with_gradients() -> None:
    torch.manual_seed(0)
    layer = LatentAttention(32, 4, kv_lora_rank=12, rope_dim=8, q_lora_rank=16, v_head_dim=6).double()
    x = torch.randn(2, 9, 32, dtype=torch.float64, requires_grad=True)
    expanded, absorbed = (
        layer(x, mask=mask.causal(), position_encoding=RotaryEmbedding(8), absorb=absorb) for absorb in (False, True)
    )
    torch.testing.assert_close(expanded, absorbed)
    inputs = [x, *layer.parameters()]
    weight = torch.randn_like(expanded).detach()
    gradients = [torch.autograd.grad((output * weight).sum(), inputs) for output in (expanded, absorbed)]
    for expanded_gradient, absorbed_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(expanded_gradient, absorbed_gradient)


def test_a_latent_cache_holds_only_latent_vectors() -> None:
    torch.manual_seed(0)
    cache = KeyValueCache(max_len=100)
    _decode_in_steps(_model(RotaryEmbedding(8), cache, **CONFIGS["latent"]), _tokens(1), cache, [N])
    assert cache.nbytes == 3 * 100 * (12 + 8) * 4
