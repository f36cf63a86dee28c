"""The vision transformer: patches, the token that gathers them, and positions."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from regard.errors import SpecError
from regard.models.vision import VisionTransformer
from regard.nn import Design

CLOSE = dict(rtol=1e-4, atol=1e-5)  # float32 sums in another order


def _model(image: tuple[int, int] = (8, 8), patch: int = 2, layers: int = 2) -> VisionTransformer:
    model = VisionTransformer(
        image=image, patch=patch, channels=3, classes=5, layers=layers, design=Design(16, heads=2)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def test_a_patch_becomes_a_token_by_one_matrix() -> None:
    model = _model(image=(8, 12), patch=4)
    images = torch.randn(2, 3, 8, 12)
    cut = unfold(images, 4, stride=4).mT  # row by row, as (channel, height, width)
    expected = cut @ model.patches.weight.flatten(1).mT + model.patches.bias + model.position[1:]
    tokens = model.tokens(images)
    assert tokens.shape == (2, 7, 16)
    torch.testing.assert_close(tokens[:, 1:], expected, **CLOSE)
    torch.testing.assert_close(tokens[1, 0], model.gathering[0] + model.position[0])


def test_the_gathering_token_sees_every_pixel() -> None:
    model = _model(layers=1)
    images = torch.randn(1, 3, 8, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(images)[0, 0], images)
    assert bool((gradient != 0).all())
    own = model.attend(images)[0].own.weights[0, :, 0]
    assert own.shape == (2, 17)
    assert bool((own > 0).all())
    torch.testing.assert_close(own.sum(-1), torch.ones(2))


def test_a_class_is_read_from_the_gathering_token_alone() -> None:
    model = _model()
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(model(images), model.head(model.states(images)[:, 0]))


def _rearranged(images: Tensor, order: Tensor, patch: int) -> Tensor:
    """The same patches in other places."""
    cut = unfold(images, patch, stride=patch)[:, :, order]
    return nn.functional.fold(cut, images.shape[-2:], patch, stride=patch)


def test_patches_that_change_places_with_their_positions_change_nothing() -> None:
    model = _model()
    images, order = torch.randn(3, 3, 8, 8), torch.randperm(16)
    before = model(images).detach()
    other = _rearranged(images, order, 2)
    assert not torch.allclose(model(other), before, atol=0.01)  # without their positions they do
    with torch.no_grad():
        model.position[1:] = model.position[1:][order]
    torch.testing.assert_close(model(other), before, **CLOSE)


def test_positions_are_stretched_to_a_larger_image() -> None:
    model = _model(image=(8, 8), patch=1)
    row, column = torch.arange(8.0).repeat_interleave(8), torch.arange(8.0).repeat(8)
    with torch.no_grad():
        model.position[1:, 0], model.position[1:, 1] = row, column
        model.patches.weight.zero_()
        model.patches.bias.zero_()
    tokens = model.tokens(torch.randn(1, 3, 16, 24))[0]
    torch.testing.assert_close(tokens[0], model.gathering[0] + model.position[0])
    found = tokens[1:].view(16, 24, 16)
    # pixel p of n lies at (p + 1/2) · 8/n - 1/2; torch's cubic leaves a straight line by at most 3/64 where all of its
    # four points are inside
    torch.testing.assert_close(found[4:12, 0, 0], (torch.arange(4, 12) + 0.5) / 2 - 0.5, rtol=0, atol=0.047)
    torch.testing.assert_close(found[0, 6:18, 1], (torch.arange(6, 18) + 0.5) / 3 - 0.5, rtol=0, atol=0.047)
    assert model(torch.randn(1, 3, 16, 24)).shape == (1, 5)


def test_patches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SpecError, match=r"patch must divide the image's height and width; got 3 and \(9, 8\)"):
        _model(image=(9, 8), patch=3)
    with pytest.raises(SpecError, match=r"patches of 2 must divide the images' height and width; got \(8, 9\)"):
        _model()(torch.randn(1, 3, 8, 9))
