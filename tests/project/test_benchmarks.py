"""The benchmarks: everybody answers the same question, turns are fair, and what is wrong is said."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks import compiled, picture
from benchmarks.flex_rules import rules
from benchmarks.helper import Helper
from benchmarks.measuring import WrongAnswer, check, dense_question
from benchmarks.memory import extra_memory, largest_allowed
from benchmarks.peers import Cannot, Question, eager, openvino
from benchmarks.questions import (
    CASES,
    FUNCTIONS,
    OURS,
    PEERS,
    QUICK,
    TWINS,
    Case,
    answered,
    around,
    inputs,
    reference,
)
from benchmarks.report import Burst, Row, complaints, left_out
from benchmarks.rounds import Patience, Timing, take_turns

ROOT = Path(__file__).parents[2]
LENGTH = 320  # beyond the window of 256, and whole blocks of BigBird
CLOSE = dict(rtol=0, atol=1e-5)  # float32 against float64, in sums of hundreds of weights


def small(case: Case) -> Case:
    return replace(case, shape=(1, case.shape[1], LENGTH, 16))


ASKED = sorted({(case.ours, bool(case.key_heads)): small(case) for case in CASES if case.others}.items())
NAMES = [f"{kind}{', grouped' * grouped}" for (kind, grouped), _ in ASKED]


def test_every_case_names_functions_that_exist() -> None:
    for case in CASES + QUICK:
        assert case.peer in FUNCTIONS
        assert case.ours in OURS
        assert answered(case.peer) in OURS
        assert not case.others or dense_question(small(case)).kind == case.ours
    assert {case.peer for case in CASES} >= set(PEERS) | set(TWINS)


def test_no_case_is_asked_twice() -> None:
    for cases in (CASES, QUICK):
        assert len({(case.name, case.peer) for case in cases}) == len(cases)


@pytest.mark.parametrize("case", [small(case) for case in CASES if case.peer in PEERS], ids=lambda case: case.peer)
def test_torch_answers_as_the_reference(case: Case) -> None:
    q, k, v = inputs(case.shape, case.key_shape)
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
        check("eager", helper.ask(dense_question(case)), "window", case)
        assert all(0 < helper.turn() < 10 for _ in range(3))
    finally:
        helper.close()


def test_another_answer_is_an_error() -> None:
    case = Case("window", (1, 1, LENGTH, 16), "sdpa causal", "window")
    q, k, v = inputs(case.shape, case.key_shape)
    with pytest.raises(WrongAnswer, match=r"sdpa must answer 'window' to 1e-04; its error is [0-9]e-01"):
        check("sdpa", PEERS["sdpa causal"](q, k, v).numpy(), "window", case)


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
    slow = take_turns(lambda: turn("p", 8.0), lambda: turn("o", 8.0), {}, None, patience)
    assert (slow.peer, slow.ours) == ([8.0] * 2, [8.0] * 2)
    order.clear()
    times = iter([1.0, 1.0, 2.0, 2.0, 0.5, 0.5])  # the first to warm up
    fast = take_turns(lambda: turn("p", 4e-3), lambda: next(times), {"x": lambda: 1.0}, lambda: 3e9, patience)
    assert len(fast.ours) == len(fast.bursts) == 5
    assert fast.others == {"x": [1.0, 1.0]}
    assert fast.timing().ours == 0.5
    assert fast.timings_of_others()["x"].ours == 1.0  # the rounds in which both ran


def row(memory: int = 0, failed: str = "") -> Row:
    timing = Timing(peer=2.0, ours=1.0, peer_median=2.2, ours_median=1.1, rounds=5)
    return Row(
        CASES[0],
        *(1, timing, timing),
        others={"jax": timing},
        left_out={"keras": "not installed"},
        failed={"openvino": failed} if failed else {},
        burst=Burst(1e11, 5e10),
        peer_memory=2**30,
        our_memory=memory,
    )


def test_a_row_that_keeps_a_number_for_each_pair_fails_the_run() -> None:
    assert largest_allowed(4096) == 4096**2
    assert complaints([row(memory=4096**2 - 1)]) == []
    (complaint,) = complaints([row(memory=4096**2)])
    assert complaint.startswith("regard took 16,777,216 bytes beyond its tensors for 'full, 8 heads, n 4096'; ")
    assert complaint.endswith("they must be fewer than 16,777,216")


def test_a_library_that_breaks_fails_the_run_and_one_that_cannot_does_not() -> None:
    assert complaints([row()]) == []
    assert complaints([row(failed="RuntimeError: x")]) == ["openvino: full, 8 heads, n 4096: RuntimeError: x"]
    assert left_out([row(), row()]) == ["keras left out, not installed: full, 8 heads, n 4096"]


def test_memory_for_each_pair_is_noticed() -> None:
    assert extra_memory("eager softcap", (1, 1, 2048, 16), 1) > 4 * 2048**2 > largest_allowed(2048)


def test_the_share_of_the_peak_counts_both_products() -> None:
    assert row().peak_share == pytest.approx(4 * 8 * 4096**2 * 64 / 1.0 / 1e11)


def test_the_picture_is_drawn_from_the_numbers_alone(tmp_path: Path) -> None:
    rows = [replace(row(), case=case) for case in CASES]
    data = {"machine": {"processor": "any", "regard": "AVX2"}, "rows": [asdict(one) for one in rows]}
    source, target = tmp_path / "numbers.json", tmp_path / "picture.png"
    source.write_text(json.dumps(data))
    picture.draw(source, target)
    assert 10_000 < target.stat().st_size < 200_000
