"""Why scores are divided by √d_k: how dot products spread, and what softmax makes of a wide spread.

For q and k with independent coordinates of mean 0 and variance 1, Var(q·k) = d. In general it is tr(Σ_q Σ_k) for
centred vectors. Scores that are normal with standard deviation s give softmax over n keys an entropy of log n - s²/2,
as long as s stays below √(2 log n); beyond that a few keys take everything. So the scale keeps s at 1 for every d.
"""

import math

import torch
from torch import Tensor

from regard.attention import attend
from regard.draw.charts import Panel, Series
from regard.spec import score
from regard.spec.score import Score
from regard.theory.experiment import Progress
from regard.theory.outcome import Claim, Outcome

WIDTHS = (16, 64, 256, 1024)
QUERIES = 256


def scaling(
    *,
    keys: int = 4096,
    samples: int = 20_000,
    correlation: float = 0.1,
    seed: int = 0,
    progress: Progress | None = None,
) -> Outcome:
    """Dot products of random vectors at several widths, scaled and not; softmax over them; angles.

    `keys` is the number softmax runs over, `samples` how many products a variance is estimated from, `correlation` that
    of the coordinates where they are not independent.

    >>> scaling(keys=512, samples=4000).agrees
    True
    """
    random = torch.Generator().manual_seed(seed)
    spread: list[float] = []
    together: list[float] = []
    plain: list[tuple[float, float]] = []
    scaled: list[tuple[float, float]] = []
    for n, width in enumerate(WIDTHS):
        spread.append(_variance(samples, width, 0.0, random))
        together.append(_variance(samples, width, correlation, random))
        plain.append(_softmax(keys, width, score.dot(), random))
        scaled.append(_softmax(keys, width, score.scaled_dot(), random))
        if progress:
            progress((n + 1) / len(WIDTHS))
    widths = torch.tensor(WIDTHS, dtype=torch.float64)
    dependent = widths + widths * (widths - 1) * correlation**2
    found = {
        "variance": torch.tensor(spread),
        "variance_correlated": torch.tensor(together),
        "entropy": torch.tensor([entropy for entropy, _ in plain]),
        "entropy_scaled": torch.tensor([entropy for entropy, _ in scaled]),
        "gradient": torch.tensor([gradient for _, gradient in plain]),
        "gradient_scaled": torch.tensor([gradient for _, gradient in scaled]),
    }
    aside = _orthogonal(keys, random)
    return Outcome(
        name="scaling",
        claims=(*_of_variance(found, widths, dependent, samples), *_of_softmax(found, widths, keys), _of_angles(aside)),
        wrong=(
            Claim(
                "products of correlated coordinates also have variance d",
                torch.ones(len(WIDTHS)),
                found["variance_correlated"] / widths,
                within=_sampling(samples),
                because="five standard errors of a variance that is estimated from samples",
            ),
            Claim(
                "an orthogonal key gets no attention",
                torch.zeros_like(aside),
                aside,
                within=1e-12,
                because="float64",
            ),
        ),
        panels=_panels(found, widths, dependent, keys),
        settings={"keys": keys, "samples": samples, "correlation": correlation, "seed": seed},
        data=found,
    )


def _variance(samples: int, width: int, correlation: float, random: torch.Generator) -> float:
    """Of q·k over pairs of vectors whose coordinates have variance 1 and this correlation with each other."""
    products = []
    for begin in range(0, samples, 4096):  # a wide row of all samples would be large
        size = min(4096, samples - begin), width
        q, k = (_vectors(size, correlation, random) for _ in range(2))
        products.append((q * k).sum(-1))
    return float(torch.cat(products).var())


def _vectors(size: tuple[int, int], correlation: float, random: torch.Generator) -> Tensor:
    own = torch.randn(size, generator=random, dtype=torch.float64)
    shared = torch.randn(size[0], 1, generator=random, dtype=torch.float64)
    return math.sqrt(1 - correlation) * own + math.sqrt(correlation) * shared


def _softmax(keys: int, width: int, chosen: Score, random: torch.Generator) -> tuple[float, float]:
    """The mean entropy of rows of weights, and the mean norm of the Jacobian of softmax there."""
    q, k = (torch.randn(n, width, generator=random, dtype=torch.float64) for n in (QUERIES, keys))
    a = attend(q, k, k[:, :1], score=chosen).weights.dense()
    entropy = -torch.special.xlogy(a, a).sum(-1)
    squares, cubes = a.square().sum(-1), a.pow(3).sum(-1)
    # ‖diag(a) - aa'‖² = Σ a² - 2 Σ a³ + (Σ a²)²
    norm = (squares - 2 * cubes + squares.square()).clamp(min=0).sqrt()
    return float(entropy.mean()), float(norm.mean())


def _orthogonal(keys: int, random: torch.Generator) -> Tensor:
    """The weights of keys that are orthogonal to the query, all of them."""
    k = torch.randn(keys, 8, generator=random, dtype=torch.float64)
    k[:, 0] = 0
    q = torch.zeros(1, 8, dtype=torch.float64)
    q[:, 0] = 3
    found: Tensor = attend(q, k, k).weights.dense()
    return found[0]


def _of_variance(found: dict[str, Tensor], widths: Tensor, dependent: Tensor, samples: int) -> tuple[Claim, Claim]:
    within, because = _sampling(samples), "five standard errors of a variance that is estimated from samples"
    ones = torch.ones(len(widths))
    return (
        Claim("independent coordinates: Var(q·k) / d is 1", ones, found["variance"] / widths, within, because),
        Claim(
            "correlated coordinates: Var(q·k) is tr(Σ²) = d + d(d - 1)ρ²",
            ones,
            found["variance_correlated"] / dependent,
            within,
            because,
        ),
    )


def _sampling(samples: int) -> float:
    """Five standard errors of a variance, relative to it; products of vectors have a kurtosis of at most 9."""
    return 5 * math.sqrt(8 / samples)


def _of_softmax(found: dict[str, Tensor], widths: Tensor, keys: int) -> tuple[Claim, Claim]:
    expected = (1 - 1 / widths).pow(-widths / 2) / math.sqrt(keys)  # E exp(s²/2) where s² = |q|²/d
    return (
        Claim(
            "with the scale, the entropy of softmax over n keys is log n - 1/2, at every width",
            torch.full((len(widths),), math.log(keys) - 0.5),
            found["entropy_scaled"],
            within=5 * math.sqrt((math.e - 1) / keys),
            because="five standard errors of a sum of n exponentials of normal scores, relative to it",
        ),
        Claim(
            "with the scale, the Jacobian of softmax has the norm √(e/n), at every width",
            torch.ones(len(widths)),
            found["gradient_scaled"] / expected,
            within=8 / math.sqrt(keys) + 0.1,
            because=f"{QUERIES} queries of different lengths, and terms of order 1/n that the formula leaves out",
        ),
    )


def _of_angles(aside: Tensor) -> Claim:
    return Claim(
        "a key at a right angle has the score 0 and the weight 1/n, when all have",
        torch.full_like(aside, 1 / len(aside)),
        aside,
        within=1e-15,
        because="rounding of a division in float64",
    )


def _panels(found: dict[str, Tensor], widths: Tensor, dependent: Tensor, keys: int) -> tuple[Panel, ...]:
    even = math.log(keys)
    return (
        Panel(
            "Dot products spread with the width",
            "d",
            "variance of q·k",
            [
                Series("found, independent", widths, found["variance"], "points"),
                Series("d", widths, widths),
                Series("found, correlated", widths, found["variance_correlated"], "points"),
                Series("d + d(d - 1)ρ²", widths, dependent),
            ],
            log_x=True,
            log_y=True,
        ),
        Panel(
            f"Entropy of softmax over {keys} keys",
            "d",
            "nats",
            [
                Series("scaled by 1/√d", widths, found["entropy_scaled"], "points"),
                Series("log n - 1/2", widths, torch.full((len(widths),), even - 0.5)),
                Series("not scaled", widths, found["entropy"], "points"),
                Series("every key alike: log n", widths, torch.full((len(widths),), even), "dashed"),
            ],
            log_x=True,
        ),
        Panel(
            "Norm of the Jacobian of softmax",
            "d",
            "Frobenius norm",
            [
                Series("scaled by 1/√d", widths, found["gradient_scaled"], "points"),
                Series("√(e/n)", widths, torch.full((len(widths),), math.sqrt(math.e / keys))),
                Series("not scaled", widths, found["gradient"], "points"),
            ],
            log_x=True,
            log_y=True,
        ),
    )
