"""A bidirectional text encoder, as in BERT."""

import torch
from torch import Tensor, nn

from regard import checks
from regard.argument_types import check_types
from regard.errors import ArgumentError
from regard.mask import MaskLike, padding
from regard.nn import input_checks
from regard.nn.attention import and_masks
from regard.nn.block import BlockConfig
from regard.nn.embedding import TokenEmbedding
from regard.nn.position_encoding import LearnedPositionalEmbedding
from regard.nn.transformer import Encoder


class TextEncoder(nn.Module):
    """A BERT-style text encoder: maps tokens (batch, n) to hidden states (batch, n, embed_dim).

    Token, position and token type embeddings are added and normalized. Texts have at most `max_len` tokens.
    `type_vocab_size` is the number of token types. `add_pooling_layer=True` adds the linear layer that `pool` applies.

    >>> config = BlockConfig(embed_dim=64, num_heads=4, norm_first=False)
    >>> model = TextEncoder(100, max_len=32, num_layers=2, block_config=config)
    >>> model(torch.tensor([[1, 2, 3], [4, 5, 0]]), lengths=torch.tensor([3, 2])).shape
    torch.Size([2, 3, 64])
    """

    @check_types
    def __init__(
        self,
        vocab_size: int,
        *,
        max_len: int,
        num_layers: int,
        block_config: BlockConfig,
        type_vocab_size: int = 2,
        add_pooling_layer: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(vocab_size, block_config.embed_dim)
        self.position_embedding = LearnedPositionalEmbedding(max_len, block_config.embed_dim)
        self.token_type_embedding = nn.Embedding(
            checks.size(type_vocab_size, "type_vocab_size"), block_config.embed_dim
        )
        self.norm = block_config.norm_layer()
        self.dropout = nn.Dropout(block_config.dropout)
        self.encoder = Encoder(block_config, num_layers, final_norm=block_config.norm_first)
        self.pooler = nn.Linear(block_config.embed_dim, block_config.embed_dim) if add_pooling_layer else None

    def forward(
        self,
        tokens: Tensor,
        *,
        lengths: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        mask: MaskLike | None = None,
    ) -> Tensor:
        """Return the hidden states (batch, n, embed_dim).

        `lengths` (batch,) are the numbers of tokens without padding (None: no padding). `token_type_ids` (batch, n)
        default to 0. `mask` is combined with the padding mask.
        """
        input_checks.check_token_batch(tokens)
        if lengths is not None:
            input_checks.check_lengths(lengths, *tokens.shape)
        if token_type_ids is not None:
            self._check_token_type_ids(token_type_ids, tokens)
        position_ids = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.token_type_embedding(
            torch.zeros_like(tokens) if token_type_ids is None else token_type_ids
        )
        x = self.dropout(self.norm(self.position_embedding.apply_to_embeddings(x, position_ids)))
        combined = and_masks(None if lengths is None else padding(lengths), mask)
        output: Tensor = self.encoder(x, mask=combined)
        return output

    def _check_token_type_ids(self, token_type_ids: Tensor, tokens: Tensor) -> None:
        checks.tensor(
            input_checks.check_token_ids(token_type_ids, "token_type_ids"), "token_type_ids", shape=tuple(tokens.shape)
        )
        input_checks.check_range(token_type_ids, "token_type_ids", self.token_type_embedding.num_embeddings - 1)

    def pool(self, hidden_states: Tensor) -> Tensor:
        """Return the hidden state (batch, embed_dim) of the first token, after the pooling layer if there is one."""
        input_checks.check_hidden_states(
            hidden_states, "hidden_states", self.embedding.embedding_dim, self.embedding.weight
        )
        if hidden_states.shape[1] == 0:
            raise ArgumentError(f"hidden_states must cover at least one token; got shape {tuple(hidden_states.shape)}.")
        first = hidden_states[:, 0]
        return first if self.pooler is None else torch.tanh(self.pooler(first))
