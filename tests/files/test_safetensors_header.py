"""Headers of safetensors files: lengths that look like a pickle, and pickled files."""

import json
import pickle
from pathlib import Path

import pytest
import torch

from regard.errors import LoadError
from regard.files.safetensors_header import read_header


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580])
def test_header_length_may_look_like_a_pickle(tmp_path: Path, length: int) -> None:
    path = tmp_path / "model.safetensors"
    text = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})
    path.write_bytes(length.to_bytes(8, "little") + text.ljust(length).encode() + bytes(4))

    assert list(read_header(path).entries) == ["x"]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("padding", [0, 2**20])
def test_pickled_file_is_named_as_one(tmp_path: Path, protocol: int, padding: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps({"x": [1.0]}, protocol=protocol) + bytes(padding))

    with pytest.raises(LoadError, match="it is pickled, and opening it could run any program"):
        read_header(path)


def test_file_of_torch_save_is_named_as_pickled(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    torch.save({"x": torch.ones(3)}, path)

    with pytest.raises(LoadError, match="it is pickled"):
        read_header(path)
