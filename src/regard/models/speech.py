"""A classifier of short clips of speech: convolutions make one token of every four frames, an encoder looks at them."""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from regard import checks
from regard.argument_types import check_types
from regard.errors import SpecError
from regard.nn import inputs
from regard.nn.block import Design, Looks
from regard.nn.position import Position
from regard.nn.transformer import Encoder
from regard.spec.mask import padding

SHORTEST = 7  # frames that make one token
Number = TypeVar("Number", int, Tensor)


class SpeechClassifier(nn.Module):
    """Log-mel frames (batch, n, bands) in, logits (batch, classes) out.

    `lengths` says how many frames of each clip are real; what stands behind them does not matter. A token of its own,
    in front of the others, gathers what the answer is read from.

    >>> from regard.nn import Rotary
    >>> design = Design(width=64, heads=4)
    >>> model = SpeechClassifier(bands=40, channels=8, classes=10, layers=2, design=design, position=Rotary(16))
    >>> model(torch.randn(3, 98, 40), lengths=torch.tensor([98, 50, 7])).shape
    torch.Size([3, 10])
    """

    @check_types
    def __init__(
        self, *, bands: int, channels: int, classes: int, layers: int, design: Design, position: Position | None
    ) -> None:
        super().__init__()
        checks.whole_number(bands, "bands", at_least=SHORTEST, at_most=checks.MAX_SIZE)
        for name, size in (("channels", channels), ("classes", classes)):
            checks.size(size, name)
        checks.parameter("second.weight", channels, channels, 9)
        checks.parameter("out.weight", channels * bands, design.width)
        checks.parameter("head.weight", classes, design.width)
        self.bands = bands
        self.subsampling = Subsampling(bands, channels, design.width)
        self.gathering = nn.Parameter(torch.zeros(1, design.width))
        self.encoder = Encoder(design, layers, position=position)
        self.head = nn.Linear(design.width, classes)

    def forward(self, frames: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        return self.head(self.states(frames, lengths=lengths)[:, 0])  # type: ignore[no-any-return]  # modules are untyped

    def states(self, frames: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Vectors (batch, 1 + n', width), the gathering token's first; n' is `tokens_of` n."""
        return self.encoder(self.tokens(frames, lengths=lengths), mask=_real(lengths))  # type: ignore[no-any-return]  # modules are untyped

    def attend(self, frames: Tensor, *, lengths: Tensor | None = None) -> list[Looks]:
        """The attention inside each layer, kept open."""
        return self.encoder.attend(self.tokens(frames, lengths=lengths), mask=_real(lengths))

    def tokens(self, frames: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """What the encoder is given: (batch, 1 + n', width)."""
        self._check(frames, lengths)
        x = self.subsampling(levelled(frames, lengths))
        return torch.cat((self.gathering.expand(len(x), -1, -1), x), dim=1)

    def _check(self, frames: Tensor, lengths: Tensor | None) -> None:
        checks.tensor(frames, "frames", dtype="floats")
        inputs.same_dtype(frames, "frames", self.gathering)
        if frames.dim() != 3 or frames.shape[2] != self.bands:
            raise SpecError(f"frames must be (batch, n, {self.bands}); got shape {tuple(frames.shape)}.")
        batch, n, _ = frames.shape
        if lengths is not None and checks.tensor(lengths, "lengths", dtype="integers").shape != (batch,):
            raise SpecError(f"lengths must be one number a clip, ({batch},); got shape {tuple(lengths.shape)}.")
        least, most = (n, n) if lengths is None or not batch else (int(lengths.min()), int(lengths.max()))
        if least < SHORTEST:
            raise SpecError(f"a clip must have at least {SHORTEST} frames; got {least}. Add silence behind it.")
        if most > n:
            raise SpecError(f"lengths must be at most the {n} frames there are; got {most}.")


class Subsampling(nn.Module):
    """frames (batch, n, bands) in, tokens (batch, n', width) out, where n' is `tokens_of` n: about a fourth.

    Two convolutions over time and bands alike, three wide in steps of two and without padding: a token is made of seven
    neighbouring frames, and is real if they are.
    """

    def __init__(self, bands: int, channels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, stride=2)
        self.second = nn.Conv2d(channels, channels, 3, stride=2)
        self.out = nn.Linear(channels * halved(halved(bands)), width)

    def forward(self, frames: Tensor) -> Tensor:
        x = gelu(self.second(gelu(self.first(frames.unsqueeze(1)))))  # batch, channels, time, bands
        return self.out(x.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]  # modules are untyped


def halved(n: Number) -> Number:
    """How many outputs a convolution over n has that is three wide, in steps of two, without padding: ⌊(n - 1) / 2⌋."""
    return (n - 1) // 2


def tokens_of(lengths: Tensor) -> Tensor:
    """How many tokens are made of so many frames.

    >>> tokens_of(torch.tensor([6, 7, 10, 11, 98]))
    tensor([ 0,  1,  1,  2, 23])
    """
    return halved(halved(lengths)).clamp(min=0)


def levelled(frames: Tensor, lengths: Tensor | None) -> Tensor:
    """Frames with mean 0 in each band and spread 1 over all, over what is real, which is how a microphone and its
    distance matter less; 0 in what is not."""
    if lengths is None:
        lengths = frames.new_full(frames.shape[:1], frames.shape[1], dtype=torch.long)
    count = lengths.view(-1, 1, 1)
    unreal = torch.arange(frames.shape[1], device=frames.device).view(1, -1, 1) >= count
    mean = frames.masked_fill(unreal, 0).sum(1, keepdim=True) / count
    centred = (frames - mean).masked_fill(unreal, 0)
    spread = centred.square().sum((1, 2), keepdim=True).div(count * frames.shape[2]).sqrt()
    return centred / (spread + 1e-3)  # silence has no spread


def _real(lengths: Tensor | None) -> Any:
    """Who is looked at: the gathering token and the real ones."""
    return None if lengths is None else padding(1 + tokens_of(lengths))
