"""Handwritten digits: which are held out, how they are moved, and that they are learned."""

import sys

import pytest
import torch

from regard.errors import MissingError
from regard.models.tasks.digits import BATCH, HELD_OUT, PART, DigitsTask, moved, part_of
from regard.models.train import Training, changed


@pytest.fixture(scope="module")
def task() -> DigitsTask:
    return DigitsTask()


def test_a_fifth_is_held_out_and_no_image_is_on_both_sides(task: DigitsTask) -> None:
    train, held = task.parts
    assert (len(train), len(held)) == (1443, 354)
    both = [{image.numpy().tobytes() for image in part.images} for part in (train, held)]
    assert not both[0] & both[1]
    shares = held.digits.bincount(minlength=10) / (held.digits.bincount(minlength=10) + train.digits.bincount())
    assert bool(((shares > 0.1) & (shares < 0.3)).all())


def test_whether_an_image_is_held_out_follows_from_its_pixels(task: DigitsTask) -> None:
    train, held = task.parts
    assert all(part_of(image.clone(), HELD_OUT) == PART for image in held.images)
    assert not any(part_of(image.clone(), HELD_OUT) == PART for image in train.images)


def test_images_are_numbers_from_0_to_1_with_their_digits(task: DigitsTask) -> None:
    train, _ = task.parts
    assert train.images.shape[1:] == (8, 8)
    assert float(train.images.min()) == 0.0
    assert float(train.images.max()) == 1.0
    middle = train.images[:, 2:6, 3:5].mean((1, 2))
    assert float(middle[train.digits == 1].mean()) > 2 * float(middle[train.digits == 0].mean())  # a hole in a zero


def test_what_is_not_moved_stays_as_it_is() -> None:
    images = torch.rand(3, 8, 8)
    torch.testing.assert_close(moved(images, 8, torch.Generator(), shift=0.0), images, rtol=0, atol=1e-6)


def test_a_shift_moves_the_middle_by_at_most_so_much() -> None:
    spot = torch.zeros(500, 9, 9)
    spot[:, 4, 4] = 1.0
    found = moved(spot, 13, torch.Generator().manual_seed(0), shift=2.0)
    torch.testing.assert_close(found.sum((1, 2)), torch.ones(500), rtol=0, atol=1e-4)
    at = torch.arange(13.0)
    down, across = (found.sum(2) @ at) - 6, (found.sum(1) @ at) - 6
    for off in (down, across):
        assert 1.8 < float(off.max()) <= 2.001
        assert -2.001 <= float(off.min()) < -1.8
    assert abs(float(torch.corrcoef(torch.stack((down, across)))[0, 1])) < 0.2  # the two ways are drawn apart


def test_turning_and_growing_keep_the_middle_and_change_the_size() -> None:
    square = torch.zeros(200, 21, 21)
    square[:, 8:13, 8:13] = 1.0
    grown = moved(square, 21, torch.Generator().manual_seed(0), shift=0.0, grow=0.3).sum((1, 2))
    assert 25 * 0.5 < float(grown.min()) < 25 * 0.6  # e^-0.6 is 0.55
    assert 25 * 1.7 < float(grown.max()) < 25 * 1.9  # e^0.6 is 1.82
    bar = torch.zeros(200, 21, 21)
    bar[:, 10, 4:17] = 1.0
    turned = moved(bar, 21, torch.Generator().manual_seed(0), shift=0.0, turn=0.5)
    at = torch.arange(21.0) - 10
    mixed = torch.einsum("nij,i,j->n", turned, at, at) / torch.einsum("nij,j->n", turned, at * at)
    assert 0.45 < float(mixed.max()) < 0.56  # tan 0.5 is 0.546
    assert -0.56 < float(mixed.min()) < -0.45


def test_a_batch_follows_from_its_draw_alone(task: DigitsTask) -> None:
    one, again, other = (task.batch(BATCH, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert torch.equal(one[0], again[0])
    assert torch.equal(one[1], again[1])
    assert not torch.equal(one[0], other[0])
    assert one[0].shape == (BATCH, 1, 8, 8)


def test_a_short_training_lowers_the_loss_and_finds_many_digits(task: DigitsTask) -> None:
    training = Training(task, changed(task.recipe, {"steps": 120}))
    reports = [training.advance() for _ in range(120)]
    first, last = (sum(r.loss for r in part) / 10 for part in (reports[:10], reports[-10:]))
    assert first > 2.0
    assert last < 1.6
    results = training.test()
    assert results["accuracy"] > 0.6
    assert results["wrong"] == round((1 - results["accuracy"]) * results["tested"])


def test_the_baseline_is_a_real_one(task: DigitsTask) -> None:
    assert 0.93 < task.logistic_regression() < 0.99


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingError, match=r"pip install regard\[train\]"):
        _ = DigitsTask().parts


@pytest.mark.long
def test_the_recipe_tells_97_of_100_digits(task: DigitsTask) -> None:
    training = Training(task)
    while not training.is_over:
        training.advance()
    results = training.test()
    assert results["accuracy"] >= 0.97
    assert results["accuracy"] > results["logistic_regression"]
