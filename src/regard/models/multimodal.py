"""An image captioner: a decoder with gated cross-attention to an image, as in Flamingo (Alayrac et al., 2022).

An image encoder maps each patch to a vector. Gated cross-attention precedes each block of a language model:

    y = x + tanh(α) · cross(norm(x), image)
    z = y + tanh(β) · feedforward(norm(y))

The gates start at α = β = 0, which leaves the language model unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.argument_types import check_types
from regard.errors import ArgumentError
from regard.mask import MaskLike
from regard.models.language import LanguageModel
from regard.models.state_dict import load_state_dict
from regard.models.vision import ImageEncoder
from regard.nn import input_checks
from regard.nn.block import Block, BlockAttentionResult, BlockConfig
from regard.nn.embedding import TokenEmbedding
from regard.nn.feed_forward import FeedForward
from regard.nn.kv_cache import KeyValueCache, LayerCache
from regard.nn.position_encoding import PositionEncoding
from regard.nn.transformer import Decoder
from regard.result import AttentionResult


class ImageCaptioner(nn.Module):
    """A language model conditioned on an image: returns logits (batch, n, vocab_size).

    The inputs are tokens (batch, n) and images (batch, channels, height, width). `logits[:, i]` predicts token i + 1.
    `num_layers`, `block_config` and `position_encoding` configure the decoder, as in `LanguageModel`.
    `vision_encoder` must have the same embed_dim as the decoder.

    >>> from regard.nn import LearnedPositionalEmbedding, generate
    >>> config, position = BlockConfig(embed_dim=64, num_heads=4), LearnedPositionalEmbedding(16, 64)
    >>> vision = ImageEncoder(image_size=(8, 8), patch_size=4, num_channels=1, num_layers=1, block_config=config)
    >>> model = ImageCaptioner(
    ...     30, vision_encoder=vision, num_layers=2, block_config=config, position_encoding=position
    ... )
    >>> images = torch.randn(2, 1, 8, 8)
    >>> model(torch.tensor([[1, 2, 3], [1, 4, 5]]), images).shape
    torch.Size([2, 3, 30])
    >>> generate(model.encode_images(images), torch.tensor([[1], [1]]), max_new_tokens=5).shape
    torch.Size([2, 5])
    """

    @check_types
    def __init__(
        self,
        vocab_size: int,
        *,
        vision_encoder: ImageEncoder,
        num_layers: int,
        block_config: BlockConfig,
        position_encoding: PositionEncoding | None,
    ) -> None:
        super().__init__()
        vision_dim = vision_encoder.position_embedding.shape[-1]
        if vision_dim != block_config.embed_dim:
            raise ArgumentError(
                "vision_encoder and block_config must have the same embed_dim; got "
                f"{vision_dim} and {block_config.embed_dim}."
            )
        self.vision_encoder = vision_encoder
        self.embedding = TokenEmbedding(vocab_size, block_config.embed_dim)
        self.decoder = FlamingoDecoder(block_config, num_layers, position_encoding=position_encoding)

    def forward(self, tokens: Tensor, images: Tensor) -> Tensor:
        """Return logits (batch, n, vocab_size) of the tokens after `tokens` (batch, n), given `images`."""
        return self.encode_images(images).logits(tokens)

    def encode_images(self, images: Tensor) -> "EncodedImages":
        """Return the encoded images, which `regard.nn.generate` accepts as a model."""
        return EncodedImages(self, self.image_features(images))

    def attention_with_weights(self, tokens: Tensor, images: Tensor) -> list[BlockAttentionResult]:
        """Return the attention of each decoder layer; `cross_attention` is the attention to the patches."""
        return self.decoder.attention_with_weights(
            self.embedding(input_checks.check_token_batch(tokens)), self.image_features(images)
        )

    def image_features(self, images: Tensor) -> Tensor:
        """Return the vectors (batch, patches, embed_dim) that the text attends to, in row-major order."""
        return self.vision_encoder.hidden_states(images)[:, 1:]  # without the CLS token

    def gates(self) -> Tensor:
        """Return tanh(α) and tanh(β) of each layer: (num_layers, 2), from -1 to 1."""
        return torch.stack([block.gated_cross_attn.gates() for block in self.decoder.layers])  # type: ignore[operator, union-attr]  # all are `FlamingoBlock`

    @check_types
    def load_language_model(self, language_model: LanguageModel) -> None:
        """Copy the parameters of a language model with the same configuration and tied word embeddings."""
        vision_state = {
            name: tensor
            for name, tensor in self.state_dict().items()
            if name.startswith("vision_encoder.") or ".gated_cross_attn." in name
        }
        load_state_dict(self, {**language_model.state_dict(), **vision_state}, "the language model")


@dataclass(eq=False)
class EncodedImages:
    """Encoded images with their captioner; implements `regard.nn.CausalLM`.

    `image_features` is (batch, patches, embed_dim).
    """

    captioner: ImageCaptioner
    image_features: Tensor

    def logits(self, tokens: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Return logits (batch, n, vocab_size) of tokens (batch, n)."""
        return self.captioner.embedding.logits(self._hidden_states(tokens, cache))

    def next_token_logits(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """Return logits (batch, vocab_size) of the next token; see `regard.nn.CausalLM`."""
        return self.captioner.embedding.logits(
            self._hidden_states(input_checks.check_token_batch(tokens, min_tokens=1), cache)[:, -1]
        )

    def _hidden_states(self, tokens: Tensor, cache: KeyValueCache | None) -> Tensor:
        captioner = self.captioner
        input_checks.check_token_batch(tokens)
        num_beams = input_checks.beams_per_source(tokens, "tokens", len(self.image_features))
        features = self.image_features.repeat_interleave(num_beams, 0)
        output: Tensor = captioner.decoder(captioner.embedding(tokens), features, cache=cache)
        return output


class FlamingoDecoder(Decoder):
    """A decoder with gated cross-attention before each block; the memory holds image features.

    Without a memory it computes the same as `Decoder`. The parameters of the blocks have the same names.
    """

    def __init__(
        self,
        block_config: BlockConfig | Sequence[BlockConfig],
        num_layers: int,
        *,
        position_encoding: PositionEncoding | None = None,
    ) -> None:
        super().__init__(block_config, num_layers, position_encoding=position_encoding)
        self.layers = nn.ModuleList(FlamingoBlock(config) for config in self.block_configs)


class FlamingoBlock(Block):
    """Gated cross-attention followed by a block; arguments as in `Block`, with image features as the memory."""

    def __init__(self, block_config: BlockConfig) -> None:
        super().__init__(block_config)
        self.gated_cross_attn = GatedCrossAttention(block_config)

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
        if memory is not None:
            x = self.gated_cross_attn(x, memory, mask=memory_mask, cache=cross_attention_cache)
        return super().forward(
            x, mask=mask, position_encoding=position_encoding, position_ids=position_ids, cache=cache
        )

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
        if memory is None:
            return super().attention_with_weights(
                x, mask=mask, position_encoding=position_encoding, position_ids=position_ids
            )
        block_input = self.gated_cross_attn(x, memory, mask=memory_mask)
        result = super().attention_with_weights(
            block_input, mask=mask, position_encoding=position_encoding, position_ids=position_ids
        )
        return BlockAttentionResult(
            result.self_attention, self.gated_cross_attn.attention_with_weights(x, memory, mask=memory_mask)
        )


class GatedCrossAttention(nn.Module):
    """Cross-attention and a feed-forward network, each multiplied by a learned gate that starts at 0.

    x (batch, n, embed_dim) attends to image_features (batch, m, embed_dim).

    >>> layer = GatedCrossAttention(BlockConfig(embed_dim=64, num_heads=4))
    >>> x, image_features = torch.randn(2, 3, 64), torch.randn(2, 16, 64)
    >>> torch.equal(layer(x, image_features), x)
    True
    """

    def __init__(self, block_config: BlockConfig) -> None:
        super().__init__()
        self.norm1, self.norm2 = block_config.norm_layer(), block_config.norm_layer()
        self.cross_attn = block_config.attention_layer()
        self.feedforward = FeedForward(
            block_config.embed_dim,
            block_config.ffn_dim,
            activation=block_config.activation,
            bias=block_config.bias,
            dropout=block_config.dropout,
        )
        self.dropout = nn.Dropout(block_config.dropout)
        self.alpha, self.beta = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def forward(
        self, x: Tensor, image_features: Tensor, *, mask: MaskLike | None = None, cache: LayerCache | None = None
    ) -> Tensor:
        attended = self.cross_attn(self.norm1(x), image_features, mask=mask, cache=cache)
        alpha, beta = self.gates()
        y = x + alpha * self.dropout(attended)
        output: Tensor = y + beta * self.dropout(self.feedforward(self.norm2(y)))
        return output

    def gates(self) -> Tensor:
        """Return tanh(α) and tanh(β), (2,)."""
        return torch.tanh(torch.stack((self.alpha, self.beta)))

    def attention_with_weights(
        self, x: Tensor, image_features: Tensor, *, mask: MaskLike | None = None
    ) -> AttentionResult[Tensor]:
        """Return the attention to the image features with its weights."""
        return self.cross_attn.attention_with_weights(self.norm1(x), image_features, mask=mask)
