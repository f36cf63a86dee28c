"""What tokens do that move by attention: from right angles, in two groups, from anywhere, in a half, on a line."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from regard.attention import attend, attention
from regard.spec import score
from regard.theory.experiment import Progress
from regard.theory.moving import Field, energy, groups_of, raw_velocity, softmax_velocity, walk_on_sphere

LIVES = (1.0, 2.0, 3.0, 4.0, 5.0)  # β for which the life of two groups is measured
CONE_BETA = 1.0  # a larger one has the same end, and takes its time
FRAMES = 60


@dataclass(frozen=True, eq=False)
class Course:
    """Orthonormal tokens: at `times` all products should be `gamma`; the least and largest `found`, (2, times); and
    what `changed` when steps were halved."""

    times: Tensor
    gamma: Tensor
    found: Tensor
    changed: float


@dataclass(frozen=True, eq=False)
class Lives:
    """Two groups: for each β the time until their product should be 1/2, the product found then, the one found after
    the time that is right for the first β, and what `changed` when steps were halved."""

    time: Tensor
    found: Tensor
    too_early: Tensor
    changed: float


@dataclass(frozen=True, eq=False)
class Cone:
    """Tokens in a half of the sphere: the least product with its middle, and the largest 1 - γ."""

    times: Tensor
    least: Tensor
    apart: Tensor


# ---- from orthonormal tokens --------------------------------------------------------------------------------
def from_right_angles(tokens: int, beta: float, velocity: Field, rate: Field) -> Course:
    """Tokens that start at right angles, seen when their products should be 0, 0.05, 0.1 and so on."""
    gamma = torch.linspace(0, 0.95, 20, dtype=torch.float64)
    times = times_of(gamma, rate)
    start = torch.eye(tokens, dtype=torch.float64)
    coarse, fine = (walk_on_sphere(start, velocity, times, more * (4 + math.ceil(beta))) for more in (1, 2))
    pairs = ~torch.eye(tokens, dtype=torch.bool)
    products = (fine @ fine.mT)[:, pairs]
    changed = float((coarse @ coarse.mT - fine @ fine.mT).abs().max())
    return Course(times, gamma, torch.stack([products.amin(-1), products.amax(-1)]), changed)


def softmax_rate(n: int, beta: float) -> Field:
    return lambda g: 2 * (1 - g) * ((n - 1) * g + 1) / (torch.exp(beta * (1 - g)) + n - 1)


def raw_rate(n: int, beta: float) -> Field:
    return lambda g: 2 / n * torch.exp(beta * g) * (1 - g) * ((n - 1) * g + 1)


def times_of(gamma: Tensor, rate: Field) -> Tensor:
    """When γ is what is given: the integral of dγ / γ', by Simpson's rule."""
    ends, points = gamma.unsqueeze(-1), torch.linspace(0, 1, 201, dtype=torch.float64)
    weights = torch.tensor([1.0, *[4.0, 2.0] * 99, 4.0, 1.0], dtype=torch.float64) / 600
    between = ends[:-1] + (ends[1:] - ends[:-1]) * points
    parts = (weights / rate(between)).sum(-1) * (gamma[1:] - gamma[:-1])
    return torch.cat([parts.new_zeros(1), parts.cumsum(0)])


# ---- two groups ---------------------------------------------------------------------------------------------
def two_groups(tokens: int) -> Lives:
    """Two groups at a right angle, for several β at once: a head each."""
    half = max(1, tokens // 2)
    start = torch.eye(2, dtype=torch.float64).repeat_interleave(half, 0).expand(1, len(LIVES), -1, -1)
    betas = torch.tensor(LIVES, dtype=torch.float64)
    gamma = torch.tensor([0.0, 0.5], dtype=torch.float64)
    life = torch.stack([times_of(gamma, group_rate(beta))[1] for beta in LIVES])
    softmax = softmax_velocity(betas)

    def product(times: Tensor, steps: int) -> Tensor:
        """Of the groups, after a time for each β."""
        faster = times.reshape(1, -1, 1, 1)
        last = walk_on_sphere(
            start, lambda x: faster * softmax(x), torch.tensor([0.0, 1.0], dtype=torch.float64), steps
        )[-1]
        return (last[0, :, 0] * last[0, :, -1]).sum(-1)

    coarse, fine = (product(life, steps) for steps in (20, 40))
    return Lives(life, fine, product(life[:1].expand_as(life), 40), float((coarse - fine).abs().max()))


def group_rate(beta: float) -> Field:
    return lambda g: 2 * (1 - g.square()) / (torch.exp(beta * (1 - g)) + 1)


# ---- any start ----------------------------------------------------------------------------------------------
def watched(start: Tensor, beta: float, time: float, told: Progress) -> Tensor:
    """Where the tokens are at `FRAMES` + 1 moments."""
    velocity, places = softmax_velocity(beta), [start]
    steps = math.ceil(time / FRAMES * max(8.0, 2 * beta))  # short beside 1, and beside 1/β, in which weights change
    for frame in range(FRAMES):
        places.append(
            walk_on_sphere(places[-1], velocity, torch.tensor([0.0, time / FRAMES], dtype=torch.float64), steps)[-1]
        )
        told((frame + 1) / FRAMES)
    return torch.stack(places)


def counted(path: Tensor) -> Tensor:
    return torch.tensor([int(groups_of(x).max()) + 1 for x in path])


def climb(start: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """dE/dt along softmax and along what is not normalised: by the formula, and by regard's gradient of E."""
    x = start.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(energy(x, beta), x)
    z = torch.exp(beta * start @ start.mT).sum(-1)
    n = len(start)
    one, other = softmax_velocity(beta)(start), raw_velocity(beta)(start)
    said = torch.stack([(z * one.square().sum(-1)).sum() / n**2, other.square().sum() / n])
    return said, torch.stack([(slope * one).sum(), (slope * other).sum()])


# ---- in a half of the sphere --------------------------------------------------------------------------------
def in_a_half(tokens: int, dimension: int, random: torch.Generator) -> Cone:
    """Tokens of which none is more than 84° from the first axis."""
    x = torch.randn(tokens, dimension, generator=random, dtype=torch.float64)
    x[:, 0] = x[:, 0].abs()
    x = normalize(x, dim=-1)
    x[:, 0] = x[:, 0].clamp(min=0.1)
    x[0, 0] += 0.5  # else two tokens might both be clamped, and opposite
    times = torch.linspace(0, 16, 65, dtype=torch.float64)
    path = walk_on_sphere(normalize(x, dim=-1), softmax_velocity(CONE_BETA), times, 1)
    apart = (path.unsqueeze(1) - path.unsqueeze(2)).square().sum(-1) / 2  # 1 - γ without the rounding of 1
    return Cone(times, path[..., 0].amin(-1), apart.flatten(1).amax(-1))


# ---- on a line ----------------------------------------------------------------------------------------------
def on_a_line(tokens: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Where tokens on a line are after a time of 10, rescaled, and their weights."""
    gap = 2.2 / tokens
    z = torch.linspace(-1, 1.2, tokens, dtype=torch.float64)
    z = z + gap / 4 * torch.rand(tokens, generator=random, dtype=torch.float64)
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
    weights: Tensor = attend(column, column, column, score=score.scaled_dot(math.exp(20.0))).weights.dense()
    return z, weights
