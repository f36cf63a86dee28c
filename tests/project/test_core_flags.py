"""The compiler's flags of the core, in csrc/flags.mk: one instruction set a file, linked from the least to the most."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compile_commands", ROOT / "tools" / "compile_commands.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_instruction_set_has_flags_a_header_and_an_architecture(tool: ModuleType) -> None:
    flags = tool.read_flags()
    isas = {path.stem for path in (CSRC / "isa").glob("*.cpp")}
    assert isas == {path.stem for path in (CSRC / "simd" / "isa").glob("*.h")}
    assert isas == {name.removesuffix("_FLAGS") for name in flags if name.endswith("_FLAGS")} - {"CORE"}
    assert isas == {isa for name, listed in flags.items() if name.endswith("_ISAS") for isa in listed}


def test_kernels_for_any_processor_are_linked_first(tool: ModuleType) -> None:
    orders = {name: isas for name, isas in tool.read_flags().items() if name.endswith("_ISAS")}
    assert orders == {"x86_64_ISAS": ["portable", "avx2", "avx512", "avx512bf16"], "aarch64_ISAS": ["portable", "neon"]}


def test_compile_commands_list_every_file(tool: ModuleType, tmp_path: Path) -> None:
    for name in ("csrc", "tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    script = (
        "import runpy, sys; from pathlib import Path; main = runpy.run_path(sys.argv.pop(1))['main']; "
        "root = Path(sys.argv.pop(1)); main.__globals__.update(ROOT=root, CSRC=root / 'csrc'); main()"
    )
    tool_path = str(ROOT / "tools" / "compile_commands.py")
    subprocess.run([sys.executable, "-c", script, tool_path, str(tmp_path)], check=True)

    commands = json.loads((tmp_path / "compile_commands.json").read_text(encoding="utf8"))
    listed = {Path(command["file"]).relative_to(tmp_path).as_posix(): command["arguments"] for command in commands}
    assert set(listed) == {f"csrc/{path.relative_to(CSRC).as_posix()}" for path in tool.source_files()}
    assert "-mavx512f" in listed["csrc/kernels/forward.h"] and "-mavx512f" not in listed["csrc/bindings.cpp"]
    assert "--target=aarch64-linux-gnu" in listed["csrc/simd/isa/neon.h"]
