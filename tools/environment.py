"""Create .venv and install regard with the pinned dependencies: the work behind `make setup` and `make explore`.

    python3 tools/environment.py dev       # everything that the tests and the documentation need
    python3 tools/environment.py explorer  # only what the explorer needs
    python3 tools/environment.py core      # build the compiled core again

The core is built while the dependencies are installed: it needs none of them.
"""

from __future__ import annotations  # so that older versions of Python can print the error of `main`

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CONSTRAINTS = ROOT / "constraints.txt"
BUILD_ERROR = ROOT / "src" / "regard" / "core_not_built.txt"
STAMPS = {"dev": [".installed", ".explorer", ".core"], "explorer": [".explorer", ".core"], "core": [".core"]}
SHOWN_LOG_LINES = 20


class StepError(Exception):
    """A step failed; its output is in a log."""

    def __init__(self, step: str, log: Path) -> None:
        lines = log.read_text(encoding="utf8", errors="replace").splitlines()[-SHOWN_LOG_LINES:]
        super().__init__("\n".join([*lines, f"setup: could not {step}; the log is {log.relative_to(ROOT)}."]))


class Progress:
    """Prints when a step starts and ends; in a terminal, also the seconds that have passed."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.lock = threading.Lock()
        self.running: list[str] = []

    def run(self, step: str, log_name: str, command: list[str | Path]) -> None:
        """Run a command with its output in a log."""
        log_path = VENV / log_name
        self._change(step, self.running.append)
        try:
            with log_path.open("wb") as log:
                done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, env=pip_environment(), check=False)
        finally:
            self._change(step, self.running.remove)
        if done.returncode:
            raise StepError(step, log_path)

    def _change(self, step: str, change: Callable[[str], None]) -> None:
        with self.lock:
            change(step)
            seconds = time.monotonic() - self.start
            state = "..." if step in self.running else "done"
            clear = "\r\033[K" if sys.stdout.isatty() else ""
            print(f"{clear}setup: {seconds:3.0f} s  {step} {state}", flush=True)

    def tick(self) -> None:
        """Show the running steps and the time on the last line of a terminal."""
        with self.lock:
            if sys.stdout.isatty() and self.running:
                seconds = time.monotonic() - self.start
                print(f"\r\033[K       {seconds:3.0f} s  {', '.join(self.running)}", end="", flush=True)


def main(goal: str) -> None:
    if sys.version_info < (3, 11):  # noqa: UP036
        raise SystemExit(
            f"setup: Python must be 3.11 or newer; got {sys.version.split()[0]}. Use make PYTHON=python3.11."
        )
    progress = Progress()
    if not PYTHON.exists():
        VENV.mkdir(exist_ok=True)
        progress.run("create .venv", "venv.log", [sys.executable, "-m", "venv", VENV])
    jobs = [lambda: build_core(progress)]
    if goal != "core":
        jobs.append(lambda: install_dependencies(progress, goal))
    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = [pool.submit(job) for job in jobs]
        while not all(future.done() for future in futures):
            time.sleep(0.2)
            progress.tick()
    for future in futures:
        future.result()
    for name in STAMPS[goal]:
        (VENV / name).touch()
    if BUILD_ERROR.exists():
        print(f"setup: the compiled core was NOT built; {BUILD_ERROR.read_text(encoding='utf8').strip()}")


def install_dependencies(progress: Progress, extra: str) -> None:
    """Install torch first: the index has builds of other torch versions that need gigabytes of other packages."""
    (torch,) = re.findall(r"^torch==.*$", CONSTRAINTS.read_text(encoding="utf8"), re.MULTILINE)
    progress.run(f"install {torch}", "torch.log", pip_install(torch))
    progress.run(f"install what regard[{extra}] requires", "packages.log", pip_install(*sorted(requirements(extra))))


def build_core(progress: Progress) -> None:
    command = pip_install("--no-deps", "--editable", str(ROOT))
    progress.run("build the compiled core and install regard", "core.log", command)


def pip_install(*arguments: str) -> list[str | Path]:
    return [PYTHON, "-m", "pip", "install", "--quiet", "--constraint", CONSTRAINTS, *arguments]


def pip_environment() -> dict[str, str]:
    """Return the environment of pip: it creates build environments, which read only these variables."""
    return {**os.environ, "PIP_CONSTRAINT": str(CONSTRAINTS), "PIP_BUILD_CONSTRAINT": str(CONSTRAINTS)} | {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1"
    }


def requirements(extra: str) -> set[str]:
    """Return the requirements of regard and of an extra, which may include other extras of regard."""
    import tomllib  # new in Python 3.11

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    return set(project["dependencies"]) | set(_of_extra(extra, project["optional-dependencies"]))


def _of_extra(extra: str, extras: dict[str, list[str]]) -> Iterator[str]:
    for requirement in extras[extra]:
        included = re.fullmatch(r"regard\[(.*)\]", requirement)
        if included is None:
            yield requirement
        for name in included[1].split(",") if included else ():
            yield from _of_extra(name, extras)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except StepError as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit("\nsetup: stopped; run the same command again to continue.") from None
