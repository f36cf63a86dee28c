"""Damaged files, by the thousand: each must load to what was saved, or be refused in a sentence.

Runs in a process of its own, whose memory is limited, and prints what went wrong as JSON:

    python -m tests.sweeps.file_mutations FOLDER SEED STRUCTURED FLIPPED
"""

import copy
import json
import math
import random
import resource
import signal
import sys
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import regard
from regard import feature, mask, score, weigh
from regard.distributed import mapped
from regard.errors import RegardError
from regard.files.header import LENGTH_BYTES, METADATA
from regard.files.tensors import CHECKSUM, _start, _text_of
from regard.inside.record import record
from regard.models.train import Outcome, Recipe, Training

EXTRA_MEMORY = 512 * 2**20  # bytes beyond those of a process that has loaded every file once
SECONDS = 20  # for one file
VALUES: list[Any] = [None, True, -1, 0, 1, 3, 10**9, 2**62, 10**30, 1e308, math.inf, math.nan, "", "x", [], {}, [[1]]]
NESTED = ("regard", "text")  # names of strings that hold JSON themselves


class Attending(nn.Module):
    """A model whose calls have masks, scores, normalizers and captured tensors of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        slopes, table = torch.rand(2), torch.rand(9, 2)
        self.options: list[dict[str, Any]] = [
            {},
            {"mask": mask.causal() & mask.window(4), "score": score.alibi(slopes)},
            {"mask": lambda b, h, i, j: (i - j) % 3 == 0, "weigh": weigh.entmax(1.5)},
            {"score": score.scaled_dot(0.3).then(score.relative(table, max_distance=6)), "weigh": weigh.sink(0.5)},
            {"mask": mask.padding(torch.tensor([7])), "weigh": weigh.sinkhorn(3)},
            {"weigh": weigh.kernel(feature.favor(8, 16))},
            {
                "mask": mask.bigbird(2, near=1, random=1),
                "score": score.additive(torch.eye(8), torch.eye(8), torch.ones(8)),
            },
        ]
        self.layers = nn.ModuleList(nn.Identity() for _ in self.options)

    def forward(self, x: Tensor) -> Tensor:
        for layer, options in zip(self.layers, self.options, strict=True):
            q = layer(x).unflatten(-1, (2, 8)).transpose(1, 2)
            regard.attention(q, q, q, **options)
        return x


class Halves:
    """A task that is learned at once."""

    name, recipe = "halves", Recipe(steps=3, rate=0.01)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))

    def words(self) -> dict[str, Any]:
        return {}

    def outcome(self, model: nn.Module, step: int, draw: torch.Generator, recipe: Recipe) -> Outcome:
        return Outcome(model(torch.ones(2, 4)).square().mean(), 1, 2)

    def test(self, model: nn.Module) -> dict[str, float]:
        return {}


def content_of_recording(path: Path) -> Any:
    tape = regard.load_tape(path)
    layers = []
    for layer in tape.layers:
        for take in layer.takes:
            assert take.spelled is not None
            assert take.attended.weights[0, 0, :1].shape[-1] == take.k.shape[2]  # it can be used as well
            spelled = take.spelled
            options = [spelled.text, list(spelled.numbers), list(spelled.tensors)]
            layers.append([layer.path, layer.number, layer.heads, take.q, take.k, take.v, take.source, options])
    return [layers, tape.tokens, tape.dropped]


def content_of_checkpoint(path: Path) -> Any:
    training = Training.resume(Halves(), path)  # type: ignore[arg-type]  # a task by its shape
    state = [training._optimizer.state[p] for p in training.model.parameters()]
    curve = [asdict(report) for report in training.curve]
    return [dict(training.model.state_dict()), state, training.step, asdict(training.recipe), curve]


def content_of_rows(path: Path) -> Any:
    return mapped(f"{path}:rows" if path.suffix == ".safetensors" else path)


@dataclass(frozen=True)
class Subject:
    """A kind of file: its bytes, and a function that reads it."""

    name: str
    whole: bytes
    read: Callable[[Path], Any]


def subjects(folder: Path) -> list[Subject]:
    torch.manual_seed(1)
    model = Attending()
    with torch.no_grad(), record(model) as tape:
        for length in (9, 1):
            model(torch.randn(1, length, 16))
    tape.tokens = [f"token {n}" for n in range(9)]
    tape.save(folder / "recording.safetensors")
    training = Training(Halves())  # type: ignore[arg-type]  # a task by its shape
    training.advance()
    training.save(folder / "checkpoint.safetensors")
    save_file({"rows": torch.randn(3, 4), "more": torch.zeros(5)}, folder / "rows.safetensors")
    np.save(folder / "rows.npy", np.ones((3, 4), np.float32))
    readers = {
        "recording.safetensors": content_of_recording,
        "checkpoint.safetensors": content_of_checkpoint,
        "rows.safetensors": content_of_rows,
        "rows.npy": content_of_rows,
    }
    return [Subject(name, (folder / name).read_bytes(), read) for name, read in readers.items()]


def divided(whole: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(whole[:LENGTH_BYTES], "little")
    return json.loads(whole[LENGTH_BYTES : LENGTH_BYTES + length]), whole[LENGTH_BYTES + length :]


def joined(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(LENGTH_BYTES, "little") + text + data


def opened(value: Any) -> Any:
    """The same JSON, with strings that hold JSON as what they hold."""
    if isinstance(value, dict):
        return {
            key: {"nested": opened(json.loads(each))} if key in NESTED and isinstance(each, str) else opened(each)
            for key, each in value.items()
        }
    return [opened(each) for each in value] if isinstance(value, list) else value


def closed(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"nested"}:
        return json.dumps(closed(value["nested"]))
    if isinstance(value, dict):
        return {key: closed(each) for key, each in value.items()}
    return [closed(each) for each in value] if isinstance(value, list) else value


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key in some JSON."""
    todo: list[Any] = [value]
    found: list[tuple[Any, Any]] = []
    while todo:
        part = todo.pop()
        keys: Any = range(len(part)) if isinstance(part, list) else list(part) if isinstance(part, dict) else ()
        found += [(part, key) for key in keys]
        todo += [part[key] for key in keys]
    return found


def mutated_json(header: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    tree = opened(copy.deepcopy(header))
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        choices = places(tree)
        if not choices:
            break
        part, key = draw.choice(choices)
        kind = draw.randrange(7)
        if kind == 0:
            del part[key]
        elif kind == 1 and isinstance(part, dict):
            part[f"{key}x"] = part.pop(key)
        elif kind == 2 and isinstance(part, list):
            part.insert(key, copy.deepcopy(part[key]))
        elif kind == 3:
            other, there = draw.choice(choices)
            part[key] = copy.deepcopy(other.get(there) if isinstance(other, dict) else VALUES[0])
        elif kind == 4 and type(part[key]) is int:
            part[key] += draw.choice((-1, 1, 2**31, -(2**40)))
        elif kind == 5 and draw.random() < 0.2:
            part[key] = json.loads("[" * 150 + "]" * 150)
        else:
            part[key] = copy.deepcopy(draw.choice(VALUES))
    return closed(tree)  # type: ignore[no-any-return]  # an object


def with_checksum(header: dict[str, Any], data: bytes) -> dict[str, Any]:
    """The header with a checksum that fits, as somebody writes it who changes a file on purpose."""
    entries = {name: value for name, value in header.items() if name != METADATA}
    metadata = header.get(METADATA)
    if not isinstance(metadata, dict):
        return header
    rest = {name: value for name, value in metadata.items() if name != CHECKSUM}
    return {**entries, METADATA: {**rest, CHECKSUM: _text_of(zlib.crc32(data, _start(entries, rest)))}}


def structured(subject: Subject, draw: random.Random) -> tuple[bytes, bool]:
    """A file with another header, and whether its checksum was made to fit."""
    if subject.name.endswith(".npy"):
        text = bytearray(subject.whole)
        for _ in range(3):
            text[draw.randrange(8, 128)] = draw.choice(b"'(),:{}0123456789-<>f \n\xff")
        return bytes(text), True
    header, data = divided(subject.whole)
    has_checksum = CHECKSUM in header.get(METADATA, {})
    repaired = draw.random() < 0.8 or not has_checksum
    header = mutated_json(header, draw)
    return joined(with_checksum(header, data) if repaired and has_checksum else header, data), repaired


def flipped(subject: Subject, draw: random.Random) -> tuple[bytes, bool]:
    content = bytearray(subject.whole)
    kind = draw.randrange(10)
    if kind == 0:
        return bytes(content[: draw.randrange(len(content))]), False
    if kind == 1:
        return bytes(content) + bytes(draw.randrange(1, 100)), False
    end = min(len(content), 3000) if kind < 6 else len(content)
    content[draw.randrange(end)] ^= 1 << draw.randrange(8)
    return bytes(content), False


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return isinstance(other, (list, tuple)) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


class Slow(BaseException):
    """A file took longer than it may."""


def too_slow(*_: Any) -> None:
    raise Slow


def outcome(subject: Subject, path: Path, repaired: bool) -> str:
    """ "refused", "same" or "changed"; anything else is a fault."""
    signal.alarm(SECONDS)
    try:
        content = subject.read(path)
        if repaired:
            return "changed"
        (path.parent / subject.name).write_bytes(subject.whole)
        has_checksum = subject.name in ("recording.safetensors", "checkpoint.safetensors")
        if has_checksum and not same(content, subject.read(path.parent / subject.name)):
            return "fault: another content without a word"
        return "same"
    except RegardError as error:
        return "refused" if len(str(error)) < 2000 else f"fault: a message of {len(str(error))} characters"
    except BaseException as error:  # every other kind is the fault that is looked for
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"fault: {type(error).__name__}: {str(error)[:100]} ({Path(where.filename).name}:{where.lineno})"
    finally:
        signal.alarm(0)


def limit_memory() -> None:
    used = int(next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmData")).split()[1])
    resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + EXTRA_MEMORY,) * 2)


def main(folder: Path, seed: int, structured_count: int, flipped_count: int) -> dict[str, Any]:
    every = subjects(folder)
    for subject in every:
        subject.read(folder / subject.name)
    limit_memory()
    signal.signal(signal.SIGALRM, too_slow)
    draw, counts, faults = random.Random(seed), Counter[str](), []
    plan = [structured] * structured_count + [flipped] * flipped_count
    for number, change in enumerate(plan):
        subject = every[0] if number % 2 else every[number // 2 % len(every)]
        content, repaired = change(subject, draw)
        path = folder / f"mutant-{subject.name}"
        path.write_bytes(content)
        result = outcome(subject, path, repaired)
        counts[f"{change.__name__}: {result.partition(':')[0]}"] += 1
        if result.startswith("fault"):
            faults.append(f"{number}, {subject.name}: {result}")
    return {"counts": dict(counts), "faults": faults}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
