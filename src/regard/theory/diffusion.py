"""What Gaussian attention does in the limit of small steps, and the potentials that balance it.

Keys have the density p = exp(-(x² - 1)² / 2), two wells; the function that is moved is f = sin 2x. Integrals over keys
are sums over a grid with log p added to the scores.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.attention import attend, attention
from regard.spec import score

STEPS = (0.008, 0.004, 0.002, 0.001, 0.0005)  # σ², halved again and again
PLACES = 25


@dataclass(frozen=True, eq=False)
class Limit:
    """A limit: extrapolated from the library's numbers, by formula, and the last step of the extrapolation."""

    found: Tensor
    exact: Tensor
    step: float


def slopes() -> Tensor:
    """The places where limits are taken."""
    return torch.linspace(-1.5, 1.5, PLACES, dtype=torch.float64)


def limits() -> dict[str, Limit]:
    """Of (Pf - f) / (σ²/2): with the density as it is (`drift`), and divided out (`plain`)."""
    x = slopes()
    laplacian = -4 * torch.sin(2 * x)
    pull = -2 * x * (x.square() - 1)  # ∇log p
    exact = {"drift": laplacian + 2 * pull * 2 * torch.cos(2 * x), "plain": laplacian}
    return {name: _limit(x, name == "plain", exact[name]) for name in exact}


def _limit(x: Tensor, divided: bool, exact: Tensor) -> Limit:
    """Extrapolated to σ² = 0: what is left of the expansion in powers of σ² loses one power at each level."""
    levels = [torch.stack([_rate(x, epsilon, divided) for epsilon in STEPS])]
    for power in range(1, len(STEPS)):
        above = levels[-1]
        levels.append((2**power * above[1:] - above[:-1]) / (2**power - 1))
    found = levels[-1][0]
    return Limit(found, exact, float((found - levels[-2][-1]).abs().max()))


def _rate(x: Tensor, epsilon: float, divided: bool) -> Tensor:
    sigma = epsilon**0.5
    at = torch.arange(-3.5, 3.5, sigma / 3, dtype=torch.float64)[:, None]
    logs = -((at.flatten().square() - 1) ** 2) / 2
    kernel = score.metric(sigma)
    if divided:  # by the density that the kernel sees at each key, which is the sum that lse is the logarithm of
        logs = logs - attend(at, at, at, score=kernel.then(score.bias(logs[None, :]))).lse
    moved: Tensor = attention(x[:, None], at, torch.sin(2 * at), score=kernel.then(score.bias(logs[None, :])))
    return (moved.flatten() - torch.sin(2 * x)) / (epsilon / 2)


def balanced(at: Tensor, kernel: Any, logs: Tensor, within: float = 1e-10, most: int = 500) -> Tensor:
    """The potential u of Sinkhorn: exp(s_ij + u_i + u_j) times the keys' shares has rows and columns of sum 1."""
    potential = torch.zeros_like(logs)
    for _ in range(most):
        lse = attend(at, at, at, score=kernel.then(score.bias((logs + potential)[None, :]))).lse
        moved = (potential - lse) / 2  # half of the way: the whole one would swing between two answers
        change = float((moved - potential).abs().max())
        potential = moved
        if change < within:
            break
    return potential
