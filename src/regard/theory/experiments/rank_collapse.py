"""Rank collapse: attention without skip connections makes all tokens equal, and differences shrink cubically per layer.

Let diam(X) be the largest distance between two tokens. Softmax depends only on differences of scores, so the weights of
two tokens differ only as far as the tokens do. For the scores x_i W_QK x_j / √d

    total variation of a_i and a_k  <=  tanh(|W_QK| diam² / 4√d),          |·| the spectral norm
    diam(A X W_V)                   <=  |W_V| tanh(|W_QK| diam² / 4√d) diam  <=  |W_V| |W_QK| diam³ / 4√d

and for several heads the bounds add up. The first line is Birkhoff's: if log p - log q varies by at most D, then p and
q differ by at most tanh(D/4). Dong, Cordonnier and Loukas (arXiv 2103.03404) bound the norm √(|X|₁ |X|_∞) of X minus
its nearest row by 4 |W_QK|₁ |W_V| / √d times its cube, if scores within a row differ by less than 1.25.

For tokens x + s r_i with sum r_i = 0 and small s, the difference after a layer is s³ J (R W_QK Rᵀ / √d) R W_V / n in
leading order, J = I - 1/n.

With a skip connection, X + A X W_V and g = |W_V| < 1, the diameter after a layer is at least (1 - g) diam. After L
layers the relative differences are at least ((1 - g)/(1 + g))^L: an exponential instead of a doubly exponential decay.
A feed-forward layer alone does not prevent the collapse: it multiplies distances by at most its Lipschitz constant.
"""

import math

import torch
from torch import Tensor, nn

from regard.nn import MultiHeadAttention
from regard.plot.chart_panels import Panel, Series
from regard.theory.analysis.token_diameter import (
    EMBED_DIM,
    HEAD_DIM,
    Residual,
    composite_norm,
    cubic_bound,
    diameter,
    layer_states,
    qk_and_ov_matrices,
    random_block,
    random_feed_forward,
    random_layer,
    relative_diameter,
    shrink_differences,
    spectral_norm,
    tanh_bound,
    uniform_attention_states,
)
from regard.theory.experiment import ProgressCallback, check_settings
from regard.theory.experiment_result import Claim, ExperimentResult

ROUNDING_FLOOR = 1e-11  # smaller relative diameters are rounding errors
SMALL_SCALE = 1e-3
OPPOSITE_TOKEN_NORMS = (0.1, 1.0, 2.0, 4.0)
DIFFERENCE_SCALES = tuple(10 ** (-3 + n / 4) for n in range(15))  # for the chart


@check_settings
def rank_collapse(
    *,
    num_tokens: int = 32,
    num_heads: int = 2,
    value_norm: float = 0.9,
    score_sharpness: float = 16.0,
    num_layers: int = 24,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> ExperimentResult:
    """Run random layers of attention: alone, with feed-forward layers, with skip connections, and as full blocks.

    `value_norm` is |W_V| including the output projection, summed over heads. `score_sharpness` is the argument of tanh
    in the first layer. `num_tokens`, `num_heads` and `num_layers` describe the stack.

    `seed` (default 0) seeds the random numbers. `progress`, if given, is called with the completed fraction of the
    work.

    >>> rank_collapse(num_tokens=8, num_layers=8).is_consistent
    True
    """
    random = torch.Generator().manual_seed(seed)
    report = progress or (lambda fraction: None)
    differences, shared = (torch.randn(1, n, EMBED_DIM, generator=random, dtype=torch.float64) for n in (num_tokens, 1))
    x = differences + shared
    stack = [
        random_layer(num_heads, value_norm, score_sharpness / float(diameter(x)) ** 2, random)
        for _ in range(num_layers)
    ]
    report(0.3)
    with torch.no_grad():
        plain_states = layer_states(x, stack)
        ffn_states = layer_states(x, [nn.Sequential(layer, random_feed_forward(random)) for layer in stack])
        skip_states = layer_states(x, [Residual(layer) for layer in stack])
        report(0.6)
        block_states = layer_states(x, [random_block(num_heads, random) for _ in range(num_layers)])
        uniform_states = uniform_attention_states(x, value_norm, num_layers)
        residual, expected_residual = _small_difference_residual(stack[0], x)
        one_layer_diameter = torch.stack([diameter(stack[0](shrink_differences(x, s))) for s in DIFFERENCE_SCALES])
    report(1.0)
    data = {
        "attention_only": relative_diameter(plain_states),
        "with_feed_forward": relative_diameter(ffn_states),
        "with_skip": relative_diameter(skip_states),
        "blocks": relative_diameter(block_states),
        "uniform_with_skip": relative_diameter(uniform_states),
        "one_layer_diameter": one_layer_diameter,
    }
    return ExperimentResult(
        name="rank_collapse",
        claims=(
            _tanh_bound_claim(plain_states, stack),
            _opposite_tokens_claim(),
            _cubic_bound_claim(plain_states, stack),
            Claim(
                "tokens x + s r_i: after a layer their differences are s³ J (R W_QK Rᵀ / √d) R W_V / n",
                expected_residual / expected_residual.abs().max(),
                residual / expected_residual.abs().max(),
                tolerance=_next_order_tolerance(stack[0], x),
                tolerance_reason="the next order of s: the variation of weights within a row",
            ),
            *_skip_claims(skip_states, stack, value_norm),
            Claim(
                "skip connections and uniform weights: differences stay, and the mean grows by 1 + g per layer",
                _predicted_relative_diameters(x, value_norm, num_layers),
                data["uniform_with_skip"],
                tolerance=1e-12,
                tolerance_reason="rounding in float64",
            ),
        ),
        false_claims=_false_claims(data, plain_states, residual, expected_residual),
        panels=_panels(data, x, stack, value_norm),
        settings={
            "num_tokens": num_tokens,
            "num_heads": num_heads,
            "value_norm": value_norm,
            "score_sharpness": score_sharpness,
            "num_layers": num_layers,
            "seed": seed,
        },
        data=data,
    )


def _predicted_relative_diameters(x: Tensor, value_norm: float, num_layers: int) -> Tensor:
    mean, diameters = x.mean(-2, keepdim=True), []
    for layer in range(num_layers + 1):
        max_norm = (x - mean + (1 + value_norm) ** layer * mean).norm(dim=-1).max()
        diameters.append(diameter(x) / max_norm)
    return torch.stack(diameters)


def _num_layers_above_rounding(states: list[Tensor]) -> int:
    """Return the number of layers whose distances exceed rounding."""
    return sum(bool(relative > ROUNDING_FLOOR) for relative in relative_diameter(states)[1:])


def _small_difference_residual(layer: MultiHeadAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the differences of nearly equal tokens after a layer, divided by s³: computed, and by the formula."""
    r = x[0] - x[0].mean(0)
    y = layer(shrink_differences(x, SMALL_SCALE))[0]
    expected = torch.zeros_like(y)
    for w_qk, w_v in qk_and_ov_matrices(layer):
        head_output = (r @ w_qk @ r.mT) @ r @ w_v / len(r)
        expected = expected + head_output - head_output.mean(0)
    return (y - y.mean(0)) / SMALL_SCALE**3, expected


def _next_order_tolerance(layer: MultiHeadAttention, x: Tensor) -> float:
    """Return a bound from the variation of scores within a row, s x W_QK r_j + s² r_i W_QK r_j."""
    r, mean = x[0] - x[0].mean(0), x[0].mean(0)
    ranges = [float((row @ r.mT).max() - (row @ r.mT).min()) for row in _mean_score_rows(layer, mean)]
    largest = max(spectral_norm(w_qk) for w_qk, _ in qk_and_ov_matrices(layer)) * float(r.norm(dim=-1).max()) ** 2
    return 4 * SMALL_SCALE * (max(ranges) + SMALL_SCALE * largest)


def _mean_score_rows(layer: MultiHeadAttention, mean: Tensor) -> list[Tensor]:
    return [mean @ w_qk for w_qk, _ in qk_and_ov_matrices(layer)]


# ---- claims and charts --------------------------------------------------------------------------------------
def _tanh_bound_claim(states: list[Tensor], stack: list[MultiHeadAttention]) -> Claim:
    count = _num_layers_above_rounding(states)
    diameters = [float(diameter(x)) for x in states[: count + 1]]
    return Claim(
        "attention alone: in each layer log diam is below the tanh bound",
        _logs([tanh_bound(before, layer) for before, layer in zip(diameters[:-1], stack, strict=False)]),
        _logs(diameters[1:]),
        tolerance=1e-4,
        tolerance_reason="rounding of relative distances down to 1e-11",
        relation="at most",
    )


@torch.no_grad()
def _opposite_tokens_claim() -> Claim:
    """Return the claim for two opposite tokens, with weights that depend on one coordinate only."""
    layer = MultiHeadAttention(EMBED_DIM, 1, head_dim=HEAD_DIM, bias=False).double()
    assert layer.in_proj_weight is not None
    for matrix in (*layer.in_proj_weight.chunk(3), layer.out_proj.weight):
        matrix.zero_()
        matrix[0, 0] = 1
    pairs = [torch.zeros(1, 2, EMBED_DIM, dtype=torch.float64) for _ in OPPOSITE_TOKEN_NORMS]
    for x, size in zip(pairs, OPPOSITE_TOKEN_NORMS, strict=True):
        x[0, 0, 0], x[0, 1, 0] = size, -size
    return Claim(
        "two opposite tokens, with weights that depend on one coordinate, attain the bound",
        torch.tensor([tanh_bound(2 * size, layer) for size in OPPOSITE_TOKEN_NORMS], dtype=torch.float64),
        torch.stack([diameter(layer(x)) for x in pairs]),
        tolerance=1e-13,
        tolerance_reason="rounding in float64",
    )


def _logs(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).log()


def _cubic_bound_claim(states: list[Tensor], stack: list[MultiHeadAttention]) -> Claim:
    count = _num_layers_above_rounding(states)
    bounds = [cubic_bound(x, layer) for x, layer in zip(states[:count], stack, strict=False)]
    layers = [layer for layer, bound in enumerate(bounds) if bound < math.inf]
    return Claim(
        "attention alone: in each layer the norm of Dong et al. is below their bound, where it applies",
        _logs([bounds[layer] for layer in layers]),
        _logs([composite_norm(states[layer + 1]) for layer in layers]),
        tolerance=1e-4,
        tolerance_reason="rounding, as above",
        relation="at most",
    )


def _skip_claims(states: list[Tensor], stack: list[MultiHeadAttention], value_norm: float) -> tuple[Claim, Claim]:
    diameters = [float(diameter(x)) for x in states]
    lower_bounds = [d - tanh_bound(d, layer) for d, layer in zip(diameters[:-1], stack, strict=True)]
    relative = relative_diameter(states)
    floor = ((1 - value_norm) / (1 + value_norm)) ** torch.arange(len(states), dtype=torch.float64)
    return (
        Claim(
            "skip connections: in each layer distances shrink by at most the bound",
            torch.tensor(lower_bounds, dtype=torch.float64) / diameters[0],
            torch.tensor(diameters[1:], dtype=torch.float64) / diameters[0],
            tolerance=1e-12,
            tolerance_reason="rounding in float64",
            relation="at least",
        ),
        Claim(
            "skip connections: after L layers relative differences are at least ((1 - g)/(1 + g))^L",
            relative[0] * floor,
            relative,
            tolerance=1e-12,
            tolerance_reason="rounding in float64",
            relation="at least",
        ),
    )


def _false_claims(
    data: dict[str, Tensor], states: list[Tensor], residual: Tensor, predicted_residual: Tensor
) -> tuple[Claim, ...]:
    first, second, third = (math.log(max(float(diameter(x)), 1e-300)) for x in states[:3])
    return (
        Claim(
            "attention alone reduces the differences by the same factor in every layer",
            second + (second - first),
            third,
            tolerance=0.5,
            tolerance_reason="a factor of 1.6 for differences between layers",
        ),
        Claim(
            "the differences of tokens x + s r_i after a layer are of first order in s",
            1.0,
            math.log(float(residual.norm()) * SMALL_SCALE**3) / math.log(SMALL_SCALE),
            tolerance=0.5,
            tolerance_reason="half a power; the scale of the weights changes it by less",
        ),
        Claim(
            "with skip connections the relative distances of tokens do not change",
            data["uniform_with_skip"][0],
            data["uniform_with_skip"][-1],
            tolerance=0.1 * float(data["uniform_with_skip"][0]),
            tolerance_reason="a tenth; distances persist for a while in random layers, but not with uniform weights",
        ),
    )


def _panels(
    data: dict[str, Tensor], x: Tensor, stack: list[MultiHeadAttention], value_norm: float
) -> tuple[Panel, ...]:
    depth = torch.arange(len(data["attention_only"]))
    names = {
        "attention_only": "attention alone",
        "with_feed_forward": "with feed-forward layers",
        "with_skip": "with skip connections",
        "blocks": "blocks of regard.nn",
    }
    sizes = torch.tensor(DIFFERENCE_SCALES) * float(diameter(x))
    bounds = torch.tensor([tanh_bound(float(size), stack[0]) for size in sizes])
    floor = float(data["with_skip"][0]) * ((1 - value_norm) / (1 + value_norm)) ** depth
    floor = floor[floor > 1e-9]
    num_layers, is_collapsed = len(depth) - 1, data["attention_only"] < 1e-6
    collapse = f"after {int(is_collapsed.int().argmax())} layers" if is_collapsed.any() else "slowly"
    slope = math.log(data["one_layer_diameter"][1] / data["one_layer_diameter"][0]) / math.log(sizes[1] / sizes[0])
    remaining = float(data["with_skip"][-1] / data["with_skip"][0])
    return (
        Panel(
            f"Attention alone collapses {collapse}; skip connections keep tokens apart",
            "layers",
            "diameter of the tokens",
            [Series(label, depth, data[name].clamp(min=1e-17), "points") for name, label in names.items()],
            log_y=True,
        ),
        Panel(
            f"One layer of attention shrinks a small diameter to its power {slope:.1f}",
            "diameter before",
            "diameter after",
            [
                Series("computed", sizes, data["one_layer_diameter"], "points"),
                Series("bound", sizes, bounds),
                Series("diameter cubed", sizes, bounds[0] * (sizes / sizes[0]) ** 3, "dashed"),
            ],
            log_x=True,
            log_y=True,
        ),
        Panel(
            f"With skip connections {remaining:.0%} of the diameter is left after {num_layers} layers",
            "layers",
            "diameter of the tokens",
            [
                Series("with skip connections", depth, data["with_skip"], "points"),
                Series("blocks of regard.nn", depth, data["blocks"], "points"),
                Series("uniform weights", depth, data["uniform_with_skip"], "points"),
                Series("lower bound", depth[: len(floor)], floor),
            ],
            log_y=True,
        ),
    )
