"""Attention alone makes all tokens one, and does it fast: what differs between them shrinks to its third power a layer.

Let diam(X) be the largest distance of two tokens. Adding one number to a row of scores changes no weight, so weights of
two tokens differ only as far as the tokens do: for the scores x_i W_QK x_j / √d

    total variation of a_i and a_k  <=  tanh(|W_QK| diam² / 4√d),          |·| the spectral norm
    diam(A X W_V)                   <=  |W_V| tanh(|W_QK| diam² / 4√d) diam  <=  |W_V| |W_QK| diam³ / 4√d

and the same summed over heads. The first line is Birkhoff's: if log p - log q varies by at most D, then p and q differ
by tanh(D/4). Dong, Cordonnier and Loukas (arXiv 2103.03404) have the third power with the norm √(|X|₁ |X|_∞) of X less
its nearest row: 4 |W_QK|₁ |W_V| / √d times its third power, as long as scores within a row differ by less than 1.25.

For tokens x + s r_i with sum r_i = 0 and small s, what is left is exactly s³ J (R W_QK R' / √d) R W_V / n, J = I - 1/n.

A skip connection, X + A X W_V with g = |W_V| < 1, leaves at least (1 - g) diam, so that after L layers the differences
are at least ((1 - g)/(1 + g))^L of the size of the tokens: a slow fall in place of the fast one, and no end to it. A
feed-forward part alone changes nothing: it multiplies distances by at most its Lipschitz constant.
"""

import math

import torch
from torch import Tensor, nn

from regard.draw.charts import Panel, Series
from regard.nn import MultiHeadAttention
from regard.theory.distances import (
    HEAD_WIDTH,
    WIDTH,
    Skip,
    cubic_bound,
    diameter_of,
    looking_at_all_alike,
    matrices_of,
    nearer,
    pair_norm,
    passed_through,
    random_block,
    random_feed_forward,
    random_layer,
    relative_diameter,
    spectral_norm,
    tanh_bound,
)
from regard.theory.experiment import Progress, check_settings
from regard.theory.outcome import Claim, Outcome

ROUNDING = 1e-11  # of the size of the tokens: below, distances are rounding
SMALL = 1e-3
OPPOSITE = (0.1, 1.0, 2.0, 4.0)  # lengths of two opposite tokens
SCALES = tuple(10 ** (-3 + n / 4) for n in range(15))  # of differences, for the picture


@check_settings
def collapse(
    *,
    tokens: int = 32,
    heads: int = 2,
    gain: float = 0.9,
    sharpness: float = 16.0,
    layers: int = 24,
    seed: int = 0,
    progress: Progress | None = None,
) -> Outcome:
    """Layers of attention with random weights: alone, with a feed-forward part, with skip connections, as blocks.

    `gain` is |W_V|, summed over heads with what joins them, `sharpness` the argument of tanh at the first layer.

    >>> collapse(tokens=8, layers=8).agrees
    True
    """
    random = torch.Generator().manual_seed(seed)
    told = progress or (lambda share: None)
    own, shared = (torch.randn(1, n, WIDTH, generator=random, dtype=torch.float64) for n in (tokens, 1))
    x = own + shared
    stack = [random_layer(heads, gain, sharpness / float(diameter_of(x)) ** 2, random) for _ in range(layers)]
    told(0.3)
    with torch.no_grad():
        alone = passed_through(x, stack)
        fed = passed_through(x, [nn.Sequential(layer, random_feed_forward(random)) for layer in stack])
        skipping = passed_through(x, [Skip(layer) for layer in stack])
        told(0.6)
        blocks = passed_through(x, [random_block(heads, random) for _ in range(layers)])
        alike = looking_at_all_alike(x, gain, layers)
        left, said = _nearly_one(stack[0], x)
        one = torch.stack([diameter_of(stack[0](nearer(x, s))) for s in SCALES])
    told(1.0)
    found = {
        "alone": relative_diameter(alone),
        "with_feed_forward": relative_diameter(fed),
        "with_skip": relative_diameter(skipping),
        "in_blocks": relative_diameter(blocks),
        "alike_with_skip": relative_diameter(alike),
        "one_layer": one,
    }
    return Outcome(
        name="collapse",
        claims=(
            _of_bound(alone, stack),
            _of_opposites(),
            _of_dong(alone, stack),
            Claim(
                "tokens x + s r_i: a layer leaves s³ J (R W_QK R' / √d) R W_V / n of their differences",
                said / said.abs().max(),
                left / said.abs().max(),
                within=_next_order(stack[0], x),
                because="the next order of s: weights vary by so much within a row",
            ),
            *_of_skips(skipping, stack, gain),
            Claim(
                "with skips and the same weight for all: differences stay, and the mean grows by 1 + g a layer",
                _growing_mean(x, gain, layers),
                found["alike_with_skip"],
                within=1e-12,
                because="rounding in float64",
            ),
        ),
        wrong=_wrong(found, alone, left, said),
        panels=_panels(found, x, stack, gain),
        settings={
            "tokens": tokens,
            "heads": heads,
            "gain": gain,
            "sharpness": sharpness,
            "layers": layers,
            "seed": seed,
        },
        data=found,
    )


def _growing_mean(x: Tensor, gain: float, layers: int) -> Tensor:
    mean, said = x.mean(-2, keepdim=True), []
    for layer in range(layers + 1):
        longest = (x - mean + (1 + gain) ** layer * mean).norm(dim=-1).max()
        said.append(diameter_of(x) / longest)
    return torch.stack(said)


def _above_rounding(places: list[Tensor]) -> int:
    """How many layers there are whose distances are more than rounding."""
    return sum(bool(share > ROUNDING) for share in relative_diameter(places)[1:])


def _nearly_one(layer: MultiHeadAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """What a layer leaves of the differences of tokens that are nearly one, over s³: found, and by the formula."""
    r = x[0] - x[0].mean(0)
    y = layer(nearer(x, SMALL))[0]
    said = torch.zeros_like(y)
    for scores, values in matrices_of(layer):
        mixed = (r @ scores @ r.mT) @ r @ values / len(r)
        said = said + mixed - mixed.mean(0)
    return (y - y.mean(0)) / SMALL**3, said


def _next_order(layer: MultiHeadAttention, x: Tensor) -> float:
    """Scores vary by s x W_QK r_j within a row, besides s² r_i W_QK r_j; weights by as much, and a little more."""
    r, mean = x[0] - x[0].mean(0), x[0].mean(0)
    vary = [float((scores_of @ r.mT).max() - (scores_of @ r.mT).min()) for scores_of in _rows(layer, mean)]
    largest = max(spectral_norm(scores) for scores, _ in matrices_of(layer)) * float(r.norm(dim=-1).max()) ** 2
    return 4 * SMALL * (max(vary) + SMALL * largest)


def _rows(layer: MultiHeadAttention, mean: Tensor) -> list[Tensor]:
    return [mean @ scores for scores, _ in matrices_of(layer)]


# ---- what is claimed ----------------------------------------------------------------------------------------
def _of_bound(alone: list[Tensor], stack: list[MultiHeadAttention]) -> Claim:
    count = _above_rounding(alone)
    found = [float(diameter_of(x)) for x in alone[: count + 1]]
    return Claim(
        "attention alone: in each layer log diam is below the bound by tanh",
        _logs([tanh_bound(diameter, layer) for diameter, layer in zip(found[:-1], stack, strict=False)]),
        _logs(found[1:]),
        within=1e-4,
        because="rounding, of distances down to 1e-11 of the tokens",
        relation="at most",
    )


@torch.no_grad()
def _of_opposites() -> Claim:
    """One coordinate is all that queries, keys and values look at, and two tokens are opposite in it."""
    layer = MultiHeadAttention(WIDTH, 1, head_width=HEAD_WIDTH, bias=False).double()
    assert layer.in_proj_weight is not None
    for matrix in (*layer.in_proj_weight.chunk(3), layer.out_proj.weight):
        matrix.zero_()
        matrix[0, 0] = 1
    pairs = [torch.zeros(1, 2, WIDTH, dtype=torch.float64) for _ in OPPOSITE]
    for x, size in zip(pairs, OPPOSITE, strict=True):
        x[0, 0, 0], x[0, 1, 0] = size, -size
    return Claim(
        "two opposite tokens, with weights that look at nothing else, reach the bound",
        torch.tensor([tanh_bound(2 * size, layer) for size in OPPOSITE], dtype=torch.float64),
        torch.stack([diameter_of(layer(x)) for x in pairs]),
        within=1e-13,
        because="rounding in float64",
    )


def _logs(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).log()


def _of_dong(alone: list[Tensor], stack: list[MultiHeadAttention]) -> Claim:
    count = _above_rounding(alone)
    bounds = [cubic_bound(x, layer) for x, layer in zip(alone[:count], stack, strict=False)]
    kept = [place for place, bound in enumerate(bounds) if bound < math.inf]
    return Claim(
        "attention alone: in each layer the norm of Dong and others is below theirs, where it applies",
        _logs([bounds[place] for place in kept]),
        _logs([pair_norm(alone[place + 1]) for place in kept]),
        within=1e-4,
        because="rounding, as above",
        relation="at most",
    )


def _of_skips(skipping: list[Tensor], stack: list[MultiHeadAttention], gain: float) -> tuple[Claim, Claim]:
    diameters = [float(diameter_of(x)) for x in skipping]
    least = [d - tanh_bound(d, layer) for d, layer in zip(diameters[:-1], stack, strict=True)]
    relative = relative_diameter(skipping)
    floor = ((1 - gain) / (1 + gain)) ** torch.arange(len(skipping), dtype=torch.float64)
    return (
        Claim(
            "with skips: in each layer distances are what they were, less the bound, at least",
            torch.tensor(least, dtype=torch.float64) / diameters[0],
            torch.tensor(diameters[1:], dtype=torch.float64) / diameters[0],
            within=1e-12,
            because="rounding in float64",
            relation="at least",
        ),
        Claim(
            "with skips: after L layers tokens differ by ((1 - g)/(1 + g))^L of their size, at least",
            relative[0] * floor,
            relative,
            within=1e-12,
            because="rounding in float64",
            relation="at least",
        ),
    )


def _wrong(found: dict[str, Tensor], alone: list[Tensor], left: Tensor, said: Tensor) -> tuple[Claim, ...]:
    first, second, third = (math.log(max(float(diameter_of(x)), 1e-300)) for x in alone[:3])
    return (
        Claim(
            "attention alone takes away the same share of the differences in every layer",
            second + (second - first),
            third,
            within=0.5,
            because="a factor of 1.6 for layers that are not alike",
        ),
        Claim(
            "what a layer leaves of tokens x + s r_i is of first order in s",
            1.0,
            math.log(float(left.norm()) * SMALL**3) / math.log(SMALL),
            within=0.5,
            because="half a power; the size of the weights does not change it by so much",
        ),
        Claim(
            "with skips the tokens stay as far apart as they were, for their size",
            found["alike_with_skip"][0],
            found["alike_with_skip"][-1],
            within=0.1 * float(found["alike_with_skip"][0]),
            because="a tenth; they stay in random layers for a while, and not where all weights are the same",
        ),
    )


def _panels(found: dict[str, Tensor], x: Tensor, stack: list[MultiHeadAttention], gain: float) -> tuple[Panel, ...]:
    depth = torch.arange(len(found["alone"]))
    names = {
        "alone": "attention alone",
        "with_feed_forward": "and a feed-forward part",
        "with_skip": "attention and skips",
        "in_blocks": "blocks of regard.nn",
    }
    sizes = torch.tensor(SCALES) * float(diameter_of(x))
    bounds = torch.tensor([tanh_bound(float(size), stack[0]) for size in sizes])
    floor = float(found["with_skip"][0]) * ((1 - gain) / (1 + gain)) ** depth
    floor = floor[floor > 1e-9]
    return (
        Panel(
            "How far tokens are apart, for their size",
            "layers",
            "diam / longest",
            [Series(label, depth, found[name].clamp(min=1e-17), "points") for name, label in names.items()],
            log_y=True,
        ),
        Panel(
            "One layer of attention alone",
            "diam before",
            "diam after",
            [
                Series("found", sizes, found["one_layer"], "points"),
                Series("bound", sizes, bounds),
                Series("third power", sizes, bounds[0] * (sizes / sizes[0]) ** 3, "dashed"),
            ],
            log_x=True,
            log_y=True,
        ),
        Panel(
            "With skips",
            "layers",
            "diam / longest",
            [
                Series("attention and skips", depth, found["with_skip"], "points"),
                Series("blocks of regard.nn", depth, found["in_blocks"], "points"),
                Series("skips, the same weight for all", depth, found["alike_with_skip"], "points"),
                Series("least, by g", depth[: len(floor)], floor),
            ],
            log_y=True,
        ),
    )
