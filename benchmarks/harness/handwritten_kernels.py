"""The C++ library of the benchmarks: kernels of regard with handwritten modifiers, and a measurement of peak FLOP/s.

It is compiled on first use, from the headers of the core and with its compiler flags.
"""

import ctypes
import os
import re
import subprocess
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

from torch import Tensor

from regard.backends.native import abi
from regard.backends.native.backend import float32_build

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"
HANDWRITTEN = ROOT / "benchmarks" / "baselines" / "handwritten"
FLAGS = dict(re.findall(r"^(\w+) := *(.*)$", (CSRC / "flags.mk").read_text("utf8"), re.M))
MODIFIERS = ("causal", "alibi", "softcap", "window")  # in the order of the enum Modifier in kernels.cpp
ISAS = {"AVX-512": "avx512", "AVX2": "avx2", "NEON": "neon", "portable": "portable"}


class CompileError(Exception):
    """Raised when the library cannot be compiled."""


@cache
def library() -> ctypes.CDLL:
    """Return the handwritten kernels for the build that regard uses for float32 on this processor."""
    build = float32_build()
    if build is None:
        raise CompileError("regard was installed without a C++ compiler")
    isa = ISAS[build.name]
    path = ROOT / "build" / f"handwritten-{isa}.so"
    sources = [
        HANDWRITTEN / "kernels.cpp",
        *(CSRC / f"{name}.cpp" for name in ("parallel", "openmp_runtime", "thread_pool")),
    ]
    dependencies = [*sources, *HANDWRITTEN.glob("*.h"), *CSRC.glob("**/*.h")]
    if not path.exists() or path.stat().st_mtime < max(file.stat().st_mtime for file in dependencies):
        _compile(sources, isa, path)
    result = ctypes.CDLL(str(path))
    result.peak_flops.restype = ctypes.c_double
    result.peak_flops.argtypes = [ctypes.c_int64]
    result.set_modifier.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p]
    return result


def _compile(sources: list[Path], isa: str, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    flags = [*FLAGS["CORE_FLAGS"].split(), *FLAGS[f"{isa}_FLAGS"].split(), "-include", f"simd/isa/{isa}.h"]
    include = [f"-I{folder}" for folder in (CSRC / "include", CSRC, HANDWRITTEN)]
    command = [os.environ.get("CXX", "c++"), *flags, "-shared", "-fPIC", "-pthread", *include, *map(str, sources)]
    try:
        subprocess.run([*command, "-ldl", "-o", str(path)], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise CompileError(f"{command[0]} is not installed") from None
    except subprocess.CalledProcessError as failure:
        first = next((line for line in failure.stderr.splitlines() if "error" in line), "no message")
        raise CompileError(f"{command[0]} failed: {first}") from None


def measure_peak_flops(num_threads: int) -> float:
    """Return the FLOP/s of all threads together, from a millisecond of multiply-adds."""
    return float(library().peak_flops(num_threads))


class HandwrittenKernels(AbstractContextManager[None]):
    """A context in which the handwritten kernels replace those of the core, with the same Python code around them."""

    def __init__(self, modifier: str, window: int, cap: float, slopes: Tensor) -> None:
        self.modifier = MODIFIERS.index(modifier), window, cap, slopes.data_ptr()
        self.library = library()

    def __enter__(self) -> None:
        self.library.set_modifier(*self.modifier)
        self.core, abi.core = abi.core, self  # type: ignore[assignment]  # it has the two functions that calls use

    def __exit__(self, *failure: object) -> None:
        abi.core = self.core

    def forward(self, build: int, params: bytes) -> None:
        self._check(params)
        self.library.run_forward(params)

    def backward(self, build: int, params: bytes) -> None:
        self._check(params)
        self.library.run_backward(params)

    def _check(self, params: bytes) -> None:
        if len(params) != self.library.params_bytes():
            raise RuntimeError("the handwritten kernels were compiled for other parameters. Remove the folder build.")
