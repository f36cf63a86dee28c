"""Dates in words into numbers: "the twenty-first of march nineteen eighty-four" is 1984-03-21.

Every digit comes from a word or two, in another order, so that where the decoder looks can be checked by eye. Days of
three centuries are said in many ways; one day in ten is kept for testing, in all its ways.
"""

import hashlib
from collections.abc import Sequence
from datetime import date, timedelta
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.models.train import Outcome, Recipe, answers
from regard.models.translation import Translator
from regard.nn.block import Design
from regard.nn.generate import generate
from regard.nn.position import Sinusoidal

FIRST, LAST = date(1800, 1, 1), date(2099, 12, 31)
HELD_OUT = 10  # one day in so many is not trained on
BATCH = 128
TESTED = 2000

ONES = "one two three four five six seven eight nine".split()
TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
SMALL_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
    "sixteenth seventeenth eighteenth nineteenth twentieth"
).split()
MONTHS = "january february march april may june july august september october november december".split()
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
PAD, BEGIN, END = "<pad>", "<begin>", "<end>"
SOURCE = [PAD, *ONES, *TEENS, *TENS, *SMALL_ORDINALS, "thirtieth", *MONTHS, *DAYS, "the", "of", "and", "hundred"]
SOURCE += ["thousand", "oh", "on", "in", "year", ","]
TARGET = [PAD, BEGIN, END, *"0123456789-"]


def number(n: int) -> list[str]:
    """1 to 99 in words.

    >>> number(84)
    ['eighty', 'four']
    """
    if n < 10:
        return [ONES[n - 1]]
    if n < 20:
        return [TEENS[n - 10]]
    return [TENS[n // 10 - 2], *([ONES[n % 10 - 1]] if n % 10 else [])]


def ordinal(n: int) -> list[str]:
    """1 to 31 as a place.

    >>> ordinal(21)
    ['twenty', 'first']
    """
    if n <= 20:
        return [SMALL_ORDINALS[n - 1]]
    return ["thirtieth"] if n == 30 else [TENS[n // 10 - 2], SMALL_ORDINALS[n % 10 - 1]]


def years(year: int) -> list[list[str]]:
    """The ways to say a year.

    >>> [" ".join(way) for way in years(2005)]
    ['twenty oh five', 'two thousand and five', 'two thousand five']
    """
    century, rest = divmod(year, 100)
    ways = []
    if century % 10 == 0:
        thousands = [ONES[century // 10 - 1], "thousand"]
        if rest == 0:
            return [thousands, ["the", "year", *thousands]]
        ways = [[*thousands, "and", *number(rest)], [*thousands, *number(rest)]]
    if rest == 0:
        return [[*number(century), "hundred"], ["the", "year", *number(century), "hundred"]]
    short = [*number(century), *(["oh"] if rest < 10 else []), *number(rest)]
    return [short, *(ways or [[*number(century), "hundred", "and", *number(rest)]])]


def said(day: date, ways: Sequence[int]) -> list[str]:
    """A day in words; each of the six numbers in `ways` settles one of the choices."""
    spoken = years(day.year)
    year = spoken[ways[0] % len(spoken)]
    month = MONTHS[day.month - 1]
    in_month = ordinal(day.day) if ways[1] % 4 else number(day.day)
    body = [
        ["the", *in_month, "of", month],
        [month, "the", *in_month],
        [month, *in_month],
        [*in_month, month],
    ][ways[2] % 4]
    comma = [","] if ways[3] % 2 else []
    named = [DAYS[day.weekday()], ","] if ways[4] % 4 == 0 else []
    lead = ["on"] if ways[5] % 5 == 0 else []
    tail = ["in", *year] if year[0] == "the" else [*comma, *year]
    return [*lead, *named, *body, *tail]


def written(day: date) -> list[str]:
    return [*day.isoformat()]


def is_held_out(day: date) -> bool:
    return int(hashlib.sha256(day.isoformat().encode()).hexdigest(), 16) % HELD_OUT == 0


def made(words: dict[str, Any]) -> Translator:
    """The model that a file of weights is for."""
    design = Design(**words["design"])
    positions = Sinusoidal(design.width), Sinusoidal(design.width)
    return Translator((len(SOURCE), len(TARGET)), layers=words["layers"], design=design, positions=positions)


@cache
def _places(vocabulary: str) -> dict[str, int]:
    return {word: place for place, word in enumerate(SOURCE if vocabulary == "source" else TARGET)}


def encode(sentences: Sequence[Sequence[str]], vocabulary: str) -> tuple[Tensor, Tensor]:
    """Words as tokens (batch, longest), filled up at the end, and how many each sentence has."""
    place = _places(vocabulary)
    lengths = torch.tensor([len(s) for s in sentences])
    rows = torch.full((len(sentences), int(lengths.max())), place[PAD])
    for row, sentence in zip(rows, sentences, strict=True):
        row[: len(sentence)] = torch.tensor([place[word] for word in sentence])
    return rows, lengths


def decode(tokens: Sequence[int]) -> str:
    """What was written before the end."""
    words = [TARGET[token] for token in tokens]
    return "".join(words[: words.index(END)] if END in words else words)


class DatesTask:
    """Needs no data: days are counted, and said by rule."""

    name = "dates"
    recipe = Recipe(steps=1200, rate=2e-3, warmup=200, schedule="original", smoothing=0.1, decay=0.0)

    def __init__(self, data: Path | None = None) -> None:
        del data

    def words(self) -> dict[str, Any]:
        design = {"width": 96, "heads": 4, "hidden": 192, "activation": "relu", "norm_first": True, "dropout": 0.1}
        return {"layers": 2, "design": design}

    def model(self) -> nn.Module:
        return made(self.words())

    @cached_property
    def days(self) -> tuple[list[date], list[date]]:
        """Those that are trained on, and those held out."""
        every = [FIRST + timedelta(days=n) for n in range((LAST - FIRST).days + 1)]
        return [d for d in every if not is_held_out(d)], [d for d in every if is_held_out(d)]

    def outcome(self, model: nn.Module, step: int, draw: torch.Generator, recipe: Recipe) -> Outcome:
        source, lengths, target = self.batch(self.days[0], BATCH, draw)
        logits = model(source, target[:, :-1], lengths=lengths)
        return answers(logits, target[:, 1:], recipe.smoothing)

    def batch(self, days: list[date], count: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Sources, their lengths, and targets from BEGIN to END."""
        chosen = [days[place] for place in torch.randint(len(days), (count,), generator=draw).tolist()]
        ways = torch.randint(60, (count, 6), generator=draw).tolist()
        source, lengths = encode([said(day, way) for day, way in zip(chosen, ways, strict=True)], "source")
        target, _ = encode([[BEGIN, *written(day), END] for day in chosen], "target")
        return source, lengths, target

    def test(self, model: nn.Module) -> dict[str, float]:
        """The share of held-out days that are right to the last digit."""
        assert isinstance(model, Translator)
        source, lengths, target = self.batch(self.days[1], TESTED, torch.Generator().manual_seed(1))
        reading = model.reading(source, lengths)
        found = generate(reading, target[:, :1], most=target.shape[1] - 1, stop=TARGET.index(END))
        found = torch.nn.functional.pad(found, (0, target.shape[1] - 1 - found.shape[1]))
        return {"exact": float((found == target[:, 1:]).all(-1).float().mean()), "tested": float(TESTED)}
