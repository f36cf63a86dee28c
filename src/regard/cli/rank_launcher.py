"""Launch the ranks of a command as processes, or join ranks that torchrun launched.

Ranks end with the command that launched them, however it ends. The command forwards SIGINT, SIGTERM and SIGHUP. Each
rank holds the read end of a pipe whose only writer is the command. When the command exits, even by SIGKILL, the pipe
closes and the rank exits. On Linux the kernel also sends SIGKILL to the rank.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist
import typer

from regard.errors import ArgumentError

RANK_TIMEOUT = timedelta(minutes=10)  # for a rank that does not respond
GRACE_S = 20.0  # for the other ranks, after one has failed or all received a signal to end
POLL_S = 0.1
PARENT_PIPE_VARIABLE = "REGARD_PARENT_PIPE"  # the descriptor of the pipe, in the environment of a rank
PR_SET_PDEATHSIG = 1  # of prctl
FORWARDED_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def is_rank() -> bool:
    """Return whether torchrun or `launch_ranks` started this process as a rank."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def init_ranks() -> None:
    """Initialize the default process group."""
    dist.init_process_group("gloo", timeout=RANK_TIMEOUT)


def exit_rank(code: int) -> NoReturn:
    """Exit a rank without finalizing Python.

    A gloo thread that frees a tensor during finalization would end the process with SIGABRT (pytorch/pytorch#179291).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def is_launched_rank() -> bool:
    """Return whether `launch_ranks` started this process. Its parent then holds the locks."""
    return PARENT_PIPE_VARIABLE in os.environ


def check_world_size(world_size: int) -> None:
    """Raise `ArgumentError` unless `world_size` is from 1 to 64."""
    if not 1 <= world_size <= 64:
        raise ArgumentError(
            f"world_size must be from 1 to 64 on one machine; got {world_size}. Use torchrun for several machines."
        )


def launch_ranks(world_size: int, inherited_fds: Sequence[int] = ()) -> NoReturn:
    """Run this command in `world_size` processes and exit with the first nonzero exit code of a rank, or 0.

    Ranks inherit the file descriptors `inherited_fds`. A lock among them is held until the last rank exits.
    """
    threads = str(max(1, (os.cpu_count() or 1) // world_size))
    read_end, write_end = os.pipe()
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(world_size),
    }
    environment |= {PARENT_PIPE_VARIABLE: str(read_end)}
    environment.setdefault("OMP_NUM_THREADS", threads)
    command = [sys.executable, "-m", "regard.cli", *sys.argv[1:]]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with _forward_signals(processes):
            for rank in range(world_size):
                rank_environment = {**environment, "RANK": str(rank)}
                processes.append(subprocess.Popen(command, env=rank_environment, pass_fds=(read_end, *inherited_fds)))
            codes = _wait_for_ranks(processes)
    finally:
        for process in processes:
            process.kill()
        os.close(read_end)
        os.close(write_end)
    raise typer.Exit(next((_exit_code(code) for code in codes if code), 0))


def exit_with_parent() -> None:
    """Exit this rank when the command that launched it is gone."""
    if not is_launched_rank():
        return
    parent, pipe = os.getppid(), int(os.environ[PARENT_PIPE_VARIABLE])
    threading.Thread(target=_exit_when_closed, args=(pipe,), daemon=True, name="regard parent watch").start()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before prctl was called
            os._exit(1)


def _exit_when_closed(pipe: int) -> None:
    os.read(pipe, 1)  # returns when the parent, the only writer, is gone
    os._exit(1)


@contextmanager
def _forward_signals(processes: Sequence["subprocess.Popen[bytes]"]) -> Iterator[None]:
    """Forward termination signals to the ranks, which save and exit, inside the `with` block."""

    def forward(number: int, _: Any) -> None:
        for process in processes:
            process.send_signal(number)

    # a terminal sends Ctrl-C to the ranks too; they handle both as one
    with handle_signals(FORWARDED_SIGNALS, forward):
        yield


@contextmanager
def handle_signals(numbers: Iterable[int], handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Handle signals with `handler` inside the `with` block; restore the previous handlers afterwards."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)


def _wait_for_ranks(processes: Sequence["subprocess.Popen[bytes]"]) -> list[int]:
    """Return the exit codes of all ranks. When one fails, the others are killed after a grace period."""
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
    """Return an exit code as a shell reports it: 128 plus the signal if a signal ended the process."""
    return code if code >= 0 else 128 - code


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
