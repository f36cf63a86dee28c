"""Build of the compiled core, which is optional: without a C++ compiler everything else installs and works.

A failed build prints the first error of the compiler and stores it in the package for `regard.explain`.
"""

import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CSRC = Path("csrc")
FLAGS = {
    name: text.split() for name, text in re.findall(r"^(\w+) := *(.*)$", (CSRC / "flags.mk").read_text("utf8"), re.M)
}
ARCHITECTURE = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
ISAS = FLAGS.get(f"{ARCHITECTURE}_ISAS", ["portable"])  # csrc/flags.mk says why their order matters
BUILD_ERROR_FILE = "core_not_built.txt"  # in the package; regard.backends.native.backend reads it


class BuildCore(build_ext):
    """Build the core, or record why the build failed."""

    first_error = ""

    def run(self) -> None:
        super().run()
        (core,) = self.extensions
        folders = [Path(self.build_lib, "regard")]
        if self.inplace:
            folders.append(Path(self.get_finalized_command("build_py").get_package_dir("regard")))
        is_built = Path(self.build_lib, self.get_ext_filename(core.name)).exists()
        for folder in folders:
            (folder / BUILD_ERROR_FILE).unlink(missing_ok=True)
        if is_built:
            return
        reason = f"the build failed with: {self.first_error or 'an unknown error'}"
        for folder in folders:
            for outdated in folder.glob("_core*.so"):  # built from other sources
                outdated.unlink()
            folder.mkdir(parents=True, exist_ok=True)
            (folder / BUILD_ERROR_FILE).write_text(reason + "\n", encoding="utf8")
        message = (
            f"regard: the compiled core was NOT built; {reason}\n"
            "regard: everything works without it, but slower. To build it with GCC, set CC and CXX and install again.\n"
        )
        sys.stderr.write(message)
        write_to_terminal(message)

    def build_extension(self, ext: Extension) -> None:
        with tempfile.TemporaryFile("w+", encoding="utf8", errors="replace") as output:
            try:
                with redirect_stderr(output):
                    with ThreadPoolExecutor(os.cpu_count()) as pool:
                        ext.extra_objects = list(pool.map(partial(self.compile_kernels, ext), ISAS))
                    super().build_extension(ext)
            except Exception as error:
                self.first_error = first_compiler_error(output, error)
                raise

    def compile_kernels(self, ext: Extension, isa: str) -> str:
        """Compile the kernels for an instruction set with its flags; return the path of the object."""
        (path,) = self.compiler.compile(
            [str(CSRC / "isa" / f"{isa}.cpp")],
            output_dir=self.build_temp,
            include_dirs=ext.include_dirs,
            extra_postargs=[*ext.extra_compile_args, *FLAGS[f"{isa}_FLAGS"]],
            depends=ext.depends,
        )
        return str(path)


def write_to_terminal(message: str) -> None:
    """Write to the terminal of this process, if it has one: pip hides the standard error of a build that succeeds."""
    if sys.stderr.isatty():  # the message is there already
        return
    try:
        Path("/dev/tty").write_text("\n" + message, encoding="utf8")
    except OSError:
        return


@contextmanager
def redirect_stderr(file: IO[str]) -> Iterator[None]:
    """Redirect the standard error of this process and the compiler to a file; print it to the terminal at the end."""
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


def first_compiler_error(compiler_output: IO[str], error: BaseException | None) -> str:
    """Return the first error that the compiler printed, or why it printed none."""
    compiler_output.seek(0)
    lines = [line.strip() for line in compiler_output if "error" in line.lower()]
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
            sources=sorted(str(path) for path in CSRC.glob("*.cpp")),
            depends=sorted(str(path) for pattern in ("**/*.h", "*.mk") for path in CSRC.glob(pattern)),
            include_dirs=[str(CSRC / "include"), str(CSRC)],
            language="c++",
            extra_compile_args=[*FLAGS["CORE_FLAGS"], "-pthread"],
            extra_link_args=["-pthread"],
            libraries=["dl"],
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildCore},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
