"""Starting ranks: as processes of this machine with torchrun's environment, or by torchrun itself."""

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


def started(ranks: int, module: str, *arguments: str, **how: Any) -> list["subprocess.Popen[str]"]:
    """One process a rank, all running `python -m module arguments`."""
    port = str(free_port())
    processes = []
    for rank in range(ranks):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", module, *arguments]
        processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **how))
    return processes


def finished(processes: list["subprocess.Popen[str]"], timeout: float = 300) -> list[int]:
    """How each ended; those that do not end in time are ended."""
    try:
        return [process.wait(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()


def by_torchrun(ranks: int, module: str, *arguments: str, timeout: float = 600) -> int:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(free_port()), "-m", module, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, timeout=timeout).returncode


def written(path: Path, ranks: int) -> dict[str, list[dict[str, Any]]]:
    """What ranks wrote, a line of JSON for each question: {question: [what rank 0 found, what rank 1 found, ...]}."""
    found: dict[str, list[dict[str, Any]]] = {}
    for rank in range(ranks):
        for line in Path(f"{path}.{rank}").read_text(encoding="utf8").splitlines():
            row = json.loads(line)
            found.setdefault(row.pop("what"), []).append(row)
    return found
