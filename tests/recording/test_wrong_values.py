"""Invalid arguments of every function of a recording raise a `RegardError` with a clear message."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard.errors import ArgumentError, LoadError, OutOfRangeError, RegardError
from regard.recording import patching
from regard.recording.metrics import relations, token_groups
from regard.recording.patching import patch
from regard.recording.recorder import record
from regard.recording.recording import Recording

WRONG: list[Any] = [None, "x", "", -7, 7, 10**12, math.nan, math.inf, -1.5, True, [], [None], ["x"], {}, {"a": 1}]
WRONG += [object(), torch.randn(2, 3, 4), torch.tensor([]), [99], [-99], (1, 2, 3, 4, 5, 6, 7, 8), b"x"]
WRONG += [slice(None, None, 0), [[1]], 2.5, [math.nan]]

model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, batch_first=True), 1).eval()
x = torch.randn(1, 6, 16)


def make_recording(**options: Any) -> Recording:
    with torch.no_grad(), record(model, **options) as recording:
        model(x)
    return recording


def run_patched(patches: Any) -> None:
    with torch.no_grad(), patch(model, patches):
        model(x)


def with_tokens(tokens: Any) -> Recording:
    recording = make_recording()
    recording.tokens = tokens
    return recording


def hashable(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, tuple, bytes)) or value is None else "x"


recording = with_tokens(list("abcabc"))
comparison, table, weighted = recording.compare(recording), recording.head_table(), recording.value_weighted(0)
WEIGHTS = torch.ones(7)

# a call with one value of WRONG, and the values that it accepts
CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "recording[]": (lambda v: recording[v], ""),
    "calls": (recording.calls, ""),
    "layer_named": (recording.layer_named, ""),
    "head_table, separators": (lambda v: recording.head_table(separators=v), "[] ['x']"),
    "head_table, window_size": (lambda v: recording.head_table(window_size=v), "7 1000000000000"),
    "head_table, progress": (lambda v: recording.head_table(progress=v), "None"),
    "find_heads": (recording.find_heads, ""),
    "find_heads, min_score": (lambda v: recording.find_heads("self", min_score=v), "-7 7 1000000000000 -1.5 2.5"),
    "find_heads, table": (lambda v: recording.find_heads("self", table=v), "None"),
    "rollout": (recording.rollout, "[] tensor([])"),
    "rollout, layers": (lambda v: recording.rollout(0, layers=v), "None"),
    "relevance": (recording.relevance, ""),
    "flow": (recording.flow, ""),
    "flow, layers": (lambda v: recording.flow(0, layers=v), "None"),
    "reversed_attention": (recording.reversed_attention, ""),
    "attention_times_gradient": (recording.attention_times_gradient, ""),
    "compare": (recording.compare, ""),
    "head_divergence, num_queries": (lambda v: recording.head_divergence(num_queries=v), "7 1000000000000"),
    "head_divergence, seed": (lambda v: recording.head_divergence(seed=v), "7 1000000000000"),
    "head_divergence, layers": (lambda v: recording.head_divergence(layers=v), "None"),
    "value_weighted": (recording.value_weighted, ""),
    "value_weighted, out_proj_weight": (lambda v: recording.value_weighted(0, v), "None"),
    "word_weights": (recording.word_weights, ""),
    "word_weights, group_ids": (lambda v: recording.word_weights(0, v), "None"),
    "relation_accuracy": (recording.relation_accuracy, ""),
    "relation_accuracy, word_ids": (lambda v: recording.relation_accuracy({0: {1}}, word_ids=v), "None"),
    "relation_accuracy, special_words": (
        lambda v: recording.relation_accuracy({0: {1}}, special_words=v),
        "[] tensor([])",
    ),
    "relation_accuracy, target words": (lambda v: recording.relation_accuracy({0: v}), "[] tensor([])"),
    "tokens": (lambda v: with_tokens(v).head_table(), "None {}"),
    "tokens, word_weights": (lambda v: with_tokens(v).word_weights(0), ""),
    "save": (lambda v: recording.save("/dev/null/x" if v == "x" else v), ""),
    "load_recording": (regard.load_recording, ""),
    "difference": (comparison.difference, ""),
    "difference_map": (comparison.difference_map, ""),
    "difference_map, resolution": (lambda v: comparison.difference_map(0, resolution=v), "7"),
    "value_weighted[]": (lambda v: weighted[v], "[] tensor([])"),
    "value_weighted[0, :, 0, v]": (lambda v: weighted[0, :, 0, v], "[] tensor([])"),
    "weights[]": (lambda v: recording[0].weights[v], "[] tensor([])"),
    "table[]": (lambda v: table[v], ""),
    "column": (table.column, ""),
    "sort": (table.sort, ""),
    "filter": (table.filter, ""),
    "dependency_targets": (relations.dependency_targets, "[]"),
    "coreference_targets": (relations.coreference_targets, "[] [[1]]"),
    "word_ids": (token_groups.word_ids, "[] ['x']"),
    "sentence_ids": (token_groups.sentence_ids, "[] ['x']"),
    "patch_weights_to_image": (lambda v: token_groups.patch_weights_to_image(v, (2, 3), (4, 6)), ""),
    "patch_weights_to_image, grid_size": (lambda v: token_groups.patch_weights_to_image(WEIGHTS, v, (4, 6)), ""),
    "patch_weights_to_image, image_size": (lambda v: token_groups.patch_weights_to_image(WEIGHTS, (2, 3), v), ""),
    "patch_weights_to_image, num_prefix_tokens": (
        lambda v: token_groups.patch_weights_to_image(WEIGHTS, (2, 3), (4, 6), num_prefix_tokens=v),
        "",
    ),
    "frame_weights_to_timeline": (
        lambda v: token_groups.frame_weights_to_timeline(v if torch.is_tensor(v) and v.dim() == 1 else None, 1.0, 0.1),
        "",
    ),
    "frame_weights_to_timeline, duration_s": (
        lambda v: token_groups.frame_weights_to_timeline(WEIGHTS, v, 0.1),
        "7 2.5",
    ),
    "frame_weights_to_timeline, step_s": (lambda v: token_groups.frame_weights_to_timeline(WEIGHTS, 1.0, v), ""),
    "record": (lambda v: record(v).__enter__(), ""),
    "record, layers": (lambda v: make_recording(layers=v), "None []"),
    "record, heads": (lambda v: make_recording(heads=v), "None"),
    "record, budget": (lambda v: make_recording(budget=v), "1000000000000"),
    "patch": (run_patched, "{}"),
    "patch, key": (lambda v: run_patched({hashable(v): patching.zero_ablate}), ""),
    "patch, layer": (lambda v: run_patched({(hashable(v), 0): patching.zero_ablate}), ""),
    "patch, head": (lambda v: run_patched({(0, hashable(v)): patching.zero_ablate}), ""),
    "patch, function": (lambda v: run_patched({(0, 0): v}), ""),
    "patch, returned value": (lambda v: run_patched({(0, 0): lambda head: v}), ""),
    "shift_attention": (lambda v: run_patched({(0, 0): patching.shift_attention(v)}), "-7 7"),
    "replace_weights": (lambda v: run_patched({(0, 0): patching.replace_weights(v)}), ""),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_values_raise_an_error_of_regard(name: str) -> None:
    call, expected = CALLS[name]
    accepted = []
    for value in WRONG:
        try:
            call(value)
        except RegardError:
            continue
        accepted.append(repr(value))
    assert accepted == expected.split(), "accepted values"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: recording[-7], OutOfRangeError, r"one of the recorded layers: 0 \(layers.0.self_attn\); got -7"),
        (lambda: recording[-7], IndexError, "got -7"),
        (lambda: recording[None], ArgumentError, "layer must be an integer or the path of a module; got None"),  # type: ignore[index]
        (lambda: recording.rollout(6), IndexError, r"positions must be from -6 to 5; got \[6\]"),
        (lambda: recording.flow(6), IndexError, r"positions must be from -6 to 5; got \[6\]"),
        (lambda: recording.head_divergence(num_queries=0), ArgumentError, "num_queries must be at least 1; got 0"),
        (
            lambda: recording.find_heads("self", min_score=math.nan),
            ArgumentError,
            "min_score must be a finite number; got nan",
        ),
        (
            lambda: recording.word_weights(0, [0, 1]),
            ArgumentError,
            "an index for each of 6 queries; got 2",
        ),
        (
            lambda: recording.word_weights(0, [0] * 5 + [10**6]),
            ArgumentError,
            "without large gaps; got 1000001 groups of 6 tokens",
        ),
        (lambda: weighted[0, 4], IndexError, "an index of dimension 1 must be from -4 to 3; got 4"),
        (lambda: table[4], IndexError, "row must be from -4 to 3; got 4"),
        (
            lambda: make_recording(budget=math.nan),
            ArgumentError,
            "a budget must be a nonnegative number of bytes, .*; got nan",
        ),
        (
            lambda: make_recording(heads=[1, 1]),
            ArgumentError,
            r"one or more different integers, or None for all; got \[1, 1\]",
        ),
        (
            lambda: regard.load_recording("nothing.safetensors"),
            LoadError,
            "nothing.safetensors must be a safetensors file",
        ),
    ],
)
def test_messages_name_the_required_and_the_actual_value(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_negative_indices_and_masks_select_as_in_torch() -> None:
    dense = weighted[:]
    assert torch.equal(weighted[-1, -2, [-1, 0], ::2], dense[-1, -2][[-1, 0]][:, ::2])
    keep = torch.tensor([True, False, True, False, False, True])
    assert torch.equal(weighted[..., keep], dense[..., keep])
    assert torch.equal(weighted[:, :, ::-1], dense.flip(2))
    assert [row["head"] for row in table[::-2]] == [row["head"] for row in list(table)[::-2]]
