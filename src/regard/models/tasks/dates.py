"""Translation of dates from words to ISO format: "the twenty-first of march nineteen eighty-four" is 1984-03-21.

Every digit depends on one or two words, in a different order, so cross-attention can be checked by eye. The days of
three centuries each have many phrases. About one day in ten is held out for testing, with all its phrases.
"""

import hashlib
from collections.abc import Sequence
from datetime import date, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.cache import memoize
from regard.models.training import BatchResult, Recipe, classification_result
from regard.models.translation import Translator
from regard.nn.block import BlockConfig
from regard.nn.generation import generate
from regard.nn.position_encoding import SinusoidalPositionalEmbedding

FIRST_DAY, LAST_DAY = date(1800, 1, 1), date(2099, 12, 31)
HOLDOUT_EVERY = 10
BATCH_SIZE = 128
NUM_TEST_DATES = 2000

ONES = "one two three four five six seven eight nine".split()
TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
SMALL_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
    "sixteenth seventeenth eighteenth nineteenth twentieth"
).split()
MONTHS = "january february march april may june july august september october november december".split()
WEEKDAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
PAD, BEGIN, END = "<pad>", "<begin>", "<end>"
SOURCE_VOCABULARY = [
    PAD,
    *ONES,
    *TEENS,
    *TENS,
    *SMALL_ORDINALS,
    "thirtieth",
    *MONTHS,
    *WEEKDAYS,
    "the",
    "of",
    "and",
    "hundred",
]
SOURCE_VOCABULARY += ["thousand", "oh", "on", "in", "year", ","]
TARGET_VOCABULARY = [PAD, BEGIN, END, *"0123456789-"]


def number_words(n: int) -> list[str]:
    """Return a number from 1 to 99 in words.

    >>> number_words(84)
    ['eighty', 'four']
    """
    if n < 10:
        return [ONES[n - 1]]
    if n < 20:
        return [TEENS[n - 10]]
    return [TENS[n // 10 - 2], *([ONES[n % 10 - 1]] if n % 10 else [])]


def ordinal_words(n: int) -> list[str]:
    """Return the ordinal of a number from 1 to 31 in words.

    >>> ordinal_words(21)
    ['twenty', 'first']
    """
    if n <= 20:
        return [SMALL_ORDINALS[n - 1]]
    return ["thirtieth"] if n == 30 else [TENS[n // 10 - 2], SMALL_ORDINALS[n % 10 - 1]]


def year_phrases(year: int) -> list[list[str]]:
    """Return the phrases for a year.

    >>> [" ".join(phrase) for phrase in year_phrases(2005)]
    ['twenty oh five', 'two thousand and five', 'two thousand five']
    """
    century, rest = divmod(year, 100)
    long_forms = []
    if century % 10 == 0:
        thousands = [ONES[century // 10 - 1], "thousand"]
        if rest == 0:
            return [thousands, ["the", "year", *thousands]]
        long_forms = [[*thousands, "and", *number_words(rest)], [*thousands, *number_words(rest)]]
    if rest == 0:
        return [[*number_words(century), "hundred"], ["the", "year", *number_words(century), "hundred"]]
    short = [*number_words(century), *(["oh"] if rest < 10 else []), *number_words(rest)]
    return [short, *(long_forms or [[*number_words(century), "hundred", "and", *number_words(rest)]])]


def date_words(day: date, variants: Sequence[int]) -> list[str]:
    """Return a date in words; the six integers in `variants` select the wording.

    >>> " ".join(date_words(date(1984, 3, 21), [0, 1, 0, 0, 1, 1]))
    'the twenty first of march nineteen eighty four'
    """
    phrases = year_phrases(day.year)
    year = phrases[variants[0] % len(phrases)]
    month = MONTHS[day.month - 1]
    day_of_month = ordinal_words(day.day) if variants[1] % 4 else number_words(day.day)
    body = [
        ["the", *day_of_month, "of", month],
        [month, "the", *day_of_month],
        [month, *day_of_month],
        [*day_of_month, month],
    ][variants[2] % 4]
    comma = [","] if variants[3] % 2 else []
    weekday = [WEEKDAYS[day.weekday()], ","] if variants[4] % 4 == 0 else []
    prefix = ["on"] if variants[5] % 5 == 0 else []
    suffix = ["in", *year] if year[0] == "the" else [*comma, *year]
    return [*prefix, *weekday, *body, *suffix]


def iso_characters(day: date) -> list[str]:
    return [*day.isoformat()]


def is_held_out(day: date) -> bool:
    """Return whether a day is held out for testing."""
    return int(hashlib.sha256(day.isoformat().encode()).hexdigest(), 16) % HOLDOUT_EVERY == 0


def build_model(config: dict[str, Any]) -> Translator:
    """Return an untrained model from a saved configuration."""
    block_config = BlockConfig(**config["block_config"])
    embed_dim = block_config.embed_dim
    return Translator(
        (len(SOURCE_VOCABULARY), len(TARGET_VOCABULARY)),
        num_layers=config["num_layers"],
        block_config=block_config,
        position_encodings=(SinusoidalPositionalEmbedding(embed_dim), SinusoidalPositionalEmbedding(embed_dim)),
    )


@memoize()
def _token_ids(side: str) -> dict[str, int]:
    return {word: index for index, word in enumerate(SOURCE_VOCABULARY if side == "source" else TARGET_VOCABULARY)}


def encode(sentences: Sequence[Sequence[str]], side: str) -> tuple[Tensor, Tensor]:
    """Return the tokens (batch, n) of lists of words, padded at the end, and the lengths (batch,).

    `side` is "source" or "target".
    """
    ids = _token_ids(side)
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    tokens = torch.full((len(sentences), int(lengths.max())), ids[PAD])
    for row, sentence in zip(tokens, sentences, strict=True):
        row[: len(sentence)] = torch.tensor([ids[word] for word in sentence])
    return tokens, lengths


def decode(tokens: Sequence[int]) -> str:
    """Return the text of target tokens up to END."""
    words = [TARGET_VOCABULARY[token] for token in tokens]
    return "".join(words[: words.index(END)] if END in words else words)


class DatesTask:
    """Translation of dates; needs no data, since phrases are generated."""

    name = "dates"
    recipe = Recipe(
        steps=1200, lr=2e-3, warmup_steps=200, schedule="inverse_sqrt", label_smoothing=0.1, weight_decay=0.0
    )

    def __init__(self, data: Path | None = None) -> None:
        del data

    def model_config(self) -> dict[str, Any]:
        block_config = {
            "embed_dim": 96,
            "num_heads": 4,
            "ffn_dim": 192,
            "activation": "relu",
            "norm_first": True,
            "dropout": 0.1,
        }
        return {"num_layers": 2, "block_config": block_config}

    def untrained_model(self) -> nn.Module:
        return build_model(self.model_config())

    @cached_property
    def splits(self) -> tuple[list[date], list[date]]:
        """The training days and the held-out days."""
        all_days = [FIRST_DAY + timedelta(days=n) for n in range((LAST_DAY - FIRST_DAY).days + 1)]
        return [day for day in all_days if not is_held_out(day)], [day for day in all_days if is_held_out(day)]

    def training_step(self, model: nn.Module, step: int, generator: torch.Generator, recipe: Recipe) -> BatchResult:
        source, lengths, target = self.batch(self.splits[0], BATCH_SIZE, generator)
        logits = model(source, target[:, :-1], lengths=lengths)
        return classification_result(logits, target[:, 1:], recipe.label_smoothing)

    def batch(self, days: list[date], batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return sources, their lengths, and targets from BEGIN to END."""
        sample = [days[i] for i in torch.randint(len(days), (batch_size,), generator=generator).tolist()]
        variants = torch.randint(60, (batch_size, 6), generator=generator).tolist()
        phrases = [date_words(day, variant) for day, variant in zip(sample, variants, strict=True)]
        source, lengths = encode(phrases, "source")
        target, _ = encode([[BEGIN, *iso_characters(day), END] for day in sample], "target")
        return source, lengths, target

    def test(self, model: nn.Module) -> dict[str, float]:
        """Return the fraction of held-out dates that are translated exactly."""
        assert isinstance(model, Translator)
        source, lengths, target = self.batch(self.splits[1], NUM_TEST_DATES, torch.Generator().manual_seed(1))
        encoded = model.encode_source(source, lengths)
        output = generate(
            encoded, target[:, :1], max_new_tokens=target.shape[1] - 1, eos_token_id=TARGET_VOCABULARY.index(END)
        )
        output = torch.nn.functional.pad(output, (0, target.shape[1] - 1 - output.shape[1]))
        is_exact = (output == target[:, 1:]).all(-1)
        return {"exact_match": float(is_exact.float().mean()), "num_tested": float(NUM_TEST_DATES)}
