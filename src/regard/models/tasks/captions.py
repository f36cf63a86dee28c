"""Pictures of digits, and what they show, in words: "at the top a seven left of a two , at the bottom a pair of ones".

A canvas has four cells, row by row. One to four of them, as often each, have a digit of MNIST, a little off the middle.
The first word says how to read it: across, which goes through the rows, or down, which goes through the columns.
Everything else follows from the canvas: each caption describes one arrangement, which has one caption each way.

    caption    line [, line]             a row if across, a column if down; empty ones are left out
    line       at the top, at the bottom; on the left, on the right: then
               a seven on the left       one digit, and in which of the two cells
               a pair of sevens          twice the same
               a seven left of a two     two digits, across; down it is: above

One image of a digit in ten is held out; canvases are tested that are made of those alone. It is a part of the images
that was not looked at while the recipe was chosen.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import LoadError
from regard.models.multimodal import Describer
from regard.models.tasks.digits import Labelled, moved
from regard.models.train import Outcome, Recipe, answers
from regard.models.vision import ImageEncoder
from regard.nn.block import Design
from regard.nn.generate import generate
from regard.nn.position import Learned

SIDE = 28  # pixels of a digit
CELL = 32  # pixels of a cell
PATCH = 8  # pixels of a patch: 16 patches a cell
DARK, BRIGHT = -0.3, 2.7  # numbers for pixels: about 0 in the mean, and far enough apart to be learned from
SHIFT, TURN, GROW = 2.0, 0.2, 0.1  # what is done to a digit before it is learned from; see `moved`
HELD_OUT, PART = 10, 1  # of so many parts of the images this one is not trained on
BATCH = 64
TESTED = 2000

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
PLURALS = ["zeros", "ones", "twos", "threes", "fours", "fives", "sixes", "sevens", "eights", "nines"]
ROWS, COLUMNS = ("at the top", "at the bottom"), ("on the left", "on the right")
PAD, END = "<pad>", "<end>"
WORDS = [PAD, END, "across", "down", "at", "the", "top", "bottom", "on", "left", "right", ",", "a", "an", "pair", "of"]
WORDS += ["above", *NAMES, *PLURALS]
LONGEST = 21  # words, with how to read and the end


class Word(NamedTuple):
    """A word of a caption, and the cells whose digits it names."""

    text: str
    cells: tuple[int, ...] = ()


class Way(NamedTuple):
    """How a canvas is read: its lines and their cells, where a digit can be in a line, and the words between two."""

    lines: tuple[str, str]
    cells: tuple[tuple[int, int], tuple[int, int]]
    places: tuple[str, str]
    between: str


WAYS = {
    "across": Way(ROWS, ((0, 1), (2, 3)), COLUMNS, "left of"),
    "down": Way(COLUMNS, ((0, 2), (1, 3)), ROWS, "above"),
}


def described(digits: Sequence[int | None], way: str) -> list[Word]:
    """The caption of four cells, row by row; None is an empty one.

    >>> " ".join(word.text for word in described([7, 2, None, 3], "across"))
    'at the top a seven left of a two , at the bottom a three on the right'
    >>> " ".join(word.text for word in described([8, None, 8, 3], "down"))
    'on the left a pair of eights , on the right a three at the bottom'
    """
    chosen = WAYS[way]
    caption: list[Word] = []
    for line, cells in zip(chosen.lines, chosen.cells, strict=True):
        told = _line(digits, cells, chosen)
        if told:
            caption += [*_plain("," if caption else ""), *_plain(line), *told]
    return caption


def _line(digits: Sequence[int | None], cells: tuple[int, int], way: Way) -> list[Word]:
    one, two = (_named(digits[cell], cell) for cell in cells)
    if one and two:
        if digits[cells[0]] == digits[cells[1]]:
            return [*_plain("a pair of"), Word(PLURALS[digits[cells[0]] or 0], cells)]
        return [*one, *_plain(way.between), *two]
    return [*one, *_plain(way.places[0])] if one else [*two, *_plain(way.places[1])] if two else []


def _named(digit: int | None, cell: int) -> list[Word]:
    if digit is None:
        return []
    return [Word("an" if NAMES[digit] == "eight" else "a"), Word(NAMES[digit], (cell,))]


def _plain(text: str) -> list[Word]:
    return [Word(word) for word in text.split()]


@cache
def _places() -> dict[str, int]:
    return {word: place for place, word in enumerate(WORDS)}


def encode(captions: Sequence[Sequence[str]]) -> Tensor:
    """Words as tokens (batch, longest), filled up at the end."""
    place = _places()
    rows = torch.full((len(captions), max(map(len, captions))), place[PAD])
    for row, caption in zip(rows, captions, strict=True):
        row[: len(caption)] = torch.tensor([place[word] for word in caption])
    return rows


def decode(tokens: Sequence[int]) -> str:
    """What was written before the end."""
    words = [WORDS[token] for token in tokens]
    return " ".join(words[: words.index(END)] if END in words else words)


@dataclass(frozen=True, eq=False)
class Canvases:
    """images (batch, 1, height, width) of numbers from DARK to BRIGHT, what lies in the four cells of each, and how
    each is to be read."""

    images: Tensor
    digits: list[list[int | None]]
    ways: list[str]

    @cached_property
    def captions(self) -> list[list[Word]]:
        return [described(digits, way) for digits, way in zip(self.digits, self.ways, strict=True)]

    @cached_property
    def tokens(self) -> Tensor:
        """How to read, the caption and its end, as tokens (batch, longest)."""
        said = [[word.text for word in caption] for caption in self.captions]
        return encode([[way, *words, END] for way, words in zip(self.ways, said, strict=True)])


def drawn(source: Labelled, count: int, draw: torch.Generator, *, turn: float = 0.0, grow: float = 0.0) -> Canvases:
    """New canvases of images from a source."""
    many = torch.randint(1, 5, (count, 1), generator=draw)
    filled = torch.rand(count, 4, generator=draw).argsort(1) < many
    chosen = torch.randint(len(source), (count, 4), generator=draw)
    cells = moved(source.images[chosen.flatten()], CELL, draw, shift=SHIFT, turn=turn, grow=grow)
    cells = cells.view(count, 2, 2, CELL, CELL) * filled.view(count, 2, 2, 1, 1)
    images = DARK + (BRIGHT - DARK) * cells.transpose(2, 3).reshape(count, 1, 2 * CELL, 2 * CELL)
    labels = torch.where(filled, source.digits[chosen], -1).tolist()
    digits = [[None if digit < 0 else digit for digit in row] for row in labels]
    ways = [tuple(WAYS)[place] for place in torch.randint(2, (count,), generator=draw).tolist()]
    return Canvases(images, digits, ways)


def cell_of_patch() -> Tensor:
    """The cell in which each of the patches lies, (patches,), row by row."""
    half = torch.arange(2 * CELL // PATCH) // (CELL // PATCH)
    return (2 * half.unsqueeze(1) + half).flatten()


def looking(model: Describer, canvases: Canvases) -> tuple[Tensor, float]:
    """The share of attention that lies on the cells a word names when it is about to be written.

    For each layer and head (layers, heads), a mean over all words that name a digit; and the share that these cells
    have of the canvas, which is what looking everywhere alike would give.
    """
    named = [(b, i, word.cells) for b, c in enumerate(canvases.captions) for i, word in enumerate(c) if word.cells]
    cell = cell_of_patch()
    on = torch.stack([torch.isin(cell, torch.tensor(cells)).float() for _, _, cells in named])
    # token 0 says how to read, so the word at place i of a caption is written by the token at place i
    row, place = torch.tensor([b for b, _, _ in named]), torch.tensor([i for _, i, _ in named])
    shares = []
    for layer in model.attend(canvases.tokens[:, :-1], canvases.images):
        assert layer.memory is not None
        weights = layer.memory.weights[...][row, :, place]
        shares.append((weights * on.unsqueeze(1)).sum(-1).mean(0))
    return torch.stack(shares), float(on.mean())


def made(words: dict[str, Any]) -> Describer:
    """The model that a file of weights is for."""
    design = Design(**words["design"])
    eye = ImageEncoder(image=(2 * CELL, 2 * CELL), patch=PATCH, channels=1, layers=words["eye_layers"], design=design)
    position = Learned(LONGEST, design.width)
    return Describer(len(WORDS), eye=eye, layers=words["layers"], design=design, position=position)


class CaptionsTask:
    """`data` holds the folder that `make data` fetched: mnist."""

    name = "captions"
    recipe = Recipe(steps=6000, rate=2e-3, warmup=200, decay=0.05)

    def __init__(self, data: Path) -> None:
        self.data = data

    def words(self) -> dict[str, Any]:
        design = {"width": 64, "heads": 4, "hidden": 128}
        return {"layers": 2, "eye_layers": 2, "design": design}

    def model(self) -> nn.Module:
        return made(self.words())

    @cached_property
    def parts(self) -> tuple[Labelled, Labelled]:
        """Digits that are trained on, and those held out."""
        return _mnist(self.data / "mnist").parted(HELD_OUT, PART)

    def outcome(self, model: nn.Module, step: int, draw: torch.Generator, recipe: Recipe) -> Outcome:
        canvases = drawn(self.parts[0], BATCH, draw, turn=TURN, grow=GROW)
        tokens = canvases.tokens
        return answers(model(tokens[:, :-1], canvases.images), tokens[:, 1:], recipe.smoothing, ignore=WORDS.index(PAD))

    def test(self, model: nn.Module) -> dict[str, float]:
        """The share of captions that are right to the last word, of words that are right when those before them are,
        and where the model looks."""
        assert isinstance(model, Describer)
        canvases = drawn(self.parts[1], TESTED, torch.Generator().manual_seed(1))
        looks, by_chance = looking(model, canvases)
        return {
            "exact": _exact(model, canvases),
            "words": _right_words(model, canvases, canvases.images),
            "words_in_the_dark": _right_words(model, canvases, torch.full_like(canvases.images, DARK)),
            "digit_words": _right_words(model, canvases, canvases.images, only=(*NAMES, *PLURALS)),
            "look_by_chance": by_chance,
            **{f"look_{place}": float(share) for place, share in enumerate(looks.mean(-1), 1)},
            **{f"gate_{place}": float(gate) for place, gate in enumerate(model.gates()[:, 0], 1)},
            "tested": float(TESTED),
        }


def _exact(model: Describer, canvases: Canvases) -> float:
    end = WORDS.index(END)
    found = generate(model.seeing(canvases.images), canvases.tokens[:, :1], most=LONGEST - 1, stop=end).tolist()
    right = [[word.text for word in caption] for caption in canvases.captions]
    return sum(decode(row) == " ".join(words) for row, words in zip(found, right, strict=True)) / len(right)


def _right_words(model: Describer, canvases: Canvases, images: Tensor, only: Sequence[str] = ()) -> float:
    """The share of words, or `only` of some, that are found when the ones before them are given."""
    target = canvases.tokens[:, 1:]
    counted = torch.isin(target, encode([only])) if only else target != WORDS.index(PAD)
    right = model(canvases.tokens[:, :-1], images).argmax(-1) == target
    return float(right[counted].float().mean())


def _mnist(folder: Path) -> Labelled:
    """All images of a folder, ten files of one digit each."""
    images = []
    for digit in range(10):
        path = folder / f"{digit}.json"
        if not path.is_file():
            raise LoadError(
                f"captions are learned from digits in {folder}, 0.json to 9.json; got no {path.name}. Run make data, "
                "or name another folder with --data."
            )
        pixels = json.loads(path.read_text(encoding="utf8"))["data"]
        images.append(torch.tensor(pixels, dtype=torch.float32).view(-1, SIDE, SIDE))
    labels = [torch.full((len(part),), digit) for digit, part in enumerate(images)]
    return Labelled(torch.cat(images), torch.cat(labels))
