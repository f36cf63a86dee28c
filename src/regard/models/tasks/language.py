"""A language model of old speeches and a whale: State of the Union addresses and Moby-Dick, both in the public domain.

Layers take turns: one sees a few tokens before and knows where they stand (rotary), the next sees all there is and
knows no positions. So nothing it has learned ends at a length, and 16,384 tokens are as good as 512. The first layer
sees eight tokens. It finds the one before among so few soon, and what looks for repetitions stands on that.

A part of what it reads says something twice: a passage that comes again, or random tokens that do. What helps there is
to look for what followed the last time: induction.
"""

import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import LoadError
from regard.models.language import LanguageModel
from regard.models.text import Tokens
from regard.models.train import Outcome, Recipe, answers
from regard.nn.block import Design
from regard.nn.position import Rotary

SIZES = ((400, 64, 64), (700, 16, 256), (0, 8, 512))  # until which step so many rows, and tokens each: short ones first
LONG, LONG_EVERY = (1, 4096), 8  # in the last of these, every so often
HELD_OUT = 20  # one text in so many is not trained on
VOCABULARY = 4096
WINDOWS = (8, None, 64, None)  # how far the layers see, in turn
BASE = 100.0  # of rotary positions: the slowest feature turns once in about as many tokens as the widest window has


def made(words: dict[str, Any]) -> LanguageModel:
    """The model that a file of weights is for."""
    designs = [Design(**words["design"], window=w, positions=w is not None) for w in words["windows"]]
    position = Rotary(designs[0].width_of_head, base=words["base"])
    return LanguageModel(words["vocabulary"], layers=words["layers"], design=designs, position=position)


class LanguageTask:
    """`data` holds the folders that `make data` fetched: sotu and moby-dick."""

    name = "language"
    recipe = Recipe(steps=1100, rate=3e-3, warmup=100, betas=(0.9, 0.95), decay=0.05)

    def __init__(self, data: Path) -> None:
        self.data = data

    def words(self) -> dict[str, Any]:
        design = {"width": 256, "heads": 8, "activation": "swiglu", "norm": "rms", "bias": False}
        return {"vocabulary": self.tokens.size, "layers": 4, "design": design, "windows": list(WINDOWS), "base": BASE}

    def model(self) -> nn.Module:
        return made(self.words())

    @cached_property
    def texts(self) -> tuple[list[str], list[str]]:
        """What is trained on, and what is held out."""
        found = list(_texts(self.data))
        kept = [int(hashlib.sha256(text.encode()).hexdigest(), 16) % HELD_OUT == 0 for text in found]
        return (
            [text for text, is_kept in zip(found, kept, strict=True) if not is_kept],
            [text for text, is_kept in zip(found, kept, strict=True) if is_kept],
        )

    @cached_property
    def tokens(self) -> Tokens:
        return Tokens.learned(self.texts[0], VOCABULARY)

    @cached_property
    def train_stream(self) -> Tensor:
        return self._stream(self.texts[0])

    @cached_property
    def test_stream(self) -> Tensor:
        return self._stream(self.texts[1])

    def _stream(self, texts: list[str]) -> Tensor:
        """All texts one after another, as tokens."""
        found: list[int] = []
        for text in texts:
            found += [self.tokens.end, *self.tokens.encode(text)]
        return torch.tensor(found)

    def outcome(self, model: nn.Module, step: int, draw: torch.Generator, smoothing: float) -> Outcome:
        count, n = size_of(step)
        rows = self.batch(count, n + 1, draw)
        return answers(model(rows[:, :-1]), rows[:, 1:], smoothing)

    def batch(self, count: int, n: int, draw: torch.Generator) -> Tensor:
        """Rows of text: half of them as they stand, a quarter in which passages come again, and a quarter of random
        tokens that do."""
        stream = self.train_stream
        begin = torch.randint(len(stream) - n, (count,), generator=draw)
        rows = torch.stack([stream[b : b + n] for b in begin.tolist()])
        for row, kind in zip(rows, torch.randint(8, (count,), generator=draw).tolist(), strict=True):
            if kind <= 1:
                row.copy_(repeated(self.tokens.size, n, draw))
            elif kind <= 3:
                say_again(row, draw)
        return rows

    def test(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, LanguageModel)
        n = 512
        rows = self.test_stream[: (len(self.test_stream) - 1) // n * n + 1]
        outcomes: list[tuple[Outcome, int]] = []
        for part in rows[:-1].view(-1, n).split(16):
            begin = len(outcomes) * 16 * n
            target = rows[begin + 1 : begin + 1 + part.numel()].view_as(part)
            outcomes.append((answers(model(part), target, 0.0), part.numel()))
        total = sum(size for _, size in outcomes)
        loss = sum(float(o.loss) * size for o, size in outcomes) / total
        letters = len(self.tokens.decode(rows.tolist()).encode())
        best = max(torch.stack(induction(model)).flatten().tolist())
        torch.manual_seed(1)
        untrained = max(torch.stack(induction(self.model().eval())).flatten().tolist())  # type: ignore[arg-type]  # the same kind
        return {
            "loss": loss,
            "bits_per_byte": loss * total / letters / 0.6931471805599453,
            "accuracy": sum(o.right for o, _ in outcomes) / total,
            "induction": best,
            "induction_untrained": untrained,
        }


def size_of(step: int) -> tuple[int, int]:
    """How many rows a step has, and of how many tokens.

    >>> [size_of(step) for step in (0, 699, 700, 703)]
    [(64, 64), (16, 256), (8, 512), (1, 4096)]
    """
    for until, count, n in SIZES[:-1]:
        if step < until:
            return count, n
    return LONG if step % LONG_EVERY == LONG_EVERY - 1 else SIZES[-1][1:]


def repeated(vocabulary: int, n: int, draw: torch.Generator) -> Tensor:
    """n random tokens that come again and again, after 16 to n / 2 of them."""
    period = int(torch.randint(16, n // 2 + 1, (), generator=draw))
    tokens = torch.randint(1, vocabulary, (period,), generator=draw)
    return tokens.repeat(-(-n // period))[:n]


def say_again(row: Tensor, draw: torch.Generator) -> None:
    """Four times, a passage of 8 to 128 tokens, a quarter of the row at most, comes again further on."""
    n = len(row)
    for _ in range(4):
        length = int(torch.randint(8, min(128, n // 4) + 1, (), generator=draw))
        first = int(torch.randint(n - 2 * length, (), generator=draw))
        again = int(torch.randint(first + length, n - length + 1, (), generator=draw))
        row[again : again + length] = row[first : first + length].clone()


def induction(model: LanguageModel, *, batch: int = 8, period: int = 100, seed: int = 7) -> list[Tensor]:
    """For each layer and head, the mean weight that a token of a random sequence said twice gives, the second time, to
    the token after its first occurrence."""
    draw = torch.Generator().manual_seed(seed)
    half = torch.randint(1, model.embedding.num_embeddings, (batch, period), generator=draw)
    found = []
    with torch.no_grad():
        for layer in model.decoder.attend(model.embedding(torch.cat((half, half), dim=1))):
            rows = layer.own.weights[:, :, period:, :]
            found.append(rows.diagonal(offset=1, dim1=-2, dim2=-1)[..., :period].mean((0, 2)))
    return found


def _texts(data: Path) -> Iterator[str]:
    """Speeches and chapters in a fixed order."""
    for folder in ("sotu", "moby-dick"):
        paths = sorted((data / folder).glob("*.txt"))
        if not paths:
            raise LoadError(
                f"the language model is trained on {data / folder}, texts as *.txt; got none. Run make data, "
                "or name another folder with --data."
            )
        for path in paths:
            yield path.read_text(encoding="utf8")
