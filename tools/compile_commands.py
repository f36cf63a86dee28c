"""Write compile_commands.json, from which clangd, clang-tidy and editors learn how each file of csrc is compiled.

    python tools/compile_commands.py            write compile_commands.json
    python tools/compile_commands.py --check    write it, and let clangd check every file

Headers of simd and kernels are listed as they are compiled for AVX-512, and simd/isa/neon.h for 64-bit ARM.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / "csrc"
CLANGD_NAMES = ("clangd", *(f"clangd-{version}" for version in range(21, 13, -1)))
DEFAULT_ISA = "avx512"


def read_flags() -> dict[str, list[str]]:
    """Return the variables of csrc/flags.mk."""
    text = (CSRC / "flags.mk").read_text(encoding="utf8")
    return {name: value.split() for name, value in re.findall(r"^(\w+) := *(.*)$", text, re.M)}


def isa_of(path: Path) -> str | None:
    """Return the instruction set that a file is compiled for; None for files without kernels."""
    folder = path.parent.name
    if folder == "isa":
        return path.stem
    is_unit_test = folder == "tests" and re.match(r"test_(units|simd|panel|half|interpreter)|interpreter_op", path.name)
    return DEFAULT_ISA if folder in ("simd", "kernels") or is_unit_test else None


def compile_command(path: Path, flags: dict[str, list[str]]) -> list[str]:
    """Return the command that compiles a file of csrc, or checks a header."""
    isa = isa_of(path)
    command = ["clang++", *flags["CORE_FLAGS"]]
    if isa == "neon":
        command.append("--target=aarch64-linux-gnu")
    command += [] if isa is None else flags[f"{isa}_FLAGS"]
    command += [f"-I{folder}" for folder in (CSRC / "include", CSRC, CSRC / "tests", sysconfig.get_path("include"))]
    if isa is not None and path.parent.name != "isa" and path.name != "vector_ops.h":
        command += ["-include", f"simd/isa/{isa}.h"]
    if path.name == "units_main.cpp":
        command.append('-DREGARD_UNITS="portable"')
    return [*command, "-x", "c++-header" if path.suffix == ".h" else "c++", "-c", str(path)]


def source_files() -> list[Path]:
    return sorted([*CSRC.rglob("*.cpp"), *CSRC.rglob("*.h")])


def check_with_clangd(paths: list[Path]) -> int:
    """Let clangd open each file as an editor does; print its errors and return their number."""
    clangd = next(filter(None, map(shutil.which, CLANGD_NAMES)), None)
    if clangd is None:
        sys.exit("clangd is required to check the files of csrc. Install it with apt-get install clangd.")

    def check(path: Path) -> list[str]:
        command = [clangd, f"--check={path}", "--compile-commands-dir", str(ROOT), "--log=error"]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        # other lines of its log are about clangd itself
        errors = re.findall(r"^E\[[\d:.]+\] (\[\w+\] Line .*)$", process.stderr, re.M)
        return [f"{path.relative_to(ROOT)}: {error}" for error in errors]

    with ThreadPoolExecutor(2) as pool:
        errors = [error for result in pool.map(check, paths) for error in result]
    print(*errors, f"{len(paths)} files, {len(errors)} errors of clangd", sep="\n")
    return len(errors)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="let clangd check every file")
    options = parser.parse_args()
    flags, paths = read_flags(), source_files()
    commands = [
        {"directory": str(ROOT), "file": str(path), "arguments": compile_command(path, flags)} for path in paths
    ]
    (ROOT / "compile_commands.json").write_text(json.dumps(commands, indent=1) + "\n", encoding="utf8")
    return int(options.check and check_with_clangd(paths) > 0)


if __name__ == "__main__":
    sys.exit(main())
