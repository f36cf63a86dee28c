"""A classifier of short speech clips: convolutions that subsample frames by four, then a transformer encoder."""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from regard import checks
from regard.argument_types import check_types
from regard.errors import ArgumentError
from regard.mask import padding
from regard.nn import input_checks
from regard.nn.block import BlockAttentionResult, BlockConfig
from regard.nn.position_encoding import PositionEncoding
from regard.nn.transformer import Encoder

MIN_FRAMES = 7  # the receptive field of one token
IntOrTensor = TypeVar("IntOrTensor", int, Tensor)


class SpeechClassifier(nn.Module):
    """A speech classifier: maps log-mel frames (batch, n, n_mels) to logits (batch, num_classes).

    A linear layer classifies the hidden state of a CLS token. `lengths` (batch,) are the numbers of frames without
    padding; padding has no effect. `conv_channels` is the number of channels of the two convolutions.

    >>> from regard.nn import RotaryEmbedding
    >>> config, rotary = BlockConfig(embed_dim=64, num_heads=4), RotaryEmbedding(16)
    >>> sizes = dict(n_mels=40, conv_channels=8, num_classes=10, num_layers=2)
    >>> model = SpeechClassifier(**sizes, block_config=config, position_encoding=rotary)
    >>> model(torch.randn(3, 98, 40), lengths=torch.tensor([98, 50, 7])).shape
    torch.Size([3, 10])
    """

    @check_types
    def __init__(
        self,
        *,
        n_mels: int,
        conv_channels: int,
        num_classes: int,
        num_layers: int,
        block_config: BlockConfig,
        position_encoding: PositionEncoding | None,
    ) -> None:
        super().__init__()
        checks.integer(n_mels, "n_mels", at_least=MIN_FRAMES, at_most=checks.MAX_DIM_SIZE)
        for name, size in (("conv_channels", conv_channels), ("num_classes", num_classes)):
            checks.size(size, name)
        checks.parameter_size("conv2.weight", conv_channels, conv_channels, 9)
        checks.parameter_size("out_proj.weight", conv_channels * n_mels, block_config.embed_dim)
        checks.parameter_size("classifier.weight", num_classes, block_config.embed_dim)
        self.n_mels = n_mels
        self.subsampling = ConvSubsampling(n_mels, conv_channels, block_config.embed_dim)
        self.cls_token = nn.Parameter(torch.zeros(1, block_config.embed_dim))
        self.encoder = Encoder(block_config, num_layers, position_encoding=position_encoding)
        self.classifier = nn.Linear(block_config.embed_dim, num_classes)

    def forward(self, frames: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Return logits (batch, num_classes) of `frames`; `lengths` are the numbers of frames without padding."""
        output: Tensor = self.classifier(self.hidden_states(frames, lengths=lengths)[:, 0])
        return output

    def hidden_states(self, frames: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Return the hidden states (batch, 1 + n', embed_dim), CLS token first; n' is `subsampled_lengths` of n."""
        output: Tensor = self.encoder(self.embed_frames(frames, lengths=lengths), mask=_padding_mask(lengths))
        return output

    def attention_with_weights(self, frames: Tensor, *, lengths: Tensor | None = None) -> list[BlockAttentionResult]:
        """Return the attention of each layer with its weights; arguments as in `forward`."""
        return self.encoder.attention_with_weights(
            self.embed_frames(frames, lengths=lengths), mask=_padding_mask(lengths)
        )

    def embed_frames(self, frames: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Return the input of the encoder (batch, 1 + n', embed_dim), CLS token first."""
        self._check_inputs(frames, lengths)
        x = self.subsampling(normalize_frames(frames, lengths))
        return torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1)

    def _check_inputs(self, frames: Tensor, lengths: Tensor | None) -> None:
        checks.tensor(frames, "frames", dtype_kind="floats")
        input_checks.check_layer_dtype(frames, "frames", self.cls_token)
        if frames.dim() != 3 or frames.shape[2] != self.n_mels:
            raise ArgumentError(f"frames must be (batch, n, {self.n_mels}); got shape {tuple(frames.shape)}.")
        batch, n, _ = frames.shape
        if lengths is not None and checks.tensor(lengths, "lengths", dtype_kind="integers").shape != (batch,):
            raise ArgumentError(f"lengths must be one number per clip, ({batch},); got shape {tuple(lengths.shape)}.")
        shortest, longest = (n, n) if lengths is None or not batch else (int(lengths.min()), int(lengths.max()))
        if shortest < MIN_FRAMES:
            raise ArgumentError(f"a clip must have at least {MIN_FRAMES} frames; got {shortest}. Append silence.")
        if longest > n:
            raise ArgumentError(f"lengths must be at most {n}, the number of frames; got {longest}.")


class ConvSubsampling(nn.Module):
    """Convolutional subsampling: maps frames (batch, n, n_mels) to tokens (batch, n', embed_dim).

    n' is `subsampled_lengths` of n, about n / 4. The two convolutions over time and mel bands have kernel size 3,
    stride 2 and no padding, so a token depends on seven adjacent frames.
    """

    def __init__(self, n_mels: int, conv_channels: int, embed_dim: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, conv_channels, 3, stride=2)
        self.conv2 = nn.Conv2d(conv_channels, conv_channels, 3, stride=2)
        self.out_proj = nn.Linear(conv_channels * conv_output_length(conv_output_length(n_mels)), embed_dim)

    def forward(self, frames: Tensor) -> Tensor:
        x = gelu(self.conv2(gelu(self.conv1(frames.unsqueeze(1)))))  # batch, channels, time, bands
        output: Tensor = self.out_proj(x.transpose(1, 2).flatten(2))
        return output


def conv_output_length(n: IntOrTensor) -> IntOrTensor:
    """Return the output length of a convolution with kernel size 3, stride 2 and no padding for input length n."""
    return (n - 1) // 2


def subsampled_lengths(lengths: Tensor) -> Tensor:
    """Return the number of tokens for each number of frames in `lengths`.

    >>> subsampled_lengths(torch.tensor([6, 7, 10, 11, 98]))
    tensor([ 0,  1,  1,  2, 23])
    """
    return conv_output_length(conv_output_length(lengths)).clamp(min=0)


def normalize_frames(frames: Tensor, lengths: Tensor | None) -> Tensor:
    """Normalize each clip to mean 0 in each mel band and standard deviation 1 over all bands; padding becomes 0.

    This reduces the influence of the microphone and its distance.
    """
    if lengths is None:
        lengths = frames.new_full(frames.shape[:1], frames.shape[1], dtype=torch.long)
    count = lengths.view(-1, 1, 1)
    is_padding = torch.arange(frames.shape[1], device=frames.device).view(1, -1, 1) >= count
    mean = frames.masked_fill(is_padding, 0).sum(1, keepdim=True) / count
    centered = (frames - mean).masked_fill(is_padding, 0)
    std = centered.square().sum((1, 2), keepdim=True).div(count * frames.shape[2]).sqrt()
    return centered / (std + 1e-3)  # std is 0 for silence


def _padding_mask(lengths: Tensor | None) -> Any:
    """Return the mask that hides padding; it allows the CLS token, which comes first."""
    return None if lengths is None else padding(1 + subsampled_lengths(lengths))
