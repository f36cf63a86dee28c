"""A text encoder: what each token means where it stands, with everything around it in view. BERT is one."""

from typing import Any

import torch
from torch import Tensor, nn

from regard import checks
from regard.argument_types import check_types
from regard.errors import SpecError
from regard.nn import inputs
from regard.nn.attention import joined
from regard.nn.block import Design
from regard.nn.embedding import TokenEmbedding
from regard.nn.position import Learned
from regard.nn.transformer import Encoder
from regard.spec.mask import padding


class TextEncoder(nn.Module):
    """tokens (batch, n) in, a vector of each (batch, n, width) out.

    Vectors of token, position and `types` (which of two texts it belongs to) are added and normalised. `pooled` is the
    first token's vector once more through a layer, for models that were trained with it.

    >>> model = TextEncoder(100, longest=32, layers=2, design=Design(width=64, heads=4, norm_first=False))
    >>> model(torch.tensor([[1, 2, 3], [4, 5, 0]]), lengths=torch.tensor([3, 2])).shape
    torch.Size([2, 3, 64])
    """

    @check_types
    def __init__(
        self, vocabulary: int, *, longest: int, layers: int, design: Design, types: int = 2, pooler: bool = False
    ) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(vocabulary, design.width)
        self.position = Learned(longest, design.width)
        self.type_embedding = nn.Embedding(checks.size(types, "types"), design.width)
        self.norm = design.norm_layer()
        self.dropout = nn.Dropout(design.dropout)
        self.encoder = Encoder(design, layers, norm=design.norm_first)
        self.pooler = nn.Linear(design.width, design.width) if pooler else None

    def forward(
        self, tokens: Tensor, *, lengths: Tensor | None = None, types: Tensor | None = None, mask: Any = None
    ) -> Tensor:
        """`lengths` says how many tokens of each row are real; `mask` who may look at whom beyond that."""
        inputs.token_rows(tokens)
        if lengths is not None:
            inputs.lengths(lengths, *tokens.shape)
        if types is not None:
            self._check_types(types, tokens)
        at = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.type_embedding(torch.zeros_like(tokens) if types is None else types)
        x = self.dropout(self.norm(self.position.added(x, at)))
        real = None if lengths is None else padding(lengths)
        seen = joined(real, mask)
        return self.encoder(x, mask=seen)  # type: ignore[no-any-return]  # modules are untyped

    def _check_types(self, types: Tensor, tokens: Tensor) -> None:
        checks.tensor(inputs.tokens(types, "types"), "types", shape=tuple(tokens.shape))
        if torch.compiler.is_compiling() or not types.numel():
            return
        least, most = (int(end) for end in types.aminmax())
        if least < 0 or most >= self.type_embedding.num_embeddings:
            last = self.type_embedding.num_embeddings - 1
            raise SpecError(f"types must be from 0 to {last}; got {least} to {most}.")

    def pooled(self, states: Tensor) -> Tensor:
        """The first token's vector (batch, width), as a summary."""
        inputs.vectors(states, "states", self.embedding.embedding_dim, self.embedding.weight)
        if states.shape[1] == 0:
            raise SpecError(f"states must be of at least one token; got shape {tuple(states.shape)}.")
        first = states[:, 0]
        return first if self.pooler is None else torch.tanh(self.pooler(first))
