"""Valid calls of `regard.record`, `regard.patch`, recordings' methods and the functions of `regard.inside`."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

import regard
from regard import nn
from regard.inside import patch as changes
from regard.inside import places, relations
from tests.sweeps.valid_calls.inputs import numbers
from tests.sweeps.valid_calls.table import Arguments, ValidCall, given

X = numbers(1, 6, 8)
TOKENS = ["the", " cat", " sat", " on", " the", " mat"]


@cache
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return nn.Encoder(nn.Design(8, 2, hidden=16), 2)


@cache
def tape() -> regard.Tape:
    x = X.clone().requires_grad_()
    with regard.record(model()) as recording:
        model()(x).square().sum().backward()
    recording.tokens = [TOKENS]
    return recording


def run_inside(context: Any) -> Any:
    with context as entered:
        return model()(X), entered


def method(name: str, *positional: Any, use: Callable[[Any], object] | None = None, **keywords: Any) -> ValidCall:
    def arguments() -> Arguments:
        return given(*positional, **keywords)

    return ValidCall(f"regard.Tape.{name}", lambda: getattr(tape(), name), arguments, use)


def patched(name: str, *positional: Any, **keywords: Any) -> ValidCall:
    """A change of a head, used in `patch`."""

    def use(change: Any) -> Any:
        return run_inside(regard.patch(model(), {(0, 1): change}))

    return ValidCall(
        f"regard.inside.patch.{name}", lambda: getattr(changes, name), lambda: given(*positional, **keywords), use
    )


def first_entry(matrix: Any) -> Any:
    return matrix[0, 0, 0]


def written() -> str:
    tape().save("recording.safetensors")
    return "recording.safetensors"


CALLS = [
    ValidCall("regard.record", lambda: regard.record, lambda: given(model()), run_inside),
    ValidCall("regard.patch", lambda: regard.patch, lambda: given(model(), {(0, 1): changes.zero}), run_inside),
    ValidCall("regard.load_tape", lambda: regard.load_tape, lambda: given(written())),
    method("__getitem__", 0),
    method("calls", 0),
    method("find_layer", 0),
    method("heads"),
    method("find", "previous"),
    method("rollout", 5),
    method("relevance", 5),
    method("flow", 5),
    method("reversed", 0, use=first_entry),
    method("times_gradient", 0, use=first_entry),
    ValidCall("regard.Tape.compare", lambda: tape().compare, lambda: given(tape())),
    method("similarity"),
    method("weighted", 0, use=first_entry),
    method("words", 0),
    method("related", {1: {0}, 2: {1}}),
    method("save", "recording.safetensors"),
    patched("shifted", 1),
    patched("looking", mask=regard.mask.causal()),
    patched("weights", torch.softmax(numbers(6, 6), -1)),
    ValidCall("regard.inside.places.word_ids", lambda: places.word_ids, lambda: given(TOKENS)),
    ValidCall("regard.inside.places.sentence_ids", lambda: places.sentence_ids, lambda: given(TOKENS)),
    ValidCall("regard.inside.places.on_image", lambda: places.on_image, lambda: given(torch.rand(5), (2, 2), (8, 8))),
    ValidCall("regard.inside.places.on_time", lambda: places.on_time, lambda: given(torch.rand(5), 1.0, 0.2)),
    ValidCall("regard.inside.relations.syntactic", lambda: relations.syntactic, lambda: given([(0, 1), (1, 2)])),
    ValidCall("regard.inside.relations.coreferent", lambda: relations.coreferent, lambda: given([[0, 2], [1, 3]])),
]

LEFT_OUT = {
    "regard.inside.patch.Head": "made by patch",
    "regard.inside.patch.mean": "called by patch with a head",
    "regard.inside.patch.patch": "in the table as regard.patch",
    "regard.inside.patch.uniform": "called by patch with a head",
    "regard.inside.patch.zero": "called by patch with a head",
    "regard.inside.places.by_group": "in the table as Tape.words",
    "regard.inside.relations.related": "in the table as Tape.related",
    "regard.Tape": "made by record and load_tape",
    "regard.Tape.layer": "called by recorders and readers of files",
}
