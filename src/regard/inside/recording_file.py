"""Recordings in files: one safetensors file with a checksum. Keys that several calls share are stored once.

The metadata describe layers, chains of calls and the text of their options. A file may come from anywhere, so every
value is checked against what the file really holds before it is used: kinds, ranges, shapes, and the sizes of what an
option would allocate.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import LoadError, RegardError, SpecError
from regard.inside.chain import Chain
from regard.inside.layer import Layer
from regard.inside.take import Spelled, Take
from regard.inside.texts import check_tokens
from regard.models.store import read, read_words, write
from regard.spec.read import read as parse_call

FORMAT = 3  # 1 stored the keys of each call by themselves; 2 had no checksum
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MAX_NUMBER = 2**63 - 1
MAX_SINKHORN_ITERATIONS = 10_000
MAX_RANDOM_FEATURES = 2**16


@dataclass(frozen=True, eq=False)
class Content:
    """The content of a recording: its layers, its tokens, and the messages about calls that were not kept."""

    layers: list[Layer]
    tokens: Any
    dropped: list[str]


def write_recording(path: str | Path, content: Content) -> None:
    """Writes a recording into one file."""
    tensors: dict[str, Tensor] = {}
    layers: list[dict[str, Any]] = []
    check_tokens(content.tokens)
    for layer in content.layers:
        chains = []
        for number, chain in enumerate(layer.chains):
            name = f"{layer.number}.{number}"
            tensors |= {f"{name}.k": chain.k, f"{name}.v": chain.v}
            chains.append([_described(call, tensors) for call in _calls_of(layer, name, chain)])
        layers.append({"path": layer.path, "number": layer.number, "heads": layer.heads, "chains": chains})
    words = {"tape": FORMAT, "tokens": content.tokens, "layers": layers, "dropped": content.dropped}
    write(path, tensors, words)


@dataclass(frozen=True, eq=False)
class _SavedCall:
    name: str
    take: Take
    spelled: Spelled
    offset: int


def _calls_of(layer: Layer, name: str, chain: Chain) -> Iterator[_SavedCall]:
    for place, (take, offset) in enumerate(zip(chain.takes, chain.offsets, strict=True)):
        if take.spelled is None:
            raise SpecError(
                f"a tape can be saved where masks and scores are formulas; a call of {layer.path} has a function of "
                "its own. Record without that layer."
            )
        yield _SavedCall(f"{name}.{place}", take, take.spelled, offset)


def _described(call: _SavedCall, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The words of a call; its tensors are added to the others."""
    spelled = call.spelled
    tensors[f"{call.name}.q"] = call.take.q
    tensors |= {f"{call.name}.option{n}": t for n, t in enumerate(spelled.tensors)}
    return {
        "keys": [call.offset, call.offset + call.take.k.shape[2]],
        "options": len(spelled.tensors),
        "text": spelled.text,
        "numbers": spelled.numbers,
        "source": call.take.source,
    }


def read_recording(path: str | Path) -> Content:
    """Reads a recording. Raises `LoadError` for every file that `write_recording` would not have written."""
    words = read_words(Path(path))
    version = words.get("tape")
    if version is None:
        raise LoadError(f"{path} must be a recording that tape.save wrote; it holds {json.dumps(words)[:60]}.")
    if type(version) is not int or version != FORMAT:
        raise LoadError(
            f"{path} must be a recording of format {FORMAT}; it has format {json.dumps(version)[:20]}. Record again "
            "with this version of regard."
        )
    tensors, words = read(path, verified=True)
    try:
        return _Reader(tensors).content(words)
    except _Malformed as error:
        raise LoadError(
            f"{path} must be a recording that tape.save wrote; {error}. Record and save it again."
        ) from None


class _Malformed(Exception):
    """The first part of a file that cannot be right, as a clause."""


class _Reader:
    """Builds layers from the words of a file. Each method checks the part of the words that it uses."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def content(self, words: dict[str, Any]) -> Content:
        try:
            check_tokens(words.get("tokens"))
        except SpecError as error:
            raise _Malformed(f"its tokens are wrong: {str(error).removesuffix('.')}") from None
        dropped = [_text(each, "a message") for each in _list(words, "dropped")]
        layers = [self.layer(each) for each in _list(words, "layers")]
        for what, names in (("path", [x.path for x in layers]), ("number", [x.number for x in layers])):
            if len(set(names)) != len(names):
                raise _Malformed(f"two layers have one {what}")
        return Content(layers, words.get("tokens"), dropped)

    def layer(self, words: Any) -> Layer:
        number = _count(words, "number")
        heads = [_whole(head, 0, "a head") for head in _list(words, "heads")]
        layer = Layer(_text(_field(words, "path"), "a path"), number, heads)
        for place, calls in enumerate(_list(words, "chains")):
            layer.chains.append(self.chain(f"{number}.{place}", calls, len(heads)))
        if not layer.chains:
            raise _Malformed(f"layer {number} has no calls")
        return layer

    def chain(self, name: str, calls: Any, heads: int) -> Chain:
        k, v = self.rows(f"{name}.k"), self.rows(f"{name}.v")
        if k.shape[:3] != v.shape[:3] or k.dtype != v.dtype:
            raise _Malformed(f"keys of shape {tuple(k.shape)} and values of shape {tuple(v.shape)} do not fit")
        if not isinstance(calls, list) or not calls:
            raise _Malformed(f"{name} must be a list of calls")
        takes, offsets, last = [], [], 0
        for place, call in enumerate(calls):
            begin, end = self.key_range(call, k.shape[2])
            take = self.call(f"{name}.{place}", call, k[:, :, begin:end], v[:, :, begin:end])
            if take.q.shape[1] != heads:
                raise _Malformed(f"{name}.{place}.q has {take.q.shape[1]} heads, and its layer {heads}")
            takes.append(take)
            offsets.append(begin)
            last = max(last, end)
        if last != k.shape[2]:
            raise _Malformed(f"{name} has {k.shape[2]} keys, and its calls use {last}")
        return Chain(takes, offsets, k, v)

    def key_range(self, words: Any, n_k: int) -> tuple[int, int]:
        keys = [_whole(each, 0, "a key") for each in _list(words, "keys")]
        if len(keys) != 2 or not keys[0] <= keys[1] <= n_k:
            raise _Malformed(f"a call must use keys from 0 to {n_k}, not {str(keys)[:60]}")
        return keys[0], keys[1]

    def call(self, name: str, words: Any, k: Tensor, v: Tensor) -> Take:
        q = self.rows(f"{name}.q")
        tensors = tuple(
            self.tensor(f"{name}.option{n}") for n in range(min(_count(words, "options"), len(self.tensors)))
        )
        numbers = tuple(_whole(each, -MAX_NUMBER, "a number") for each in _list(words, "numbers"))
        spelled = Spelled(_text(_field(words, "text"), "the text of a call"), tensors, numbers)
        _check_sizes(spelled, q.shape[-1])
        try:
            options = spelled.options()
            parse_call(q, k, v, **options)
        except _Malformed:
            raise
        except RegardError as error:
            raise _Malformed(f"the options of {name} are wrong: {str(error).removesuffix('.')}") from None
        except Exception as error:  # makers of masks and scores are called with what the file says
            raise _Malformed(f"the options of {name} are wrong ({type(error).__name__}: {error})") from None
        return Take(q, k, v, options, spelled, _text(_field(words, "source"), "a source"))

    def tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise _Malformed(f"the tensor {name!r} is missing")
        return self.tensors[name]

    def rows(self, name: str) -> Tensor:
        tensor = self.tensor(name)
        if tensor.dim() != 4 or tensor.dtype not in FLOATS:
            raise _Malformed(f"{name!r} must have 4 dimensions of floats, not {tuple(tensor.shape)} of {tensor.dtype}")
        return tensor


def _check_sizes(spelled: Spelled, width: int) -> None:
    """Refuses options that would run or allocate without a bound, before they are built."""
    try:
        parsed = json.loads(spelled.text)
    except (ValueError, RecursionError):
        raise _Malformed("the text of a call is not JSON") from None
    todo = [parsed]
    while todo:
        part = todo.pop()
        if isinstance(part, dict) and len(part) == 1 and set(part) <= {"number", "tensor", "formula"}:
            continue
        if type(part) is int:
            raise _Malformed(f"the text of a call holds the number {str(part)[:40]}, which belongs into its numbers")
        if isinstance(part, list) and len(part) == 3 and part[0] in ("weigh.sinkhorn", "feature.favor"):
            _check_maker(part[0], [*_values(part[1]), *_values(part[2])], spelled.numbers, width)
        todo.extend(_values(part))


def _check_maker(maker: str, arguments: Sequence[Any], numbers: Sequence[int], width: int) -> None:
    places = [each["number"] for each in arguments if isinstance(each, dict) and "number" in each]
    actual = [numbers[place] for place in places if type(place) is int and 0 <= place < len(numbers)]
    limit = MAX_SINKHORN_ITERATIONS if maker == "weigh.sinkhorn" else max(MAX_RANDOM_FEATURES, width)
    if maker == "feature.favor" and actual[:1] != [width]:
        raise _Malformed(f"{maker} must be of the width of the queries, {width}, not {actual[:1]}")
    if any(number > limit for number in actual[: 1 if maker == "weigh.sinkhorn" else 2]):
        raise _Malformed(f"{maker} may have numbers up to {limit}, not {max(actual)}")


def _values(part: Any) -> list[Any]:
    return part if isinstance(part, list) else list(part.values()) if isinstance(part, dict) else []


def _field(words: Any, name: str) -> Any:
    if not isinstance(words, dict) or name not in words:
        raise _Malformed(f"{name!r} is missing")
    return words[name]


def _list(words: Any, name: str) -> list[Any]:
    value = _field(words, name)
    if not isinstance(value, list):
        raise _Malformed(f"{name!r} must be a list")
    return value


def _count(words: Any, name: str) -> int:
    return _whole(_field(words, name), 0, name)


def _whole(value: Any, least: int, what: str) -> int:
    if type(value) is not int or not least <= value <= MAX_NUMBER:
        raise _Malformed(f"{what} must be a whole number from {least}, not {str(value)[:40]}")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise _Malformed(f"{what} must be text, not {str(value)[:40]}")
    return value
