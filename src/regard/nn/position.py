"""Where a token stands, as attention comes to know it. Each kind says it in one of three places:

    Sinusoidal, Learned     added to the token's vector
    Rotary                  q and k are turned, so that their product knows the distance
    ALiBi, RelativeBias     a rule on the score

A stack asks all three of any kind; those that have nothing to say there leave things as they are.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard import checks
from regard.errors import SpecError
from regard.nn import inputs
from regard.spec.rotary import rotate
from regard.spec.rule import alibi, alibi_slopes, relative

MAX_HEADS = 2**16
MAX_FACTOR = 1e12  # larger ones could overflow on their way into a base


class Position(nn.Module):
    """What all kinds share. `at` holds the positions of the tokens, (n,) or (batch, n)."""

    def added(self, x: Tensor, at: Tensor) -> Tensor:
        """Vectors (batch, n, width) of tokens, with their positions."""
        return x

    def turned(self, q: Tensor, k: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys (batch, heads, n, width) of tokens, with their positions."""
        return q, k

    def rule(self) -> Any:
        """A rule (s, b, h, i, j) on the scores, or None."""
        return None


class Sinusoidal(Position):
    """sin(p / base^(2m/width)) in the even features, the cosine in the odd ones.

    >>> Sinusoidal(4).added(torch.zeros(1, 2, 4), torch.arange(2))[0, 1]
    tensor([0.8415, 0.5403, 0.0100, 0.9999])
    """

    def __init__(self, width: int, *, base: float = 10000.0) -> None:
        super().__init__()
        if checks.size(width, "width") % 2:
            raise SpecError(f"sinusoidal positions need an even width; got {width}.")
        self.width, self.base = width, base_of(base)

    def added(self, x: Tensor, at: Tensor) -> Tensor:
        inputs.vectors(x, "x", self.width)
        inputs.positions(at, x.shape[0], x.shape[1])
        return x + self.table(at).to(x)

    def table(self, at: Tensor) -> Tensor:
        """The vectors (..., width) of positions, in float64."""
        checks.tensor(at, "at", dtype="integers")
        angle = at.double().unsqueeze(-1) * speeds(self.width, self.base).to(at.device)
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


class Learned(Position):
    """A vector of its own for each of `longest` positions; beyond the last there is none."""

    def __init__(self, longest: int, width: int) -> None:
        super().__init__()
        checks.parameter("weight", checks.size(longest, "longest"), checks.size(width, "width"))
        self.weight = nn.Parameter(0.02 * torch.randn(longest, width))

    def added(self, x: Tensor, at: Tensor) -> Tensor:
        longest, width = self.weight.shape
        inputs.vectors(x, "x", width)
        inputs.positions(at, x.shape[0], x.shape[1])
        if not torch.compiler.is_compiling() and at.numel():
            first, last = (int(end) for end in at.aminmax())
            if last >= longest:
                raise SpecError(f"learned positions end at {longest - 1}; got a token at {last}. Give a shorter text.")
            if first < 0:
                raise SpecError(f"learned positions begin at 0; got a token at {first}.")
        return x + nn.functional.embedding(inputs.tokens(at, "at"), self.weight)


@dataclass(frozen=True)
class LinearScaling:
    """Positions `factor` times as close, so that a longer text looks as long as those a model knows."""

    factor: float

    def __post_init__(self) -> None:
        factor_of(self.factor)

    def speeds(self, speed: Tensor, base: float) -> Tensor:
        check_speeds(speed, base)
        return speed / self.factor

    def size(self) -> float:
        return 1.0


@dataclass(frozen=True)
class NTKScaling:
    """A larger base: slow features turn `factor` times as slowly, the fastest one as before."""

    factor: float

    def __post_init__(self) -> None:
        factor_of(self.factor)

    def speeds(self, speed: Tensor, base: float) -> Tensor:
        check_speeds(speed, base)
        width = 2 * len(speed)
        if width == 2:
            raise SpecError("NTKScaling tells slow features from fast ones; got a width of 2, which has one. Use more.")
        return speeds(width, base * self.factor ** (width / (width - 2)))

    def size(self) -> float:
        return 1.0


@dataclass(frozen=True)
class YarnScaling:
    """Features that turn less than `slow` times over `longest` positions are slowed, those above `fast` are not, those
    between in part; scores are larger by a factor that grows with the logarithm (Peng and others, 2023)."""

    factor: float
    longest: int
    fast: float = 32.0
    slow: float = 1.0

    def __post_init__(self) -> None:
        check_bounds(self.factor, self.longest, self.fast, self.slow)

    def speeds(self, speed: Tensor, base: float) -> Tensor:
        check_speeds(speed, base)
        pairs = len(speed)

        def turning(times: float) -> float:
            """The feature that turns so often over `longest` positions."""
            return pairs * math.log(self.longest / (times * 2 * math.pi)) / math.log(base)

        first = max(math.floor(turning(self.fast)), 0)
        last = min(math.ceil(turning(self.slow)), 2 * pairs - 1)
        slowed = ((torch.arange(pairs, dtype=speed.dtype) - first) / max(last - first, 0.001)).clamp(0, 1)
        return speed / self.factor * slowed + speed * (1 - slowed)

    def size(self) -> float:
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclass(frozen=True)
class Llama3Scaling:
    """Waves longer than `longest` / `slow` are slowed, those shorter than `longest` / `fast` are not, those between in
    part, as in Llama 3.1."""

    factor: float
    longest: int
    slow: float = 1.0
    fast: float = 4.0

    def __post_init__(self) -> None:
        check_bounds(self.factor, self.longest, self.fast, self.slow)

    def speeds(self, speed: Tensor, base: float) -> Tensor:
        check_speeds(speed, base)
        turns = self.longest * speed / (2 * math.pi)
        kept = ((turns - self.slow) / (self.fast - self.slow)).clamp(0, 1)
        return speed * kept + speed / self.factor * (1 - kept)

    def size(self) -> float:
        return 1.0


Scaling = LinearScaling | NTKScaling | YarnScaling | Llama3Scaling
SCALINGS = (LinearScaling, NTKScaling, YarnScaling, Llama3Scaling)


class Rotary(Position):
    """Pairs of features turn with the position, each at its own speed (Su and others, 2021).

    `layout` "half" pairs feature m with m + width/2 (Llama), "interleaved" with its neighbour. `width` is that of a
    head, or of the part of it that turns. `scaling` stretches positions for texts longer than those a model was trained
    on.

    >>> q, k = torch.randn(2, 1, 4, 10, 64)
    >>> near, far = (Rotary(64).turned(q, k, torch.arange(10) + first) for first in (0, 5000))
    >>> torch.allclose(near[0] @ near[1].mT, far[0] @ far[1].mT, atol=1e-4)
    True
    """

    def __init__(
        self, width: int, *, base: float = 10000.0, layout: str = "half", scaling: Scaling | None = None
    ) -> None:
        super().__init__()
        self.layout = checks.choice(layout, "layout", ("half", "interleaved"))
        if checks.size(width, "width") % 2:
            raise SpecError(f"rotary needs an even width; got {width}.")
        if scaling is not None:
            checks.instance(scaling, "scaling", SCALINGS, "LinearScaling, NTKScaling, YarnScaling or Llama3Scaling")
        speed = speeds(width, base_of(base))
        # a plain attribute: as a buffer it would follow the model into half precision
        self.speed = speed if scaling is None else scaling.speeds(speed, base)
        self.size = 1.0 if scaling is None else scaling.size()
        self._table: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(2, 0, width // 2))

    def turned(self, q: Tensor, k: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        checks.tensor(q, "q", shape=("batch", "heads", "n", "width"), dtype="floats")
        checks.tensor(k, "k", shape=("batch", "heads", "n", "width"), dtype="floats")
        inputs.positions(at, q.shape[0], q.shape[2])
        if k.shape[2] != q.shape[2] or k.shape[0] != q.shape[0]:
            raise SpecError(
                f"k must have the batch size and length of q, {q.shape[0]} and {q.shape[2]}; got shape "
                f"{tuple(k.shape)}."
            )
        cosine, sine = self._angles(at, torch.float64 if q.dtype == torch.float64 else torch.float32)
        if at.dim() == 2:
            cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
        return rotate(q, cosine, sine, self.layout), rotate(k, cosine, sine, self.layout)

    def _angles(self, at: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines (..., n, pairs); kept, since every layer asks for the same."""
        last, kept = self._table
        if torch.compiler.is_compiling():  # a graph keeps nothing, and cannot look whether it should
            return self._computed(at, dtype).unbind(0)  # type: ignore[return-value]  # two of them
        fits = last.shape == at.shape and last.device == at.device and kept.dtype == dtype
        if not fits or not torch.equal(last, at):
            with torch.inference_mode(False):  # what is made in that mode could not be used in training
                kept = self._computed(at.clone(), dtype)
                self._table = (at.clone(), kept)
        return kept[0], kept[1]

    def _computed(self, at: Tensor, dtype: torch.dtype) -> Tensor:
        # float64 angles: at position 100,000 a float32 angle is already off by 0.004
        angle = at.double().unsqueeze(-1) * self.speed.to(at.device)
        return torch.stack((angle.cos(), angle.sin())).mul(self.size).to(dtype)


class ALiBi(Position):
    """The further, the less: s - slopes[h] · |p - j|, with the published slopes (Press and others, 2021)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self._rule = alibi(alibi_slopes(checks.whole_number(heads, "heads", at_least=1, at_most=MAX_HEADS)))

    def rule(self) -> Any:
        return self._rule


class RelativeBias(Position):
    """T5's: a learned number for each head and each bucket of distances, added to the score.

    A decoder, which never looks ahead, spends all buckets on the past: `bidirectional=False`. T5 itself does not divide
    its scores by √d: `MultiHeadAttention(..., score=regard.score.dot())`.
    """

    def __init__(self, heads: int, *, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True) -> None:
        super().__init__()
        checks.parameter("weight", checks.size(buckets, "buckets"), checks.size(heads, "heads"))
        self.weight = nn.Parameter(0.02 * torch.randn(buckets, heads))
        self.max_distance = checks.size(max_distance, "max_distance")
        self.bidirectional = checks.flag(bidirectional, "bidirectional")
        self._rule: tuple[Tensor, Any] | None = None

    def rule(self) -> Any:
        # read once for as long as the table is the same one: loading or sharding may put another in its place
        if self._rule is None or self._rule[0] is not self.weight:
            made = relative(self.weight, bidirectional=self.bidirectional, max_distance=self.max_distance)
            if torch.compiler.is_compiling():
                return made
            self._rule = (self.weight, made)
        return self._rule[1]


def base_of(base: float) -> float:
    return checks.finite_number(base, "base", above=1, at_most=MAX_FACTOR)


def factor_of(factor: float) -> float:
    return checks.finite_number(factor, "factor", above=0, at_most=MAX_FACTOR)


def check_bounds(factor: float, longest: int, fast: float, slow: float) -> None:
    factor_of(factor)
    checks.size(longest, "longest")
    checks.finite_number(fast, "fast", above=0)
    checks.finite_number(slow, "slow", above=0)
    if fast <= slow:
        raise SpecError(f"fast must be larger than slow; got fast={fast}, slow={slow}.")


def check_speeds(speed: Tensor, base: float) -> None:
    checks.tensor(speed, "speed", shape=("pairs",), dtype="floats")
    base_of(base)


def speeds(width: int, base: float) -> Tensor:
    """How far each pair of features turns from one position to the next, in float64."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
