"""A language model: which token comes next, given those before it.

    x = table[tokens];   x = decoder(x);   logits = x · table'

GPT-2 and Llama are this with other designs; see `regard.models.load`.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard import checks
from regard.argument_types import check_types
from regard.nn import inputs
from regard.nn.block import Design
from regard.nn.cache import KeyValueCache
from regard.nn.embedding import TokenEmbedding
from regard.nn.position import Position
from regard.nn.transformer import Decoder, designs_of


class LanguageModel(nn.Module):
    """tokens (batch, n) in, logits (batch, n, vocabulary) out; logits[:, i] are about token i + 1.

    With `tied` the table that reads tokens also writes them.

    >>> from regard.nn import Rotary, generate
    >>> model = LanguageModel(100, layers=2, design=Design(width=64, heads=4), position=Rotary(16))
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 100])
    >>> generate(model, torch.tensor([[1, 2, 3]]), most=5).shape
    torch.Size([1, 5])
    """

    @check_types
    def __init__(
        self,
        vocabulary: int,
        *,
        layers: int,
        design: Design | Sequence[Design],
        position: Position | None,
        tied: bool = True,
    ) -> None:
        super().__init__()
        width = designs_of(design)[0].width
        checks.parameter("embedding", checks.size(vocabulary, "vocabulary"), width)
        self.embedding = TokenEmbedding(vocabulary, width)
        self.decoder = Decoder(design, layers, position=position)
        self.head = None if tied else nn.Linear(width, vocabulary, bias=False)
        with torch.no_grad():  # each layer adds to the stream: together no more than one would
            for block in self.decoder.blocks:
                for last in (getattr(block.self_attn, "out_proj", None), block.linear2):
                    if isinstance(last, nn.Linear):
                        last.weight.mul_(1.0 / math.sqrt(2 * layers))

    def forward(
        self, tokens: Tensor, *, mask: Any = None, at: Tensor | None = None, cache: KeyValueCache | None = None
    ) -> Tensor:
        """`mask` hides more than what comes later; `at` says where tokens stand, if not one after another; with a
        `cache` tokens are the new ones alone."""
        return self.logits(self.states(tokens, mask=mask, at=at, cache=cache))

    def states(
        self, tokens: Tensor, *, mask: Any = None, at: Tensor | None = None, cache: KeyValueCache | None = None
    ) -> Tensor:
        """The vectors (batch, n, width) from which logits are made."""
        return self.decoder(self.embedding(inputs.token_rows(tokens)), mask=mask, at=at, cache=cache)  # type: ignore[no-any-return]  # modules are untyped

    def logits(self, states: Tensor) -> Tensor:
        inputs.any_vectors(states, "states", self.embedding.embedding_dim, self.embedding.weight)
        return self.embedding.logits(states) if self.head is None else self.head(states)

    def following(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """Scores (batch, vocabulary) of the next token; see `regard.nn.Writer`."""
        return self.logits(self.states(inputs.token_rows(tokens, at_least=1), cache=cache)[:, -1])
