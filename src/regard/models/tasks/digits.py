"""Handwritten digits: the 1797 images of 8 by 8 pixels that come with scikit-learn, and which digit each of them shows.

The images are in five parts. Which part one is in follows from its pixels alone, so parts are the same everywhere and
for ever, and equal images are never apart. The second part is held out for the test. The first was looked at while the
recipe was chosen, and is trained on since with the other three. All parts have the same thirteen writers.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample

from regard.errors import MissingError
from regard.models.train import Outcome, Recipe, answers
from regard.models.vision import VisionTransformer
from regard.nn.block import Design

SIDE = 8  # pixels
BRIGHTEST = 16.0
HELD_OUT, PART = 5, 1  # of so many parts this one is not trained on
BATCH = 128
SHIFT, TURN, GROW = 0.5, 0.1, 0.1  # what is done to an image before it is learned from; see `moved`


@dataclass(frozen=True, eq=False)
class Labelled:
    """images (n, height, width) of numbers from 0 to 1, and the digit (n,) that each shows."""

    images: Tensor
    digits: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def parted(self, parts: int, held_out: int = 0) -> tuple["Labelled", "Labelled"]:
        """Those that are trained on, and one part of so many, which are not."""
        kept = torch.tensor([part_of(image, parts) == held_out for image in self.images])
        return Labelled(self.images[~kept], self.digits[~kept]), Labelled(self.images[kept], self.digits[kept])


def part_of(image: Tensor, parts: int) -> int:
    """Which of so many parts an image is in; equal images are treated alike."""
    levels = (image * 1000).round().to(torch.int16)
    return int(hashlib.sha256(levels.numpy().tobytes()).hexdigest(), 16) % parts


def moved(
    images: Tensor, size: int, draw: torch.Generator, *, shift: float, turn: float = 0.0, grow: float = 0.0
) -> Tensor:
    """Each of the square images (n, side, side) on a dark square (n, size, size), drawn anew.

    It lies up to `shift` pixels off the middle, both ways, is turned by up to `turn` radians and is larger or smaller
    by up to a factor of e^grow.

    >>> image = torch.zeros(1, 4, 4)
    >>> image[0, 1, 2] = 1.0
    >>> moved(image, 6, torch.Generator(), shift=0.0).nonzero().tolist()
    [[0, 2, 3]]
    """
    n, side = len(images), images.shape[-1]
    drawn = 2 * torch.rand(n, 4, generator=draw) - 1
    angle, zoom = turn * drawn[:, 0], torch.exp(grow * drawn[:, 1]) * size / side
    # where a pixel of the square comes from in the image, both counted from -1 to 1
    turned = torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos()), dim=-1).view(n, 2, 2)
    off = shift * drawn[:, 2:] * 2 / side
    where = torch.cat((turned * zoom.view(n, 1, 1), off.unsqueeze(-1)), dim=-1)
    grid = affine_grid(where, [n, 1, size, size], align_corners=False)
    return grid_sample(images.unsqueeze(1), grid, align_corners=False).squeeze(1)


def made(words: dict[str, Any]) -> VisionTransformer:
    """The model that a file of weights is for."""
    return VisionTransformer(
        image=(SIDE, SIDE),
        patch=words["patch"],
        channels=1,
        classes=10,
        layers=words["layers"],
        design=Design(**words["design"]),
    )


class DigitsTask:
    """Needs no data but scikit-learn's."""

    name = "digits"
    recipe = Recipe(steps=3000, rate=2e-3, warmup=100, smoothing=0.1, decay=0.1)

    def __init__(self, data: Path | None = None) -> None:
        del data

    def words(self) -> dict[str, Any]:
        design = {"width": 64, "heads": 4, "hidden": 128, "dropout": 0.1}
        return {"patch": 2, "layers": 4, "design": design}

    def model(self) -> nn.Module:
        return made(self.words())

    @cached_property
    def parts(self) -> tuple[Labelled, Labelled]:
        """What is trained on, and what is held out."""
        try:
            from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # it has no annotations
        except ImportError:
            raise MissingError(
                "the digits come with scikit-learn, which is not installed. Use pip install regard[train]."
            ) from None
        found = load_digits()
        images = torch.tensor(found.images, dtype=torch.float32) / BRIGHTEST
        return Labelled(images, torch.tensor(found.target)).parted(HELD_OUT, PART)

    def outcome(self, model: nn.Module, step: int, draw: torch.Generator, recipe: Recipe) -> Outcome:
        images, digits = self.batch(BATCH, draw)
        return answers(model(images), digits, recipe.smoothing)

    def batch(self, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images (count, 1, 8, 8), each a little moved, and what they show."""
        train = self.parts[0]
        chosen = torch.randint(len(train), (count,), generator=draw)
        images = moved(train.images[chosen], SIDE, draw, shift=SHIFT, turn=TURN, grow=GROW)
        return images.unsqueeze(1), train.digits[chosen]

    def test(self, model: nn.Module) -> dict[str, float]:
        """The share of held-out images that are told, and that of a logistic regression on the same pixels."""
        held = self.parts[1]
        found = answers(model(held.images.unsqueeze(1)), held.digits, 0.0)
        return {
            "accuracy": found.right / found.of,
            "wrong": float(found.of - found.right),
            "logistic_regression": self.logistic_regression(),
            "tested": float(found.of),
        }

    def logistic_regression(self) -> float:
        """The share of held-out images that scikit-learn's logistic regression tells, from the same pixels."""
        from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]  # it has no annotations

        train, held = (Labelled(part.images.flatten(1), part.digits) for part in self.parts)
        fitted = LogisticRegression(max_iter=2000).fit(train.images.numpy(), train.digits.numpy())
        return float(fitted.score(held.images.numpy(), held.digits.numpy()))
