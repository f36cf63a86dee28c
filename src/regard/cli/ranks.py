"""Processes that run one command together: started here, or by torchrun."""

import os
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from typing import NoReturn

import torch.distributed as dist
import typer

from regard.errors import SpecError

PATIENCE = timedelta(minutes=10)  # for a rank that does not answer


def among_ranks() -> bool:
    """Whether this process is one of several that torchrun or `run_together` started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def join() -> None:
    """Makes the group of all ranks."""
    dist.init_process_group("gloo", timeout=PATIENCE)


def leave(code: int) -> NoReturn:
    """Ends one of several processes, straight: a thread of gloo that frees a tensor while Python is being taken down
    would end it with SIGABRT instead (pytorch 179291)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_together(ranks: int) -> None:
    """Runs this very command in so many processes, and ends as they do: with the first code that is not 0."""
    most = os.cpu_count() or 1
    if not 1 <= ranks <= 64:
        raise SpecError(f"ranks must be from 1 to 64 on one machine; got {ranks}. Use torchrun for several machines.")
    threads = str(max(1, most // ranks))
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(ranks)}
    environment.setdefault("OMP_NUM_THREADS", threads)
    command = [sys.executable, "-m", "regard.cli", *sys.argv[1:]]
    processes = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(ranks)]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the ranks, and they end by themselves
    try:
        codes = [process.wait() for process in processes]
    finally:
        signal.signal(signal.SIGINT, before)
        for process in processes:
            process.kill()
    raise typer.Exit(next((code for code in codes if code), 0))


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
