"""Exact moments of softmax over n independent normal scores of standard deviation s, by one integral each.

With x normal of standard deviation s and y = exp(x - u), let φ(u) = E exp(-y). Since 1/Z^k is an integral over
exp(-tZ) t^(k-1) / (k-1)!, with t = exp(-u) and Z = Σ exp(x_j),

    E log Z        = ∫ (exp(-exp(-u)) - φ^n) du
    E Σ a_j^k      = n / (k-1)! ∫ E[y^k exp(-y)] φ^(n-1) du
    E Σ a_j x_j    = n ∫ E[x y exp(-y)] φ^(n-1) du
    E Σ a_i² a_j²  = n (n-1) / 6 ∫ E[y² exp(-y)]² φ^(n-2) du       over pairs i ≠ j

The integrals are sums over a grid of step 1/4: the integrands are analytic within π/2 of the real line, so the error is
about exp(-π² / step), below rounding. The model is Derrida's random energy model. As n grows, the weights are diffuse
for s < √(2 log n), with entropy log n - s²/2 and Σ a² = exp(s²)/n. For larger s they are frozen: a few keys have all
the weight, with a Poisson-Dirichlet distribution of parameter m = √(2 log n) / s.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

INTEGRATION_STEP = 1 / 4
TAIL_CUTOFF = 1e-18  # the truncated part at both ends of an integral


@dataclass(frozen=True)
class SoftmaxMoments:
    """Means over random scores: the entropy, Σ a², and |J|² of the Jacobian J = diag(a) - aaᵀ of softmax."""

    entropy: float
    sum_of_squares: float
    jacobian_sq_norm: float


def exact_moments(n: int, std: float) -> SoftmaxMoments:
    """Return the exact means for `n` keys (two or more) whose scores have the standard deviation `std`.

    >>> exact_moments(2, 1e-3).entropy - math.log(2) < 1e-6
    True
    """
    x, quadrature_weights = _normal_quadrature(std)
    u = _integration_grid(n, std)
    y = torch.exp(x[None, :] - u[:, None])
    exp_neg_y = torch.exp(-y)
    # 1 - φ keeps its digits where φ is near 1, which determines φ^n
    one_minus_phi = (-torch.expm1(-y)) @ quadrature_weights
    moments = {k: (y**k * exp_neg_y).nan_to_num(0.0, 0.0, 0.0) @ quadrature_weights for k in range(1, 5)}
    x_moment = (x * y * exp_neg_y).nan_to_num(0.0, 0.0, 0.0) @ quadrature_weights

    def phi_power(count: int) -> Tensor:
        """Return φ to this power."""
        return torch.exp(count * torch.log1p(-one_minus_phi.clamp(max=1 - 1e-16)))

    def power_sum(k: int) -> float:
        """Return E Σ a^k."""
        return n / math.factorial(k - 1) * float((moments[k] * phi_power(n - 1)).sum()) * INTEGRATION_STEP

    pairs = n * (n - 1) / 6 * float((moments[2].square() * phi_power(n - 2)).sum()) * INTEGRATION_STEP
    log_z = float((torch.exp(-torch.exp(-u)) - phi_power(n)).sum()) * INTEGRATION_STEP
    score = n * float((x_moment * phi_power(n - 1)).sum()) * INTEGRATION_STEP
    # |J|² = Σ a² - 2 Σ a³ + (Σ a²)²
    return SoftmaxMoments(log_z - score, power_sum(2), power_sum(2) - 2 * power_sum(3) + power_sum(4) + pairs)


def frozen_limit(n: int, std: float) -> SoftmaxMoments:
    """Return the limit for many keys and s > √(2 log n): the means of a Poisson-Dirichlet law, m = √(2 log n) / s."""
    m = torch.tensor(math.sqrt(2 * math.log(n)) / std, dtype=torch.float64)
    entropy = torch.digamma(torch.ones_like(m)) - torch.digamma(1 - m)
    return SoftmaxMoments(float(entropy), float(1 - m), float(m * (1 - m) / 3))


def diffuse_limit(n: int, std: float) -> SoftmaxMoments:
    """Return the limit for many keys and s < √(2 log n) (for the squares, half of that): weights are diffuse."""
    squares = math.exp(std**2) / n
    return SoftmaxMoments(math.log(n) - std**2 / 2, squares, squares)


def _integration_grid(n: int, std: float) -> Tensor:
    """Return the support of the integrals over u: φ^(n-2) and exp(-exp(-u)) vanish below, n E[y exp(-y)] above."""
    low, high = torch.special.ndtri(
        torch.tensor([TAIL_CUTOFF ** (1 / max(1, n - 2)), TAIL_CUTOFF / n], dtype=torch.float64)
    )
    upper = max(-float(high) * std, std**2 / 2 + math.log(n / TAIL_CUTOFF))
    return torch.arange(
        min(0.0, float(low) * std) - 5, min(upper, -float(high) * std + 50) + 5, INTEGRATION_STEP, dtype=torch.float64
    )


def _normal_quadrature(std: float) -> tuple[Tensor, Tensor]:
    """Return the nodes and weights of a quadrature for a normal variable."""
    step = min(INTEGRATION_STEP, std / 4)
    x = torch.arange(-10 * std, 10 * std + step, step, dtype=torch.float64)
    weights = torch.exp(-((x / std) ** 2) / 2)
    return x, weights / weights.sum()
