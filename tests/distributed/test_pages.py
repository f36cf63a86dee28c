"""A cache in pages is a cache: attention over it is that of each sequence alone, and sharing never shows."""

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
from regard import mask, score, weigh
from regard.distributed import branches, paged_attention
from regard.distributed.branches import Held
from regard.distributed.paged_batch import PagedBatch
from regard.distributed.pages import PagedCache
from regard.errors import BudgetError, SpecError
from regard.models.language import LanguageModel
from regard.nn import (
    ALiBi,
    Design,
    KeyValueCache,
    LatentAttention,
    Learned,
    Position,
    RelativeBias,
    Rotary,
    beam,
    generate,
)

HEADS, KEY_HEADS, WIDTH, SIZE = 4, 2, 8, 4
CLOSE = dict(rtol=0, atol=2e-12)  # float64: sums of some dozens of terms of size about 1

Options = dict[str, Any]


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of three pages that one sequence has for itself count as long."""
    monkeypatch.setattr(branches, "LONG", 3 * SIZE)


def _tokens(n: int, batch: int = 1, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, batch, KEY_HEADS, n, WIDTH, generator=numbers, dtype=dtype)
    return k, v


def _tree(dtype: torch.dtype = torch.float64) -> tuple[PagedCache, list[int]]:
    """Six sequences: four share 22 tokens or fewer, two of them more; one is alone and long, one alone and short."""
    cache = PagedCache(SIZE)
    root = cache.add()
    cache.append(0, [root], *_tokens(22, seed=1, dtype=dtype))
    second, third = cache.fork(root), cache.fork(root, 18)
    cache.append(0, [second], *_tokens(13, seed=2, dtype=dtype))
    fourth, alone, short = cache.fork(second), cache.add(), cache.add()
    cache.append(0, [alone], *_tokens(27, seed=3, dtype=dtype))
    for seed, (one, n) in enumerate([(short, 6), (root, 1), (third, 7), (fourth, 2), (second, 5), (alone, 5)]):
        cache.append(0, [one], *_tokens(n, seed=10 + seed, dtype=dtype))
    return cache, [root, second, third, fourth, alone, short]


def _queries(count: int, n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, HEADS, n, WIDTH, generator=torch.Generator().manual_seed(5), dtype=dtype)


def _alone(cache: PagedCache, sequences: list[int], q: Tensor, **options: Any) -> Tensor:
    """Each sequence by itself, from one contiguous tensor."""
    rows = [[x.contiguous()[None] for x in cache.rows(0, s)] for s in sequences]
    return torch.cat([regard.attention(q[n : n + 1], *kv, **options) for n, kv in enumerate(rows)])


CASES: dict[str, Callable[[], Options]] = {
    "full": dict,
    "causal": lambda: dict(mask=mask.causal()),
    "window": lambda: dict(mask=mask.causal() & mask.window(7)),
    "window and global": lambda: dict(mask=mask.window(5) | mask.tokens([0, 9])),
    "a function": lambda: dict(mask=lambda b, h, i, j: (j + h) % 3 != 0),
    "prefix": lambda: dict(mask=mask.where(lambda b, h, i, j: j < 6) | mask.causal()),
    "alibi": lambda: dict(score=score.alibi(), mask=mask.causal()),
    "softcap": lambda: dict(score=score.softcap(2.0), mask=mask.causal()),
    "relative": lambda: dict(score=score.relative(torch.linspace(-1, 1, 32 * HEADS).view(32, HEADS).double())),
    "shaw keys": lambda: dict(score=score.shaw_keys(torch.linspace(-1, 1, 9 * WIDTH).view(9, WIDTH).double())),
    "shaw values": lambda: dict(value=score.shaw_values(torch.linspace(-1, 1, 9 * WIDTH).view(9, WIDTH).double())),
    "cosine": lambda: dict(score=score.cosine(4.0), mask=mask.causal()),
    "metric": lambda: dict(score=score.metric(2.0)),
    "multiplicative": lambda: dict(
        score=score.multiplicative(torch.linspace(-1, 1, WIDTH**2).view(WIDTH, -1).double())
    ),
    "sink": lambda: dict(weigh=weigh.sink(torch.linspace(-1.0, 2.0, HEADS)), mask=mask.causal()),
    "sigmoid": lambda: dict(weigh=weigh.sigmoid(-2.0), mask=mask.causal()),
    "relu": lambda: dict(weigh=weigh.relu()),
    "entmax": lambda: dict(weigh=weigh.entmax(1.5), mask=mask.causal()),
    "top": lambda: dict(weigh=weigh.top(3)),
    "kernel": lambda: dict(weigh=weigh.kernel(), mask=mask.causal()),
    "a value function": lambda: dict(value=torch.tanh, mask=mask.causal()),
}


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("case", [c for c in CASES if c != "shaw values"])
def test_attention_over_pages_is_that_of_each_sequence_alone(case: str, n: int) -> None:
    cache, who = _tree()
    q = _queries(len(who), n)
    found = cache.attention(0, who, q, **CASES[case]())
    torch.testing.assert_close(found, _alone(cache, who, q, **CASES[case]()), **CLOSE)


@pytest.mark.parametrize("case", CASES)
def test_sequences_of_one_length_may_ask_anything(case: str) -> None:
    cache, who = _tree()
    who = [s for s in who if cache.length(s) >= 20]
    for s in who:
        cache.crop(s, 20)
    q = _queries(len(who), 3)
    found = cache.attention(0, who, q, **CASES[case]())
    torch.testing.assert_close(found, _alone(cache, who, q, **CASES[case]()), **CLOSE)


def test_what_depends_on_the_sequence_counts_those_of_the_call() -> None:
    cache, who = _tree()
    for s in who[:4]:
        cache.crop(s, 20)
    q = _queries(4, 3)
    k, v = (torch.stack(rows) for rows in zip(*(cache.rows(0, s) for s in who[:4]), strict=True))
    for options in (
        dict(mask=mask.documents(torch.arange(20).repeat(4, 1) // torch.tensor([[3], [5], [7], [11]]))),
        dict(mask=lambda b, h, i, j: (b + j) % 3 != 1),
        dict(dropout=0.4, seed=3),
        dict(weigh=weigh.gumbel(seed=2, hard=False)),
    ):
        found = cache.attention(0, who[:4], q, **options)
        torch.testing.assert_close(found, regard.attention(q, k, v, **options), **CLOSE)


@pytest.mark.parametrize("engine", regard.engines())
def test_every_engine_answers_over_pages(engine: str) -> None:
    cache, who = _tree(torch.float32)
    q = _queries(len(who), 2, torch.float32)
    found = cache.attention(0, who, q, mask=mask.causal(), engine=engine)
    exact, who = _tree()
    for layer in (0,):
        rows = [[x.double()[None] for x in cache.rows(layer, s)] for s in who]
    wanted = [regard.attention(q[n : n + 1].double(), *kv, mask=mask.causal()) for n, kv in enumerate(rows)]
    torch.testing.assert_close(found.double(), torch.cat(wanted), rtol=0, atol=2e-6)  # float32 sums of 40 terms
    assert exact.pages == cache.pages


def test_without_anything_shared_the_bits_are_those_of_contiguous_keys() -> None:
    cache, who = PagedCache(SIZE), []
    for n in range(3):
        who.append(cache.add())
        cache.append(0, who, *_tokens(5, batch=n + 1, seed=n, dtype=torch.float32))
    for s in who:
        cache.crop(s, 5)
    q = _queries(3, 2, torch.float32)
    k, v = (torch.stack(rows).contiguous() for rows in zip(*(cache.rows(0, s) for s in who), strict=True))
    for options in (dict(mask=mask.causal()), dict(score=score.alibi()), dict(weigh=weigh.entmax(1.5))):
        assert torch.equal(cache.attention(0, who, q, **options), regard.attention(q, k, v, **options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_stay_within_twice_the_error_of_the_direct_formula(dtype: torch.dtype) -> None:
    cache, who = _tree(dtype)
    q = _queries(len(who), 3, dtype)
    found = cache.attention(0, who, q)
    for n, s in enumerate(who):
        k, v = (x.repeat_interleave(2, 0) for x in cache.rows(0, s))
        exact = (q[n].double() @ k.double().mT / WIDTH**0.5).softmax(-1) @ v.double()
        direct = (q[n] @ k.mT / WIDTH**0.5).softmax(-1) @ v
        assert (found[n].double() - exact).abs().max() <= 2 * (direct.double() - exact).abs().max()


def test_what_sequences_begin_with_is_attended_to_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    plain = paged_attention.answered

    def counted(question: Any, queries: Any, keys: Any, *rest: Any) -> Any:
        asked.append((question.q.shape[0], queries.count, keys.count))
        return plain(question, queries, keys, *rest)

    monkeypatch.setattr(paged_attention, "answered", counted)
    cache = PagedCache(SIZE)
    root = cache.add()
    cache.append(0, [root], *_tokens(40, seed=1))
    who = [root, *(cache.fork(root) for _ in range(4))]
    cache.append(0, who, *_tokens(3, batch=5, seed=2))
    cache.attention(0, who, _queries(5, 2), mask=mask.causal())
    # the queries of all five as those of one sequence over 40 keys, then each over its own three
    assert asked == [(1, 10, 40), (5, 2, 3)]
    asked.clear()
    cache.attention(0, who, _queries(5, 2), mask=mask.causal(), score=score.alibi())
    assert asked == [(5, 2, 40), (5, 2, 3)]  # distances differ, so each keeps its place


def test_the_tree_of_what_is_shared_has_its_branches() -> None:
    tables = [[0, 1, 2, 3], [0, 1, 2, 9], [0, 1, 5], [7, 8], [7, 11]]
    held = [Held(t, 4 * len(t)) for t in tables]
    found = [(b.who, b.first, b.pages) for b in branches.branches(held, 4)]
    assert found == [((0, 1, 2), 0, (0, 1)), ((0, 1), 2, (2,)), ((3, 4), 0, (7,))]
    cut = [Held([0, 1, 2], 12), Held([0, 1, 2], 11)]
    assert [(b.who, b.pages) for b in branches.branches(cut, 4)] == [((0, 1), (0, 1))]
    long = [Held([3, 4, 5, 9, 1, 6, 7, 8], 31)]
    assert [(b.who, b.first, b.pages) for b in branches.branches(long, 4)] == [((0,), 0, (3, 4, 5))]


def test_pages_that_lie_side_by_side_are_not_copied() -> None:
    cache = PagedCache(SIZE)
    one = cache.add()
    cache.append(0, [one], *_tokens(11))
    first, again = cache.rows(0, one)[0], cache.rows(0, one)[0]
    assert first.data_ptr() == again.data_ptr()


def test_who_writes_into_a_shared_page_gets_a_copy_of_every_layer() -> None:
    cache = PagedCache(SIZE)
    one = cache.add()
    for layer in (0, 1):
        cache.append(layer, [one], *_tokens(6, seed=layer))
    other = cache.fork(one)
    assert cache.pages == 2
    before = [x.clone() for layer in (0, 1) for x in cache.rows(layer, one)]
    for layer in (0, 1):
        cache.append(layer, [other], *_tokens(1, seed=7 + layer))
    assert cache.pages == 3
    for kept, x in zip(before, (x for layer in (0, 1) for x in cache.rows(layer, one)), strict=True):
        assert torch.equal(kept, x)
    for layer in (0, 1):
        wanted = torch.cat([_tokens(6, seed=layer)[0], _tokens(1, seed=7 + layer)[0]], dim=2)[0]
        assert torch.equal(cache.rows(layer, other)[0], wanted)


def test_sequences_that_were_not_used_give_way_and_the_caller_is_told() -> None:
    told: list[tuple[int, int]] = []
    cache = PagedCache(SIZE, most=6, evicted=lambda number, length: told.append((number, length)))
    first, second, third = (cache.add() for _ in range(3))
    for one, n in ((first, 8), (second, 7), (third, 4)):
        cache.append(0, [one], *_tokens(n))
    cache.rows(0, first)  # used again, so the second one is older now
    assert cache.sequences == (second, third, first)
    cache.append(0, [third], *_tokens(8))
    assert told == [(second, 7)]
    assert cache.pages == 5
    with pytest.raises(SpecError, match="one of this cache's; got 1: it gave way to others"):
        cache.rows(0, second)


def test_a_sequence_whose_pages_are_all_in_use_does_not_give_way() -> None:
    told: list[int] = []
    cache = PagedCache(SIZE, most=4, evicted=lambda number, _: told.append(number))
    first = cache.add()
    cache.append(0, [first], *_tokens(8))
    twin, other = cache.fork(first), cache.add()
    cache.append(0, [other], *_tokens(5))
    cache.rows(0, first)
    cache.append(0, [first], *_tokens(1))
    assert told == [other]  # the twin is older, and dropping it would free nothing
    assert set(cache.sequences) == {first, twin}


def test_too_few_pages_are_refused_before_anything_gives_way() -> None:
    told: list[int] = []
    cache = PagedCache(SIZE, most=5, evicted=lambda number, _: told.append(number))
    first, second = cache.add(), cache.add()
    cache.append(0, [first], *_tokens(8))
    cache.append(0, [second], *_tokens(4))
    with pytest.raises(BudgetError, match="must find 6 pages of 4 tokens; 2 of most=5 are free and 1 could become so"):
        cache.append(0, [first], *_tokens(21))
    assert told == []
    assert (cache.length(first), cache.length(second), cache.pages) == (8, 4, 3)
    cache.append(0, [first], *_tokens(12))
    assert told == [second]
    assert cache.nbytes == 5 * SIZE * 2 * KEY_HEADS * WIDTH * 8  # room for no more pages than there may be


MOST = 9


class Against(RuleBasedStateMachine):
    """Random operations on a cache, and the same on lists of tensors."""

    limited = False

    @initialize()
    def begin(self) -> None:
        self.known: dict[int, list[Tensor]] = {}  # keys of every layer, (heads, n, 1)
        self.gone: list[int] = []
        self.cache = PagedCache(2, MOST if self.limited else None, lambda number, _: self.gone.append(number))
        self.numbers = iter(range(10**6))

    @rule()
    def add(self) -> None:
        self.known[self.cache.add()] = [torch.zeros(2, 0, 1), torch.zeros(2, 0, 1)]

    def _any(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.known)))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        one = self._any(data)
        length = data.draw(st.integers(0, self.cache.length(one)))
        self.known[self.cache.fork(one, length)] = [x[:, :length] for x in self.known[one]]

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        who = data.draw(st.lists(st.sampled_from(sorted(self.known)), min_size=1, max_size=3, unique=True))
        counts = [data.draw(st.integers(0, 5)) for _ in who]
        rows = torch.tensor([float(next(self.numbers)) for _ in range(len(who) * 2 * 5)]).view(len(who), 2, 5, 1)
        before = {s: [x.clone() for x in kept] for s, kept in self.known.items()}
        try:
            for layer in (0, 1):
                self.cache.append(layer, who, rows + layer / 2, -rows, counts=counts)
        except BudgetError:
            assert self.limited
            assert not self.gone
            return
        for s, n, new in zip(who, counts, rows, strict=True):
            kept = before[s]
            self.known[s] = [torch.cat([kept[layer], (new + layer / 2)[:, 5 - n :]], dim=1) for layer in (0, 1)]
        for s in self.gone:
            assert s not in who
            del self.known[s]
        self.gone.clear()

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def crop(self, data: st.DataObject) -> None:
        one = self._any(data)
        length = data.draw(st.integers(0, self.cache.length(one)))
        self.cache.crop(one, length)
        self.known[one] = [x[:, :length] for x in self.known[one]]

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        one = self._any(data)
        self.cache.drop(one)
        del self.known[one]

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        who = data.draw(st.lists(st.sampled_from(sorted(self.known)), min_size=1, max_size=3, unique=True))
        order = data.draw(st.lists(st.integers(0, len(who) - 1), min_size=1, max_size=4))
        batch = PagedBatch(self.cache, who)
        batch.reorder(torch.tensor(order))
        before = {s: self.known.pop(s) for s in who}
        self.known |= {s: before[who[n]] for s, n in zip(batch.sequences, order, strict=True)}

    @invariant()
    def every_sequence_has_its_tokens(self) -> None:
        assert set(self.cache.sequences) == set(self.known)
        for s, layers in self.known.items():
            for layer, wanted in enumerate(layers):
                assert self.cache.length(s) == wanted.shape[1]
                if wanted.shape[1]:
                    assert torch.equal(self.cache.rows(layer, s)[0], wanted)

    @invariant()
    def every_page_is_counted_and_none_is_lost(self) -> None:
        tables = [s.table for s in self.cache._sequences.values()]
        counts = [sum(page in table for table in tables) for page in range(len(self.cache._pool.counts))]
        assert self.cache._pool.counts == counts
        assert sorted(self.cache._pool._free) == [page for page, n in enumerate(counts) if n == 0]
        assert all(
            len(table) == -(-s.length // 2) for s, table in zip(self.cache._sequences.values(), tables, strict=True)
        )
        assert not self.limited or self.cache.pages <= MOST


class AgainstLimited(Against):
    limited = True


Against.TestCase.settings = AgainstLimited.TestCase.settings = settings(stateful_step_count=30)
TestAnyOperationsGiveWhatListsGive = Against.TestCase
TestAnyOperationsGiveWhatListsGiveWhereOldOnesGiveWay = AgainstLimited.TestCase


POSITIONS: dict[str, Callable[[], Position]] = {
    "rotary": lambda: Rotary(8),
    "learned": lambda: Learned(64, 32),
    "alibi": lambda: ALiBi(4),
    "t5": lambda: RelativeBias(4, bidirectional=False),
}
VOCABULARY = 50


class _Counting(LanguageModel):
    """Counts the tokens that it has to compute."""

    computed = 0

    def states(self, tokens: Tensor, **options: Any) -> Tensor:
        self.computed += tokens.numel()
        return super().states(tokens, **options)


def _model(position: Position, **options: Any) -> _Counting:
    torch.manual_seed(0)
    model = _Counting(VOCABULARY, layers=3, design=Design(32, heads=4, **options), position=position)
    return model.double().eval()  # so that no rounding decides which of two tokens is likelier


def _text(n: int, seed: int, batch: int = 1) -> Tensor:
    return torch.randint(VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("position", POSITIONS)
def test_two_prompts_that_share_a_beginning_write_what_they_write_alone(position: str) -> None:
    model = _model(POSITIONS[position](), key_heads=2)
    same, ends = _text(19, 1), [_text(5, 2), _text(9, 3)]
    alone = [generate(model, torch.cat([same, end], 1), most=12, cache=KeyValueCache()) for end in ends]
    model.computed = 0
    pages = PagedCache(size=4)
    first = pages.add()
    with torch.no_grad():
        model(same, cache=PagedBatch(pages, [first]))
        second = pages.fork(first)
        for one, end in zip((first, second), ends, strict=True):
            model(end[:, :-1], cache=PagedBatch(pages, [one]))
        last = torch.cat([end[:, -1:] for end in ends])
        found = generate(model, last, most=12, cache=PagedBatch(pages, [first, second]))
    assert torch.equal(found, torch.cat(alone))
    assert model.computed == 19 + 4 + 8 + 2 * 12  # what both begin with was computed once
    assert pages.pages == 4 + -(-(19 + 5 + 11) // 4) - 4 + -(-(19 + 9 + 11) // 4) - 4


@pytest.mark.parametrize("design", ["heads", "latent"])
def test_prompts_of_several_lengths_begin_together(design: str) -> None:
    latent = {"attention": lambda d: LatentAttention(d.width, d.heads, latent=12, turning=8)}
    model = _model(Rotary(8), **(latent if design == "latent" else {}))
    tokens, lengths = _text(11, 4, batch=3), torch.tensor([11, 4, 7])
    wanted = generate(model, tokens, most=10, lengths=lengths)
    pages = PagedCache(size=4)
    who = [pages.add() for _ in range(3)]
    assert torch.equal(generate(model, tokens, most=10, lengths=lengths, cache=PagedBatch(pages, who)), wanted)
    assert [pages.length(s) for s in who] == [20, 13, 16]  # what stood before the shorter ones is not kept


def test_beams_fork_and_give_back_what_they_do_not_go_on_with() -> None:
    model = _model(Rotary(8))
    tokens = _text(9, 5, batch=2)
    wanted = beam(model, tokens, most=8, width=3, stop=7)
    pages = PagedCache(size=4)
    cache = PagedBatch(pages, [pages.add(), pages.add()])
    found = beam(model, tokens, most=8, width=3, stop=7, cache=cache)
    assert torch.equal(found.tokens, wanted.tokens)
    assert len(set(cache.sequences)) == 6
    assert set(pages.sequences) == set(cache.sequences)
    for one in cache.sequences:
        pages.drop(one)
    assert pages.pages == 0


def test_a_cache_goes_back_and_on() -> None:
    model, pages = _model(Rotary(8)), PagedCache(size=4)
    tokens = _text(14, 6, batch=2)
    cache = PagedBatch(pages, [pages.add(), pages.add()])
    with torch.no_grad():
        model(tokens, cache=cache)
        cache.crop(9)
        assert cache.length == 9
        found = model(tokens[:, 9:], cache=cache)
    torch.testing.assert_close(found, model(tokens)[:, 9:].detach(), **CLOSE)
    with pytest.raises(SpecError, match="can go back to between 0 and 14 tokens; got 15"):
        cache.crop(15)
    other = PagedBatch(pages, cache.sequences)  # of which nothing has been asked yet
    other.crop(3)
    assert [pages.length(s) for s in cache.sequences] == [3, 3]


def test_one_layer_cannot_be_changed_by_itself() -> None:
    pages = PagedCache()
    layer = PagedBatch(pages, [pages.add()])[0]
    with pytest.raises(SpecError, match=r"crop the whole cache, as in cache.crop\(length\)"):
        layer.crop(0)
    with pytest.raises(SpecError, match=r"reorder the whole cache, as in cache.reorder\(order\)"):
        layer.reorder(torch.tensor([0]))


def test_what_cannot_be_appended_is_refused() -> None:
    cache = PagedCache(SIZE)
    one, other = cache.add(), cache.add()
    k, v = _tokens(3)
    for rows, message in (
        ((k[0], v[0]), r"rows must be \(1 sequences, heads, n, width\); got \[\(2, 3, 8\), \(2, 3, 8\)\]"),
        ((k, v[:, :, :2]), r"rows must be \(1 sequences, heads, n, width\); got \[\(1, 2, 3, 8\), \(1, 2, 2, 8\)\]"),
        ((), r"rows must be \(1 sequences, heads, n, width\); got \[\]"),
        ((k.clone().requires_grad_(), v), r"keeps numbers, not how they were made; got rows that require gradients"),
    ):
        with pytest.raises(SpecError, match=message):
            cache.append(0, [one], *rows)
    with pytest.raises(SpecError, match=r"counts must be from 0 to 3, one for each of 1 sequences; got \[4\]"):
        cache.append(0, [one], k, v, counts=[4])
    for who in ([one, one], []):
        message = rf"a call must name at least one sequence, and each once; got {re.escape(str(who))}"
        with pytest.raises(SpecError, match=message):
            cache.append(0, who, *_tokens(3, batch=len(who)))
    cache.append(0, [one], k, v)
    kept = "layer 0 keeps 2 heads of 8 in float64, 2 heads of 8 in float64"
    with pytest.raises(SpecError, match=f"{kept}; got 2 heads of 8 in float64"):
        cache.append(0, [other], k)
    with pytest.raises(SpecError, match=f"{kept}; got 2 heads of 8 in float64, 2 heads of 4 in float32"):
        cache.append(0, [other], k, v[..., :4].float())
    assert (cache.length(other), cache.pages) == (0, 1)


def test_sequences_that_are_not_there_are_refused() -> None:
    cache = PagedCache(SIZE)
    one, other = cache.add(), cache.add()
    cache.append(0, [one], *_tokens(6))
    cache.drop(other)
    with pytest.raises(SpecError, match=r"one of this cache's; got 1: it was dropped. Compute it anew"):
        cache.fork(other)
    with pytest.raises(SpecError, match="got 9: there was none of that number"):
        cache.length(9)
    with pytest.raises(SpecError, match="sequence 0 has 6 tokens; got a length of 7"):
        cache.fork(one, 7)
    with pytest.raises(SpecError, match="sequence 0 has 6 tokens; got a length of -1"):
        cache.crop(one, -1)
    with pytest.raises(SpecError, match="layer 3 must have tokens of sequence 0; it has none"):
        cache.rows(3, one)


def test_questions_that_pages_cannot_answer_are_refused() -> None:
    cache, who = _tree()
    q = _queries(len(who), 2)
    with pytest.raises(SpecError, match=r"q must be \(6 sequences, heads, n, width\); got shape \(5, 4, 2, 8\)"):
        cache.attention(0, who, q[:5])
    with pytest.raises(SpecError, match=r"must have tokens in layer 1; got lengths \[0, 0, 0, 0, 0, 0\]"):
        cache.attention(1, who, q)
    with pytest.raises(SpecError, match="attention over pages has no gradients; got q that requires them"):
        cache.attention(0, who, q.clone().requires_grad_())
    with pytest.raises(SpecError, match="must be able to go row by row; got sinkhorn of 3"):
        cache.attention(0, who, q, weigh=weigh.sinkhorn(3))
    with pytest.raises(SpecError, match="have no common end; got a mask or rule that counts from the end of the keys"):
        cache.attention(0, who, q, mask=mask.bigbird(4))
    cache.append(5, who[:1], _tokens(3)[0])
    with pytest.raises(SpecError, match="attention needs keys and values; layer 5 keeps 1 kinds of rows"):
        cache.attention(5, who[:1], q[:1])
    for name in ("size", "most"):
        with pytest.raises(SpecError, match=rf"{name} must be a whole number from 1 to \d+; got 0"):
            PagedCache(**{name: 0})
