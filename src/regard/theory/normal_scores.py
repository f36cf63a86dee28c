"""Softmax over n independent normal scores of spread s, on average: exact at every n and s, by one integral each.

With x normal of standard deviation s and y = exp(x - u), let φ(u) = E exp(-y). Since 1/Z^k is an integral over
exp(-tZ) t^(k-1) / (k-1)!, with t = exp(-u) and Z = Σ exp(x_j),

    E log Z        = ∫ (exp(-exp(-u)) - φ^n) du
    E Σ a_j^k      = n / (k-1)! ∫ E[y^k exp(-y)] φ^(n-1) du
    E Σ a_j x_j    = n ∫ E[x y exp(-y)] φ^(n-1) du
    E Σ a_i² a_j²  = n (n-1) / 6 ∫ E[y² exp(-y)]² φ^(n-2) du       over pairs i ≠ j

Both integrals are sums over a grid of step 1/4: their integrands are analytic within π/2 of the real line, so that the
error is about exp(-π² / step), below rounding. Physicists know the model as Derrida's random energy model. For n to
infinity its weights are spread for s < √(2 log n), with entropy log n - s²/2 and Σ a² = exp(s²)/n; beyond that they are
frozen: few keys hold everything, with the weights of a Poisson-Dirichlet law of m = √(2 log n) / s.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

STEP = 1 / 4
NOTHING = 1e-18  # what is left out at both ends of an integral


@dataclass(frozen=True)
class Expected:
    """Means over all draws of the scores: the entropy, Σ a², and |J|² of the Jacobian J = diag(a) - aa' of softmax."""

    entropy: float
    squares: float
    jacobian: float


def expected(n: int, spread: float) -> Expected:
    """The exact means for `n` keys (two or more) whose scores have the standard deviation `spread`.

    >>> expected(2, 1e-3).entropy - math.log(2) < 1e-6
    True
    """
    x, share = _normal(spread)
    u = _places(n, spread)
    y = torch.exp(x[None, :] - u[:, None])
    falls = torch.exp(-y)
    # 1 - φ keeps its digits where φ is near 1, which decides φ^n
    missing = (-torch.expm1(-y)) @ share
    powers = {k: (y**k * falls).nan_to_num(0.0, 0.0, 0.0) @ share for k in range(1, 5)}
    with_x = (x * y * falls).nan_to_num(0.0, 0.0, 0.0) @ share

    def left(count: int) -> Tensor:
        """φ to this power."""
        return torch.exp(count * torch.log1p(-missing.clamp(max=1 - 1e-16)))

    def sums(k: int) -> float:
        """E Σ a^k."""
        return n / math.factorial(k - 1) * float((powers[k] * left(n - 1)).sum()) * STEP

    pairs = n * (n - 1) / 6 * float((powers[2].square() * left(n - 2)).sum()) * STEP
    log_z = float((torch.exp(-torch.exp(-u)) - left(n)).sum()) * STEP
    score = n * float((with_x * left(n - 1)).sum()) * STEP
    # |J|² = Σ a² - 2 Σ a³ + (Σ a²)²
    return Expected(log_z - score, sums(2), sums(2) - 2 * sums(3) + sums(4) + pairs)


def frozen(n: int, spread: float) -> Expected:
    """The limit for many keys beyond s = √(2 log n): the means of a Poisson-Dirichlet law with m = √(2 log n) / s."""
    m = torch.tensor(math.sqrt(2 * math.log(n)) / spread, dtype=torch.float64)
    entropy = torch.digamma(torch.ones_like(m)) - torch.digamma(1 - m)
    return Expected(float(entropy), float(1 - m), float(m * (1 - m) / 3))


def spread_out(n: int, spread: float) -> Expected:
    """The limit for many keys while s < √(2 log n) (for the squares, half of that): all keys take part."""
    squares = math.exp(spread**2) / n
    return Expected(math.log(n) - spread**2 / 2, squares, squares)


def _places(n: int, spread: float) -> Tensor:
    """Where the integrals over u have something: φ^(n-2) and exp(-exp(-u)) vanish below, n E[y exp(-y)] above."""
    low, high = torch.special.ndtri(torch.tensor([NOTHING ** (1 / max(1, n - 2)), NOTHING / n], dtype=torch.float64))
    most = max(-float(high) * spread, spread**2 / 2 + math.log(n / NOTHING))
    return torch.arange(
        min(0.0, float(low) * spread) - 5, min(most, -float(high) * spread + 50) + 5, STEP, dtype=torch.float64
    )


def _normal(spread: float) -> tuple[Tensor, Tensor]:
    """Places of a normal variable, and their shares."""
    step = min(STEP, spread / 4)
    x = torch.arange(-10 * spread, 10 * spread + step, step, dtype=torch.float64)
    share = torch.exp(-((x / spread) ** 2) / 2)
    return x, share / share.sum()
