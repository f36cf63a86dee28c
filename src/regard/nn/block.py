"""A block: attention and a feed-forward part, each added to what came in.

    norm first     x + f(norm(x))       the stream stays as it is; a norm stands at the end of the stack
    norm last      norm(x + f(x))       as in the first transformer; needs warm-up

Parameters have the names of torch's `TransformerEncoderLayer` and `TransformerDecoderLayer`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regard import checks
from regard.errors import SpecError
from regard.nn import inputs
from regard.nn.attention import MultiHeadAttention
from regard.nn.cache import LayerCache
from regard.nn.feedforward import activation_of, feed, linears
from regard.nn.norm import NORMS, norm_of
from regard.nn.position import Position
from regard.result import Attended


@dataclass(frozen=True)
class Design:
    """How the blocks of a stack are made.

    `hidden` is the width between the two matrices of the feed-forward part (None: `hidden_width`). With a `window`
    tokens see only those less than this far away; without `positions` they are not told where they stand. `attention`
    makes another layer for looking at each other, from this design: `lambda design: LatentAttention(...)`.
    """

    width: int
    heads: int
    hidden: int | None = None
    key_heads: int | None = None
    head_width: int | None = None
    activation: str = "gelu"
    norm: str = "layer"
    norm_first: bool = True
    eps: float = 1e-5
    bias: bool = True
    dropout: float = 0.0
    window: int | None = None
    positions: bool = True
    attention: Callable[["Design"], nn.Module] | None = None

    def __post_init__(self) -> None:
        checks.size(self.width, "width")
        checks.size(self.heads, "heads")
        for name in ("hidden", "key_heads", "head_width", "window"):
            if getattr(self, name) is not None:
                checks.size(getattr(self, name), name)
        for name in ("norm_first", "bias", "positions"):
            checks.flag(getattr(self, name), name)
        activation_of(self.activation)
        checks.choice(self.norm, "norm", NORMS)
        checks.finite_number(self.eps, "eps", at_least=0)
        checks.probability(self.dropout, "dropout", below_one=True)
        if self.attention is not None:
            checks.function(self.attention, "attention", "from a Design to a layer")

    @property
    def width_of_head(self) -> int:
        return self.width // self.heads if self.head_width is None else self.head_width

    def norm_layer(self) -> nn.Module:
        return norm_of(self.norm, self.width, self.eps, self.bias)

    def attention_layer(self) -> MultiHeadAttention:
        return MultiHeadAttention(
            self.width,
            self.heads,
            key_heads=self.key_heads,
            head_width=self.head_width,
            bias=self.bias,
            dropout=self.dropout,
        )


def other_layer(design: Design) -> nn.Module:
    """The layer that the design's own function makes."""
    try:
        layer = design.attention(design)  # type: ignore[misc]  # only called where there is one
    except TypeError as problem:
        raise SpecError(
            f"attention must be a function from a Design to a layer; calling it failed: {problem}"
        ) from problem
    return checks.instance(layer, "the layer that attention makes", nn.Module, "a torch.nn.Module")


@dataclass(frozen=True, eq=False)
class Looks:
    """Where the tokens of a block look: at each other, and at the memory if there is one."""

    own: Attended
    memory: Attended | None


class Block(nn.Module):
    """x (batch, n, width) in and out. With `cross` it also looks at a memory, between the two other parts.

    >>> import torch
    >>> block = Block(Design(width=64, heads=4))
    >>> block(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(self, design: Design, *, cross: bool = False) -> None:
        super().__init__()
        checks.instance(design, "design", Design, "a Design")
        checks.flag(cross, "cross")
        self.width, self.norm_first = design.width, design.norm_first
        self.self_attn = design.attention_layer() if design.attention is None else other_layer(design)
        self.multihead_attn = design.attention_layer() if cross else None
        self.activation = activation_of(design.activation)
        self.linear1, self.linear2 = linears(design.width, design.hidden, design.activation, design.bias)
        self.norm1 = design.norm_layer()
        self.norm2 = design.norm_layer()
        self.norm3 = design.norm_layer() if cross else None
        self.dropout = nn.Dropout(design.dropout)

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
        """See `MultiHeadAttention`: `mask`, `position`, `at` and `cache` are for the tokens' look at each other,
        `memory_mask` and `memory_cache` for that at the memory."""

        self._check(x, memory)

        def look(y: Tensor) -> Tensor:
            return self.self_attn(y, mask=mask, position=position, at=at, cache=cache)  # type: ignore[no-any-return]  # modules are untyped

        def look_at_memory(y: Tensor) -> Tensor:
            return self.multihead_attn(y, memory, mask=memory_mask, cache=memory_cache)  # type: ignore[no-any-return, misc]  # there with `cross`

        x = self._with(x, self.norm1, look)
        if self.multihead_attn is not None:
            x = self._with(x, self.norm2, look_at_memory)
        return self._with(x, self.norm2 if self.norm3 is None else self.norm3, self._feed)

    def attend(
        self,
        x: Tensor,
        *,
        memory: Tensor | None = None,
        mask: Any = None,
        memory_mask: Any = None,
        position: Position | None = None,
        at: Tensor | None = None,
    ) -> "Looks":
        """The attention inside this block, kept open; arguments as in a call."""

        self._check(x, memory)

        def own(y: Tensor) -> Attended:
            return self.self_attn.attend(y, mask=mask, position=position, at=at)  # type: ignore[no-any-return, operator]  # modules are untyped

        looks = own(self.norm1(x) if self.norm_first else x)
        if self.multihead_attn is None:
            return Looks(looks, None)
        after = self._with(x, self.norm1, lambda y: self.self_attn(y, mask=mask, position=position, at=at))
        query = self.norm2(after) if self.norm_first else after
        return Looks(looks, self.multihead_attn.attend(query, memory, mask=memory_mask))

    def _check(self, x: Tensor, memory: Tensor | None) -> None:
        inputs.vectors(x, "x", self.width, self.linear2.weight)
        if memory is None and self.multihead_attn is not None:
            raise SpecError("a block with cross=True attends to a memory; got none. Give memory=.")
        if memory is not None:
            if self.multihead_attn is None:
                raise SpecError("memory is for blocks with cross=True; this block was made with cross=False.")
            inputs.vectors(memory, "memory", self.width, self.linear2.weight)

    def _feed(self, x: Tensor) -> Tensor:
        return feed(x, self.linear1, self.activation, self.linear2, self.dropout.p if self.training else 0.0)

    def _with(self, x: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return x + self.dropout(part(norm(x)))  # type: ignore[no-any-return]  # modules are untyped
        return norm(x + self.dropout(part(x)))  # type: ignore[no-any-return]  # modules are untyped
