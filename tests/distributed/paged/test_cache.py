"""Paged cache: attention over it matches attention of each sequence alone, with and without shared pages."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

import regard
from regard import mask, normalizer, score
from regard.distributed.paged import attention, prefix_sharing
from regard.distributed.paged.batch_cache import PagedBatchCache
from regard.distributed.paged.cache import PagedCache
from regard.distributed.paged.prefix_sharing import PagedSequence
from regard.errors import ArgumentError, BudgetError
from regard.models.language import LanguageModel
from regard.nn import (
    ALiBi,
    BlockConfig,
    KeyValueCache,
    LatentAttention,
    LearnedPositionalEmbedding,
    PositionEncoding,
    RotaryEmbedding,
    T5Bias,
    beam_search,
    generate,
)

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE = 4, 2, 8, 4
CLOSE = dict(rtol=0, atol=2e-12)  # float64: sums of a few dozen terms of size about 1

Options = dict[str, Any]


@pytest.fixture(autouse=True)
def _short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make three adjacent pages of a single sequence a segment."""
    monkeypatch.setattr(prefix_sharing, "MIN_CONTIGUOUS_TOKENS", 3 * PAGE_SIZE)


def _kv(n: int, batch: int = 1, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, batch, NUM_KV_HEADS, n, HEAD_DIM, generator=generator, dtype=dtype)
    return k, v


def _forked_cache(dtype: torch.dtype = torch.float64) -> tuple[PagedCache, list[int]]:
    """Return a cache with six sequences: four share a prefix, two of them a longer one; two share nothing."""
    cache = PagedCache(PAGE_SIZE)
    root = cache.add_sequence()
    cache.append(0, [root], *_kv(22, seed=1, dtype=dtype))
    second, third = cache.fork(root), cache.fork(root, 18)
    cache.append(0, [second], *_kv(13, seed=2, dtype=dtype))
    fourth, long, short = cache.fork(second), cache.add_sequence(), cache.add_sequence()
    cache.append(0, [long], *_kv(27, seed=3, dtype=dtype))
    for seed, (sequence_id, n) in enumerate([(short, 6), (root, 1), (third, 7), (fourth, 2), (second, 5), (long, 5)]):
        cache.append(0, [sequence_id], *_kv(n, seed=10 + seed, dtype=dtype))
    return cache, [root, second, third, fourth, long, short]


def _queries(num_sequences: int, n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(num_sequences, NUM_HEADS, n, HEAD_DIM, generator=torch.Generator().manual_seed(5), dtype=dtype)


def _separate_attention(cache: PagedCache, sequence_ids: list[int], q: Tensor, **options: Any) -> Tensor:
    """Return the attention of each sequence over contiguous keys, in separate calls."""
    rows = [[x.contiguous()[None] for x in cache.rows(0, sequence_id)] for sequence_id in sequence_ids]
    return torch.cat([regard.attention(q[index : index + 1], *kv, **options) for index, kv in enumerate(rows)])


CASES: dict[str, Callable[[], Options]] = {
    "full": dict,
    "causal": lambda: dict(mask=mask.causal()),
    "sliding window": lambda: dict(mask=mask.causal() & mask.sliding_window(7)),
    "sliding window and global tokens": lambda: dict(mask=mask.sliding_window(5) | mask.global_tokens([0, 9])),
    "mask function": lambda: dict(mask=lambda b, h, i, j: (j + h) % 3 != 0),
    "prefix": lambda: dict(mask=mask.from_function(lambda b, h, i, j: j < 6) | mask.causal()),
    "alibi": lambda: dict(score=score.alibi(), mask=mask.causal()),
    "softcap": lambda: dict(score=score.softcap(2.0), mask=mask.causal()),
    "t5 bias": lambda: dict(score=score.t5_bias(torch.linspace(-1, 1, 32 * NUM_HEADS).view(32, NUM_HEADS).double())),
    "shaw keys": lambda: dict(score=score.shaw_keys(torch.linspace(-1, 1, 9 * HEAD_DIM).view(9, HEAD_DIM).double())),
    "shaw values": lambda: dict(
        value=score.shaw_values(torch.linspace(-1, 1, 9 * HEAD_DIM).view(9, HEAD_DIM).double())
    ),
    "cosine": lambda: dict(score=score.cosine(4.0), mask=mask.causal()),
    "gaussian": lambda: dict(score=score.gaussian(2.0)),
    "bilinear": lambda: dict(score=score.bilinear(torch.linspace(-1, 1, HEAD_DIM**2).view(HEAD_DIM, -1).double())),
    "sink": lambda: dict(normalizer=normalizer.sink(torch.linspace(-1.0, 2.0, NUM_HEADS)), mask=mask.causal()),
    "sigmoid": lambda: dict(normalizer=normalizer.sigmoid(-2.0), mask=mask.causal()),
    "relu": lambda: dict(normalizer=normalizer.relu()),
    "entmax": lambda: dict(normalizer=normalizer.entmax(1.5), mask=mask.causal()),
    "topk": lambda: dict(normalizer=normalizer.topk(3)),
    "kernel": lambda: dict(normalizer=normalizer.kernel(), mask=mask.causal()),
    "value function": lambda: dict(value=torch.tanh, mask=mask.causal()),
}


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("case", [c for c in CASES if c != "shaw values"])
def test_paged_attention_matches_each_sequence_alone(case: str, n: int) -> None:
    cache, sequence_ids = _forked_cache()
    q = _queries(len(sequence_ids), n)
    output = cache.attention(0, sequence_ids, q, **CASES[case]())
    torch.testing.assert_close(output, _separate_attention(cache, sequence_ids, q, **CASES[case]()), **CLOSE)


@pytest.mark.parametrize("case", CASES)
def test_sequences_of_one_length_support_all_options(case: str) -> None:
    cache, sequence_ids = _forked_cache()
    sequence_ids = [sequence_id for sequence_id in sequence_ids if cache.length(sequence_id) >= 20]
    for sequence_id in sequence_ids:
        cache.crop(sequence_id, 20)
    q = _queries(len(sequence_ids), 3)
    output = cache.attention(0, sequence_ids, q, **CASES[case]())
    torch.testing.assert_close(output, _separate_attention(cache, sequence_ids, q, **CASES[case]()), **CLOSE)


def test_batch_index_is_the_index_in_the_call() -> None:
    cache, sequence_ids = _forked_cache()
    sequence_ids = sequence_ids[:4]
    for sequence_id in sequence_ids:
        cache.crop(sequence_id, 20)
    q = _queries(4, 3)
    k, v = (torch.stack(rows) for rows in zip(*(cache.rows(0, s) for s in sequence_ids), strict=True))
    for options in (
        dict(mask=mask.document(torch.arange(20).repeat(4, 1) // torch.tensor([[3], [5], [7], [11]]))),
        dict(mask=lambda b, h, i, j: (b + j) % 3 != 1),
        dict(dropout=0.4, seed=3),
        dict(normalizer=normalizer.gumbel(seed=2, hard=False)),
    ):
        output = cache.attention(0, sequence_ids, q, **options)
        torch.testing.assert_close(output, regard.attention(q, k, v, **options), **CLOSE)


@pytest.mark.parametrize("backend", regard.available_backends())
def test_every_backend_supports_paged_attention(backend: str) -> None:
    cache, sequence_ids = _forked_cache(torch.float32)
    q = _queries(len(sequence_ids), 2, torch.float32)
    output = cache.attention(0, sequence_ids, q, mask=mask.causal(), backend=backend)
    rows = [[x.double()[None] for x in cache.rows(0, sequence_id)] for sequence_id in sequence_ids]
    expected = [regard.attention(q[n : n + 1].double(), *kv, mask=mask.causal()) for n, kv in enumerate(rows)]
    torch.testing.assert_close(output.double(), torch.cat(expected), rtol=0, atol=2e-6)  # float32 sums of 40 terms


def test_number_of_pages_does_not_depend_on_the_dtype() -> None:
    (single, _), (double, _) = _forked_cache(torch.float32), _forked_cache(torch.float64)
    assert single.num_used_pages == double.num_used_pages


def test_without_shared_pages_the_bits_match_contiguous_keys() -> None:
    cache, sequence_ids = PagedCache(PAGE_SIZE), []
    for n in range(3):
        sequence_ids.append(cache.add_sequence())
        cache.append(0, sequence_ids, *_kv(5, batch=n + 1, seed=n, dtype=torch.float32))
    for sequence_id in sequence_ids:
        cache.crop(sequence_id, 5)
    q = _queries(3, 2, torch.float32)
    k, v = (torch.stack(rows).contiguous() for rows in zip(*(cache.rows(0, s) for s in sequence_ids), strict=True))
    for options in (dict(mask=mask.causal()), dict(score=score.alibi()), dict(normalizer=normalizer.entmax(1.5))):
        assert torch.equal(cache.attention(0, sequence_ids, q, **options), regard.attention(q, k, v, **options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_error_is_at_most_twice_that_of_the_direct_formula(dtype: torch.dtype) -> None:
    cache, sequence_ids = _forked_cache(dtype)
    q = _queries(len(sequence_ids), 3, dtype)
    output = cache.attention(0, sequence_ids, q)
    for index, sequence_id in enumerate(sequence_ids):
        k, v = (x.repeat_interleave(2, 0) for x in cache.rows(0, sequence_id))
        exact = (q[index].double() @ k.double().mT / HEAD_DIM**0.5).softmax(-1) @ v.double()
        direct = (q[index] @ k.mT / HEAD_DIM**0.5).softmax(-1) @ v
        assert (output[index].double() - exact).abs().max() <= 2 * (direct.double() - exact).abs().max()


def test_shared_prefix_is_attended_to_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int, int]] = []
    original = attention.partial_attention

    def partial_attention(call: Any, queries: Any, keys: Any, *rest: Any) -> Any:
        sizes.append((call.q.shape[0], queries.count, keys.count))
        return original(call, queries, keys, *rest)

    monkeypatch.setattr(attention, "partial_attention", partial_attention)
    cache = PagedCache(PAGE_SIZE)
    root = cache.add_sequence()
    cache.append(0, [root], *_kv(40, seed=1))
    sequence_ids = [root, *(cache.fork(root) for _ in range(4))]
    cache.append(0, sequence_ids, *_kv(3, batch=5, seed=2))
    cache.attention(0, sequence_ids, _queries(5, 2), mask=mask.causal())
    # the queries of all five sequences stacked over 40 keys, then each sequence over its own three
    assert sizes == [(1, 10, 40), (5, 2, 3)]
    sizes.clear()
    cache.attention(0, sequence_ids, _queries(5, 2), mask=mask.causal(), score=score.alibi())
    assert sizes == [(5, 2, 40), (5, 2, 3)]  # scores depend on distances, so queries are not stacked


def test_page_segments_of_shared_prefixes() -> None:
    tables = [[0, 1, 2, 3], [0, 1, 2, 9], [0, 1, 5], [7, 8], [7, 11]]
    sequences = [PagedSequence(table, 4 * len(table)) for table in tables]
    segments = [(s.sequence_indices, s.first_page, s.pages) for s in prefix_sharing.page_segments(sequences, 4)]
    assert segments == [((0, 1, 2), 0, (0, 1)), ((0, 1), 2, (2,)), ((3, 4), 0, (7,))]
    partly_filled = [PagedSequence([0, 1, 2], 12), PagedSequence([0, 1, 2], 11)]
    segments = [(s.sequence_indices, s.pages) for s in prefix_sharing.page_segments(partly_filled, 4)]
    assert segments == [((0, 1), (0, 1))]
    single = [PagedSequence([3, 4, 5, 9, 1, 6, 7, 8], 31)]
    segments = [(s.sequence_indices, s.first_page, s.pages) for s in prefix_sharing.page_segments(single, 4)]
    assert segments == [((0,), 0, (3, 4, 5))]


def test_rows_of_adjacent_pages_are_views() -> None:
    cache = PagedCache(PAGE_SIZE)
    sequence_id = cache.add_sequence()
    cache.append(0, [sequence_id], *_kv(11))
    assert cache.rows(0, sequence_id)[0].data_ptr() == cache.rows(0, sequence_id)[0].data_ptr()


def test_shared_pages_are_copied_on_write_in_every_layer() -> None:
    cache = PagedCache(PAGE_SIZE)
    parent = cache.add_sequence()
    for layer in (0, 1):
        cache.append(layer, [parent], *_kv(6, seed=layer))
    child = cache.fork(parent)
    assert cache.num_used_pages == 2
    before = [x.clone() for layer in (0, 1) for x in cache.rows(layer, parent)]
    for layer in (0, 1):
        cache.append(layer, [child], *_kv(1, seed=7 + layer))
    assert cache.num_used_pages == 3
    after = [x for layer in (0, 1) for x in cache.rows(layer, parent)]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    for layer in (0, 1):
        expected = torch.cat([_kv(6, seed=layer)[0], _kv(1, seed=7 + layer)[0]], dim=2)[0]
        assert torch.equal(cache.rows(layer, child)[0], expected)


def test_least_recently_used_sequence_is_evicted() -> None:
    evicted: list[tuple[int, int]] = []
    cache = PagedCache(PAGE_SIZE, max_pages=6, on_evict=lambda *arguments: evicted.append(arguments))
    first, second, third = (cache.add_sequence() for _ in range(3))
    for sequence_id, n in ((first, 8), (second, 7), (third, 4)):
        cache.append(0, [sequence_id], *_kv(n))
    cache.rows(0, first)  # makes the second sequence the least recently used
    assert cache.sequence_ids == (second, third, first)
    cache.append(0, [third], *_kv(8))
    assert evicted == [(second, 7)]
    assert cache.num_used_pages == 5
    with pytest.raises(ArgumentError, match="sequence_id must be in the cache; got 1: it was evicted"):
        cache.rows(0, second)


def test_sequence_without_pages_of_its_own_is_not_evicted() -> None:
    evicted: list[int] = []
    cache = PagedCache(PAGE_SIZE, max_pages=4, on_evict=lambda sequence_id, _: evicted.append(sequence_id))
    first = cache.add_sequence()
    cache.append(0, [first], *_kv(8))
    twin, other = cache.fork(first), cache.add_sequence()
    cache.append(0, [other], *_kv(5))
    cache.rows(0, first)
    cache.append(0, [first], *_kv(1))
    assert evicted == [other]  # the twin is older, but evicting it would free nothing
    assert set(cache.sequence_ids) == {first, twin}


def test_too_few_pages_raise_before_any_eviction() -> None:
    evicted: list[int] = []
    cache = PagedCache(PAGE_SIZE, max_pages=5, on_evict=lambda sequence_id, _: evicted.append(sequence_id))
    first, second = cache.add_sequence(), cache.add_sequence()
    cache.append(0, [first], *_kv(8))
    cache.append(0, [second], *_kv(4))
    with pytest.raises(
        BudgetError, match="needs 6 pages of 4 tokens; got 2 free and 1 evictable pages with max_pages=5"
    ):
        cache.append(0, [first], *_kv(21))
    assert evicted == []
    assert (cache.length(first), cache.length(second), cache.num_used_pages) == (8, 4, 3)
    cache.append(0, [first], *_kv(12))
    assert evicted == [second]
    assert cache.nbytes == 5 * PAGE_SIZE * 2 * NUM_KV_HEADS * HEAD_DIM * 8  # capacity for max_pages


MAX_PAGES = 9


class PagedCacheMachine(RuleBasedStateMachine):
    """Run random operations on a cache, and the same on plain tensors."""

    is_limited = False

    @initialize()
    def begin(self) -> None:
        self.expected: dict[int, list[Tensor]] = {}  # keys (heads, n, 1) of each layer, by sequence id
        self.evicted: list[int] = []
        max_pages = MAX_PAGES if self.is_limited else None
        self.cache = PagedCache(2, max_pages, lambda sequence_id, _: self.evicted.append(sequence_id))
        self.next_values = iter(range(10**6))

    @rule()
    def add(self) -> None:
        self.expected[self.cache.add_sequence()] = [torch.zeros(2, 0, 1), torch.zeros(2, 0, 1)]

    def _draw_id(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.expected)))

    def _draw_ids(self, data: st.DataObject) -> list[int]:
        return data.draw(st.lists(st.sampled_from(sorted(self.expected)), min_size=1, max_size=3, unique=True))

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        sequence_id = self._draw_id(data)
        length = data.draw(st.integers(0, self.cache.length(sequence_id)))
        self.expected[self.cache.fork(sequence_id, length)] = [x[:, :length] for x in self.expected[sequence_id]]

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        sequence_ids = self._draw_ids(data)
        counts = [data.draw(st.integers(0, 5)) for _ in sequence_ids]
        values = [float(next(self.next_values)) for _ in range(len(sequence_ids) * 2 * 5)]
        rows = torch.tensor(values).view(len(sequence_ids), 2, 5, 1)
        before = {sequence_id: [x.clone() for x in layers] for sequence_id, layers in self.expected.items()}
        try:
            for layer in (0, 1):
                self.cache.append(layer, sequence_ids, rows + layer / 2, -rows, counts=counts)
        except BudgetError:
            assert self.is_limited
            assert not self.evicted
            return
        for sequence_id, count, new_rows in zip(sequence_ids, counts, rows, strict=True):
            self.expected[sequence_id] = [
                torch.cat([before[sequence_id][layer], (new_rows + layer / 2)[:, 5 - count :]], dim=1)
                for layer in (0, 1)
            ]
        for sequence_id in self.evicted:
            assert sequence_id not in sequence_ids
            del self.expected[sequence_id]
        self.evicted.clear()

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def crop(self, data: st.DataObject) -> None:
        sequence_id = self._draw_id(data)
        length = data.draw(st.integers(0, self.cache.length(sequence_id)))
        self.cache.crop(sequence_id, length)
        self.expected[sequence_id] = [x[:, :length] for x in self.expected[sequence_id]]

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        sequence_id = self._draw_id(data)
        self.cache.drop(sequence_id)
        del self.expected[sequence_id]

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        sequence_ids = self._draw_ids(data)
        order = data.draw(st.lists(st.integers(0, len(sequence_ids) - 1), min_size=1, max_size=4))
        batch_cache = PagedBatchCache(self.cache, sequence_ids)
        batch_cache.reorder(torch.tensor(order))
        before = {sequence_id: self.expected.pop(sequence_id) for sequence_id in sequence_ids}
        new_ids = zip(batch_cache.sequence_ids, order, strict=True)
        self.expected |= {sequence_id: before[sequence_ids[index]] for sequence_id, index in new_ids}

    @invariant()
    def every_sequence_has_its_tokens(self) -> None:
        assert set(self.cache.sequence_ids) == set(self.expected)
        for sequence_id, layers in self.expected.items():
            for layer, expected in enumerate(layers):
                assert self.cache.length(sequence_id) == expected.shape[1]
                if expected.shape[1]:
                    assert torch.equal(self.cache.rows(layer, sequence_id)[0], expected)

    @invariant()
    def reference_counts_match_the_page_tables(self) -> None:
        tables = [s.page_table for s in self.cache._sequences.values()]
        counts = [sum(page in table for table in tables) for page in range(len(self.cache._pool.ref_counts))]
        assert self.cache._pool.ref_counts == counts
        assert sorted(self.cache._pool._free_pages) == [page for page, n in enumerate(counts) if n == 0]
        assert all(
            len(table) == -(-s.length // 2) for s, table in zip(self.cache._sequences.values(), tables, strict=True)
        )
        assert not self.is_limited or self.cache.num_used_pages <= MAX_PAGES


class LimitedCacheMachine(PagedCacheMachine):
    is_limited = True


PagedCacheMachine.TestCase.settings = LimitedCacheMachine.TestCase.settings = settings(stateful_step_count=30)
TestRandomOperationsMatchPlainTensors = PagedCacheMachine.TestCase
TestRandomOperationsWithEvictionMatchPlainTensors = LimitedCacheMachine.TestCase


POSITION_ENCODINGS: dict[str, Callable[[], PositionEncoding]] = {
    "rotary": lambda: RotaryEmbedding(8),
    "learned": lambda: LearnedPositionalEmbedding(64, 32),
    "alibi": lambda: ALiBi(4),
    "t5": lambda: T5Bias(4, bidirectional=False),
}
VOCAB_SIZE = 50


class _CountingModel(LanguageModel):
    """A model that counts the tokens it computes."""

    num_computed = 0

    def hidden_states(self, tokens: Tensor, **options: Any) -> Tensor:
        self.num_computed += tokens.numel()
        return super().hidden_states(tokens, **options)


def _model(position: PositionEncoding, **options: Any) -> _CountingModel:
    torch.manual_seed(0)
    model = _CountingModel(
        VOCAB_SIZE, num_layers=3, block_config=BlockConfig(32, num_heads=4, **options), position_encoding=position
    )
    return model.double().eval()  # float64, so that rounding does not change the most likely token


def _token_ids(n: int, seed: int, batch: int = 1) -> Tensor:
    return torch.randint(VOCAB_SIZE, (batch, n), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("position", POSITION_ENCODINGS)
def test_prompts_with_a_common_prefix_generate_the_same_as_alone(position: str) -> None:
    model = _model(POSITION_ENCODINGS[position](), num_kv_heads=2)
    prefix, suffixes = _token_ids(19, 1), [_token_ids(5, 2), _token_ids(9, 3)]
    expected = [generate(model, torch.cat([prefix, s], 1), max_new_tokens=12, cache=KeyValueCache()) for s in suffixes]
    model.num_computed = 0
    pages = PagedCache(page_size=4)
    first = pages.add_sequence()
    with torch.no_grad():
        model(prefix, cache=PagedBatchCache(pages, [first]))
        second = pages.fork(first)
        for sequence_id, suffix in zip((first, second), suffixes, strict=True):
            model(suffix[:, :-1], cache=PagedBatchCache(pages, [sequence_id]))
        last_tokens = torch.cat([suffix[:, -1:] for suffix in suffixes])
        output = generate(model, last_tokens, max_new_tokens=12, cache=PagedBatchCache(pages, [first, second]))
    assert torch.equal(output, torch.cat(expected))
    assert model.num_computed == 19 + 4 + 8 + 2 * 12  # the prefix is computed once
    assert pages.num_used_pages == 4 + -(-(19 + 5 + 11) // 4) - 4 + -(-(19 + 9 + 11) // 4) - 4


@pytest.mark.parametrize("attention_kind", ["multi-head", "latent"])
def test_prompts_of_several_lengths_generate_the_same_as_a_plain_cache(attention_kind: str) -> None:
    latent = {"attention_factory": lambda c: LatentAttention(c.embed_dim, c.num_heads, kv_lora_rank=12, rope_dim=8)}
    model = _model(RotaryEmbedding(8), **(latent if attention_kind == "latent" else {}))
    tokens, lengths = _token_ids(11, 4, batch=3), torch.tensor([11, 4, 7])
    expected = generate(model, tokens, max_new_tokens=10, prompt_lengths=lengths)
    pages = PagedCache(page_size=4)
    sequence_ids = [pages.add_sequence() for _ in range(3)]
    batch_cache = PagedBatchCache(pages, sequence_ids)
    output = generate(model, tokens, max_new_tokens=10, prompt_lengths=lengths, cache=batch_cache)
    assert torch.equal(output, expected)
    assert [pages.length(sequence_id) for sequence_id in sequence_ids] == [20, 13, 16]  # padding is not stored


def test_beam_search_forks_sequences_and_drops_unused_ones() -> None:
    model = _model(RotaryEmbedding(8))
    tokens = _token_ids(9, 5, batch=2)
    expected = beam_search(model, tokens, max_new_tokens=8, num_beams=3, eos_token_id=7)
    pages = PagedCache(page_size=4)
    cache = PagedBatchCache(pages, [pages.add_sequence(), pages.add_sequence()])
    result = beam_search(model, tokens, max_new_tokens=8, num_beams=3, eos_token_id=7, cache=cache)
    assert torch.equal(result.tokens, expected.tokens)
    assert len(set(cache.sequence_ids)) == 6
    assert set(pages.sequence_ids) == set(cache.sequence_ids)
    for sequence_id in cache.sequence_ids:
        pages.drop(sequence_id)
    assert pages.num_used_pages == 0


def test_cropped_cache_continues() -> None:
    model, pages = _model(RotaryEmbedding(8)), PagedCache(page_size=4)
    tokens = _token_ids(14, 6, batch=2)
    cache = PagedBatchCache(pages, [pages.add_sequence(), pages.add_sequence()])
    with torch.no_grad():
        model(tokens, cache=cache)
        cache.crop(9)
        assert cache.length == 9
        output = model(tokens[:, 9:], cache=cache)
    torch.testing.assert_close(output, model(tokens)[:, 9:].detach(), **CLOSE)
    with pytest.raises(ArgumentError, match="length must be from 0 to 14, the length of the cache; got 15"):
        cache.crop(15)
    unused = PagedBatchCache(pages, cache.sequence_ids)
    unused.crop(3)
    assert [pages.length(s) for s in cache.sequence_ids] == [3, 3]


def test_single_layer_cannot_be_cropped_or_reordered() -> None:
    pages = PagedCache()
    layer = PagedBatchCache(pages, [pages.add_sequence()])[0]
    with pytest.raises(ArgumentError, match=r"crop the whole cache, as in cache.crop\(length\)"):
        layer.crop(0)
    with pytest.raises(ArgumentError, match=r"reorder the whole cache, as in cache.reorder\(order\)"):
        layer.reorder(torch.tensor([0]))


def test_append_rejects_invalid_arguments() -> None:
    cache = PagedCache(PAGE_SIZE)
    first, second = cache.add_sequence(), cache.add_sequence()
    k, v = _kv(3)
    for rows, message in (
        ((k[0], v[0]), r"rows must be \(1 sequences, heads, n, dim\); got \[\(2, 3, 8\), \(2, 3, 8\)\]"),
        ((k, v[:, :, :2]), r"rows must be \(1 sequences, heads, n, dim\); got \[\(1, 2, 3, 8\), \(1, 2, 2, 8\)\]"),
        ((), r"rows must be \(1 sequences, heads, n, dim\); got \[\]"),
        ((k.clone().requires_grad_(), v), r"holds tensors without gradients; got rows that require gradients"),
    ):
        with pytest.raises(ArgumentError, match=message):
            cache.append(0, [first], *rows)
    with pytest.raises(ArgumentError, match=r"counts must be from 0 to 3, one for each of 1 sequences; got \[4\]"):
        cache.append(0, [first], k, v, counts=[4])
    for sequence_ids in ([first, first], []):
        message = rf"at least one id, and no id twice; got {re.escape(str(sequence_ids))}"
        with pytest.raises(ArgumentError, match=message):
            cache.append(0, sequence_ids, *_kv(3, batch=len(sequence_ids)))
    cache.append(0, [first], k, v)
    expected = "rows of layer 0 must be 2 heads of dim 8 in float64, 2 heads of dim 8 in float64"
    with pytest.raises(ArgumentError, match=f"{expected}; got 2 heads of dim 8 in float64"):
        cache.append(0, [second], k)
    with pytest.raises(
        ArgumentError, match=f"{expected}; got 2 heads of dim 8 in float64, 2 heads of dim 4 in float32"
    ):
        cache.append(0, [second], k, v[..., :4].float())
    assert (cache.length(second), cache.num_used_pages) == (0, 1)


def test_unknown_sequences_and_lengths_are_rejected() -> None:
    cache = PagedCache(PAGE_SIZE)
    first, second = cache.add_sequence(), cache.add_sequence()
    cache.append(0, [first], *_kv(6))
    cache.drop(second)
    with pytest.raises(ArgumentError, match="must be in the cache; got 1: it was dropped"):
        cache.fork(second)
    with pytest.raises(ArgumentError, match="must be in the cache; got 9: it never existed"):
        cache.length(9)
    with pytest.raises(ArgumentError, match="from 0 to 6, the length of sequence 0; got 7"):
        cache.fork(first, 7)
    with pytest.raises(ArgumentError, match="from 0 to 6, the length of sequence 0; got -1"):
        cache.crop(first, -1)
    with pytest.raises(ArgumentError, match="layer 3 must have tokens of sequence 0; got none"):
        cache.rows(3, first)


def test_unsupported_calls_are_rejected() -> None:
    cache, sequence_ids = _forked_cache()
    q = _queries(len(sequence_ids), 2)
    with pytest.raises(ArgumentError, match=r"q must be \(6 sequences, heads, n, head_dim\); got shape \(5, 4, 2, 8\)"):
        cache.attention(0, sequence_ids, q[:5])
    with pytest.raises(ArgumentError, match=r"must have tokens in layer 1; got lengths \[0, 0, 0, 0, 0, 0\]"):
        cache.attention(1, sequence_ids, q)
    with pytest.raises(ArgumentError, match="a paged cache has no gradients; got q with requires_grad=True"):
        cache.attention(0, sequence_ids, q.clone().requires_grad_())
    with pytest.raises(ArgumentError, match="needs a normalizer of single rows; got 3-step sinkhorn"):
        cache.attention(0, sequence_ids, q, normalizer=normalizer.sinkhorn(3))
    with pytest.raises(
        ArgumentError, match="counts from the end of the keys needs sequences of one length; got several lengths"
    ):
        cache.attention(0, sequence_ids, q, mask=mask.bigbird(4))
    cache.append(5, sequence_ids[:1], _kv(3)[0])
    with pytest.raises(ArgumentError, match="attention needs keys and values in layer 5; got 1 tensors per token"):
        cache.attention(5, sequence_ids[:1], q[:1])
    for name in ("page_size", "max_pages"):
        with pytest.raises(ArgumentError, match=rf"{name} must be an integer from 1 to \d+; got 0"):
            PagedCache(**{name: 0})
