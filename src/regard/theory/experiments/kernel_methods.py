"""Attention as a kernel method: Gram matrices, smoothing, spectra, and relations that one map or two maps can learn.

With one map for queries and keys the scores φ(x_i)·φ(x_j) are a Gram matrix: symmetric, without negative eigenvalues.
So is the entrywise exponential (Schur). With two maps W_Q and W_K neither holds: the symmetric part
X (W_Q W_Kᵀ + W_K W_Qᵀ) Xᵀ / 2 has as many negative eigenvalues as its inner matrix (Sylvester), which are d for
independent maps to dimension d. Softmax attention is the Nadaraya-Watson smoother Σ κ(q, k_j) v_j / Σ κ(q, k_j) with
κ = exp(q·k / √d). The weights of tied maps are not symmetric. They are D^-1 K, with the eigenvalues of
D^-1/2 K D^-1/2, which are real and not negative.

Mercer: a kernel is Σ λ_i e_i(x) e_i(y), and the D features √λ_i e_i have the smallest possible error, Σ_{i>D} λ_i². For
the kernel exp(-(x - y)² / 2l²) under the density N(0, s²), λ_i = √(2a / A) B^i with a = 1/4s², b = 1/2l²,
c = √(a² + 2ab), A = a + b + c, B = b / A. The best fit of a relation r by one map misses its antisymmetric part,
(r - rᵀ)/2.
"""

import math

import torch
from torch import Tensor

from regard import normalizer, score
from regard.attention import attention, attention_with_weights
from regard.plot.chart_panels import Panel, Series
from regard.plot.style import power_of_ten
from regard.theory.analysis.relation_fits import RelationFits, fit_relation, recover_scores
from regard.theory.experiment import ProgressCallback, check_settings
from regard.theory.experiment_result import Claim, ExperimentResult

GRID_STEP = 0.1  # the error of the quadrature is about exp(-2 (π l / step)²)
NUM_EIGENVALUES = 8
MAX_LOG2_BETA = 6  # the largest β is 2 to this power
SHARP_SCORES_REASON = "rounding of scores up to several thousand, in float64"
ROUNDING_REASON = "rounding in float64, relative to the largest number"


@check_settings
def kernel_methods(
    *,
    num_tokens: int = 48,
    head_dim: int = 6,
    length_scale: float = 1.0,
    skew: float = 1.0,
    steps: int = 300,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> ExperimentResult:
    """Test scores and weights of one map and of two maps: spectra, truncation, fits to a relation, and retrieval.

    `num_tokens` is the number of points, `head_dim` the dimension of queries and keys, `length_scale` the l of the
    Gaussian kernel. `skew` is the antisymmetric part of the relation to learn, and `steps` the number of training
    steps.

    `seed` (default 0) seeds the random numbers. `progress`, if given, is called with the completed fraction of the
    work.

    >>> kernel_methods(num_tokens=32, head_dim=2, steps=200).is_consistent
    True
    """
    random = torch.Generator().manual_seed(seed)
    report = progress or (lambda fraction: None)
    # 2 d features leave room for d positive and d negative eigenvalues
    x = torch.randn(num_tokens, 2 * head_dim, generator=random, dtype=torch.float64)
    w_q, w_k = (torch.randn(2 * head_dim, head_dim, generator=random, dtype=torch.float64) for _ in range(2))
    w_q, w_k = w_q / math.sqrt(2 * head_dim), w_k / math.sqrt(2 * head_dim)
    tied, untied = recover_scores(x @ w_q, x @ w_q), recover_scores(x @ w_q, x @ w_k)
    spectrum, expected = _mercer_spectrum(length_scale)
    truncation_errors = _truncation_errors(length_scale, random)
    report(0.2)
    fit = fit_relation(skew, steps, seed, lambda fraction: report(0.2 + 0.8 * fraction))
    retrieval_errors = _retrieval_errors(num_tokens, head_dim, random)
    report(1.0)
    eigenvalues = {
        "tied": torch.linalg.eigvalsh((tied + tied.mT) / 2),
        "untied": torch.linalg.eigvalsh((untied + untied.mT) / 2),
    }
    weights = attention_with_weights(x @ w_q, x @ w_q, x).weights.to_dense()
    return ExperimentResult(
        name="kernel_methods",
        claims=(
            *_gram_claims(tied, eigenvalues, head_dim),
            *_weight_spectrum_claims(x @ w_q, tied, weights),
            *_smoother_claims(x, w_q, w_k),
            *_mercer_claims(spectrum, expected, truncation_errors),
            *_fit_claims(fit),
            *_retrieval_claims(retrieval_errors),
        ),
        false_claims=_false_claims(eigenvalues, weights, fit),
        panels=_panels(eigenvalues, spectrum, expected, truncation_errors, fit, retrieval_errors),
        settings={
            "num_tokens": num_tokens,
            "head_dim": head_dim,
            "length_scale": length_scale,
            "skew": skew,
            "steps": steps,
            "seed": seed,
        },
        data={**eigenvalues, "spectrum": spectrum, **truncation_errors, **retrieval_errors},
    )


def _gram_claims(tied: Tensor, eigenvalues: dict[str, Tensor], head_dim: int) -> tuple[Claim, ...]:
    n, size = len(tied), float(tied.abs().max())
    exp_eigenvalues = torch.linalg.eigvalsh(torch.exp(tied))
    small = n * 1e-14
    num_negative = float((eigenvalues["untied"] < -1e-9 * size).sum())
    return (
        Claim("one map: scores are symmetric", tied.mT / size, tied / size, small, ROUNDING_REASON),
        Claim(
            "one map: no eigenvalue is negative",
            torch.zeros(n),
            eigenvalues["tied"] / size,
            small,
            ROUNDING_REASON,
            "at least",
        ),
        Claim(
            "one map: at most d eigenvalues are not 0",
            torch.zeros(n - head_dim),
            eigenvalues["tied"][: n - head_dim] / size,
            n * small,
            ROUNDING_REASON,
        ),
        Claim(
            "one map: no eigenvalue of the entrywise exp of the scores is negative",
            torch.zeros(n),
            exp_eigenvalues / exp_eigenvalues[-1],
            small,
            ROUNDING_REASON,
            "at least",
        ),
        Claim(
            "two maps to dimension d: d eigenvalues of the symmetric part are negative",
            float(head_dim),
            num_negative,
            0.0,
            "a count; values within 1e-9 of 0 do not count",
        ),
    )


def _weight_spectrum_claims(q: Tensor, tied: Tensor, weights: Tensor) -> tuple[Claim, ...]:
    kernel = torch.exp(tied - tied.max())
    root = kernel.sum(-1).rsqrt()
    expected = torch.linalg.eigvalsh(root[:, None] * kernel * root)
    actual = torch.linalg.eigvals(weights)
    return (
        Claim(
            "one map: the weights have the eigenvalues of D^-1/2 K D^-1/2",
            expected,
            actual.real.sort().values,
            1e-10,
            "rounding, amplified up to 1e5 times for a matrix that is not symmetric",
        ),
        Claim("one map: the eigenvalues of the weights are real", torch.zeros(len(q)), actual.imag, 1e-10, "as above"),
    )


def _smoother_claims(x: Tensor, w_q: Tensor, w_k: Tensor) -> tuple[Claim, ...]:
    q, k, v = x @ w_q, x @ w_k, x
    kappa = torch.exp((q[:, None, :] * k[None, :, :]).sum(-1) / math.sqrt(q.shape[-1]))
    gaussian = torch.exp(-(q[:, None, :] - k[None, :, :]).square().sum(-1) / 2)
    unit_k = k / k.norm(dim=-1, keepdim=True)
    size = v.abs().max()
    return (
        Claim(
            "attention is the Nadaraya-Watson smoother with κ = exp(q·k/√d)",
            kappa @ v / kappa.sum(-1, keepdim=True) / size,
            attention(q, k, v) / size,
            1e-13,
            ROUNDING_REASON,
        ),
        Claim(
            "with the Gaussian score it is the smoother with κ = exp(-|q - k|²/2)",
            gaussian @ v / gaussian.sum(-1, keepdim=True) / size,
            attention(q, k, v, score=score.gaussian(1.0)) / size,
            1e-13,
            ROUNDING_REASON,
        ),
        Claim(
            "both smoothers agree for keys of equal norm, if σ² = √d",
            attention(q, unit_k, v, score=score.gaussian(q.shape[-1] ** 0.25)) / size,
            attention(q, unit_k, v) / size,
            1e-13,
            ROUNDING_REASON,
        ),
    )


def _mercer_spectrum(length_scale: float) -> tuple[Tensor, Tensor]:
    """Return the first eigenvalues of the Gaussian kernel under N(0, 1), from its Gram matrix and by the formula."""
    grid = torch.arange(-9, 9, GRID_STEP, dtype=torch.float64)
    density = torch.exp(-grid.square() / 2)
    root = (density / density.sum()).sqrt()
    kernel = torch.exp(recover_scores(grid[:, None], grid[:, None], score.gaussian(length_scale)))
    spectrum = torch.linalg.eigvalsh(root[:, None] * kernel * root).flip(0)[:NUM_EIGENVALUES]
    a, b = 0.25, 1 / (2 * length_scale**2)
    total = a + b + math.sqrt(a**2 + 2 * a * b)
    return spectrum, math.sqrt(2 * a / total) * (b / total) ** torch.arange(NUM_EIGENVALUES, dtype=torch.float64)


def _truncation_errors(length_scale: float, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the errors of D features of a Gaussian Gram matrix: spectral and random Fourier features."""
    x = torch.linspace(-3, 3, 40, dtype=torch.float64)[:, None]
    gram = torch.exp(recover_scores(x, x, score.gaussian(length_scale)))
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values.flip(0), vectors.flip(1)
    spectral_errors, tail_norms, random_errors = [], [], []
    for count in range(1, NUM_EIGENVALUES + 1):
        features = vectors[:, :count] * values[:count].clamp(min=0).sqrt()
        spectral_errors.append((gram - recover_scores(features, features, score.dot())).norm())
        tail_norms.append(values[count:].norm())
        angles = x * torch.randn(count, generator=generator, dtype=torch.float64) / length_scale
        angles = angles + 2 * math.pi * torch.rand(count, generator=generator, dtype=torch.float64)
        waves = math.sqrt(2 / count) * torch.cos(angles)
        random_errors.append((gram - recover_scores(waves, waves, score.dot())).norm())
    return {
        "spectral_feature_error": torch.stack(spectral_errors),
        "eigenvalue_tail_norm": torch.stack(tail_norms),
        "random_feature_error": torch.stack(random_errors),
    }


def _mercer_claims(spectrum: Tensor, expected: Tensor, truncation_errors: dict[str, Tensor]) -> tuple[Claim, ...]:
    return (
        Claim(
            f"Mercer: the first {NUM_EIGENVALUES} eigenvalues of a Gaussian kernel under N(0, 1) are √(2a/A) B^i",
            expected,
            spectrum,
            1e-13,
            "rounding; the error of the quadrature is smaller",
        ),
        Claim(
            "the error of D spectral features is the norm of the other eigenvalues",
            truncation_errors["eigenvalue_tail_norm"],
            truncation_errors["spectral_feature_error"],
            1e-12,
            ROUNDING_REASON,
        ),
        Claim(
            "the error of D random features is not smaller",
            truncation_errors["eigenvalue_tail_norm"],
            truncation_errors["random_feature_error"],
            1e-12,
            ROUNDING_REASON,
            "at least",
        ),
    )


def _fit_claims(fit: RelationFits) -> tuple[Claim, ...]:
    return (
        Claim(
            "the best fit of one map misses the antisymmetric part, |r - rᵀ|/2",
            fit.floor,
            fit.best_tied,
            1e-12,
            ROUNDING_REASON,
        ),
        Claim("two maps with 4 features fit this relation exactly", 0.0, fit.best_untied, 1e-12, ROUNDING_REASON),
        Claim(
            "a trained network with one map never falls below this error",
            torch.full_like(fit.tied_errors, fit.floor),
            fit.tied_errors,
            1e-12,
            ROUNDING_REASON,
            "at least",
        ),
        Claim(
            "two trained networks fall below it",
            fit.floor,
            fit.untied_errors[-1],
            0.0,
            "no tolerance needed",
            "at most",
        ),
    )


def _retrieval_errors(num_tokens: int, head_dim: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the weight that is not on the best key for scores times β, and Σ exp(-βΔ) over the other keys."""
    q, k = (torch.randn(n, head_dim, generator=generator, dtype=torch.float64) for n in (8, num_tokens))
    hardmax = attention_with_weights(q, k, k, score=score.dot(), normalizer=normalizer.hardmax()).weights.to_dense()
    scores = q @ k.mT
    gaps = scores.amax(-1, keepdim=True) - scores
    betas = torch.exp2(torch.arange(-2, MAX_LOG2_BETA + 1, dtype=torch.float64))
    errors, bounds = [], []
    for beta in betas:
        softmax = attention_with_weights(q, k, k, score=score.scaled_dot(float(beta))).weights.to_dense()
        errors.append((softmax - hardmax).abs().sum(-1).max() / 2)
        bounds.append((torch.exp(-beta * gaps).sum(-1) - 1).max())
    return {"beta": betas, "weight_elsewhere": torch.stack(errors), "bound": torch.stack(bounds)}


def _retrieval_claims(retrieval_errors: dict[str, Tensor]) -> tuple[Claim, ...]:
    statement = "retrieval: softmax(βs) differs from argmax by at most Σ exp(-βΔ) over the other keys"
    return (
        Claim(
            statement,
            retrieval_errors["bound"],
            retrieval_errors["weight_elsewhere"],
            1e-11,
            SHARP_SCORES_REASON,
            "at most",
        ),
    )


def _false_claims(eigenvalues: dict[str, Tensor], weights: Tensor, fit: RelationFits) -> tuple[Claim, ...]:
    return (
        Claim("one map makes the weights symmetric", weights.mT, weights, 1e-9, "rounding is far smaller"),
        Claim(
            "two maps make a Mercer kernel: no eigenvalue of the symmetric part is negative",
            torch.zeros_like(eigenvalues["untied"]),
            eigenvalues["untied"],
            1e-9,
            "rounding is far smaller",
            "at least",
        ),
        Claim("one map with enough features fits any relation", 0.0, fit.best_tied, 1e-9, "rounding is far smaller"),
    )


def _panels(
    eigenvalues: dict[str, Tensor],
    spectrum: Tensor,
    expected: Tensor,
    truncation_errors: dict[str, Tensor],
    fit: RelationFits,
    retrieval_errors: dict[str, Tensor],
) -> tuple[Panel, ...]:
    ranks, counts, steps = (
        range(1, count + 1) for count in (len(eigenvalues["tied"]), NUM_EIGENVALUES, len(fit.tied_errors))
    )
    ends = [1, len(fit.tied_errors)]
    size = float(eigenvalues["untied"].abs().max())
    num_negative = {name: int((values < -1e-9 * size).sum()) for name, values in eigenvalues.items()}
    gain = float(truncation_errors["random_feature_error"][-1] / truncation_errors["spectral_feature_error"][-1])
    tied_error, untied_error = float(fit.tied_errors[-1]), float(fit.untied_errors[-1])
    beta, elsewhere = float(retrieval_errors["beta"][-1]), float(retrieval_errors["weight_elsewhere"][-1])
    return (
        Panel(
            f"Scores of two maps have {num_negative['untied']} negative eigenvalues, of one map {num_negative['tied']}",
            "rank",
            "eigenvalue",
            [
                Series("one map", ranks, eigenvalues["tied"].flip(0), "points"),
                Series("two maps, symmetric part", ranks, eigenvalues["untied"].flip(0), "points"),
            ],
        ),
        Panel(
            f"Eigenvalues of a Gaussian kernel fall {float(spectrum[0] / spectrum[1]):.1f}-fold per index",
            "index i",
            "eigenvalue",
            [
                Series("computed", range(NUM_EIGENVALUES), spectrum, "points", color_group="values"),
                Series("√(2a/A) B^i", range(NUM_EIGENVALUES), expected, color_group="values"),
            ],
            log_y=True,
        ),
        Panel(
            f"{NUM_EIGENVALUES} spectral features are {gain:,.0f} times as accurate as random ones",
            "features D of a Gram matrix",
            "error (Frobenius norm)",
            [
                Series(
                    "spectral features",
                    counts,
                    truncation_errors["spectral_feature_error"],
                    "points",
                    color_group="best",
                ),
                Series(
                    "other eigenvalues",
                    counts,
                    truncation_errors["eigenvalue_tail_norm"],
                    color_group="best",
                ),
                Series("random Fourier", counts, truncation_errors["random_feature_error"], "dashed"),
            ],
            log_y=True,
        ),
        Panel(
            f"One map stops at an error of {tied_error:.1f}; two maps reach {untied_error:.1f}",
            "step",
            "error of the scores",
            [
                Series("one map", steps, fit.tied_errors),
                Series("two maps", steps, fit.untied_errors),
                Series("floor |r - rᵀ|/2", ends, [fit.floor] * 2, "dashed"),
            ],
            log_y=True,
        ),
        Panel(
            f"At β = {beta:.0f}, {power_of_ten(elsewhere)} of the weight is not on the best key",
            "sharpness β",
            "weight on other keys",
            [
                Series(
                    "computed",
                    retrieval_errors["beta"],
                    retrieval_errors["weight_elsewhere"],
                    "points",
                    color_group="left",
                ),
                Series("bound", retrieval_errors["beta"], retrieval_errors["bound"].clamp(max=1), color_group="left"),
            ],
            log_x=True,
            log_y=True,
        ),
    )
