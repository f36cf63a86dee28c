"""A decoder that looks at an image while it writes (after Flamingo: Alayrac and others, 2022).

An encoder makes a vector of each patch of the image. Before each block of a language model stands a look at them,
behind two gates:

    y = x + tanh(α) · cross(norm(x), image)
    z = y + tanh(β) · feedforward(norm(y))

At the beginning α = β = 0: both gates are closed, and the language model is exactly what it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.argument_types import check_types
from regard.errors import SpecError
from regard.models.language import LanguageModel
from regard.models.store import fit
from regard.models.vision import ImageEncoder
from regard.nn import inputs
from regard.nn.block import Block, Design, Looks
from regard.nn.cache import KeyValueCache, LayerCache
from regard.nn.embedding import TokenEmbedding
from regard.nn.feedforward import FeedForward
from regard.nn.position import Position
from regard.nn.transformer import Decoder
from regard.result import Attended


class Describer(nn.Module):
    """tokens (batch, n) and images (batch, channels, height, width) in, logits (batch, n, vocabulary) out.

    logits[:, i] are about token i + 1. The `eye` reads the images; `layers` and `design` are the decoder's, as in
    `LanguageModel`, and both have the same width.

    >>> from regard.nn import Learned, generate
    >>> eye = ImageEncoder(image=(8, 8), patch=4, channels=1, layers=1, design=Design(width=64, heads=4))
    >>> model = Describer(30, eye=eye, layers=2, design=Design(width=64, heads=4), position=Learned(16, 64))
    >>> images = torch.randn(2, 1, 8, 8)
    >>> model(torch.tensor([[1, 2, 3], [1, 4, 5]]), images).shape
    torch.Size([2, 3, 30])
    >>> generate(model.seeing(images), torch.tensor([[1], [1]]), most=5).shape
    torch.Size([2, 5])
    """

    @check_types
    def __init__(
        self, vocabulary: int, *, eye: ImageEncoder, layers: int, design: Design, position: Position | None
    ) -> None:
        super().__init__()
        seen = eye.position.shape[-1]
        if seen != design.width:
            raise SpecError(f"the eye and the decoder must have the same width; got {seen} and {design.width}.")
        self.eye = eye
        self.embedding = TokenEmbedding(vocabulary, design.width)
        self.decoder = SeeingDecoder(design, layers, position=position)

    def forward(self, tokens: Tensor, images: Tensor) -> Tensor:
        return self.seeing(images).logits(tokens)

    def seeing(self, images: Tensor) -> "Seen":
        """What the eye made of images, ready to be written about."""
        return Seen(self, self.patches(images))

    def attend(self, tokens: Tensor, images: Tensor) -> list[Looks]:
        """The attention inside each layer of the decoder, kept open: `own` at the text, `memory` at the patches."""
        return self.decoder.attend(self.embedding(inputs.token_rows(tokens)), self.patches(images))

    def patches(self, images: Tensor) -> Tensor:
        """The vectors (batch, patches, width) that the text looks at, row by row."""
        return self.eye.states(images)[:, 1:]  # the gathering token stands for no place in the image

    def gates(self) -> Tensor:
        """How far the gates are open, tanh(α) and tanh(β) for each layer: (layers, 2), from -1 to 1."""
        return torch.stack([block.look.gates() for block in self.decoder.layers])  # type: ignore[operator, union-attr]  # all are `SeeingBlock`

    @check_types
    def adopt(self, language: LanguageModel) -> None:
        """Takes over every parameter of a language model of the same design, whose table also writes."""
        rest = {name: t for name, t in self.state_dict().items() if name.startswith("eye.") or ".look." in name}
        fit(self, {**language.state_dict(), **rest}, "the language model")


@dataclass(eq=False)
class Seen:
    """Images that were looked over; a `regard.nn.Writer`."""

    describer: Describer
    patches: Tensor

    def logits(self, tokens: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        return self.describer.embedding.logits(self._states(tokens, cache))

    def following(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        return self.describer.embedding.logits(self._states(inputs.token_rows(tokens, at_least=1), cache)[:, -1])

    def _states(self, tokens: Tensor, cache: KeyValueCache | None) -> Tensor:
        describer = self.describer
        inputs.token_rows(tokens)
        times = inputs.copies(tokens, "tokens", len(self.patches))  # with beams each image occurs several times
        patches = self.patches.repeat_interleave(times, 0)
        return describer.decoder(describer.embedding(tokens), patches, cache=cache)  # type: ignore[no-any-return]  # modules are untyped


class SeeingDecoder(Decoder):
    """A decoder with a gated look before each block. What it is given as memory are patches; without them it is the
    plain decoder, and parameters that both have are named alike."""

    def __init__(self, design: Design | Sequence[Design], layers: int, *, position: Position | None = None) -> None:
        super().__init__(design, layers, position=position)
        self.layers = nn.ModuleList(SeeingBlock(each) for each in self.designs)


class SeeingBlock(Block):
    """A block and the look before it; arguments as in `Block`, where the memory are patches."""

    def __init__(self, design: Design) -> None:
        super().__init__(design)
        self.look = GatedLook(design)

    def forward(
        self,
        x: Tensor,
        *,
        memory: Tensor | None = None,
        mask: Any = None,
        memory_mask: Any = None,
        position: Position | None = None,
        at: Tensor | None = None,
        cache: LayerCache | None = None,
        memory_cache: LayerCache | None = None,
    ) -> Tensor:
        if memory is not None:
            x = self.look(x, memory, mask=memory_mask, cache=memory_cache)
        return super().forward(x, mask=mask, position=position, at=at, cache=cache)

    def attend(
        self,
        x: Tensor,
        *,
        memory: Tensor | None = None,
        mask: Any = None,
        memory_mask: Any = None,
        position: Position | None = None,
        at: Tensor | None = None,
    ) -> Looks:
        if memory is None:
            return super().attend(x, mask=mask, position=position, at=at)
        after = self.look(x, memory, mask=memory_mask)
        own = super().attend(after, mask=mask, position=position, at=at).own
        return Looks(own, self.look.attend(x, memory, mask=memory_mask))


class GatedLook(nn.Module):
    """x (batch, n, width) in and out, with as much of patches (batch, m, width) as the gates let through.

    >>> look = GatedLook(Design(width=64, heads=4))
    >>> x, patches = torch.randn(2, 3, 64), torch.randn(2, 16, 64)
    >>> torch.equal(look(x, patches), x)
    True
    """

    def __init__(self, design: Design) -> None:
        super().__init__()
        self.norm1, self.norm2 = design.norm_layer(), design.norm_layer()
        self.attention = design.attention_layer()
        self.feedforward = FeedForward(
            design.width, design.hidden, activation=design.activation, bias=design.bias, dropout=design.dropout
        )
        self.dropout = nn.Dropout(design.dropout)
        self.alpha, self.beta = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, patches: Tensor, *, mask: Any = None, cache: LayerCache | None = None) -> Tensor:
        seen = self.attention(self.norm1(x), patches, mask=mask, cache=cache)
        alpha, beta = self.gates()
        y = x + alpha * self.dropout(seen)
        return y + beta * self.dropout(self.feedforward(self.norm2(y)))  # type: ignore[no-any-return]  # modules are untyped

    def gates(self) -> Tensor:
        """How far they are open: (tanh(α), tanh(β))."""
        return torch.tanh(torch.stack((self.alpha, self.beta)))

    def attend(self, x: Tensor, patches: Tensor, *, mask: Any = None) -> Attended:
        """The attention to the patches, kept open."""
        return self.attention.attend(self.norm1(x), patches, mask=mask)
