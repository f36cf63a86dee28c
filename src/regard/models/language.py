"""A language model: a decoder that predicts the next token.

    x = E[tokens];   x = decoder(x);   logits = x Eᵀ

GPT-2 and Llama are configurations of this model; see `regard.models.pretrained`.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard import checks
from regard.argument_types import check_types
from regard.mask import MaskLike
from regard.nn import input_checks
from regard.nn.block import BlockConfig
from regard.nn.embedding import TokenEmbedding
from regard.nn.kv_cache import KeyValueCache
from regard.nn.position_encoding import PositionEncoding
from regard.nn.transformer import Decoder, as_block_configs


class LanguageModel(nn.Module):
    """A decoder-only language model: maps tokens (batch, n) to logits (batch, n, vocab_size).

    `logits[:, i]` predicts token i + 1. `block_config` is a configuration, or a sequence that layers repeat. With
    `tie_word_embeddings=True` (default) the output projection is the embedding matrix.

    >>> from regard.nn import RotaryEmbedding, generate
    >>> config = BlockConfig(embed_dim=64, num_heads=4)
    >>> model = LanguageModel(100, num_layers=2, block_config=config, position_encoding=RotaryEmbedding(16))
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 100])
    >>> generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=5).shape
    torch.Size([1, 5])
    """

    @check_types
    def __init__(
        self,
        vocab_size: int,
        *,
        num_layers: int,
        block_config: BlockConfig | Sequence[BlockConfig],
        position_encoding: PositionEncoding | None,
        tie_word_embeddings: bool = True,
    ) -> None:
        super().__init__()
        embed_dim = as_block_configs(block_config)[0].embed_dim
        checks.parameter_size("embedding", checks.size(vocab_size, "vocab_size"), embed_dim)
        self.embedding = TokenEmbedding(vocab_size, embed_dim)
        self.decoder = Decoder(block_config, num_layers, position_encoding=position_encoding)
        self.lm_head = None if tie_word_embeddings else nn.Linear(embed_dim, vocab_size, bias=False)
        with torch.no_grad():  # keeps the variance of the residual stream independent of the number of layers
            for block in self.decoder.blocks:
                for output_layer in (getattr(block.self_attn, "out_proj", None), block.linear2):
                    if isinstance(output_layer, nn.Linear):
                        output_layer.weight.mul_(1.0 / math.sqrt(2 * num_layers))

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: MaskLike | None = None,
        position_ids: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return logits (batch, n, vocab_size).

        `mask` is combined with the causal mask. `position_ids`, (n,) or (batch, n), default to consecutive positions.
        With a `cache`, `tokens` holds only the new tokens.
        """
        return self.logits(self.hidden_states(tokens, mask=mask, position_ids=position_ids, cache=cache))

    def hidden_states(
        self,
        tokens: Tensor,
        *,
        mask: MaskLike | None = None,
        position_ids: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return the hidden states (batch, n, embed_dim) after the final norm; arguments as in `forward`."""
        embedded = self.embedding(input_checks.check_token_batch(tokens))
        hidden_states: Tensor = self.decoder(embedded, mask=mask, position_ids=position_ids, cache=cache)
        return hidden_states

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Return logits (..., vocab_size) of hidden states (..., embed_dim)."""
        input_checks.check_last_dim(hidden_states, "hidden_states", self.embedding.embedding_dim, self.embedding.weight)
        return self.embedding.logits(hidden_states) if self.lm_head is None else self.lm_head(hidden_states)

    def next_token_logits(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """Return logits (batch, vocab_size) of the next token; see `regard.nn.CausalLM`."""
        return self.logits(self.hidden_states(input_checks.check_token_batch(tokens, min_tokens=1), cache=cache)[:, -1])
