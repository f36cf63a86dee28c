"""Why scores are divided by √d: how dot products spread, and what softmax makes of a wide spread.

For centred q and k with covariances Σ_q and Σ_k, Var(q·k) = tr(Σ_q Σ_k): d, if all coordinates are independent and have
variance 1. Cosines of independent directions have variance 1/d. A query of length √d gives normal keys normal scores of
standard deviation √d, or 1 with the scale; `normal_scores` has what softmax makes of those, exactly.

Beyond a spread of √(2 log n) softmax over n keys is frozen: most queries have one key and a Jacobian near 0. Those that
waver between two keys, a share of about √(2 log n / d), keep a large one. So the Jacobian vanishes for the typical
query, and not on average.
"""

import math

import torch
from torch import Tensor

from regard.attention import attend
from regard.draw.charts import Panel, Series
from regard.spec import score
from regard.theory.experiment import Progress, check_settings
from regard.theory.normal_scores import expected
from regard.theory.outcome import Claim, Outcome

WIDTHS = (16, 64, 256, 1024)
DRAWS, QUERIES = 12, 64  # of keys, and of queries that look at each
ERRORS = 6  # standard errors: of 12 draws one mean in ten thousand is further off
BY_DRAWS = f"{ERRORS} standard errors of a mean over {DRAWS} draws of keys"
BY_SAMPLES = "5 standard errors of a variance, whose own is (kurtosis - 1) / samples"
ANGLES = 13  # from 0 to 180 degrees
LENGTHS = 3.0  # |q| |k| / √d of keys at an angle


@check_settings
def scaling(
    *,
    keys: int = 4096,
    samples: int = 20_000,
    correlation: float = 0.1,
    seed: int = 0,
    progress: Progress | None = None,
) -> Outcome:
    """Dot products and angles of random vectors at several widths, and softmax over products, scaled and not.

    `keys` is the number softmax runs over, `samples` how many products a variance is estimated from, `correlation` that
    of the coordinates where they are not independent.

    >>> scaling(keys=256, samples=2000).agrees
    True
    """
    random = torch.Generator().manual_seed(seed)
    widths = torch.tensor(WIDTHS, dtype=torch.float64)
    found: dict[str, list[Tensor]] = {}
    for n, width in enumerate(WIDTHS):
        values = {
            **_products(samples, width, 0.0, random, _share(progress, 3 * n)),
            "variance_correlated": _products(samples, width, correlation, random, _share(progress, 3 * n + 1))[
                "variance"
            ],
            **_softmax(keys, width, random, _share(progress, 3 * n + 2)),
        }
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    data = {name: torch.stack(values) for name, values in found.items()}
    data["weights_by_angle"] = _by_angle()
    data["line"] = torch.exp2(torch.arange(4, 11, dtype=torch.float64))  # every second is one of WIDTHS
    exact, exact_scaled = [expected(keys, math.sqrt(width)) for width in data["line"].tolist()], expected(keys, 1.0)
    for name in ("entropy", "jacobian"):
        data[f"{name}_line"] = torch.tensor([getattr(each, name) for each in exact], dtype=torch.float64)
        data[f"{name}_exact"] = data[f"{name}_line"][::2]
        data[f"{name}_scaled_exact"] = torch.full_like(widths, getattr(exact_scaled, name))
    return Outcome(
        name="scaling",
        claims=(*_of_products(data, widths, correlation, samples), *_of_softmax(data, keys), _of_angles(data)),
        wrong=_wrong(data, widths, correlation, samples),
        panels=_panels(data, widths, correlation, keys),
        settings={"keys": keys, "samples": samples, "correlation": correlation, "seed": seed},
        data=data,
    )


def _products(
    samples: int, width: int, correlation: float, random: torch.Generator, told: Progress
) -> dict[str, Tensor]:
    """The variance of q·k, and the mean square of the cosine of the angle, over pairs of vectors."""
    dots, cosines = [], []
    for begin in range(0, samples, 2048):  # a wide row of all samples would be large
        size = min(2048, samples - begin), 1, width
        q, k = (_vectors(size, correlation, random) for _ in range(2))
        dots.append(attend(q, k, k[..., :1], score=score.dot()).lse)  # of one key: its score
        cosines.append(attend(q, k, k[..., :1], score=score.cosine()).lse)
        told(min(1.0, (begin + 2048) / samples))
    return {"variance": torch.cat(dots).var(), "cosines": torch.cat(cosines).square().mean()}


def _share(progress: Progress | None, part: int) -> Progress:
    """Tells how far a part is, of three for each width, as a share of all."""
    return lambda share: progress((part + share) / (3 * len(WIDTHS))) if progress else None


def _vectors(size: tuple[int, int, int], correlation: float, random: torch.Generator) -> Tensor:
    own = torch.randn(size, generator=random, dtype=torch.float64)
    shared = torch.randn(size[0], 1, 1, generator=random, dtype=torch.float64)
    return math.sqrt(1 - correlation) * own + math.sqrt(correlation) * shared


def _softmax(keys: int, width: int, random: torch.Generator, told: Progress) -> dict[str, Tensor]:
    """Of softmax with and without the scale: entropy and squared norm of the Jacobian, with their standard errors."""
    rows: dict[str, list[Tensor]] = {}
    for draw in range(DRAWS):
        q, k = (torch.randn(n, width, generator=random, dtype=torch.float64) for n in (QUERIES, keys))
        q = q * math.sqrt(width) / q.norm(dim=-1, keepdim=True)
        for name, chosen in (("", score.dot()), ("_scaled", score.scaled_dot())):
            a = attend(q, k, k[:, :1], score=chosen).weights.dense()
            rows.setdefault(f"entropy{name}", []).append(-torch.special.xlogy(a, a).sum(-1))
            rows.setdefault(f"jacobian{name}", []).append(_jacobian(a))
        told((draw + 1) / DRAWS)
    found = {}
    for name, draws in rows.items():
        each = torch.stack(draws)
        found[name] = each.mean()
        found[f"{name}_error"] = each.mean(-1).std() / math.sqrt(DRAWS)
        found[f"{name}_median"] = each.median()
    return found


def _jacobian(a: Tensor) -> Tensor:
    """‖diag(a) - aa'‖² = Σ a² - 2 Σ a³ + (Σ a²)²."""
    squares = a.square().sum(-1)
    return (squares - 2 * a.pow(3).sum(-1) + squares.square()).clamp(min=0)


def _by_angle() -> Tensor:
    """The weights of keys of one length, at angles from 0 to 180 degrees."""
    angle = torch.linspace(0, math.pi, ANGLES, dtype=torch.float64)
    k = torch.stack([torch.cos(angle), torch.sin(angle)], -1) * LENGTHS * math.sqrt(2)
    found: Tensor = attend(torch.eye(2, dtype=torch.float64)[:1], k, k).weights.dense()
    return found[0]


def _correlated(widths: Tensor, correlation: float) -> Tensor:
    """tr(Σ²) of d coordinates of variance 1 that all have this correlation."""
    return widths + widths * (widths - 1) * correlation**2


def _sampling(widths: Tensor, correlation: float, samples: int) -> float:
    """Five standard errors of a variance of products, relative to it, at the worst width.

    Given q, q·k is normal with variance q'Σq; so its kurtosis is 3 (1 + 2 tr Σ⁴ / (tr Σ²)²).
    """
    one, other = 1 + (widths - 1) * correlation, 1 - correlation  # eigenvalues of Σ: one is alone, the others equal
    fourth = one**4 + (widths - 1) * other**4
    kurtosis = 3 * (1 + 2 * fourth / _correlated(widths, correlation).square())
    return 5 * math.sqrt(float((kurtosis - 1).max()) / samples)


def _of_products(data: dict[str, Tensor], widths: Tensor, correlation: float, samples: int) -> tuple[Claim, ...]:
    ones = torch.ones_like(widths)
    dependent = data["variance_correlated"] / _correlated(widths, correlation)
    # E cos⁴ = 3 / (d (d + 2)), so the squares of cosines have the variance 2 (d - 1) / (d + 2) relative to 1/d²
    angles = 5 * math.sqrt(float((2 * (widths - 1) / (widths + 2)).max()) / samples)
    return (
        Claim(
            "independent coordinates: Var(q·k) / d is 1",
            ones,
            data["variance"] / widths,
            _sampling(widths, 0.0, samples),
            BY_SAMPLES,
        ),
        Claim(
            "correlated coordinates: Var(q·k) is tr(Σ²) = d + d(d - 1)ρ²",
            ones,
            dependent,
            _sampling(widths, correlation, samples),
            BY_SAMPLES,
        ),
        Claim(
            "the cosine of the angle between independent directions has the mean square 1/d",
            ones,
            data["cosines"] * widths,
            angles,
            "5 standard errors of a mean of squares, from the fourth moment 3 / (d (d + 2))",
        ),
    )


def _of_softmax(data: dict[str, Tensor], keys: int) -> tuple[Claim, ...]:
    claims = []
    for name, words in (("_scaled", "with the scale"), ("", "without the scale")):
        found, error = data[f"entropy{name}"], ERRORS * float(data[f"entropy{name}_error"].max())
        says = f"{words}, the mean entropy is that of softmax over n normal scores, at every width"
        claims.append(Claim(says, data[f"entropy{name}_exact"], found, error, BY_DRAWS))
        exact = data[f"jacobian{name}_exact"]
        claims.append(
            Claim(
                f"{words}, so is the mean square of the Jacobian's norm (as a share of it)",
                torch.ones_like(exact),
                data[f"jacobian{name}"] / exact,
                ERRORS * float((data[f"jacobian{name}_error"] / exact).max()),
                BY_DRAWS,
            )
        )
    found = data["entropy_scaled"]
    claims.append(
        Claim(
            "with the scale, the entropy is log n - 1/2 for many keys, at every width",
            torch.full_like(found, math.log(keys) - 0.5),
            found,
            ERRORS * float(data["entropy_scaled_error"].max()) + (math.e + 1) / keys,
            f"{BY_DRAWS}, and twice the next term of the formula, (e + 1) / 2n",
        )
    )
    return tuple(claims)


def _expected_by_angle() -> Tensor:
    raised = torch.exp(LENGTHS * torch.cos(torch.linspace(0, math.pi, ANGLES, dtype=torch.float64)))
    return raised / raised.sum()


def _of_angles(data: dict[str, Tensor]) -> Claim:
    return Claim(
        "a key's weight goes as exp(|q||k| cos θ / √d): above 0 at every angle",
        _expected_by_angle(),
        data["weights_by_angle"],
        within=1e-15,
        because="rounding of a dozen float64 operations on numbers below 1",
    )


def _wrong(data: dict[str, Tensor], widths: Tensor, correlation: float, samples: int) -> tuple[Claim, ...]:
    right_angle, opposite = data["weights_by_angle"][ANGLES // 2], data["weights_by_angle"][-1]
    rounding = "rounding in float64 is far smaller"
    return (
        Claim(
            "products of correlated coordinates also have variance d",
            torch.ones_like(widths),
            data["variance_correlated"] / widths,
            _sampling(widths, correlation, samples),
            BY_SAMPLES,
        ),
        Claim("a key at a right angle gets no attention", 0.0, right_angle, 1e-12, rounding),
        Claim("an opposite key gets negative attention, or none", 0.0, opposite, 1e-12, rounding, "at most"),
        Claim(
            "without the scale the mean square of the Jacobian's norm is smaller, at every width",
            data["jacobian_scaled"],
            data["jacobian"],
            ERRORS * float(data["jacobian_error"].max()),
            BY_DRAWS,
            "at most",
        ),
    )


def _panels(data: dict[str, Tensor], widths: Tensor, correlation: float, keys: int) -> tuple[Panel, ...]:
    many = data["line"]
    ends, angle = widths[[0, -1]], torch.linspace(0, 180, ANGLES)
    typical = math.sqrt(2) * torch.exp2(-many.sqrt() / math.sqrt(2 * math.log(keys)))
    return (
        Panel(
            "Dot products spread with the width",
            "d",
            "variance of q·k",
            [
                Series("found, independent", widths, data["variance"], "points", of="independent"),
                Series("d", many, many, of="independent"),
                Series("found, correlated", widths, data["variance_correlated"], "points", of="correlated"),
                Series("d + d(d - 1)ρ²", many, _correlated(many, correlation), of="correlated"),
            ],
            log_x=True,
            log_y=True,
        ),
        Panel(
            f"Entropy of softmax over {keys} keys",
            "d",
            "nats",
            [
                Series("found, scaled by 1/√d", widths, data["entropy_scaled"], "points", of="scaled"),
                Series("exact, near log n - 1/2", ends, data["entropy_scaled_exact"][[0, -1]], of="scaled"),
                Series("found, not scaled", widths, data["entropy"], "points", of="plain"),
                Series("exact", many, data["entropy_line"], of="plain"),
                Series("every key alike: log n", ends, torch.full((2,), math.log(keys)), "dashed"),
            ],
            log_x=True,
        ),
        Panel(
            "Size of the Jacobian of softmax",
            "d",
            "Frobenius norm",
            [
                Series("scaled, mean square", widths, data["jacobian_scaled"].sqrt(), "points", of="scaled"),
                Series("exact, near √(e/n)", ends, data["jacobian_scaled_exact"][[0, -1]].sqrt(), of="scaled"),
                Series("not scaled, mean square", widths, data["jacobian"].sqrt(), "points", of="plain"),
                Series("exact", many, data["jacobian_line"].sqrt(), of="plain"),
                Series("not scaled, median query", widths, data["jacobian_median"].sqrt(), "points", of="typical"),
                Series("about √2 · 2^(-√(d / 2 log n))", many, typical, "dashed", of="typical"),
            ],
            log_x=True,
            log_y=True,
        ),
        Panel(
            "Angles close to 90° as the width grows",
            "d",
            "root mean square of cos θ",
            [
                Series("found", widths, data["cosines"].sqrt(), "points", of="cosines"),
                Series("1/√d", many, many.rsqrt(), of="cosines"),
            ],
            log_x=True,
            log_y=True,
        ),
        Panel(
            "Weight of a key by its angle",
            "degrees from the query",
            "weight",
            [
                Series("found", angle, data["weights_by_angle"], "points", of="weight"),
                Series("exp(|q||k| cos θ / √d) / sum", angle, _expected_by_angle(), of="weight"),
            ],
            log_y=True,
        ),
    )
