"""What positions stand for: words and sentences of a text, patches of an image, frames of sound.

Weight on a word is the sum over its tokens, and a word's own weights are the mean over its tokens (Clark and others,
2019). With a column for each group in the place of the values, attention itself adds up what lies on a group.
"""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.attention import attention
from regard.errors import SpecError
from regard.heard import unheard
from regard.inside import arguments
from regard.inside.layer import Layer

COLUMNS = 256  # groups that are computed at a time
MAX_GROUPS_PER_TOKEN = 4  # a group that has no token is allowed, but not by the million
STARTS_WORD = ("Ġ", "▁", " ")  # how tokenizers mark a token that begins a word
GOES_ON = "##"
MAX_SIDE, MAX_SAMPLES = 2**15, 10**8
ENDS_SENTENCE = re.compile(r"[.!?][\"')\]]*$")


def by_group(layer: Layer, of_queries: Sequence[int], of_keys: Sequence[int]) -> Tensor:
    """The weights of a layer (batch, heads, groups, groups): mean over the queries of a group, sum over its keys.

    `of_queries` and `of_keys` have the number of its group for each token, counted from 0; -1 leaves a token out.
    """
    take = layer.take.widened()
    rows, keys = torch.as_tensor(of_queries), torch.as_tensor(of_keys)
    for what, given, length in (("queries", rows, take.q.shape[2]), ("keys", keys, take.k.shape[2])):
        if given.shape != (length,):
            raise SpecError(f"each of {length} {what} must have the number of its group; got {len(given)} numbers.")
    if not len(keys) or int(keys.max()) < 0 or not len(rows) or int(rows.max()) < 0:
        raise SpecError("at least one token must be in a group, a number from 0; all are left out.")
    groups = int(keys.max()) + 1
    if max(groups, int(rows.max()) + 1) > MAX_GROUPS_PER_TOKEN * max(len(keys), len(rows)):
        raise SpecError(
            f"groups must be numbered from 0 without large gaps; got {groups} groups of {len(keys)} tokens."
        )
    parts = []
    for first in range(0, groups, COLUMNS):
        numbers = torch.arange(first, min(first + COLUMNS, groups))
        columns = (keys[:, None] == numbers).to(take.k.dtype).expand(*take.k.shape[:2], -1, -1)
        with torch.no_grad(), unheard():
            parts.append(attention(take.q, take.k, columns, **{**take.options, "value": None}).float())
    on_groups = torch.cat(parts, dim=-1)
    counted = (rows[:, None] == torch.arange(int(rows.max()) + 1)).float()
    mean: Tensor = counted.mT / counted.sum(0)[:, None].clamp(min=1)
    return mean @ on_groups


def word_ids(tokens: Sequence[str]) -> list[int]:
    """For each token the number of its word: pieces that go on are of the word before, and so is nothing else.

    >>> word_ids(["The", "Ġwh", "ale", "Ġsw", "ims"])
    [0, 1, 1, 2, 2]
    >>> word_ids(["[CLS]", "swim", "##ming", "whales", "[SEP]"])
    [0, 1, 1, 2, 3]
    """
    tokens = arguments.strings(tokens, "tokens")
    marks = any(token.startswith(STARTS_WORD) for token in tokens)
    found: list[int] = []
    for token in tokens:
        goes_on = token.startswith(GOES_ON) or (marks and not token.startswith(STARTS_WORD) and token[:1].isalnum())
        found.append(found[-1] if goes_on and found else found[-1] + 1 if found else 0)
    return found


def sentence_ids(tokens: Sequence[str]) -> list[int]:
    """For each token the number of its sentence; a sentence ends with . ! or ?

    >>> sentence_ids(["It", " is", " big", ".", " We", " ran"])
    [0, 0, 0, 0, 1, 1]
    """
    found, number = [], 0
    for token in arguments.strings(tokens, "tokens"):
        found.append(number)
        number += bool(ENDS_SENTENCE.search(token.strip()))
    return found


def on_image(weights: Tensor, grid: tuple[int, int], size: tuple[int, int], *, before: int = 1) -> Tensor:
    """Weights on patches laid back on the picture: (..., patches) as (..., height, width).

    `before` tokens stand before the patches and for no place: 1 is the class token.
    """
    arguments.tensor(weights, "weights")
    grid, size = _sides(grid, "grid"), _sides(size, "size")
    patches = weights[..., arguments.whole(before, "before", 0) :]
    if patches.shape[-1] != grid[0] * grid[1]:
        raise SpecError(
            f"weights must be on {before} + {grid[0]} x {grid[1]} tokens; got {weights.shape[-1]}. Give another grid."
        )
    picture = patches.unflatten(-1, grid)
    rows, columns = (torch.arange(n) * g // n for n, g in zip(size, grid, strict=True))
    laid: Tensor = picture[..., rows, :][..., columns]
    return laid


def _sides(sides: Any, what: str) -> tuple[int, int]:
    numbers = arguments.wholes(sides, what, 1, MAX_SIDE)
    if len(numbers) != 2:
        raise SpecError(f"{what} must be two numbers, (height, width); got {numbers}.")
    return numbers[0], numbers[1]


def on_time(weights: Tensor, seconds: float, step: float) -> Tensor:
    """Weights on frames as a curve over time: (..., frames) as (..., samples), a sample every `step` seconds of
    `seconds`."""
    frames = arguments.tensor(weights, "weights").shape[-1]
    seconds, step = arguments.number(seconds, "seconds", above=0), arguments.number(step, "step", above=0)
    if not frames or not 1 <= round(seconds / step) <= MAX_SAMPLES:
        raise SpecError(
            f"a curve must have a frame and 1 to {MAX_SAMPLES:,} samples; got {frames} frames, {seconds:g} seconds "
            f"and a sample every {step:g}."
        )
    samples = torch.arange(round(seconds / step))
    return weights[..., (samples * frames // max(len(samples), 1)).clamp(max=frames - 1)]
