"""Numbers from the command line: as text ("1 0; 0 1" or JSON), or from a JSON, CSV, NumPy or safetensors file."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.errors import SpecError
from regard.models.store import read

LARGEST = 16 * 2**20  # bytes of a file
KINDS = (".json", ".csv", ".npy", ".safetensors")


def numbers(text: str, name: str) -> torch.Tensor:
    """The numbers that a text holds, or a file that it names; a tensor of a safetensors file is named behind a colon.

    >>> numbers("1 0; 0.5 1", "q").tolist()
    [[1.0, 0.0], [0.5, 1.0]]
    """
    path, _, inner = text.rpartition(":") if re.search(r"\.safetensors:[^/\\]*$", text) else (text, "", "")
    if Path(path).suffix.lower() in KINDS:
        return _tensor(_from_file(Path(path), inner, name), name, text)
    return _tensor(_typed(text, name), name, text)


def _typed(text: str, name: str) -> Any:
    """Rows divided by semicolons or lines, numbers by spaces or commas; or JSON."""
    if text.lstrip().startswith("["):
        try:
            return json.loads(text)
        except ValueError as error:
            raise SpecError(f"{name} must be JSON where it begins with '['; got {_short(text)}: {error}.") from None
    rows = [re.split(r"[\s,]+", row.strip().strip(",")) for row in re.split(r"[;\n]", text) if row.strip()]
    try:
        return [[float(number) for number in row] for row in rows]
    except ValueError as error:
        raise SpecError(
            f"{name} must be rows of numbers, as in '1 0; 0 1', JSON, or a file that ends in {', '.join(KINDS)}; got "
            f"{_short(text)}: {error}."
        ) from None


def _from_file(path: Path, inner: str, name: str) -> Any:
    if not path.is_file():
        raise SpecError(f"{name} must be numbers or a file; got {path}, which is not there.")
    if path.stat().st_size > LARGEST:
        raise SpecError(f"{name} must be a file of at most {LARGEST:,} bytes; got {path} of {path.stat().st_size:,}.")
    kind = path.suffix.lower()
    if kind == ".safetensors":
        tensors, _ = read(path)
        if inner not in tensors and not (inner == "" and len(tensors) == 1):
            known = ", ".join(sorted(tensors)[:12])
            raise SpecError(
                f"{name} must name a tensor behind a colon, as in {path}:NAME, one of {known}; got {inner!r}."
            )
        return tensors[inner] if inner else next(iter(tensors.values()))
    try:
        if kind == ".npy":
            return np.load(path, allow_pickle=False)
        content = path.read_text(encoding="utf8")
        return json.loads(content) if kind == ".json" else _rows(content)
    except (ValueError, EOFError, UnicodeDecodeError) as error:
        raise SpecError(f"{name} must be numbers in a {kind} file; got {path}: {error}.") from None


def _rows(content: str) -> list[list[float]]:
    return [[float(number) for number in row] for row in csv.reader(content.splitlines()) if row]


def _tensor(values: Any, name: str, text: str) -> torch.Tensor:
    try:
        found = values if isinstance(values, torch.Tensor) else torch.as_tensor(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise SpecError(f"{name} must be a matrix, all rows alike; got {_short(text)}: {error}.") from None
    if found.dim() < 2 or 0 in found.shape:
        raise SpecError(f"{name} must have rows and columns; got {_short(text)}, of shape {tuple(found.shape)}.")
    return found if found.is_floating_point() else found.double()


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
