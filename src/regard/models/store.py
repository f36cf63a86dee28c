"""Weights in safetensors files: written whole or not at all, read only if every tensor is there and fits.

Nothing here unpickles. What cannot be right is refused before anything of the model is changed, by the tensor's name.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.argument_types import check_types
from regard.errors import LoadError, SpecError
from regard.files.atomic import save_errors
from regard.files.header import read_header
from regard.files.tensors import read_tensors, write_tensors

WORDS = "regard"  # the name of regard's own words in the metadata of a file


@check_types
def write(path: str | Path, tensors: Mapping[str, Tensor], words: Mapping[str, Any] | None = None) -> None:
    """Writes tensors by name into one file, and beside them `words`: any value of JSON."""
    path = Path(path)
    try:
        text = json.dumps(dict(words or {}))
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(f"text saved with tensors must be plain JSON (text, numbers, lists); got: {error}.") from None
    with save_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, tensors, {WORDS: text})


@check_types
def read(path: str | Path, *, verified: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file by name, and the words beside them. With `verified` a file must have a checksum."""
    path = Path(path)
    content = read_tensors(path)
    if verified and not content.is_verified:
        raise LoadError(f"{path} must have a checksum, as regard writes it; it has none. Save it again.")
    return content.tensors, _words(path, content.metadata)


@check_types
def read_words(path: str | Path) -> dict[str, Any]:
    """The words beside the tensors of a file. The tensors are not read."""
    return _words(Path(path), read_header(Path(path)).metadata)


def _words(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        words = json.loads(metadata.get(WORDS, "{}"))
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, dict):
        raise LoadError(f"{path} must have an object of JSON as its {WORDS!r} metadata; it does not. Save it again.")
    return words


@check_types
def fit(model: nn.Module, tensors: Mapping[str, Tensor], source: str | Path) -> None:
    """Puts tensors into the parameters of these names; refuses unless every one is there and has its shape."""
    check_fit(model, tensors, source)
    with torch.no_grad():
        for name, place in model.state_dict().items():
            place.copy_(tensors[name])


def check_fit(model: nn.Module, tensors: Mapping[str, Tensor], source: str | Path) -> None:
    """Raises `LoadError` unless every parameter has a tensor of its shape. The model may be on the meta device."""
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
