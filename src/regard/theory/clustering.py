"""Tokens that attend to each other and move: they gather, for a long time into several groups, in the end into one.

On the unit sphere, with P⊥ the part of a vector that is tangent at x_i (Geshkovski and others, arXiv 2312.10794):

    softmax        ẋ_i = P⊥ sum_j a_ij x_j,   a_ij = exp(β x_i·x_j) / Z_i,   Z_i = sum_j exp(β x_i·x_j)
    not normalised ẋ_i = P⊥ (1/n) sum_j exp(β x_i·x_j) x_j

Both raise E = sum_ij exp(β x_i·x_j) / 2βn²: its gradient at x_i is Z_i/n² times the velocity of softmax, so
dE/dt = sum_i Z_i |ẋ_i|² / n². From orthonormal tokens all products stay equal, x_i·x_j = γ(t), with

    γ' = 2 exp(βγ) (1 - γ) ((n - 1)γ + 1) / (exp(β) + (n - 1) exp(βγ))          over n instead, if not normalised

Two groups of half the tokens each have γ' = 2 (1 - γ²) exp(βγ) / (exp(β) + exp(βγ)): the time until they meet grows as
exp(β(1 - γ)). If all tokens lie in a half of the sphere around w, min x_i·w never falls and they meet; close to the end
1 - γ falls as exp(-2t), whatever β is.

On a line, ẋ_i = sum_j a_ij x_j with scores x_i x_j: after rescaling, z = exp(-t) x, the weights become 0 and 1, and all
tokens but at most one look at the largest or at the smallest (Geshkovski and others, arXiv 2305.05465).
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from regard.draw.charts import Image, Motion, Panel, Series
from regard.theory.experiment import Progress, check_settings
from regard.theory.moving import energy, groups_of, raw_velocity, softmax_velocity
from regard.theory.outcome import Claim, Outcome
from regard.theory.tokens import (
    FRAMES,
    LIVES,
    Cone,
    Course,
    Lives,
    climb,
    counted,
    from_right_angles,
    in_a_half,
    on_a_line,
    raw_rate,
    softmax_rate,
    two_groups,
    watched,
)

HALVED = "what halving the steps changes, fifteen times what a fourth-order step still lacks then; and rounding"
CLEAR = "a hundredth is far above what steps and rounding leave"


@check_settings
def clustering(
    *,
    tokens: int = 32,
    beta: float = 9.0,
    dimension: int = 2,
    time: float = 30.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> Outcome:
    """Tokens on a sphere under softmax attention, whose weights regard computes, beside the equations they obey.

    `tokens` of `dimension` move for `time` with scores β x_i·x_j.

    >>> clustering(tokens=6, beta=2.0, time=3.0).agrees
    True
    """
    random = torch.Generator().manual_seed(seed)
    told = progress or (lambda share: None)
    softmax = from_right_angles(tokens, beta, softmax_velocity(beta), softmax_rate(tokens, beta))
    told(0.15)
    raw = from_right_angles(tokens, beta, raw_velocity(beta), raw_rate(tokens, beta))
    told(0.3)
    lives = two_groups(tokens)
    start = normalize(torch.randn(tokens, dimension, generator=random, dtype=torch.float64), dim=-1)
    path = watched(start, beta, time, lambda share: told(0.4 + 0.4 * share))
    soft = watched(start, 1.0, time, lambda share: told(0.8 + 0.1 * share))
    cone = in_a_half(tokens, dimension, random)
    line, weights = on_a_line(tokens, random)
    told(1.0)
    found = {
        "gamma": softmax.found,
        "gamma_raw": raw.found,
        "path": path,
        "groups": counted(path),
        "groups_at_one": counted(soft),
        "energy": torch.stack([energy(x, beta) for x in path]),
        "apart_in_cone": cone.apart,
        "weights_on_a_line": weights,
    }
    return Outcome(
        name="clustering",
        claims=(
            _of_course("softmax", softmax),
            _of_course("not normalised", raw),
            *_of_energy(found["energy"], *climb(start, beta)),
            Claim(
                "two groups of half the tokens have the product 1/2 when the equation says so",
                torch.full_like(lives.found, 0.5),
                lives.found,
                within=lives.changed + 1e-12,
                because=HALVED,
            ),
            *_of_cone(cone),
            *_of_line(line, weights),
        ),
        wrong=_wrong(softmax, lives, weights),
        panels=_panels(softmax, raw, lives, cone, found, time, beta),
        settings={"tokens": tokens, "beta": beta, "dimension": dimension, "time": time, "seed": seed},
        data=found,
        motion=Motion(
            f"{tokens} tokens on a {'circle' if dimension == 2 else 'sphere'}, β = {beta:g}",
            torch.linspace(0, time, FRAMES + 1),
            path,
            groups_of(path[-1]),
        ),
    )


# ---- what is claimed ----------------------------------------------------------------------------------------
def _of_course(name: str, course: Course) -> Claim:
    return Claim(
        f"orthonormal tokens, {name}: the least and the largest product are both γ(t)",
        course.gamma.expand(2, -1),
        course.found,
        within=course.changed + 1e-12,
        because=HALVED,
    )


def _of_energy(along: Tensor, said: Tensor, found: Tensor) -> tuple[Claim, Claim]:
    return (
        Claim(
            "the energy rises at the rate sum_i Z_i |ẋ_i|² / n², and sum_i |ẋ_i|² / n without the norm",
            torch.ones(2),
            found / said,
            within=1e-9,
            because="rounding in float64, of numbers that partly cancel",
        ),
        Claim(
            "the energy never falls",
            torch.zeros(len(along) - 1),
            along.diff() / along.abs().max(),
            within=1e-13,
            because="rounding of sums in float64, where nothing moves any more",
            relation="at least",
        ),
    )


def _of_cone(cone: Cone) -> tuple[Claim, Claim]:
    late = cone.apart[:-8] < 1e-3
    slope = (cone.apart[:-8] / cone.apart[8:]).log() / (cone.times[8:] - cone.times[:-8])
    return (
        Claim(
            "in a half of the sphere, the least product with its middle never falls",
            torch.zeros(len(cone.least) - 1),
            cone.least.diff(),
            within=1e-12,
            because="rounding in float64, where nothing moves any more",
            relation="at least",
        ),
        Claim(
            "there all tokens meet: once 1 - γ is below 1/1000, it falls as exp(-2t)",
            torch.full((int(late.sum()),), 2.0),
            slope[late],
            within=0.02,
            because="terms of order 1 - γ, of which there are a few",
        ),
    )


def _of_line(line: Tensor, weights: Tensor) -> tuple[Claim, Claim]:
    leader = torch.where(line > 0, weights[:, line.argmax()], weights[:, line.argmin()])
    return (
        Claim(
            "on a line, all tokens but at most one give all their weight to the largest or the smallest",
            torch.ones(len(line) - 1),
            leader.sort().values[1:],
            within=1e-6,
            because="rounding of scores near 10⁹; what else is left falls as exp(-c exp t), and t is 10",
        ),
        Claim(
            "so the matrix of weights has rank 3 at most",
            torch.zeros(len(line) - 3),
            torch.linalg.svdvals(weights)[3:],
            within=1e-6 * math.sqrt(len(line)),
            because="the same, for a matrix of n rows",
        ),
    )


def _wrong(softmax: Course, lives: Lives, weights: Tensor) -> tuple[Claim, ...]:
    return (
        Claim(
            "two groups meet after the same time, whatever β is",
            torch.full_like(lives.too_early, 0.5),
            lives.too_early,
            within=0.01,
            because=CLEAR,
        ),
        Claim(
            "orthonormal tokens approach each other as 1 - γ = exp(-2t) from the start",
            1 - torch.exp(-2 * softmax.times),
            softmax.found[0],
            within=0.01,
            because=CLEAR,
        ),
        Claim(
            "on a line, every token ends with all its weight on itself",
            torch.eye(len(weights)),
            weights,
            within=0.01,
            because=CLEAR,
        ),
    )


def _panels(
    softmax: Course, raw: Course, lives: Lives, cone: Cone, found: dict[str, Tensor], time: float, beta: float
) -> tuple[Panel | Image, ...]:
    moments = torch.linspace(0, time, FRAMES + 1)
    share = torch.linspace(0, 1, 400, dtype=torch.float64)
    late = cone.apart[32] * torch.exp(-2 * (cone.times - cone.times[32]))
    return (
        Panel(
            "Orthonormal tokens",
            "time, until products are 0.95",
            "product of two tokens",
            [
                Series("softmax", softmax.times / softmax.times[-1], softmax.found[0], "points", of="softmax"),
                Series("its equation", softmax.times / softmax.times[-1], softmax.gamma, of="softmax"),
                Series("not normalised", raw.times / raw.times[-1], raw.found[0], "points", of="raw"),
                Series("its equation", raw.times / raw.times[-1], raw.gamma, of="raw"),
                Series("1 - exp(-2t), wrong", share, 1 - torch.exp(-2 * share * softmax.times[-1]), "dashed"),
            ],
        ),
        Panel(
            "Groups of a random start",
            "time",
            "groups",
            [Series(f"β = {beta:g}", moments, found["groups"]), Series("β = 1", moments, found["groups_at_one"])],
        ),
        Panel("Energy of a random start", "time", "E", [Series("", moments, found["energy"])]),
        Panel(
            "How long two groups live",
            "β",
            "time from a right angle to 60°",
            [
                Series("the equation", LIVES, lives.time),
                Series("exp(β) / 2β", LIVES, [math.exp(b) / 2 / b for b in LIVES], "dashed"),
            ],
            log_y=True,
        ),
        Panel(
            "In a half of the sphere",
            "time",
            "largest 1 - γ",
            [Series("found", cone.times, cone.apart, "points"), Series("exp(-2t)", cone.times, late)],
            log_y=True,
        ),
        Image("On a line: weights after a time of 10", "looks at token", "token", found["weights_on_a_line"]),
    )
