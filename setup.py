"""The compiled core, which is optional: without a C++ compiler that builds it everything else installs and works.

A build that fails prints the compiler's first error, and leaves it in the package for `regard.explain`.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("native")
REASON = "core_not_built.txt"  # in the package; regard.engine.native reads it


class BuildCore(build_ext):
    """Builds the core, and records why where that fails."""

    first_error = ""

    def run(self) -> None:
        super().run()
        (core,) = self.extensions
        places = [Path(self.build_lib, "regard")]
        if self.inplace:
            places.append(Path(self.get_finalized_command("build_py").get_package_dir("regard")))
        is_built = Path(self.build_lib, self.get_ext_filename(core.name)).exists()
        for place in places:
            (place / REASON).unlink(missing_ok=True)
        if is_built:
            return
        reason = f"the build failed with: {self.first_error or 'an unknown error'}"
        for place in places:
            for outdated in place.glob("_core*.so"):  # built from other sources
                outdated.unlink()
            place.mkdir(parents=True, exist_ok=True)
            (place / REASON).write_text(reason + "\n", encoding="utf8")
        sys.stderr.write(
            f"regard: the compiled core was NOT built; {reason}\n"
            "regard: everything works without it, but slower. GCC builds it: set CC and CXX, and install again.\n"
        )

    def build_extension(self, ext: Extension) -> None:
        with tempfile.TemporaryFile("w+", encoding="utf8", errors="replace") as printed:
            try:
                with errors_into(printed):
                    super().build_extension(ext)
            except Exception as error:
                self.first_error = first_error(printed, error)
                raise


@contextmanager
def errors_into(file: IO[str]) -> Iterator[None]:
    """Send what this process and the compiler print as errors into a file, and to the terminal at the end."""
    sys.stderr.flush()
    terminal = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)
        file.seek(0)
        sys.stderr.write(file.read())


def first_error(printed: IO[str], error: BaseException | None) -> str:
    """The first error that a compiler printed, or why it could not print one."""
    printed.seek(0)
    lines = [line.strip() for line in printed if "error" in line.lower()]
    if lines:
        return lines[0]
    text = str(error)
    while error is not None:
        if isinstance(error, subprocess.CalledProcessError):
            return f"{error.cmd[0]} ended with status {error.returncode} and no message"
        if isinstance(error, FileNotFoundError):
            return f"{error.filename}: {error.strerror}"
        error = error.__cause__ or error.__context__
    return text


setup(
    ext_modules=[
        Extension(
            "regard._core",
            sources=sorted(str(path) for path in NATIVE.glob("*.cpp")),
            depends=sorted(str(path) for path in NATIVE.glob("*.h")),
            include_dirs=[str(NATIVE)],
            language="c++",
            extra_compile_args=[
                "-std=c++17",
                "-O3",
                "-ffp-contract=off",  # what decides must be the same number here and in torch
                "-fno-math-errno",
                "-fvisibility=hidden",
                "-Wno-psabi",
            ],
            libraries=["dl"],
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildCore},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
