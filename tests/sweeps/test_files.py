"""Damaged recordings, checkpoints and tensor files load unchanged or raise an error, in bounded memory."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the memory limit needs Linux")


def _run_sweep(folder: Path, *numbers: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.sweeps.file_mutations", str(folder), *map(str, numbers)]
    root = Path(__file__).parents[2]
    process = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=1200, check=False)
    assert process.returncode == 0, process.stderr[-2000:]
    return json.loads(process.stdout)  # type: ignore[no-any-return]  # an object


def _check(result: dict[str, Any], structured: int, flipped: int) -> None:
    assert result["faults"] == []
    counts = result["counts"]
    assert sum(counts.values()) == structured + flipped
    # if all files were refused, or all loaded, the sweep would show nothing
    assert counts["structured: refused"] > structured / 2 and counts["structured: changed"] > 0
    assert counts["flipped: refused"] > flipped / 2 and counts["flipped: same"] > 0


def test_a_sample_of_damaged_files_is_refused_or_loads_as_it_was(tmp_path: Path) -> None:
    _check(_run_sweep(tmp_path, 0, 200, 100), 200, 100)


@pytest.mark.exhaustive
def test_thousands_of_damaged_files_are_refused_or_load_as_they_were(tmp_path: Path) -> None:
    _check(_run_sweep(tmp_path, 1, 6000, 3000), 6000, 3000)
