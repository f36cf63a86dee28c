"""Token embeddings that share their matrix with the output logits."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from regard import checks
from regard.errors import ArgumentError
from regard.nn import input_checks


class TokenEmbedding(nn.Embedding):
    """Token embeddings (vocab_size, embed_dim) that are tied to the output: `logits` multiplies by the same matrix.

    With `scale_embedding=True` embeddings are multiplied by √embed_dim, as in the original transformer.

    >>> import torch
    >>> table = TokenEmbedding(100, 16)
    >>> x = table(torch.tensor([[3, 4]]))
    >>> x.shape, table.logits(x).shape
    (torch.Size([1, 2, 16]), torch.Size([1, 2, 100]))
    """

    def __init__(self, vocab_size: int, embed_dim: int, *, scale_embedding: bool = False) -> None:
        checks.parameter_size("weight", checks.size(vocab_size, "vocab_size"), checks.size(embed_dim, "embed_dim"))
        checks.flag(scale_embedding, "scale_embedding")
        super().__init__(vocab_size, embed_dim)
        self.embed_scale = math.sqrt(embed_dim) if scale_embedding else 1.0
        nn.init.normal_(self.weight, std=1.0 / math.sqrt(embed_dim) if scale_embedding else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return embeddings (..., embed_dim) of tokens (...)."""
        input_checks.check_token_ids(tokens)
        x = super().forward(tokens) if torch.compiler.is_compiling() else self._lookup(tokens)
        return x if self.embed_scale == 1.0 else x * self.embed_scale

    def logits(self, x: Tensor) -> Tensor:
        """Return logits (..., vocab_size) of x (..., embed_dim)."""
        return linear(input_checks.check_last_dim(x, "x", self.embedding_dim, self.weight), self.weight)

    def _lookup(self, tokens: Tensor) -> Tensor:
        try:
            return super().forward(tokens)
        except IndexError:
            smallest, largest = int(tokens.min()), int(tokens.max())
            raise ArgumentError(
                f"tokens must be from 0 to vocab_size - 1 = {self.num_embeddings - 1}; got {smallest} to {largest}."
            ) from None
