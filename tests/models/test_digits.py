"""The digits task: held-out images, random affine maps, and training."""

import sys

import pytest
import torch

from regard.errors import MissingDependencyError
from regard.models.tasks.digits import BATCH_SIZE, NUM_FOLDS, TEST_FOLD, DigitsTask, fold_of, random_affine
from regard.models.training import Trainer, override_recipe


@pytest.fixture(scope="module")
def task() -> DigitsTask:
    return DigitsTask()


def test_a_fifth_of_the_images_is_held_out(task: DigitsTask) -> None:
    train, test = task.splits
    assert (len(train), len(test)) == (1443, 354)
    train_images, test_images = ({image.numpy().tobytes() for image in split.images} for split in (train, test))
    assert not train_images & test_images
    test_fraction = test.labels.bincount(minlength=10) / (test.labels.bincount(minlength=10) + train.labels.bincount())
    assert bool(((test_fraction > 0.1) & (test_fraction < 0.3)).all())


def test_the_fold_of_an_image_depends_only_on_its_pixels(task: DigitsTask) -> None:
    train, test = task.splits
    assert all(fold_of(image.clone(), NUM_FOLDS) == TEST_FOLD for image in test.images)
    assert not any(fold_of(image.clone(), NUM_FOLDS) == TEST_FOLD for image in train.images)


def test_images_range_from_0_to_1_and_match_their_labels(task: DigitsTask) -> None:
    train, _ = task.splits
    assert train.images.shape[1:] == (8, 8)
    assert float(train.images.min()) == 0.0
    assert float(train.images.max()) == 1.0
    middle = train.images[:, 2:6, 3:5].mean((1, 2))
    assert float(middle[train.labels == 1].mean()) > 2 * float(middle[train.labels == 0].mean())  # a hole in a zero


def test_an_affine_map_without_randomness_is_the_identity() -> None:
    images = torch.rand(3, 8, 8)
    torch.testing.assert_close(random_affine(images, 8, torch.Generator(), max_shift=0.0), images, rtol=0, atol=1e-6)


def test_shifts_are_at_most_max_shift() -> None:
    dot = torch.zeros(500, 9, 9)
    dot[:, 4, 4] = 1.0
    shifted = random_affine(dot, 13, torch.Generator().manual_seed(0), max_shift=2.0)
    torch.testing.assert_close(shifted.sum((1, 2)), torch.ones(500), rtol=0, atol=1e-4)
    coordinates = torch.arange(13.0)
    vertical, horizontal = (shifted.sum(2) @ coordinates) - 6, (shifted.sum(1) @ coordinates) - 6
    for shift in (vertical, horizontal):
        assert 1.8 < float(shift.max()) <= 2.001
        assert -2.001 <= float(shift.min()) < -1.8
    assert abs(float(torch.corrcoef(torch.stack((vertical, horizontal)))[0, 1])) < 0.2  # independent


def test_rotations_and_scales_are_within_their_limits() -> None:
    square = torch.zeros(200, 21, 21)
    square[:, 8:13, 8:13] = 1.0
    areas = random_affine(square, 21, torch.Generator().manual_seed(0), max_shift=0.0, max_log_scale=0.3).sum((1, 2))
    assert 25 * 0.5 < float(areas.min()) < 25 * 0.6  # e^-0.6 is 0.55
    assert 25 * 1.7 < float(areas.max()) < 25 * 1.9  # e^0.6 is 1.82
    bar = torch.zeros(200, 21, 21)
    bar[:, 10, 4:17] = 1.0
    rotated = random_affine(bar, 21, torch.Generator().manual_seed(0), max_shift=0.0, max_rotation=0.5)
    x = torch.arange(21.0) - 10
    slopes = torch.einsum("nij,i,j->n", rotated, x, x) / torch.einsum("nij,j->n", rotated, x * x)
    assert 0.45 < float(slopes.max()) < 0.56  # tan 0.5 is 0.546
    assert -0.56 < float(slopes.min()) < -0.45


def test_batches_depend_only_on_the_generator(task: DigitsTask) -> None:
    first, second, other = (task.batch(BATCH_SIZE, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], other[0])
    assert first[0].shape == (BATCH_SIZE, 1, 8, 8)


@pytest.mark.long
def test_a_short_training_lowers_the_loss(task: DigitsTask) -> None:
    trainer = Trainer(task, override_recipe(task.recipe, {"steps": 120}))
    reports = [trainer.advance() for _ in range(120)]
    first, last = (sum(report.loss for report in group) / 10 for group in (reports[:10], reports[-10:]))
    assert first > 2.0
    assert last < 1.6
    results = trainer.test()
    assert results["accuracy"] > 0.6
    assert results["num_wrong"] == round((1 - results["accuracy"]) * results["num_tested"])


def test_the_logistic_regression_baseline_is_strong(task: DigitsTask) -> None:
    assert 0.93 < task.logistic_regression_accuracy() < 0.99


def test_missing_scikit_learn_raises_with_the_command_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingDependencyError, match=r"needs scikit-learn.*Use pip install 'regard\[train\]'"):
        _ = DigitsTask().splits


@pytest.mark.long
def test_the_recipe_reaches_97_percent_accuracy(task: DigitsTask) -> None:
    trainer = Trainer(task)
    while not trainer.is_done:
        trainer.advance()
    results = trainer.test()
    assert results["accuracy"] >= 0.97
    assert results["accuracy"] > results["logistic_regression"]
