"""The benchmarks: everybody answers the same question, turns are fair, and what is wrong is said."""

import json
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import regard
from benchmarks import additive, compiled, growth, growth_picture, mechanisms, models, picture
from benchmarks.flex_rules import rules
from benchmarks.helper import Helper
from benchmarks.lengths import Growth, growth_complaints, growths
from benchmarks.measuring import Measuring, WrongAnswer, check, dense_question
from benchmarks.memory import extra_memory, largest_allowed
from benchmarks.peers import Cannot, Question, eager, openvino
from benchmarks.questions import (
    CASES,
    FUNCTIONS,
    OTHER_MECHANISMS,
    OURS,
    PEERS,
    QUICK,
    TWINS,
    Case,
    answered,
    around,
    given,
    inputs,
    measured,
    reference,
)
from benchmarks.report import Rate, Row, complaints, left_out, times_table
from benchmarks.rounds import Patience, Timing, take_turns, timed
from regard.integrations import huggingface, torch_sdpa

ROOT = Path(__file__).parents[2]
LENGTH = 320  # beyond the window of 256, and whole blocks of BigBird
CLOSE = dict(rtol=0, atol=1e-5)  # float32 against float64, in sums of hundreds of weights


def small(case: Case) -> Case:
    whole = 2 * mechanisms.WINDOW if case.ours in mechanisms.SELF else LENGTH  # Hugging Face wants whole windows
    n, n_k = (case.shape[2], LENGTH) if case.n_k else (whole, 0)
    width = 64 if case.ours in ("additive", "favor") else 16  # what their matrices fit
    return replace(case, shape=(1, case.shape[1], n, width), n_k=n_k, dtype="float32")


ASKED = sorted({(case.ours, bool(case.key_heads)): small(case) for case in CASES if case.others}.items())
NAMES = [f"{kind}{', grouped' * grouped}" for (kind, grouped), _ in ASKED]


def test_every_case_names_functions_that_exist() -> None:
    for case in CASES + OTHER_MECHANISMS + QUICK:
        assert case.peer in FUNCTIONS
        assert case.ours in OURS
        assert answered(case.peer) in OURS
        assert not case.others or dense_question(small(case)).kind == case.ours
    assert {case.peer for case in CASES + OTHER_MECHANISMS} >= set(PEERS) | set(TWINS)


def test_no_case_is_asked_twice() -> None:
    for cases in (CASES, OTHER_MECHANISMS, QUICK):
        assert len({(case.name, case.peer) for case in cases}) == len(cases)


OF_PEERS = [small(case) for case in CASES + OTHER_MECHANISMS if case.peer in PEERS and case.ours not in models.RUNS]


@pytest.mark.parametrize("case", OF_PEERS, ids=lambda case: case.peer)
def test_torch_and_whoever_has_a_mechanism_answer_as_the_reference(case: Case) -> None:
    q, k, v = given(case.ours, case.shape, case.key_shape, case.dtype)
    torch.testing.assert_close(PEERS[case.peer](q, k, v), reference(answered(case.peer), q, k, v), **CLOSE)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("case", [case for _, case in ASKED], ids=NAMES)
def test_eager_torch_and_flex_attention_answer_as_the_reference(case: Case) -> None:
    q, k, v = inputs(case.shape, case.key_shape)
    expected = reference(case.ours, q, k, v)
    work = eager(dense_question(case), torch.get_num_threads())
    torch.testing.assert_close(torch.from_numpy(work.read(work.run())), expected, **CLOSE)
    score_mod, mask_mod = rules(case.ours, LENGTH)
    block_mask = mask_mod and create_block_mask(mask_mod, None, None, LENGTH, LENGTH, device="cpu")
    answer = flex_attention(q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=bool(case.key_heads))
    torch.testing.assert_close(answer, expected, **CLOSE)


@pytest.fixture(scope="module")
def twins() -> None:
    try:
        compiled.library()
    except compiled.CannotCompile as reason:
        pytest.skip(str(reason))


@pytest.mark.usefixtures("twins")
@pytest.mark.parametrize("twin", TWINS)
def test_a_twin_answers_as_the_program_that_it_stands_for(twin: str) -> None:
    leaves = [x.requires_grad_() for x in inputs((1, 8, LENGTH, 16), (1, 8, LENGTH, 16))]
    gradient = torch.randn(1, 8, LENGTH, 16, generator=torch.Generator().manual_seed(4))
    ours = FUNCTIONS[TWINS[twin]](*leaves)
    with around(twin):
        theirs = FUNCTIONS[twin](*leaves)
        their_gradients = torch.autograd.grad(theirs, leaves, gradient)
    torch.testing.assert_close(theirs, ours, **CLOSE)
    for one, other in zip(their_gradients, torch.autograd.grad(ours, leaves, gradient), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.usefixtures("twins")
def test_a_twin_runs_its_own_code() -> None:
    q, k, v = inputs((1, 8, LENGTH, 16), (1, 8, LENGTH, 16))
    with around("twin causal"):
        unaware = OURS["window"](q, k, v)  # the window's program is there, and nobody reads it
    assert not torch.allclose(unaware, OURS["window"](q, k, v))
    with around("twin window"):
        torch.testing.assert_close(OURS["window"](q, k, v), OURS["window"](q, k, v), **CLOSE)


@pytest.mark.usefixtures("twins")
def test_a_burst_tells_a_rate() -> None:
    assert 1e8 < compiled.burst(1) < 1e13


def test_the_twins_are_compiled_with_the_flags_of_the_library() -> None:
    text = (ROOT / "setup.py").read_text(encoding="utf8")
    flags = text[text.index("extra_compile_args") : text.index("libraries")]
    assert flags.count('"-') == len(compiled.FLAGS)
    assert all(f'"{flag}"' in flags for flag in compiled.FLAGS)


def test_a_library_in_a_process_of_its_own_answers_and_takes_turns() -> None:
    case = Case("window", (1, 1, LENGTH, 16), "sdpa mask window", "window", others=True)
    helper = Helper("eager", 1)
    try:
        check("eager", torch.from_numpy(helper.ask(dense_question(case))), "window", case)
        assert all(0 < helper.turn() < 10 for _ in range(3))
    finally:
        helper.close()


def test_another_answer_is_an_error() -> None:
    case = Case("window", (1, 1, LENGTH, 16), "sdpa causal", "window")
    q, k, v = inputs(case.shape, case.key_shape)
    with pytest.raises(WrongAnswer, match=r"sdpa must answer 'window' to 1e-04; its error is [0-9]e[+-]0[01]"):
        check("sdpa", PEERS["sdpa causal"](q, k, v), "window", case)


def test_an_answer_over_many_keys_is_small_and_still_must_be_right() -> None:
    case = replace(next(case for case in CASES if case.n_k), shape=(1, 1, 1, 8))
    right = reference("full", *inputs(case.shape, case.key_shape))
    assert right.abs().max() < 2e-2
    check("same", right, "full", case)
    with pytest.raises(WrongAnswer, match=r"off must answer '.*' to 1e-04; its error is 1e-03"):
        check("off", right * 1.001, "full", case)


def test_an_answer_in_bfloat16_may_be_off_by_its_rounding_alone() -> None:
    case = Case("half", (1, 1, LENGTH, 16), "sdpa", "full", dtype="bfloat16")
    q, k, v = inputs(case.shape, case.key_shape, case.dtype)
    assert q.dtype == torch.bfloat16
    check("sdpa", PEERS["sdpa"](q, k, v), "full", case)
    with pytest.raises(WrongAnswer, match=r"off must answer 'half' to 2e-02; its error is [34]e-02"):
        check("off", PEERS["sdpa"](q, k, 1.03 * v), "full", case)


def test_a_library_that_is_not_installed_says_so() -> None:
    with pytest.raises(Cannot, match="not installed"):
        Helper("no_such_library", 1).ask(dense_question(small(CASES[0])))


def test_a_library_that_lacks_something_says_so() -> None:
    pytest.importorskip("openvino", reason="the libraries to compare with are installed by make bench")
    asked: Question = dense_question(small(next(case for case in CASES if case.ours == "softcap")))
    with pytest.raises(Cannot, match="ScaledDotProductAttention has no softcap"):
        openvino(asked, 1)


def test_turns_go_on_until_the_seconds_are_spent_and_others_leave_early() -> None:
    order: list[str] = []

    def turn(name: str, seconds: float) -> float:
        order.append(name)
        return seconds

    patience = Patience(seconds=10.0, least=2, most=5, least_of_others=1, seconds_of_others=1.5)
    slow = take_turns(lambda: turn("p", 8.0), lambda: turn("o", 8.0), {}, {}, patience)
    assert (slow.peer, slow.ours) == ([8.0] * 2, [8.0] * 2)
    order.clear()
    times = iter([1.0, 1.0, 2.0, 2.0, 0.5, 0.5])  # the first to warm up
    fast = take_turns(
        lambda: turn("p", 4e-3), lambda: next(times), {"x": lambda: 1.0}, {"burst": lambda: 3e9}, patience
    )
    assert len(fast.ours) == 5
    assert fast.rates == {"burst": [3e9] * 5}
    assert fast.others == {"x": [1.0, 1.0]}
    assert fast.timing().ours == 0.5
    assert fast.timings_of_others()["x"].ours == 1.0  # the rounds in which both ran


def test_where_turns_are_slow_fewer_rounds_must_do() -> None:
    patience = Patience(seconds=10.0, least=5, slow=4.0, least_if_slow=3)
    assert len(take_turns(lambda: 5.0, lambda: 5.0, {}, {}, patience).ours) == 3
    assert len(take_turns(lambda: 2.0, lambda: 2.0, {}, {}, patience).ours) == 5


def test_a_turn_of_many_calls_tells_the_seconds_of_one() -> None:
    calls: list[int] = []
    seconds = timed(lambda: (calls.append(1), time.sleep(1e-3)), calls=20)()
    assert len(calls) == 20
    assert 1e-3 <= seconds < 1e-2


TIMING = Timing(peer=2.0, ours=1.0, peer_median=2.2, ours_median=1.1, rounds=5)


def row(memory: int = 0, failed: str = "", case: Case = CASES[0]) -> Row:
    return Row(
        case,
        *(1, TIMING, TIMING if case.gradients else None),
        others={"jax": TIMING},
        left_out={"keras": "not installed"},
        failed={"openvino": failed} if failed else {},
        burst=Rate(1e11, 5e10),
        reading=Rate(2e9, 1e9) if case.n_k else None,
        peer_memory=2**30,
        our_memory=memory,
    )


def test_a_row_that_keeps_a_number_for_each_pair_fails_the_run() -> None:
    assert largest_allowed(CASES[0]) == 4096**2
    assert complaints([row(memory=4096**2 - 1)]) == []
    (complaint,) = complaints([row(memory=4096**2)])
    assert complaint.startswith("regard took 16,777,216 bytes beyond its tensors for 'full, 8 heads, n 4096'; ")
    assert complaint.endswith("they must be fewer than 16,777,216")


def test_a_library_that_breaks_fails_the_run_and_one_that_cannot_does_not() -> None:
    assert complaints([row()]) == []
    assert complaints([row(failed="RuntimeError: x")]) == ["openvino: full, 8 heads, n 4096: RuntimeError: x"]
    assert left_out([row(), row()]) == ["keras left out, not installed: full, 8 heads, n 4096"]


def test_pairs_are_counted_by_queries_and_keys_and_sums_of_halves_are_floats() -> None:
    few = replace(CASES[0], shape=(1, 8, 100, 64), n_k=100_000)
    assert largest_allowed(few) == 100 * 100_000
    assert largest_allowed(replace(CASES[0], dtype="bfloat16")) == 4096**2 + 4 * 3 * 8 * 4096 * 64


def test_the_memory_of_a_model_is_not_that_of_pairs() -> None:
    encoder = next(case for case in CASES if case.ours == "encoder")
    assert complaints([row(memory=2**30, case=encoder)]) == []
    assert complaints([row(memory=2**30, case=replace(encoder, ours="full"))])


def test_memory_for_each_pair_is_noticed() -> None:
    case = Case("softcap", (1, 1, 2048, 16), "eager softcap", "softcap")
    of_pairs = partial(extra_memory, "eager softcap", case.shape, case.key_shape, "float32")
    assert of_pairs(gradients=True) > of_pairs(gradients=False) > 4 * 2048**2 > largest_allowed(case)


def test_the_share_of_the_peak_counts_both_products() -> None:
    assert row().peak_share == pytest.approx(4 * 8 * 4096**2 * 64 / 1.0 / 1e11)


def test_keys_and_values_are_read_once_and_compared_with_the_machine() -> None:
    case = Case("few", (1, 32, 4, 128), "sdpa gqa", "full", 8, n_k=16384, gradients=False)
    found = row(case=case)
    assert found.read_rate == 2 * 8 * 16384 * 128 * 4  # in one second
    assert found.read_share == pytest.approx(2 * 8 * 16384 * 128 * 4 / 2e9)
    assert found.peak_share == pytest.approx(4 * 32 * 4 * 16384 * 128 / 1e11)
    assert (row().read_rate, row().read_share) == (None, None)
    cells = [next(column.cells) for column in times_table([found, row()]).columns]
    assert cells == ["few", "sdpa gqa", "1", "2.00 s", "1.00 s", "0.1 GB/s", "2.0 GB/s", "0.07"]


@pytest.mark.parametrize("name", ["decode", "additive"])
def test_a_row_of_the_quick_run_is_measured(name: str) -> None:
    (case,) = (case for case in QUICK if case.name.startswith(name))
    found = Measuring(1, [], Patience(seconds=0.1, least=1, most=2)).row(case)
    assert found.forward.ours > 0
    assert complaints([found]) == []
    assert (found.backward is None) == (found.both is None) == (name == "decode")
    assert (found.reading is None) == (name == "additive")


def test_additive_in_chunks_has_the_gradients_of_all_pairs_at_once() -> None:
    leaves = [x.requires_grad_() for x in inputs((1, 1, 40, 64), (1, 1, 40, 64))]
    at_once, in_chunks = (
        torch.autograd.grad(f(*leaves).sin().sum(), leaves) for f in (additive.eager, additive.chunked)
    )
    for one, other in zip(at_once, in_chunks, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_what_is_measured_is_what_is_written_out() -> None:
    q, k, v = inputs((1, 1, 1024, 16), (1, 1, 1024, 16))
    torch.testing.assert_close(measured(q, k, v)().double(), reference("measure", q, k, v), rtol=1e-5, atol=0)


TOY = models.Sizes(layers=2, heads=4, width=32, hidden=64, vocabulary=100, longest=40)


@torch.no_grad()
def test_a_token_after_another_has_the_state_it_has_among_all() -> None:
    model, prompt = models.Model(TOY), torch.arange(10)[None]
    states = models.generate(model, prompt, count=6)
    chosen = (states @ model.tokens.weight.mT).argmax(-1)
    caches = [models.Cache(1, TOY) for _ in range(TOY.layers)]
    at_once = model(torch.cat([prompt, chosen[:, :-1]], 1), caches)
    torch.testing.assert_close(states, at_once[:, 9:], **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("run", [models.Model.__call__, partial(models.generate, count=4)], ids=["encoder", "decoder"])
def test_regard_stands_in_for_torch_in_a_model(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = models.Model(TOY), torch.arange(12).reshape(2, 6)
    with models.by_reference():
        expected = run(model, tokens)
    asked: list[int] = []
    answer = torch_sdpa.attention
    monkeypatch.setattr(torch_sdpa, "attention", lambda *a, **b: asked.append(1) or answer(*a, **b))
    with around("sdpa encoder"):
        torch.testing.assert_close(run(model, tokens), expected, **CLOSE)
    assert not asked
    with around("encoder"):
        torch.testing.assert_close(run(model, tokens), expected, **CLOSE)
    assert len(asked) in (TOY.layers, 4 * TOY.layers)


def test_a_training_step_is_the_same_on_torch_and_on_regard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.SIZES, "training", replace(models.LANGUAGE, layers=2, width=32, heads=4, vocabulary=50))
    models.random_model.cache_clear()
    tokens = models.prompts("training", 2, 90)
    right = models.right_beginning("training", tokens)
    for name in ("training", "sdpa training"):
        with around(name):
            found = FUNCTIONS[name](tokens)
        torch.testing.assert_close(found[:1], right, rtol=1e-3, atol=1e-4)  # float32, through two layers and back
    asked: list[int] = []
    answer = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(models.F, "scaled_dot_product_attention", lambda *a, **b: asked.append(1) or answer(*a, **b))
    FUNCTIONS["training"](tokens)
    assert not asked
    with around("sdpa training"):
        FUNCTIONS["sdpa training"](tokens)
    assert len(asked) == 2
    models.random_model.cache_clear()


@torch.no_grad()
def test_minilm_asks_regard_where_it_is_regards_turn_and_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, asked = models.prompts("minilm", 2, 9), []
    expected = reference("minilm", tokens)
    answer = huggingface.attention
    monkeypatch.setattr(huggingface, "attention", lambda *a, **b: asked.append(1) or answer(*a, **b))
    for name, calls in (("sdpa minilm", 0), ("minilm", 6)):
        with around(name):
            torch.testing.assert_close(FUNCTIONS[name](tokens)[:1], expected, rtol=0, atol=1e-5)  # six layers
        assert len(asked) == calls


def test_growth_is_measured_at_half_the_length_and_the_whole() -> None:
    found = growths(n=1024)
    assert [one.mask for one in found] == ["causal window 256", "BigBird"]
    assert all(min(one.plan, one.half, one.whole) > 0 for one in found)


def test_time_that_grows_faster_than_the_length_fails_the_run() -> None:
    straight = Growth("window", 1024, plan=0.1, half=1.0, whole=2.1)
    assert growth_complaints([straight]) == []
    (steep,) = growth_complaints([replace(straight, whole=2.4)])
    assert "2.40 times" in steep
    (slow,) = growth_complaints([replace(straight, plan=1.5)])
    assert "planned in 1.5 s" in slow


def test_every_library_that_has_a_mechanism_is_named_in_the_picture() -> None:
    assert set(picture.WORDS) == set(mechanisms.PEERS)


def test_the_picture_is_drawn_from_the_numbers_alone(tmp_path: Path) -> None:
    rows = [row(case=case) for case in CASES + OTHER_MECHANISMS]
    data = {"machine": {"processor": "any", "regard": "AVX2"}, "rows": [asdict(one) for one in rows]}
    source, target = tmp_path / "numbers.json", tmp_path / "picture.png"
    source.write_text(json.dumps(data))
    picture.draw(source, target)
    assert 10_000 < target.stat().st_size < 300_000


def test_every_mechanism_has_a_curve_or_runs_as_one_that_has() -> None:
    names = {m.name for m in regard.mechanisms()}
    assert set(growth.CALLS) | set(growth.SAME_AS) == names
    assert set(growth.SAME_AS.values()) <= set(growth.CALLS)
    assert not set(growth.CALLS) & set(growth.SAME_AS)


def test_curves_are_measured_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "LENGTHS", (256, 512))
    monkeypatch.setattr(
        growth, "CALLS", {name: growth.CALLS[name] for name in ("softmax", "linear attention", "GATv2")}
    )
    monkeypatch.setattr(growth, "OTHERS", {})
    told: list[str] = []

    found = growth.measure(1.0, (256, 512), told.append)

    assert told == ["softmax", "linear attention", "GATv2"]
    assert [(p.mechanism, p.n) for p in found] == [(name, n) for name in told for n in (256, 512)]
    assert all(p.seconds > 0 and p.memory >= 0 for p in found)
    source, target = tmp_path / "growth.json", tmp_path / "growth.png"
    source.write_text(json.dumps({"points": [asdict(p) for p in found]}))
    growth_picture.draw(source, target)
    assert 10_000 < target.stat().st_size < 500_000


def test_a_mechanism_is_left_where_a_call_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {256: 0.1, 512: 0.4, 1024: 1.6}
    monkeypatch.setattr(growth, "CALLS", {"softmax": growth.CALLS["softmax"]})
    monkeypatch.setattr(growth, "OTHERS", {})
    monkeypatch.setattr(growth, "_point", lambda name, call, n: growth.Point(name, n, seconds[n], 0))

    assert [p.n for p in growth.measure(1.0, tuple(seconds), print)] == [256, 512]


def test_a_crossing_lies_between_measured_lengths() -> None:
    slow = [growth.Point("slow", n, (n / 1000) ** 2, 0) for n in (500, 2000, 8000)]
    fast = [growth.Point("fast", n, n / 1000, 0) for n in (500, 2000, 8000)]

    assert growth.crossing(slow + fast, "slow", "fast") == 1000  # where n² and n meet
    assert growth.crossing(slow + fast, "fast", "slow") == 500  # from the first one on
    late = [growth.Point("late", p.n, 1e6, 0) for p in slow]
    assert growth.crossing(slow + late, "slow", "late") is None
