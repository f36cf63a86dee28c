"""Why scores are divided by √d: the variance of dot products, and the saturation of softmax.

For centered q and k with covariances Σ_q and Σ_k, Var(q·k) = tr(Σ_q Σ_k), which is d for independent coordinates of
variance 1. Cosines of independent directions have variance 1/d. For a query of norm √d and normal keys the scores are
normal with standard deviation √d, or 1 with the scale; `normal_scores` has the exact moments of softmax over them.

For a standard deviation above √(2 log n), softmax over n keys is frozen: most queries have all weight on one key, and a
Jacobian near 0. A fraction of about √(2 log n / d) of the queries is undecided between two keys and has a large
Jacobian. The Jacobian therefore vanishes for the typical query, but not on average.
"""

import math

import torch
from torch import Tensor

from regard import score
from regard.attention import attention_with_weights
from regard.plot.chart_panels import Panel, Series
from regard.theory.analysis.normal_scores import exact_moments
from regard.theory.experiment import ProgressCallback, check_settings
from regard.theory.experiment_result import Claim, ExperimentResult

HEAD_DIMS = (16, 64, 256, 1024)
NUM_DRAWS, NUM_QUERIES = 12, 64  # random sets of keys, and queries for each set
NUM_STANDARD_ERRORS = 6  # with 12 draws, one mean in ten thousand deviates by more
DRAWS_REASON = f"{NUM_STANDARD_ERRORS} standard errors of a mean over {NUM_DRAWS} draws of keys"
SAMPLES_REASON = "5 standard errors of a variance, whose relative variance is (kurtosis - 1) / samples"
NUM_ANGLES = 13  # from 0 to 180 degrees
NORM_PRODUCT = 3.0  # |q| |k| / √d for the weights by angle


@check_settings
def score_scaling(
    *,
    num_keys: int = 4096,
    num_samples: int = 20_000,
    correlation: float = 0.1,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> ExperimentResult:
    """Test dot products and angles of random vectors in several dimensions, and softmax with and without the scale.

    `num_keys` is the number of keys of a softmax, `num_samples` the number of products for each variance, and
    `correlation` the correlation of dependent coordinates.

    `seed` (default 0) seeds the random numbers. `progress`, if given, is called with the completed fraction of the
    work.

    >>> score_scaling(num_keys=256, num_samples=2000).is_consistent
    True
    """
    random = torch.Generator().manual_seed(seed)
    head_dims = torch.tensor(HEAD_DIMS, dtype=torch.float64)
    statistics: dict[str, list[Tensor]] = {}
    for n, head_dim in enumerate(HEAD_DIMS):
        values = {
            **_dot_product_statistics(num_samples, head_dim, 0.0, random, _part_progress(progress, 3 * n)),
            "variance_correlated": _dot_product_statistics(
                num_samples, head_dim, correlation, random, _part_progress(progress, 3 * n + 1)
            )["variance"],
            **_softmax_statistics(num_keys, head_dim, random, _part_progress(progress, 3 * n + 2)),
        }
        for name, value in values.items():
            statistics.setdefault(name, []).append(value)
    data = {name: torch.stack(values) for name, values in statistics.items()}
    data["weights_by_angle"] = _weights_by_angle()
    data["plot_head_dims"] = torch.exp2(torch.arange(4, 11, dtype=torch.float64))  # every second is one of HEAD_DIMS
    exact, exact_scaled = (
        [exact_moments(num_keys, math.sqrt(d)) for d in data["plot_head_dims"].tolist()],
        exact_moments(num_keys, 1.0),
    )
    for name, attribute in (("entropy", "entropy"), ("jacobian", "jacobian_sq_norm")):
        data[f"{name}_line"] = torch.tensor([getattr(moments, attribute) for moments in exact], dtype=torch.float64)
        data[f"{name}_exact"] = data[f"{name}_line"][::2]
        data[f"{name}_scaled_exact"] = torch.full_like(head_dims, getattr(exact_scaled, attribute))
    return ExperimentResult(
        name="score_scaling",
        claims=(
            *_dot_product_claims(data, head_dims, correlation, num_samples),
            *_softmax_claims(data, num_keys),
            _angle_claim(data),
        ),
        false_claims=_false_claims(data, head_dims, correlation, num_samples),
        panels=_panels(data, head_dims, correlation, num_keys),
        settings={"num_keys": num_keys, "num_samples": num_samples, "correlation": correlation, "seed": seed},
        data=data,
    )


def _dot_product_statistics(
    num_samples: int, head_dim: int, correlation: float, generator: torch.Generator, progress: ProgressCallback
) -> dict[str, Tensor]:
    """Return the variance of q·k and the mean squared cosine, over pairs of random vectors."""
    dots, cosines = [], []
    for begin in range(0, num_samples, 2048):  # limits the memory for large head dimensions
        size = min(2048, num_samples - begin), 1, head_dim
        q, k = (_vectors(size, correlation, generator) for _ in range(2))
        dots.append(attention_with_weights(q, k, k[..., :1], score=score.dot()).lse)  # with one key, lse is its score
        cosines.append(attention_with_weights(q, k, k[..., :1], score=score.cosine()).lse)
        progress(min(1.0, (begin + 2048) / num_samples))
    return {"variance": torch.cat(dots).var(), "mean_squared_cosine": torch.cat(cosines).square().mean()}


def _part_progress(progress: ProgressCallback | None, part: int) -> ProgressCallback:
    """Return a callback for one of three parts per head dimension, which reports the fraction of the whole work."""
    return lambda fraction: progress((part + fraction) / (3 * len(HEAD_DIMS))) if progress else None


def _vectors(size: tuple[int, int, int], correlation: float, generator: torch.Generator) -> Tensor:
    independent = torch.randn(size, generator=generator, dtype=torch.float64)
    shared = torch.randn(size[0], 1, 1, generator=generator, dtype=torch.float64)
    return math.sqrt(1 - correlation) * independent + math.sqrt(correlation) * shared


def _softmax_statistics(
    num_keys: int, head_dim: int, generator: torch.Generator, progress: ProgressCallback
) -> dict[str, Tensor]:
    """Return the entropy and the squared norm of the Jacobian of softmax, scaled and not, with standard errors."""
    rows: dict[str, list[Tensor]] = {}
    for draw in range(NUM_DRAWS):
        q, k = (torch.randn(n, head_dim, generator=generator, dtype=torch.float64) for n in (NUM_QUERIES, num_keys))
        q = q * math.sqrt(head_dim) / q.norm(dim=-1, keepdim=True)
        for name, score_function in (("", score.dot()), ("_scaled", score.scaled_dot())):
            a = attention_with_weights(q, k, k[:, :1], score=score_function).weights.to_dense()
            rows.setdefault(f"entropy{name}", []).append(-torch.special.xlogy(a, a).sum(-1))
            rows.setdefault(f"jacobian{name}", []).append(_jacobian_sq_norm(a))
        progress((draw + 1) / NUM_DRAWS)
    statistics = {}
    for name, draws in rows.items():
        values = torch.stack(draws)
        statistics[name] = values.mean()
        statistics[f"{name}_error"] = values.mean(-1).std() / math.sqrt(NUM_DRAWS)
        statistics[f"{name}_median"] = values.median()
    return statistics


def _jacobian_sq_norm(a: Tensor) -> Tensor:
    """Return ‖diag(a) - aaᵀ‖² = Σ a² - 2 Σ a³ + (Σ a²)²."""
    squares = a.square().sum(-1)
    return (squares - 2 * a.pow(3).sum(-1) + squares.square()).clamp(min=0)


def _weights_by_angle() -> Tensor:
    """Return the weights of keys of equal norm, at angles from 0 to 180 degrees."""
    angle = torch.linspace(0, math.pi, NUM_ANGLES, dtype=torch.float64)
    k = torch.stack([torch.cos(angle), torch.sin(angle)], -1) * NORM_PRODUCT * math.sqrt(2)
    weights: Tensor = attention_with_weights(torch.eye(2, dtype=torch.float64)[:1], k, k).weights.to_dense()
    return weights[0]


def _correlated_variance(head_dims: Tensor, correlation: float) -> Tensor:
    """Return tr(Σ²) of d coordinates of variance 1 with this pairwise correlation."""
    return head_dims + head_dims * (head_dims - 1) * correlation**2


def _variance_tolerance(head_dims: Tensor, correlation: float, num_samples: int) -> float:
    """Return five relative standard errors of the variance of dot products, for the worst head dimension.

    Conditional on q, q·k is normal with variance qᵀΣq, so its kurtosis is 3 (1 + 2 tr Σ⁴ / (tr Σ²)²).
    """
    largest, others = 1 + (head_dims - 1) * correlation, 1 - correlation  # eigenvalues of Σ
    fourth = largest**4 + (head_dims - 1) * others**4
    kurtosis = 3 * (1 + 2 * fourth / _correlated_variance(head_dims, correlation).square())
    return 5 * math.sqrt(float((kurtosis - 1).max()) / num_samples)


def _dot_product_claims(
    data: dict[str, Tensor], head_dims: Tensor, correlation: float, num_samples: int
) -> tuple[Claim, ...]:
    ones = torch.ones_like(head_dims)
    correlated_ratio = data["variance_correlated"] / _correlated_variance(head_dims, correlation)
    # E cos⁴ = 3 / (d (d + 2)), so the squares of cosines have the variance 2 (d - 1) / (d + 2) relative to 1/d²
    angles = 5 * math.sqrt(float((2 * (head_dims - 1) / (head_dims + 2)).max()) / num_samples)
    return (
        Claim(
            "independent coordinates: Var(q·k) / d is 1",
            ones,
            data["variance"] / head_dims,
            _variance_tolerance(head_dims, 0.0, num_samples),
            SAMPLES_REASON,
        ),
        Claim(
            "correlated coordinates: Var(q·k) is tr(Σ²) = d + d(d - 1)ρ²",
            ones,
            correlated_ratio,
            _variance_tolerance(head_dims, correlation, num_samples),
            SAMPLES_REASON,
        ),
        Claim(
            "the cosine of the angle between independent directions has the mean square 1/d",
            ones,
            data["mean_squared_cosine"] * head_dims,
            angles,
            "5 standard errors of a mean of squares, from the fourth moment 3 / (d (d + 2))",
        ),
    )


def _softmax_claims(data: dict[str, Tensor], num_keys: int) -> tuple[Claim, ...]:
    claims = []
    for name, label in (("_scaled", "with the scale"), ("", "without the scale")):
        entropy, error = data[f"entropy{name}"], NUM_STANDARD_ERRORS * float(data[f"entropy{name}_error"].max())
        statement = f"{label}, the mean entropy is that of softmax over n normal scores, for every d"
        claims.append(Claim(statement, data[f"entropy{name}_exact"], entropy, error, DRAWS_REASON))
        exact = data[f"jacobian{name}_exact"]
        claims.append(
            Claim(
                f"{label}, so is the mean squared norm of the Jacobian (relative error)",
                torch.ones_like(exact),
                data[f"jacobian{name}"] / exact,
                NUM_STANDARD_ERRORS * float((data[f"jacobian{name}_error"] / exact).max()),
                DRAWS_REASON,
            )
        )
    entropy = data["entropy_scaled"]
    claims.append(
        Claim(
            "with the scale, the entropy is log n - 1/2 for many keys, for every d",
            torch.full_like(entropy, math.log(num_keys) - 0.5),
            entropy,
            NUM_STANDARD_ERRORS * float(data["entropy_scaled_error"].max()) + (math.e + 1) / num_keys,
            f"{DRAWS_REASON}, and twice the next term of the formula, (e + 1) / 2n",
        )
    )
    return tuple(claims)


def _expected_weights_by_angle() -> Tensor:
    exponentials = torch.exp(NORM_PRODUCT * torch.cos(torch.linspace(0, math.pi, NUM_ANGLES, dtype=torch.float64)))
    return exponentials / exponentials.sum()


def _angle_claim(data: dict[str, Tensor]) -> Claim:
    return Claim(
        "the weight of a key is proportional to exp(|q||k| cos θ / √d): positive at every angle",
        _expected_weights_by_angle(),
        data["weights_by_angle"],
        tolerance=1e-15,
        tolerance_reason="rounding of a dozen float64 operations on numbers below 1",
    )


def _false_claims(
    data: dict[str, Tensor], head_dims: Tensor, correlation: float, num_samples: int
) -> tuple[Claim, ...]:
    right_angle, opposite = data["weights_by_angle"][NUM_ANGLES // 2], data["weights_by_angle"][-1]
    rounding = "rounding in float64 is far smaller"
    return (
        Claim(
            "dot products of correlated coordinates also have variance d",
            torch.ones_like(head_dims),
            data["variance_correlated"] / head_dims,
            _variance_tolerance(head_dims, correlation, num_samples),
            SAMPLES_REASON,
        ),
        Claim("a key at a right angle gets no attention", 0.0, right_angle, 1e-12, rounding),
        Claim("an opposite key gets negative attention, or none", 0.0, opposite, 1e-12, rounding, "at most"),
        Claim(
            "without the scale the mean squared norm of the Jacobian is smaller, for every d",
            data["jacobian_scaled"],
            data["jacobian"],
            NUM_STANDARD_ERRORS * float(data["jacobian_error"].max()),
            DRAWS_REASON,
            "at most",
        ),
    )


def _panels(data: dict[str, Tensor], head_dims: Tensor, correlation: float, num_keys: int) -> tuple[Panel, ...]:
    plot_dims = data["plot_head_dims"]
    ends, angle = head_dims[[0, -1]], torch.linspace(0, 180, NUM_ANGLES)
    scaled, plain = float(data["entropy_scaled"][-1]), float(data["entropy"][-1])
    shrinkage = float((data["jacobian_median"][0] / data["jacobian_median"][-1]).sqrt())
    typical = math.sqrt(2) * torch.exp2(-plot_dims.sqrt() / math.sqrt(2 * math.log(num_keys)))
    return (
        Panel(
            "The variance of dot products grows with d, and faster for correlated coordinates",
            "dimension d",
            "variance of q·k",
            [
                Series("independent", head_dims, data["variance"], "points", color_group="independent"),
                Series("d", plot_dims, plot_dims, color_group="independent"),
                Series("correlated", head_dims, data["variance_correlated"], "points", color_group="correlated"),
                Series(
                    "d + d(d - 1)ρ²", plot_dims, _correlated_variance(plot_dims, correlation), color_group="correlated"
                ),
            ],
            log_x=True,
            log_y=True,
        ),
        Panel(
            f"With the scale, entropy stays at {scaled:.1f} nats; without, it falls to {plain:.1f}",
            "dimension d",
            f"entropy over {num_keys} keys (nats)",
            [
                Series("scaled by 1/√d", head_dims, data["entropy_scaled"], "points", color_group="scaled"),
                Series("near log n - 1/2", ends, data["entropy_scaled_exact"][[0, -1]], color_group="scaled"),
                Series("not scaled", head_dims, data["entropy"], "points", color_group="plain"),
                Series("exact value", plot_dims, data["entropy_line"], color_group="plain"),
                Series("uniform: log n", ends, torch.full((2,), math.log(num_keys)), "dashed"),
            ],
            log_x=True,
        ),
        Panel(
            f"Without the scale, the Jacobian of most queries shrinks {shrinkage:.0f}-fold",
            "dimension d",
            "norm of the Jacobian",
            [
                Series("scaled, mean", head_dims, data["jacobian_scaled"].sqrt(), "points", color_group="scaled"),
                Series("near √(e/n)", ends, data["jacobian_scaled_exact"][[0, -1]].sqrt(), color_group="scaled"),
                Series("not scaled, mean", head_dims, data["jacobian"].sqrt(), "points", color_group="plain"),
                Series("exact value", plot_dims, data["jacobian_line"].sqrt(), color_group="plain"),
                Series(
                    "not scaled, median",
                    head_dims,
                    data["jacobian_median"].sqrt(),
                    "points",
                    color_group="typical",
                ),
                Series("estimate", plot_dims, typical, "dashed", color_group="typical"),
            ],
            log_x=True,
            log_y=True,
        ),
        Panel(
            "Angles approach 90° as d grows",
            "dimension d",
            "root mean square of cos θ",
            [
                Series("computed", head_dims, data["mean_squared_cosine"].sqrt(), "points", color_group="cosines"),
                Series("1/√d", plot_dims, plot_dims.rsqrt(), color_group="cosines"),
            ],
            log_x=True,
            log_y=True,
        ),
        Panel(
            "Keys at every angle have a positive weight",
            "angle to the query (degrees)",
            "weight",
            [
                Series("computed", angle, data["weights_by_angle"], "points", color_group="weight"),
                Series("exp(|q||k| cos θ / √d), normalized", angle, _expected_weights_by_angle(), color_group="weight"),
            ],
            log_y=True,
        ),
    )
