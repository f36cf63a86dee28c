"""Read and write recordings as one safetensors file with a checksum. Keys that calls share are stored once.

The metadata describe the layers, their decode sequences and the serialized options of each call. Files are not trusted:
types, ranges, shapes and the memory that an option would allocate are checked before a value is used.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.errors import ArgumentError, LoadError, RegardError
from regard.files.tensors_with_metadata import load_metadata, load_tensors_and_metadata, save_tensors_and_metadata
from regard.recording.decode_sequence import DecodeSequence
from regard.recording.named_tokens import check_tokens
from regard.recording.recorded_call import RecordedCall, SerializedOptions
from regard.recording.recorded_layer import RecordedLayer

FORMAT_VERSION = 4
FLOAT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MAX_INTEGER = 2**63 - 1
MAX_SINKHORN_ITERATIONS = 10_000
MAX_RANDOM_FEATURES = 2**16


@dataclass(frozen=True, eq=False)
class RecordingContent:
    """The layers and tokens of a recording, and the messages about calls that were not recorded."""

    layers: list[RecordedLayer]
    tokens: Any
    dropped_calls: list[str]


def write_recording(path: str | Path, content: RecordingContent) -> None:
    """Write a recording to one file."""
    tensors: dict[str, Tensor] = {}
    layers: list[dict[str, Any]] = []
    check_tokens(content.tokens)
    for layer in content.layers:
        sequences = []
        for n, sequence in enumerate(layer.sequences):
            name = f"{layer.index}.{n}"
            tensors |= {f"{name}.k": sequence.k, f"{name}.v": sequence.v}
            sequences.append([_call_metadata(call, tensors) for call in _saved_calls(layer, name, sequence)])
        layers.append({"path": layer.path, "index": layer.index, "heads": layer.head_indices, "sequences": sequences})
    metadata = {
        "recording": FORMAT_VERSION,
        "tokens": content.tokens,
        "layers": layers,
        "dropped_calls": content.dropped_calls,
    }
    save_tensors_and_metadata(path, tensors, metadata)


@dataclass(frozen=True, eq=False)
class _SavedCall:
    """A call with the prefix of the names of its tensors."""

    name: str
    call: RecordedCall
    serialized_options: SerializedOptions
    key_offset: int


def _saved_calls(layer: RecordedLayer, name: str, sequence: DecodeSequence) -> Iterator[_SavedCall]:
    for n, (call, offset) in enumerate(zip(sequence.calls, sequence.key_offsets, strict=True)):
        if call.serialized_options is None:
            raise ArgumentError(
                "a recording can be saved only if the options of all calls can be serialized; a call of "
                f"{layer.path} has a custom function. Record without this layer."
            )
        yield _SavedCall(f"{name}.{n}", call, call.serialized_options, offset)


def _call_metadata(call: _SavedCall, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the metadata of a call and add its tensors to `tensors`."""
    options = call.serialized_options
    tensors[f"{call.name}.q"] = call.call.q
    tensors |= {f"{call.name}.option{n}": tensor for n, tensor in enumerate(options.tensors)}
    return {
        "keys": [call.key_offset, call.key_offset + call.call.k.shape[2]],
        "num_option_tensors": len(options.tensors),
        "options": options.text,
        "integers": options.integers,
        "source": call.call.source,
    }


def read_recording(path: str | Path) -> RecordingContent:
    """Read a recording. Raises `LoadError` for every file that `write_recording` would not write."""
    metadata = load_metadata(Path(path))
    version = metadata.get("recording")
    if version is None:
        raise LoadError(
            f"{path} must be a file that Recording.save wrote; its metadata are {json.dumps(metadata)[:60]}."
        )
    if type(version) is not int or version != FORMAT_VERSION:
        raise LoadError(
            f"{path} must be a recording of format {FORMAT_VERSION}; it has format {json.dumps(version)[:20]}. Record "
            "the model again with this version of regard."
        )
    tensors, metadata = load_tensors_and_metadata(path, require_checksum=True)
    try:
        return _RecordingReader(tensors).content(metadata)
    except _Malformed as error:
        raise LoadError(
            f"{path} must be a file that Recording.save wrote; {error}. Record the model and save it again."
        ) from None


class _Malformed(Exception):
    """A part of the file is invalid; the message is a clause that names it."""


class _RecordingReader:
    """Builds layers from the metadata of a file. Each method checks the metadata that it uses."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def content(self, metadata: dict[str, Any]) -> RecordingContent:
        try:
            check_tokens(metadata.get("tokens"))
        except ArgumentError as error:
            raise _Malformed(f"its tokens are invalid: {str(error).removesuffix('.')}") from None
        dropped_calls = [_string(message, "a message") for message in _list(metadata, "dropped_calls")]
        layers = [self.layer(layer) for layer in _list(metadata, "layers")]
        for name, values in (("path", [layer.path for layer in layers]), ("index", [layer.index for layer in layers])):
            if len(set(values)) != len(values):
                raise _Malformed(f"two layers have the same {name}")
        return RecordingContent(layers, metadata.get("tokens"), dropped_calls)

    def layer(self, metadata: Any) -> RecordedLayer:
        index = _count(metadata, "index")
        heads = [_integer(head, 0, "a head") for head in _list(metadata, "heads")]
        layer = RecordedLayer(_string(_field(metadata, "path"), "a path"), index, heads)
        for n, calls in enumerate(_list(metadata, "sequences")):
            layer.sequences.append(self.decode_sequence(f"{index}.{n}", calls, len(heads)))
        if not layer.sequences:
            raise _Malformed(f"layer {index} has no calls")
        return layer

    def decode_sequence(self, name: str, calls: Any, num_heads: int) -> DecodeSequence:
        k, v = self.float_tensor(f"{name}.k"), self.float_tensor(f"{name}.v")
        if k.shape[:3] != v.shape[:3] or k.dtype != v.dtype:
            raise _Malformed(f"keys of shape {tuple(k.shape)} and values of shape {tuple(v.shape)} do not match")
        if not isinstance(calls, list) or not calls:
            raise _Malformed(f"{name} must be a list of calls")
        recorded_calls, offsets, last_end = [], [], 0
        for n, metadata in enumerate(calls):
            start, end = self.key_range(metadata, k.shape[2])
            call = self.call(f"{name}.{n}", metadata, k[:, :, start:end], v[:, :, start:end])
            if call.q.shape[1] != num_heads:
                raise _Malformed(f"{name}.{n}.q has {call.q.shape[1]} heads, and its layer {num_heads}")
            recorded_calls.append(call)
            offsets.append(start)
            last_end = max(last_end, end)
        if last_end != k.shape[2]:
            raise _Malformed(f"{name} has {k.shape[2]} keys, and its calls use {last_end}")
        return DecodeSequence(recorded_calls, offsets, k, v)

    def key_range(self, metadata: Any, n_k: int) -> tuple[int, int]:
        keys = [_integer(key, 0, "a key") for key in _list(metadata, "keys")]
        if len(keys) != 2 or not keys[0] <= keys[1] <= n_k:
            raise _Malformed(f"a call must use keys from 0 to {n_k}, not {str(keys)[:60]}")
        return keys[0], keys[1]

    def call(self, name: str, metadata: Any, k: Tensor, v: Tensor) -> RecordedCall:
        q = self.float_tensor(f"{name}.q")
        tensors = tuple(
            self.tensor(f"{name}.option{n}")
            for n in range(min(_count(metadata, "num_option_tensors"), len(self.tensors)))
        )
        integers = tuple(_integer(value, -MAX_INTEGER, "an integer") for value in _list(metadata, "integers"))
        serialized = SerializedOptions(_string(_field(metadata, "options"), "the options"), tensors, integers)
        _check_option_sizes(serialized, q.shape[-1])
        try:
            options = serialized.deserialize()
            parse_call(AttentionCall(q, k, v, **options))
        except _Malformed:
            raise
        except RegardError as error:
            raise _Malformed(f"the options of {name} are invalid: {str(error).removesuffix('.')}") from None
        except Exception as error:  # constructors of masks and scores are called with arguments from the file
            raise _Malformed(f"the options of {name} are invalid ({type(error).__name__}: {error})") from None
        return RecordedCall(q, k, v, options, serialized, _string(_field(metadata, "source"), "a source"))

    def tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise _Malformed(f"the tensor {name!r} is missing")
        return self.tensors[name]

    def float_tensor(self, name: str) -> Tensor:
        tensor = self.tensor(name)
        if tensor.dim() != 4 or tensor.dtype not in FLOAT_DTYPES:
            raise _Malformed(
                f"{name!r} must be a float tensor of 4 dimensions, not {tuple(tensor.shape)} of {tensor.dtype}"
            )
        return tensor


def _check_option_sizes(serialized_options: SerializedOptions, head_dim: int) -> None:
    """Raise `_Malformed` for options that would run or allocate without a bound, before they are built."""
    try:
        parsed = json.loads(serialized_options.text)
    except (ValueError, RecursionError):
        raise _Malformed("the options of a call are not JSON") from None
    stack = [parsed]
    while stack:
        part = stack.pop()
        if isinstance(part, dict) and len(part) == 1 and set(part) <= {"int", "tensor", "expr"}:
            continue
        if type(part) is int:
            raise _Malformed(f"the options of a call contain {str(part)[:40]}, which must be one of its integers")
        if isinstance(part, list) and len(part) == 3 and part[0] in ("normalizer.sinkhorn", "feature_map.favor"):
            _check_builtin_arguments(
                part[0], [*_children(part[1]), *_children(part[2])], serialized_options.integers, head_dim
            )
        stack.extend(_children(part))


def _check_builtin_arguments(builtin: str, arguments: Sequence[Any], integers: Sequence[int], head_dim: int) -> None:
    references = [argument["int"] for argument in arguments if isinstance(argument, dict) and "int" in argument]
    values = [integers[n] for n in references if type(n) is int and 0 <= n < len(integers)]
    limit = MAX_SINKHORN_ITERATIONS if builtin == "normalizer.sinkhorn" else max(MAX_RANDOM_FEATURES, head_dim)
    if builtin == "feature_map.favor" and values[:1] != [head_dim]:
        raise _Malformed(f"{builtin} must have the head_dim of the queries, {head_dim}, not {values[:1]}")
    if any(value > limit for value in values[: 1 if builtin == "normalizer.sinkhorn" else 2]):
        raise _Malformed(f"{builtin} allows integers up to {limit}, not {max(values)}")


def _children(node: Any) -> list[Any]:
    return node if isinstance(node, list) else list(node.values()) if isinstance(node, dict) else []


def _field(metadata: Any, name: str) -> Any:
    if not isinstance(metadata, dict) or name not in metadata:
        raise _Malformed(f"{name!r} is missing")
    return metadata[name]


def _list(metadata: Any, name: str) -> list[Any]:
    value = _field(metadata, name)
    if not isinstance(value, list):
        raise _Malformed(f"{name!r} must be a list")
    return value


def _count(metadata: Any, name: str) -> int:
    return _integer(_field(metadata, name), 0, name)


def _integer(value: Any, at_least: int, name: str) -> int:
    if type(value) is not int or not at_least <= value <= MAX_INTEGER:
        raise _Malformed(f"{name} must be an integer from {at_least}, not {str(value)[:40]}")
    return value


def _string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise _Malformed(f"{name} must be a string, not {str(value)[:40]}")
    return value
