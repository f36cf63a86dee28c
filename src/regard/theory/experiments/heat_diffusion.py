"""Attention as heat diffusion: exact relations, limits, and a difference.

Gaussian attention, softmax(-|q - k|² / 2σ²), is the heat kernel of R^d at the time t = σ²/2,
(4πt)^(-d/2) exp(-|x - y|² / 4t), with each row divided by its sum. With keys of density p it is the operator
(Pf)(x) = Σ_j a(x, x_j) f(x_j), and for small σ

    (Pf - f) / (σ²/2)  ->  Δf + 2 <∇log p, ∇f>

which is diffusion with a drift toward dense keys (Coifman and Lafon, α = 0). If the weight of each key is divided by
its kernel density estimate q_j = Σ_i k(x_j, x_i), the drift vanishes (α = 1). For p = N(0, s²) and ε = σ², both means
are linear: x s² / (s² + ε) for softmax, and x c / s² with c = (√(ε² + 4s⁴) - ε) / 2 for Sinkhorn.

On a graph with weights A the heat equation is Ẋ = -(I - A) X, and its kernel is exp(-t(I - A)) = e^-t Σ t^k A^k / k!.
A is one explicit Euler step of length 1, not this kernel: for rows of equal variance the exact kernel has heavier
tails, with an excess kurtosis of 3/t.
"""

import math

import torch
from torch import Tensor

from regard import score
from regard.attention import attention, attention_with_weights
from regard.plot.chart_panels import Panel, PointAnimation, Series
from regard.plot.style import power_of_ten
from regard.theory.analysis.diffusion_limits import (
    ExtrapolatedLimit,
    extrapolate_limits,
    limit_positions,
    sinkhorn_potential,
)
from regard.theory.experiment import ProgressCallback, check_settings
from regard.theory.experiment_result import Claim, ExperimentResult

BUMP_STD = 0.5  # initial standard deviation of the bump that diffuses
NUM_TIME_STEPS = 41
ROUNDING_REASON = "rounding in float64, relative to the largest number"


@check_settings
def heat_diffusion(
    *,
    sigma: float = 0.3,
    key_std: float = 1.0,
    dim: int = 3,
    time: float = 4.0,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> ExperimentResult:
    """Compare Gaussian attention with heat kernels, closed forms, limits, and the exact heat kernel of a graph.

    `sigma` is the σ of the score, `key_std` the standard deviation of normal keys, `dim` the dimension of the points,
    and `time` the time of the heat flow on the graph.

    `seed` (default 0) seeds the random numbers. `progress`, if given, is called with the completed fraction of the
    work.

    >>> heat_diffusion(time=2.0).is_consistent
    True
    """
    random = torch.Generator().manual_seed(seed)
    report = progress or (lambda fraction: None)
    kernel = _heat_kernel_claim(torch.randn(40, dim, generator=random, dtype=torch.float64), sigma)
    report(0.1)
    means = _attention_means(sigma**2, key_std)
    report(0.4)
    limits = extrapolate_limits()
    report(0.6)
    graph = _graph_heat_kernel(sigma, time)
    report(0.7)
    bump = _diffuse_bump(sigma)
    report(1.0)
    return ExperimentResult(
        name="heat_diffusion",
        claims=(kernel, *_mean_claims(means), *_limit_claims(limits), *_graph_claims(graph, time), *_bump_claims(bump)),
        false_claims=_false_claims(limits, graph, means),
        panels=_panels(means, limits, graph, bump, sigma),
        settings={"sigma": sigma, "key_std": key_std, "dim": dim, "time": time, "seed": seed},
        data={**means, **graph, **{name: bump[name] for name in ("bump_actual", "bump_expected")}},
        animation=_animation(bump),
    )


def _heat_kernel_claim(x: Tensor, sigma: float) -> Claim:
    t, dim = sigma**2 / 2, x.shape[-1]
    squared_distances = (x[:, None, :] - x[None, :, :]).square().sum(-1)
    heat_kernel = (4 * math.pi * t) ** (-dim / 2) * torch.exp(-squared_distances / (4 * t))
    return Claim(
        "Gaussian attention is the heat kernel of R^d at t = σ²/2, each row divided by its sum",
        heat_kernel / heat_kernel.sum(-1, keepdim=True),
        attention_with_weights(x, x, x, score=score.gaussian(sigma)).weights.to_dense(),
        tolerance=1e-10,
        tolerance_reason="rounding of squared distances in float64, divided by 2σ² and exponentiated",
    )


def _attention_means(epsilon: float, key_std: float) -> dict[str, Tensor]:
    """Return the outputs of attention over keys of density N(0, s²), by softmax and by Sinkhorn."""
    grid = torch.arange(-9 * key_std, 9 * key_std, min(math.sqrt(epsilon), key_std) / 4, dtype=torch.float64)[:, None]
    log_density = -grid.flatten().square() / (2 * key_std**2)  # softmax cancels the missing constant
    is_central = grid.flatten().abs() < 2 * key_std
    kernel = score.gaussian(math.sqrt(epsilon))
    softmax = attention(grid, grid, grid, score=kernel.then(score.bias(log_density[None, :])))
    potential = sinkhorn_potential(grid, kernel, log_density)
    sinkhorn = attention(grid, grid, grid, score=kernel.then(score.bias((log_density + potential)[None, :])))
    c = (math.sqrt(epsilon**2 + 4 * key_std**4) - epsilon) / 2
    x = grid[is_central].flatten()
    return {
        "x": x,
        "softmax": softmax[is_central].flatten(),
        "softmax_exact": x * key_std**2 / (key_std**2 + epsilon),
        "sinkhorn": sinkhorn[is_central].flatten(),
        "sinkhorn_exact": x * c / key_std**2,
    }


def _mean_claims(means: dict[str, Tensor]) -> tuple[Claim, Claim]:
    size = means["x"].abs().max()
    return (
        Claim(
            "keys of density N(0, s²): softmax maps x to x s² / (s² + ε)",
            means["softmax_exact"] / size,
            means["softmax"] / size,
            1e-12,
            f"{ROUNDING_REASON}; the grid of the integral adds less",
        ),
        Claim(
            "Sinkhorn maps x to x c / s², c = (√(ε² + 4s⁴) - ε)/2",
            means["sinkhorn_exact"] / size,
            means["sinkhorn"] / size,
            1e-8,
            "iterations stop when potentials change by less than 1e-10",
        ),
    )


def _limit_claims(limits: dict[str, ExtrapolatedLimit]) -> tuple[Claim, ...]:
    statements = {
        "drift": "small σ: (Pf - f) / (σ²/2) tends to Δf + 2 <∇log p, ∇f>",
        "plain": "with weights divided by the density (α = 1) it tends to Δf",
    }
    reason = "the last step of the extrapolation to σ = 0, which exceeds the remaining error"
    return tuple(
        Claim(statements[name], limit.exact, limit.estimate, limit.error_estimate, reason)
        for name, limit in limits.items()
    )


def _graph_heat_kernel(sigma: float, time: float) -> dict[str, Tensor]:
    """Return the exact heat kernel of a graph on a line, with short steps, and attention of the same variance."""
    step = sigma / math.sqrt(time)
    grid = torch.arange(-12 * sigma - 8 * step, 12 * sigma + 8 * step, step / 2, dtype=torch.float64)[:, None]
    a = attention_with_weights(grid, grid, grid, score=score.gaussian(step)).weights.to_dense()
    identity = torch.eye(len(a), dtype=a.dtype)
    mixture, power = torch.zeros_like(a), identity
    for k in range(int(time + 12 * math.sqrt(time) + 30)):
        mixture = mixture + math.exp(k * math.log(time) - time - math.lgamma(k + 1)) * power
        power = power @ a
    middle = len(a) // 2
    wide_row = attention_with_weights(grid, grid, grid, score=score.gaussian(sigma)).weights[middle]
    return {
        "a": a,
        "poisson_mixture": mixture,
        "exact": torch.linalg.matrix_exp(-time * (identity - a)),
        "attention_row": a[middle],
        "heat_kernel_row_at_one": torch.linalg.matrix_exp(a - identity)[middle],
        "wide_attention_row": wide_row,
        "positions": grid.flatten() - grid[middle],
    }


def _graph_claims(graph: dict[str, Tensor], time: float) -> tuple[Claim, ...]:
    middle = len(graph["a"]) // 2
    row = graph["poisson_mixture"][middle]
    _, variance, fourth = _moments(row, graph["positions"])
    _, wide_variance, wide_fourth = _moments(graph["wide_attention_row"], graph["positions"])
    reason = "rounding, and the tails beyond 12 σ"
    return (
        Claim(
            "the heat kernel of a graph is a Poisson mixture of powers of A",
            graph["exact"],
            graph["poisson_mixture"],
            1e-12,
            ROUNDING_REASON,
        ),
        Claim(
            "attention with σ has the variance of the heat kernel after t steps of σ/√t",
            1.0,
            variance / wide_variance,
            1e-8,
            reason,
        ),
        Claim(
            "the heat kernel has heavier tails: its kurtosis is 3 + 3/t, that of attention is 3",
            [3 + 3 / time, 3.0],
            [fourth / variance**2, wide_fourth / wide_variance**2],
            1e-6,
            reason,
        ),
    )


def _moments(row: Tensor, positions: Tensor) -> tuple[float, float, float]:
    mean = float((row * positions).sum())
    return mean, float((row * (positions - mean) ** 2).sum()), float((row * (positions - mean) ** 4).sum())


def _diffuse_bump(sigma: float) -> dict[str, Tensor]:
    """Return a bump on a line after each step of attention, and the solution of the heat equation."""
    edge = 8 * math.sqrt(BUMP_STD**2 + NUM_TIME_STEPS * sigma**2)
    grid = torch.arange(-edge, edge, min(sigma, BUMP_STD) / 3, dtype=torch.float64)[:, None]
    height = torch.exp(-grid.square() / (2 * BUMP_STD**2))
    actual, expected = [], []
    for step in range(NUM_TIME_STEPS):
        variance = BUMP_STD**2 + step * sigma**2
        expected.append(BUMP_STD / math.sqrt(variance) * torch.exp(-grid.flatten().square() / (2 * variance)))
        actual.append(height.flatten())
        height = attention(grid, grid, height, score=score.gaussian(sigma))
    return {"positions": grid.flatten(), "bump_actual": torch.stack(actual), "bump_expected": torch.stack(expected)}


def _bump_claims(bump: dict[str, Tensor]) -> tuple[Claim, ...]:
    spans = bump["bump_actual"].amax(-1) - bump["bump_actual"].amin(-1)
    return (
        Claim(
            f"a bump of variance s² has the variance s² + kσ² after k steps, up to {NUM_TIME_STEPS - 1}",
            bump["bump_expected"],
            bump["bump_actual"],
            1e-10,
            "rounding; the line ends where the bump is below 1e-13",
        ),
        Claim(
            "the largest difference never grows, since rows of weights are averages",
            spans[:-1],
            spans[1:],
            1e-15,
            ROUNDING_REASON,
            "at most",
        ),
    )


def _false_claims(
    limits: dict[str, ExtrapolatedLimit], graph: dict[str, Tensor], means: dict[str, Tensor]
) -> tuple[Claim, ...]:
    drift, reason = limits["drift"], "the tolerance of the correct formula"
    return (
        Claim(
            "small σ: (Pf - f) / (σ²/2) tends to Δf for every density",
            limits["plain"].exact,
            drift.estimate,
            drift.error_estimate,
            reason,
        ),
        Claim(
            "attention weights are the Green's function of the graph: A = exp(-t(I - A)) at t = 1",
            graph["heat_kernel_row_at_one"],
            graph["attention_row"],
            1e-6,
            "rounding is far smaller",
        ),
        Claim(
            "Sinkhorn and softmax map points to the same positions",
            means["softmax_exact"],
            means["sinkhorn"],
            1e-6,
            "rounding is far smaller",
        ),
    )


def _panels(
    means: dict[str, Tensor],
    limits: dict[str, ExtrapolatedLimit],
    graph: dict[str, Tensor],
    bump: dict[str, Tensor],
    sigma: float,
) -> tuple[Panel, ...]:
    bump_error = float((bump["bump_actual"] - bump["bump_expected"]).abs().max())
    reach = float((means["softmax"] - means["x"]).abs().max() / (means["sinkhorn"] - means["x"]).abs().max())
    middle = len(graph["a"]) // 2
    tails = float(
        (graph["poisson_mixture"][middle] / graph["wide_attention_row"])[graph["wide_attention_row"] > 1e-12].max()
    )
    is_positive = graph["wide_attention_row"] > 1e-12
    near = bump["positions"].abs() < 2.5 * math.sqrt(BUMP_STD**2 + NUM_TIME_STEPS * sigma**2)
    x, names = limit_positions(), {"drift": "Δf + 2⟨∇log p, ∇f⟩", "plain": "α = 1: Δf"}
    limit_series = [
        series
        for name, value in limits.items()
        for series in (
            Series(
                {"drift": "with the density", "plain": "without"}[name], x, value.estimate, "points", color_group=name
            ),
            Series(names[name], x, value.exact, color_group=name),
        )
    ]
    bump_series = [
        series
        for step in (0, 5, 40)
        for series in (
            Series(
                f"{step} steps",
                _subsample(bump["positions"][near]),
                _subsample(bump["bump_actual"][step][near]),
                "points",
                color_group=str(step),
            ),
            Series(
                "",
                bump["positions"][near],
                bump["bump_expected"][step][near],
                color_group=str(step),
            ),
        )
    ]
    return (
        Panel(
            f"A bump follows the heat equation (lines) to {power_of_ten(bump_error)}",
            "position x",
            "height",
            bump_series,
        ),
        Panel(
            f"Softmax moves points up to {reach:.1f} times as far as Sinkhorn",
            "position x among keys N(0, s²)",
            "output - x",
            [
                Series(
                    "softmax",
                    _subsample(means["x"]),
                    _subsample(means["softmax"] - means["x"]),
                    "points",
                    color_group="softmax",
                ),
                Series("x s² / (s² + ε) - x", means["x"], means["softmax_exact"] - means["x"], color_group="softmax"),
                Series(
                    "Sinkhorn",
                    _subsample(means["x"]),
                    _subsample(means["sinkhorn"] - means["x"]),
                    "points",
                    color_group="sinkhorn",
                ),
                Series("x c / s² - x", means["x"], means["sinkhorn_exact"] - means["x"], color_group="sinkhorn"),
            ],
        ),
        Panel(
            "The density adds a drift to small steps, except for α = 1",
            "position x, f = sin 2x",
            "(Pf - f) / (σ²/2)",
            limit_series,
        ),
        Panel(
            f"At equal variance, the graph has up to {power_of_ten(tails)} times the weight in its tails",
            "position x",
            "weight",
            [
                Series("Gaussian attention", graph["positions"][is_positive], graph["wide_attention_row"][is_positive]),
                Series(
                    "kernel of the graph",
                    graph["positions"][is_positive],
                    graph["poisson_mixture"][middle][is_positive],
                ),
            ],
            log_y=True,
        ),
    )


def _subsample(values: Tensor) -> Tensor:
    """Return a few dozen of the values, for points that do not overlap."""
    return values[:: max(1, len(values) // 24)]


def _animation(bump: dict[str, Tensor]) -> PointAnimation:
    """Return an animation in which each point of the line moves vertically with its height."""
    indices = torch.linspace(0, len(bump["positions"]) - 1, 81).round().long()
    positions = bump["positions"][indices].expand(NUM_TIME_STEPS, -1)
    points = torch.stack([positions / positions.abs().max(), bump["bump_actual"][:, indices]], -1)
    return PointAnimation("A bump that diffuses", torch.arange(NUM_TIME_STEPS), points)
