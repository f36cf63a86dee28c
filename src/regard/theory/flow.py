"""Is attention a gradient flow? Raw and doubly normalised weights are, softmax is not.

Tokens move by ẋ_i = -sum_j w_ij C x_j with scores s_ij = x_i·C x_j and a symmetric C. A velocity that is defined
everywhere is minus the gradient of some energy exactly if its Jacobian is symmetric.

    raw        w = exp(s) / n            the gradient of F = sum_ij exp(s_ij) / 2n
    Sinkhorn   w = exp(f_i + s_ij + f_j), rows and columns sum to 1: the gradient of F = -sum_i f_i
    softmax    w = exp(s_ij - lse_i)     J_ik = -w_ik (C + (C x_k - m_i)(C x_i)') for k ≠ i, m_i = sum_j w_ij C x_j

That Sinkhorn's f minimises sum_ij exp(f_i + s_ij + f_j) / 2 - sum_i f_i is why only the direct part of its gradient is
left (Sander and others, Sinkformers, arXiv 2110.11773). Softmax has n / Z_i times the velocity of raw weights, each
token its own speed: it is no gradient in the usual metric, but goes down the same energy, dF/dt = -sum Z_i |ẋ_i|² / n.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from regard.attention import attend, attention
from regard.draw.charts import Image, Motion, Panel, Series
from regard.spec import score, weigh
from regard.theory.experiment import Progress, check_settings
from regard.theory.moving import Field, stepped
from regard.theory.outcome import Claim, Outcome

STEPS = 20
SPREADS = (0.2, 0.4, 0.6, 0.8, 1.0)  # shares of the spread that was asked for


@dataclass(frozen=True, eq=False)
class Kind:
    """A velocity, and the energy that it should go down; of tokens (..., n, d)."""

    velocity: Field
    energy: Field


@check_settings
def flow(
    *,
    tokens: int = 6,
    dimension: int = 2,
    spread: float = 1.0,
    time: float = 2.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> Outcome:
    """Jacobians of the velocities that attention gives to tokens, and energies along their ways.

    The `tokens` have a length of `spread` at most, and move for `time`.

    >>> flow(tokens=4, time=0.5).agrees
    True
    """
    random = torch.Generator().manual_seed(seed)
    told = progress or (lambda share: None)
    c = _symmetric(dimension, random)
    x = torch.randn(tokens, dimension, generator=random, dtype=torch.float64)
    x = spread * x / x.norm(dim=-1).max()
    kinds = _kinds(c, x)
    jacobians = {name: _jacobian(kind.velocity, x) for name, kind in kinds.items()}
    slopes = {name: _slope(kind.energy, x) for name, kind in kinds.items()}
    told(0.2)
    curves = _by_spread(c, x)
    told(0.4)
    paths = {name: _path(kind.velocity, x, time) for name, kind in kinds.items() if name != "sinkhorn"}
    paths["sinkhorn"] = _path(kinds["sinkhorn"].velocity, x, time, lambda share: told(0.4 + 0.6 * share))
    energies = {name: torch.stack([kinds[name].energy(y) for y in path]) for name, path in paths.items()}
    told(1.0)
    found = {f"jacobian_{name}": j for name, j in jacobians.items()} | {f"energy_{n}": e for n, e in energies.items()}
    columns = _sinkhorn_weights(x, c, _iterations(x, c)).sum(-2)
    uneven = 1e-12 + float((columns - 1).abs().max())
    velocity = {name: kind.velocity(x) for name, kind in kinds.items()}
    return Outcome(
        name="flow",
        claims=(
            Claim(
                "after as many iterations as Birkhoff and Hopf ask for, columns sum to 1 as rows do",
                torch.ones(tokens),
                columns,
                within=1e-12,
                because="exp(-35) of what they lacked at first, and rounding in float64",
            ),
            *_of_symmetry(jacobians, uneven),
            _of_softmax(jacobians["softmax"], _softmax_jacobian(x, c)),
            *_of_gradients(velocity, slopes, uneven),
            *_of_energies(energies),
        ),
        wrong=(
            Claim(
                "softmax attention is a gradient flow: its Jacobian is symmetric",
                0.0,
                _asymmetry(jacobians["softmax"]),
                within=1e-6,
                because="far above rounding",
            ),
            Claim(
                "softmax goes down the sum of lse, half its gradient a step",
                -_slope(lambda y: _lse(y, c).sum(-1), x) / 2,
                velocity["softmax"],
                within=1e-6 * spread,
                because="far above rounding",
            ),
        ),
        panels=_panels(jacobians, curves, energies, spread, time),
        settings={"tokens": tokens, "dimension": dimension, "spread": spread, "time": time, "seed": seed},
        data=found,
        motion=_motion(paths["sinkhorn"], time),
    )


def _symmetric(dimension: int, random: torch.Generator) -> Tensor:
    """A symmetric matrix whose largest eigenvalue is 1 or -1."""
    c = torch.randn(dimension, dimension, generator=random, dtype=torch.float64)
    c = c + c.mT
    largest: Tensor = torch.linalg.eigvalsh(c).abs().max()
    return c / largest


# ---- velocities and energies --------------------------------------------------------------------------------
def _kinds(c: Tensor, x: Tensor) -> dict[str, Kind]:
    raw = partial(_raw_energy, c=c)
    iterations = _iterations(x, c)
    return {
        "raw": Kind(partial(_raw, c=c), raw),
        "sinkhorn": Kind(
            partial(_weighed, c=c, weighing=weigh.sinkhorn(iterations)),
            partial(_sinkhorn_energy, c=c, iterations=iterations),
        ),
        "softmax": Kind(partial(_weighed, c=c, weighing=weigh.softmax()), raw),
    }


def _weighed(x: Tensor, c: Tensor, weighing: weigh.Weigh) -> Tensor:
    moved: Tensor = attention(x, x, x @ c, score=score.multiplicative(c), weigh=weighing)
    return -moved


def _raw(x: Tensor, c: Tensor) -> Tensor:
    seen = attend(x, x, x @ c, score=score.multiplicative(c))
    moved: Tensor = seen.output * seen.lse.exp().unsqueeze(-1) / x.shape[-2]
    return -moved


def _lse(x: Tensor, c: Tensor) -> Tensor:
    lse: Tensor = attend(x, x, x, score=score.multiplicative(c)).lse
    return lse


def _raw_energy(x: Tensor, c: Tensor) -> Tensor:
    return _lse(x, c).exp().sum(-1) / (2 * x.shape[-2])


def _sinkhorn_energy(x: Tensor, c: Tensor, iterations: int) -> Tensor:
    """-sum f, where f follows from what a token gives itself: w_ii = exp(2 f_i + s_ii)."""
    weights = _sinkhorn_weights(x, c, iterations)
    own = (x @ c * x).sum(-1)
    return -(weights.diagonal(dim1=-2, dim2=-1).log() - own).sum(-1) / 2


def _sinkhorn_weights(x: Tensor, c: Tensor, iterations: int) -> Tensor:
    found = attend(x, x, x, score=score.multiplicative(c), weigh=weigh.sinkhorn(iterations)).weights
    weights: Tensor = found.dense()
    return weights


def _iterations(x: Tensor, c: Tensor) -> int:
    """After so many rows and columns are even up to rounding: each brings them nearer by tanh²(Δ/4) at least, Δ being
    the largest s_ij + s_kl - s_il - s_kj (Birkhoff and Hopf)."""
    apart = (x.unsqueeze(0) - x.unsqueeze(1)).flatten(0, 1)
    largest = float((apart @ c @ apart.mT).max())
    return max(10, math.ceil(-35 / (2 * math.log(math.tanh(largest / 4)))))


# ---- derivatives --------------------------------------------------------------------------------------------
def _jacobian(velocity: Field, x: Tensor) -> Tensor:
    """Of n·d numbers by n·d, in one pass: as many copies of the tokens, and of each copy one number."""
    size = x.numel()
    copies = x.expand(size, *x.shape).clone().requires_grad_(True)
    (rows,) = torch.autograd.grad(velocity(copies).reshape(size, size).diagonal().sum(), copies)
    return rows.reshape(size, size)


def _slope(energy: Field, x: Tensor) -> Tensor:
    y = x.clone().requires_grad_(True)
    return torch.autograd.grad(energy(y), y)[0]


def _softmax_jacobian(x: Tensor, c: Tensor) -> Tensor:
    """Written out. On the diagonal the query moves as well: w_ii C + cov_i(C x) C + the part as above."""
    n, d = x.shape
    w, moved = torch.softmax(x @ c @ x.mT, -1), x @ c
    mean = w @ moved
    blocks = -torch.einsum("ik,ab->iakb", w, c)
    blocks = blocks - torch.einsum("ik,ika,ib->iakb", w, moved.unsqueeze(0) - mean.unsqueeze(1), moved)
    spread = torch.einsum("ij,ja,jb->iab", w, moved, moved) - torch.einsum("ia,ib->iab", mean, mean)
    for i in range(n):
        blocks[i, :, i] -= spread[i]
    return blocks.reshape(n * d, n * d)


def _asymmetry(jacobian: Tensor) -> float:
    return float((jacobian - jacobian.mT).norm() / jacobian.norm())


def _by_spread(c: Tensor, x: Tensor) -> dict[str, list[float]]:
    """The asymmetry of each kind for tokens that are nearer to 0 and to each other."""
    curves: dict[str, list[float]] = {"raw": [], "sinkhorn": [], "softmax": []}
    for share in SPREADS:
        for name, kind in _kinds(c, share * x).items():
            curves[name].append(_asymmetry(_jacobian(kind.velocity, share * x)))
    return curves


def _path(velocity: Field, x: Tensor, time: float, told: Callable[[float], None] = lambda share: None) -> Tensor:
    places = [x]
    for step in range(STEPS):
        places.append(stepped(places[-1], velocity, time / STEPS))
        told((step + 1) / STEPS)
    return torch.stack(places)


# ---- what is claimed ----------------------------------------------------------------------------------------
def _of_symmetry(jacobians: dict[str, Tensor], uneven: float) -> tuple[Claim, Claim]:
    return (
        Claim(
            "raw weights: the Jacobian is symmetric",
            0.0,
            _asymmetry(jacobians["raw"]),
            within=1e-13,
            because="rounding in float64",
        ),
        Claim(
            "doubly normalised weights: the Jacobian is symmetric",
            0.0,
            _asymmetry(jacobians["sinkhorn"]),
            within=10 * uneven,
            because="a few times what columns still lack of 1 after the last iteration",
        ),
    )


def _of_softmax(found: Tensor, said: Tensor) -> Claim:
    return Claim(
        "softmax: the Jacobian is the one written out, and not symmetric",
        said,
        found,
        within=1e-12,
        because="rounding in float64",
    )


def _of_gradients(velocity: dict[str, Tensor], slopes: dict[str, Tensor], uneven: float) -> tuple[Claim, Claim]:
    return (
        Claim(
            "raw weights: the velocity is minus the gradient of sum_ij exp(s_ij) / 2n",
            -slopes["raw"],
            velocity["raw"],
            within=1e-12,
            because="rounding in float64",
        ),
        Claim(
            "doubly normalised weights: the velocity is minus the gradient of -sum_i f_i",
            -slopes["sinkhorn"],
            velocity["sinkhorn"],
            within=10 * uneven,
            because="a few times what columns still lack of 1 after the last iteration",
        ),
    )


def _of_energies(energies: dict[str, Tensor]) -> tuple[Claim, ...]:
    named = {"raw": "raw weights", "sinkhorn": "doubly normalised weights", "softmax": "softmax, and the raw energy"}
    return tuple(
        Claim(
            f"{what}: the energy never rises on the way",
            torch.zeros(STEPS),
            energies[name].diff() / energies[name].abs().max(),
            within=1e-12,
            because="rounding in float64; and a step of the fourth order is short beside the way",
            relation="at most",
        )
        for name, what in named.items()
    )


def _panels(
    jacobians: dict[str, Tensor],
    curves: dict[str, list[float]],
    energies: dict[str, Tensor],
    spread: float,
    time: float,
) -> tuple[Panel | Image, ...]:
    times = torch.linspace(0, time, STEPS + 1)
    sizes = [share * spread for share in SPREADS]
    skew = {name: (j - j.mT) / 2 for name, j in jacobians.items()}
    return (
        Panel(
            "Asymmetry of the Jacobian",
            "length of the longest token",
            "|J - J'| / |J|",
            [Series(name, sizes, [max(y, 1e-18) for y in found], "points") for name, found in curves.items()],
            log_y=True,
        ),
        Panel(
            "Energy on the way",
            "time",
            "F - F at the end",
            [Series(name, times, e - e[-1]) for name, e in energies.items()],
        ),
        Image("Softmax: (J - J') / 2", "coordinate", "velocity of coordinate", skew["softmax"], signed=True),
    )


def _motion(path: Tensor, time: float) -> Motion | None:
    if path.shape[-1] not in (2, 3):
        return None
    return Motion("Tokens under doubly normalised weights", torch.linspace(0, time, STEPS + 1), path)
