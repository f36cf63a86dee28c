"""One case: everybody's answer is checked, then they take turns."""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import torch
from torch import Tensor

from benchmarks import compiled
from benchmarks.helper import Helper
from benchmarks.memory import extra_memory
from benchmarks.peers import Cannot, Failed, Question
from benchmarks.questions import (
    CAP,
    OURS,
    Case,
    Shape,
    added,
    answered,
    around,
    dense_mask,
    given,
    inputs,
    ready,
    reference,
)
from benchmarks.report import Rate, Row
from benchmarks.rounds import Patience, Rounds, Turn, take_turns, timed

LARGEST_ERROR = {"float32": 1e-4, "bfloat16": 2e-2}  # a weight of bfloat16 is off by up to 2^-9, and so is an answer
LARGEST_REFERENCE = 2**27  # pairs, in float64: beyond them the compiled kernels say what is right


class WrongAnswer(Exception):
    """Somebody answered another question than was asked."""


@cache
def expected(question: str, shape: Shape, key_shape: Shape, dtype: str) -> Tensor:
    pairs = math.prod(shape[:3]) * key_shape[2]
    answer = partial(reference, question) if pairs <= LARGEST_REFERENCE else OURS[question]
    asked = given(question, shape, key_shape, dtype)
    return answer(*(x.float() if x.is_floating_point() else x for x in asked))


def check(who: str, answer: Tensor, question: str, case: Case) -> None:
    """Errors are counted by row, in parts of its largest number: the more keys there are, the smaller an answer is.
    What must be 0, as the gradient of a token that nobody looks at, must be 0."""
    right = expected(question, case.shape, case.key_shape, case.dtype)
    errors = (answer[: right.shape[0], : right.shape[1]] - right).abs().amax(-1) / right.abs().amax(-1).clamp(min=1e-30)
    error, allowed = float(errors.max()), LARGEST_ERROR[case.dtype]
    if not error < allowed:
        raise WrongAnswer(f"{who} must answer '{case.name}' to {allowed:.0e}; its error is {error:.0e}")


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


def read(k: Tensor, v: Tensor) -> float:
    """All keys and values, once: bytes a second."""
    return (k.nbytes + v.nbytes) / timed(lambda: (k.sum(), v.sum()))()


class Measuring:
    """One number of threads: helpers stay alive from case to case."""

    def __init__(self, threads: int, libraries: list[str], patience: Patience) -> None:
        self.threads, self.patience = threads, patience
        self.helpers = [Helper(name, threads) for name in libraries]
        self.rates: dict[str, Callable[[], float]] = {}
        try:
            compiled.library()
            self.rates["burst"] = partial(compiled.burst, threads)
        except compiled.CannotCompile:
            pass  # said once, by main

    def close(self) -> None:
        for helper in self.helpers:
            helper.close()

    def row(self, case: Case) -> Row:
        torch.set_num_threads(os.cpu_count() or 1)  # nothing is timed yet
        asked = given(case.ours, case.shape, case.key_shape, case.dtype)
        with torch.no_grad():
            for name in (case.peer, case.ours):
                with around(name):
                    answer = ready(name, asked)()
                check(name, answer, answered(name), case)
            others, absent, failed = self._others(case)
            torch.set_num_threads(self.threads)
            peer, ours = (self._turn(name, ready(name, asked), case.calls) for name in (case.peer, case.ours))
            rates = self.rates | ({"reading": partial(read, *asked[1:])} if case.n_k else {})
            forward = take_turns(peer, ours, others, rates, self.patience)
        backward = self._backward(case, asked) if case.gradients else None
        memory_of = partial(
            extra_memory, shape=case.shape, key_shape=case.key_shape, dtype=case.dtype, gradients=case.gradients
        )
        with ThreadPoolExecutor() as both:  # each waits for a process of its own, and nothing is timed any more
            peer_memory, our_memory = both.map(memory_of, (case.peer, case.ours))
        return Row(
            case,
            self.threads,
            forward.timing(),
            backward.timing() if backward else None,
            others=forward.timings_of_others(),
            left_out=absent,
            failed=failed,
            burst=Rate.of(forward, *([backward] if backward else []), name="burst"),
            reading=Rate.of(forward, name="reading"),
            peer_memory=peer_memory,
            our_memory=our_memory,
        )

    def _turn(self, name: str, work: Callable[[], object], calls: int = 1) -> Turn:
        turn = timed(work, calls)

        def inside() -> float:
            with around(name):
                return turn()

        return inside

    def _backward(self, case: Case, asked: tuple[Tensor, ...]) -> Rounds:
        leaves = [x.requires_grad_() for x in asked]
        gradient = torch.randn(case.shape).to(leaves[0])

        def gradients_of(name: str) -> Callable[[], object]:
            with around(name):
                output = ready(name, asked)()
            return lambda: torch.autograd.grad(output, leaves, gradient, retain_graph=True)

        peer, ours = (self._turn(name, gradients_of(name)) for name in (case.peer, case.ours))
        return take_turns(peer, ours, {}, self.rates, self.patience)

    def _others(self, case: Case) -> tuple[dict[str, Turn], dict[str, str], dict[str, str]]:
        """The turns of those that answer, why some do not, and how some broke."""
        ready: dict[str, Turn] = {}
        absent: dict[str, str] = {}
        failed: dict[str, str] = {}
        if case.others:
            question = dense_question(case)
            for helper in self.helpers:
                try:
                    check(helper.library, torch.from_numpy(helper.ask(question)), case.ours, case)
                    ready[helper.library] = helper.turn
                except Cannot as reason:
                    absent[helper.library] = str(reason)
                except (Failed, WrongAnswer) as failure:
                    failed[helper.library] = str(failure)
        return ready, absent, failed
