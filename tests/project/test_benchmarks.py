"""The benchmarks: all implementations compute the same, rounds are interleaved, and faults are reported."""

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
from benchmarks import plot_results
from benchmarks.baselines import eager_additive, mechanisms, models
from benchmarks.baselines.flex_mods import flex_mods
from benchmarks.baselines.libraries import DenseCall, Unsupported, eager, openvino
from benchmarks.cases import (
    BASELINES,
    BENCHMARK_CASES,
    FUNCTIONS,
    HANDWRITTEN,
    MECHANISM_CASES,
    QUICK_CASES,
    REGARD_CALLS,
    BenchmarkCase,
    call_name_of,
    case_inputs,
    execution_context,
    prepare_measures,
    random_qkv,
    reference_output,
)
from benchmarks.harness import handwritten_kernels
from benchmarks.harness.case_runner import CaseRunner, WrongOutput, check_output, dense_call
from benchmarks.harness.library_process import LibraryProcess
from benchmarks.harness.memory import extra_memory, max_extra_memory
from benchmarks.harness.timing import RoundLimits, Timing, as_timed_call, run_interleaved
from benchmarks.report import CaseResult, Rate, failed_checks, times_table, unsupported_lines
from benchmarks.studies import scaling, scaling_plot
from benchmarks.studies.length_doubling import LengthDoubling, doubling_failures, measure_doublings
from regard.integrations import torch_sdpa
from regard.integrations.huggingface import attention_interface

ROOT = Path(__file__).parents[2]
LENGTH = 320  # more than the window of 256, and a multiple of the blocks of BigBird
CLOSE = dict(rtol=0, atol=1e-5)  # float32 against float64, sums of hundreds of weights


def small(case: BenchmarkCase) -> BenchmarkCase:
    # the layers of Hugging Face need a multiple of the window
    length = 2 * mechanisms.WINDOW if case.call_name in mechanisms.SELF_ATTENTION_CALLS else LENGTH
    n, n_k = (case.shape[2], LENGTH) if case.n_k else (length, 0)
    head_dim = 64 if case.call_name in ("additive", "favor") else 16  # of their parameters
    return replace(case, shape=(1, case.shape[1], n, head_dim), n_k=n_k, dtype="float32")


LIBRARY_CASES = sorted(
    {
        (case.call_name, bool(case.num_kv_heads)): small(case) for case in BENCHMARK_CASES if case.has_library_baselines
    }.items()
)
NAMES = [f"{call_name}{', grouped' * grouped}" for (call_name, grouped), _ in LIBRARY_CASES]


def test_every_case_names_functions_that_exist() -> None:
    for case in BENCHMARK_CASES + MECHANISM_CASES + QUICK_CASES:
        assert case.baseline in FUNCTIONS
        assert case.call_name in REGARD_CALLS
        assert call_name_of(case.baseline) in REGARD_CALLS
        assert not case.has_library_baselines or dense_call(small(case)).name == case.call_name
    assert {case.baseline for case in BENCHMARK_CASES + MECHANISM_CASES} >= set(BASELINES) | set(HANDWRITTEN)


def test_no_case_is_listed_twice() -> None:
    for cases in (BENCHMARK_CASES, MECHANISM_CASES, QUICK_CASES):
        assert len({(case.name, case.baseline) for case in cases}) == len(cases)


BASELINE_CASES = [
    small(case)
    for case in BENCHMARK_CASES + MECHANISM_CASES
    if case.baseline in BASELINES and case.call_name not in models.MODEL_RUNS
]


@pytest.mark.parametrize("case", BASELINE_CASES, ids=lambda case: case.baseline)
def test_baselines_match_the_reference(case: BenchmarkCase) -> None:
    q, k, v = case_inputs(case.call_name, case.shape, case.key_shape, case.dtype)
    torch.testing.assert_close(
        BASELINES[case.baseline](q, k, v), reference_output(call_name_of(case.baseline), q, k, v), **CLOSE
    )


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("case", [case for _, case in LIBRARY_CASES], ids=NAMES)
def test_eager_torch_and_flex_attention_match_the_reference(case: BenchmarkCase) -> None:
    q, k, v = random_qkv(case.shape, case.key_shape)
    expected = reference_output(case.call_name, q, k, v)
    run = eager(dense_call(case), torch.get_num_threads())
    torch.testing.assert_close(torch.from_numpy(run.to_array(run.run())), expected, **CLOSE)
    score_mod, mask_mod = flex_mods(case.call_name, LENGTH)
    block_mask = mask_mod and create_block_mask(mask_mod, None, None, LENGTH, LENGTH, device="cpu")
    output = flex_attention(q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=bool(case.num_kv_heads))
    torch.testing.assert_close(output, expected, **CLOSE)


@pytest.fixture(scope="module")
def handwritten_library() -> None:
    try:
        handwritten_kernels.library()
    except handwritten_kernels.CompileError as reason:
        pytest.skip(str(reason))


@pytest.mark.long  # compiles C++ for ten seconds
@pytest.mark.usefixtures("handwritten_library")
@pytest.mark.parametrize("name", HANDWRITTEN)
def test_handwritten_kernels_match_the_interpreter(name: str) -> None:
    leaves = [x.requires_grad_() for x in random_qkv((1, 8, LENGTH, 16), (1, 8, LENGTH, 16))]
    gradient = torch.randn(1, 8, LENGTH, 16, generator=torch.Generator().manual_seed(4))
    expected = FUNCTIONS[HANDWRITTEN[name]](*leaves)
    with execution_context(name):
        output = FUNCTIONS[name](*leaves)
        grads = torch.autograd.grad(output, leaves, gradient)
    torch.testing.assert_close(output, expected, **CLOSE)
    for grad, expected_grad in zip(grads, torch.autograd.grad(expected, leaves, gradient), strict=True):
        torch.testing.assert_close(grad, expected_grad, **CLOSE)


@pytest.mark.long  # compiles C++ for ten seconds
@pytest.mark.usefixtures("handwritten_library")
def test_handwritten_kernels_replace_the_interpreter() -> None:
    q, k, v = random_qkv((1, 8, LENGTH, 16), (1, 8, LENGTH, 16))
    with execution_context("handwritten causal"):
        output = REGARD_CALLS["window"](q, k, v)  # the program of the window is not interpreted
    assert not torch.allclose(output, REGARD_CALLS["window"](q, k, v))
    with execution_context("handwritten window"):
        torch.testing.assert_close(REGARD_CALLS["window"](q, k, v), REGARD_CALLS["window"](q, k, v), **CLOSE)


@pytest.mark.long  # compiles C++ for ten seconds
@pytest.mark.usefixtures("handwritten_library")
def test_the_peak_rate_is_plausible() -> None:
    assert 1e8 < handwritten_kernels.measure_peak_flops(1) < 1e13


def test_handwritten_kernels_use_the_compiler_flags_of_the_library() -> None:
    flags = setup_variables()["FLAGS"]
    assert {name: text.split() for name, text in handwritten_kernels.FLAGS.items()} == flags
    assert "-ffp-contract=off" in flags["CORE_FLAGS"]


def setup_variables() -> dict[str, Any]:
    """The variables of setup.py, run without setuptools' own call."""
    text = (ROOT / "setup.py").read_text(encoding="utf8")
    variables: dict[str, Any] = {}
    exec(compile(text[: text.index("\nclass BuildCore")], "setup.py", "exec"), variables)
    return variables


def test_a_library_process_computes_and_times_a_call() -> None:
    case = BenchmarkCase("window", (1, 1, LENGTH, 16), "sdpa mask window", "window", has_library_baselines=True)
    process = LibraryProcess("eager", 1)
    try:
        check_output("eager", torch.from_numpy(process.prepare(dense_call(case))), "window", case)
        assert all(0 < process.time_once() < 10 for _ in range(3))
    finally:
        process.close()


def test_a_wrong_output_is_an_error() -> None:
    case = BenchmarkCase("window", (1, 1, LENGTH, 16), "sdpa causal", "window")
    q, k, v = random_qkv(case.shape, case.key_shape)
    with pytest.raises(
        WrongOutput, match=r"the error of sdpa in 'window' must be less than 1e-04; got [0-9]e[+-]0[01]"
    ):
        check_output("sdpa", BASELINES["sdpa causal"](q, k, v), "window", case)


def test_the_error_of_a_small_output_is_relative() -> None:
    case = replace(next(case for case in BENCHMARK_CASES if case.n_k), shape=(1, 1, 1, 8))
    expected = reference_output("full", *random_qkv(case.shape, case.key_shape))
    assert expected.abs().max() < 2e-2
    check_output("same", expected, "full", case)
    with pytest.raises(WrongOutput, match=r"the error of off in '.*' must be less than 1e-04; got 1e-03"):
        check_output("off", expected * 1.001, "full", case)


def test_an_output_in_bfloat16_may_have_its_rounding_error() -> None:
    case = BenchmarkCase("half", (1, 1, LENGTH, 16), "sdpa", "full", dtype="bfloat16")
    q, k, v = random_qkv(case.shape, case.key_shape, case.dtype)
    assert q.dtype == torch.bfloat16
    check_output("sdpa", BASELINES["sdpa"](q, k, v), "full", case)
    with pytest.raises(WrongOutput, match=r"the error of off in 'half' must be less than 2e-02; got [34]e-02"):
        check_output("off", BASELINES["sdpa"](q, k, 1.03 * v), "full", case)


def test_a_library_that_is_not_installed_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="not installed"):
        LibraryProcess("no_such_library", 1).prepare(dense_call(small(BENCHMARK_CASES[0])))


def test_a_library_without_a_feature_is_unsupported() -> None:
    pytest.importorskip("openvino", reason="make bench installs the libraries for comparison")
    call: DenseCall = dense_call(small(next(case for case in BENCHMARK_CASES if case.call_name == "softcap")))
    with pytest.raises(Unsupported, match="ScaledDotProductAttention has no softcap"):
        openvino(call, 1)


def test_rounds_end_at_the_time_limit_and_libraries_earlier() -> None:
    order: list[str] = []

    def timed(name: str, seconds: float) -> float:
        order.append(name)
        return seconds

    limits = RoundLimits(time_limit_s=10.0, min_rounds=2, max_rounds=5, min_library_rounds=1, library_time_limit_s=1.5)
    slow = run_interleaved(lambda: timed("p", 8.0), lambda: timed("o", 8.0), {}, {}, limits)
    assert (slow.baseline, slow.regard) == ([8.0] * 2, [8.0] * 2)
    order.clear()
    times = iter([1.0, 1.0, 2.0, 2.0, 0.5, 0.5])  # the first is the warm-up
    fast = run_interleaved(
        lambda: timed("p", 4e-3), lambda: next(times), {"x": lambda: 1.0}, {"peak": lambda: 3e9}, limits
    )
    assert len(fast.regard) == 5
    assert fast.rates == {"peak": [3e9] * 5}
    assert fast.libraries == {"x": [1.0, 1.0]}
    assert fast.timing().regard == 0.5
    assert fast.library_timings()["x"].regard == 1.0  # of the common rounds


def test_slow_calls_have_fewer_rounds() -> None:
    limits = RoundLimits(time_limit_s=10.0, min_rounds=5, slow_call_s=4.0, min_slow_rounds=3)
    assert len(run_interleaved(lambda: 5.0, lambda: 5.0, {}, {}, limits).regard) == 3
    assert len(run_interleaved(lambda: 2.0, lambda: 2.0, {}, {}, limits).regard) == 5


def test_a_timed_call_returns_the_mean_of_its_calls() -> None:
    calls: list[int] = []
    seconds = as_timed_call(lambda: (calls.append(1), time.sleep(1e-3)), calls=20)()
    assert len(calls) == 20
    assert 1e-3 <= seconds < 1e-2


TIMING = Timing(baseline=2.0, regard=1.0, baseline_median=2.2, regard_median=1.1, rounds=5)


def row(memory: int = 0, failure: str = "", case: BenchmarkCase = BENCHMARK_CASES[0]) -> CaseResult:
    return CaseResult(
        case,
        *(1, TIMING, TIMING if case.has_backward else None),
        libraries={"jax": TIMING},
        unsupported={"keras": "not installed"},
        failures={"openvino": failure} if failure else {},
        peak_flops=Rate(1e11, 5e10),
        read_bandwidth=Rate(2e9, 1e9) if case.n_k else None,
        baseline_memory=2**30,
        regard_memory=memory,
    )


def test_memory_for_every_pair_fails_the_run() -> None:
    assert max_extra_memory(BENCHMARK_CASES[0]) == 4096**2
    assert failed_checks([row(memory=4096**2 - 1)]) == []
    (message,) = failed_checks([row(memory=4096**2)])
    assert message == (
        "regard must take less than 16,777,216 bytes beyond its tensors for 'full, 8 heads, n 4096'; got 16,777,216"
    )


def test_a_failing_library_fails_the_run_and_an_unsupported_one_does_not() -> None:
    assert failed_checks([row()]) == []
    assert failed_checks([row(failure="RuntimeError: x")]) == ["openvino: full, 8 heads, n 4096: RuntimeError: x"]
    assert unsupported_lines([row(), row()]) == ["keras skipped, not installed: full, 8 heads, n 4096"]


def test_the_memory_limit_counts_pairs_and_gradient_buffers() -> None:
    decode = replace(BENCHMARK_CASES[0], shape=(1, 8, 100, 64), n_k=100_000)
    assert max_extra_memory(decode) == 100 * 100_000
    assert max_extra_memory(replace(BENCHMARK_CASES[0], dtype="bfloat16")) == 4096**2 + 4 * 3 * 8 * 4096 * 64


def test_the_memory_of_models_is_not_checked() -> None:
    encoder = next(case for case in BENCHMARK_CASES if case.call_name == "encoder")
    assert failed_checks([row(memory=2**30, case=encoder)]) == []
    assert failed_checks([row(memory=2**30, case=replace(encoder, call_name="full"))])


@pytest.mark.long
def test_extra_memory_includes_stored_pairs() -> None:
    case = BenchmarkCase("softcap", (1, 1, 2048, 16), "eager softcap", "softcap")
    memory = partial(extra_memory, "eager softcap", case.shape, case.key_shape, "float32")
    assert memory(gradients=True) > memory(gradients=False) > 4 * 2048**2 > max_extra_memory(case)


def test_the_fraction_of_the_peak_counts_both_products() -> None:
    assert row().fraction_of_peak == pytest.approx(4 * 8 * 4096**2 * 64 / 1.0 / 1e11)


def test_the_read_rate_counts_keys_and_values_once() -> None:
    case = BenchmarkCase("few", (1, 32, 4, 128), "sdpa gqa", "full", 8, n_k=16384, has_backward=False)
    result = row(case=case)
    assert result.kv_bytes_per_second == 2 * 8 * 16384 * 128 * 4  # in one second
    assert result.fraction_of_bandwidth == pytest.approx(2 * 8 * 16384 * 128 * 4 / 2e9)
    assert result.fraction_of_peak == pytest.approx(4 * 32 * 4 * 16384 * 128 / 1e11)
    assert (row().kv_bytes_per_second, row().fraction_of_bandwidth) == (None, None)
    cells = [next(column.cells) for column in times_table([result, row()]).columns]
    assert cells == ["few", "sdpa gqa", "1", "2.00 s", "1.00 s", "0.1 GB/s", "2.0 GB/s", "0.07"]


@pytest.mark.long  # measures the machine first
@pytest.mark.parametrize("name", ["decode", "additive"])
def test_a_quick_case_is_measured(name: str) -> None:
    (case,) = (case for case in QUICK_CASES if case.name.startswith(name))
    result = CaseRunner(1, [], RoundLimits(time_limit_s=0.1, min_rounds=1, max_rounds=2)).run_case(case)
    assert result.forward.regard > 0
    assert failed_checks([result]) == []
    assert (result.backward is None) == (result.forward_backward is None) == (name == "decode")
    assert (result.read_bandwidth is None) == (name == "additive")


def test_chunked_additive_has_the_gradients_of_the_unchunked_one() -> None:
    leaves = [x.requires_grad_() for x in random_qkv((1, 1, 40, 64), (1, 1, 40, 64))]
    at_once, in_chunks = (
        torch.autograd.grad(f(*leaves).sin().sum(), leaves)
        for f in (eager_additive.eager_additive, eager_additive.chunked_additive)
    )
    for grad, expected in zip(in_chunks, at_once, strict=True):
        torch.testing.assert_close(grad, expected, **CLOSE)


def test_measures_match_their_formulas() -> None:
    q, k, v = random_qkv((1, 1, 1024, 16), (1, 1, 1024, 16))
    torch.testing.assert_close(
        prepare_measures(q, k, v)().double(), reference_output("measure", q, k, v), rtol=1e-5, atol=0
    )


TOY = models.BenchmarkSizes(num_layers=2, num_heads=4, embed_dim=32, ffn_dim=64, vocab_size=100, max_len=40)


@torch.no_grad()
def test_generated_states_match_those_of_the_whole_sequence() -> None:
    model, prompt = models.TransformerModel(TOY), torch.arange(10)[None]
    states = models.generate_states(model, prompt, max_new_tokens=6)
    new_tokens = (states @ model.token_embedding.weight.mT).argmax(-1)
    caches = [models.StaticCache(1, TOY) for _ in range(TOY.num_layers)]
    at_once = model(torch.cat([prompt, new_tokens[:, :-1]], 1), caches)
    torch.testing.assert_close(states, at_once[:, 9:], **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize(
    "run",
    [models.TransformerModel.__call__, partial(models.generate_states, max_new_tokens=4)],
    ids=["encoder", "decoder"],
)
def test_regard_replaces_torch_in_a_model(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = models.TransformerModel(TOY), torch.arange(12).reshape(2, 6)
    with models.use_reference_backend():
        expected = run(model, tokens)
    calls: list[int] = []
    attention = torch_sdpa.attention
    monkeypatch.setattr(torch_sdpa, "attention", lambda *a, **b: calls.append(1) or attention(*a, **b))
    with execution_context("sdpa encoder"):
        torch.testing.assert_close(run(model, tokens), expected, **CLOSE)
    assert not calls
    with execution_context("encoder"):
        torch.testing.assert_close(run(model, tokens), expected, **CLOSE)
    assert len(calls) in (TOY.num_layers, 4 * TOY.num_layers)


def test_a_training_step_is_the_same_on_torch_and_on_regard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        models.BENCHMARK_SIZES,
        "training",
        replace(models.LANGUAGE, num_layers=2, embed_dim=32, num_heads=4, vocab_size=50),
    )
    models.random_model.cache_clear()
    tokens = models.prompts("training", 2, 90)
    expected = models.reference_prefix("training", tokens)
    for name in ("training", "sdpa training"):
        with execution_context(name):
            output = FUNCTIONS[name](tokens)
        torch.testing.assert_close(output[:1], expected, rtol=1e-3, atol=1e-4)  # float32, two layers, both passes
    calls: list[int] = []
    sdpa = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(models.F, "scaled_dot_product_attention", lambda *a, **b: calls.append(1) or sdpa(*a, **b))
    FUNCTIONS["training"](tokens)
    assert not calls
    with execution_context("sdpa training"):
        FUNCTIONS["sdpa training"](tokens)
    assert len(calls) == 2
    models.random_model.cache_clear()


@torch.no_grad()
def test_minilm_gives_the_same_output_on_regard(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, calls = models.prompts("minilm", 2, 9), []
    expected = reference_output("minilm", tokens)
    attention = attention_interface.attention
    monkeypatch.setattr(attention_interface, "attention", lambda *a, **b: calls.append(1) or attention(*a, **b))
    for name, num_calls in (("sdpa minilm", 0), ("minilm", 6)):
        with execution_context(name):
            torch.testing.assert_close(FUNCTIONS[name](tokens)[:1], expected, rtol=0, atol=1e-5)  # six layers
        assert len(calls) == num_calls


def test_times_are_measured_at_half_and_full_length() -> None:
    doublings = measure_doublings(n=1024)
    assert [doubling.mask for doubling in doublings] == ["causal window 256", "BigBird"]
    assert all(min(d.planning_s, d.half_length_s, d.full_length_s) > 0 for d in doublings)


def test_time_that_grows_faster_than_the_length_fails_the_run() -> None:
    linear = LengthDoubling("window", 1024, planning_s=0.1, half_length_s=1.0, full_length_s=2.1)
    assert doubling_failures([linear]) == []
    (steep,) = doubling_failures([replace(linear, full_length_s=2.4)])
    assert "got 2.40 times" in steep
    (slow,) = doubling_failures([replace(linear, planning_s=1.5)])
    assert "got 1.5 s" in slow


def test_every_baseline_of_a_mechanism_has_a_label() -> None:
    assert set(plot_results.BASELINE_LABELS) == set(mechanisms.MECHANISM_BASELINES)


def test_results_are_plotted(tmp_path: Path) -> None:
    rows = [asdict(row(case=case)) for case in BENCHMARK_CASES + MECHANISM_CASES]
    assert all(plot_results._label(result) for result in rows)
    panels = [list(filter(selects, rows)) for selects in plot_results.PANELS.values()]
    assert all(panels)
    some = [result for panel in panels for result in panel[:2]]  # drawing all of them takes five seconds
    data = {"machine": {"processor": "any", "regard": "AVX2"}, "rows": some}
    source, target = tmp_path / "numbers.json", tmp_path / "picture.png"
    source.write_text(json.dumps(data))
    plot_results.plot_results(source, target)
    assert 10_000 < target.stat().st_size < 500_000


def test_every_mechanism_is_measured_or_equivalent_to_one() -> None:
    names = {m.name for m in regard.mechanisms.catalog()}
    assert set(scaling.MECHANISM_CALLS) | set(scaling.EQUIVALENT_CALLS) == names
    assert set(scaling.EQUIVALENT_CALLS.values()) <= set(scaling.MECHANISM_CALLS)
    assert not set(scaling.MECHANISM_CALLS) & set(scaling.EQUIVALENT_CALLS)


def test_scaling_is_measured_and_plotted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "LENGTHS", (256, 512))
    monkeypatch.setattr(
        scaling,
        "MECHANISM_CALLS",
        {name: scaling.MECHANISM_CALLS[name] for name in ("softmax", "linear attention", "GATv2")},
    )
    monkeypatch.setattr(scaling, "EXTERNAL_CALLS", {})
    names: list[str] = []

    points = scaling.measure_points(1.0, (256, 512), names.append)

    assert names == ["softmax", "linear attention", "GATv2"]
    assert [(p.mechanism, p.n) for p in points] == [(name, n) for name in names for n in (256, 512)]
    assert all(p.seconds > 0 and p.memory >= 0 for p in points)
    source, target = tmp_path / "scaling.json", tmp_path / "scaling.png"
    source.write_text(json.dumps({"points": [asdict(p) for p in points]}))
    scaling_plot.plot_scaling(source, target)
    assert 10_000 < target.stat().st_size < 500_000


def test_chosen_mechanisms_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "_measure_point", lambda name, call, n: scaling.Point(name, n, 0.1, 0))
    names = ["sparsemax", "causal"]
    assert [p.mechanism for p in scaling.measure_points(1.0, (256,), print, names)] == names


def test_a_mechanism_is_not_measured_at_lengths_that_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {256: 0.1, 512: 0.4, 1024: 1.6}
    monkeypatch.setattr(scaling, "MECHANISM_CALLS", {"softmax": scaling.MECHANISM_CALLS["softmax"]})
    monkeypatch.setattr(scaling, "EXTERNAL_CALLS", {})
    monkeypatch.setattr(scaling, "_measure_point", lambda name, call, n: scaling.Point(name, n, seconds[n], 0))

    assert [p.n for p in scaling.measure_points(1.0, tuple(seconds), print)] == [256, 512]


def test_the_crossover_is_interpolated_between_lengths() -> None:
    slow = [scaling.Point("slow", n, (n / 1000) ** 2, 0) for n in (500, 2000, 8000)]
    fast = [scaling.Point("fast", n, n / 1000, 0) for n in (500, 2000, 8000)]

    assert scaling.crossover(slow + fast, "slow", "fast") == 1000  # where n² and n are equal
    assert scaling.crossover(slow + fast, "fast", "slow") == 500  # from the first length on
    late = [scaling.Point("late", p.n, 1e6, 0) for p in slow]
    assert scaling.crossover(slow + late, "slow", "late") is None
