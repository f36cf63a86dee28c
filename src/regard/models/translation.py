"""A translator: an encoder-decoder transformer from source tokens to target tokens."""

from dataclasses import dataclass

from torch import Tensor, nn

from regard.argument_types import check_types
from regard.mask import padding
from regard.nn import input_checks
from regard.nn.block import BlockConfig
from regard.nn.embedding import TokenEmbedding
from regard.nn.kv_cache import KeyValueCache
from regard.nn.position_encoding import PositionEncoding
from regard.nn.transformer import Transformer


class Translator(nn.Module):
    """An encoder-decoder transformer: returns logits (batch, m, vocab_size) of the next target tokens.

    The inputs are source (batch, n) and target (batch, m) tokens; `lengths` (batch,) are the source lengths without
    padding. `vocab_sizes` are the sizes of the source and target vocabularies, and `position_encodings` are those of
    encoder and decoder.

    >>> import torch
    >>> from regard.nn import SinusoidalPositionalEmbedding, generate
    >>> config = BlockConfig(embed_dim=64, num_heads=4)
    >>> positions = SinusoidalPositionalEmbedding(64), SinusoidalPositionalEmbedding(64)
    >>> model = Translator((50, 30), num_layers=2, block_config=config, position_encodings=positions)
    >>> source = torch.tensor([[4, 5, 6, 0], [7, 8, 0, 0]])
    >>> model(source, torch.tensor([[1, 2], [1, 3]]), lengths=torch.tensor([3, 2])).shape
    torch.Size([2, 2, 30])
    >>> generate(model.encode_source(source), torch.tensor([[1], [1]]), max_new_tokens=5).shape
    torch.Size([2, 5])
    """

    @check_types
    def __init__(
        self,
        vocab_sizes: tuple[int, int],
        *,
        num_layers: int,
        block_config: BlockConfig,
        position_encodings: tuple[PositionEncoding | None, PositionEncoding | None],
    ) -> None:
        super().__init__()
        self.source_embedding = TokenEmbedding(vocab_sizes[0], block_config.embed_dim, scale_embedding=True)
        self.target_embedding = TokenEmbedding(vocab_sizes[1], block_config.embed_dim, scale_embedding=True)
        self.transformer = Transformer(
            block_config,
            num_layers,
            encoder_position_encoding=position_encodings[0],
            decoder_position_encoding=position_encodings[1],
        )

    def forward(self, source: Tensor, target: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Return logits (batch, m, vocab_size) for `source` (batch, n) and `target` (batch, m) tokens."""
        return self.encode_source(source, lengths).logits(target)

    def encode_source(self, source: Tensor, lengths: Tensor | None = None) -> "EncodedSource":
        """Return the encoded source, which `regard.nn.generate` accepts as a model."""
        input_checks.check_token_batch(source, "source")
        mask = None if lengths is None else padding(input_checks.check_lengths(lengths, *source.shape))
        memory = self.transformer.encoder(self.source_embedding(source), mask=mask)
        return EncodedSource(self, memory, lengths)


@dataclass(eq=False)
class EncodedSource:
    """An encoded source with its translator; implements `regard.nn.CausalLM`.

    `memory` (batch, n, embed_dim) is the output of the encoder, and `lengths` (batch,) are the source lengths.
    """

    translator: Translator
    memory: Tensor
    lengths: Tensor | None

    def logits(self, target: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Return logits (batch, m, vocab_size) of the token after each target token."""
        return self.translator.target_embedding.logits(self._hidden_states(target, cache))

    def next_token_logits(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """Return logits (batch, vocab_size) of the next token; see `regard.nn.CausalLM`."""
        return self.translator.target_embedding.logits(self._hidden_states(tokens, cache)[:, -1])

    def _hidden_states(self, target: Tensor, cache: KeyValueCache | None) -> Tensor:
        translator = self.translator
        input_checks.check_token_batch(target, "target")
        num_beams = input_checks.beams_per_source(target, "target", len(self.memory))
        memory = self.memory.repeat_interleave(num_beams, 0)
        mask = None if self.lengths is None else padding(self.lengths.repeat_interleave(num_beams))
        output: Tensor = translator.transformer.decoder(
            translator.target_embedding(target), memory, memory_mask=mask, cache=cache
        )
        return output
