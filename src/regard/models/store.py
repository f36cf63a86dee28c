"""Weights in safetensors files: written whole or not at all, read only if every tensor is there and fits.

Nothing here unpickles. What cannot be right is refused before anything of the model is changed, by the tensor's name.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import LoadError, MissingError

SIZE_OF_LENGTH = 8  # bytes that say how long the header is
LONGEST_HEADER = 100_000_000
PICKLED = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def write(path: str | Path, tensors: Mapping[str, Tensor], words: Mapping[str, Any] | None = None) -> None:
    """Tensors by name into one file, and beside them `words`: anything JSON can say."""
    path = Path(path)
    plain: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        held = tensor.detach().to("cpu").contiguous()
        plain[name] = held.clone() if held.data_ptr() in places else held  # a file holds what is shared twice
        places.add(held.data_ptr())
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as half:
        pass
    try:
        _safetensors().save_file(plain, half.name, metadata={"regard": json.dumps(dict(words or {}))})
        Path(half.name).chmod(0o666 & ~_umask())
        os.replace(half.name, path)  # whoever reads sees the old file or the new one
    except BaseException:
        Path(half.name).unlink(missing_ok=True)
        raise


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file by name, and the words beside them."""
    path = Path(path)
    words, reader = read_words(path), _safetensors()
    try:
        return reader.load_file(str(path)), words
    except Exception as error:  # safetensors' own has no class that is there without it
        raise LoadError(f"weights must be a safetensors file; got {path}, which cannot be read: {error}.") from None


def read_words(path: Path) -> dict[str, Any]:
    """The words beside the tensors of a file, without these."""
    header = checked_header(path)
    try:
        found = json.loads(header.get("__metadata__", {}).get("regard", "{}"))
    except (ValueError, AttributeError, TypeError):
        found = None
    if not isinstance(found, dict):
        raise LoadError(f"{path} must say what it is in words of its own, as JSON; it does not.")
    return found


def checked_header(path: Path) -> dict[str, Any]:
    """What a file says of itself, if it is a safetensors file and all of it is there."""
    if not path.is_file():
        raise LoadError(f"weights must be a safetensors file; got {path}, which is not a file.")
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(SIZE_OF_LENGTH)
        if first.startswith(PICKLED):
            raise LoadError(
                f"weights must be a safetensors file; got {path}, which is pickled. Opening it could run any program: "
                "save it anew with safetensors.torch.save_file where you trust it."
            )
        length = int.from_bytes(first, "little")
        if len(first) < SIZE_OF_LENGTH or not 2 <= length <= min(LONGEST_HEADER, size - SIZE_OF_LENGTH):
            raise LoadError(f"weights must be a safetensors file; got {path}, which does not begin like one.")
        try:
            header: dict[str, Any] = json.loads(file.read(length))
        except (ValueError, RecursionError):
            raise LoadError(f"weights must be a safetensors file; got {path}, whose header is not JSON.") from None
    if not isinstance(header, dict):
        raise LoadError(f"weights must be a safetensors file; got {path}, whose header names no tensors.")
    there = size - SIZE_OF_LENGTH - length
    for name, entry in header.items():
        if name != "__metadata__" and (end := _end_of(entry, name, path)) > there:
            raise LoadError(
                f"{path} must hold all of its tensors; {name!r} ends at byte {end} of the data, and only {there} are "
                "there. Copy the file again."
            )
    return header


def _end_of(entry: Any, name: str, path: Path) -> int:
    """The byte at which a tensor ends, by what the header says of it."""
    try:
        return int(entry["data_offsets"][1])
    except (KeyError, IndexError, TypeError, ValueError):
        raise LoadError(f"{path} must say where each tensor is; of {name!r} it says {entry}.") from None


def fit(model: nn.Module, tensors: Mapping[str, Tensor], source: str | Path) -> None:
    """Puts tensors into the parameters of these names; refuses unless every one is there and has its shape."""
    wanted = model.state_dict()
    for name, place in wanted.items():
        if name not in tensors:
            raise LoadError(f"{source} must hold {name!r}, of shape {tuple(place.shape)}; it does not.")
        if tensors[name].shape != place.shape:
            raise LoadError(
                f"{name!r} must have shape {tuple(place.shape)}; got {tuple(tensors[name].shape)} in {source}."
            )
        if not tensors[name].is_floating_point() and place.is_floating_point():
            raise LoadError(f"{name!r} must hold floats; got {tensors[name].dtype} in {source}.")
    if more := sorted(set(tensors) - set(wanted)):
        raise LoadError(f"{source} holds {more[0]!r}, and this model has nothing of that name ({len(more)} such).")
    with torch.no_grad():
        for name, place in wanted.items():
            place.copy_(tensors[name])


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise MissingError(
            "weights are kept in safetensors files, and that package is not installed. Use pip install regard[models]."
        ) from None
    return safetensors.torch
