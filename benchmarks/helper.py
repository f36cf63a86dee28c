"""A library in a process of its own, that answers when it is its turn.

`Helper` is the near end. The far end is this file run as a program: it reads questions and turns from its standard
input, and writes answers and seconds.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from benchmarks.peers import LIBRARIES, Array, Cannot, Failed, Question, Work

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
PACKAGE = {"eager": "torch", "flex_attention": "torch"}  # the others are named like their packages
PINNED = {"jax", "keras"}  # they start a thread for each core they may run on


class Helper:
    """One library with so many threads; started when it is first asked."""

    def __init__(self, library: str, threads: int) -> None:
        self.library, self.threads = library, threads
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, question: Question) -> Array:
        """Makes ready and answers once; raises `Cannot` where the library does not, `Failed` where it breaks."""
        if find_spec(PACKAGE.get(self.library, self.library)) is None:
            raise Cannot("not installed")
        if self.process is None:
            self.process = self._start()
        answer = self._tell(question)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    def turn(self) -> float:
        """Answers the last question again; the seconds it took."""
        return float(self._tell(None))

    def close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process = None

    def _start(self) -> "subprocess.Popen[bytes]":
        settings = {
            "JAX_PLATFORMS": "cpu",
            "KERAS_BACKEND": "jax",
            "KERAS_HOME": str(BUILD / "keras"),
            "TORCHINDUCTOR_CACHE_DIR": str(BUILD / "inductor"),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.helper", self.library, str(self.threads)],
            cwd=ROOT,
            env=os.environ | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what matters comes back as an answer
        )

    def _tell(self, message: Question | None) -> Any:
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        try:
            pickle.dump(message, self.process.stdin)
            self.process.stdin.flush()
            return pickle.load(self.process.stdout)
        except (EOFError, BrokenPipeError):
            self.process = None  # the next question starts another
            raise Failed("its process ended by itself") from None


def serve(library: str, threads: int, questions: BinaryIO, answers: BinaryIO) -> None:
    if library in PINNED and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    work: Work | None = None
    while True:
        try:
            message = pickle.load(questions)
        except EOFError:
            return
        if message is None:
            assert work is not None
            begin = time.perf_counter()
            work.run()
            answer: Any = time.perf_counter() - begin
        else:
            work = None  # what the last question holds goes before the next one takes its place
            try:
                work = LIBRARIES[library](message, threads)
                answer = work.read(work.run())
            except Cannot as reason:
                answer = reason
            except ModuleNotFoundError as missing:
                answer = Cannot(f"{missing.name} is not installed")
            except Exception as failure:
                first = next(iter(str(failure).strip().splitlines()), "")
                answer = Failed(f"{type(failure).__name__}: {first}")
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    # libraries that print would speak into the answers
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(KeyboardInterrupt):
        serve(sys.argv[1], int(sys.argv[2]), sys.stdin.buffer, answers)
