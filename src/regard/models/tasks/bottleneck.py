"""What a fixed length costs: words of random letters are copied or reversed, with attention and without.

Two recurrent translators learn side by side from the same batches. One looks at all states of its encoder, the other is
given the last ones alone and has to carry the whole word in them. The first token of a source says what is wanted. One
word in ten is kept for testing: those whose tokens have a sum that ten divides.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.models.rnn_translation import RecurrentTranslator
from regard.models.train import Outcome, Recipe, answers
from regard.nn.generate import generate

PAD, BEGIN, END, COPY, REVERSE = range(5)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
FIRST = 5  # the token of the first letter
VOCABULARY = FIRST + len(LETTERS)
LONGEST = 20  # letters of a word that is trained on
HELD_OUT = 10  # one word in so many is not trained on
BATCH = 64
LENGTHS = (5, 10, 15, 20, 30)  # of the words that are tested; the last one is beyond training
TESTED = 500  # words of each length


class Pair(nn.Module):
    """Both translators: `attention` and `bottleneck`."""

    def __init__(self, *, attention: dict[str, Any], bottleneck: dict[str, Any]) -> None:
        super().__init__()
        self.attention = RecurrentTranslator((VOCABULARY, VOCABULARY), **attention)
        self.bottleneck = RecurrentTranslator((VOCABULARY, VOCABULARY), **bottleneck)


def made(words: dict[str, Any]) -> Pair:
    """The models that a file of weights is for."""
    return Pair(attention=words["attention"], bottleneck=words["bottleneck"])


@dataclass(frozen=True, eq=False)
class Batch:
    """Sources (batch, n + 1) with what is wanted in front, how many of their tokens are real, and targets from BEGIN to
    END, filled up with PAD."""

    source: Tensor
    lengths: Tensor
    target: Tensor


def words_of(count: int, shortest: int, longest: int, draw: torch.Generator, *, held_out: bool) -> Tensor:
    """Tokens (count, longest) of random words, filled up at the end: of those held out, or of the others."""
    many = 2 * count * (HELD_OUT if held_out else 1)  # about twice as many of the right kind as are asked for
    lengths = torch.randint(shortest, longest + 1, (many, 1), generator=draw)
    tokens = torch.randint(FIRST, VOCABULARY, (many, longest), generator=draw)
    tokens = tokens.masked_fill(torch.arange(longest) >= lengths, PAD)
    return tokens[is_held_out(tokens) == held_out][:count]


def is_held_out(words: Tensor) -> Tensor:
    """For each word, whether it is kept for testing.

    >>> is_held_out(torch.tensor([[5, 6, 9], [5, 6, 0]]))
    tensor([ True, False])
    """
    return words.sum(-1) % HELD_OUT == 0


def asked(words: Tensor, wanted: Tensor) -> Batch:
    """Words (batch, n) as questions and answers; `wanted` says of each whether it is COPY or REVERSE.

    >>> one = asked(torch.tensor([[7, 8, 9, 0]]), torch.tensor([REVERSE]))
    >>> one.source.tolist(), one.lengths.tolist(), one.target.tolist()
    ([[4, 7, 8, 9, 0]], [4], [[1, 9, 8, 7, 2, 0]])
    """
    n, real = words.shape[1], (words != PAD).sum(-1, keepdim=True)
    backwards = words.gather(1, (real - 1 - torch.arange(n)) % n).masked_fill(words == PAD, PAD)
    written = torch.where(wanted.unsqueeze(-1) == REVERSE, backwards, words)
    around = torch.full((len(words), 1), BEGIN), torch.full((len(words), 1), PAD)
    target = torch.cat((around[0], written, around[1]), 1).scatter(1, real + 1, END)
    return Batch(torch.cat((wanted.unsqueeze(-1), words), 1), real.squeeze(-1) + 1, target)


class BottleneckTask:
    """Needs no data: words are drawn."""

    name = "bottleneck"
    recipe = Recipe(steps=3000, rate=2e-3, warmup=200, decay=0.0)

    def __init__(self, data: Path | None = None) -> None:
        del data

    def words(self) -> dict[str, Any]:
        """The one without attention is wider, so that it has no fewer parameters."""
        return {
            "attention": {"width": 96, "attention": "bahdanau"},
            "bottleneck": {"width": 104, "attention": None},
        }

    def model(self) -> nn.Module:
        return made(self.words())

    def outcome(self, model: nn.Module, step: int, draw: torch.Generator, recipe: Recipe) -> Outcome:
        assert isinstance(model, Pair)
        words = words_of(BATCH, 1, LONGEST, draw, held_out=False)
        batch = asked(words, torch.randint(COPY, REVERSE + 1, (len(words),), generator=draw))
        both = [
            answers(
                each(batch.source, batch.target[:, :-1], lengths=batch.lengths),
                batch.target[:, 1:],
                recipe.smoothing,
                PAD,
            )
            for each in (model.attention, model.bottleneck)
        ]
        return Outcome(both[0].loss + both[1].loss, both[0].right + both[1].right, both[0].of + both[1].of)

    def test(self, model: nn.Module) -> dict[str, float]:
        """For each length, the share of held-out words that each translator writes without a mistake, half of them
        copied and half reversed; and how much of its attention rests on the letter that is to be written."""
        assert isinstance(model, Pair)
        found: dict[str, float] = {}
        for name, translator in (("attention", model.attention), ("bottleneck", model.bottleneck)):
            for length in LENGTHS:
                found[f"{name}_{length}"] = exact(translator, held_out(length))
        for name, wanted in (("alignment", REVERSE), ("alignment_copy", COPY)):
            batches = [held_out(length, wanted) for length in LENGTHS if length <= LONGEST]
            found[name] = sum(alignment(model.attention, batch) for batch in batches) / len(batches)
        return found


def held_out(length: int, wanted: int | None = None) -> Batch:
    """`TESTED` words of one length that were not trained on: to be copied and reversed in turn, or all as `wanted`."""
    words = words_of(TESTED, length, length, torch.Generator().manual_seed(length), held_out=True)
    turns = torch.tensor([COPY, REVERSE]).repeat(-(-len(words) // 2))[: len(words)]
    return asked(words, turns if wanted is None else torch.full_like(turns, wanted))


def exact(translator: RecurrentTranslator, batch: Batch) -> float:
    """The share of targets that are written to the last letter, and ended there."""
    right = batch.target[:, 1:]
    reading = translator.reading(batch.source, batch.lengths)
    found = generate(reading, batch.target[:, :1], most=right.shape[1], stop=END)
    found = nn.functional.pad(found, (0, right.shape[1] - found.shape[1]), value=END)
    return float(((found == right) | (right == PAD)).all(-1).float().mean())


def alignment(translator: RecurrentTranslator, batch: Batch) -> float:
    """The mean weight on the source's letter that is to be written next, for words of one length."""
    weights = translator.reading(batch.source, batch.lengths).attend(batch.target[:, :-1])
    n = batch.source.shape[1] - 1
    forwards = 1 + torch.arange(n)  # what is wanted stands in front
    places = torch.where(batch.source[:, :1] == REVERSE, forwards.flip(0), forwards)
    return float(weights[:, :n].gather(2, places.unsqueeze(-1)).mean())
