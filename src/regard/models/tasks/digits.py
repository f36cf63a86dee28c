"""Classification of handwritten digits: the 1797 images of 8 by 8 pixels in scikit-learn.

The images are split into five folds by a hash of their pixels, so folds never change and equal images are in one fold.
The second fold is the test set. The recipe was chosen on the first fold, which is part of the training set. All folds
contain the same thirteen writers.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample

from regard.errors import MissingDependencyError
from regard.models.training import BatchResult, Recipe, classification_result
from regard.models.vision import VisionTransformer
from regard.nn.block import BlockConfig

IMAGE_SIZE = 8  # pixels
MAX_PIXEL_VALUE = 16.0
NUM_FOLDS, TEST_FOLD = 5, 1
BATCH_SIZE = 128
MAX_SHIFT_PIXELS, MAX_ROTATION_RADIANS, MAX_LOG_SCALE = 0.5, 0.1, 0.1  # augmentation; see `random_affine`


@dataclass(frozen=True, eq=False)
class LabeledImages:
    """Images (n, height, width) with values from 0 to 1, and their labels (n,)."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def split(self, num_folds: int, test_fold: int = 0) -> tuple["LabeledImages", "LabeledImages"]:
        """Return the training images and the test images."""
        is_test = torch.tensor([fold_of(image, num_folds) == test_fold for image in self.images])
        return (
            LabeledImages(self.images[~is_test], self.labels[~is_test]),
            LabeledImages(self.images[is_test], self.labels[is_test]),
        )


def fold_of(image: Tensor, num_folds: int) -> int:
    """Return the fold of an image; equal images have the same fold."""
    quantized = (image * 1000).round().to(torch.int16)
    return int(hashlib.sha256(quantized.numpy().tobytes()).hexdigest(), 16) % num_folds


def random_affine(
    images: Tensor,
    size: int,
    generator: torch.Generator,
    *,
    max_shift: float,
    max_rotation: float = 0.0,
    max_log_scale: float = 0.0,
) -> Tensor:
    """Apply random affine transformations to images (n, side, side) and pad them with zeros to (n, size, size).

    Each image is shifted by up to `max_shift` pixels along both axes, rotated by up to `max_rotation` radians, and
    scaled by a factor from e^-max_log_scale to e^max_log_scale.

    >>> image = torch.zeros(1, 4, 4)
    >>> image[0, 1, 2] = 1.0
    >>> random_affine(image, 6, torch.Generator(), max_shift=0.0).nonzero().tolist()
    [[0, 2, 3]]
    """
    n, side = len(images), images.shape[-1]
    uniform = 2 * torch.rand(n, 4, generator=generator) - 1
    angle, scale = max_rotation * uniform[:, 0], torch.exp(max_log_scale * uniform[:, 1]) * size / side
    # theta maps output coordinates to input coordinates; both range from -1 to 1
    rotation = torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos()), dim=-1).view(n, 2, 2)
    shift = max_shift * uniform[:, 2:] * 2 / side
    theta = torch.cat((rotation * scale.view(n, 1, 1), shift.unsqueeze(-1)), dim=-1)
    grid = affine_grid(theta, [n, 1, size, size], align_corners=False)
    return grid_sample(images.unsqueeze(1), grid, align_corners=False).squeeze(1)


def build_model(config: dict[str, Any]) -> VisionTransformer:
    """Return an untrained model from a saved configuration."""
    return VisionTransformer(
        image_size=(IMAGE_SIZE, IMAGE_SIZE),
        patch_size=config["patch_size"],
        num_channels=1,
        num_classes=10,
        num_layers=config["num_layers"],
        block_config=BlockConfig(**config["block_config"]),
    )


class DigitsTask:
    """Classification of handwritten digits; the data is part of scikit-learn."""

    name = "digits"
    recipe = Recipe(steps=3000, lr=2e-3, warmup_steps=100, label_smoothing=0.1, weight_decay=0.1)

    def __init__(self, data: Path | None = None) -> None:
        del data

    def model_config(self) -> dict[str, Any]:
        block_config = {"embed_dim": 64, "num_heads": 4, "ffn_dim": 128, "dropout": 0.1}
        return {"patch_size": 2, "num_layers": 4, "block_config": block_config}

    def untrained_model(self) -> nn.Module:
        return build_model(self.model_config())

    @cached_property
    def splits(self) -> tuple[LabeledImages, LabeledImages]:
        """The training images and the held-out images."""
        try:
            from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # it has no annotations
        except ImportError:
            raise MissingDependencyError(
                "the digits task needs scikit-learn, which is not installed. Use pip install 'regard[train]'."
            ) from None
        dataset = load_digits()
        images = torch.tensor(dataset.images, dtype=torch.float32) / MAX_PIXEL_VALUE
        return LabeledImages(images, torch.tensor(dataset.target)).split(NUM_FOLDS, TEST_FOLD)

    def training_step(self, model: nn.Module, step: int, generator: torch.Generator, recipe: Recipe) -> BatchResult:
        images, digits = self.batch(BATCH_SIZE, generator)
        return classification_result(model(images), digits, recipe.label_smoothing)

    def batch(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return augmented images (batch_size, 1, 8, 8) and their labels."""
        train = self.splits[0]
        indices = torch.randint(len(train), (batch_size,), generator=generator)
        images = random_affine(
            train.images[indices],
            IMAGE_SIZE,
            generator,
            max_shift=MAX_SHIFT_PIXELS,
            max_rotation=MAX_ROTATION_RADIANS,
            max_log_scale=MAX_LOG_SCALE,
        )
        return images.unsqueeze(1), train.labels[indices]

    def test(self, model: nn.Module) -> dict[str, float]:
        """Return the accuracy on held-out images, and the accuracy of a logistic regression as a baseline."""
        test = self.splits[1]
        result = classification_result(model(test.images.unsqueeze(1)), test.labels, 0.0)
        return {
            "accuracy": result.num_correct / result.num_targets,
            "num_wrong": float(result.num_targets - result.num_correct),
            "logistic_regression": self.logistic_regression_accuracy(),
            "num_tested": float(result.num_targets),
        }

    def logistic_regression_accuracy(self) -> float:
        """Return the accuracy of scikit-learn's logistic regression on held-out images."""
        from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]  # it has no annotations

        train, test = (LabeledImages(part.images.flatten(1), part.labels) for part in self.splits)
        regression = LogisticRegression(max_iter=2000).fit(train.images.numpy(), train.labels.numpy())
        return float(regression.score(test.images.numpy(), test.labels.numpy()))
