"""Attention with depth proportional to the width: shaped attention keeps tokens apart, plain attention collapses.

X (m tokens of dimension n) passes through layers X' = λX + γ A X W_V / √n with λ² + γ² = 1 and random normal weights:

    plain    A = softmax(Y / √n_k),                        Y = (X W_Q / √n)(X W_K / √n)'
    shaped   A = I + softmax(Y / τ) - 1/m,                 τ = τ₀ √(n n_k)

Only V = X Xᵀ / n matters. A shaped layer changes V by E(V' - V) = b / n and Cov(V' - V) = Σ / n, so over n layers V
follows dV = b(V) dt + Σ(V)^½ dB (Noci et al., The Shaped Transformer, arXiv 2306.17759). With dots for means over
tokens, c_νκ = V_νκ - V_ν. - V_κ. + V_.. and e_ν = V_νν - 2 V_ν. + 2 V_.. - mean_κ V_κκ,

    b_αβ     = γ²/τ₀² (V_αβ mean_νκ(V_νκ c_νκ) + mean_ν((V_βν V_αα + V_αν V_ββ) e_ν) / 2)
    Σ_αβ,δω  = γ²(2 - γ²)(V_αδ V_βω + V_αω V_βδ)
               + γ⁴/τ₀² mean_νκ c_νκ (V_βν V_ωκ V_αδ + V_βν V_δκ V_αω + V_αν V_ωκ V_βδ + V_αν V_δκ V_βω)

In plain attention, weights that are equal for all tokens cancel their differences in the branch, so only the skip
connection preserves them: the factor is λ² per layer.
"""

import math

import torch
from torch import Tensor

from regard.plot.chart_panels import Panel, Series
from regard.plot.style import power_of_ten
from regard.theory.analysis.shaped_sde import (
    ShapedNet,
    diffusion,
    drift,
    drift_from_terms,
    matrix_root,
    mean_correlation,
    sample_attention,
    sample_layer,
    simulate_layers,
    simulate_sde,
)
from regard.theory.experiment import ProgressCallback, check_settings
from regard.theory.experiment_result import Claim, ExperimentResult

INITIAL_COVARIANCE = ((1.0, 0.3, 0.1), (0.3, 1.2, 0.4), (0.1, 0.4, 0.9))
NUM_NETS = 512  # for averages of correlations
NUM_PLAIN_NETS = 64
MIN_TOKEN_DISTANCE = 1e-6  # squared distance at which the plain simulation stops
FIVE_SE_REASON = "five standard errors of the sample"


@check_settings
def shaped_attention(
    *,
    embed_dim: int = 256,
    gamma_sq: float = 0.25,
    temperature: float = 1.0,
    depth_to_width: float = 0.5,
    num_samples: int = 40_000,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> ExperimentResult:
    """Test the drift and the diffusion of the covariance of three tokens, in one layer and over many layers.

    `gamma_sq` is γ², the variance share of the attention branch, `temperature` is τ₀, and `depth_to_width` the depth
    divided by `embed_dim`. Drift and diffusion are estimated from `num_samples` layers.

    `seed` (default 0) seeds the random numbers. `progress`, if given, is called with the completed fraction of the
    work.

    >>> shaped_attention(embed_dim=64, num_samples=4000).is_consistent
    True
    """
    random = torch.Generator().manual_seed(seed)
    report = progress or (lambda fraction: None)
    net = ShapedNet(embed_dim, gamma_sq, temperature)
    v = torch.tensor(INITIAL_COVARIANCE, dtype=torch.float64)
    measured_drift, drift_error = _estimate_drift(net, v, num_samples, random)
    report(0.1)
    measured_diffusion, diffusion_error = _estimate_diffusion(net, v, num_samples, random)
    report(0.2)
    start, layers = v.expand(NUM_NETS, -1, -1), max(1, round(depth_to_width * embed_dim))
    shaped = simulate_layers(net, start, True, layers, random, lambda fraction: report(0.2 + 0.5 * fraction))
    equation = simulate_sde(net, start, layers, random, lambda fraction: report(0.7 + 0.1 * fraction))
    plain_layers = math.ceil(math.log(MIN_TOKEN_DISTANCE) / math.log(1 - gamma_sq))
    plain = simulate_layers(
        net, start[:NUM_PLAIN_NETS], False, plain_layers, random, lambda fraction: report(0.8 + 0.2 * fraction)
    )
    report(1.0)
    data = {
        "drift": measured_drift,
        "diffusion": measured_diffusion,
        "correlation": mean_correlation(shaped),
        "correlation_by_equation": mean_correlation(equation),
        "correlation_plain": mean_correlation(plain),
    }
    return ExperimentResult(
        name="shaped_attention",
        claims=(
            Claim(
                "the mean of n (V' - V) is the drift b",
                drift(net, v),
                measured_drift,
                tolerance=drift_error,
                tolerance_reason=f"{FIVE_SE_REASON}, and twice the change for 4 n, since errors are O(1/n)",
            ),
            Claim(
                "the covariance of √n (V' - V) is the diffusion Σ",
                diffusion(net, v),
                measured_diffusion,
                tolerance=diffusion_error,
                tolerance_reason=f"{FIVE_SE_REASON}, and terms of order 1/n",
            ),
            *_depth_claims(data["correlation"][-1], data["correlation_by_equation"][-1], embed_dim),
            _plain_claim(plain, net),
        ),
        false_claims=_false_claims(net, v, data, drift_error),
        panels=_panels(net, v, data),
        settings={
            "embed_dim": embed_dim,
            "gamma_sq": gamma_sq,
            "temperature": temperature,
            "depth_to_width": depth_to_width,
            "num_samples": num_samples,
            "seed": seed,
        },
        data=data,
    )


# ---- estimates ----------------------------------------------------------------------------------------------
def _estimate_drift(net: ShapedNet, v: Tensor, num_samples: int, generator: torch.Generator) -> tuple[Tensor, float]:
    """Return the mean of n (V' - V), with the exact mean over W_V, E(V' | A) = λ²V + γ² A V Aᵀ, and its error."""
    root = matrix_root(v).expand(num_samples, -1, -1)
    state = generator.get_state()
    drifts, errors = [], []
    for factor in (1, 4):  # the same random numbers, so that only the dimension differs
        generator.set_state(state)
        scaled_net = ShapedNet(factor * net.embed_dim, net.gamma_sq, net.temperature)
        a = sample_attention(scaled_net, root, True, generator, antithetic=True)
        change = scaled_net.embed_dim * scaled_net.gamma_sq * (a @ v @ a.mT - v)
        pairs = (change[: len(root)] + change[len(root) :]) / 2
        drifts.append(pairs.mean(0))
        errors.append(float((pairs.std(0) / math.sqrt(len(root))).max()))
    return drifts[0], 5 * errors[0] + 2 * float((drifts[0] - drifts[1]).abs().max())


def _estimate_diffusion(
    net: ShapedNet, v: Tensor, num_samples: int, generator: torch.Generator
) -> tuple[Tensor, float]:
    m, parts = len(v), []
    for begin in range(0, num_samples, 4000):  # limits the memory
        size = min(4000, num_samples - begin)
        parts.append(sample_layer(net, v.expand(size, -1, -1), True, generator) - v)
    change = math.sqrt(net.embed_dim) * torch.cat(parts).flatten(1)
    change = change - change.mean(0)
    products = change.unsqueeze(-1) * change.unsqueeze(-2)
    error = float((products.std(0) / math.sqrt(num_samples)).max())
    covariance = products.mean(0).reshape(m, m, m, m)
    return covariance, 5 * error + float(covariance.max()) / (net.embed_dim * net.temperature**2)


# ---- claims and charts --------------------------------------------------------------------------------------
def _depth_claims(correlations: Tensor, sde_correlations: Tensor, embed_dim: int) -> tuple[Claim, Claim]:
    count = len(correlations)
    reason = f"five standard errors of two samples of {count} nets, and terms of order 1/n"
    standard_error = math.sqrt(float(correlations.var() + sde_correlations.var()) / count)
    return (
        Claim(
            "shaped, after many layers: the mean correlation is that of the equation",
            sde_correlations.mean(),
            correlations.mean(),
            tolerance=5 * standard_error + 1 / embed_dim,
            tolerance_reason=reason,
        ),
        Claim(
            "shaped, after many layers: the standard deviation of correlations is that of the equation",
            sde_correlations.std(),
            correlations.std(),
            tolerance=5 * standard_error / math.sqrt(2) + 1 / embed_dim,
            tolerance_reason=reason,
        ),
    )


def _plain_claim(covariances: Tensor, net: ShapedNet) -> Claim:
    squared_distances = covariances[..., 0, 0] + covariances[..., 1, 1] - 2 * covariances[..., 0, 1]
    return Claim(
        "plain, for near tokens: each layer multiplies |x - y|² by λ² = 1 - γ²",
        torch.full((3,), 1 - net.gamma_sq),
        (squared_distances[-3:] / squared_distances[-4:-1]).mean(-1),
        tolerance=5 * math.sqrt(MIN_TOKEN_DISTANCE),
        tolerance_reason="weights of near tokens differ by the order of |x - y|, here 1/1000",
    )


def _false_claims(net: ShapedNet, v: Tensor, data: dict[str, Tensor], drift_tolerance: float) -> tuple[Claim, ...]:
    return (
        Claim(
            "the mean of A - I is 0, so V has no drift",
            torch.zeros_like(v),
            data["drift"],
            tolerance=drift_tolerance,
            tolerance_reason="as above",
        ),
        Claim(
            "softmax of small scores is (1 + Y/τ)/m, without subtracting the mean of Y",
            drift_from_terms(net, v, v, torch.zeros(len(v), dtype=v.dtype)),
            data["drift"],
            tolerance=drift_tolerance,
            tolerance_reason="as above",
        ),
        Claim(
            "plain attention does not change correlations",
            data["correlation_plain"][0].mean(),
            data["correlation_plain"][-1].mean(),
            tolerance=0.1,
            tolerance_reason="a tenth, far above the standard error of the mean over all nets",
        ),
    )


def _panels(net: ShapedNet, v: Tensor, data: dict[str, Tensor]) -> tuple[Panel, ...]:
    shaped, equation, plain = (data[name] for name in ("correlation", "correlation_by_equation", "correlation_plain"))
    layers, plain_layers = torch.arange(len(shaped)), torch.arange(len(plain))
    ends = torch.stack([diffusion(net, v).min(), diffusion(net, v).max()])
    error = float((data["diffusion"] - diffusion(net, v)).abs().max())
    mean, spread = float(shaped[-1].mean()), float(shaped[-1].std())
    distance = power_of_ten(1 - float(plain[-1].mean()))
    decay = (1 - plain[0].mean()) * (1 - net.gamma_sq) ** plain_layers
    return (
        Panel(
            f"Estimated and exact entries of the diffusion differ by at most {error:.2f}",
            "Σ by the formula",
            "estimated covariance",
            [
                Series("estimated from layers", diffusion(net, v).flatten(), data["diffusion"].flatten(), "points"),
                Series("equal", ends, ends),
            ],
        ),
        Panel(
            f"Shaped: after {len(shaped) - 1} layers the correlation is {mean:.2f} ± {spread:.2f}",
            f"layers of width {net.embed_dim}",
            "correlation of tokens",
            [
                Series(
                    f"mean ± deviation of {shaped.shape[1]} nets",
                    layers[::4],
                    shaped.mean(-1)[::4],
                    "points",
                    color_group="mean",
                    spread=shaped.std(-1)[::4],
                ),
                Series("mean by the equation", layers, equation.mean(-1), color_group="equation"),
                Series("± deviation", layers, equation.mean(-1) + equation.std(-1), "dashed", color_group="equation"),
                Series("", layers, equation.mean(-1) - equation.std(-1), "dashed", color_group="equation"),
            ],
        ),
        Panel(
            f"Plain attention is {distance} from collapse after {len(plain) - 1} layers",
            "layers",
            "distance 1 - correlation",
            [
                Series("plain", plain_layers[::2], (1 - plain.mean(-1)[::2]).clamp(min=1e-16), "points", "plain"),
                Series("λ² per layer", plain_layers, decay, color_group="plain"),
                Series("shaped", layers, 1 - shaped.mean(-1), spread=shaped.std(-1)),
            ],
            log_y=True,
        ),
    )
