"""Tensors with JSON metadata in one safetensors file, written atomically and read without pickle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.argument_types import check_types
from regard.errors import ArgumentError, LoadError
from regard.files.atomic import translate_os_errors
from regard.files.safetensors_file import read_tensors, write_tensors
from regard.files.safetensors_header import read_header

REGARD_KEY = "regard"  # key of the JSON text in the metadata of the file


@check_types
def save_tensors_and_metadata(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None
) -> None:
    """Write named tensors and `metadata`, any JSON object, into one file. Missing folders are created."""
    path = Path(path)
    try:
        text = json.dumps(dict(metadata or {}))
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"metadata must be plain JSON (strings, numbers, lists, dicts); got: {error}.") from None
    with translate_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, tensors, {REGARD_KEY: text})


@check_types
def load_tensors_and_metadata(
    path: str | Path, *, require_checksum: bool = False
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a file by name, and its metadata.

    With `require_checksum`, a file without a checksum raises `LoadError`.
    """
    path = Path(path)
    content = read_tensors(path)
    if require_checksum and not content.is_verified:
        raise LoadError(f"{path} must have a checksum; it has none. Save it again with regard.")
    return content.tensors, _parse_metadata(path, content.metadata)


@check_types
def load_metadata(path: str | Path) -> dict[str, Any]:
    """Return the metadata of a file without reading its tensors."""
    return _parse_metadata(Path(path), read_header(Path(path)).metadata)


def _parse_metadata(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        parsed = json.loads(metadata.get(REGARD_KEY, "{}"))
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise LoadError(f"{path} must have a JSON object as its {REGARD_KEY!r} metadata; it does not. Save it again.")
    return parsed
