"""The layout of the packed structs: a difference between the compiled core and Python raises an error."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from regard.backends.native import abi
from regard.backends.native.backend import builds
from regard.backends.native.packing import _struct_row
from regard.errors import BackendError

needs_core = pytest.mark.skipif(not builds(), reason="the compiled core is not built")
ROOT = Path(__file__).parents[3]
CHANGES = [
    ("AttentionParams", "row_statistic", 8),
    ("AttentionParams", "sizeof", 8),
    ("StridedRows", "head_stride", -8),
    ("WeightTileParams", "column_sums", 8),
    ("ThresholdParams", "thresholds", -8),
    ("Program", "mask_end", 8),
    ("Instruction", "b_index", 4),
    ("KeyRun", "is_partial", -4),
    ("DType", "BF16", 1),
    ("ThresholdMode", "HARDMAX", 1),
    ("OperandKind", "PER_KEY", -1),
    ("ConflictScope", "HEADS", 1),
    ("Op", "SCATTER_ADD", 1),
    ("constants", "MAX_LENGTH", -1),
    ("constants", "PANELS_PER_BLOCK", 1),
]


@needs_core
def test_compiled_core_has_the_layout_of_the_python_structs() -> None:
    assert abi.core is not None and abi.core.abi() == abi.expected_abi()


@pytest.mark.parametrize(("group", "name", "change"), CHANGES)
def test_changed_offset_enumerator_or_constant_raises_error(group: str, name: str, change: int) -> None:
    compiled = abi.expected_abi()
    expected = compiled[group][name]
    compiled[group][name] += change

    message = f"which has {group}.{name} = {expected}; got {expected + change}. Build the core again: run make setup"
    with pytest.raises(BackendError, match=re.escape(message)):
        abi.check_abi(compiled)


def test_field_on_one_side_only_raises_error() -> None:
    without, with_another = abi.expected_abi(), abi.expected_abi()
    del without["Program"]["num_sums"]
    with_another["Program"]["num_threads"] = 88

    with pytest.raises(BackendError, match=r"Program\.num_sums = 72; got nothing"):
        abi.check_abi(without)
    with pytest.raises(BackendError, match=r"Program\.num_threads = nothing; got 88"):
        abi.check_abi(with_another)
    with pytest.raises(BackendError, match=r"StridedRows\.sizeof = 32; got nothing"):
        abi.check_abi({})


@needs_core
def test_import_of_a_core_with_another_layout_raises_error(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src" / "regard", tmp_path / "regard", ignore=shutil.ignore_patterns("__pycache__"))
    module = tmp_path / "regard" / "backends" / "native" / "abi.py"
    source = module.read_text(encoding="utf8")
    module.write_text(source.replace('"output row_statistic"', '"row_statistic output"'), encoding="utf8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    process = subprocess.run(
        [sys.executable, "-c", "import regard"], env=environment, capture_output=True, text=True, check=False
    )

    assert process.returncode != 0
    assert "BackendError: the compiled core must match this version of regard" in process.stderr
    assert "AttentionParams.row_statistic = 256; got 264" in process.stderr


def test_rows_have_the_fields_in_memory_order() -> None:
    assert _struct_row(abi.PositionArray, head_stride=3, data=1, batch_stride=2) == (1, 2, 3)
    assert bytes(abi.PositionArray(1, 2, 3)) == b"".join(n.to_bytes(8, sys.byteorder) for n in (1, 2, 3))
    with pytest.raises(KeyError, match="head_stride"):
        _struct_row(abi.PositionArray, data=1, batch_stride=2)


def test_every_field_of_the_packed_parameters_has_eight_bytes() -> None:
    for struct, fields in ((abi.AttentionParams, 50), (abi.WeightTileParams, 18), (abi.ThresholdParams, 5)):
        assert ctypes.sizeof(struct) == 8 * fields


def test_output_and_row_statistic_are_adjacent_fields() -> None:
    assert abi.AttentionParams.row_statistic.offset == abi.AttentionParams.output.offset + 8
