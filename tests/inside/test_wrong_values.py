"""Wrong values in every method of a recording, and of what they return: each is refused by an error of the project."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard.errors import LoadError, OutOfRangeError, RegardError, SpecError
from regard.inside import patch as changes
from regard.inside import places, relations
from regard.inside.patch import patch
from regard.inside.record import record
from regard.inside.tape import Tape

WRONG: list[Any] = [None, "x", "", -7, 7, 10**12, math.nan, math.inf, -1.5, True, [], [None], ["x"], {}, {"a": 1}]
WRONG += [object(), torch.randn(2, 3, 4), torch.tensor([]), [99], [-99], (1, 2, 3, 4, 5, 6, 7, 8), b"x"]
WRONG += [slice(None, None, 0), [[1]], 2.5, [math.nan]]

model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, batch_first=True), 1).eval()
x = torch.randn(1, 6, 16)


def recorded(**options: Any) -> Tape:
    with torch.no_grad(), record(model, **options) as tape:
        model(x)
    return tape


def patched(changed: Any) -> None:
    with torch.no_grad(), patch(model, changed):
        model(x)


def with_tokens(tokens: Any) -> Tape:
    new = recorded()
    new.tokens = tokens
    return new


def hashable(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, tuple, bytes)) or value is None else "x"


tape = with_tokens(list("abcabc"))
difference, heads, weighted = tape.compare(tape), tape.heads(), tape.weighted(0)
ROW = torch.ones(7)

# a call with one wrong value, and which of those above are right there
CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "tape[]": (lambda v: tape[v], ""),
    "calls": (tape.calls, ""),
    "find_layer": (tape.find_layer, ""),
    "heads, separators": (lambda v: tape.heads(separators=v), "[] ['x']"),
    "heads, window": (lambda v: tape.heads(window=v), "7 1000000000000"),
    "heads, progress": (lambda v: tape.heads(progress=v), "None"),
    "find": (tape.find, ""),
    "find, least": (lambda v: tape.find("self", least=v), "-7 7 1000000000000 -1.5 2.5"),
    "find, heads": (lambda v: tape.find("self", heads=v), "None"),
    "rollout": (tape.rollout, "[] tensor([])"),
    "rollout, layers": (lambda v: tape.rollout(0, layers=v), "None"),
    "relevance": (tape.relevance, ""),
    "flow": (tape.flow, ""),
    "flow, layers": (lambda v: tape.flow(0, layers=v), "None"),
    "reversed": (tape.reversed, ""),
    "times_gradient": (tape.times_gradient, ""),
    "compare": (tape.compare, ""),
    "similarity, rows": (lambda v: tape.similarity(rows=v), "7 1000000000000"),
    "similarity, seed": (lambda v: tape.similarity(seed=v), "7 1000000000000"),
    "similarity, layers": (lambda v: tape.similarity(layers=v), "None"),
    "weighted": (tape.weighted, ""),
    "weighted, out": (lambda v: tape.weighted(0, v), "None"),
    "words": (tape.words, ""),
    "words, groups": (lambda v: tape.words(0, v), "None"),
    "related": (tape.related, ""),
    "related, words": (lambda v: tape.related({0: {1}}, words=v), "None"),
    "related, special": (lambda v: tape.related({0: {1}}, special=v), "[] tensor([])"),
    "related, right words": (lambda v: tape.related({0: v}), "[] tensor([])"),
    "tokens": (lambda v: with_tokens(v).heads(), "None {}"),
    "tokens, words": (lambda v: with_tokens(v).words(0), ""),
    "save": (lambda v: tape.save("/dev/null/x" if v == "x" else v), ""),
    "load_tape": (regard.load_tape, ""),
    "difference": (difference.difference, ""),
    "map": (difference.map, ""),
    "map, cells": (lambda v: difference.map(0, cells=v), "7"),
    "weighted[]": (lambda v: weighted[v], "[] tensor([])"),
    "weighted[0, :, 0, v]": (lambda v: weighted[0, :, 0, v], "[] tensor([])"),
    "weights[]": (lambda v: tape[0].weights[v], "[] tensor([])"),
    "heads[]": (lambda v: heads[v], ""),
    "column": (heads.column, ""),
    "sort": (heads.sort, ""),
    "where": (heads.where, ""),
    "syntactic": (relations.syntactic, "[]"),
    "coreferent": (relations.coreferent, "[] [[1]]"),
    "word_ids": (places.word_ids, "[] ['x']"),
    "sentence_ids": (places.sentence_ids, "[] ['x']"),
    "on_image": (lambda v: places.on_image(v, (2, 3), (4, 6)), ""),
    "on_image, grid": (lambda v: places.on_image(ROW, v, (4, 6)), ""),
    "on_image, size": (lambda v: places.on_image(ROW, (2, 3), v), ""),
    "on_image, before": (lambda v: places.on_image(ROW, (2, 3), (4, 6), before=v), ""),
    "on_time": (lambda v: places.on_time(v if torch.is_tensor(v) and v.dim() == 1 else None, 1.0, 0.1), ""),
    "on_time, seconds": (lambda v: places.on_time(ROW, v, 0.1), "7 2.5"),
    "on_time, step": (lambda v: places.on_time(ROW, 1.0, v), ""),
    "record": (lambda v: record(v).__enter__(), ""),
    "record, layers": (lambda v: recorded(layers=v), "None []"),
    "record, heads": (lambda v: recorded(heads=v), "None"),
    "record, budget": (lambda v: recorded(budget=v), "1000000000000"),
    "patch": (patched, "{}"),
    "patch, key": (lambda v: patched({hashable(v): changes.zero}), ""),
    "patch, layer": (lambda v: patched({(hashable(v), 0): changes.zero}), ""),
    "patch, head": (lambda v: patched({(0, hashable(v)): changes.zero}), ""),
    "patch, change": (lambda v: patched({(0, 0): v}), ""),
    "patch, returned": (lambda v: patched({(0, 0): lambda head: v}), ""),
    "shifted": (lambda v: patched({(0, 0): changes.shifted(v)}), "-7 7"),
    "weights": (lambda v: patched({(0, 0): changes.weights(v)}), ""),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_value_is_refused_by_an_error_of_the_project(name: str) -> None:
    call, right = CALLS[name]
    accepted = []
    for value in WRONG:
        try:
            call(value)
        except RegardError:
            continue
        accepted.append(repr(value))
    assert accepted == right.split(), "values that are accepted, or should be"


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: tape[-7], OutOfRangeError, r"one of those on the tape: 0 \(layers.0.self_attn\); got -7"),
        (lambda: tape[-7], IndexError, "got -7"),
        (lambda: tape[None], SpecError, "a layer must be a number or the path of a module; got None"),  # type: ignore[index]
        (lambda: tape.rollout(6), IndexError, r"tokens must be from 0 to 5; got \[6\]"),
        (lambda: tape.flow(6), IndexError, r"tokens must be from 0 to 5; got \[6\]"),
        (lambda: tape.similarity(rows=0), SpecError, "rows must be at least 1; got 0"),
        (lambda: tape.find("self", least=math.nan), SpecError, "least must be a finite number; got nan"),
        (lambda: tape.words(0, [0, 1]), SpecError, "each of 6 queries must have the number of its group; got 2"),
        (lambda: tape.words(0, [0] * 5 + [10**6]), SpecError, "without large gaps; got 1000001 groups of 6 tokens"),
        (lambda: weighted[0, 4], IndexError, "an index of dimension 1 must be from -4 to 3; got 4"),
        (lambda: heads[4], IndexError, "a row must be from -4 to 3; got 4"),
        (lambda: recorded(budget=math.nan), SpecError, "a budget must be a number of bytes from 0, .*; got nan"),
        (lambda: recorded(heads=[1, 1]), SpecError, r"at least one head, each once, or be None for all; got \[1, 1\]"),
        (lambda: regard.load_tape("nothing.safetensors"), LoadError, "nothing.safetensors must be a safetensors file"),
    ],
)
def test_the_message_says_what_is_required_and_what_was_given(
    call: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_negative_indices_and_masks_select_what_they_do_in_torch(tmp_path: Path) -> None:
    whole = weighted[:]
    assert torch.equal(weighted[-1, -2, [-1, 0], ::2], whole[-1, -2][[-1, 0]][:, ::2])
    keep = torch.tensor([True, False, True, False, False, True])
    assert torch.equal(weighted[..., keep], whole[..., keep])
    assert torch.equal(weighted[:, :, ::-1], whole.flip(2))
    assert [row["head"] for row in heads[::-2]] == [row["head"] for row in list(heads)[::-2]]
