"""Caches: what is generated token by token is what the whole text gives at once, for every cache and every position."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import mask
from regard.errors import SpecError
from regard.models.language import LanguageModel
from regard.models.translation import Translator
from regard.nn import (
    ALiBi,
    Decoder,
    Design,
    KeyValueCache,
    LatentAttention,
    LayerCache,
    Learned,
    LinearScaling,
    Position,
    RelativeBias,
    Rotary,
    Sinusoidal,
    YarnScaling,
)

CLOSE = dict(rtol=1e-4, atol=2e-5)  # float32; one query takes another kernel than many
N, WINDOW, VOCABULARY = 37, 8, 50

POSITIONS: dict[str, Callable[[], Position | None]] = {
    "none": lambda: None,
    "sinusoidal": lambda: Sinusoidal(32),
    "learned": lambda: Learned(64, 32),
    "rotary": lambda: Rotary(8),
    "rotary interleaved": lambda: Rotary(8, layout="interleaved"),
    "rotary stretched": lambda: Rotary(8, scaling=LinearScaling(4.0)),
    "rotary yarn": lambda: Rotary(8, scaling=YarnScaling(4.0, longest=16)),
    "alibi": lambda: ALiBi(4),
    "t5": lambda: RelativeBias(4, bidirectional=False),
}
CACHES: dict[str, Callable[[], KeyValueCache]] = {
    "growing": KeyValueCache,
    "fixed": lambda: KeyValueCache(longest=N),
    "sliding": lambda: KeyValueCache(window=WINDOW),
}
DESIGNS: dict[str, dict[str, Any]] = {
    "heads": {},
    "grouped": {"key_heads": 2},
    "one key head": {"key_heads": 1},
    "latent": {"attention": lambda d: LatentAttention(d.width, d.heads, latent=12, turning=8, query_latent=16)},
}


def _model(position: Position | None, cache: KeyValueCache, **options: Any) -> LanguageModel:
    torch.manual_seed(0)
    design = Design(32, heads=4, window=cache.window, **options)
    return LanguageModel(VOCABULARY, layers=3, design=design, position=position).eval()


def _tokens(batch: int = 2, n: int = N) -> Tensor:
    return torch.randint(VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(3))


def _in_parts(model: LanguageModel, tokens: Tensor, cache: KeyValueCache, sizes: list[int]) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(part, cache=cache) for part in tokens.split(sizes, dim=1)], dim=1)


BOTH = [(p, d) for p in POSITIONS for d in DESIGNS if d != "latent" or p not in ("alibi", "t5")]  # see test_latent.py


@pytest.mark.parametrize("position, design", BOTH)
@pytest.mark.parametrize("kind", CACHES)
def test_token_by_token_is_all_at_once(kind: str, position: str, design: str) -> None:
    cache, where = CACHES[kind](), POSITIONS[position]()
    model, tokens = _model(where, cache, **DESIGNS[design]), _tokens()
    whole = model(tokens).detach()
    torch.testing.assert_close(_in_parts(model, tokens, cache, [5, *[1] * (N - 5)]), whole, **CLOSE)
    assert cache.length == N


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("kind", CACHES)
def test_several_tokens_at_a_time_are_all_at_once(kind: str, position: str) -> None:
    cache = CACHES[kind]()
    model, tokens = _model(POSITIONS[position](), cache, key_heads=2), _tokens()
    found = _in_parts(model, tokens, cache, [1, 12, 3, 1, 20])
    torch.testing.assert_close(found, model(tokens).detach(), **CLOSE)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("kind", CACHES)
def test_prompts_padded_on_the_left_are_prompts_alone(kind: str, position: str) -> None:
    prompt, lengths = 12, torch.tensor([12, 7, 3])
    tokens = _tokens(batch=3)
    cache = CACHES[kind]()
    cache.padding = prompt - lengths
    model = _model(POSITIONS[position](), cache)
    found = _in_parts(model, tokens, cache, [prompt, *[1] * (N - prompt)])
    for b, length in enumerate(lengths.tolist()):
        alone = model(tokens[b : b + 1, prompt - length :]).detach()
        torch.testing.assert_close(found[b : b + 1, prompt - length :], alone, **CLOSE)


def test_layers_with_a_window_and_layers_without_take_turns_over_one_cache() -> None:
    torch.manual_seed(0)
    designs = (Design(32, heads=4, window=5), Design(32, heads=4, positions=False))
    model = LanguageModel(VOCABULARY, layers=4, design=designs, position=Rotary(8)).eval()
    tokens = _tokens()
    found = _in_parts(model, tokens, KeyValueCache(), [9, *[1] * (N - 9)])
    torch.testing.assert_close(found, model(tokens).detach(), **CLOSE)


def test_a_cache_that_forgets_what_a_layer_looks_at_is_refused() -> None:
    designs = (Design(32, heads=4, window=5), Design(32, heads=4))
    model, tokens = LanguageModel(VOCABULARY, layers=2, design=designs, position=None).eval(), _tokens()
    with pytest.raises(SpecError, match=r"got window=8, and layer 1 sees everything\. Use KeyValueCache\(\)"):
        model(tokens, cache=KeyValueCache(window=8))
    with pytest.raises(SpecError, match=r"got window=4, and layer 0 sees a window of 5"):
        model(tokens, cache=KeyValueCache(window=4))
    cache, narrow = KeyValueCache(window=8), mask.window(8)
    with torch.no_grad():
        parts = [model(part, mask=narrow, cache=cache) for part in tokens.split([9, *[1] * (N - 9)], 1)]
        torch.testing.assert_close(torch.cat(parts, 1), model(tokens, mask=narrow), **CLOSE)
        narrowed = Decoder(Design(32, heads=4), layers=1, mask=narrow)
        assert narrowed(torch.randn(1, 1, 32), cache=KeyValueCache(window=8)).shape == (1, 1, 32)


def test_a_memory_is_looked_at_anew_and_read_once() -> None:
    torch.manual_seed(0)
    model = Translator((30, 20), layers=2, design=Design(32, heads=4), positions=(Sinusoidal(32), Rotary(8))).eval()
    source, target = _tokens(2, 9) % 30, _tokens(2, 8) % 20
    reading = model.reading(source, torch.tensor([9, 4]))
    whole = reading.logits(target).detach()
    cache = KeyValueCache()
    with torch.no_grad():
        found = torch.cat([reading.logits(part, cache) for part in target.split(1, dim=1)], dim=1)
        torch.testing.assert_close(found, whole, **CLOSE)
        reading.memory = torch.full_like(reading.memory, torch.nan)  # its keys and values are in the cache
        assert bool(reading.logits(target[:, :1], cache).isfinite().all())


def test_a_sliding_cache_keeps_what_the_window_asks_for_and_no_more() -> None:
    layer = LayerCache(window=4)
    rows = torch.arange(20.0).view(1, 1, 20, 1)
    for place in range(20):
        (seen,) = layer.append(rows[:, :, place : place + 1])
        assert seen.flatten().tolist() == list(range(max(0, place - 3), place + 1))
        assert seen.untyped_storage().nbytes() <= 8 * 4
    assert (layer.length, layer.kept) == (20, 3)


def test_many_tokens_at_once_may_exceed_the_window() -> None:
    layer = LayerCache(window=4)
    rows = torch.arange(30.0).view(1, 1, 30, 1)
    layer.append(rows[:, :, :2])
    (seen,) = layer.append(rows[:, :, 2:25])
    assert seen.flatten().tolist() == list(range(25))
    (seen,) = layer.append(rows[:, :, 25:27])
    assert seen.flatten().tolist() == [22, 23, 24, 25, 26]


def test_a_growing_cache_copies_seldom() -> None:
    layer, moved, last = LayerCache(), 0, None
    for _ in range(1000):
        (seen,) = layer.append(torch.zeros(1, 1, 1, 4))
        moved += seen.data_ptr() != last
        last = seen.data_ptr()
    assert moved <= 6


def test_a_cache_can_go_back() -> None:
    cache = KeyValueCache()
    model, tokens = _model(Rotary(8), cache), _tokens()
    _in_parts(model, tokens, cache, [N])
    cache.crop(10)
    with torch.no_grad():
        found = model(tokens[:, 10:], cache=cache)
    torch.testing.assert_close(found, model(tokens)[:, 10:].detach(), **CLOSE)


def test_beams_go_on_with_what_others_have_seen() -> None:
    cache = KeyValueCache(padding=torch.tensor([0, 2, 4]))
    model, tokens, order = _model(Rotary(8), cache), _tokens(3, 12), torch.tensor([2, 0, 0])
    with torch.no_grad():
        model(tokens[:, :11], cache=cache)
        cache.reorder(order)
        found = model(tokens[order][:, 11:], cache=cache)
    for b, source in enumerate(order.tolist()):
        alone = model(tokens[source : source + 1, 2 * source :]).detach()
        torch.testing.assert_close(found[b : b + 1], alone[:, -1:], **CLOSE)


def test_a_full_cache_says_so() -> None:
    layer = LayerCache(longest=8)
    layer.append(torch.zeros(1, 1, 6, 2))
    with pytest.raises(SpecError, match="room for longest=8 tokens; got 6 and 3 more"):
        layer.append(torch.zeros(1, 1, 3, 2))


def test_gradients_and_caches_do_not_go_together() -> None:
    with pytest.raises(SpecError, match=r"a cache keeps numbers.*torch\.no_grad"):
        LayerCache().append(torch.zeros(1, 1, 6, 2, requires_grad=True))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"longest": 0}, "longest must be a whole number from 1 to 2147483647; got 0"),
        ({"window": 0}, "window must be a whole number from 1 to 2147483647; got 0"),
        ({"longest": 4, "window": 4}, "one size: longest or window; got 4 and 4"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        KeyValueCache(**options)


def test_a_cache_cannot_go_back_to_what_it_forgot() -> None:
    layer = LayerCache(window=4)
    for _ in range(10):
        layer.append(torch.zeros(1, 1, 1, 2))
    with pytest.raises(SpecError, match="between 8 and 10 tokens; got 7"):
        layer.crop(7)


@pytest.mark.parametrize("sizes", [[8], [1] * 8, [3, 1, 4, 1, 1], [12, 5, 1, 1], [1] * 23])
def test_a_sliding_cache_that_went_back_goes_on_as_if_it_had_never_gone_further(sizes: list[int]) -> None:
    model = _model(Rotary(8), KeyValueCache(window=4))
    tokens = _tokens(n=sum(sizes) + 2)
    whole = model(tokens).detach()
    tried = 0
    for length in range(sum(sizes) + 1):
        cache = KeyValueCache(window=4)
        _in_parts(model, tokens[:, : sum(sizes)], cache, sizes)
        try:
            cache.crop(length)
        except SpecError:
            continue
        tried += 1
        found = _in_parts(model, tokens[:, length : length + 2], cache, [1, 1])
        torch.testing.assert_close(found, whole[:, length : length + 2], **CLOSE)
    assert tried >= 2


def test_a_call_that_broke_off_is_noticed_and_can_be_taken_back() -> None:
    cache = KeyValueCache()
    model, tokens = _model(Rotary(8), cache), _tokens()
    with torch.no_grad():
        model(tokens[:, :5], cache=cache)
        with pytest.raises(SpecError, match="mask"):
            model(tokens[:, 5:6], cache=cache, mask=torch.ones(3, 3, dtype=torch.bool))
        with pytest.raises(
            SpecError, match=r"must hold the same tokens; got 6 and 5, since a call broke off.*crop\(5\)"
        ):
            model(tokens[:, 5:6], cache=cache)
        cache.crop(5)
        torch.testing.assert_close(model(tokens[:, 5:6], cache=cache), model(tokens[:, :6])[:, -1:], **CLOSE)


def test_a_cache_goes_on_with_its_own_batch_alone() -> None:
    cache = KeyValueCache()
    model, tokens = _model(None, cache), _tokens(batch=3)
    with torch.no_grad():
        model(tokens[:2, :5], cache=cache)
        for batch in (1, 3):
            with pytest.raises(SpecError, match=rf"the batch it began with, of 2; got one of {batch}"):
                model(tokens[:batch, 5:6], cache=cache)


def test_a_cache_that_went_back_to_nothing_takes_another_memory() -> None:
    torch.manual_seed(0)
    model = Translator((30, 20), layers=1, design=Design(32, heads=4), positions=(None, None)).eval()
    one, other = _tokens(1, 5) % 30, (_tokens(1, 7) + 3) % 30
    cache, begin = KeyValueCache(), torch.tensor([[1]])
    with torch.no_grad():
        model.reading(one).logits(begin, cache)
        cache.crop(0)
        found = model.reading(other).logits(begin, cache)
        torch.testing.assert_close(found, model(other, begin), **CLOSE)


@pytest.mark.parametrize("kind", CACHES)
def test_what_was_begun_in_inference_mode_goes_on_outside_of_it(kind: str) -> None:
    cache = CACHES[kind]()
    model, tokens = _model(Rotary(8), cache), _tokens()
    with torch.inference_mode():
        model(tokens[:, :5], cache=cache)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens[:, 5:6], cache=cache), model(tokens[:, :6])[:, -1:], **CLOSE)


def test_both_forms_of_latent_attention_agree_with_gradients() -> None:
    torch.manual_seed(0)
    layer = LatentAttention(32, 4, latent=12, turning=8, query_latent=16, value_width=6).double()
    x = torch.randn(2, 9, 32, dtype=torch.float64, requires_grad=True)
    both = [layer(x, mask=mask.causal(), position=Rotary(8), absorbed=form) for form in (False, True)]
    torch.testing.assert_close(both[0], both[1])
    inputs = [x, *layer.parameters()]
    weight = torch.randn_like(both[0]).detach()
    one, two = (torch.autograd.grad((o * weight).sum(), inputs) for o in both)
    for first, second in zip(one, two, strict=True):
        torch.testing.assert_close(first, second)


def test_a_latent_cache_is_narrow() -> None:
    torch.manual_seed(0)
    cache = KeyValueCache(longest=100)
    _in_parts(_model(Rotary(8), cache, **DESIGNS["latent"]), _tokens(1), cache, [N])
    assert cache.nbytes == 3 * 100 * (12 + 8) * 4
