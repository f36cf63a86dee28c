"""Attention as a kernel method: Gram matrices, smoothing, spectra, and what one map or two can learn.

With one map for queries and keys the scores φ(x_i)·φ(x_j) are a Gram matrix: symmetric, without negative eigenvalues,
and so is exp of each of them (a product of such matrices, entry by entry, is one: Schur). With two maps W_Q and W_K
neither holds: the symmetric part X (W_Q W_K' + W_K W_Q') X' / 2 has as many negative eigenvalues as the matrix in the
middle (Sylvester), d of them for independent maps to width d. Softmax attention is the kernel smoother of Nadaraya and
Watson, Σ κ(q, k_j) v_j / Σ κ(q, k_j) with κ = exp(q·k / √d). Weights of tied maps are not symmetric; but they are
D^-1 K, and have the real eigenvalues of D^-1/2 K D^-1/2, none below 0.

Mercer: a kernel is Σ λ_i e_i(x) e_i(y); D features √λ_i e_i leave the error Σ_{i>D} λ_i², the least of all. For the
kernel exp(-(x - y)² / 2l²) under the density N(0, s²), λ_i = √(2a / A) B^i with a = 1/4s², b = 1/2l²,
c = √(a² + 2ab), A = a + b + c, B = b / A. One map fits a relation r at best up to its antisymmetric part, (r - r')/2.
"""

import math

import torch
from torch import Tensor

from regard.attention import attend, attention
from regard.draw.charts import Panel, Series
from regard.spec import score, weigh
from regard.theory.experiment import Progress, check_settings
from regard.theory.outcome import Claim, Outcome
from regard.theory.relations import Fits, fits, scores

GRID = 0.1  # step of a sum for an integral, whose error is about exp(-2 (π l / step)²)
KEPT = 8  # eigenvalues that are compared
SHARPEST = 6  # the last β is 2 to this power
SHARP = "rounding of scores of up to some thousands, in float64"
ROUNDING = "rounding in float64, of matrices of this size, as a share of the largest number"


@check_settings
def kernels(
    *, tokens: int = 48, width: int = 6, length: float = 1.0, skew: float = 1.0, steps: int = 300, seed: int = 0,
    progress: Progress | None = None,
) -> Outcome:  # fmt: skip
    """Scores and weights of one map and of two, their spectra, truncations, fits to a relation, and retrieval.

    `width` is that of queries and keys, `length` that of the Gaussian kernel, `skew` how much of the relation to learn
    depends on the order, `steps` those of learning.

    >>> kernels(tokens=32, width=2, steps=200).agrees
    True
    """
    random = torch.Generator().manual_seed(seed)
    told = progress or (lambda share: None)
    x = torch.randn(tokens, 2 * width, generator=random, dtype=torch.float64)  # twice as wide, so that d + d signs fit
    w, other = (torch.randn(2 * width, width, generator=random, dtype=torch.float64) for _ in range(2))
    w, other = w / math.sqrt(2 * width), other / math.sqrt(2 * width)
    tied, untied = scores(x @ w, x @ w), scores(x @ w, x @ other)
    spectrum, expected = _mercer(length)
    tails = _truncated(length, random)
    told(0.2)
    fit = fits(skew, steps, seed, lambda share: told(0.2 + 0.8 * share))
    sharp = _retrieval(tokens, width, random)
    told(1.0)
    mixed = (untied + untied.mT) / 2
    values = {"tied": torch.linalg.eigvalsh((tied + tied.mT) / 2), "untied": torch.linalg.eigvalsh(mixed)}
    weights = attend(x @ w, x @ w, x).weights.dense()
    return Outcome(
        name="kernels",
        claims=(
            *_of_gram(tied, values, width),
            *_of_weights(x @ w, tied, weights),
            *_of_smoothing(x, w, other),
            *_of_mercer(spectrum, expected, tails),
            *_of_fits(fit),
            *_of_retrieval(sharp),
        ),
        wrong=_wrong(values, weights, fit),
        panels=_panels(values, spectrum, expected, tails, fit, sharp),
        settings={"tokens": tokens, "width": width, "length": length, "skew": skew, "steps": steps, "seed": seed},
        data={**values, "spectrum": spectrum, **tails, **sharp},
    )


def _of_gram(tied: Tensor, values: dict[str, Tensor], width: int) -> tuple[Claim, ...]:
    n, size = len(tied), float(tied.abs().max())
    raised = torch.linalg.eigvalsh(torch.exp(tied))
    small = n * 1e-14
    below = float((values["untied"] < -1e-9 * size).sum())
    return (
        Claim("one map: scores are symmetric", tied.mT / size, tied / size, small, ROUNDING),
        Claim("one map: no eigenvalue is negative", torch.zeros(n), values["tied"] / size, small, ROUNDING, "at least"),
        Claim("one map: at most d eigenvalues are not 0", torch.zeros(n - width), values["tied"][: n - width] / size,
              n * small, ROUNDING),
        Claim("nor is one of exp of the scores", torch.zeros(n), raised / raised[-1], small, ROUNDING, "at least"),
        Claim("two maps to width d: d eigenvalues of the symmetric part are negative", float(width), below, 0.0,
              "a count; what is within 1e-9 of 0 is not counted"),
    )  # fmt: skip


def _of_weights(q: Tensor, tied: Tensor, weights: Tensor) -> tuple[Claim, ...]:
    kernel = torch.exp(tied - tied.max())
    root = kernel.sum(-1).rsqrt()
    predicted = torch.linalg.eigvalsh(root[:, None] * kernel * root)
    found = torch.linalg.eigvals(weights)
    return (
        Claim("one map: the weights have the eigenvalues of D^-1/2 K D^-1/2", predicted, found.real.sort().values,
              1e-10, "rounding, up to 1e5 of them for eigenvalues of a matrix that is not symmetric"),
        Claim("which are real", torch.zeros(len(q)), found.imag, 1e-10, "as above"),
    )  # fmt: skip


def _of_smoothing(x: Tensor, w: Tensor, other: Tensor) -> tuple[Claim, ...]:
    q, k, v = x @ w, x @ other, x
    kappa = torch.exp((q[:, None, :] * k[None, :, :]).sum(-1) / math.sqrt(q.shape[-1]))
    near = torch.exp(-(q[:, None, :] - k[None, :, :]).square().sum(-1) / 2)
    unit = k / k.norm(dim=-1, keepdim=True)
    size = v.abs().max()
    return (
        Claim("attention is Nadaraya and Watson's smoother with κ = exp(q·k/√d)",
              kappa @ v / kappa.sum(-1, keepdim=True) / size, attention(q, k, v) / size, 1e-13, ROUNDING),
        Claim("with the Gaussian score it is the one with κ = exp(-|q - k|²/2)",
              near @ v / near.sum(-1, keepdim=True) / size, attention(q, k, v, score=score.metric(1.0)) / size,
              1e-13, ROUNDING),
        Claim("which are one and the same for keys of equal length, if σ² = √d",
              attention(q, unit, v, score=score.metric(q.shape[-1] ** 0.25)) / size, attention(q, unit, v) / size,
              1e-13, ROUNDING),
    )  # fmt: skip


def _mercer(length: float) -> tuple[Tensor, Tensor]:
    """The first eigenvalues of the Gaussian kernel under N(0, 1): from its Gram matrix, and by the formula."""
    at = torch.arange(-9, 9, GRID, dtype=torch.float64)
    share = torch.exp(-at.square() / 2)
    root = (share / share.sum()).sqrt()
    kernel = torch.exp(scores(at[:, None], at[:, None], score.metric(length)))
    found = torch.linalg.eigvalsh(root[:, None] * kernel * root).flip(0)[:KEPT]
    a, b = 0.25, 1 / (2 * length**2)
    total = a + b + math.sqrt(a**2 + 2 * a * b)
    return found, math.sqrt(2 * a / total) * (b / total) ** torch.arange(KEPT, dtype=torch.float64)


def _truncated(length: float, random: torch.Generator) -> dict[str, Tensor]:
    """What D features leave of a Gaussian Gram matrix: those of its spectrum, and random Fourier features."""
    at = torch.linspace(-3, 3, 40, dtype=torch.float64)[:, None]
    gram = torch.exp(scores(at, at, score.metric(length)))
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values.flip(0), vectors.flip(1)
    counts = range(1, KEPT + 1)
    best, tail, drawn = [], [], []
    for count in counts:
        features = vectors[:, :count] * values[:count].clamp(min=0).sqrt()
        best.append((gram - scores(features, features, score.dot())).norm())
        tail.append(values[count:].norm())
        angles = at * torch.randn(count, generator=random, dtype=torch.float64) / length
        angles = angles + 2 * math.pi * torch.rand(count, generator=random, dtype=torch.float64)
        waves = math.sqrt(2 / count) * torch.cos(angles)
        drawn.append((gram - scores(waves, waves, score.dot())).norm())
    return {"best": torch.stack(best), "tail": torch.stack(tail), "drawn": torch.stack(drawn)}


def _of_mercer(spectrum: Tensor, expected: Tensor, tails: dict[str, Tensor]) -> tuple[Claim, ...]:
    return (
        Claim(f"Mercer: the first {KEPT} eigenvalues of a Gaussian kernel under N(0, 1) are √(2a/A) B^i", expected,
              spectrum, 1e-13, "rounding; the grid of the integral is fine enough to add nothing"),
        Claim("D features of the spectrum leave the norm of the other eigenvalues", tails["tail"], tails["best"],
              1e-12, ROUNDING),
        Claim("random features of as many leave no less", tails["tail"], tails["drawn"], 1e-12, ROUNDING, "at least"),
    )  # fmt: skip


def _of_fits(fit: Fits) -> tuple[Claim, ...]:
    return (
        Claim("the best of one map leaves the antisymmetric part, |r - r'|/2", fit.floor, fit.best_one, 1e-12,
              ROUNDING),
        Claim("two maps of width 4 leave nothing of this relation", 0.0, fit.best_two, 1e-12, ROUNDING),
        Claim("a network that is one map never learns below that floor", torch.full_like(fit.one, fit.floor), fit.one,
              1e-12, ROUNDING, "at least"),
        Claim("two networks learn to below it", fit.floor, fit.two[-1], 0.0, "no allowance is needed", "at most"),
    )  # fmt: skip


def _retrieval(tokens: int, width: int, random: torch.Generator) -> dict[str, Tensor]:
    """The weight that is not on the best key, as scores are multiplied by β; and Σ exp(-βΔ) over the other keys."""
    q, k = (torch.randn(n, width, generator=random, dtype=torch.float64) for n in (8, tokens))
    hard = attend(q, k, k, score=score.dot(), weigh=weigh.argmax()).weights.dense()
    plain = q @ k.mT
    gaps = plain.amax(-1, keepdim=True) - plain
    betas = torch.exp2(torch.arange(-2, SHARPEST + 1, dtype=torch.float64))
    left, bound = [], []
    for beta in betas:
        soft = attend(q, k, k, score=score.scaled_dot(float(beta))).weights.dense()
        left.append((soft - hard).abs().sum(-1).max() / 2)
        bound.append((torch.exp(-beta * gaps).sum(-1) - 1).max())
    return {"beta": betas, "left": torch.stack(left), "bound": torch.stack(bound)}


def _of_retrieval(sharp: dict[str, Tensor]) -> tuple[Claim, ...]:
    says = "retrieval: softmax(βs) misses argmax by at most Σ exp(-βΔ) over the keys that are not the best"
    return (Claim(says, sharp["bound"], sharp["left"], 1e-11, SHARP, "at most"),)


def _wrong(values: dict[str, Tensor], weights: Tensor, fit: Fits) -> tuple[Claim, ...]:
    return (
        Claim("one map makes the weights symmetric", weights.mT, weights, 1e-9, "rounding is far smaller"),
        Claim("two maps make a Mercer kernel: no eigenvalue of the symmetric part is negative",
              torch.zeros_like(values["untied"]), values["untied"], 1e-9, "rounding is far smaller", "at least"),
        Claim("one map, if wide enough, fits any relation", 0.0, fit.best_one, 1e-9, "rounding is far smaller"),
    )  # fmt: skip


def _panels(
    values: dict[str, Tensor], spectrum: Tensor, expected: Tensor, tails: dict[str, Tensor], fit: Fits,
    sharp: dict[str, Tensor],
) -> tuple[Panel, ...]:  # fmt: skip
    ranks, kept, steps = (range(1, count + 1) for count in (len(values["tied"]), KEPT, len(fit.one)))
    ends = [1, len(fit.one)]
    return (
        Panel("Eigenvalues of the scores", "rank", "eigenvalue",
              [Series("one map", ranks, values["tied"].flip(0), "points"),
               Series("two maps, symmetric part", ranks, values["untied"].flip(0), "points")]),
        Panel("Mercer: the spectrum of a Gaussian kernel", "i", "eigenvalue",
              [Series("found", range(KEPT), spectrum, "points", of="values"),
               Series("√(2a/A) B^i", range(KEPT), expected, of="values")], log_y=True),
        Panel("What D features leave of a Gram matrix", "D", "Frobenius norm",
              [Series("found, features of the spectrum", kept, tails["best"], "points", of="best"),
               Series("norm of the other eigenvalues", kept, tails["tail"], of="best"),
               Series("random Fourier features", kept, tails["drawn"], "dashed")], log_y=True),
        Panel("Learning a relation that is not symmetric", "step", "error of the scores",
              [Series("one map", steps, fit.one), Series("two maps", steps, fit.two),
               Series("floor of one map: |r - r'|/2", ends, [fit.floor] * 2, "dashed")], log_y=True),
        Panel("Retrieval: softmax becomes argmax", "β", "weight elsewhere",
              [Series("found", sharp["beta"], sharp["left"], "points", of="left"),
               Series("bound", sharp["beta"], sharp["bound"].clamp(max=1), of="left")], log_x=True, log_y=True),
    )  # fmt: skip
