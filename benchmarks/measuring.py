"""One case: everybody's answer is checked, then they take turns."""

import os
import statistics
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from benchmarks import compiled
from benchmarks.helper import Helper
from benchmarks.memory import extra_memory
from benchmarks.peers import Array, Cannot, Failed, Question
from benchmarks.questions import (
    CAP,
    FUNCTIONS,
    OURS,
    Case,
    Shape,
    added,
    answered,
    around,
    dense_mask,
    inputs,
    reference,
)
from benchmarks.report import Burst, Row
from benchmarks.rounds import Patience, Turn, take_turns, timed

LARGEST_ERROR = 1e-4
LARGEST_REFERENCE = 2**27  # pairs, in float64: beyond them the compiled kernels say what is right


class WrongAnswer(Exception):
    """Somebody answered another question than was asked."""


@cache
def expected(question: str, shape: Shape, key_shape: Shape) -> Array:
    batch, heads, n, _ = shape
    answer = partial(reference, question) if batch * heads * n * n <= LARGEST_REFERENCE else OURS[question]
    return answer(*inputs(shape, key_shape)).numpy()


def check(who: str, answer: Array, question: str, case: Case) -> None:
    error = float(np.abs(answer - expected(question, case.shape, case.key_shape)).max())
    if not error < LARGEST_ERROR:
        raise WrongAnswer(f"{who} must answer '{case.name}' to {LARGEST_ERROR:.0e}; its error is {error:.0e}")


def dense_question(case: Case) -> Question:
    """The case as other libraries take it."""
    kind, n = case.ours, case.shape[2]
    q, k, v = (x.numpy() for x in inputs(case.shape, case.key_shape))
    masked = kind in ("tensor", "window", "documents", "bigbird", "longformer")
    biased = kind in ("alibi", "bias", "table", "t5")
    return Question(
        kind,
        *(q, k, v),
        mask=dense_mask("causal" if kind == "tensor" else kind, n).numpy() if masked else None,
        bias=added(kind, n).numpy() if biased else None,
        cap=CAP if kind == "softcap" else None,
    )


class Measuring:
    """One number of threads: helpers stay alive from case to case."""

    def __init__(self, threads: int, libraries: list[str], patience: Patience) -> None:
        self.threads, self.patience = threads, patience
        self.helpers = [Helper(name, threads) for name in libraries]
        self.burst: Callable[[], float] | None = None
        try:
            compiled.library()
            self.burst = partial(compiled.burst, threads)
        except compiled.CannotCompile:
            pass  # said once, by main

    def close(self) -> None:
        for helper in self.helpers:
            helper.close()

    def row(self, case: Case) -> Row:
        torch.set_num_threads(os.cpu_count() or 1)  # nothing is timed yet
        q, k, v = (x.requires_grad_() for x in inputs(case.shape, case.key_shape))
        gradient = torch.randn(case.shape)
        with torch.no_grad():
            for name in (case.peer, case.ours):
                with around(name):
                    answer = FUNCTIONS[name](q, k, v)
                check(name, answer.numpy(), answered(name), case)
            ready, absent, failed = self._others(case)
            torch.set_num_threads(self.threads)
            peer, ours = (self._turn(name, partial(FUNCTIONS[name], q, k, v)) for name in (case.peer, case.ours))
            forward = take_turns(peer, ours, ready, self.burst, self.patience)
        peer, ours = (self._turn(name, self._gradients(name, (q, k, v), gradient)) for name in (case.peer, case.ours))
        backward = take_turns(peer, ours, {}, self.burst, self.patience)
        bursts = forward.bursts + backward.bursts
        return Row(
            case,
            self.threads,
            forward.timing(),
            backward.timing(),
            others=forward.timings_of_others(),
            left_out=absent,
            failed=failed,
            burst=Burst(max(bursts), statistics.median(bursts)) if bursts else None,
            peer_memory=extra_memory(case.peer, case.shape, case.key_shape[1]),
            our_memory=extra_memory(case.ours, case.shape, case.key_shape[1]),
        )

    def _turn(self, name: str, work: Callable[[], object]) -> Turn:
        turn = timed(work)

        def inside() -> float:
            with around(name):
                return turn()

        return inside

    def _gradients(self, name: str, leaves: tuple[Tensor, ...], gradient: Tensor) -> Callable[[], object]:
        with around(name):
            output = FUNCTIONS[name](*leaves)
        return lambda: torch.autograd.grad(output, leaves, gradient, retain_graph=True)

    def _others(self, case: Case) -> tuple[dict[str, Turn], dict[str, str], dict[str, str]]:
        """The turns of those that answer, why some do not, and how some broke."""
        ready: dict[str, Turn] = {}
        absent: dict[str, str] = {}
        failed: dict[str, str] = {}
        if case.others:
            question = dense_question(case)
            for helper in self.helpers:
                try:
                    check(helper.library, helper.ask(question), case.ours, case)
                    ready[helper.library] = helper.turn
                except Cannot as reason:
                    absent[helper.library] = str(reason)
                except (Failed, WrongAnswer) as failure:
                    failed[helper.library] = str(failure)
        return ready, absent, failed
