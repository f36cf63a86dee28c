"""Mutations of files: each damaged file must load unchanged, or raise an error of the library.

Runs in a separate process with limited memory and prints the faults as JSON:

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
from regard import feature_map, mask, normalizer, score
from regard.distributed import open_memmap
from regard.errors import RegardError
from regard.files.safetensors_file import CHECKSUM_KEY, _checksum_text, _header_checksum
from regard.files.safetensors_header import LENGTH_BYTES, METADATA_KEY
from regard.models.training import BatchResult, Recipe, Trainer
from regard.recording.recorder import record

EXTRA_MEMORY = 512 * 2**20  # bytes beyond the memory of a process that has loaded every file once
SECONDS = 20  # for one file
VALUES: list[Any] = [None, True, -1, 0, 1, 3, 10**9, 2**62, 10**30, 1e308, math.inf, math.nan, "", "x", [], {}, [[1]]]
NESTED = ("regard", "options")  # names of strings that hold JSON themselves


class ManyOptions(nn.Module):
    """A model whose calls have masks, scores, normalizers and captured tensors of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        slopes, table = torch.rand(2), torch.rand(9, 2)
        self.options: list[dict[str, Any]] = [
            {},
            {"mask": mask.causal() & mask.sliding_window(4), "score": score.alibi(slopes)},
            {"mask": lambda b, h, i, j: (i - j) % 3 == 0, "normalizer": normalizer.entmax(1.5)},
            {
                "score": score.scaled_dot(0.3).then(score.t5_bias(table, max_distance=6)),
                "normalizer": normalizer.sink(0.5),
            },
            {"mask": mask.padding(torch.tensor([7])), "normalizer": normalizer.sinkhorn(3)},
            {"normalizer": normalizer.kernel(feature_map.favor(8, 16))},
            {
                "mask": mask.bigbird(2, num_local_blocks=1, num_random_blocks=1),
                "score": score.additive(torch.eye(8), torch.eye(8), torch.ones(8)),
            },
        ]
        self.layers = nn.ModuleList(nn.Identity() for _ in self.options)

    def forward(self, x: Tensor) -> Tensor:
        for layer, options in zip(self.layers, self.options, strict=True):
            q = layer(x).unflatten(-1, (2, 8)).transpose(1, 2)
            regard.attention(q, q, q, **options)
        return x


class TinyTask:
    """A training task with two small layers and no data."""

    name, recipe = "tiny", Recipe(steps=3, lr=0.01)

    def untrained_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))

    def model_config(self) -> dict[str, Any]:
        return {}

    def training_step(self, model: nn.Module, step: int, generator: torch.Generator, recipe: Recipe) -> BatchResult:
        return BatchResult(model(torch.ones(2, 4)).square().mean(), 1, 2)

    def test(self, model: nn.Module) -> dict[str, float]:
        return {}


def content_of_recording(path: Path) -> Any:
    recording = regard.load_recording(path)
    layers = []
    for layer in recording.layers:
        for call in layer.calls:
            assert call.serialized_options is not None
            assert call.result.weights[0, 0, :1].shape[-1] == call.k.shape[2]  # the call can be computed
            serialized = call.serialized_options
            options = [serialized.text, list(serialized.integers), list(serialized.tensors)]
            layers.append([layer.path, layer.index, layer.head_indices, call.q, call.k, call.v, call.source, options])
    return [layers, recording.tokens, recording.dropped_calls]


def content_of_checkpoint(path: Path) -> Any:
    training = Trainer.resume(TinyTask(), path)  # type: ignore[arg-type]  # a task by its shape
    state = [training._optimizer.state[p] for p in training.model.parameters()]
    curve = [asdict(report) for report in training.curve]
    return [dict(training.model.state_dict()), state, training.step, asdict(training.recipe), curve]


def content_of_rows(path: Path) -> Any:
    return open_memmap(f"{path}:rows" if path.suffix == ".safetensors" else path)


@dataclass(frozen=True)
class Subject:
    """A kind of file: its name, its bytes, and a function that reads it."""

    name: str
    content: bytes
    read: Callable[[Path], Any]


def subjects(folder: Path) -> list[Subject]:
    torch.manual_seed(1)
    model = ManyOptions()
    with torch.no_grad(), record(model) as recording:
        for length in (9, 1):
            model(torch.randn(1, length, 16))
    recording.tokens = [f"token {n}" for n in range(9)]
    recording.save(folder / "recording.safetensors")
    training = Trainer(TinyTask())  # type: ignore[arg-type]  # a task by its shape
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


def split_file(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    return json.loads(content[LENGTH_BYTES : LENGTH_BYTES + length]), content[LENGTH_BYTES + length :]


def join_file(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(LENGTH_BYTES, "little") + text + data


def expand_nested(value: Any) -> Any:
    """Return the tree with strings that contain JSON replaced by their content."""
    if isinstance(value, dict):
        return {
            key: {"nested": expand_nested(json.loads(item))}
            if key in NESTED and isinstance(item, str)
            else expand_nested(item)
            for key, item in value.items()
        }
    return [expand_nested(item) for item in value] if isinstance(value, list) else value


def collapse_nested(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"nested"}:
        return json.dumps(collapse_nested(value["nested"]))
    if isinstance(value, dict):
        return {key: collapse_nested(item) for key, item in value.items()}
    return [collapse_nested(item) for item in value] if isinstance(value, list) else value


def slots(tree: Any) -> list[tuple[Any, Any]]:
    """Return the container and the index or key of every value in a JSON tree."""
    todo: list[Any] = [tree]
    result: list[tuple[Any, Any]] = []
    while todo:
        part = todo.pop()
        keys: Any = range(len(part)) if isinstance(part, list) else list(part) if isinstance(part, dict) else ()
        result += [(part, key) for key in keys]
        todo += [part[key] for key in keys]
    return result


def mutated_json(header: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    tree = expand_nested(copy.deepcopy(header))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        choices = slots(tree)
        if not choices:
            break
        part, key = rng.choice(choices)
        kind = rng.randrange(7)
        if kind == 0:
            del part[key]
        elif kind == 1 and isinstance(part, dict):
            part[f"{key}x"] = part.pop(key)
        elif kind == 2 and isinstance(part, list):
            part.insert(key, copy.deepcopy(part[key]))
        elif kind == 3:
            other, other_key = rng.choice(choices)
            part[key] = copy.deepcopy(other.get(other_key) if isinstance(other, dict) else VALUES[0])
        elif kind == 4 and type(part[key]) is int:
            part[key] += rng.choice((-1, 1, 2**31, -(2**40)))
        elif kind == 5 and rng.random() < 0.2:
            part[key] = json.loads("[" * 150 + "]" * 150)
        else:
            part[key] = copy.deepcopy(rng.choice(VALUES))
    return collapse_nested(tree)  # type: ignore[no-any-return]  # an object


def with_checksum(header: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Return the header with a correct checksum, as after a deliberate change of the file."""
    entries = {name: value for name, value in header.items() if name != METADATA_KEY}
    metadata = header.get(METADATA_KEY)
    if not isinstance(metadata, dict):
        return header
    rest = {name: value for name, value in metadata.items() if name != CHECKSUM_KEY}
    return {
        **entries,
        METADATA_KEY: {**rest, CHECKSUM_KEY: _checksum_text(zlib.crc32(data, _header_checksum(entries, rest)))},
    }


def structured(subject: Subject, rng: random.Random) -> tuple[bytes, bool]:
    """Return a file with a changed header, and whether its checksum was corrected."""
    if subject.name.endswith(".npy"):
        text = bytearray(subject.content)
        for _ in range(3):
            text[rng.randrange(8, 128)] = rng.choice(b"'(),:{}0123456789-<>f \n\xff")
        return bytes(text), True
    header, data = split_file(subject.content)
    has_checksum = CHECKSUM_KEY in header.get(METADATA_KEY, {})
    repaired = rng.random() < 0.8 or not has_checksum
    header = mutated_json(header, rng)
    return join_file(with_checksum(header, data) if repaired and has_checksum else header, data), repaired


def flipped(subject: Subject, rng: random.Random) -> tuple[bytes, bool]:
    content = bytearray(subject.content)
    kind = rng.randrange(10)
    if kind == 0:
        return bytes(content[: rng.randrange(len(content))]), False
    if kind == 1:
        return bytes(content) + bytes(rng.randrange(1, 100)), False
    end = min(len(content), 3000) if kind < 6 else len(content)
    content[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(content), False


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


class Slow(BaseException):
    """Raised when a file takes too long."""


def too_slow(*_: Any) -> None:
    raise Slow


def outcome(subject: Subject, path: Path, repaired: bool) -> str:
    """ "refused", "same" or "changed"; anything else is a fault."""
    signal.alarm(SECONDS)
    try:
        content = subject.read(path)
        if repaired:
            return "changed"
        (path.parent / subject.name).write_bytes(subject.content)
        has_checksum = subject.name in ("recording.safetensors", "checkpoint.safetensors")
        if has_checksum and not same(content, subject.read(path.parent / subject.name)):
            return "fault: different content without an error"
        return "same"
    except RegardError as error:
        return "refused" if len(str(error)) < 2000 else f"fault: a message of {len(str(error))} characters"
    except BaseException as error:  # any other exception is a fault
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"fault: {type(error).__name__}: {str(error)[:100]} ({Path(frame.filename).name}:{frame.lineno})"
    finally:
        signal.alarm(0)


def limit_memory() -> None:
    used = int(next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmData")).split()[1])
    resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + EXTRA_MEMORY,) * 2)


def main(folder: Path, seed: int, structured_count: int, flipped_count: int) -> dict[str, Any]:
    files = subjects(folder)
    for subject in files:
        subject.read(folder / subject.name)
    limit_memory()
    signal.signal(signal.SIGALRM, too_slow)
    rng, counts, faults = random.Random(seed), Counter[str](), []
    plan = [structured] * structured_count + [flipped] * flipped_count
    for number, change in enumerate(plan):
        subject = files[0] if number % 2 else files[number // 2 % len(files)]
        content, repaired = change(subject, rng)
        path = folder / f"mutant-{subject.name}"
        path.write_bytes(content)
        result = outcome(subject, path, repaired)
        counts[f"{change.__name__}: {result.partition(':')[0]}"] += 1
        if result.startswith("fault"):
            faults.append(f"{number}, {subject.name}: {result}")
    return {"counts": dict(counts), "faults": faults}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
