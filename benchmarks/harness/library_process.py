"""Run another library in a separate process.

`LibraryProcess` starts this file as a program, which reads calls from its standard input and writes outputs and times.
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

from benchmarks.baselines.libraries import LIBRARY_BASELINES, Array, DenseCall, LibraryError, LibraryRun, Unsupported

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
PACKAGE_NAMES = {"eager": "torch", "flex_attention": "torch"}  # other libraries have the name of their package
CORE_PINNED = {"jax", "keras"}  # they start one thread per available core


class LibraryProcess:
    """A process of one library with `num_threads` threads, started by the first call."""

    def __init__(self, library: str, num_threads: int) -> None:
        self.library, self.num_threads = library, num_threads
        self.process: subprocess.Popen[bytes] | None = None

    def prepare(self, call: DenseCall) -> Array:
        """Prepare a call and return its output.

        Raises `Unsupported` if the library does not support the call, and `LibraryError` if it fails.
        """
        if find_spec(PACKAGE_NAMES.get(self.library, self.library)) is None:
            raise Unsupported("not installed")
        if self.process is None:
            self.process = self._start()
        output = self._request(call)
        if isinstance(output, Exception):
            raise output
        return output  # type: ignore[no-any-return]

    def time_once(self) -> float:
        """Run the last call again and return its time in seconds."""
        return float(self._request(None))

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
            [sys.executable, "-m", "benchmarks.harness.library_process", self.library, str(self.num_threads)],
            cwd=ROOT,
            env=os.environ | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # errors are returned as replies
        )

    def _request(self, message: DenseCall | None) -> Any:
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        try:
            pickle.dump(message, self.process.stdin)
            self.process.stdin.flush()
            return pickle.load(self.process.stdout)
        except (EOFError, BrokenPipeError):
            self.process = None  # the next call starts a new process
            raise LibraryError("the process ended") from None


def serve(library: str, num_threads: int, requests: BinaryIO, replies: BinaryIO) -> None:
    if library in CORE_PINNED and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_threads])
    work: LibraryRun | None = None
    while True:
        try:
            message = pickle.load(requests)
        except EOFError:
            return
        if message is None:
            assert work is not None
            start = time.perf_counter()
            work.run()
            reply: Any = time.perf_counter() - start
        else:
            work = None  # frees the memory of the last call first
            try:
                work = LIBRARY_BASELINES[library](message, num_threads)
                reply = work.to_array(work.run())
            except Unsupported as reason:
                reply = reason
            except ModuleNotFoundError as missing:
                reply = Unsupported(f"{missing.name} is not installed")
            except Exception as failure:
                first = next(iter(str(failure).strip().splitlines()), "")
                reply = LibraryError(f"{type(failure).__name__}: {first}")
        pickle.dump(reply, replies)
        replies.flush()


if __name__ == "__main__":
    # output that libraries print must not mix with the replies
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(KeyboardInterrupt):
        serve(sys.argv[1], int(sys.argv[2]), sys.stdin.buffer, replies)
