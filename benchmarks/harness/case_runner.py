"""Run one case: check every output, then measure in interleaved rounds."""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import torch
from torch import Tensor

from benchmarks.baselines.libraries import DenseCall, LibraryError, Unsupported
from benchmarks.cases import (
    REGARD_CALLS,
    SOFTCAP,
    BenchmarkCase,
    Shape,
    bind_inputs,
    call_name_of,
    case_inputs,
    dense_mask,
    dense_score_bias,
    execution_context,
    random_qkv,
    reference_output,
)
from benchmarks.harness import handwritten_kernels
from benchmarks.harness.library_process import LibraryProcess
from benchmarks.harness.memory import extra_memory
from benchmarks.harness.timing import RoundLimits, RoundTimes, TimedCall, as_timed_call, run_interleaved
from benchmarks.report import CaseResult, Rate

# rounding to bfloat16 changes weights and outputs by up to 2^-9, relatively
MAX_RELATIVE_ERROR = {"float32": 1e-4, "bfloat16": 2e-2}
MAX_REFERENCE_PAIRS = 2**27  # larger cases are compared with the native backend


class WrongOutput(Exception):
    """Raised when an implementation returns a wrong output."""


@cache
def expected_output(call_name: str, shape: Shape, key_shape: Shape, dtype: str) -> Tensor:
    pairs = math.prod(shape[:3]) * key_shape[2]
    function = partial(reference_output, call_name) if pairs <= MAX_REFERENCE_PAIRS else REGARD_CALLS[call_name]
    inputs = case_inputs(call_name, shape, key_shape, dtype)
    return function(*(x.float() if x.is_floating_point() else x for x in inputs))


def check_output(function: str, output: Tensor, call_name: str, case: BenchmarkCase) -> None:
    """Check the error of each row relative to its largest number, since outputs over many keys are small.

    Rows of zeros, such as the gradient of a token without queries, must be exactly 0.
    """
    expected = expected_output(call_name, case.shape, case.key_shape, case.dtype)
    errors = (output[: expected.shape[0], : expected.shape[1]] - expected).abs().amax(-1)
    errors = errors / expected.abs().amax(-1).clamp(min=1e-30)
    error, allowed = float(errors.max()), MAX_RELATIVE_ERROR[case.dtype]
    if not error < allowed:
        raise WrongOutput(f"the error of {function} in '{case.name}' must be less than {allowed:.0e}; got {error:.0e}")


def dense_call(case: BenchmarkCase) -> DenseCall:
    """Return the case with dense arrays, for other libraries."""
    kind, n = case.call_name, case.shape[2]
    q, k, v = (x.numpy() for x in random_qkv(case.shape, case.key_shape))
    masked = kind in ("tensor", "window", "documents", "bigbird", "longformer")
    biased = kind in ("alibi", "bias", "table", "t5")
    return DenseCall(
        kind,
        *(q, k, v),
        mask=dense_mask("causal" if kind == "tensor" else kind, n).numpy() if masked else None,
        bias=dense_score_bias(kind, n).numpy() if biased else None,
        softcap=SOFTCAP if kind == "softcap" else None,
    )


def read_bandwidth(k: Tensor, v: Tensor) -> float:
    """Return the bytes per second at which torch sums all keys and values."""
    return (k.nbytes + v.nbytes) / as_timed_call(lambda: (k.sum(), v.sum()))()


class CaseRunner:
    """Runs cases with one number of threads; library processes are reused."""

    def __init__(self, num_threads: int, libraries: list[str], limits: RoundLimits) -> None:
        self.num_threads, self.limits = num_threads, limits
        self.processes = [LibraryProcess(name, num_threads) for name in libraries]
        self.rate_functions: dict[str, Callable[[], float]] = {}
        try:
            handwritten_kernels.library()
            self.rate_functions["burst"] = partial(handwritten_kernels.measure_peak_flops, num_threads)
        except handwritten_kernels.CompileError:
            pass  # `plan_runs` reports it once

    def close(self) -> None:
        for process in self.processes:
            process.close()

    def run_case(self, case: BenchmarkCase) -> CaseResult:
        torch.set_num_threads(os.cpu_count() or 1)  # nothing is timed yet
        inputs = case_inputs(case.call_name, case.shape, case.key_shape, case.dtype)
        with torch.no_grad():
            for name in (case.baseline, case.call_name):
                with execution_context(name):
                    output = bind_inputs(name, inputs)()
                check_output(name, output, call_name_of(name), case)
            libraries, unsupported, failures = self._prepare_libraries(case)
            torch.set_num_threads(self.num_threads)
            baseline, regard = (
                self._timed_call(name, bind_inputs(name, inputs), case.calls_per_round)
                for name in (case.baseline, case.call_name)
            )
            rates = self.rate_functions | ({"reading": partial(read_bandwidth, *inputs[1:])} if case.n_k else {})
            forward = run_interleaved(baseline, regard, libraries, rates, self.limits)
        backward = self._time_backward(case, inputs) if case.has_backward else None
        memory_of = partial(
            extra_memory, shape=case.shape, key_shape=case.key_shape, dtype=case.dtype, gradients=case.has_backward
        )
        with ThreadPoolExecutor() as pool:  # in parallel, since no time is measured
            baseline_memory, regard_memory = pool.map(memory_of, (case.baseline, case.call_name))
        return CaseResult(
            case,
            self.num_threads,
            forward.timing(),
            backward.timing() if backward else None,
            libraries=forward.library_timings(),
            unsupported=unsupported,
            failures=failures,
            peak_flops=Rate.from_rounds(forward, *([backward] if backward else []), name="burst"),
            read_bandwidth=Rate.from_rounds(forward, name="reading"),
            baseline_memory=baseline_memory,
            regard_memory=regard_memory,
        )

    def _timed_call(self, name: str, work: Callable[[], object], calls: int = 1) -> TimedCall:
        timed = as_timed_call(work, calls)

        def timed_in_context() -> float:
            with execution_context(name):
                return timed()

        return timed_in_context

    def _time_backward(self, case: BenchmarkCase, inputs: tuple[Tensor, ...]) -> RoundTimes:
        leaves = [x.requires_grad_() for x in inputs]
        gradient = torch.randn(case.shape).to(leaves[0])

        def gradients_of(name: str) -> Callable[[], object]:
            with execution_context(name):
                output = bind_inputs(name, inputs)()
            return lambda: torch.autograd.grad(output, leaves, gradient, retain_graph=True)

        baseline, regard = (self._timed_call(name, gradients_of(name)) for name in (case.baseline, case.call_name))
        return run_interleaved(baseline, regard, {}, self.rate_functions, self.limits)

    def _prepare_libraries(self, case: BenchmarkCase) -> tuple[dict[str, TimedCall], dict[str, str], dict[str, str]]:
        """Return the timed calls of libraries, why some do not support the case, and the errors of others."""
        ready: dict[str, TimedCall] = {}
        unsupported: dict[str, str] = {}
        failures: dict[str, str] = {}
        if case.has_library_baselines:
            call = dense_call(case)
            for process in self.processes:
                try:
                    check_output(process.library, torch.from_numpy(process.prepare(call)), case.call_name, case)
                    ready[process.library] = process.time_once
                except Unsupported as reason:
                    unsupported[process.library] = str(reason)
                except (LibraryError, WrongOutput) as failure:
                    failures[process.library] = str(failure)
        return ready, unsupported, failures
