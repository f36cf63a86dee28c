"""Processes that run one command together: started here, or by torchrun.

Ranks that are started here end with the command that started them, however that ends. It forwards INT, TERM and
HUP. Each rank holds the reading end of a pipe that nobody writes to: when the command is gone,
also by KILL, the pipe ends and so does the rank. On Linux the kernel also sends the rank KILL at once.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist
import typer

from regard.errors import SpecError

TIMEOUT = timedelta(minutes=10)  # for a rank that does not answer
GRACE_S = 20.0  # for the other ranks, once one has failed or all were told to end
POLL_S = 0.1
PARENT_PIPE = "REGARD_PARENT_PIPE"  # the descriptor of the pipe, in the environment of a rank
PR_SET_PDEATHSIG = 1  # of prctl
FORWARDED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def among_ranks() -> bool:
    """Whether this process is one of several that torchrun or `run_together` started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def join() -> None:
    """Makes the group of all ranks."""
    dist.init_process_group("gloo", timeout=TIMEOUT)


def leave(code: int) -> NoReturn:
    """Ends one of several processes, straight: a thread of gloo that frees a tensor while Python is being taken down
    would end it with SIGABRT instead (pytorch 179291)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def started_here() -> bool:
    """Whether `run_together` started this process. Its parent then holds the locks for it."""
    return PARENT_PIPE in os.environ


def check_ranks(ranks: int) -> None:
    """Raises `SpecError` for a number of ranks that one machine does not start."""
    if not 1 <= ranks <= 64:
        raise SpecError(f"ranks must be from 1 to 64 on one machine; got {ranks}. Use torchrun for several machines.")


def run_together(ranks: int, keep_open: Sequence[int] = ()) -> NoReturn:
    """Runs this command in `ranks` processes and ends with the first of their exit codes that is not 0.

    Ranks inherit the descriptors in `keep_open`, such as that of a lock, which then lasts as long as any of them.
    """
    threads = str(max(1, (os.cpu_count() or 1) // ranks))
    read_end, write_end = os.pipe()
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(ranks)}
    environment |= {PARENT_PIPE: str(read_end)}
    environment.setdefault("OMP_NUM_THREADS", threads)
    command = [sys.executable, "-m", "regard.cli", *sys.argv[1:]]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with _forwarding(processes):
            for rank in range(ranks):
                rank_environment = {**environment, "RANK": str(rank)}
                processes.append(subprocess.Popen(command, env=rank_environment, pass_fds=(read_end, *keep_open)))
            codes = _wait(processes)
    finally:
        for process in processes:
            process.kill()
        os.close(read_end)
        os.close(write_end)
    raise typer.Exit(next((_exit_code(code) for code in codes if code), 0))


def end_with_parent() -> None:
    """Ends this rank when the command that started it is gone."""
    if not started_here():
        return
    parent, pipe = os.getppid(), int(os.environ[PARENT_PIPE])
    threading.Thread(target=_wait_for_end, args=(pipe,), daemon=True, name="regard parent watch").start()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the kernel was asked
            os._exit(1)


def _wait_for_end(pipe: int) -> None:
    os.read(pipe, 1)  # returns when the parent, which alone could write, is gone
    os._exit(1)


@contextmanager
def _forwarding(processes: Sequence["subprocess.Popen[bytes]"]) -> Iterator[None]:
    """Inside, signals to end this process go to the ranks, which save and end by themselves."""

    def forward(number: int, _: Any) -> None:
        for process in processes:
            process.send_signal(number)

    # a terminal sends Ctrl-C to the ranks as well; they take it for the same one
    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(processes: Sequence["subprocess.Popen[bytes]"]) -> list[int]:
    """The exit codes of all. When one fails, the others cannot go on, and are stopped after a grace period."""
    deadline = None
    while any(process.poll() is None for process in processes):
        if deadline is None and any(process.poll() for process in processes):
            deadline = time.monotonic() + GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            for process in processes:
                process.kill()
        time.sleep(POLL_S)
    return [process.wait() for process in processes]


def _exit_code(code: int) -> int:
    """As a shell reports it: 128 and the signal, where a signal ended the process."""
    return code if code >= 0 else 128 - code


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
