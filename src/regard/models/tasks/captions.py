"""Captioning of images of digits, such as "at the top a seven left of a two , at the bottom a pair of ones".

A canvas has four cells in two rows. One to four cells, with equal probability, hold an MNIST digit at a slightly random
position. The first token of a caption is the reading order: across (by rows) or down (by columns). It determines the
rest of the caption: canvas and reading order have exactly one caption.

    caption    line [, line]                     a line is a row (across) or a column (down); empty lines are omitted
    line       at the top | at the bottom        then one of (for down: on the left | on the right)
               a seven on the left               one digit and its cell
               a pair of sevens                  two equal digits
               a seven left of a two             two different digits (for down: above)

One digit image in ten is held out; test canvases contain only held-out images. The recipe was chosen without them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.cache import memoize
from regard.errors import LoadError
from regard.models.multimodal import ImageCaptioner
from regard.models.tasks.digits import LabeledImages, random_affine
from regard.models.training import BatchResult, Recipe, classification_result
from regard.models.vision import ImageEncoder
from regard.nn.block import BlockConfig
from regard.nn.generation import generate
from regard.nn.position_encoding import LearnedPositionalEmbedding

DIGIT_SIZE = 28  # pixels
CELL_SIZE = 32  # pixels
PATCH_SIZE = 8  # pixels: 16 patches per cell
BACKGROUND_VALUE, FOREGROUND_VALUE = -0.3, 2.7  # pixel values with a mean of about 0
MAX_SHIFT_PIXELS, MAX_ROTATION_RADIANS, MAX_LOG_SCALE = 2.0, 0.2, 0.1  # augmentation; see `random_affine`
NUM_FOLDS, TEST_FOLD = 10, 1
BATCH_SIZE = 64
NUM_TEST_CANVASES = 2000

DIGIT_NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
DIGIT_PLURALS = ["zeros", "ones", "twos", "threes", "fours", "fives", "sixes", "sevens", "eights", "nines"]
ROW_PHRASES, COLUMN_PHRASES = ("at the top", "at the bottom"), ("on the left", "on the right")
PAD, END = "<pad>", "<end>"
VOCABULARY = [
    PAD,
    END,
    "across",
    "down",
    "at",
    "the",
    "top",
    "bottom",
    "on",
    "left",
    "right",
    ",",
    "a",
    "an",
    "pair",
    "of",
]
VOCABULARY += ["above", *DIGIT_NAMES, *DIGIT_PLURALS]
MAX_CAPTION_TOKENS = 21  # including the reading order and END


class GroundedWord(NamedTuple):
    """A word of a caption, and the cells whose digits it names."""

    text: str
    cells: tuple[int, ...] = ()


class ReadingOrder(NamedTuple):
    """The phrases and cells of the two lines, the phrases of the cells in a line, and the separator of two digits."""

    line_phrases: tuple[str, str]
    cells: tuple[tuple[int, int], tuple[int, int]]
    cell_phrases: tuple[str, str]
    separator: str


READING_ORDERS = {
    "across": ReadingOrder(ROW_PHRASES, ((0, 1), (2, 3)), COLUMN_PHRASES, "left of"),
    "down": ReadingOrder(COLUMN_PHRASES, ((0, 2), (1, 3)), ROW_PHRASES, "above"),
}


def make_caption(digits: Sequence[int | None], reading_order: str) -> list[GroundedWord]:
    """Return the caption of four cells in row-major order; None is an empty cell.

    >>> " ".join(word.text for word in make_caption([7, 2, None, 3], "across"))
    'at the top a seven left of a two , at the bottom a three on the right'
    >>> " ".join(word.text for word in make_caption([8, None, 8, 3], "down"))
    'on the left a pair of eights , on the right a three at the bottom'
    """
    order = READING_ORDERS[reading_order]
    caption: list[GroundedWord] = []
    for phrase, cells in zip(order.line_phrases, order.cells, strict=True):
        words = _line_words(digits, cells, order)
        if words:
            caption += [*_words("," if caption else ""), *_words(phrase), *words]
    return caption


def _line_words(
    digits: Sequence[int | None], cells: tuple[int, int], reading_order: ReadingOrder
) -> list[GroundedWord]:
    first, second = (_digit_words(digits[cell], cell) for cell in cells)
    if first and second:
        if digits[cells[0]] == digits[cells[1]]:
            return [*_words("a pair of"), GroundedWord(DIGIT_PLURALS[digits[cells[0]] or 0], cells)]
        return [*first, *_words(reading_order.separator), *second]
    if first:
        return [*first, *_words(reading_order.cell_phrases[0])]
    if second:
        return [*second, *_words(reading_order.cell_phrases[1])]
    return []


def _digit_words(digit: int | None, cell: int) -> list[GroundedWord]:
    if digit is None:
        return []
    return [GroundedWord("an" if DIGIT_NAMES[digit] == "eight" else "a"), GroundedWord(DIGIT_NAMES[digit], (cell,))]


def _words(text: str) -> list[GroundedWord]:
    return [GroundedWord(word) for word in text.split()]


@memoize()
def _token_ids() -> dict[str, int]:
    return {word: index for index, word in enumerate(VOCABULARY)}


def encode(captions: Sequence[Sequence[str]]) -> Tensor:
    """Return the tokens (batch, n) of captions, padded at the end."""
    ids = _token_ids()
    tokens = torch.full((len(captions), max(map(len, captions))), ids[PAD])
    for row, caption in zip(tokens, captions, strict=True):
        row[: len(caption)] = torch.tensor([ids[word] for word in caption])
    return tokens


def decode(tokens: Sequence[int]) -> str:
    """Return the text of tokens up to END."""
    words = [VOCABULARY[token] for token in tokens]
    return " ".join(words[: words.index(END)] if END in words else words)


@dataclass(frozen=True, eq=False)
class CanvasBatch:
    """A batch of canvases: images (batch, 1, height, width), digits of the cells (None: empty) and reading orders."""

    images: Tensor
    digits: list[list[int | None]]
    reading_orders: list[str]

    @cached_property
    def captions(self) -> list[list[GroundedWord]]:
        """The captions, without reading order and END."""
        return [make_caption(digits, order) for digits, order in zip(self.digits, self.reading_orders, strict=True)]

    @cached_property
    def tokens(self) -> Tensor:
        """The tokens (batch, n) of reading order, caption and END."""
        texts = [[word.text for word in caption] for caption in self.captions]
        return encode([[order, *words, END] for order, words in zip(self.reading_orders, texts, strict=True)])


def sample_canvases(
    source: LabeledImages,
    count: int,
    generator: torch.Generator,
    *,
    max_rotation: float = 0.0,
    max_log_scale: float = 0.0,
) -> CanvasBatch:
    """Return `count` random canvases with digits from `source`; see `random_affine` for the other arguments."""
    num_digits = torch.randint(1, 5, (count, 1), generator=generator)
    is_filled = torch.rand(count, 4, generator=generator).argsort(1) < num_digits
    indices = torch.randint(len(source), (count, 4), generator=generator)
    cells = random_affine(
        source.images[indices.flatten()],
        CELL_SIZE,
        generator,
        max_shift=MAX_SHIFT_PIXELS,
        max_rotation=max_rotation,
        max_log_scale=max_log_scale,
    )
    cells = cells.view(count, 2, 2, CELL_SIZE, CELL_SIZE) * is_filled.view(count, 2, 2, 1, 1)
    images = BACKGROUND_VALUE + (FOREGROUND_VALUE - BACKGROUND_VALUE) * cells.transpose(2, 3).reshape(
        count, 1, 2 * CELL_SIZE, 2 * CELL_SIZE
    )
    labels = torch.where(is_filled, source.labels[indices], -1).tolist()
    digits = [[None if digit < 0 else digit for digit in row] for row in labels]
    reading_orders = [tuple(READING_ORDERS)[i] for i in torch.randint(2, (count,), generator=generator).tolist()]
    return CanvasBatch(images, digits, reading_orders)


def cell_of_patch() -> Tensor:
    """Return the cell index of each patch, (patches,), in row-major order."""
    half = torch.arange(2 * CELL_SIZE // PATCH_SIZE) // (CELL_SIZE // PATCH_SIZE)
    return (2 * half.unsqueeze(1) + half).flatten()


def attention_on_named_cells(model: ImageCaptioner, canvases: CanvasBatch) -> tuple[Tensor, float]:
    """Return the cross-attention mass on the cells that a word names, at the step that generates the word.

    The first result (layers, heads) is the mean over all words that name a digit. The second is the fraction of the
    canvas in these cells, which is the mass of uniform attention.
    """
    digit_words = [
        (b, i, word.cells)
        for b, caption in enumerate(canvases.captions)
        for i, word in enumerate(caption)
        if word.cells
    ]
    cell = cell_of_patch()
    is_named = torch.stack([torch.isin(cell, torch.tensor(cells)).float() for _, _, cells in digit_words])
    # token 0 is the reading order, so the token at position i generates word i of the caption
    row, position = torch.tensor([b for b, _, _ in digit_words]), torch.tensor([i for _, i, _ in digit_words])
    mass = []
    for layer in model.attention_with_weights(canvases.tokens[:, :-1], canvases.images):
        assert layer.cross_attention is not None
        weights = layer.cross_attention.weights[...][row, :, position]
        mass.append((weights * is_named.unsqueeze(1)).sum(-1).mean(0))
    return torch.stack(mass), float(is_named.mean())


def build_model(config: dict[str, Any]) -> ImageCaptioner:
    """Return an untrained model from a saved configuration."""
    block_config = BlockConfig(**config["block_config"])
    vision_encoder = ImageEncoder(
        image_size=(2 * CELL_SIZE, 2 * CELL_SIZE),
        patch_size=PATCH_SIZE,
        num_channels=1,
        num_layers=config["num_vision_layers"],
        block_config=block_config,
    )
    return ImageCaptioner(
        len(VOCABULARY),
        vision_encoder=vision_encoder,
        num_layers=config["num_layers"],
        block_config=block_config,
        position_encoding=LearnedPositionalEmbedding(MAX_CAPTION_TOKENS, block_config.embed_dim),
    )


class CaptionsTask:
    """Captioning of images of digits. `data` holds the folder mnist from `make data`."""

    name = "captions"
    recipe = Recipe(steps=6000, lr=2e-3, warmup_steps=200, weight_decay=0.05)

    def __init__(self, data: Path) -> None:
        self.data = data

    def model_config(self) -> dict[str, Any]:
        block_config = {"embed_dim": 64, "num_heads": 4, "ffn_dim": 128}
        return {"num_layers": 2, "num_vision_layers": 2, "block_config": block_config}

    def untrained_model(self) -> nn.Module:
        return build_model(self.model_config())

    @cached_property
    def splits(self) -> tuple[LabeledImages, LabeledImages]:
        """The training digits and the held-out digits."""
        return _load_mnist(self.data / "mnist").split(NUM_FOLDS, TEST_FOLD)

    def training_step(self, model: nn.Module, step: int, generator: torch.Generator, recipe: Recipe) -> BatchResult:
        canvases = sample_canvases(
            self.splits[0], BATCH_SIZE, generator, max_rotation=MAX_ROTATION_RADIANS, max_log_scale=MAX_LOG_SCALE
        )
        tokens = canvases.tokens
        return classification_result(
            model(tokens[:, :-1], canvases.images),
            tokens[:, 1:],
            recipe.label_smoothing,
            ignore_index=VOCABULARY.index(PAD),
        )

    def test(self, model: nn.Module) -> dict[str, float]:
        """Return the exact match of captions, the accuracy of words, and the cross-attention on named cells."""
        assert isinstance(model, ImageCaptioner)
        canvases = sample_canvases(self.splits[1], NUM_TEST_CANVASES, torch.Generator().manual_seed(1))
        mass, uniform_mass = attention_on_named_cells(model, canvases)
        blank_images = torch.full_like(canvases.images, BACKGROUND_VALUE)
        return {
            "exact_match": _exact_match(model, canvases),
            "word_accuracy": _word_accuracy(model, canvases, canvases.images),
            "word_accuracy_without_image": _word_accuracy(model, canvases, blank_images),
            "digit_word_accuracy": _word_accuracy(
                model, canvases, canvases.images, counted_words=(*DIGIT_NAMES, *DIGIT_PLURALS)
            ),
            "cross_attention_by_chance": uniform_mass,
            **{f"cross_attention_on_named_cells_{layer}": float(m) for layer, m in enumerate(mass.mean(-1), 1)},
            **{f"gate_{layer}": float(gate) for layer, gate in enumerate(model.gates()[:, 0], 1)},
            "num_tested": float(NUM_TEST_CANVASES),
        }


def _exact_match(model: ImageCaptioner, canvases: CanvasBatch) -> float:
    outputs = generate(
        model.encode_images(canvases.images),
        canvases.tokens[:, :1],
        max_new_tokens=MAX_CAPTION_TOKENS - 1,
        eos_token_id=VOCABULARY.index(END),
    ).tolist()
    expected = [" ".join(word.text for word in caption) for caption in canvases.captions]
    return sum(decode(output) == text for output, text in zip(outputs, expected, strict=True)) / len(expected)


def _word_accuracy(
    model: ImageCaptioner, canvases: CanvasBatch, images: Tensor, counted_words: Sequence[str] = ()
) -> float:
    """Return the accuracy of words given the correct words before them; only `counted_words` count, if any."""
    target = canvases.tokens[:, 1:]
    is_counted = torch.isin(target, encode([counted_words])) if counted_words else target != VOCABULARY.index(PAD)
    is_correct = model(canvases.tokens[:, :-1], images).argmax(-1) == target
    return float(is_correct[is_counted].float().mean())


def _load_mnist(folder: Path) -> LabeledImages:
    """Load all images of a folder with ten JSON files, one per digit."""
    images = []
    for digit in range(10):
        path = folder / f"{digit}.json"
        if not path.is_file():
            raise LoadError(
                f"the captions task needs 0.json to 9.json in {folder}; got no {path.name}. Run make data, or pass "
                "another folder with --data."
            )
        pixels = json.loads(path.read_text(encoding="utf8"))["data"]
        images.append(torch.tensor(pixels, dtype=torch.float32).view(-1, DIGIT_SIZE, DIGIT_SIZE))
    labels = [torch.full((len(part),), digit) for digit, part in enumerate(images)]
    return LabeledImages(torch.cat(images), torch.cat(labels))
