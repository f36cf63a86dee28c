"""The small C++ library of the benchmarks: twins of the library's kernels with rules written by hand, and a burst.

It is compiled when it is first asked for, from the library's own headers and with the flags of its build.
"""

import ctypes
import os
import subprocess
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

from torch import Tensor

from regard.engine import native

ROOT = Path(__file__).parents[1]
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-Wno-psabi"]
RULES = ("causal", "alibi", "softcap", "window")  # as in twins.cpp
LANES = {"AVX-512": 16, "AVX2": 8, "portable": 4}


class CannotCompile(Exception):
    """There is no library to compare with; the message says why."""


@cache
def library() -> ctypes.CDLL:
    """The twins of the build that regard takes on this processor."""
    if not native.builds():
        raise CannotCompile("regard itself was installed without a C++ compiler")
    lanes = LANES[native.builds()[0].name]
    path = ROOT / "build" / f"twins-{lanes}.so"
    sources = [ROOT / "benchmarks" / "twins" / "twins.cpp", ROOT / "native" / "parallel.cpp"]
    read = [*sources, *(ROOT / "benchmarks" / "twins").glob("*.h"), *(ROOT / "native").glob("*.h")]
    if not path.exists() or path.stat().st_mtime < max(file.stat().st_mtime for file in read):
        _compile(sources, lanes, path)
    result = ctypes.CDLL(str(path))
    result.burst.restype = ctypes.c_double
    result.burst.argtypes = [ctypes.c_int64]
    result.choose_rule.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p]
    return result


def _compile(sources: list[Path], lanes: int, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    include = [f"-I{ROOT / 'native'}", f"-I{ROOT / 'benchmarks' / 'twins'}", f"-DREGARD_LANES={lanes}"]
    command = [os.environ.get("CXX", "c++"), *FLAGS, "-shared", "-fPIC", *include, *map(str, sources)]
    try:
        subprocess.run([*command, "-ldl", "-o", str(path)], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise CannotCompile(f"{command[0]} is not there") from None
    except subprocess.CalledProcessError as failure:
        first = next((line for line in failure.stderr.splitlines() if "error" in line), "no message")
        raise CannotCompile(f"{command[0]} says: {first}") from None


def burst(threads: int) -> float:
    """Multiply-adds for about a millisecond: floating point operations a second, all threads together."""
    return float(library().burst(threads))


class ByHand(AbstractContextManager[None]):
    """While it is entered, the twins answer with one rule in place of the kernels: same Python around, same packing."""

    def __init__(self, rule: str, window: int, cap: float, slopes: Tensor) -> None:
        self.rule = RULES.index(rule), window, cap, slopes.data_ptr()
        self.library = library()

    def __enter__(self) -> None:
        self.library.choose_rule(*self.rule)
        self.core, native.core = native.core, self  # type: ignore[assignment]  # it has the two calls a question makes

    def __exit__(self, *failure: object) -> None:
        native.core = self.core

    def forward(self, build: int, problem: bytes) -> None:
        self._check(problem)
        self.library.run_forward(problem)

    def backward(self, build: int, problem: bytes) -> None:
        self._check(problem)
        self.library.run_backward(problem)

    def _check(self, problem: bytes) -> None:
        if len(problem) != self.library.problem_bytes():
            raise RuntimeError("the twins were compiled for another problem: remove the folder build")
