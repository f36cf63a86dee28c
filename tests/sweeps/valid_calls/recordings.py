"""Valid calls of `regard.record`, `regard.patch`, methods of recordings and functions of `regard.recording`."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

import regard
from regard import nn
from regard.recording import patching
from regard.recording.metrics import relations, token_groups
from tests.sweeps.valid_calls.inputs import numbers
from tests.sweeps.valid_calls.table import Arguments, ValidCall, args

X = numbers(1, 6, 8)
TOKENS = ["the", " cat", " sat", " on", " the", " mat"]


@cache
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return nn.Encoder(nn.BlockConfig(8, 2, ffn_dim=16), 2)


@cache
def recording() -> regard.Recording:
    x = X.clone().requires_grad_()
    with regard.record(model()) as result:
        model()(x).square().sum().backward()
    result.tokens = [TOKENS]
    return result


def run_inside(context: Any) -> Any:
    with context as entered:
        return model()(X), entered


def method(name: str, *positional: Any, use: Callable[[Any], object] | None = None, **keywords: Any) -> ValidCall:
    def arguments() -> Arguments:
        return args(*positional, **keywords)

    return ValidCall(f"regard.Recording.{name}", lambda: getattr(recording(), name), arguments, use)


def patch_factory(name: str, *positional: Any, **keywords: Any) -> ValidCall:
    """A function that returns a patch, which is used in `regard.patch`."""

    def use(patch_head: Any) -> Any:
        return run_inside(regard.patch(model(), {(0, 1): patch_head}))

    return ValidCall(
        f"regard.recording.patching.{name}",
        lambda: getattr(patching, name),
        lambda: args(*positional, **keywords),
        use,
    )


def first_entry(matrix: Any) -> Any:
    return matrix[0, 0, 0]


def saved_path() -> str:
    recording().save("recording.safetensors")
    return "recording.safetensors"


CALLS = [
    ValidCall("regard.record", lambda: regard.record, lambda: args(model()), run_inside),
    ValidCall("regard.patch", lambda: regard.patch, lambda: args(model(), {(0, 1): patching.zero_ablate}), run_inside),
    ValidCall("regard.load_recording", lambda: regard.load_recording, lambda: args(saved_path())),
    method("__getitem__", 0),
    method("calls", 0),
    method("layer_named", 0),
    method("head_table"),
    method("find_heads", "previous"),
    method("rollout", 5),
    method("relevance", 5),
    method("flow", 5),
    method("reversed_attention", 0, use=first_entry),
    method("attention_times_gradient", 0, use=first_entry),
    ValidCall("regard.Recording.compare", lambda: recording().compare, lambda: args(recording())),
    method("head_divergence"),
    method("value_weighted", 0, use=first_entry),
    method("word_weights", 0),
    method("relation_accuracy", {1: {0}, 2: {1}}),
    method("save", "recording.safetensors"),
    patch_factory("shift_attention", 1),
    patch_factory("override_options", mask=regard.mask.causal()),
    patch_factory("replace_weights", torch.softmax(numbers(6, 6), -1)),
    ValidCall("regard.recording.metrics.token_groups.word_ids", lambda: token_groups.word_ids, lambda: args(TOKENS)),
    ValidCall(
        "regard.recording.metrics.token_groups.sentence_ids", lambda: token_groups.sentence_ids, lambda: args(TOKENS)
    ),
    ValidCall(
        "regard.recording.metrics.token_groups.patch_weights_to_image",
        lambda: token_groups.patch_weights_to_image,
        lambda: args(torch.rand(5), (2, 2), (8, 8)),
    ),
    ValidCall(
        "regard.recording.metrics.token_groups.frame_weights_to_timeline",
        lambda: token_groups.frame_weights_to_timeline,
        lambda: args(torch.rand(5), 1.0, 0.2),
    ),
    ValidCall(
        "regard.recording.metrics.relations.dependency_targets",
        lambda: relations.dependency_targets,
        lambda: args([(0, 1), (1, 2)]),
    ),
    ValidCall(
        "regard.recording.metrics.relations.coreference_targets",
        lambda: relations.coreference_targets,
        lambda: args([[0, 2], [1, 3]]),
    ),
]

LEFT_OUT = {
    "regard.recording.patching.HeadCall": "created by patch",
    "regard.recording.patching.mean_ablate": "called by patch with a head",
    "regard.recording.patching.patch": "in the table as regard.patch",
    "regard.recording.patching.uniform_attention": "called by patch with a head",
    "regard.recording.patching.zero_ablate": "called by patch with a head",
    "regard.recording.metrics.token_groups.group_weights": "in the table as Recording.word_weights",
    "regard.Recording": "created by record and load_recording",
    "regard.Recording.get_or_add_layer": "called by recorders and readers of files",
}
