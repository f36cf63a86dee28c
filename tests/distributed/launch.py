"""Start ranks as processes of this machine, with torchrun's environment variables or by torchrun itself."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def start_ranks(world_size: int, module: str, *arguments: str, **popen_options: Any) -> list["subprocess.Popen[str]"]:
    """Start one process per rank, each running `python -m module arguments`."""
    port = str(free_port())
    processes = []
    for rank in range(world_size):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", module, *arguments]
        processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **popen_options))
    return processes


def wait_for_ranks(processes: list["subprocess.Popen[str]"], timeout: float = 300) -> list[int]:
    """Return the exit code of each process; processes still running after the timeout are killed."""
    try:
        return [process.wait(timeout=timeout) for process in processes]
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
