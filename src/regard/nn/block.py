"""A transformer block: attention and a feed-forward network, each with a residual connection.

    norm_first=True     x + f(norm(x))      the residual stream is not normalized; the stack ends with a norm
    norm_first=False    norm(x + f(x))      the original transformer; needs learning-rate warmup

Parameters have the names of torch's `TransformerEncoderLayer` and `TransformerDecoderLayer`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from regard import checks
from regard.errors import ArgumentError
from regard.mask import MaskLike
from regard.nn import input_checks
from regard.nn.attention import MultiHeadAttention
from regard.nn.feed_forward import feed_forward, get_activation, make_linears
from regard.nn.kv_cache import LayerCache
from regard.nn.norm import NORMS, make_norm
from regard.nn.position_encoding import PositionEncoding
from regard.result import AttentionResult


@dataclass(frozen=True)
class BlockConfig:
    """Configuration of a transformer block.

    `embed_dim` is the dimension of the hidden states, and `num_heads` the number of query heads. `num_kv_heads` (None:
    `num_heads`) and `head_dim` (None: `embed_dim // num_heads`) are those of `MultiHeadAttention`. `norm_first=True`
    (default) normalizes the input of each sublayer, and False its output plus the residual. `eps` is that of the norms.
    `bias` adds a bias to linear layers and layer norms. `dropout` applies to weights, hidden units and outputs of
    sublayers. `ffn_dim` is the hidden dimension of the feed-forward network (None: 4 `embed_dim`, or 8/3 `embed_dim` if
    gated). `activation` is "relu", "gelu", "gelu_tanh", "silu", or gated: "reglu", "geglu", "geglu_tanh", "swiglu".
    `norm` is "layer" or "rms". With `sliding_window=w` a token attends only to tokens less than w positions away.
    `has_position_encoding=False` skips the position encoding of the stack, as in NoPE layers. `attention_factory`
    replaces the self-attention layer: `lambda config: LatentAttention(...)`.

    >>> BlockConfig(embed_dim=64, num_heads=4, norm="rms", activation="swiglu").resolved_head_dim
    16
    """

    embed_dim: int
    num_heads: int
    ffn_dim: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    activation: str = "gelu"
    norm: str = "layer"
    norm_first: bool = True
    eps: float = 1e-5
    bias: bool = True
    dropout: float = 0.0
    sliding_window: int | None = None
    has_position_encoding: bool = True
    attention_factory: Callable[["BlockConfig"], nn.Module] | None = None

    def __post_init__(self) -> None:
        checks.size(self.embed_dim, "embed_dim")
        checks.size(self.num_heads, "num_heads")
        for name in ("ffn_dim", "num_kv_heads", "head_dim", "sliding_window"):
            if getattr(self, name) is not None:
                checks.size(getattr(self, name), name)
        for name in ("norm_first", "bias", "has_position_encoding"):
            checks.flag(getattr(self, name), name)
        get_activation(self.activation)
        checks.choice(self.norm, "norm", NORMS)
        checks.finite_number(self.eps, "eps", at_least=0)
        checks.probability(self.dropout, "dropout", below_one=True)
        if self.attention_factory is not None:
            checks.function(self.attention_factory, "attention_factory", "from a BlockConfig to a layer")

    @property
    def resolved_head_dim(self) -> int:
        """`head_dim`, or `embed_dim // num_heads` if `head_dim` is None."""
        return self.embed_dim // self.num_heads if self.head_dim is None else self.head_dim

    def norm_layer(self) -> nn.Module:
        """Return a new normalization layer."""
        return make_norm(self.norm, self.embed_dim, self.eps, self.bias)

    def attention_layer(self) -> MultiHeadAttention:
        """Return a new `MultiHeadAttention`; `attention_factory` is not used."""
        return MultiHeadAttention(
            self.embed_dim,
            self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            bias=self.bias,
            dropout=self.dropout,
        )


def custom_attention_layer(block_config: BlockConfig) -> nn.Module:
    """Return the self-attention layer from the configuration's `attention_factory`."""
    try:
        layer = block_config.attention_factory(block_config)  # type: ignore[misc]  # callers check for None
    except TypeError as problem:
        raise ArgumentError(
            f"attention_factory must be a function from a BlockConfig to a layer; calling it failed: {problem}"
        ) from problem
    return checks.instance(layer, "the result of attention_factory", nn.Module, "a torch.nn.Module")


@dataclass(frozen=True, eq=False)
class BlockAttentionResult:
    """The self-attention of a block with its weights; also its cross-attention, if the block has one."""

    self_attention: AttentionResult[Tensor]
    cross_attention: AttentionResult[Tensor] | None


class Block(nn.Module):
    """A transformer block with the configuration `block_config`, from x (batch, n, embed_dim) to the same shape.

    With `add_cross_attention=True` the block also attends to a memory, such as the output of an encoder.

    >>> import torch
    >>> block = Block(BlockConfig(embed_dim=64, num_heads=4))
    >>> block(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(self, block_config: BlockConfig, *, add_cross_attention: bool = False) -> None:
        super().__init__()
        checks.instance(block_config, "block_config", BlockConfig, "a BlockConfig")
        checks.flag(add_cross_attention, "add_cross_attention")
        self.embed_dim, self.norm_first = block_config.embed_dim, block_config.norm_first
        self.self_attn = (
            block_config.attention_layer()
            if block_config.attention_factory is None
            else custom_attention_layer(block_config)
        )
        self.multihead_attn = block_config.attention_layer() if add_cross_attention else None
        self.activation = get_activation(block_config.activation)
        self.linear1, self.linear2 = make_linears(
            block_config.embed_dim, block_config.ffn_dim, block_config.activation, block_config.bias
        )
        self.norm1 = block_config.norm_layer()
        self.norm2 = block_config.norm_layer()
        self.norm3 = block_config.norm_layer() if add_cross_attention else None
        self.dropout = nn.Dropout(block_config.dropout)

    def forward(
        self,
        x: Tensor,
        *,
        memory: Tensor | None = None,
        mask: MaskLike | None = None,
        memory_mask: MaskLike | None = None,
        position_encoding: PositionEncoding | None = None,
        position_ids: Tensor | None = None,
        cache: LayerCache | None = None,
        cross_attention_cache: LayerCache | None = None,
    ) -> Tensor:
        """Return the hidden states (batch, n, embed_dim) of x (batch, n, embed_dim); see `MultiHeadAttention`.

        `mask`, `position_encoding`, `position_ids` and `cache` apply to self-attention. `memory` (batch, n_k,
        embed_dim), `memory_mask` and `cross_attention_cache` apply to cross-attention.
        """
        self._check_inputs(x, memory)

        def self_attention(y: Tensor) -> Tensor:
            output: Tensor = self.self_attn(
                y, mask=mask, position_encoding=position_encoding, position_ids=position_ids, cache=cache
            )
            return output

        def cross_attention(y: Tensor) -> Tensor:
            # mypy cannot see that this only runs with cross-attention
            output: Tensor = self.multihead_attn(y, memory, mask=memory_mask, cache=cross_attention_cache)  # type: ignore[misc]
            return output

        x = self._residual(x, self.norm1, self_attention)
        if self.multihead_attn is not None:
            x = self._residual(x, self.norm2, cross_attention)
        return self._residual(x, self.norm2 if self.norm3 is None else self.norm3, self._feed_forward)

    def attention_with_weights(
        self,
        x: Tensor,
        *,
        memory: Tensor | None = None,
        mask: MaskLike | None = None,
        memory_mask: MaskLike | None = None,
        position_encoding: PositionEncoding | None = None,
        position_ids: Tensor | None = None,
    ) -> BlockAttentionResult:
        """Return the attention of this block with its weights; arguments as in `forward`."""
        self._check_inputs(x, memory)
        options = {"mask": mask, "position_encoding": position_encoding, "position_ids": position_ids}
        # modules are untyped
        result: AttentionResult[Tensor] = self.self_attn.attention_with_weights(  # type: ignore[operator]
            self.norm1(x) if self.norm_first else x, **options
        )
        if self.multihead_attn is None:
            return BlockAttentionResult(result, None)
        after = self._residual(x, self.norm1, lambda y: self.self_attn(y, **options))
        query = self.norm2(after) if self.norm_first else after
        return BlockAttentionResult(result, self.multihead_attn.attention_with_weights(query, memory, mask=memory_mask))

    def _check_inputs(self, x: Tensor, memory: Tensor | None) -> None:
        input_checks.check_hidden_states(x, "x", self.embed_dim, self.linear2.weight)
        if memory is None and self.multihead_attn is not None:
            raise ArgumentError("a block with add_cross_attention=True needs a memory; got None. Pass memory=.")
        if memory is not None:
            if self.multihead_attn is None:
                raise ArgumentError(
                    "memory needs a block with add_cross_attention=True; got a block with add_cross_attention=False."
                )
            input_checks.check_hidden_states(memory, "memory", self.embed_dim, self.linear2.weight)

    def _feed_forward(self, x: Tensor) -> Tensor:
        return feed_forward(x, self.linear1, self.activation, self.linear2, self.dropout.p if self.training else 0.0)

    def _residual(self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        output: Tensor
        if self.norm_first:
            output = x + self.dropout(sublayer(norm(x)))
        else:
            output = norm(x + self.dropout(sublayer(x)))
        return output
