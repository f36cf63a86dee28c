"""Rescaling of rotary frequencies for texts longer than those in training, like Hugging Face's `rope_scaling`."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import checks
from regard.errors import ArgumentError

MAX_FACTOR = 1e12  # a larger factor could make the base overflow


@dataclass(frozen=True)
class LinearRopeScaling:
    """Position interpolation: divides all positions by `factor` (Chen et al., 2023).

    >>> LinearRopeScaling(4.0).scale_frequencies(torch.tensor([1.0, 0.1]), base=10000.0)
    tensor([0.2500, 0.0250])
    """

    factor: float

    def __post_init__(self) -> None:
        check_factor(self.factor)

    def scale_frequencies(self, inv_freq: Tensor, base: float) -> Tensor:
        """Return the rescaled frequencies (rope_dim / 2,) of the frequencies `inv_freq` of `base`."""
        check_frequencies(inv_freq, base)
        return inv_freq / self.factor

    def attention_factor(self) -> float:
        """Return the factor by which queries and keys are multiplied."""
        return 1.0


@dataclass(frozen=True)
class NTKRopeScaling:
    """NTK-aware scaling: enlarges the base so that the lowest frequency is divided by `factor`; the highest stays.

    >>> NTKRopeScaling(4.0).scale_frequencies(torch.tensor([1.0, 0.01]), base=10000.0)
    tensor([1.0000, 0.0025], dtype=torch.float64)
    """

    factor: float

    def __post_init__(self) -> None:
        check_factor(self.factor)

    def scale_frequencies(self, inv_freq: Tensor, base: float) -> Tensor:
        """Return the rescaled frequencies (rope_dim / 2,) of the frequencies `inv_freq` of `base`."""
        check_frequencies(inv_freq, base)
        dim = 2 * len(inv_freq)
        if dim == 2:
            raise ArgumentError("NTKRopeScaling needs a rope_dim of at least 4; got 2.")
        return inverse_frequencies(dim, base * self.factor ** (dim / (dim - 2)))

    def attention_factor(self) -> float:
        """Return the factor by which queries and keys are multiplied."""
        return 1.0


@dataclass(frozen=True)
class YarnRopeScaling:
    """YaRN: divides low frequencies by `factor` and keeps high frequencies (Peng et al., 2023).

    A frequency is low if it has fewer than `beta_slow` rotations in `original_max_len` positions, and high if it has
    more than `beta_fast`. Frequencies in between are interpolated. Queries and keys are multiplied by
    `attention_factor()`, which is 0.1 log(factor) + 1, or 1 if `factor` is at most 1.

    >>> round(YarnRopeScaling(4.0, original_max_len=2048).attention_factor(), 4)
    1.1386
    """

    factor: float
    original_max_len: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self) -> None:
        check_rope_scaling(self, high="beta_fast", low="beta_slow")

    def scale_frequencies(self, inv_freq: Tensor, base: float) -> Tensor:
        """Return the rescaled frequencies (rope_dim / 2,) of the frequencies `inv_freq` of `base`."""
        check_frequencies(inv_freq, base)
        pairs = len(inv_freq)

        def pair_index(num_rotations: float) -> float:
            """Return the (fractional) pair that rotates `num_rotations` times in `original_max_len` positions."""
            return pairs * math.log(self.original_max_len / (num_rotations * 2 * math.pi)) / math.log(base)

        first = max(math.floor(pair_index(self.beta_fast)), 0)
        last = min(math.ceil(pair_index(self.beta_slow)), 2 * pairs - 1)
        ramp = ((torch.arange(pairs, dtype=inv_freq.dtype) - first) / max(last - first, 0.001)).clamp(0, 1)
        return inv_freq / self.factor * ramp + inv_freq * (1 - ramp)

    def attention_factor(self) -> float:
        """Return the factor by which queries and keys are multiplied."""
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclass(frozen=True)
class Llama3RopeScaling:
    """Llama 3.1's scaling: divides low frequencies by `factor` and keeps high frequencies.

    A frequency is low if its wavelength exceeds `original_max_len / low_freq_factor`, and high if its wavelength is
    below `original_max_len / high_freq_factor`. Frequencies in between are interpolated.

    >>> Llama3RopeScaling(8.0, original_max_len=8192).scale_frequencies(torch.tensor([1.0, 1e-4]), base=500000.0)
    tensor([1.0000e+00, 1.2500e-05])
    """

    factor: float
    original_max_len: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self) -> None:
        check_rope_scaling(self, high="high_freq_factor", low="low_freq_factor")

    def scale_frequencies(self, inv_freq: Tensor, base: float) -> Tensor:
        """Return the rescaled frequencies (rope_dim / 2,) of the frequencies `inv_freq` of `base`."""
        check_frequencies(inv_freq, base)
        rotations = self.original_max_len * inv_freq / (2 * math.pi)
        ramp = ((rotations - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return inv_freq * ramp + inv_freq / self.factor * (1 - ramp)

    def attention_factor(self) -> float:
        """Return the factor by which queries and keys are multiplied."""
        return 1.0


RopeScaling = LinearRopeScaling | NTKRopeScaling | YarnRopeScaling | Llama3RopeScaling
ROPE_SCALINGS = (LinearRopeScaling, NTKRopeScaling, YarnRopeScaling, Llama3RopeScaling)


def check_base(base: float) -> float:
    return checks.finite_number(base, "base", above=1, at_most=MAX_FACTOR)


def check_factor(factor: float) -> float:
    return checks.finite_number(factor, "factor", above=0, at_most=MAX_FACTOR)


def check_rope_scaling(scaling: YarnRopeScaling | Llama3RopeScaling, *, high: str, low: str) -> None:
    """Check the fields of a scaling; `high` and `low` name the two fields that bound the interpolated frequencies."""
    check_factor(scaling.factor)
    checks.size(scaling.original_max_len, "original_max_len")
    upper = checks.finite_number(getattr(scaling, high), high, above=0)
    lower = checks.finite_number(getattr(scaling, low), low, above=0)
    if upper <= lower:
        raise ArgumentError(f"{high} must be larger than {low}; got {high}={upper}, {low}={lower}.")


def check_frequencies(inv_freq: Tensor, base: float) -> None:
    checks.tensor(inv_freq, "inv_freq", shape=("pairs",), dtype_kind="floats")
    check_base(base)


def inverse_frequencies(dim: int, base: float) -> Tensor:
    """Return the angle per position of each pair of features, (dim / 2,) in float64."""
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
