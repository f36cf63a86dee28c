"""Attention in depth that is as large as the width: shaped, it keeps tokens apart; plain, it makes them one.

X (m tokens, width n) goes through layers X' = λX + γ A X W_V / √n with λ² + γ² = 1 and fresh normal weights, where

    plain    A = softmax(Y / √n_k),                        Y = (X W_Q / √n)(X W_K / √n)'
    shaped   A = I + softmax(Y / τ) - 1/m,                 τ = τ₀ √(n n_k)

Only V = X X' / n matters. Shaped, one layer changes it by little: E(V' - V) = b / n and Cov(V' - V) = Σ / n, so that
over n layers V follows dV = b(V) dt + Σ(V)^½ dB (Noci and others, The Shaped Transformer, arXiv 2306.17759). With a bar
for means over tokens, c_νκ = V_νκ - V_ν. - V_κ. + V_.. and e_ν = V_νν - 2 V_ν. + 2 V_.. - mean_κ V_κκ,

    b_αβ     = γ²/τ₀² (V_αβ mean_νκ(V_νκ c_νκ) + mean_ν((V_βν V_αα + V_αν V_ββ) e_ν) / 2)
    Σ_αβ,δω  = γ²(2 - γ²)(V_αδ V_βω + V_αω V_βδ)
               + γ⁴/τ₀² mean_νκ c_νκ (V_βν V_ωκ V_αδ + V_βν V_δκ V_αω + V_αν V_ωκ V_βδ + V_αν V_δκ V_βω)

Plain, weights that are the same for all tokens leave of their differences only what λX carries: λ² a layer.
"""

import math

import torch
from torch import Tensor

from regard.draw.charts import Panel, Series
from regard.theory.covariance import (
    Net,
    chains_of,
    correlation_of,
    diffusion_of,
    drawn_attention,
    drawn_layer,
    drift_by,
    drift_of,
    paths_of,
    root_of,
)
from regard.theory.experiment import Progress, check_settings
from regard.theory.outcome import Claim, Outcome

START = ((1.0, 0.3, 0.1), (0.3, 1.2, 0.4), (0.1, 0.4, 0.9))
CHAINS = 512  # nets of which correlations are averaged
PLAIN_CHAINS = 64
APART = 1e-6  # plain layers go on until tokens differ by so little
FIVE = "five standard errors of the sample"


@check_settings
def shaped(
    *,
    width: int = 256,
    branch: float = 0.25,
    temperature: float = 1.0,
    depth: float = 0.5,
    samples: int = 40_000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Outcome:
    """How the covariance of three tokens changes in a layer, on average and at random, and over many layers.

    `branch` is γ², the share that comes through attention, `temperature` is τ₀, `depth` the number of layers over the
    width; drift and diffusion are estimated from `samples` layers.

    >>> shaped(width=64, samples=4000).agrees
    True
    """
    random = torch.Generator().manual_seed(seed)
    told = progress or (lambda share: None)
    net = Net(width, branch, temperature)
    v = torch.tensor(START, dtype=torch.float64)
    drift, drift_error = _drift_found(net, v, samples, random)
    told(0.1)
    spread, spread_error = _diffusion_found(net, v, samples, random)
    told(0.2)
    start, layers = v.expand(CHAINS, -1, -1), max(1, round(depth * width))
    deep = chains_of(net, start, True, layers, random, lambda share: told(0.2 + 0.5 * share))
    equation = paths_of(net, start, layers, random, lambda share: told(0.7 + 0.1 * share))
    down = math.ceil(math.log(APART) / math.log(1 - branch))
    plain = chains_of(net, start[:PLAIN_CHAINS], False, down, random, lambda share: told(0.8 + 0.2 * share))
    told(1.0)
    found = {
        "drift": drift,
        "diffusion": spread,
        "correlation": correlation_of(deep),
        "correlation_by_equation": correlation_of(equation),
        "correlation_plain": correlation_of(plain),
    }
    return Outcome(
        name="shaped",
        claims=(
            Claim(
                "the mean of n (V' - V) is the drift b",
                drift_of(net, v),
                drift,
                within=drift_error,
                because=f"{FIVE}, and twice what a fourfold width changes: what is left out is of order 1/n",
            ),
            Claim(
                "the covariance of √n (V' - V) is the diffusion Σ",
                diffusion_of(net, v),
                spread,
                within=spread_error,
                because=f"{FIVE}, and terms of order 1/n beside it",
            ),
            *_of_depth(found["correlation"][-1], found["correlation_by_equation"][-1], width),
            _of_plain(plain, net),
        ),
        wrong=_wrong(net, v, found, drift_error),
        panels=_panels(net, v, found),
        settings={
            "width": width,
            "branch": branch,
            "temperature": temperature,
            "depth": depth,
            "samples": samples,
            "seed": seed,
        },
        data=found,
    )


# ---- estimates ----------------------------------------------------------------------------------------------
def _drift_found(net: Net, v: Tensor, samples: int, random: torch.Generator) -> tuple[Tensor, float]:
    """The mean of n (V' - V), of which W_V's part is taken exactly: E(V' | A) = λ²V + γ² A V A'. And its error."""
    root = root_of(v).expand(samples, -1, -1)
    state = random.get_state()
    found, errors = [], []
    for wider in (1, 4):  # the same draws, so that the difference shows what the width changes
        random.set_state(state)
        each = Net(wider * net.width, net.branch, net.temperature)
        a = drawn_attention(each, root, True, random, twice=True)
        change = each.width * each.branch * (a @ v @ a.mT - v)
        pairs = (change[: len(root)] + change[len(root) :]) / 2
        found.append(pairs.mean(0))
        errors.append(float((pairs.std(0) / math.sqrt(len(root))).max()))
    return found[0], 5 * errors[0] + 2 * float((found[0] - found[1]).abs().max())


def _diffusion_found(net: Net, v: Tensor, samples: int, random: torch.Generator) -> tuple[Tensor, float]:
    m, parts = len(v), []
    for begin in range(0, samples, 4000):  # all at once would be large
        size = min(4000, samples - begin)
        parts.append(drawn_layer(net, v.expand(size, -1, -1), True, random) - v)
    change = math.sqrt(net.width) * torch.cat(parts).flatten(1)
    change = change - change.mean(0)
    products = change.unsqueeze(-1) * change.unsqueeze(-2)
    error = float((products.std(0) / math.sqrt(samples)).max())
    found = products.mean(0).reshape(m, m, m, m)
    return found, 5 * error + float(found.max()) / (net.width * net.temperature**2)


# ---- what is claimed ----------------------------------------------------------------------------------------
def _of_depth(found: Tensor, said: Tensor, width: int) -> tuple[Claim, Claim]:
    count = len(found)
    because = f"five standard errors of two samples of {count} nets, and terms of order 1/n"
    spread = math.sqrt(float(found.var() + said.var()) / count)
    return (
        Claim(
            "shaped, after many layers: the mean correlation is that of the equation",
            said.mean(),
            found.mean(),
            within=5 * spread + 1 / width,
            because=because,
        ),
        Claim(
            "shaped, after many layers: correlations differ from net to net as the equation says",
            said.std(),
            found.std(),
            within=5 * spread / math.sqrt(2) + 1 / width,
            because=because,
        ),
    )


def _of_plain(plain: Tensor, net: Net) -> Claim:
    apart = plain[..., 0, 0] + plain[..., 1, 1] - 2 * plain[..., 0, 1]
    return Claim(
        "plain, once tokens are near: of |x - y|² each layer leaves λ² = 1 - γ²",
        torch.full((3,), 1 - net.branch),
        (apart[-3:] / apart[-4:-1]).mean(-1),
        within=5 * math.sqrt(APART),
        because="weights of near tokens differ by the order of |x - y|, here 1/1000",
    )


def _wrong(net: Net, v: Tensor, found: dict[str, Tensor], error: float) -> tuple[Claim, ...]:
    return (
        Claim(
            "what is added to I is 0 on average, so V has no drift",
            torch.zeros_like(v),
            found["drift"],
            within=error,
            because="as above",
        ),
        Claim(
            "softmax of small scores is (1 + Y/τ)/m, without the mean of Y taken off",
            drift_by(net, v, v, torch.zeros(len(v), dtype=v.dtype)),
            found["drift"],
            within=error,
            because="as above",
        ),
        Claim(
            "plain attention leaves correlations as they are",
            found["correlation_plain"][0].mean(),
            found["correlation_plain"][-1].mean(),
            within=0.1,
            because="a tenth is far above what chance does to a mean of so many nets",
        ),
    )


def _panels(net: Net, v: Tensor, found: dict[str, Tensor]) -> tuple[Panel, ...]:
    shaped, said, plain = (found[name] for name in ("correlation", "correlation_by_equation", "correlation_plain"))
    layers, down = torch.arange(len(shaped)), torch.arange(len(plain))
    ends = torch.stack([diffusion_of(net, v).min(), diffusion_of(net, v).max()])
    left = (1 - plain[0].mean()) * (1 - net.branch) ** down
    return (
        Panel(
            "Diffusion, entry by entry",
            "Σ by the formula",
            "covariance found",
            [
                Series("found", diffusion_of(net, v).flatten(), found["diffusion"].flatten(), "points"),
                Series("equal", ends, ends),
            ],
        ),
        Panel(
            "Shaped: correlations over nets",
            f"layers, width {net.width}",
            "correlation of tokens",
            [
                Series("mean", layers[::4], shaped.mean(-1)[::4], "points", of="mean"),
                Series("mean by the equation", layers, said.mean(-1), of="mean"),
                Series("standard deviation", layers[::4], shaped.std(-1)[::4], "points", of="spread"),
                Series("the same by the equation", layers, said.std(-1), of="spread"),
            ],
        ),
        Panel(
            "How far from one token",
            "layers",
            "1 - correlation",
            [
                Series("plain", down, (1 - plain.mean(-1)).clamp(min=1e-16), "points", of="plain"),
                Series("λ² a layer", down, left, of="plain"),
                Series("shaped", layers, 1 - shaped.mean(-1)),
            ],
            log_y=True,
        ),
    )
