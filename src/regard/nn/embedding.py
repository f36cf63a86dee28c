"""Tokens into vectors, and vectors back into scores of tokens, by one and the same table."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from regard import checks
from regard.errors import SpecError
from regard.nn import inputs


class TokenEmbedding(nn.Embedding):
    """A vector of `width` for each of `vocabulary` tokens; `logits` asks the same table which token a vector is like.

    With `scaled` vectors are multiplied by √width on their way in, as in the first transformer.

    >>> import torch
    >>> table = TokenEmbedding(100, 16)
    >>> x = table(torch.tensor([[3, 4]]))
    >>> x.shape, table.logits(x).shape
    (torch.Size([1, 2, 16]), torch.Size([1, 2, 100]))
    """

    def __init__(self, vocabulary: int, width: int, *, scaled: bool = False) -> None:
        checks.parameter("weight", checks.size(vocabulary, "vocabulary"), checks.size(width, "width"))
        checks.flag(scaled, "scaled")
        super().__init__(vocabulary, width)
        self.factor = math.sqrt(width) if scaled else 1.0
        nn.init.normal_(self.weight, std=1.0 / math.sqrt(width) if scaled else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        inputs.tokens(tokens)
        x = super().forward(tokens) if torch.compiler.is_compiling() else self._vectors(tokens)
        return x if self.factor == 1.0 else x * self.factor

    def logits(self, x: Tensor) -> Tensor:
        """Scores (..., vocabulary) of vectors (..., width)."""
        return linear(inputs.any_vectors(x, "x", self.embedding_dim, self.weight), self.weight)

    def _vectors(self, tokens: Tensor) -> Tensor:
        try:
            return super().forward(tokens)
        except IndexError:
            least, most = int(tokens.min()), int(tokens.max())
            raise SpecError(
                f"tokens must be from 0 to {self.num_embeddings - 1}, the vocabulary; got {least} to {most}."
            ) from None
