"""Breaks the code on purpose, one break at a time, and demands that the law named beside the break fails.

The breaks are listed in mutants.toml. Each is applied to a copy of the source and the tests in a temporary folder,
never to the working tree; where it breaks the compiled core, that is built there. A break passes when every law
named for it fails there, and fails when it survives.

    python tools/mutants.py              every break
    python tools/mutants.py NAME ...     the breaks whose names contain one of the words
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

COPIED = ("src", "tests", "tools", "native", "setup.py", "pyproject.toml")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc", ".hypothesis")
PASSED, FAILED = 0, 1  # what pytest returns; anything else means that it did not get as far as a verdict


class ListError(Exception):
    """The list of breaks cannot be used as it stands."""


@dataclass(frozen=True)
class Break:
    """One change of the code, `old` to `new` in `file`, and the tests that must notice it."""

    name: str
    file: str
    old: str
    new: str
    laws: tuple[str, ...]

    def apply(self, root: Path) -> None:
        path = root / self.file
        path.write_text(path.read_text(encoding="utf8").replace(self.old, self.new), encoding="utf8")
        if self.file.startswith("native/"):
            build_core(root)


def read_list(path: Path, root: Path) -> list[Break]:
    """The breaks of the list, each checked against the source it wants to change."""
    breaks = []
    for entry in tomllib.loads(path.read_text(encoding="utf8")).get("break", []):
        expected = {"name", "file", "old", "new", "laws"}
        if set(entry) != expected:
            raise ListError(f"a break must have {', '.join(sorted(expected))}; got {', '.join(sorted(entry))}")
        breaks.append(Break(entry["name"], entry["file"], entry["old"], entry["new"], tuple(entry["laws"])))
    names = [each.name for each in breaks]
    for each in breaks:
        _check(each, names.count(each.name), root)
    return breaks


def _check(each: Break, namesakes: int, root: Path) -> None:
    path = root / each.file
    if namesakes != 1:
        raise ListError(f"{each.name}: names must differ; got this one {namesakes} times")
    if not each.file.startswith(("src/", "native/")) or not path.is_file():
        raise ListError(f"{each.name}: the file must be one under src or native; got {each.file}")
    count = path.read_text(encoding="utf8").count(each.old) if each.old else 0
    if count != 1:
        raise ListError(f"{each.name}: the old text must occur exactly once in {each.file}; got {count} times")
    if each.old == each.new:
        raise ListError(f"{each.name}: the new text must differ from the old")
    if not each.laws:
        raise ListError(f"{each.name}: at least one law must be named")


def build_core(tree: Path) -> None:
    """The compiled core of a copy, from its own source; quickly built, not quick."""
    build = tree / "build"
    command = ["make", "-s", "-C", str(tree / "native" / "tests"), f"BUILD={build}", f"PYTHON={sys.executable}", "site"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise ListError(f"the core must build with its break; got:\n{done.stdout}")
    shutil.copy2(build / "site" / "regard" / "_core.abi3.so", tree / "src" / "regard")


def copy(root: Path, target: Path) -> None:
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=LEFT_OUT)
        elif source.is_file():
            shutil.copy2(source, target / name)


def environment(tree: Path) -> dict[str, str]:
    """The copied source comes first on the path, before any installation of the same package."""
    return os.environ | {
        "PYTHONPATH": str(tree / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_PROFILE": "mutants",
        "OMP_NUM_THREADS": "1",
    }


def demand_the_copy_is_used(tree: Path) -> None:
    """Without this, a run against the installed package would call every break a survivor, or none."""
    ask = "import importlib.util, sys; print(importlib.util.find_spec(sys.argv[1]).origin)"
    for package in sorted(path.parent.name for path in tree.glob("src/*/__init__.py")):
        command = [sys.executable, "-c", ask, package]
        done = subprocess.run(command, cwd=tree, env=environment(tree), capture_output=True, text=True, check=True)
        if not Path(done.stdout.strip()).resolve().is_relative_to(tree.resolve()):
            raise ListError(f"{package} must come from the copy in {tree}; got {done.stdout.strip()}")


@dataclass(frozen=True)
class Verdict:
    """How one run of pytest ended: what it returned, how many tests failed (not: erred), what it said."""

    code: int | None
    failures: int
    output: str


def run(tree: Path, laws: Sequence[str], seconds: float) -> Verdict:
    report = tree / "report.xml"
    report.unlink(missing_ok=True)
    # -m "": a law may be marked long.
    options = ["-x", "-q", "-m", "", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}"]
    command = [sys.executable, "-m", "pytest", *options, *laws]
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment(tree),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return Verdict(None, 0, f"no verdict within {seconds:.0f} s")
    return Verdict(done.returncode, _failures(report), done.stdout)


def _failures(report: Path) -> int:
    if not report.is_file():
        return 0
    return sum(int(suite.get("failures", 0)) for suite in ElementTree.parse(report).iter("testsuite"))


def unbroken(root: Path, laws: Sequence[str], seconds: float) -> str:
    """Why the laws cannot judge: they do not pass on the code as it is. Empty when they do."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        copy(root, tree)
        demand_the_copy_is_used(tree)
        verdict = run(tree, laws, seconds)
    return "" if verdict.code == PASSED else verdict.output


def survival(root: Path, each: Break, seconds: float) -> str:
    """Why a break was not caught, law by law. Empty when every law failed on it."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        copy(root, tree)
        each.apply(tree)
        demand_the_copy_is_used(tree)
        for law in each.laws:
            verdict = run(tree, [law], seconds)
            if verdict.code == PASSED:
                return f"{law} still passes"
            if verdict.code != FAILED or not verdict.failures:
                return f"{law} gave no verdict (pytest returned {verdict.code}):\n{verdict.output}"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    home = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description="Break the code on purpose; each break must fail its law.")
    parser.add_argument("words", nargs="*", help="only breaks whose names contain one of these")
    parser.add_argument("--root", type=Path, default=home, help="the project (default: this one)")
    parser.add_argument("--list", type=Path, help="the breaks (default: tools/mutants.toml in the project)")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    parser.add_argument("--seconds", type=float, default=300, help="the most one run may take (default: 300)")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    try:
        breaks = read_list(options.list or root / "tools" / "mutants.toml", root)
        chosen = [each for each in breaks if not options.words or any(word in each.name for word in options.words)]
        if not chosen:
            raise ListError("at least one break must be chosen; got none")
        return judge(root, chosen, options.jobs, options.seconds)
    except ListError as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2


def judge(root: Path, breaks: Sequence[Break], jobs: int, seconds: float) -> int:
    laws = sorted({law for each in breaks for law in each.laws})
    print(f"{len(laws)} laws on the code as it is", flush=True)
    complaint = unbroken(root, laws, seconds * len(laws))
    if complaint:
        print(complaint)
        raise ListError("every named law must pass on the code as it is; see above")

    survivors = 0
    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(survival, root, each, seconds): each for each in breaks}
        try:
            for number, future in enumerate(as_completed(futures), 1):
                reason = future.result()
                survivors += bool(reason)
                print(f"[{number:{len(str(len(breaks)))}}/{len(breaks)}]", end=" ")
                print(f"{'SURVIVED' if reason else 'killed  '} {futures[future].name}", flush=True)
                if reason:
                    print("    " + reason.rstrip().replace("\n", "\n    "), flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    print(f"{len(breaks) - survivors} passed, {survivors} failed in {time.monotonic() - began:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
