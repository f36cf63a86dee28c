"""Attention as diffusion of heat: what is exact, what holds in a limit, and what only looks alike.

Gaussian attention, softmax(-|q - k|² / 2σ²), is the heat kernel of R^d at the time t = σ²/2,
(4πt)^(-d/2) exp(-|x - y|² / 4t), with each row divided by its sum. Keys of density p make it
(Pf)(x) = Σ_j a(x, x_j) f(x_j), and for small σ

    (Pf - f) / (σ²/2)  ->  Δf + 2 <∇log p, ∇f>

heat that diffuses and drifts to where keys are dense (Coifman and Lafon, α = 0); with each key's weight divided by the
density that the kernel sees, q_j = Σ_i k(x_j, x_i), the drift is gone (α = 1). For p = N(0, s²) and ε = σ², both means
are linear: x s² / (s² + ε) for softmax, and x c / s² with c = (√(ε² + 4s⁴) - ε) / 2 for Sinkhorn.

On a graph with weights A the heat equation is Ẋ = -(I - A) X, and its kernel exp(-t(I - A)) = e^-t Σ t^k A^k / k!. A
itself is one explicit Euler step of length 1, and not that kernel: of two rows of equal spread the exact one has
heavier tails, by an excess kurtosis of 3/t.
"""

import math

import torch
from torch import Tensor

from regard.attention import attend, attention
from regard.draw.charts import Motion, Panel, Series
from regard.spec import score
from regard.theory.diffusion import Limit, balanced, limits, slopes
from regard.theory.experiment import Progress, check_settings
from regard.theory.outcome import Claim, Outcome

BUMP = 0.5  # the spread of the bump that diffuses
MOMENTS = 41
ROUNDING = "rounding in float64, as a share of the largest number"


@check_settings
def heat(
    *, sigma: float = 0.3, spread: float = 1.0, width: int = 3, time: float = 4.0, seed: int = 0,
    progress: Progress | None = None,
) -> Outcome:  # fmt: skip
    """Gaussian attention beside heat kernels, closed forms, limits, and the exact kernel of a graph.

    `sigma` is that of the score, `spread` that of a normal density of keys, `width` the dimension of the points, `time`
    how long heat flows on the graph.

    >>> heat(time=2.0).agrees
    True
    """
    random = torch.Generator().manual_seed(seed)
    told = progress or (lambda share: None)
    kernel = _kernel(torch.randn(40, width, generator=random, dtype=torch.float64), sigma)
    told(0.1)
    means = _means(sigma**2, spread)
    told(0.4)
    found = limits()
    told(0.6)
    graph = _graph(sigma, time)
    told(0.7)
    bump = _bump(sigma)
    told(1.0)
    return Outcome(
        name="heat",
        claims=(kernel, *_of_means(means), *_of_limits(found), *_of_graph(graph, time), *_of_bump(bump)),
        wrong=_wrong(found, graph, means),
        panels=_panels(means, found, graph, bump, sigma),
        settings={"sigma": sigma, "spread": spread, "width": width, "time": time, "seed": seed},
        data={**means, **graph, **{name: bump[name] for name in ("found", "exact")}},
        motion=_motion(bump),
    )


def _kernel(x: Tensor, sigma: float) -> Claim:
    t, width = sigma**2 / 2, x.shape[-1]
    apart = (x[:, None, :] - x[None, :, :]).square().sum(-1)
    green = (4 * math.pi * t) ** (-width / 2) * torch.exp(-apart / (4 * t))
    return Claim(
        "Gaussian attention is the heat kernel of R^d at t = σ²/2, each row divided by its sum",
        green / green.sum(-1, keepdim=True),
        attend(x, x, x, score=score.metric(sigma)).weights.dense(),
        within=1e-10,
        because="rounding of squared distances in float64, over 2σ² and then raised by exp",
    )


def _means(epsilon: float, spread: float) -> dict[str, Tensor]:
    """Where attention takes points among keys of density N(0, s²): by softmax, and by Sinkhorn."""
    at = torch.arange(-9 * spread, 9 * spread, min(math.sqrt(epsilon), spread) / 4, dtype=torch.float64)[:, None]
    logs = -at.flatten().square() / (2 * spread**2)  # what a key stands for, up to a factor that softmax drops
    middle = at.flatten().abs() < 2 * spread
    kernel = score.metric(math.sqrt(epsilon))
    softmax = attention(at, at, at, score=kernel.then(score.bias(logs[None, :])))
    potential = balanced(at, kernel, logs)
    sinkhorn = attention(at, at, at, score=kernel.then(score.bias((logs + potential)[None, :])))
    c = (math.sqrt(epsilon**2 + 4 * spread**4) - epsilon) / 2
    x = at[middle].flatten()
    return {
        "x": x,
        "softmax": softmax[middle].flatten(),
        "softmax_exact": x * spread**2 / (spread**2 + epsilon),
        "sinkhorn": sinkhorn[middle].flatten(),
        "sinkhorn_exact": x * c / spread**2,
    }


def _of_means(means: dict[str, Tensor]) -> tuple[Claim, Claim]:
    size = means["x"].abs().max()
    return (
        Claim("keys of density N(0, s²): softmax takes x to x s² / (s² + ε)", means["softmax_exact"] / size,
              means["softmax"] / size, 1e-12, f"{ROUNDING}; the grid of the integral adds less"),
        Claim("Sinkhorn takes it to x c / s², c = (√(ε² + 4s⁴) - ε)/2", means["sinkhorn_exact"] / size,
              means["sinkhorn"] / size, 1e-8, "iterations end when potentials change by less than 1e-10"),
    )  # fmt: skip


def _of_limits(found: dict[str, Limit]) -> tuple[Claim, ...]:
    says = {
        "drift": "small σ: (Pf - f) / (σ²/2) tends to Δf + 2 <∇log p, ∇f>",
        "plain": "with weights divided by the density (α = 1) it tends to Δf",
    }
    because = "the last step of the extrapolation to σ = 0, which is more than what is left"
    return tuple(Claim(says[name], limit.exact, limit.found, limit.step, because) for name, limit in found.items())


def _graph(sigma: float, time: float) -> dict[str, Tensor]:
    """On points of a line: the exact heat kernel of the graph of short steps, and attention of the same spread."""
    short = sigma / math.sqrt(time)
    at = torch.arange(-12 * sigma - 8 * short, 12 * sigma + 8 * short, short / 2, dtype=torch.float64)[:, None]
    a = attend(at, at, at, score=score.metric(short)).weights.dense()
    eye = torch.eye(len(a), dtype=a.dtype)
    mix, power = torch.zeros_like(a), eye
    for k in range(int(time + 12 * math.sqrt(time) + 30)):
        mix = mix + math.exp(k * math.log(time) - time - math.lgamma(k + 1)) * power
        power = power @ a
    middle = len(a) // 2
    wide = attend(at, at, at, score=score.metric(sigma)).weights[middle]
    return {
        "a": a,
        "mix": mix,
        "exact": torch.linalg.matrix_exp(-time * (eye - a)),
        "step": a[middle],
        "once": torch.linalg.matrix_exp(a - eye)[middle],
        "wide": wide,
        "at": at.flatten() - at[middle],
    }


def _of_graph(graph: dict[str, Tensor], time: float) -> tuple[Claim, ...]:
    middle = len(graph["a"]) // 2
    row = graph["mix"][middle]
    (_, variance, fourth), (_, other, other_fourth) = _moments(row, graph["at"]), _moments(graph["wide"], graph["at"])
    small = "rounding, and tails of the line that are cut off at 12 spreads"
    return (
        Claim("the heat kernel of a graph is a Poisson mix of powers of A", graph["exact"], graph["mix"], 1e-12,
              ROUNDING),
        Claim("attention of width σ spreads as far as the graph's kernel after t steps of σ/√t", 1.0,
              variance / other, 1e-8, small),
        Claim("but the kernel's tails are heavier: its kurtosis is 3 + 3/t, that of attention 3",
              [3 + 3 / time, 3.0], [fourth / variance**2, other_fourth / other**2], 1e-6, small),
    )  # fmt: skip


def _moments(row: Tensor, at: Tensor) -> tuple[float, float, float]:
    mean = float((row * at).sum())
    return mean, float((row * (at - mean) ** 2).sum()), float((row * (at - mean) ** 4).sum())


def _bump(sigma: float) -> dict[str, Tensor]:
    """A bump on a line, after each of many steps of attention; and what the heat equation makes of it."""
    edge = 8 * math.sqrt(BUMP**2 + MOMENTS * sigma**2)
    at = torch.arange(-edge, edge, min(sigma, BUMP) / 3, dtype=torch.float64)[:, None]
    height = torch.exp(-at.square() / (2 * BUMP**2))
    found, exact = [], []
    for step in range(MOMENTS):
        grown = BUMP**2 + step * sigma**2
        exact.append(BUMP / math.sqrt(grown) * torch.exp(-at.flatten().square() / (2 * grown)))
        found.append(height.flatten())
        height = attention(at, at, height, score=score.metric(sigma))
    return {"at": at.flatten(), "found": torch.stack(found), "exact": torch.stack(exact)}


def _of_bump(bump: dict[str, Tensor]) -> tuple[Claim, ...]:
    spans = bump["found"].amax(-1) - bump["found"].amin(-1)
    return (
        Claim(f"a bump of variance s² has the variance s² + kσ² after k steps, up to {MOMENTS - 1}", bump["exact"],
              bump["found"], 1e-10, "rounding; the line ends where the bump is below 1e-13"),
        Claim("the largest difference never grows, since rows of weights are averages", spans[:-1], spans[1:], 1e-15,
              ROUNDING, "at most"),
    )  # fmt: skip


def _wrong(found: dict[str, Limit], graph: dict[str, Tensor], means: dict[str, Tensor]) -> tuple[Claim, ...]:
    drift, because = found["drift"], "what the right formula is allowed"
    return (
        Claim("small σ: (Pf - f) / (σ²/2) tends to Δf, whatever the density", found["plain"].exact, drift.found,
              drift.step, because),
        Claim("attention weights are the Green's function of the graph: A = exp(-t(I - A)) at t = 1", graph["once"],
              graph["step"], 1e-6, "rounding is far smaller"),
        Claim("Sinkhorn and softmax take points to the same places", means["softmax_exact"], means["sinkhorn"], 1e-6,
              "rounding is far smaller"),
    )  # fmt: skip


def _panels(
    means: dict[str, Tensor], found: dict[str, Limit], graph: dict[str, Tensor], bump: dict[str, Tensor], sigma: float
) -> tuple[Panel, ...]:
    middle = len(graph["a"]) // 2
    seen, near = graph["wide"] > 1e-12, bump["at"].abs() < 2.5 * math.sqrt(BUMP**2 + MOMENTS * sigma**2)
    at, names = slopes(), {"drift": "Δf + 2⟨∇log p, ∇f⟩", "plain": "α = 1: Δf"}
    limit = [
        each
        for name, value in found.items()
        for each in (
            Series(f"found, {name}", at, value.found, "points", of=name),
            Series(names[name], at, value.exact, of=name),
        )
    ]
    shown = (0, 5, 40)
    steps = [
        each
        for step in shown
        for each in (
            Series(
                f"found after {step} steps",
                _few(bump["at"][near]),
                _few(bump["found"][step][near]),
                "points",
                of=str(step),
            ),
            Series("heat equation", bump["at"][near], bump["exact"][step][near], of=str(step)),
        )
    ]
    return (
        Panel("A bump diffuses", "x", "height", steps),
        Panel("How far a point is pulled among keys N(0, s²)", "x", "output - x",
              [Series("softmax", _few(means["x"]), _few(means["softmax"] - means["x"]), "points", of="softmax"),
               Series("x s² / (s² + ε) - x", means["x"], means["softmax_exact"] - means["x"], of="softmax"),
               Series("Sinkhorn", _few(means["x"]), _few(means["sinkhorn"] - means["x"]), "points", of="sinkhorn"),
               Series("x c / s² - x", means["x"], means["sinkhorn_exact"] - means["x"], of="sinkhorn")]),
        Panel("Small steps between two wells: f = sin 2x", "x", "(Pf - f) / (σ²/2)", limit),
        Panel("Two kernels of one spread", "x", "weight",
              [Series("Gaussian attention", graph["at"][seen], graph["wide"][seen]),
               Series("exact kernel of the graph", graph["at"][seen], graph["mix"][middle][seen])], log_y=True),
    )  # fmt: skip


def _few(values: Tensor) -> Tensor:
    """Not more than some dozens, for points that stay apart."""
    return values[:: max(1, len(values) // 24)]


def _motion(bump: dict[str, Tensor]) -> Motion:
    """Each point of the line keeps its place and moves with its height."""
    some = torch.linspace(0, len(bump["at"]) - 1, 81).round().long()
    places = bump["at"][some].expand(MOMENTS, -1)
    points = torch.stack([places / places.abs().max(), bump["found"][:, some]], -1)
    return Motion("A bump that diffuses", torch.arange(MOMENTS), points)
