"""A vision transformer: an image is cut into patches, and each patch is a token (Dosovitskiy and others, 2020)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from regard import checks
from regard.argument_types import check_types
from regard.errors import SpecError
from regard.nn import inputs
from regard.nn.block import Design, Looks
from regard.nn.transformer import Encoder


class ImageEncoder(nn.Module):
    """images (batch, channels, height, width) in, vectors (batch, 1 + patches, width) out, row by row.

    The first of them belongs to no patch: it is a token that gathers what is known about the whole image. Positions are
    learned for images of size `image` and stretched for others.

    >>> eye = ImageEncoder(image=(8, 8), patch=2, channels=1, layers=2, design=Design(32, heads=4))
    >>> eye(torch.randn(5, 1, 8, 8)).shape
    torch.Size([5, 17, 32])
    """

    @check_types
    def __init__(self, *, image: tuple[int, int], patch: int, channels: int, layers: int, design: Design) -> None:
        super().__init__()
        for name, size in (("image", image[0]), ("image", image[1]), ("patch", patch), ("channels", channels)):
            checks.size(size, name)
        checks.parameter("patches.weight", design.width, channels, patch, patch)
        checks.parameter("position", image[0] // patch * (image[1] // patch), design.width)
        if image[0] % patch or image[1] % patch:
            raise SpecError(f"patch must divide the image's height and width; got {patch} and {image}.")
        self.patch = patch
        self.grid = (image[0] // patch, image[1] // patch)
        self.patches = nn.Conv2d(channels, design.width, patch, stride=patch)
        self.gathering = nn.Parameter(torch.zeros(1, design.width))
        # vectors of length 1: shorter ones are hardly seen beside those of patches, and training waits for them to grow
        length = design.width**-0.5
        self.position = nn.Parameter(length * torch.randn(1 + self.grid[0] * self.grid[1], design.width))
        self.dropout = nn.Dropout(design.dropout)
        self.encoder = Encoder(design, layers)

    def forward(self, images: Tensor) -> Tensor:
        return self.states(images)

    def states(self, images: Tensor) -> Tensor:
        """Vectors (batch, 1 + patches, width), the gathering token's first."""
        return self.encoder(self.tokens(images))  # type: ignore[no-any-return]  # modules are untyped

    def attend(self, images: Tensor) -> list[Looks]:
        """The attention inside each layer, kept open."""
        return self.encoder.attend(self.tokens(images))

    def tokens(self, images: Tensor) -> Tensor:
        """What the encoder is given: (batch, 1 + patches, width), patches row by row."""
        channels = self.patches.in_channels
        checks.tensor(images, "images", shape=("batch", channels, "height", "width"), dtype="floats")
        inputs.same_dtype(images, "images", self.patches.weight)
        size = tuple(images.shape[-2:])
        if min(size) < self.patch:
            raise SpecError(f"images must have at least one patch of {self.patch} x {self.patch}; got {size}.")
        if size[0] % self.patch or size[1] % self.patch:
            raise SpecError(f"patches of {self.patch} must divide the images' height and width; got {size}.")
        x = self.patches(images)
        grid = (x.shape[-2], x.shape[-1])
        x = x.flatten(2).mT
        first = self.gathering.expand(len(x), -1, -1)
        return self.dropout(torch.cat((first, x), dim=1) + self._positions(grid))  # type: ignore[no-any-return]  # modules are untyped

    def _positions(self, grid: tuple[int, int]) -> Tensor:
        if grid == self.grid:
            return self.position
        first, rest = self.position[:1], self.position[1:]
        image = rest.mT.unflatten(1, self.grid).unsqueeze(0)
        stretched = interpolate(image, size=grid, mode="bicubic", align_corners=False)
        return torch.cat((first, stretched[0].flatten(1).mT))


class VisionTransformer(ImageEncoder):
    """images (batch, channels, height, width) in, logits (batch, classes) out, read from the gathering token.

    >>> model = VisionTransformer(image=(8, 8), patch=2, channels=1, classes=10, layers=2, design=Design(32, heads=4))
    >>> model(torch.randn(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """

    @check_types
    def __init__(
        self,
        *,
        image: tuple[int, int],
        patch: int,
        channels: int,
        classes: int,
        layers: int,
        design: Design,
    ) -> None:
        super().__init__(image=image, patch=patch, channels=channels, layers=layers, design=design)
        checks.parameter("head.weight", checks.size(classes, "classes"), design.width)
        self.head = nn.Linear(design.width, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.states(images)[:, 0])  # type: ignore[no-any-return]  # modules are untyped
