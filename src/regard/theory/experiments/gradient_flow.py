"""Is attention a gradient flow? With unnormalized and doubly stochastic weights it is, with softmax it is not.

Tokens move by ẋ_i = -sum_j w_ij C x_j with scores s_ij = x_i·C x_j and a symmetric C. A velocity field is the negative
gradient of an energy if and only if its Jacobian is symmetric.

    raw        w = exp(s) / n            the gradient of F = sum_ij exp(s_ij) / 2n
    Sinkhorn   w = exp(f_i + s_ij + f_j), rows and columns sum to 1: the gradient of F = -sum_i f_i
    softmax    w = exp(s_ij - lse_i)     J_ik = -w_ik (C + (C x_k - m_i)(C x_i)ᵀ) for k ≠ i, m_i = sum_j w_ij C x_j

Sinkhorn's f minimizes sum_ij exp(f_i + s_ij + f_j) / 2 - sum_i f_i, so only the direct part of its gradient remains
(Sander et al., Sinkformers, arXiv 2110.11773). The softmax velocity is n / Z_i times the velocity of raw weights.
It is not a gradient in the Euclidean metric, but it decreases the same energy, dF/dt = -sum Z_i |ẋ_i|² / n.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from regard import normalizer, score
from regard.attention import attention, attention_with_weights
from regard.plot.chart_panels import ImagePanel, Panel, PointAnimation, Series
from regard.theory.analysis.token_dynamics import VectorField, rk4_step
from regard.theory.experiment import ProgressCallback, check_settings
from regard.theory.experiment_result import Claim, ExperimentResult

NUM_STEPS = 20
NORM_FRACTIONS = (0.2, 0.4, 0.6, 0.8, 1.0)  # of max_norm


@dataclass(frozen=True, eq=False)
class FlowVariant:
    """A velocity of tokens (..., n, d), and the energy that it should decrease."""

    velocity: VectorField
    energy: VectorField


@check_settings
def gradient_flow(
    *,
    num_tokens: int = 6,
    dim: int = 2,
    max_norm: float = 1.0,
    time: float = 2.0,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> ExperimentResult:
    """Test whether attention moves tokens along the gradient of an energy.

    `num_tokens` tokens of dimension `dim` have norms up to `max_norm` and move for `time`.

    `seed` (default 0) seeds the random numbers. `progress`, if given, is called with the completed fraction of the
    work.

    >>> gradient_flow(num_tokens=4, time=0.5).is_consistent
    True
    """
    random = torch.Generator().manual_seed(seed)
    report = progress or (lambda fraction: None)
    c = _random_symmetric(dim, random)
    x = torch.randn(num_tokens, dim, generator=random, dtype=torch.float64)
    x = max_norm * x / x.norm(dim=-1).max()
    variants = _flow_variants(c, x)
    jacobians = {name: _jacobian(variant.velocity, x) for name, variant in variants.items()}
    energy_gradients = {name: _energy_gradient(variant.energy, x) for name, variant in variants.items()}
    report(0.2)
    asymmetries = _asymmetry_by_norm(c, x)
    report(0.4)
    paths = {name: _trajectory(variant.velocity, x, time) for name, variant in variants.items() if name != "sinkhorn"}
    paths["sinkhorn"] = _trajectory(
        variants["sinkhorn"].velocity, x, time, lambda fraction: report(0.4 + 0.6 * fraction)
    )
    energies = {name: torch.stack([variants[name].energy(y) for y in path]) for name, path in paths.items()}
    report(1.0)
    data = {f"jacobian_{name}": j for name, j in jacobians.items()} | {f"energy_{n}": e for n, e in energies.items()}
    columns = _sinkhorn_weights(x, c, _sinkhorn_iterations(x, c)).sum(-2)
    column_error = 1e-12 + float((columns - 1).abs().max())
    velocity = {name: variant.velocity(x) for name, variant in variants.items()}
    return ExperimentResult(
        name="gradient_flow",
        claims=(
            Claim(
                "after the iterations of the Birkhoff-Hopf bound, columns sum to 1 like rows",
                torch.ones(num_tokens),
                columns,
                tolerance=1e-12,
                tolerance_reason="exp(-35) of the initial error, and rounding in float64",
            ),
            *_symmetry_claims(jacobians, column_error),
            _softmax_jacobian_claim(jacobians["softmax"], _softmax_jacobian(x, c)),
            *_gradient_claims(velocity, energy_gradients, column_error),
            *_energy_decrease_claims(energies),
        ),
        false_claims=(
            Claim(
                "softmax attention is a gradient flow: its Jacobian is symmetric",
                0.0,
                _asymmetry(jacobians["softmax"]),
                tolerance=1e-6,
                tolerance_reason="far above rounding",
            ),
            Claim(
                "the softmax velocity is minus half the gradient of the sum of lse",
                -_energy_gradient(lambda y: _lse(y, c).sum(-1), x) / 2,
                velocity["softmax"],
                tolerance=1e-6 * max_norm,
                tolerance_reason="far above rounding",
            ),
        ),
        panels=_panels(jacobians, asymmetries, energies, max_norm, time),
        settings={"num_tokens": num_tokens, "dim": dim, "max_norm": max_norm, "time": time, "seed": seed},
        data=data,
        animation=_animation(paths["sinkhorn"], time),
    )


def _random_symmetric(dim: int, generator: torch.Generator) -> Tensor:
    """Return a random symmetric matrix with spectral norm 1."""
    c = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    c = c + c.mT
    largest: Tensor = torch.linalg.eigvalsh(c).abs().max()
    return c / largest


# ---- velocities and energies --------------------------------------------------------------------------------
def _flow_variants(c: Tensor, x: Tensor) -> dict[str, FlowVariant]:
    raw = partial(_unnormalized_energy, c=c)
    iterations = _sinkhorn_iterations(x, c)
    return {
        "raw": FlowVariant(partial(_unnormalized_velocity, c=c), raw),
        "sinkhorn": FlowVariant(
            partial(_normalized_velocity, c=c, normalizer=normalizer.sinkhorn(iterations)),
            partial(_sinkhorn_energy, c=c, iterations=iterations),
        ),
        "softmax": FlowVariant(partial(_normalized_velocity, c=c, normalizer=normalizer.softmax()), raw),
    }


def _normalized_velocity(x: Tensor, c: Tensor, normalizer: normalizer.Normalizer) -> Tensor:
    output: Tensor = attention(x, x, x @ c, score=score.bilinear(c), normalizer=normalizer)
    return -output


def _unnormalized_velocity(x: Tensor, c: Tensor) -> Tensor:
    result = attention_with_weights(x, x, x @ c, score=score.bilinear(c))
    output: Tensor = result.output * result.lse.exp().unsqueeze(-1) / x.shape[-2]
    return -output


def _lse(x: Tensor, c: Tensor) -> Tensor:
    lse: Tensor = attention_with_weights(x, x, x, score=score.bilinear(c)).lse
    return lse


def _unnormalized_energy(x: Tensor, c: Tensor) -> Tensor:
    return _lse(x, c).exp().sum(-1) / (2 * x.shape[-2])


def _sinkhorn_energy(x: Tensor, c: Tensor, iterations: int) -> Tensor:
    """Return -sum f; f follows from the diagonal, w_ii = exp(2 f_i + s_ii)."""
    weights = _sinkhorn_weights(x, c, iterations)
    own_scores = (x @ c * x).sum(-1)
    return -(weights.diagonal(dim1=-2, dim2=-1).log() - own_scores).sum(-1) / 2


def _sinkhorn_weights(x: Tensor, c: Tensor, iterations: int) -> Tensor:
    result = attention_with_weights(x, x, x, score=score.bilinear(c), normalizer=normalizer.sinkhorn(iterations))
    weights: Tensor = result.weights.to_dense()
    return weights


def _sinkhorn_iterations(x: Tensor, c: Tensor) -> int:
    """Return the number of iterations after which rows and columns sum to 1 up to rounding.

    Each iteration contracts the error by tanh²(Δ/4), with Δ the largest s_ij + s_kl - s_il - s_kj (Birkhoff and Hopf).
    """
    differences = (x.unsqueeze(0) - x.unsqueeze(1)).flatten(0, 1)
    largest = float((differences @ c @ differences.mT).max())
    return max(10, math.ceil(-35 / (2 * math.log(math.tanh(largest / 4)))))


# ---- derivatives --------------------------------------------------------------------------------------------
def _jacobian(velocity: VectorField, x: Tensor) -> Tensor:
    """Return the (n d, n d) Jacobian in one backward pass, over n d copies of the tokens with one output each."""
    size = x.numel()
    copies = x.expand(size, *x.shape).clone().requires_grad_(True)
    (rows,) = torch.autograd.grad(velocity(copies).reshape(size, size).diagonal().sum(), copies)
    return rows.reshape(size, size)


def _energy_gradient(energy: VectorField, x: Tensor) -> Tensor:
    y = x.clone().requires_grad_(True)
    return torch.autograd.grad(energy(y), y)[0]


def _softmax_jacobian(x: Tensor, c: Tensor) -> Tensor:
    """Return the Jacobian by its formula; on the diagonal the query contributes the covariance of C x_j."""
    n, d = x.shape
    w, values = torch.softmax(x @ c @ x.mT, -1), x @ c
    mean = w @ values
    blocks = -torch.einsum("ik,ab->iakb", w, c)
    blocks = blocks - torch.einsum("ik,ika,ib->iakb", w, values.unsqueeze(0) - mean.unsqueeze(1), values)
    covariances = torch.einsum("ij,ja,jb->iab", w, values, values) - torch.einsum("ia,ib->iab", mean, mean)
    for i in range(n):
        blocks[i, :, i] -= covariances[i]
    return blocks.reshape(n * d, n * d)


def _asymmetry(jacobian: Tensor) -> float:
    return float((jacobian - jacobian.mT).norm() / jacobian.norm())


def _asymmetry_by_norm(c: Tensor, x: Tensor) -> dict[str, list[float]]:
    """Return the asymmetry of each variant for tokens scaled by each of `NORM_FRACTIONS`."""
    asymmetries: dict[str, list[float]] = {"raw": [], "sinkhorn": [], "softmax": []}
    for fraction in NORM_FRACTIONS:
        for name, variant in _flow_variants(c, fraction * x).items():
            asymmetries[name].append(_asymmetry(_jacobian(variant.velocity, fraction * x)))
    return asymmetries


def _trajectory(
    velocity: VectorField, x: Tensor, time: float, progress: Callable[[float], None] = lambda fraction: None
) -> Tensor:
    positions = [x]
    for step in range(NUM_STEPS):
        positions.append(rk4_step(positions[-1], velocity, time / NUM_STEPS))
        progress((step + 1) / NUM_STEPS)
    return torch.stack(positions)


# ---- claims and charts --------------------------------------------------------------------------------------
def _symmetry_claims(jacobians: dict[str, Tensor], column_error: float) -> tuple[Claim, Claim]:
    return (
        Claim(
            "raw weights: the Jacobian is symmetric",
            0.0,
            _asymmetry(jacobians["raw"]),
            tolerance=1e-13,
            tolerance_reason="rounding in float64",
        ),
        Claim(
            "doubly stochastic weights: the Jacobian is symmetric",
            0.0,
            _asymmetry(jacobians["sinkhorn"]),
            tolerance=10 * column_error,
            tolerance_reason="a few times the error of the column sums after the last iteration",
        ),
    )


def _softmax_jacobian_claim(actual: Tensor, expected: Tensor) -> Claim:
    return Claim(
        "softmax: the Jacobian has its closed form, which is not symmetric",
        expected,
        actual,
        tolerance=1e-12,
        tolerance_reason="rounding in float64",
    )


def _gradient_claims(
    velocity: dict[str, Tensor], energy_gradients: dict[str, Tensor], column_error: float
) -> tuple[Claim, Claim]:
    return (
        Claim(
            "raw weights: the velocity is minus the gradient of sum_ij exp(s_ij) / 2n",
            -energy_gradients["raw"],
            velocity["raw"],
            tolerance=1e-12,
            tolerance_reason="rounding in float64",
        ),
        Claim(
            "doubly stochastic weights: the velocity is minus the gradient of -sum_i f_i",
            -energy_gradients["sinkhorn"],
            velocity["sinkhorn"],
            tolerance=10 * column_error,
            tolerance_reason="a few times the error of the column sums after the last iteration",
        ),
    )


def _energy_decrease_claims(energies: dict[str, Tensor]) -> tuple[Claim, ...]:
    labels = {"raw": "raw weights", "sinkhorn": "doubly stochastic weights", "softmax": "softmax with the raw energy"}
    return tuple(
        Claim(
            f"{label}: the energy never increases along the trajectory",
            torch.zeros(NUM_STEPS),
            energies[name].diff() / energies[name].abs().max(),
            tolerance=1e-12,
            tolerance_reason="rounding in float64; the steps of fourth order are short",
            relation="at most",
        )
        for name, label in labels.items()
    )


def _panels(
    jacobians: dict[str, Tensor],
    asymmetries: dict[str, list[float]],
    energies: dict[str, Tensor],
    max_norm: float,
    time: float,
) -> tuple[Panel | ImagePanel, ...]:
    times = torch.linspace(0, time, NUM_STEPS + 1)
    norms = [fraction * max_norm for fraction in NORM_FRACTIONS]
    skew = (jacobians["softmax"] - jacobians["softmax"].mT) / 2
    asymmetry = max(asymmetries["softmax"])
    return (
        Panel(
            f"Only softmax is no gradient flow: its Jacobian is asymmetric by up to {asymmetry:.0%}",
            "largest norm of a token",
            "asymmetry |J - Jᵀ| / |J|",
            [Series(name, norms, [max(y, 1e-18) for y in values], "points") for name, values in asymmetries.items()],
            log_y=True,
        ),
        Panel(
            "The energy falls along every trajectory",
            "time",
            "energy F - F at the end",
            [Series(name, times, e - e[-1]) for name, e in energies.items()],
        ),
        ImagePanel(
            f"Softmax: (J - Jᵀ) / 2 has entries up to {float(skew.max()):.2f}",
            "coordinate",
            "velocity of coordinate",
            skew,
            signed=True,
        ),
    )


def _animation(trajectory: Tensor, time: float) -> PointAnimation | None:
    if trajectory.shape[-1] not in (2, 3):
        return None
    return PointAnimation("Tokens under doubly stochastic weights", torch.linspace(0, time, NUM_STEPS + 1), trajectory)
