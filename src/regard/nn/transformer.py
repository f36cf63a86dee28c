"""Stacks of blocks: encoder, decoder and encoder-decoder transformer.

Parameters have the names of torch's `TransformerEncoder`, `TransformerDecoder` and `Transformer`. State dicts load in
both directions if torch supports the configuration: num_kv_heads equal to num_heads, relu or gelu, LayerNorm.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from regard import checks
from regard.errors import ArgumentError
from regard.mask import MaskLike, causal, sliding_window
from regard.nn import input_checks
from regard.nn.attention import and_masks, check_mask
from regard.nn.block import Block, BlockAttentionResult, BlockConfig
from regard.nn.kv_cache import MAX_LAYERS, KeyValueCache, make_position_ids
from regard.nn.position_encoding import PositionEncoding, check_position_encoding


class BlockStack(nn.Module):
    """A stack of `num_layers` blocks with the configuration `block_config`, followed by a norm if `final_norm`.

    With a sequence of configurations, block i uses configuration i modulo its length. `mask` applies in every call.
    `position_encoding` applies to every block with `has_position_encoding`. With `add_cross_attention=True` every block
    also attends to a memory.

    >>> local, full = (BlockConfig(64, 4, sliding_window=window) for window in (16, None))
    >>> BlockStack([local, full], num_layers=4, mask=causal())(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        block_config: BlockConfig | Sequence[BlockConfig],
        num_layers: int,
        *,
        add_cross_attention: bool = False,
        mask: MaskLike | None = None,
        position_encoding: PositionEncoding | None = None,
        final_norm: bool = True,
    ) -> None:
        super().__init__()
        configs = as_block_configs(block_config)
        checks.integer(num_layers, "num_layers", at_least=1, at_most=MAX_LAYERS)
        checks.flag(add_cross_attention, "add_cross_attention")
        checks.flag(final_norm, "final_norm")
        check_position_encoding(position_encoding)
        check_mask(mask)
        self.block_configs = tuple(configs[layer % len(configs)] for layer in range(num_layers))
        self.layers = nn.ModuleList(
            Block(config, add_cross_attention=add_cross_attention) for config in self.block_configs
        )
        self.norm = configs[0].norm_layer() if final_norm else None
        self.position_encoding = position_encoding
        self._has_custom_mask = mask is not None and mask is not causal()
        # one object per window: the same mask object is not traced again
        masks = {
            config.sliding_window: and_masks(mask, config.sliding_window and sliding_window(config.sliding_window))
            for config in configs
        }
        self._masks = [masks[config.sliding_window] for config in self.block_configs]

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: MaskLike | None = None,
        memory_mask: MaskLike | None = None,
        position_ids: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return the hidden states (batch, n, embed_dim) of x (batch, n, embed_dim).

        `mask` is combined with the mask of the stack. `memory` is (batch, n_k, embed_dim), and `memory_mask` is the
        mask of cross-attention. `position_ids`, (n,) or (batch, n), are the positions of the tokens (None: they follow
        the cached tokens). With a `cache`, x holds only the new tokens.
        """
        self._check_inputs(x, memory, position_ids)
        if cache is not None:
            checks.instance(cache, "cache", KeyValueCache, "a KeyValueCache or None")
            cache.check_equal_lengths(len(self.block_configs))
            if cache.sliding_window is not None and mask is None and not self._has_custom_mask:
                self._check_cache_window(cache.sliding_window)
        self._check_consecutive_positions(position_ids)
        x, position_ids = self._add_positions(x, position_ids, cache)
        call_mask = and_masks(mask, None if cache is None else cache.padding_mask(x.shape[1]))
        for layer, block in enumerate(self.blocks):
            x = block(
                x,
                memory=memory,
                mask=and_masks(self._masks[layer], call_mask),
                memory_mask=memory_mask,
                position_encoding=self._layer_position_encoding(layer),
                position_ids=position_ids,
                cache=None if cache is None else cache[layer],
                cross_attention_cache=None if cache is None else cache.cross_attention_cache(layer),
            )
        return x if self.norm is None else self.norm(x)

    @property
    def blocks(self) -> list[Block]:
        """The blocks, first to last; the same as `layers`, but typed."""
        return cast("list[Block]", list(self.layers))

    def attention_with_weights(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: MaskLike | None = None,
        memory_mask: MaskLike | None = None,
        position_ids: Tensor | None = None,
    ) -> list[BlockAttentionResult]:
        """Return the attention of each layer with its weights; arguments as in `forward`."""
        self._check_inputs(x, memory, position_ids)
        self._check_consecutive_positions(position_ids)
        x, position_ids = self._add_positions(x, position_ids, None)
        results = []
        for layer, block in enumerate(self.blocks):
            options = {
                "mask": and_masks(self._masks[layer], mask),
                "position_encoding": self._layer_position_encoding(layer),
                "position_ids": position_ids,
            }
            results.append(block.attention_with_weights(x, memory=memory, memory_mask=memory_mask, **options))
            x = block(x, memory=memory, memory_mask=memory_mask, **options)
        return results

    def _add_positions(
        self, x: Tensor, position_ids: Tensor | None, cache: KeyValueCache | None
    ) -> tuple[Tensor, Tensor]:
        """Return x with position embeddings added, and the positions."""
        if position_ids is None:
            n = x.shape[1]
            position_ids = (
                make_position_ids(0, n, device=x.device) if cache is None else cache.position_ids(n, x.device)
            )
        if self.position_encoding is None:
            return x, position_ids
        return nn.functional.dropout(
            self.position_encoding.apply_to_embeddings(x, position_ids), self.block_configs[0].dropout, self.training
        ), position_ids

    def _check_inputs(self, x: Tensor, memory: Tensor | None, position_ids: Tensor | None) -> None:
        parameter = self.blocks[0].linear2.weight
        input_checks.check_hidden_states(x, "x", self.block_configs[0].embed_dim, parameter)
        if position_ids is not None:
            input_checks.check_position_ids(position_ids, x.shape[0], x.shape[1])
        if memory is None and any(block.multihead_attn is not None for block in self.blocks):
            raise ArgumentError("a stack with add_cross_attention=True needs a memory; got None. Pass memory=.")

    def _check_cache_window(self, cache_window: int) -> None:
        """Raise if the cache drops keys that a layer attends to."""
        for layer, (config, block) in enumerate(zip(self.block_configs, self.blocks, strict=True)):
            window = config.sliding_window
            if (window is None or window > cache_window) and getattr(block.self_attn, "mask", None) is None:
                visible = "all tokens" if window is None else f"a window of {window}"
                raise ArgumentError(
                    f"a cache must hold the tokens that layers attend to; got sliding_window={cache_window}, while "
                    f"layer {layer} attends to {visible}. Use KeyValueCache(), or pass "
                    f"mask=sliding_window({cache_window}) in every call."
                )

    def _check_consecutive_positions(self, position_ids: Tensor | None) -> None:
        """Raise if positions have gaps and are encoded by a score modifier, which depends on key indices only."""
        if (
            position_ids is None
            or self.position_encoding is None
            or self.position_encoding.score_modifier() is None
            or torch.compiler.is_compiling()
        ):
            return
        is_distributed = any(getattr(block.self_attn, "attention_fn", None) is not None for block in self.blocks)
        if not is_distributed and bool((position_ids.diff() != 1).any()):
            raise ArgumentError(
                f"position_ids must be consecutive with {type(self.position_encoding).__name__}; got "
                f"{position_ids.flatten()[:8].tolist()}. Omit position_ids, or use RotaryEmbedding."
            )

    def _layer_position_encoding(self, layer: int) -> PositionEncoding | None:
        return self.position_encoding if self.block_configs[layer].has_position_encoding else None


def as_block_configs(block_config: BlockConfig | Sequence[BlockConfig]) -> tuple[BlockConfig, ...]:
    """Return the configurations as a tuple of at least one, all with the same embed_dim."""
    if isinstance(block_config, BlockConfig):
        return (block_config,)
    expected = "a BlockConfig or a sequence of them"
    configs = tuple(checks.instance(block_config, "block_config", (list, tuple), expected))
    for config in configs:
        checks.instance(config, "block_config", BlockConfig, expected)
    if not configs:
        raise ArgumentError("block_config must hold at least one BlockConfig; got an empty sequence.")
    dims = [config.embed_dim for config in configs]
    if len(set(dims)) > 1:
        raise ArgumentError(f"all configurations of a stack must have the same embed_dim; got {dims}.")
    return configs


class Encoder(BlockStack):
    """An encoder: a stack of blocks in which every token attends to every token that `mask` allows (default: all).

    `block_config`, `num_layers`, `position_encoding` and `final_norm` are those of `BlockStack`.

    >>> import torch
    >>> Encoder(BlockConfig(embed_dim=64, num_heads=4), num_layers=2)(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        block_config: BlockConfig | Sequence[BlockConfig],
        num_layers: int,
        *,
        mask: MaskLike | None = None,
        position_encoding: PositionEncoding | None = None,
        final_norm: bool = True,
    ) -> None:
        super().__init__(
            block_config, num_layers, mask=mask, position_encoding=position_encoding, final_norm=final_norm
        )


class Decoder(BlockStack):
    """A decoder: a stack of blocks in which every token attends to itself and earlier tokens.

    With `add_cross_attention=True` every token also attends to the memory. The causal mask is combined with `mask`. The
    other parameters are those of `BlockStack`.

    >>> import torch
    >>> decoder = Decoder(BlockConfig(embed_dim=64, num_heads=4), num_layers=2, add_cross_attention=True)
    >>> decoder(torch.randn(2, 10, 64), torch.randn(2, 7, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        block_config: BlockConfig | Sequence[BlockConfig],
        num_layers: int,
        *,
        add_cross_attention: bool = False,
        mask: MaskLike | None = None,
        position_encoding: PositionEncoding | None = None,
        final_norm: bool = True,
    ) -> None:
        super().__init__(
            block_config,
            num_layers,
            add_cross_attention=add_cross_attention,
            mask=and_masks(causal(), mask),
            position_encoding=position_encoding,
            final_norm=final_norm,
        )


class Transformer(nn.Module):
    """An encoder-decoder transformer: the decoder attends to the output of the encoder.

    Encoder and decoder have `num_layers` blocks each, all with the configuration `block_config`.
    `encoder_position_encoding` and `decoder_position_encoding` default to none.

    >>> import torch
    >>> config = BlockConfig(embed_dim=64, num_heads=4, norm_first=False, activation="relu")
    >>> transformer = Transformer(config, num_layers=2)
    >>> transformer(torch.randn(2, 7, 64), torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        block_config: BlockConfig,
        num_layers: int,
        *,
        encoder_position_encoding: PositionEncoding | None = None,
        decoder_position_encoding: PositionEncoding | None = None,
    ) -> None:
        super().__init__()
        checks.instance(block_config, "block_config", BlockConfig, "a BlockConfig")
        self.encoder = Encoder(block_config, num_layers, position_encoding=encoder_position_encoding)
        self.decoder = Decoder(
            block_config, num_layers, add_cross_attention=True, position_encoding=decoder_position_encoding
        )

    def forward(
        self, src: Tensor, tgt: Tensor, *, src_mask: MaskLike | None = None, tgt_mask: MaskLike | None = None
    ) -> Tensor:
        """Return the hidden states (batch, n, embed_dim) of the target `tgt` (batch, n, embed_dim).

        `src` is (batch, n_k, embed_dim). Unlike in torch, `src_mask` applies to the encoder and to cross-attention, so
        that it can hide padding from both.
        """
        memory = self.encoder(src, mask=src_mask)
        output: Tensor = self.decoder(tgt, memory, mask=tgt_mask, memory_mask=src_mask)
        return output
