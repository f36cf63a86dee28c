"""Run wrong calls in a worker process with limits on memory and time; a worker that ends is replaced."""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sweeps.calls import WrongCall
    from tests.sweeps.valid_calls.table import ValidCall

ROOT = Path(__file__).parents[2]
MEMORY_BYTES = 3 * 2**30  # beyond the memory that the process has when it is ready
CPU_S = 2.0  # the limit for one call, in CPU time, which other processes do not affect
WALL_S = 60.0  # a process without a result for this long is stuck in compiled code or asleep
START_S = 300.0
NO_MEMORY = ("can't allocate memory", "Unable to allocate", "bad allocation")


@dataclass(frozen=True)
class Outcome:
    """kind: accepted, refused, internal, memory, slow or crash. error: the exception and the line that raised it."""

    kind: str
    error: str = ""
    seconds: float = 0.0


class TooSlow(BaseException):
    """Raised by the timer; no `except Exception` catches it."""


def outcomes(wrong: Sequence["tuple[str, str, str]"]) -> Iterator[Outcome]:
    """Yield the outcome of each call (name, argument, label), in order."""
    done = 0
    while done < len(wrong):
        with tempfile.TemporaryDirectory() as folder:
            for outcome in _outcomes_of_worker(wrong[done:], folder):
                done += 1
                yield outcome


def _outcomes_of_worker(wrong: Sequence["tuple[str, str, str]"], folder: str) -> Iterator[Outcome]:
    """Yield outcomes until the process ends; if it ends early, the last outcome is that of the call that ended it."""
    source = Path(folder) / "calls.json"
    source.write_text(json.dumps([list(call) for call in wrong]))
    read, write = os.pipe()
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    command = [sys.executable, "-m", "tests.sweeps.worker", str(source), str(write)]
    log = Path(folder) / "log"
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=folder, env=environment, pass_fds=(write,), stdout=out, stderr=out)
    os.close(write)
    try:
        lines = _Lines(read)
        if lines.next(START_S) != b"ready":
            raise RuntimeError(f"the worker did not start: {log.read_text()[-2000:]}")
        for _ in wrong:
            try:
                line = lines.next(WALL_S)
            except TimeoutError:
                yield Outcome("slow", "stuck in compiled code", WALL_S)
                return
            if not line:
                code, text = process.wait(), log.read_text()[-2000:]
                if code > 0:  # an exception outside of a wrong call: the table itself is wrong
                    raise RuntimeError(text)
                yield Outcome("crash", f"the process ended with signal {-code}: {text}")
                return
            yield Outcome(*json.loads(line))
    finally:
        process.kill()
        process.wait()
        os.close(read)


class _Lines:
    """Reads lines of a pipe with a timeout; b"" marks the end."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.rest = descriptor, b""

    def next(self, seconds: float) -> bytes:
        while b"\n" not in self.rest:
            if not select.select([self.descriptor], [], [], seconds)[0]:
                raise TimeoutError
            block = os.read(self.descriptor, 2**16)
            if not block:
                return b""
            self.rest += block
        line, self.rest = self.rest.split(b"\n", 1)
        return line


def main() -> None:
    source, descriptor = Path(sys.argv[1]), int(sys.argv[2])
    import torch

    from tests.sweeps.calls import WrongCall, run, table

    os.chdir(source.parent)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _stop)
    calls, warm = table(), ""
    wrong = [WrongCall(*fields) for fields in json.loads(source.read_text())]
    limit = _virtual_bytes() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    with os.fdopen(descriptor, "w") as results:
        print("ready", file=results, flush=True)
        for call in wrong:
            if call.call != warm:
                run(calls[call.call], None)  # fills imports and caches, so that only the wrong call is timed
                warm = call.call
            torch.manual_seed(0)
            print(json.dumps(_timed(calls[call.call], call)), file=results, flush=True)


def _timed(call: "ValidCall", wrong: "WrongCall") -> tuple[str, str, float]:
    from tests.sweeps.calls import run

    begin = time.process_time()
    try:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        try:
            run(call, wrong)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
        kind, error = "accepted", ""
    except TooSlow as stop:
        kind, error = "slow", _described(stop)
    except (Exception, KeyboardInterrupt, SystemExit) as problem:
        kind, error = _kind(problem, wrong.call), _described(problem)
    seconds = time.process_time() - begin
    return "slow" if seconds > CPU_S else kind, error, round(seconds, 3)


def _kind(problem: BaseException, call: str) -> str:
    from regard.errors import RegardError

    if isinstance(problem, RegardError):
        return "refused"
    if isinstance(problem, TypeError) and problem.__traceback__ is not None and _raised_by_binding(problem):
        return "refused"
    if isinstance(problem, IndexError) and call.endswith("__getitem__"):  # Python's protocol for indexing
        return "refused"
    if isinstance(problem, MemoryError) or any(part in str(problem) for part in NO_MEMORY):
        return "memory"
    return "internal"


def _raised_by_binding(problem: BaseException) -> bool:
    """Return whether Python rejected the arguments of the public function: `run` is the last frame."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_name == "run"


def _described(problem: BaseException) -> str:
    trace, place = problem.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "/regard/" in file:
            place = f"{file[file.rindex('/regard/') + 1 :]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(problem).__name__} at {place}: {str(problem)[:300]}"


def _stop(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def _virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
