"""Start ranks as processes of this machine, with torchrun's environment variables or by torchrun itself."""

import json
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def start_ranks(world_size: int, module: str, *arguments: str) -> list[ForkServerProcess]:
    """Start one process per rank, each running `python -m module arguments`.

    The processes are forked from a server that has imported regard, since importing torch takes longer than a run.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed.tensor", "regard.distributed"])
    port = str(free_port())
    processes = []
    for rank in range(world_size):
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
        }
        processes.append(context.Process(target=run_rank, args=(variables, module, arguments)))
        processes[-1].start()
    return processes


def run_rank(variables: dict[str, str], module: str, arguments: tuple[str, ...]) -> None:
    """Run a module as the main program, with these environment variables."""
    os.chdir(ROOT)
    os.environ.update(variables)
    torch.set_num_threads(1)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def wait_for_ranks(processes: list[ForkServerProcess], timeout: float = 300) -> list[int | None]:
    """Return the exit code of each process, None for a process that runs longer than the timeout and is killed."""
    try:
        for process in processes:
            process.join(timeout)
        return [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()


def run_with_torchrun(world_size: int, module: str, *arguments: str, timeout: float = 600) -> int:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world_size)]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(free_port()), "-m", module, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, timeout=timeout).returncode


def read_results(path: Path, world_size: int) -> dict[str, list[dict[str, Any]]]:
    """Return {name: [result of rank 0, result of rank 1, ...]} from the JSON lines that the ranks wrote."""
    results: dict[str, list[dict[str, Any]]] = {}
    for rank in range(world_size):
        for line in Path(f"{path}.{rank}").read_text(encoding="utf8").splitlines():
            row = json.loads(line)
            results.setdefault(row.pop("name"), []).append(row)
    return results
