"""Parse tensors of command line options: text ("1 0; 0 1" or JSON), or a JSON, CSV, NumPy or safetensors file."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.errors import ArgumentError
from regard.files.tensors_with_metadata import load_tensors_and_metadata

MAX_FILE_BYTES = 16 * 2**20
FILE_SUFFIXES = (".json", ".csv", ".npy", ".safetensors")


def parse_tensor(text: str, name: str) -> torch.Tensor:
    """Return the tensor in a text, or in the file that the text names.

    A tensor of a safetensors file is named after a colon, as in "file.safetensors:q". `name` is the option, for errors.

    >>> parse_tensor("1 0; 0.5 1", "q").tolist()
    [[1.0, 0.0], [0.5, 1.0]]
    """
    path, _, tensor_name = text.rpartition(":") if re.search(r"\.safetensors:[^/\\]*$", text) else (text, "", "")
    if Path(path).suffix.lower() in FILE_SUFFIXES:
        return _to_tensor(_load_file(Path(path), tensor_name, name), name, text)
    return _to_tensor(_parse_text(text, name), name, text)


def _parse_text(text: str, name: str) -> Any:
    """Parse JSON, or rows separated by semicolons or newlines with numbers separated by spaces or commas."""
    if text.lstrip().startswith("["):
        try:
            return json.loads(text)
        except ValueError as error:
            raise ArgumentError(
                f"{name} must be valid JSON if it begins with '['; got {_shorten_text(text)}: {error}."
            ) from None
    rows = [re.split(r"[\s,]+", row.strip().strip(",")) for row in re.split(r"[;\n]", text) if row.strip()]
    try:
        return [[float(number) for number in row] for row in rows]
    except ValueError as error:
        raise ArgumentError(
            f"{name} must be rows of numbers, as in '1 0; 0 1', JSON, or a file that ends in "
            f"{', '.join(FILE_SUFFIXES)}; got {_shorten_text(text)}: {error}."
        ) from None


def _load_file(path: Path, tensor_name: str, name: str) -> Any:
    if not path.is_file():
        raise ArgumentError(f"{name} must be numbers or an existing file; got {path}, which does not exist.")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ArgumentError(
            f"{name} must be a file of at most {MAX_FILE_BYTES:,} bytes; got {path} of {path.stat().st_size:,}."
        )
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        tensors, _ = load_tensors_and_metadata(path)
        if tensor_name not in tensors and not (tensor_name == "" and len(tensors) == 1):
            known = ", ".join(sorted(tensors)[:12])
            raise ArgumentError(
                f"{name} must name a tensor after a colon, as in {path}:NAME, one of {known}; got {tensor_name!r}."
            )
        return tensors[tensor_name] if tensor_name else next(iter(tensors.values()))
    try:
        if suffix == ".npy":
            return np.load(path, allow_pickle=False)
        content = path.read_text(encoding="utf8")
        return json.loads(content) if suffix == ".json" else _parse_csv(content)
    except (ValueError, EOFError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{name} must be numbers in a {suffix} file; got {path}: {error}.") from None


def _parse_csv(content: str) -> list[list[float]]:
    return [[float(number) for number in row] for row in csv.reader(content.splitlines()) if row]


def _to_tensor(values: Any, name: str, text: str) -> torch.Tensor:
    try:
        tensor = values if isinstance(values, torch.Tensor) else torch.as_tensor(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{name} must be a matrix with rows of equal length; got {_shorten_text(text)}: {error}."
        ) from None
    if tensor.dim() < 2 or 0 in tensor.shape:
        raise ArgumentError(
            f"{name} must have at least 2 dimensions, none of size 0; got {_shorten_text(text)}, of shape "
            f"{tuple(tensor.shape)}."
        )
    return tensor if tensor.is_floating_point() else tensor.double()


def _shorten_text(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
