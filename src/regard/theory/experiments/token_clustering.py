"""Tokens that move by attention form clusters: several long-lived ones, and finally one.

On the unit sphere, with P⊥ the projection to the tangent space at x_i (Geshkovski et al., arXiv 2312.10794):

    softmax        ẋ_i = P⊥ sum_j a_ij x_j,   a_ij = exp(β x_i·x_j) / Z_i,   Z_i = sum_j exp(β x_i·x_j)
    unnormalized   ẋ_i = P⊥ (1/n) sum_j exp(β x_i·x_j) x_j

Both increase E = sum_ij exp(β x_i·x_j) / 2βn²: its gradient at x_i is Z_i/n² times the softmax velocity, so
dE/dt = sum_i Z_i |ẋ_i|² / n². From orthonormal tokens all inner products stay equal, x_i·x_j = γ(t), with

    γ' = 2 exp(βγ) (1 - γ) ((n - 1)γ + 1) / (exp(β) + (n - 1) exp(βγ))          divided by n instead, if unnormalized

Two clusters with half of the tokens each have γ' = 2 (1 - γ²) exp(βγ) / (exp(β) + exp(βγ)): the time until they merge
grows as exp(β(1 - γ)). If all tokens lie in a hemisphere around w, min x_i·w never decreases and all tokens merge; near
the end 1 - γ decays as exp(-2t) for every β.

On a line, ẋ_i = sum_j a_ij x_j with scores x_i x_j: after rescaling, z = exp(-t) x, the weights become 0 and 1, and all
tokens but at most one attend to the largest or to the smallest token (Geshkovski et al., arXiv 2305.05465).
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from regard.plot.chart_panels import ImagePanel, Panel, PointAnimation, Series
from regard.plot.style import power_of_ten
from regard.theory.analysis.token_dynamics import (
    cluster_labels,
    interaction_energy,
    softmax_velocity,
    unnormalized_velocity,
)
from regard.theory.analysis.token_trajectories import (
    MERGE_BETAS,
    NUM_FRAMES,
    ClusterMerges,
    HemisphereConvergence,
    OrthonormalTrajectory,
    count_clusters,
    energy_rates,
    simulate_hemisphere,
    simulate_line,
    simulate_orthonormal,
    simulate_trajectory,
    simulate_two_clusters,
    softmax_rate,
    unnormalized_rate,
)
from regard.theory.experiment import ProgressCallback, check_settings
from regard.theory.experiment_result import Claim, ExperimentResult

STEP_HALVING_REASON = "the change when steps are halved, fifteen times the remaining fourth-order error; and rounding"
CLEAR_MARGIN_REASON = "a hundredth, far above the error of the integration"


@check_settings
def token_clustering(
    *,
    num_tokens: int = 32,
    beta: float = 9.0,
    dim: int = 2,
    time: float = 30.0,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> ExperimentResult:
    """Simulate tokens on a sphere that move by attention, and compare them with their equations.

    `num_tokens` tokens of dimension `dim` move for `time` with scores β x_i·x_j; `beta` is β.

    `seed` (default 0) seeds the random numbers. `progress`, if given, is called with the completed fraction of the
    work.

    >>> token_clustering(num_tokens=6, beta=2.0, time=3.0).is_consistent
    True
    """
    random = torch.Generator().manual_seed(seed)
    report = progress or (lambda fraction: None)
    softmax = simulate_orthonormal(num_tokens, beta, softmax_velocity(beta), softmax_rate(num_tokens, beta))
    report(0.15)
    unnormalized = simulate_orthonormal(
        num_tokens, beta, unnormalized_velocity(beta), unnormalized_rate(num_tokens, beta)
    )
    report(0.3)
    merges = simulate_two_clusters(num_tokens)
    start = normalize(torch.randn(num_tokens, dim, generator=random, dtype=torch.float64), dim=-1)
    path = simulate_trajectory(start, beta, time, lambda fraction: report(0.4 + 0.4 * fraction))
    path_at_beta_one = simulate_trajectory(start, 1.0, time, lambda fraction: report(0.8 + 0.1 * fraction))
    hemisphere = simulate_hemisphere(num_tokens, dim, random)
    line, weights = simulate_line(num_tokens, random)
    report(1.0)
    data = {
        "gamma": softmax.product_range,
        "gamma_unnormalized": unnormalized.product_range,
        "trajectory": path,
        "num_clusters": count_clusters(path),
        "num_clusters_at_beta_one": count_clusters(path_at_beta_one),
        "energy": torch.stack([interaction_energy(x, beta) for x in path]),
        "hemisphere_max_gap": hemisphere.max_gap,
        "line_weights": weights,
    }
    return ExperimentResult(
        name="token_clustering",
        claims=(
            _trajectory_claim("softmax", softmax),
            _trajectory_claim("unnormalized", unnormalized),
            *_energy_claims(data["energy"], *energy_rates(start, beta)),
            Claim(
                "two clusters with half of the tokens each have the inner product 1/2 at the time of the equation",
                torch.full_like(merges.products, 0.5),
                merges.products,
                tolerance=merges.step_halving_error + 1e-12,
                tolerance_reason=STEP_HALVING_REASON,
            ),
            *_hemisphere_claims(hemisphere),
            *_line_claims(line, weights),
        ),
        false_claims=_false_claims(softmax, merges, weights),
        panels=_panels(softmax, unnormalized, merges, hemisphere, data, time, beta),
        settings={"num_tokens": num_tokens, "beta": beta, "dim": dim, "time": time, "seed": seed},
        data=data,
        animation=PointAnimation(
            f"{num_tokens} tokens on a {'circle' if dim == 2 else 'sphere'}, β = {beta:g}",
            torch.linspace(0, time, NUM_FRAMES + 1),
            path,
            cluster_labels(path[-1]),
        ),
    )


# ---- claims and charts --------------------------------------------------------------------------------------
def _trajectory_claim(name: str, trajectory: OrthonormalTrajectory) -> Claim:
    return Claim(
        f"orthonormal tokens, {name}: the smallest and the largest inner product are both γ(t)",
        trajectory.gamma.expand(2, -1),
        trajectory.product_range,
        tolerance=trajectory.step_halving_error + 1e-12,
        tolerance_reason=STEP_HALVING_REASON,
    )


def _energy_claims(energy_path: Tensor, expected_rates: Tensor, actual_rates: Tensor) -> tuple[Claim, Claim]:
    return (
        Claim(
            "the energy grows at the rate sum_i Z_i |ẋ_i|² / n², and sum_i |ẋ_i|² / n if unnormalized",
            torch.ones(2),
            actual_rates / expected_rates,
            tolerance=1e-9,
            tolerance_reason="rounding in float64, of numbers that partly cancel",
        ),
        Claim(
            "the energy never decreases",
            torch.zeros(len(energy_path) - 1),
            energy_path.diff() / energy_path.abs().max(),
            tolerance=1e-13,
            tolerance_reason="rounding of sums in float64, after tokens have stopped",
            relation="at least",
        ),
    )


def _hemisphere_claims(hemisphere: HemisphereConvergence) -> tuple[Claim, Claim]:
    is_late = hemisphere.max_gap[:-8] < 1e-3
    rates = (hemisphere.max_gap[:-8] / hemisphere.max_gap[8:]).log() / (hemisphere.times[8:] - hemisphere.times[:-8])
    return (
        Claim(
            "in a hemisphere, the smallest inner product with its axis never decreases",
            torch.zeros(len(hemisphere.min_axis_product) - 1),
            hemisphere.min_axis_product.diff(),
            tolerance=1e-12,
            tolerance_reason="rounding in float64, after tokens have stopped",
            relation="at least",
        ),
        Claim(
            "in a hemisphere all tokens merge: once 1 - γ is below 1/1000, it decays as exp(-2t)",
            torch.full((int(is_late.sum()),), 2.0),
            rates[is_late],
            tolerance=0.02,
            tolerance_reason="several terms of order 1 - γ",
        ),
    )


def _line_claims(positions: Tensor, weights: Tensor) -> tuple[Claim, Claim]:
    leader_weights = torch.where(positions > 0, weights[:, positions.argmax()], weights[:, positions.argmin()])
    return (
        Claim(
            "on a line, all tokens but at most one have all their weight on the largest or the smallest",
            torch.ones(len(positions) - 1),
            leader_weights.sort().values[1:],
            tolerance=1e-6,
            tolerance_reason="rounding of scores near 10⁹; other errors decay as exp(-c exp t), and t is 10",
        ),
        Claim(
            "on a line, the matrix of weights has rank at most 3",
            torch.zeros(len(positions) - 3),
            torch.linalg.svdvals(weights)[3:],
            tolerance=1e-6 * math.sqrt(len(positions)),
            tolerance_reason="as above, for a matrix of n rows",
        ),
    )


def _false_claims(softmax: OrthonormalTrajectory, merges: ClusterMerges, weights: Tensor) -> tuple[Claim, ...]:
    return (
        Claim(
            "two clusters merge after the same time for every β",
            torch.full_like(merges.products_at_first_time, 0.5),
            merges.products_at_first_time,
            tolerance=0.01,
            tolerance_reason=CLEAR_MARGIN_REASON,
        ),
        Claim(
            "orthonormal tokens approach each other as 1 - γ = exp(-2t) from the start",
            1 - torch.exp(-2 * softmax.times),
            softmax.product_range[0],
            tolerance=0.01,
            tolerance_reason=CLEAR_MARGIN_REASON,
        ),
        Claim(
            "on a line, every token ends with all its weight on itself",
            torch.eye(len(weights)),
            weights,
            tolerance=0.01,
            tolerance_reason=CLEAR_MARGIN_REASON,
        ),
    )


def _panels(
    softmax: OrthonormalTrajectory,
    unnormalized: OrthonormalTrajectory,
    merges: ClusterMerges,
    hemisphere: HemisphereConvergence,
    data: dict[str, Tensor],
    time: float,
    beta: float,
) -> tuple[Panel | ImagePanel, ...]:
    error = float((softmax.product_range[0] - softmax.gamma).abs().max())
    left = int(data["num_clusters"][-1]), int(data["num_clusters_at_beta_one"][-1])
    low, high = float(data["energy"][0]), float(data["energy"][-1])
    lifetimes = float(merges.merge_times[-1] / merges.merge_times[0])
    num_leaders = int((data["line_weights"].amax(0) > 0.5).sum())
    frame_times = torch.linspace(0, time, NUM_FRAMES + 1)
    fraction = torch.linspace(0, 1, 400, dtype=torch.float64)
    exponential = hemisphere.max_gap[32] * torch.exp(-2 * (hemisphere.times - hemisphere.times[32]))
    return (
        Panel(
            f"Orthonormal tokens follow their equation to {power_of_ten(error)}",
            "time (1: products are 0.95)",
            "inner product of tokens",
            [
                Series(
                    "softmax",
                    softmax.times / softmax.times[-1],
                    softmax.product_range[0],
                    "points",
                    color_group="softmax",
                ),
                Series("its equation", softmax.times / softmax.times[-1], softmax.gamma, color_group="softmax"),
                Series(
                    "unnormalized",
                    unnormalized.times / unnormalized.times[-1],
                    unnormalized.product_range[0],
                    "points",
                    color_group="raw",
                ),
                Series(
                    "its equation", unnormalized.times / unnormalized.times[-1], unnormalized.gamma, color_group="raw"
                ),
                Series("wrong: 1 - exp(-2t)", fraction, 1 - torch.exp(-2 * fraction * softmax.times[-1]), "dashed"),
            ],
        ),
        Panel(
            f"From a random start, {left[0]} clusters are left at β = {beta:g} and {left[1]} at β = 1",
            "time",
            "clusters",
            [
                Series(f"β = {beta:g}", frame_times, data["num_clusters"]),
                Series("β = 1", frame_times, data["num_clusters_at_beta_one"]),
            ],
        ),
        Panel(
            f"The energy rises from {low:.3g} to {high:.3g}",
            "time",
            "energy E",
            [Series("", frame_times, data["energy"])],
        ),
        Panel(
            f"Two clusters live {lifetimes:.0f} times as long at β = {MERGE_BETAS[-1]:g} as at β = {MERGE_BETAS[0]:g}",
            "sharpness β",
            "time from 90° to 60°",
            [
                Series("the equation", MERGE_BETAS, merges.merge_times),
                Series("exp(β) / 2β", MERGE_BETAS, [math.exp(b) / 2 / b for b in MERGE_BETAS], "dashed"),
            ],
            log_y=True,
        ),
        Panel(
            "In a hemisphere all tokens merge at the rate exp(-2t)",
            "time",
            "largest 1 - γ",
            [
                Series("computed", hemisphere.times[::6], hemisphere.max_gap[::6], "points"),
                Series("exp(-2t)", hemisphere.times, exponential),
            ],
            log_y=True,
        ),
        ImagePanel(
            f"On a line, tokens end up attending to {num_leaders} of them",
            "key token",
            "query token",
            data["line_weights"],
        ),
    )
