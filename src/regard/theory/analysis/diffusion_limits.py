"""Limits of Gaussian attention for small σ, and the Sinkhorn potentials of its kernel.

Keys have the double-well density p = exp(-(x² - 1)² / 2), and the values are f = sin 2x. Integrals over keys are sums
over a grid, with log p added to the scores.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard import score
from regard.attention import attention, attention_with_weights

SIGMA_SQUARED_STEPS = (0.008, 0.004, 0.002, 0.001, 0.0005)  # halved each time, for the extrapolation
NUM_POSITIONS = 25


@dataclass(frozen=True, eq=False)
class ExtrapolatedLimit:
    """A limit: the extrapolated estimate, the exact value, and the last step of the extrapolation as error estimate."""

    estimate: Tensor
    exact: Tensor
    error_estimate: float


def limit_positions() -> Tensor:
    """Return the positions at which the limits are evaluated."""
    return torch.linspace(-1.5, 1.5, NUM_POSITIONS, dtype=torch.float64)


def extrapolate_limits() -> dict[str, ExtrapolatedLimit]:
    """Return the limits of (Pf - f) / (σ²/2): "drift", and "plain" with the density of the keys divided out."""
    x = limit_positions()
    laplacian = -4 * torch.sin(2 * x)
    log_density_gradient = -2 * x * (x.square() - 1)
    exact = {"drift": laplacian + 2 * log_density_gradient * 2 * torch.cos(2 * x), "plain": laplacian}
    return {name: _extrapolate(x, name == "plain", exact[name]) for name in exact}


def _extrapolate(x: Tensor, divide_by_density: bool, exact: Tensor) -> ExtrapolatedLimit:
    """Return the Richardson extrapolation to σ² = 0; each level removes one power of σ² from the error."""
    levels = [torch.stack([_generator_rate(x, epsilon, divide_by_density) for epsilon in SIGMA_SQUARED_STEPS])]
    for power in range(1, len(SIGMA_SQUARED_STEPS)):
        previous = levels[-1]
        levels.append((2**power * previous[1:] - previous[:-1]) / (2**power - 1))
    estimate = levels[-1][0]
    return ExtrapolatedLimit(estimate, exact, float((estimate - levels[-2][-1]).abs().max()))


def _generator_rate(x: Tensor, epsilon: float, divide_by_density: bool) -> Tensor:
    sigma = epsilon**0.5
    keys = torch.arange(-3.5, 3.5, sigma / 3, dtype=torch.float64)[:, None]
    log_density = -((keys.flatten().square() - 1) ** 2) / 2
    kernel = score.gaussian(sigma)
    if divide_by_density:  # by the kernel density estimate at each key, which is exp(lse)
        biased = kernel.then(score.bias(log_density[None, :]))
        log_density = log_density - attention_with_weights(keys, keys, keys, score=biased).lse
    biased = kernel.then(score.bias(log_density[None, :]))
    output: Tensor = attention(x[:, None], keys, torch.sin(2 * keys), score=biased)
    return (output.flatten() - torch.sin(2 * x)) / (epsilon / 2)


def sinkhorn_potential(
    positions: Tensor, kernel: Any, log_density: Tensor, tolerance: float = 1e-10, max_iterations: int = 500
) -> Tensor:
    """Return Sinkhorn's potential u: rows and columns of exp(s_ij + u_i + u_j), weighted by the density, sum to 1."""
    potential = torch.zeros_like(log_density)
    for _ in range(max_iterations):
        lse = attention_with_weights(
            positions, positions, positions, score=kernel.then(score.bias((log_density + potential)[None, :]))
        ).lse
        updated = (potential - lse) / 2  # a damped step: a full step would oscillate
        change = float((updated - potential).abs().max())
        potential = updated
        if change < tolerance:
            break
    return potential
