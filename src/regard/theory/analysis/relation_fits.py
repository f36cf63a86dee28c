"""Fits of a relation r(x, y) by an inner product of one map, φ(x)·φ(y), and of two maps, φ(x)·ψ(y).

    r(x, y) = cos(x - y) + skew · sin 2(x - y)

The first term is symmetric, the second antisymmetric. One map gives a symmetric function, so its best fit is the first
term, with the error |r - rᵀ|/2. Two maps with 4 features fit both terms: sin 2(x - y) = sin 2x cos 2y - cos 2x sin 2y.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard import score
from regard.attention import attention_with_weights
from regard.theory.seeding import fork_rng_with_seed

NUM_POINTS, HIDDEN_DIM, FEATURE_DIM, LEARNING_RATE = 40, 64, 4, 0.01


@dataclass(frozen=True, eq=False)
class RelationFits:
    """Frobenius norms of errors: the lower bound of one map, the best fits of one and two maps, and training curves."""

    floor: float
    best_tied: Tensor
    best_untied: Tensor
    tied_errors: Tensor
    untied_errors: Tensor


def fit_relation(skew: float, steps: int, seed: int, progress: Callable[[float], None]) -> RelationFits:
    """Return the errors of the closed forms, and of small networks trained for `steps`."""
    x = torch.linspace(-2, 2, NUM_POINTS, dtype=torch.float64)
    relation = torch.cos(x[:, None] - x) + skew * torch.sin(2 * (x[:, None] - x))
    values, vectors = torch.linalg.eigh((relation + relation.mT) / 2)
    # rounding leaves some eigenvalues of the symmetric part slightly below 0
    tied_map = vectors * values.clamp(min=0).sqrt()
    left, singular_values, right = torch.linalg.svd(relation)
    roots = singular_values[:FEATURE_DIM].sqrt()
    untied_maps = left[:, :FEATURE_DIM] * roots, right[:FEATURE_DIM].mT * roots
    tied_errors, untied_errors = (_train_maps(relation, x, untied, steps, seed, progress) for untied in (False, True))
    return RelationFits(
        floor=float((relation - relation.mT).norm()) / 2,
        best_tied=(recover_scores(tied_map, tied_map, score.dot()) - relation).norm(),
        best_untied=(recover_scores(*untied_maps, score.dot()) - relation).norm(),
        tied_errors=tied_errors,
        untied_errors=untied_errors,
    )


def recover_scores(q: Tensor, k: Tensor, score: Any = None) -> Tensor:
    """Return the scores of an attention call, computed from its weights a as log a + lse."""
    result = attention_with_weights(q, k, k[:, :1], score=score)
    scores: Tensor = result.weights.to_dense().log() + result.lse[:, None]
    return scores


def _train_maps(
    relation: Tensor, positions: Tensor, untied: bool, steps: int, seed: int, progress: Callable[[float], None]
) -> Tensor:
    """Return the error after each step of Adam."""
    with fork_rng_with_seed(seed):
        maps = [
            nn.Sequential(nn.Linear(1, HIDDEN_DIM), nn.Tanh(), nn.Linear(HIDDEN_DIM, FEATURE_DIM)).double()
            for _ in range(1 + untied)
        ]
    optimizer = torch.optim.Adam([p for network in maps for p in network.parameters()], lr=LEARNING_RATE)
    errors = []
    for step in range(steps):
        features = [network(positions[:, None]) for network in maps]
        error = (recover_scores(features[0], features[-1], score.dot()) - relation).square().sum()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        errors.append(error.detach().sqrt())
        if step % 20 == 19:
            progress((step + 1) / steps / 2 + untied / 2)
    return torch.stack(errors)
