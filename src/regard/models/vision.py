"""A vision transformer: each patch of an image is a token (Dosovitskiy et al., 2020)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from regard import checks
from regard.argument_types import check_types
from regard.errors import ArgumentError
from regard.nn import input_checks
from regard.nn.block import BlockAttentionResult, BlockConfig
from regard.nn.transformer import Encoder


class ImageEncoder(nn.Module):
    """An image encoder: maps images (batch, channels, height, width) to hidden states (batch, 1 + patches, embed_dim).

    The CLS token comes first, then the patches in row-major order. Position embeddings are learned for images of
    `image_size` (height, width) and interpolated for other sizes. Patches are `patch_size` by `patch_size` pixels.

    >>> config = BlockConfig(32, num_heads=4)
    >>> encoder = ImageEncoder(image_size=(8, 8), patch_size=2, num_channels=1, num_layers=2, block_config=config)
    >>> encoder(torch.randn(5, 1, 8, 8)).shape
    torch.Size([5, 17, 32])
    """

    @check_types
    def __init__(
        self,
        *,
        image_size: tuple[int, int],
        patch_size: int,
        num_channels: int,
        num_layers: int,
        block_config: BlockConfig,
    ) -> None:
        super().__init__()
        for name, size in (
            ("image_size", image_size[0]),
            ("image_size", image_size[1]),
            ("patch_size", patch_size),
            ("num_channels", num_channels),
        ):
            checks.size(size, name)
        checks.parameter_size("patch_embedding.weight", block_config.embed_dim, num_channels, patch_size, patch_size)
        checks.parameter_size(
            "position_embedding", image_size[0] // patch_size * (image_size[1] // patch_size), block_config.embed_dim
        )
        if image_size[0] % patch_size or image_size[1] % patch_size:
            raise ArgumentError(
                f"patch_size must divide both numbers of image_size; got patch_size={patch_size}, "
                f"image_size={image_size}."
            )
        self.patch_size = patch_size
        self.grid_size = (image_size[0] // patch_size, image_size[1] // patch_size)
        self.patch_embedding = nn.Conv2d(num_channels, block_config.embed_dim, patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, block_config.embed_dim))
        # vectors of norm 1: smaller ones would be negligible beside the patch embeddings and slow down training
        std = block_config.embed_dim**-0.5
        self.position_embedding = nn.Parameter(
            std * torch.randn(1 + self.grid_size[0] * self.grid_size[1], block_config.embed_dim)
        )
        self.dropout = nn.Dropout(block_config.dropout)
        self.encoder = Encoder(block_config, num_layers)

    def forward(self, images: Tensor) -> Tensor:
        return self.hidden_states(images)

    def hidden_states(self, images: Tensor) -> Tensor:
        """Return the hidden states (batch, 1 + patches, embed_dim), CLS token first."""
        output: Tensor = self.encoder(self.embed_images(images))
        return output

    def attention_with_weights(self, images: Tensor) -> list[BlockAttentionResult]:
        """Return the attention of each layer with its weights."""
        return self.encoder.attention_with_weights(self.embed_images(images))

    def embed_images(self, images: Tensor) -> Tensor:
        """Return the input of the encoder (batch, 1 + patches, embed_dim), CLS token first."""
        channels = self.patch_embedding.in_channels
        checks.tensor(images, "images", shape=("batch", channels, "height", "width"), dtype_kind="floats")
        input_checks.check_layer_dtype(images, "images", self.patch_embedding.weight)
        size = tuple(images.shape[-2:])
        if min(size) < self.patch_size:
            raise ArgumentError(
                f"images must have at least one patch of {self.patch_size} x {self.patch_size}; got {size}."
            )
        if size[0] % self.patch_size or size[1] % self.patch_size:
            raise ArgumentError(
                f"patch_size={self.patch_size} must divide the height and width of the images; got {size}."
            )
        x = self.patch_embedding(images)
        grid = (x.shape[-2], x.shape[-1])
        x = x.flatten(2).mT
        cls_token = self.cls_token.expand(len(x), -1, -1)
        output: Tensor = self.dropout(torch.cat((cls_token, x), dim=1) + self._interpolate_position_embedding(grid))
        return output

    def _interpolate_position_embedding(self, grid_size: tuple[int, int]) -> Tensor:
        if grid_size == self.grid_size:
            return self.position_embedding
        cls_embedding, patch_embeddings = self.position_embedding[:1], self.position_embedding[1:]
        grid = patch_embeddings.mT.unflatten(1, self.grid_size).unsqueeze(0)
        resized = interpolate(grid, size=grid_size, mode="bicubic", align_corners=False)
        return torch.cat((cls_embedding, resized[0].flatten(1).mT))


class VisionTransformer(ImageEncoder):
    """An image classifier: maps images (batch, channels, height, width) to logits (batch, num_classes).

    A linear layer classifies the hidden state of the CLS token. See `ImageEncoder`.

    >>> sizes = dict(image_size=(8, 8), patch_size=2, num_channels=1, num_classes=10)
    >>> model = VisionTransformer(**sizes, num_layers=2, block_config=BlockConfig(32, num_heads=4))
    >>> model(torch.randn(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """

    @check_types
    def __init__(
        self,
        *,
        image_size: tuple[int, int],
        patch_size: int,
        num_channels: int,
        num_classes: int,
        num_layers: int,
        block_config: BlockConfig,
    ) -> None:
        super().__init__(
            image_size=image_size,
            patch_size=patch_size,
            num_channels=num_channels,
            num_layers=num_layers,
            block_config=block_config,
        )
        checks.parameter_size("classifier.weight", checks.size(num_classes, "num_classes"), block_config.embed_dim)
        self.classifier = nn.Linear(block_config.embed_dim, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.classifier(self.hidden_states(images)[:, 0])
        return output
