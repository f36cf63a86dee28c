"""Simulations of tokens that move by attention: orthonormal, in two clusters, random, in a hemisphere, on a line."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from regard import score
from regard.attention import attention, attention_with_weights
from regard.theory.analysis.token_dynamics import (
    VectorField,
    cluster_labels,
    integrate_on_sphere,
    interaction_energy,
    softmax_velocity,
    unnormalized_velocity,
)
from regard.theory.experiment import ProgressCallback

MERGE_BETAS = (1.0, 2.0, 3.0, 4.0, 5.0)  # β of the simulations of two clusters
HEMISPHERE_BETA = 1.0  # a larger β has the same limit, but converges slowly
NUM_FRAMES = 60


@dataclass(frozen=True, eq=False)
class OrthonormalTrajectory:
    """A simulation from orthonormal tokens: at `times` all inner products should be `gamma`.

    `product_range` (2, times) has the smallest and the largest product. `step_halving_error` is the change when the
    step is halved.
    """

    times: Tensor
    gamma: Tensor
    product_range: Tensor
    step_halving_error: float


@dataclass(frozen=True, eq=False)
class ClusterMerges:
    """Two clusters, for each β: the time at which their inner product should be 1/2, and the product at that time.

    `products_at_first_time` are the products at the time of the first β. `step_halving_error` is the change when the
    step is halved.
    """

    merge_times: Tensor
    products: Tensor
    products_at_first_time: Tensor
    step_halving_error: float


@dataclass(frozen=True, eq=False)
class HemisphereConvergence:
    """Tokens in a hemisphere: the smallest inner product with its axis, and the largest 1 - γ."""

    times: Tensor
    min_axis_product: Tensor
    max_gap: Tensor


# ---- from orthonormal tokens --------------------------------------------------------------------------------
def simulate_orthonormal(
    num_tokens: int, beta: float, velocity: VectorField, rate: VectorField
) -> OrthonormalTrajectory:
    """Simulate orthonormal tokens, evaluated when their inner products should be 0, 0.05, 0.1 and so on."""
    gamma = torch.linspace(0, 0.95, 20, dtype=torch.float64)
    times = times_at_gamma(gamma, rate)
    start = torch.eye(num_tokens, dtype=torch.float64)
    coarse, fine = (integrate_on_sphere(start, velocity, times, factor * (4 + math.ceil(beta))) for factor in (1, 2))
    pairs = ~torch.eye(num_tokens, dtype=torch.bool)
    products = (fine @ fine.mT)[:, pairs]
    step_halving_error = float((coarse @ coarse.mT - fine @ fine.mT).abs().max())
    product_range = torch.stack([products.amin(-1), products.amax(-1)])
    return OrthonormalTrajectory(times, gamma, product_range, step_halving_error)


def softmax_rate(n: int, beta: float) -> VectorField:
    return lambda g: 2 * (1 - g) * ((n - 1) * g + 1) / (torch.exp(beta * (1 - g)) + n - 1)


def unnormalized_rate(n: int, beta: float) -> VectorField:
    return lambda g: 2 / n * torch.exp(beta * g) * (1 - g) * ((n - 1) * g + 1)


def times_at_gamma(gamma: Tensor, rate: VectorField) -> Tensor:
    """Return the times at which γ has these values: the integral of dγ / γ', by Simpson's rule."""
    ends, points = gamma.unsqueeze(-1), torch.linspace(0, 1, 201, dtype=torch.float64)
    weights = torch.tensor([1.0, *[4.0, 2.0] * 99, 4.0, 1.0], dtype=torch.float64) / 600
    between = ends[:-1] + (ends[1:] - ends[:-1]) * points
    parts = (weights / rate(between)).sum(-1) * (gamma[1:] - gamma[:-1])
    return torch.cat([parts.new_zeros(1), parts.cumsum(0)])


# ---- two clusters -------------------------------------------------------------------------------------------
def simulate_two_clusters(num_tokens: int) -> ClusterMerges:
    """Simulate two orthogonal clusters, with one head for each β."""
    half = max(1, num_tokens // 2)
    start = torch.eye(2, dtype=torch.float64).repeat_interleave(half, 0).expand(1, len(MERGE_BETAS), -1, -1)
    betas = torch.tensor(MERGE_BETAS, dtype=torch.float64)
    gamma = torch.tensor([0.0, 0.5], dtype=torch.float64)
    merge_times = torch.stack([times_at_gamma(gamma, two_cluster_rate(beta))[1] for beta in MERGE_BETAS])
    softmax = softmax_velocity(betas)

    def product(times: Tensor, steps: int) -> Tensor:
        """Return the inner product of the clusters after a time for each β."""
        speed = times.reshape(1, -1, 1, 1)  # integrates each head for its own time
        last = integrate_on_sphere(
            start, lambda x: speed * softmax(x), torch.tensor([0.0, 1.0], dtype=torch.float64), steps
        )[-1]
        return (last[0, :, 0] * last[0, :, -1]).sum(-1)

    coarse, fine = (product(merge_times, steps) for steps in (20, 40))
    at_first_time = product(merge_times[:1].expand_as(merge_times), 40)
    return ClusterMerges(merge_times, fine, at_first_time, float((coarse - fine).abs().max()))


def two_cluster_rate(beta: float) -> VectorField:
    return lambda g: 2 * (1 - g.square()) / (torch.exp(beta * (1 - g)) + 1)


# ---- random start -------------------------------------------------------------------------------------------
def simulate_trajectory(start: Tensor, beta: float, time: float, progress: ProgressCallback) -> Tensor:
    """Return the positions of the tokens in `NUM_FRAMES` + 1 frames."""
    velocity, positions = softmax_velocity(beta), [start]
    # steps are shorter than 1 and than 1/β, the time scale of the weights
    steps = math.ceil(time / NUM_FRAMES * max(8.0, 2 * beta))
    interval = torch.tensor([0.0, time / NUM_FRAMES], dtype=torch.float64)
    for frame in range(NUM_FRAMES):
        positions.append(integrate_on_sphere(positions[-1], velocity, interval, steps)[-1])
        progress((frame + 1) / NUM_FRAMES)
    return torch.stack(positions)


def count_clusters(path: Tensor) -> Tensor:
    return torch.tensor([int(cluster_labels(x).max()) + 1 for x in path])


def energy_rates(start: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Return dE/dt for softmax and unnormalized weights: by the formula, and by the gradient of E."""
    x = start.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(interaction_energy(x, beta), x)
    z = torch.exp(beta * start @ start.mT).sum(-1)
    n = len(start)
    softmax, unnormalized = softmax_velocity(beta)(start), unnormalized_velocity(beta)(start)
    expected = torch.stack([(z * softmax.square().sum(-1)).sum() / n**2, unnormalized.square().sum() / n])
    return expected, torch.stack([(gradient * softmax).sum(), (gradient * unnormalized).sum()])


# ---- in a hemisphere ----------------------------------------------------------------------------------------
def simulate_hemisphere(num_tokens: int, dim: int, generator: torch.Generator) -> HemisphereConvergence:
    """Simulate random tokens within 84° of the first axis."""
    x = torch.randn(num_tokens, dim, generator=generator, dtype=torch.float64)
    x[:, 0] = x[:, 0].abs()
    x = normalize(x, dim=-1)
    x[:, 0] = x[:, 0].clamp(min=0.1)
    x[0, 0] += 0.5  # otherwise two clamped tokens could be opposite
    times = torch.linspace(0, 16, 65, dtype=torch.float64)
    path = integrate_on_sphere(normalize(x, dim=-1), softmax_velocity(HEMISPHERE_BETA), times, 1)
    gaps = (path.unsqueeze(1) - path.unsqueeze(2)).square().sum(-1) / 2  # 1 - γ without the rounding of 1
    return HemisphereConvergence(times, path[..., 0].amin(-1), gaps.flatten(1).amax(-1))


# ---- on a line ----------------------------------------------------------------------------------------------
def simulate_line(num_tokens: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the rescaled positions of tokens on a line after a time of 10, and their weights."""
    spacing = 2.2 / num_tokens
    z = torch.linspace(-1, 1.2, num_tokens, dtype=torch.float64)
    z = z + spacing / 4 * torch.rand(num_tokens, generator=generator, dtype=torch.float64)
    step = 0.1

    def velocity(z: Tensor, t: float) -> Tensor:
        column = z.unsqueeze(-1)
        mean: Tensor = attention(column, column, column, score=score.scaled_dot(math.exp(2 * t)))
        return mean.squeeze(-1) - z

    for count in range(100):
        t = count * step
        a = velocity(z, t)
        b = velocity(z + step / 2 * a, t + step / 2)
        c = velocity(z + step / 2 * b, t + step / 2)
        d = velocity(z + step * c, t + step)
        z = z + step / 6 * (a + 2 * b + 2 * c + d)
    column = z.unsqueeze(-1)
    weights: Tensor = attention_with_weights(
        column, column, column, score=score.scaled_dot(math.exp(20.0))
    ).weights.to_dense()
    return z, weights
