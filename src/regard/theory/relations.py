"""Learning a relation r(x, y) as an inner product: by one map φ(x)·φ(y), and by two, φ(x)·ψ(y).

    r(x, y) = cos(x - y) + skew · sin 2(x - y)

The first part is symmetric, the second antisymmetric. One map is symmetric whatever it is, so it fits at best the
first, and leaves the norm of the second, |r - r'|/2. Two maps of width 4 fit both: sin 2(x - y) is
sin 2x cos 2y - cos 2x sin 2y.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import attend
from regard.spec import score
from regard.theory.seeded import seeded

POINTS, HIDDEN, WIDTH, RATE = 40, 64, 4, 0.01


@dataclass(frozen=True, eq=False)
class Fits:
    """Errors as Frobenius norms: the floor of one map, the best that one and two maps reach, and those on the way."""

    floor: float
    best_one: Tensor
    best_two: Tensor
    one: Tensor
    two: Tensor


def fits(skew: float, steps: int, seed: int, told: Callable[[float], None]) -> Fits:
    """The closed forms, and two small networks that learn."""
    at = torch.linspace(-2, 2, POINTS, dtype=torch.float64)
    relation = torch.cos(at[:, None] - at) + skew * torch.sin(2 * (at[:, None] - at))
    values, vectors = torch.linalg.eigh((relation + relation.mT) / 2)
    # the nearest Gram matrix: this symmetric part is one, up to rounding that leaves eigenvalues a little below 0
    one = vectors * values.clamp(min=0).sqrt()
    left, sizes, right = torch.linalg.svd(relation)
    two = left[:, :WIDTH] * sizes[:WIDTH].sqrt(), right[:WIDTH].mT * sizes[:WIDTH].sqrt()
    learned = [_learned(relation, at, both, steps, seed, told) for both in (False, True)]
    return Fits(
        floor=float((relation - relation.mT).norm()) / 2,
        best_one=(scores(one, one, score.dot()) - relation).norm(),
        best_two=(scores(*two, score.dot()) - relation).norm(),
        one=learned[0],
        two=learned[1],
    )


def scores(q: Tensor, k: Tensor, chosen: Any = None) -> Tensor:
    """What softmax was given, from the library's weights: log a + lse."""
    found = attend(q, k, k[:, :1], score=chosen)
    logs: Tensor = found.weights.dense().log() + found.lse[:, None]
    return logs


def _learned(relation: Tensor, at: Tensor, both: bool, steps: int, seed: int, told: Callable[[float], None]) -> Tensor:
    """The error after each step of Adam."""
    with seeded(seed):
        maps = [
            nn.Sequential(nn.Linear(1, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, WIDTH)).double() for _ in range(1 + both)
        ]
    optimizer = torch.optim.Adam([p for each in maps for p in each.parameters()], lr=RATE)
    errors = []
    for step in range(steps):
        found = [each(at[:, None]) for each in maps]
        error = (scores(found[0], found[-1], score.dot()) - relation).square().sum()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        errors.append(error.detach().sqrt())
        if step % 20 == 19:
            told((step + 1) / steps / 2 + both / 2)
    return torch.stack(errors)
