"""Weights between groups of tokens, such as words and sentences, and weights on image patches and audio frames.

The weight on a word is the sum over its tokens. The weights of a word are the mean over its tokens (Clark et al.,
2019). Attention with one indicator column per group as values computes the sums.
"""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.attention import attention
from regard.errors import ArgumentError
from regard.hooks import disable_hooks
from regard.recording import argument_checks
from regard.recording.recorded_layer import RecordedLayer

__all__ = ["frame_weights_to_timeline", "group_weights", "patch_weights_to_image", "sentence_ids", "word_ids"]


def __dir__() -> list[str]:
    return sorted(__all__)


GROUPS_PER_PASS = 256  # indicator columns of one attention call
MAX_GROUPS_PER_TOKEN = 4  # groups may be empty, but not millions of them
WORD_START_MARKS = ("Ġ", "▁", " ")  # prefixes by which tokenizers mark the first token of a word
CONTINUATION_PREFIX = "##"
MAX_IMAGE_SIDE, MAX_SAMPLES = 2**15, 10**8
SENTENCE_END = re.compile(r"[.!?][\"')\]]*$")


def group_weights(layer: RecordedLayer, query_groups: Sequence[int], key_groups: Sequence[int]) -> Tensor:
    """Compute the weights of a layer between groups (batch, heads, query groups, key groups).

    Weights are summed over the keys of a group and averaged over its queries. `query_groups` and `key_groups` have the
    index of the group of each token, from 0; -1 leaves a token out.

    >>> import regard
    >>> layer = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    >>> with regard.record(layer) as recording, torch.no_grad():
    ...     output = layer(torch.randn(1, 5, 16))
    >>> words = word_ids(["The", "Ġwh", "ale", "Ġsw", "ims"])
    >>> group_weights(recording.layers[0], words, words).shape
    torch.Size([1, 4, 3, 3])
    """
    call = layer.merged_call.upcast()
    query_ids, key_ids = torch.as_tensor(query_groups), torch.as_tensor(key_groups)
    for name, ids, length in (("queries", query_ids, call.q.shape[2]), ("keys", key_ids, call.k.shape[2])):
        if ids.shape != (length,):
            raise ArgumentError(f"group_ids must have an index for each of {length} {name}; got {len(ids)} indices.")
    if not len(key_ids) or int(key_ids.max()) < 0 or not len(query_ids) or int(query_ids.max()) < 0:
        raise ArgumentError("at least one token must be in a group; all group_ids are -1, or there are no tokens.")
    num_groups = int(key_ids.max()) + 1
    if max(num_groups, int(query_ids.max()) + 1) > MAX_GROUPS_PER_TOKEN * max(len(key_ids), len(query_ids)):
        raise ArgumentError(
            f"group_ids must be numbered from 0 without large gaps; got {num_groups} groups of {len(key_ids)} tokens."
        )
    parts = []
    for start in range(0, num_groups, GROUPS_PER_PASS):
        groups = torch.arange(start, min(start + GROUPS_PER_PASS, num_groups))
        indicators = (key_ids[:, None] == groups).to(call.k.dtype).expand(*call.k.shape[:2], -1, -1)
        with torch.no_grad(), disable_hooks():
            parts.append(attention(call.q, call.k, indicators, **{**call.options, "value": None}).float())
    sums = torch.cat(parts, dim=-1)
    is_member = (query_ids[:, None] == torch.arange(int(query_ids.max()) + 1)).float()
    averaging: Tensor = is_member.mT / is_member.sum(0)[:, None].clamp(min=1)
    return averaging @ sums


def word_ids(tokens: Sequence[str]) -> list[int]:
    """Return the index of the word of each token. Tokens that continue a word have the index of that word.

    >>> word_ids(["The", "Ġwh", "ale", "Ġsw", "ims"])
    [0, 1, 1, 2, 2]
    >>> word_ids(["[CLS]", "swim", "##ming", "whales", "[SEP]"])
    [0, 1, 1, 2, 3]
    """
    tokens = argument_checks.strings(tokens, "tokens")
    has_start_marks = any(token.startswith(WORD_START_MARKS) for token in tokens)
    ids: list[int] = []
    for token in tokens:
        continues_word = token.startswith(CONTINUATION_PREFIX) or (
            has_start_marks and not token.startswith(WORD_START_MARKS) and token[:1].isalnum()
        )
        ids.append(ids[-1] if continues_word and ids else ids[-1] + 1 if ids else 0)
    return ids


def sentence_ids(tokens: Sequence[str]) -> list[int]:
    """Return the index of the sentence of each token. A sentence ends with `.`, `!` or `?`.

    >>> sentence_ids(["It", " is", " big", ".", " We", " ran"])
    [0, 0, 0, 0, 1, 1]
    """
    ids, sentence = [], 0
    for token in argument_checks.strings(tokens, "tokens"):
        ids.append(sentence)
        sentence += bool(SENTENCE_END.search(token.strip()))
    return ids


def patch_weights_to_image(
    weights: Tensor, grid_size: tuple[int, int], image_size: tuple[int, int], *, num_prefix_tokens: int = 1
) -> Tensor:
    """Map weights on image patches (..., tokens) to the pixels of the image (..., height, width).

    Args:
        weights: weights on all tokens.
        grid_size: rows and columns of patches.
        image_size: height and width of the image, in pixels.
        num_prefix_tokens: number of tokens before the patches. Default: 1, the class token.

    >>> patch_weights_to_image(torch.tensor([0.2, 0.5, 0.3]), (1, 2), (1, 4)).tolist()
    [[0.5, 0.5, 0.30000001192092896, 0.30000001192092896]]
    """
    argument_checks.tensor(weights, "weights")
    grid_size, image_size = _parse_height_width(grid_size, "grid_size"), _parse_height_width(image_size, "image_size")
    patches = weights[..., argument_checks.integer(num_prefix_tokens, "num_prefix_tokens", 0) :]
    if patches.shape[-1] != grid_size[0] * grid_size[1]:
        raise ArgumentError(
            f"weights must have {num_prefix_tokens} + {grid_size[0]} x {grid_size[1]} tokens; got {weights.shape[-1]}. "
            "Use another grid_size or num_prefix_tokens."
        )
    grid = patches.unflatten(-1, grid_size)
    rows, columns = (torch.arange(n) * g // n for n, g in zip(image_size, grid_size, strict=True))
    pixels: Tensor = grid[..., rows, :][..., columns]
    return pixels


def _parse_height_width(size: Any, name: str) -> tuple[int, int]:
    sides = argument_checks.integers(size, name, 1, MAX_IMAGE_SIDE)
    if len(sides) != 2:
        raise ArgumentError(f"{name} must be two integers, (height, width); got {sides}.")
    return sides[0], sides[1]


def frame_weights_to_timeline(weights: Tensor, duration_s: float, step_s: float) -> Tensor:
    """Map weights on audio frames (..., frames) to a curve over time (..., samples).

    Args:
        weights: weights on the frames, which are equally long.
        duration_s: duration of all frames, in seconds.
        step_s: time between samples, in seconds.

    >>> frame_weights_to_timeline(torch.tensor([1.0, 2.0]), duration_s=1.0, step_s=0.25).tolist()
    [1.0, 1.0, 2.0, 2.0]
    """
    num_frames = argument_checks.tensor(weights, "weights").shape[-1]
    duration_s, step_s = (
        argument_checks.finite_number(duration_s, "duration_s", above=0),
        argument_checks.finite_number(step_s, "step_s", above=0),
    )
    if not num_frames or not 1 <= round(duration_s / step_s) <= MAX_SAMPLES:
        raise ArgumentError(
            f"a timeline must have at least one frame and 1 to {MAX_SAMPLES:,} samples; got {num_frames} frames, "
            f"duration_s={duration_s:g} and step_s={step_s:g}."
        )
    samples = torch.arange(round(duration_s / step_s))
    return weights[..., (samples * num_frames // max(len(samples), 1)).clamp(max=num_frames - 1)]
