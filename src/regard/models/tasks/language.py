"""A language model of old speeches and a whale: State of the Union addresses and Moby-Dick, both in the public domain.

Layers take turns: one sees a few tokens before and knows where they stand (rotary), the next sees all there is and
knows no positions. So nothing it has learned ends at a length, and 16,384 tokens are as good as 512. The first layer
sees four tokens. It finds the one before among so few soon, and what looks for repetitions stands on that.

A part of what it reads says something twice: a passage that comes again, or random tokens that do. What helps there is
to look for what followed the last time: induction. Three things bring it about in a few hundred steps instead of many
thousands: random tokens come first and alone (`STAGES`), nobody is asked for those that cannot be known (`repeated`),
and layers that see everything begin by handing on what they see (`copying`).
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import LoadError
from regard.models.language import LanguageModel
from regard.models.text import Tokens
from regard.models.train import Outcome, Recipe, Spread, answers
from regard.nn.block import Design
from regard.nn.position import Rotary

HELD_OUT = 20  # one text in so many is not trained on
VOCABULARY = 4096
WINDOWS = (4, None, 64, None)  # how far the layers see, in turn
BASE = 100.0  # of rotary positions: the slowest feature turns once in about as many tokens as the widest window has

UNASKED = -100  # in the place of a token that nobody could know


@dataclass(frozen=True)
class Stage:
    """Until which step so many rows of so many tokens are read, and which shares of them are random tokens that come
    again, and text in which passages do."""

    until: int
    rows: int
    n: int
    random: float
    again: float


STAGES = (Stage(500, 16, 64, 1.0, 0.0), Stage(800, 32, 128, 0.5, 0.25), Stage(3300, 8, 512, 0.25, 0.25))
LONG, LONG_EVERY = Stage(3300, 1, 4096, 0.25, 0.25), 8  # in the last stage, every so often
TESTED_AT_ONCE = 512  # tokens
LEAST = 2 * LONG.n  # tokens to learn from

FETCHED = ("sotu", "moby-dick")  # folders, by `make data`
PASSAGE = 20_000  # characters, about, of a text of your own that is held out or not as one


def made(words: dict[str, Any]) -> LanguageModel:
    """The model that a file of weights is for."""
    designs = [Design(**words["design"], window=w, positions=w is not None) for w in words["windows"]]
    position = Rotary(designs[0].width_of_head, base=words["base"])
    return LanguageModel(words["vocabulary"], layers=words["layers"], design=designs, position=position)


class LanguageTask:
    """`data` holds the folders that `make data` fetched, sotu and moby-dick; or texts of your own, or is one."""

    name = "language"
    divides = True  # every token has its own answer, so processes can share a text
    recipe = Recipe(steps=STAGES[-1].until, rate=3e-3, warmup=100, betas=(0.9, 0.95), decay=0.05)

    def __init__(self, data: Path) -> None:
        self.data = data

    def words(self) -> dict[str, Any]:
        design = {"width": 256, "heads": 8, "activation": "swiglu", "norm": "rms", "bias": False}
        return {"vocabulary": self.tokens.size, "layers": 4, "design": design, "windows": list(WINDOWS), "base": BASE}

    def model(self) -> nn.Module:
        found = len(self.train_stream), len(self.test_stream)
        if found[0] < LEAST or found[1] <= TESTED_AT_ONCE:
            raise LoadError(
                f"texts must have at least {LEAST} tokens to learn from and {TESTED_AT_ONCE + 1} that are held out; "
                f"got {found[0]} and {found[1]} in {self.data}. Give more text."
            )
        return copying(made(self.words()))

    @cached_property
    def texts(self) -> tuple[list[str], list[str]]:
        """What is trained on, and what is held out."""
        found = list(_texts(self.data))
        drawn = [int(hashlib.sha256(text.encode()).hexdigest(), 16) for text in found]
        kept = [number % HELD_OUT == 0 for number in drawn]
        if not found:
            raise LoadError(f"texts must have words in them; got none in {self.data}. Give other texts.")
        if not any(kept):  # few texts, of which one is kept nevertheless
            kept[drawn.index(min(drawn))] = True
        return (
            [text for text, is_kept in zip(found, kept, strict=True) if not is_kept],
            [text for text, is_kept in zip(found, kept, strict=True) if is_kept],
        )

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.texts).encode()).hexdigest()

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

    def outcome(self, model: nn.Module, step: int, draw: torch.Generator, recipe: Recipe) -> Outcome:
        tokens, targets = self.batch(stage_of(step, recipe.steps), draw)
        asked = model.own(targets) if isinstance(model, Spread) else targets
        return answers(model(tokens), asked, recipe.smoothing, ignore=UNASKED)

    def batch(self, stage: Stage, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Tokens (rows, n), and those that come next."""
        stream, n = self.train_stream, stage.n + 1
        begin = torch.randint(len(stream) - n, (stage.rows,), generator=draw)
        rows = torch.stack([stream[b : b + n] for b in begin.tolist()])
        targets = rows[:, 1:].clone()
        for place, kind in enumerate(torch.rand(stage.rows, generator=draw).tolist()):
            if kind < stage.random:
                rows[place], targets[place] = repeated(self.tokens.size, n, draw)
            elif kind < stage.random + stage.again:
                say_again(rows[place], draw)
                targets[place] = rows[place, 1:]
        return rows[:, :-1], targets

    def test(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, LanguageModel)
        n = TESTED_AT_ONCE
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


def stage_of(step: int, steps: int = STAGES[-1].until) -> Stage:
    """What a step reads. A training of fewer steps has shorter stages, a longer one goes on with the last.

    >>> [(s.rows, s.n) for s in map(stage_of, (0, 799, 800, 807))]
    [(16, 64), (32, 128), (8, 512), (1, 4096)]
    >>> stage_of(60, steps=330) == stage_of(600)
    True
    """
    share = min(1.0, steps / STAGES[-1].until)
    for stage in STAGES[:-1]:
        if step < stage.until * share:
            return stage
    return LONG if step % LONG_EVERY == LONG_EVERY - 1 else STAGES[-1]


def copying(model: LanguageModel) -> LanguageModel:
    """The model, with layers that see everything changed so that they hand on half of what they look at, as it is.

    What a head reads, it writes back in the same directions: W_o = W_v' / 2 with an orthogonal W_v, so that the heads
    together add half of the vectors they see. Trained layers often come close to such products (Trockman and Kolter,
    2023), and to copy a token is what a head has to do once it has found the right one.
    """
    with torch.no_grad():
        for block, design in zip(model.decoder.blocks, model.decoder.designs, strict=True):
            if design.window is None:
                layer: Any = block.self_attn
                width = design.width
                turn = nn.init.orthogonal_(torch.empty(width, width))
                layer.in_proj_weight[-width:] = turn
                layer.out_proj.weight.copy_(turn.mT / 2)
    return model


def repeated(vocabulary: int, n: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """n random tokens that come again and again, after 16 to n / 2 of them; and the n - 1 that come next, of which
    those that come for the first time are not asked for.

    >>> tokens, targets = repeated(4096, 65, torch.Generator().manual_seed(0))
    >>> period = int((targets == UNASKED).sum()) + 1
    >>> torch.equal(targets[period - 1 :], tokens[period:]), torch.equal(tokens[period:], tokens[:-period])
    (True, True)
    """
    period = int(torch.randint(16, n // 2 + 1, (), generator=draw))
    tokens = torch.randint(1, vocabulary, (period,), generator=draw).repeat(-(-n // period))[:n]
    return tokens, tokens[1:].index_fill(0, torch.arange(period - 1), UNASKED)


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
    """Speeches and chapters in a fixed order; or passages of other texts."""
    if any((data / folder).is_dir() for folder in FETCHED):
        for folder in FETCHED:
            yield from map(_read, _paths(data / folder))
    else:
        for path in [data] if data.is_file() else _paths(data):
            yield from passages(_read(path))


def _paths(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.txt"))
    if not found:
        raise LoadError(
            f"the language model learns from texts, *.txt in {folder}; got none. Run make data, or name a text or a "
            "folder of texts with --data."
        )
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf8")
    except UnicodeDecodeError as error:
        raise LoadError(f"texts must be UTF-8; got {path}, which is not at byte {error.start}.") from None
    except OSError as error:
        raise LoadError(f"texts must be files that can be read; got {path}: {error.strerror}.") from None


def passages(text: str, size: int = PASSAGE) -> list[str]:
    """A text cut behind words, in pieces of at least `size` characters but for the last.

    >>> passages("one two three four", size=5)
    ['one two ', 'three ', 'four']
    """
    longest = 100  # letters of a word: some languages leave no space between them
    return re.findall(rf"(?s).{{{size}}}\S{{0,{longest}}}\s*|.+", text)
