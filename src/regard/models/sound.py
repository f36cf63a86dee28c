"""Sound as numbers: samples from a file, at another rate, and as log-mel frames. With torch alone."""

import wave
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from regard import checks
from regard.errors import LoadError, SpecError

MAX_RATE = 2**24  # samples a second


@dataclass(frozen=True)
class LogMel:
    """How loud each band of pitches is, from moment to moment: sound (..., samples) in, frames (..., n, bands) out.

    A frame is made of `window` samples, and one begins every `step` samples, as long as they last. The defaults are
    25 ms and 10 ms at 8 kHz. Bands are triangles that are equally wide in mel and overlap by half; `points` is the
    length of the Fourier transform. With a Hann window w:

        X[t, k] = Σ_i w[i] · x[t·step + i] · e^(-2πi·k·i / points)
        frame[t, m] = log max(floor, Σ_k triangle_m[k] · |X[t, k]|²)

    >>> frames = LogMel()
    >>> frames(torch.randn(2, 8000)).shape, frames.lengths(torch.tensor([8000, 279, 280]))
    (torch.Size([2, 98, 40]), tensor([98,  1,  2]))
    """

    rate: int = 8000
    window: int = 200
    step: int = 80
    points: int = 512
    bands: int = 40
    lowest: float = 60.0
    floor: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("rate", "window", "step", "points", "bands"):
            checks.whole_number(getattr(self, name), name, at_least=1, at_most=MAX_RATE)
        checks.finite_number(self.lowest, "lowest", at_least=0)
        object.__setattr__(self, "floor", checks.finite_number(self.floor, "floor", at_least=0))
        checks.parameter("the triangles of the bands", self.bands, self.points)
        if self.lowest >= self.rate / 2:
            raise SpecError(f"lowest must be below half the rate, {self.rate / 2}; got {self.lowest}.")
        if self.window > self.points:
            raise SpecError(
                f"a window must fit into the transform; got window={self.window}, points={self.points}. "
                "Give more points."
            )

    def __call__(self, sound: Tensor) -> Tensor:
        checks.tensor(sound, "sound", dtype="floats")
        if sound.dim() == 0:
            raise SpecError("sound must be (..., samples); got a tensor of shape ().")
        if sound.shape[-1] < self.window:
            raise SpecError(
                f"sound must have at least the {self.window} samples of a frame; got {sound.shape[-1]}. "
                "Add silence behind it."
            )
        hann = torch.hann_window(self.window, dtype=sound.dtype, device=sound.device)
        waves = torch.fft.rfft(sound.unfold(-1, self.window, self.step) * hann, self.points)
        power = waves.real.square() + waves.imag.square()
        bands: Tensor = power @ triangles(self).to(power).mT
        return bands.clamp(min=self.floor).log()

    def lengths(self, samples: Tensor) -> Tensor:
        """How many whole frames fit into so many samples."""
        checks.tensor(samples, "samples", dtype="integers")
        return ((samples - self.window) // self.step + 1).clamp(min=0)


def mel(hertz: Tensor) -> Tensor:
    """Pitch as it is heard: 2595 · log₁₀(1 + f / 700), close to straight below 700 Hz and a logarithm above.

    >>> mel(torch.tensor([0.0, 1000.0, 4000.0])).round()
    tensor([   0., 1000., 2146.])
    """
    checks.tensor(hertz, "hertz", dtype="floats")
    return 2595.0 * (1.0 + hertz / 700.0).log10()


def hertz(mel: Tensor) -> Tensor:
    """The frequency of a pitch in mel."""
    checks.tensor(mel, "mel", dtype="floats")
    return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)


@cache
def triangles(frames: LogMel) -> Tensor:
    """The bands (bands, points / 2 + 1) in float64: each rises from the middle of the one before it to 1, and falls to
    the middle of the one after it."""
    first, last = mel(torch.tensor([frames.lowest, frames.rate / 2], dtype=torch.float64))
    corners = hertz(torch.linspace(float(first), float(last), frames.bands + 2, dtype=torch.float64)).unsqueeze(1)
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    at = torch.arange(frames.points // 2 + 1, dtype=torch.float64) * frames.rate / frames.points
    return torch.minimum((at - left) / (middle - left), (right - at) / (right - middle)).clamp(min=0)


def resampled(sound: Tensor, rate: int, to: int) -> Tensor:
    """The same sound (..., samples) at another rate: all that both rates can hold, and nothing else.

    It is taken to repeat: where end and beginning differ, both ring.

    >>> resampled(torch.randn(22050), 22050, to=8000).shape
    torch.Size([8000])
    """
    checks.tensor(sound, "sound", dtype="floats")
    for name, number in (("rate", rate), ("to", to)):
        checks.whole_number(number, name, at_least=1, at_most=MAX_RATE)
    if sound.dim() == 0 or sound.shape[-1] == 0:
        raise SpecError(f"sound must be (..., samples) with at least one sample; got shape {tuple(sound.shape)}.")
    before = sound.shape[-1]
    after = round(before * to / rate)
    if after < 1:
        raise SpecError(f"a sound of {before} samples at rate {rate} is less than one sample at rate {to}.")
    kept = (min(before, after) + 1) // 2  # frequencies below half of either rate
    again: Tensor = torch.fft.irfft(torch.fft.rfft(sound)[..., :kept], after)
    return again * (after / before)


def read_wav(file: Path | BinaryIO) -> tuple[Tensor, int]:
    """Samples between -1 and 1 of a WAV file of one channel and 16 bits, and their rate."""
    if not isinstance(file, Path) and not hasattr(file, "read"):
        raise SpecError(f"file must be a pathlib.Path or an open file; got {checks.describe(file)}.")
    name = file if isinstance(file, Path) else "the sound"
    try:
        with wave.open(str(file) if isinstance(file, Path) else file) as opened:
            kind, rate = (opened.getnchannels(), 8 * opened.getsampwidth()), opened.getframerate()
            data = opened.readframes(opened.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise LoadError(f"{name} must be a WAV file; got: {error}.") from None
    if kind != (1, 16):
        raise LoadError(f"{name} must have 1 channel and 16 bits; got {kind[0]} and {kind[1]}. Convert it first.")
    return torch.frombuffer(bytearray(data), dtype=torch.int16).float() / 32768, rate
