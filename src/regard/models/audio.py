"""Audio: reading WAV files, resampling and log-mel spectrograms, in plain torch."""

import wave
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from regard import checks
from regard.cache import memoize
from regard.errors import ArgumentError, LoadError

MAX_SAMPLE_RATE = 2**24  # Hz


@dataclass(frozen=True)
class LogMelSpectrogram:
    """Log-mel spectrogram: maps a waveform (..., samples) to frames (..., n, n_mels).

    A frame has `win_length` samples, and a new frame starts every `hop_length` samples. The defaults are 25 ms and
    10 ms at 8 kHz. The mel filters are triangles of equal width on the mel scale that overlap by half. The Fourier
    transform has length `n_fft`. With a Hann window w:

        X[t, k] = Σ_i w[i] · x[t·hop_length + i] · e^(-2πi·k·i / n_fft)
        frame[t, m] = log max(min_power, Σ_k filter_m[k] · |X[t, k]|²)

    >>> spectrogram = LogMelSpectrogram()
    >>> spectrogram(torch.randn(2, 8000)).shape, spectrogram.num_frames(torch.tensor([8000, 279, 280]))
    (torch.Size([2, 98, 40]), tensor([98,  1,  2]))
    """

    sample_rate: int = 8000
    win_length: int = 200
    hop_length: int = 80
    n_fft: int = 512
    n_mels: int = 40
    f_min: float = 60.0
    min_power: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("sample_rate", "win_length", "hop_length", "n_fft", "n_mels"):
            checks.integer(getattr(self, name), name, at_least=1, at_most=MAX_SAMPLE_RATE)
        checks.finite_number(self.f_min, "f_min", at_least=0)
        object.__setattr__(self, "min_power", checks.finite_number(self.min_power, "min_power", at_least=0))
        checks.parameter_size("the mel filterbank", self.n_mels, self.n_fft)
        if self.f_min >= self.sample_rate / 2:
            raise ArgumentError(f"f_min must be below sample_rate / 2, {self.sample_rate / 2}; got {self.f_min}.")
        if self.win_length > self.n_fft:
            raise ArgumentError(
                f"win_length must be at most n_fft; got win_length={self.win_length}, n_fft={self.n_fft}. "
                "Use a larger n_fft."
            )

    def __call__(self, waveform: Tensor) -> Tensor:
        checks.tensor(waveform, "waveform", dtype_kind="floats")
        if waveform.dim() == 0:
            raise ArgumentError("waveform must be (..., samples); got a tensor of shape ().")
        if waveform.shape[-1] < self.win_length:
            raise ArgumentError(
                f"waveform must have at least the {self.win_length} samples of a frame; got {waveform.shape[-1]}. "
                "Append silence."
            )
        hann = torch.hann_window(self.win_length, dtype=waveform.dtype, device=waveform.device)
        spectrum = torch.fft.rfft(waveform.unfold(-1, self.win_length, self.hop_length) * hann, self.n_fft)
        power = spectrum.real.square() + spectrum.imag.square()
        bands: Tensor = power @ mel_filterbank(self).to(power).mT
        return bands.clamp(min=self.min_power).log()

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """Return the number of complete frames in waveforms of `num_samples` samples."""
        checks.tensor(num_samples, "num_samples", dtype_kind="integers")
        return ((num_samples - self.win_length) // self.hop_length + 1).clamp(min=0)


def hz_to_mel(hz: Tensor) -> Tensor:
    """Convert Hz to mel: 2595 · log₁₀(1 + f / 700), almost linear below 700 Hz and logarithmic above.

    >>> hz_to_mel(torch.tensor([0.0, 1000.0, 4000.0])).round()
    tensor([   0., 1000., 2146.])
    """
    checks.tensor(hz, "hz", dtype_kind="floats")
    return 2595.0 * (1.0 + hz / 700.0).log10()


def mel_to_hz(mel: Tensor) -> Tensor:
    """Convert mel to Hz, the inverse of `hz_to_mel`.

    >>> mel_to_hz(torch.tensor([0.0, 1000.0, 2146.0])).round()
    tensor([   0., 1000., 4000.])
    """
    checks.tensor(mel, "mel", dtype_kind="floats")
    return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)


@memoize()
def mel_filterbank(spectrogram: LogMelSpectrogram) -> Tensor:
    """Return the mel filters (n_mels, n_fft / 2 + 1) in float64.

    Each filter is a triangle from the center of the previous band to the center of the next band.
    """
    min_mel, max_mel = hz_to_mel(torch.tensor([spectrogram.f_min, spectrogram.sample_rate / 2], dtype=torch.float64))
    corners = mel_to_hz(
        torch.linspace(float(min_mel), float(max_mel), spectrogram.n_mels + 2, dtype=torch.float64)
    ).unsqueeze(1)
    left, center, right = corners[:-2], corners[1:-1], corners[2:]
    hz = torch.arange(spectrogram.n_fft // 2 + 1, dtype=torch.float64) * spectrogram.sample_rate / spectrogram.n_fft
    return torch.minimum((hz - left) / (center - left), (right - hz) / (right - center)).clamp(min=0)


def resample(waveform: Tensor, orig_freq: int, new_freq: int) -> Tensor:
    """Resample a waveform (..., samples) from `orig_freq` to `new_freq` Hz in the Fourier domain.

    Frequencies below half of both rates are preserved. The waveform is treated as periodic, so a jump from its end to
    its start causes ringing at both.

    >>> resample(torch.randn(22050), 22050, new_freq=8000).shape
    torch.Size([8000])
    """
    checks.tensor(waveform, "waveform", dtype_kind="floats")
    for name, number in (("orig_freq", orig_freq), ("new_freq", new_freq)):
        checks.integer(number, name, at_least=1, at_most=MAX_SAMPLE_RATE)
    if waveform.dim() == 0 or waveform.shape[-1] == 0:
        raise ArgumentError(
            f"waveform must be (..., samples) with at least one sample; got shape {tuple(waveform.shape)}."
        )
    old_len = waveform.shape[-1]
    new_len = round(old_len * new_freq / orig_freq)
    if new_len < 1:
        raise ArgumentError(
            f"waveform must have at least one sample at new_freq={new_freq}; got {old_len} at orig_freq={orig_freq}."
        )
    bins = (min(old_len, new_len) + 1) // 2  # frequencies below half of both rates
    resampled: Tensor = torch.fft.irfft(torch.fft.rfft(waveform)[..., :bins], new_len)
    return resampled * (new_len / old_len)


def read_wav(file: Path | BinaryIO) -> tuple[Tensor, int]:
    """Return the samples of a 16-bit mono WAV file as floats from -1 to 1, and the sample rate."""
    if not isinstance(file, Path) and not hasattr(file, "read"):
        raise ArgumentError(f"file must be a pathlib.Path or an open file; got {checks.describe(file)}.")
    name = file if isinstance(file, Path) else "file"
    try:
        with wave.open(str(file) if isinstance(file, Path) else file) as reader:
            num_channels, bits, sample_rate = reader.getnchannels(), 8 * reader.getsampwidth(), reader.getframerate()
            data = reader.readframes(reader.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise LoadError(f"{name} must be a WAV file; reading it failed: {error}.") from None
    if (num_channels, bits) != (1, 16):
        raise LoadError(f"{name} must have 1 channel and 16 bits; got {num_channels} and {bits}. Convert it first.")
    return torch.frombuffer(bytearray(data), dtype=torch.int16).float() / 32768, sample_rate
