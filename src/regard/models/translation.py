"""A translator: an encoder reads the source, a decoder writes the target and looks at what was read."""

from dataclasses import dataclass

from torch import Tensor, nn

from regard.argument_types import check_types
from regard.nn import inputs
from regard.nn.block import Design
from regard.nn.cache import KeyValueCache
from regard.nn.embedding import TokenEmbedding
from regard.nn.position import Position
from regard.nn.transformer import Transformer
from regard.spec.mask import padding


class Translator(nn.Module):
    """source (batch, n) and target (batch, m) tokens in, logits (batch, m, vocabulary) of the next target tokens out.

    `vocabularies` are the numbers of source and target tokens. `lengths` says how many tokens of each source are real.

    >>> import torch
    >>> from regard.nn import Sinusoidal, generate
    >>> positions = Sinusoidal(64), Sinusoidal(64)
    >>> model = Translator((50, 30), layers=2, design=Design(width=64, heads=4), positions=positions)
    >>> source = torch.tensor([[4, 5, 6, 0], [7, 8, 0, 0]])
    >>> model(source, torch.tensor([[1, 2], [1, 3]]), lengths=torch.tensor([3, 2])).shape
    torch.Size([2, 2, 30])
    >>> generate(model.reading(source), torch.tensor([[1], [1]]), most=5).shape
    torch.Size([2, 5])
    """

    @check_types
    def __init__(
        self,
        vocabularies: tuple[int, int],
        *,
        layers: int,
        design: Design,
        positions: tuple[Position | None, Position | None],
    ) -> None:
        super().__init__()
        self.source_embedding = TokenEmbedding(vocabularies[0], design.width, scaled=True)
        self.target_embedding = TokenEmbedding(vocabularies[1], design.width, scaled=True)
        self.transformer = Transformer(design, layers, encoder_position=positions[0], decoder_position=positions[1])

    def forward(self, source: Tensor, target: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        return self.reading(source, lengths).logits(target)

    def reading(self, source: Tensor, lengths: Tensor | None = None) -> "Reading":
        """What the encoder made of a source, ready to be written from."""
        inputs.token_rows(source, "source")
        real = None if lengths is None else padding(inputs.lengths(lengths, *source.shape))
        memory = self.transformer.encoder(self.source_embedding(source), mask=real)
        return Reading(self, memory, lengths)


@dataclass(eq=False)
class Reading:
    """A source that was read, and which of it is real; a `regard.nn.Writer`."""

    translator: Translator
    memory: Tensor
    lengths: Tensor | None

    def logits(self, target: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        states = self._states(target, cache)
        return self.translator.target_embedding.logits(states)

    def following(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        return self.translator.target_embedding.logits(self._states(tokens, cache)[:, -1])

    def _states(self, target: Tensor, cache: KeyValueCache | None) -> Tensor:
        translator = self.translator
        inputs.token_rows(target, "target")
        times = inputs.copies(target, "target", len(self.memory))  # with beams each source occurs several times
        memory = self.memory.repeat_interleave(times, 0)
        real = None if self.lengths is None else padding(self.lengths.repeat_interleave(times))
        return translator.transformer.decoder(  # type: ignore[no-any-return]  # modules are untyped
            translator.target_embedding(target), memory, memory_mask=real, cache=cache
        )
