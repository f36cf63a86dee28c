"""The vision transformer: patches, the CLS token and position embeddings."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from regard.errors import ArgumentError
from regard.models.vision import VisionTransformer
from regard.nn import BlockConfig

CLOSE = dict(rtol=1e-4, atol=1e-5)  # float32 sums in a different order


def _model(image_size: tuple[int, int] = (8, 8), patch_size: int = 2, num_layers: int = 2) -> VisionTransformer:
    model = VisionTransformer(
        image_size=image_size,
        patch_size=patch_size,
        num_channels=3,
        num_classes=5,
        num_layers=num_layers,
        block_config=BlockConfig(16, num_heads=2),
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def test_patch_embedding_is_a_linear_map_of_each_patch() -> None:
    model = _model(image_size=(8, 12), patch_size=4)
    images = torch.randn(2, 3, 8, 12)
    patches = unfold(images, 4, stride=4).mT  # row-major; each patch is (channel, height, width)
    expected = (
        patches @ model.patch_embedding.weight.flatten(1).mT + model.patch_embedding.bias + model.position_embedding[1:]
    )
    tokens = model.embed_images(images)
    assert tokens.shape == (2, 7, 16)
    torch.testing.assert_close(tokens[:, 1:], expected, **CLOSE)
    torch.testing.assert_close(tokens[1, 0], model.cls_token[0] + model.position_embedding[0])


def test_the_cls_token_attends_to_every_patch() -> None:
    model = _model(num_layers=1)
    images = torch.randn(1, 3, 8, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(images)[0, 0], images)
    assert bool((gradient != 0).all())
    cls_weights = model.attention_with_weights(images)[0].self_attention.weights[0, :, 0]
    assert cls_weights.shape == (2, 17)
    assert bool((cls_weights > 0).all())
    torch.testing.assert_close(cls_weights.sum(-1), torch.ones(2))


def test_logits_come_from_the_cls_token() -> None:
    model = _model()
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(model(images), model.classifier(model.hidden_states(images)[:, 0]))


def _permute_patches(images: Tensor, order: Tensor, patch_size: int) -> Tensor:
    patches = unfold(images, patch_size, stride=patch_size)[:, :, order]
    return nn.functional.fold(patches, images.shape[-2:], patch_size, stride=patch_size)


def test_permuting_patches_with_their_positions_changes_nothing() -> None:
    model = _model()
    images, order = torch.randn(3, 3, 8, 8), torch.randperm(16)
    expected = model(images).detach()
    permuted = _permute_patches(images, order, 2)
    assert not torch.allclose(model(permuted), expected, atol=0.01)  # positions are not permuted yet
    with torch.no_grad():
        model.position_embedding[1:] = model.position_embedding[1:][order]
    torch.testing.assert_close(model(permuted), expected, **CLOSE)


def test_position_embeddings_are_interpolated_for_larger_images() -> None:
    model = _model(image_size=(8, 8), patch_size=1)
    row, column = torch.arange(8.0).repeat_interleave(8), torch.arange(8.0).repeat(8)
    with torch.no_grad():
        model.position_embedding[1:, 0], model.position_embedding[1:, 1] = row, column
        model.patch_embedding.weight.zero_()
        model.patch_embedding.bias.zero_()
    tokens = model.embed_images(torch.randn(1, 3, 16, 24))[0]
    torch.testing.assert_close(tokens[0], model.cls_token[0] + model.position_embedding[0])
    grid = tokens[1:].view(16, 24, 16)
    # Pixel p of n has the coordinate (p + 1/2) · 8/n - 1/2. Cubic interpolation deviates from a straight line by
    # at most 3/64 if all of its four points are inside the image.
    torch.testing.assert_close(grid[4:12, 0, 0], (torch.arange(4, 12) + 0.5) / 2 - 0.5, rtol=0, atol=0.047)
    torch.testing.assert_close(grid[0, 6:18, 1], (torch.arange(6, 18) + 0.5) / 3 - 0.5, rtol=0, atol=0.047)
    assert model(torch.randn(1, 3, 16, 24)).shape == (1, 5)


def test_a_patch_size_that_does_not_divide_the_image_raises() -> None:
    with pytest.raises(ArgumentError, match=r"both numbers of image_size; got patch_size=3, image_size=\(9, 8\)"):
        _model(image_size=(9, 8), patch_size=3)
    with pytest.raises(
        ArgumentError, match=r"patch_size=2 must divide the height and width of the images; got \(8, 9\)"
    ):
        _model()(torch.randn(1, 3, 8, 9))
