"""Mutation tests: apply one deliberate error at a time and check that the tests named for it fail.

The mutants are listed in mutants/, one file for each area. Each mutant is applied to a copy of the project in a
temporary folder; a mutant of the compiled core is built there. A mutant is killed when all its tests fail.

    python tools/mutants.py              run every mutant
    python tools/mutants.py WORD ...     run the mutants whose names contain one of the words
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

COPIED_PATHS = ("src", "tests", "tools", "csrc", "setup.py", "pyproject.toml")
IGNORED_PATTERNS = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc", ".hypothesis")
PASSED, FAILED = 0, 1  # exit codes of pytest; any other one means that the tests did not run


class MutantListError(Exception):
    """Raised for an invalid list of mutants."""


@dataclass(frozen=True)
class Mutant:
    """One change of the code, `old` to `new` in `file`, and the tests that must fail with it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> None:
        path = root / self.file
        path.write_text(path.read_text(encoding="utf8").replace(self.old, self.new), encoding="utf8")
        if self.file.startswith("csrc/"):
            build_core(root)


def load_mutants(folder: Path, root: Path) -> list[Mutant]:
    """Read the mutants of all files in `folder`, each checked against the source that it changes."""
    mutants = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf8")).get("mutant", []):
            expected = {"name", "file", "old", "new", "tests"}
            if set(entry) != expected:
                raise MutantListError(
                    f"a mutant must have {', '.join(sorted(expected))}; got {', '.join(sorted(entry))} in {path.name}"
                )
            mutants.append(Mutant(entry["name"], entry["file"], entry["old"], entry["new"], tuple(entry["tests"])))
    names = [mutant.name for mutant in mutants]
    for mutant in mutants:
        _check_mutant(mutant, names.count(mutant.name), root)
    return mutants


def _check_mutant(mutant: Mutant, name_count: int, root: Path) -> None:
    path = root / mutant.file
    if name_count != 1:
        raise MutantListError(f"{mutant.name}: names must be unique; got this name {name_count} times")
    if not mutant.file.startswith(("src/", "csrc/")) or not path.is_file():
        raise MutantListError(f"{mutant.name}: the file must exist under src or csrc; got {mutant.file}")
    count = path.read_text(encoding="utf8").count(mutant.old) if mutant.old else 0
    if count != 1:
        raise MutantListError(
            f"{mutant.name}: the old text must occur exactly once in {mutant.file}; got {count} times"
        )
    if mutant.old == mutant.new:
        raise MutantListError(f"{mutant.name}: the new text must differ from the old text")
    if not mutant.tests:
        raise MutantListError(f"{mutant.name}: at least one test must be named")


def build_core(tree: Path) -> None:
    """Build the compiled core of a copy, with the fast build of its tests."""
    build = tree / "build"
    command = [
        "make",
        "-s",
        "-C",
        str(tree / "csrc" / "tests"),
        f"BUILD={build}",
        f"PYTHON={sys.executable}",
        "package",
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise MutantListError(f"the core must build with the mutant; got:\n{done.stdout}")
    shutil.copy2(build / "package" / "regard" / "_core.abi3.so", tree / "src" / "regard")


def copy_project(root: Path, target: Path) -> None:
    for name in COPIED_PATHS:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=IGNORED_PATTERNS)
        elif source.is_file():
            shutil.copy2(source, target / name)


def test_environment(tree: Path) -> dict[str, str]:
    """Return the environment of the tests, in which the copied source precedes any installed package."""
    return os.environ | {
        "PYTHONPATH": str(tree / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_PROFILE": "mutants",
        "OMP_NUM_THREADS": "1",
    }


def check_copy_is_imported(tree: Path) -> None:
    """Check that the tests import the copy: with the installed package, every mutant would survive."""
    script = "import importlib.util, sys; print(importlib.util.find_spec(sys.argv[1]).origin)"
    for package in sorted(path.parent.name for path in tree.glob("src/*/__init__.py")):
        command = [sys.executable, "-c", script, package]
        done = subprocess.run(command, cwd=tree, env=test_environment(tree), capture_output=True, text=True, check=True)
        if not Path(done.stdout.strip()).resolve().is_relative_to(tree.resolve()):
            raise MutantListError(f"{package} must come from the copy in {tree}; got {done.stdout.strip()}")


@dataclass(frozen=True)
class PytestRun:
    """One run of pytest: its exit code, the number of failed tests (without errors), and its output."""

    exit_code: int | None
    failures: int
    output: str


def run_pytest(tree: Path, tests: Sequence[str], timeout_s: float) -> PytestRun:
    report = tree / "report.xml"
    report.unlink(missing_ok=True)
    # -m "": a test may be marked long.
    options = ["-x", "-q", "-m", "", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=test_environment(tree),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return PytestRun(None, 0, f"did not end within {timeout_s:.0f} s")
    return PytestRun(done.returncode, _num_failures(report), done.stdout)


def _num_failures(report: Path) -> int:
    if not report.is_file():
        return 0
    return sum(int(suite.get("failures", 0)) for suite in ElementTree.parse(report).iter("testsuite"))


def baseline_failure(root: Path, tests: Sequence[str], timeout_s: float) -> str:
    """Return the output of the tests if they fail on the unchanged code, else an empty string."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        copy_project(root, tree)
        check_copy_is_imported(tree)
        run = run_pytest(tree, tests, timeout_s)
    return "" if run.exit_code == PASSED else run.output


def survival_reason(root: Path, mutant: Mutant, timeout_s: float) -> str:
    """Return which test did not fail with the mutant and why, or an empty string if all failed."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        copy_project(root, tree)
        mutant.apply(tree)
        check_copy_is_imported(tree)
        for test in mutant.tests:
            run = run_pytest(tree, [test], timeout_s)
            if run.exit_code == PASSED:
                return f"{test} still passes"
            if run.exit_code != FAILED or not run.failures:
                return f"{test} did not run (pytest returned {run.exit_code}):\n{run.output}"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    home = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description="Apply each mutant to a copy of the code; its tests must fail.")
    parser.add_argument("words", nargs="*", help="only mutants whose names contain one of these words")
    parser.add_argument("--root", type=Path, default=home, help="the project (default: this project)")
    parser.add_argument("--list", type=Path, help="the folder of lists (default: tools/mutants in the project)")
    parser.add_argument("--jobs", type=int, default=2, help="the number of parallel jobs (default: 2)")
    parser.add_argument("--seconds", type=float, default=300, help="the time limit of one test run (default: 300)")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    try:
        mutants = load_mutants(options.list or root / "tools" / "mutants", root)
        selected = [m for m in mutants if not options.words or any(word in m.name for word in options.words)]
        if not selected:
            raise MutantListError("no mutant has a name with one of these words")
        return run_mutants(root, selected, options.jobs, options.seconds)
    except MutantListError as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2


def run_mutants(root: Path, mutants: Sequence[Mutant], jobs: int, timeout_s: float) -> int:
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    print(f"{len(tests)} tests on the unchanged code", flush=True)
    output = baseline_failure(root, tests, timeout_s * len(tests))
    if output:
        print(output)
        raise MutantListError("every named test must pass on the unchanged code; see above")

    survivors = 0
    start = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(survival_reason, root, mutant, timeout_s): mutant for mutant in mutants}
        try:
            for number, future in enumerate(as_completed(futures), 1):
                reason = future.result()
                survivors += bool(reason)
                print(f"[{number:{len(str(len(mutants)))}}/{len(mutants)}]", end=" ")
                print(f"{'SURVIVED' if reason else 'killed  '} {futures[future].name}", flush=True)
                if reason:
                    print("    " + reason.rstrip().replace("\n", "\n    "), flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    print(f"{len(mutants) - survivors} killed, {survivors} survived in {time.monotonic() - start:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
