"""What attention costs: counted work beside formulas, steps that wait for each other, and where attention overtakes.

Work is counted in FLOPs of products, 2 m k n for (m, k) times (k, n). For a block of width D over n tokens, with two
matrices of 4D in its feed-forward part,

    projections 8nD²    feed-forward 16nD²    attention 4n²D        so attention overtakes the rest at n = 6D
    gated: 24nD²        at n = 8D             causal: 2n(n + 1)D    at n = 12D - 1, gated 16D - 1

and beside its projections alone at n = 2D, or 1.5D without the one for the output. Training takes three times as much:
6 FLOPs for each entry of a matrix and each token, and 12 n² D for attention.

Steps that must follow one another, and layers until the last token has heard of the first:

    attention           1 step,  1 layer
    a window of w       1 step,  (n - 1)/(w - 1) layers, rounded up
    w keys, dilated     1 step,  log_w n layers, rounded up, if steps grow as 1, w, w² ...
    a recurrent cell    n steps, 1 layer
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.attention import attend, attention
from regard.cost import attention as attention_cost
from regard.cost import crossing, layer, projections, six_n_d, stored_weights, training, vocabulary
from regard.draw.charts import Panel, Series
from regard.mechanism.linear import linear_attention
from regard.nn import Block, Design
from regard.spec import mask
from regard.theory.experiment import Progress, check_settings
from regard.theory.growing import Grown, counted, grown
from regard.theory.outcome import Claim, Outcome

TIMED = (512, 1024, 2048, 4096)
EXACT = "counts are whole numbers"


@check_settings
def complexity(
    *,
    width: int = 32,
    tokens: int = 64,
    window: int = 8,
    every: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> Outcome:
    """Work, memory, steps and paths, counted.

    `width` is that of the block in which attention overtakes the rest; paths lead over `tokens`, through windows of
    `window`; `every` so manyth mechanism is counted. Times are measured too, for the picture alone.

    >>> complexity(width=16, tokens=16, every=8).agrees
    True
    """
    told = progress or (lambda share: None)
    all_grown = grown(every, lambda share: told(0.7 * share))
    parts = {gated: _parts(width, gated) for gated in (False, True)}
    trained, entries = _training(width)
    told(0.8)
    depths = [_depth(n, cell) for cell in (False, True) for n in (8, 16, 32)]
    layers = _layers_to_reach(tokens, window)
    times = _times()
    told(1.0)
    found = {
        "powers": torch.tensor([each.found for each in all_grown], dtype=torch.float64),
        "powers_by_formula": torch.tensor([each.said for each in all_grown], dtype=torch.float64),
        "layers_to_reach": torch.tensor(layers),
        "graph_depth": torch.tensor(depths),
    }
    return Outcome(
        name="complexity",
        claims=(
            Claim(
                f"{len(all_grown)} mechanisms: counted work grows with the power of n that the formula has",
                found["powers_by_formula"],
                found["powers"],
                within=0.1,
                because="formulas leave out factors and what grows slower; powers that differ do so by 0.5",
            ),
            *_of_crossings(parts, width),
            *_of_training(trained, entries, width),
            *_of_memory(),
            *_of_steps(depths, layers, tokens, window),
        ),
        wrong=_wrong(parts, trained, entries, width),
        panels=_panels(all_grown, times, width),
        settings={"width": width, "tokens": tokens, "window": window, "every": every, "seed": seed},
        data=found,
    )


# ---- where attention overtakes the rest ---------------------------------------------------------------------
def _block(width: int, gated: bool) -> Block:
    activation = "swiglu" if gated else "gelu"
    return Block(Design(width=width, heads=1, hidden=4 * width, activation=activation, bias=False)).double()


def _parts(width: int, gated: bool) -> tuple[float, float]:
    """FLOPs a token of a block's matrices, and FLOPs a pair of its attention.

    The block runs at two lengths. What grows as n² is attention, of which torch's counter does not see all (products
    into memory that is there already), so that its part is counted by the reference, which computes every pair.
    """
    block = _block(width, gated)

    @torch.no_grad()
    def total(n: int) -> int:
        return counted(lambda: block(torch.zeros(1, n, width, dtype=torch.float64)))

    n = 32
    per_token = (4 * total(n) - total(2 * n)) / (2 * n)
    x = torch.zeros(n, width, dtype=torch.float64)
    return per_token, counted(lambda: attention(x, x, x, engine="reference")) / n**2


def _training(width: int) -> tuple[float, int]:
    """FLOPs a token of the matrices, forward and backward, and how many entries they have."""
    block = _block(width, False)

    def total(n: int) -> int:
        x = torch.randn(1, n, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return counted(lambda: block(x.requires_grad_(True)).sum().backward())

    n = 32
    entries = sum(parameter.numel() for parameter in block.parameters() if parameter.dim() == 2)
    return (4 * total(n) - total(2 * n)) / (2 * n), entries


# ---- steps and paths ----------------------------------------------------------------------------------------
def _depth(n: int, cell: bool) -> int:
    """How many operations follow one another at most, in the graph that torch keeps for gradients."""
    x = torch.zeros(n, 4, dtype=torch.float64, requires_grad=True)
    if cell:
        state, gru = torch.zeros(1, 4, dtype=torch.float64), torch.nn.GRUCell(4, 4).double()
        for row in x.split(1):
            state = gru(row, state)
        return _longest(state)
    return _longest(attention(x, x, x))


def _longest(output: Tensor) -> int:
    """The longest way through the graph, each node after all that come before it."""
    order, seen, waiting = [], set(), [(output.grad_fn, False)]
    while waiting:
        node, done = waiting.pop()
        if node is None or (node in seen and not done):
            continue
        if done:
            order.append(node)
            continue
        seen.add(node)
        waiting.append((node, True))
        waiting.extend((before, False) for before, _ in node.next_functions)
    depth: dict[Any, int] = {}
    for node in order:
        depth[node] = 1 + max((depth.get(before, 0) for before, _ in node.next_functions), default=0)
    return depth[output.grad_fn]


def _layers_to_reach(tokens: int, window: int) -> list[int]:
    """How many layers it takes until the last output depends on the first token: of attention, of windows, dilated."""

    def dilated(layer: int) -> Any:
        step = window**layer
        return mask.causal() & (lambda b, h, i, j: ((i - j) % step == 0) & (i - j < window * step))

    return [
        _reach(tokens, lambda layer: mask.causal()),
        _reach(tokens, lambda layer: mask.causal() & mask.window(window)),
        _reach(tokens, dilated),
    ]


def _reach(tokens: int, layer_mask: Callable[[int], Any]) -> int:
    """What only the first token has is passed on, with equal weights on all that is seen; the rest is exactly 0."""
    look = torch.zeros(tokens, 1, dtype=torch.float64)
    told, layers = look.clone(), 0
    told[0] = 1
    while not float(told[-1]):
        told = attention(look, look, told, mask=layer_mask(layers))
        layers += 1
    return layers


# ---- times, which are shown and not claimed -----------------------------------------------------------------
def _times() -> dict[str, list[float]]:
    kinds: dict[str, Callable[[Tensor], Any]] = {
        "softmax": lambda x: attention(x, x, x),
        "causal window of 256": lambda x: attention(x, x, x, mask=mask.causal() & mask.window(256)),
        "linear attention": lambda x: linear_attention(x, x, x, causal=True),
    }
    return {name: [_time(call, n) for n in TIMED] for name, call in kinds.items()}


@torch.no_grad()
def _time(call: Callable[[Tensor], Any], n: int) -> float:
    x = torch.randn(1, 1, n, 64, generator=torch.Generator().manual_seed(0))
    call(x)
    taken = []
    for _ in range(5):
        begin = time.perf_counter()
        call(x)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


# ---- what is claimed ----------------------------------------------------------------------------------------
def _of_crossings(parts: dict[bool, tuple[float, float]], width: int) -> tuple[Claim, ...]:
    where = [crossing(layer(1024, width, gated=gated), 1024) / width for gated in (False, True)]
    causal = []
    for gated, times in ((False, 12), (True, 16)):
        n = times * width - 1
        per_token, per_pair = parts[gated]
        causal.append(per_pair * _pairs_seen(n) / (per_token * n))
    return (
        Claim(
            "attention overtakes the rest of a block at n = 6D, and at 8D if it is gated: by the counter",
            torch.tensor([6.0, 8.0]),
            [per_token / per_pair / width for per_token, per_pair in (parts[False], parts[True])],
            within=0.0,
            because=EXACT,
        ),
        Claim(
            "the same by regard.cost",
            torch.tensor([6.0, 8.0]),
            [float(share) for share in where],
            within=0.0,
            because=EXACT,
        ),
        Claim(
            "causal: attention costs as much as the rest at n = 12D - 1, and at 16D - 1 if gated",
            torch.ones(2),
            causal,
            within=1e-15,
            because="a quotient of whole numbers",
        ),
    )


def _pairs_seen(n: int) -> int:
    x = torch.zeros(n, 1)
    weights: Tensor = attend(x, x, x, mask=mask.causal()).weights.dense()
    return int((weights > 0).sum())


def _of_training(trained: float, entries: int, width: int) -> tuple[Claim, Claim]:
    model = 12 * layer(1024, 768, heads=12) + vocabulary(1024, 768, entries=50257)
    one = 12 * layer(1, 768, heads=12) + vocabulary(1, 768, entries=50257)
    rule = six_n_d(one.rest // 2, 1024, layers=12, width=768, keys_seen=1024)
    return (
        Claim(
            "training: 6 FLOPs a token for each entry of a matrix, by the counter",
            6.0,
            trained / entries,
            within=0.0,
            because=EXACT,
        ),
        Claim(
            "GPT-2 small on 1024 tokens: 6ND and 12 L n² D of attention are all products of its training",
            1.0,
            rule / training(model).total,
            within=0.0,
            because=EXACT,
        ),
    )


def _of_memory() -> tuple[Claim, ...]:
    x = torch.zeros(512, 64)
    one: Tensor = attend(x, x, x).weights.dense()
    return (
        Claim(
            "the weights of 12 layers of 12 heads over 512 tokens are 150,994,944 bytes, 144 MiB",
            150_994_944.0,
            144.0 * one.nbytes,
            within=0.0,
            because=EXACT,
        ),
    )


def _of_steps(depths: list[int], layers: list[int], tokens: int, window: int) -> tuple[Claim, ...]:
    few, more, most = depths[3:]
    dilated = next(count for count in range(1, 99) if window**count >= tokens)
    return (
        Claim(
            "attention: as many operations follow one another at 8, 16 and 32 tokens",
            [depths[0]] * 3,
            depths[:3],
            within=0.0,
            because=EXACT,
        ),
        Claim(
            "a recurrent cell: with each token as many more, so that 16 more tokens take twice what 8 more take",
            2 * (more - few),
            most - more,
            within=0.0,
            because=EXACT,
        ),
        Claim(
            "layers until the last token has heard of the first: full, windows, dilated windows",
            [1, -(-(tokens - 1) // (window - 1)), dilated],
            layers,
            within=0.0,
            because="what is hidden has a weight of exactly 0",
        ),
    )


def _wrong(parts: dict[bool, tuple[float, float]], trained: float, entries: int, width: int) -> tuple[Claim, ...]:
    queries_keys_values = projections(width, width, width, output=False).total
    n = 8 * width
    return (
        Claim(
            "attention costs more than the projections of q, k and v as soon as n > d",
            1.0,
            queries_keys_values / attention_cost(width, width, width).total,
            within=0.1,
            because="a tenth; the crossing is at 1.5 d",
        ),
        Claim(
            "attention dominates beyond T = 8D in every transformer",
            8.0,
            parts[False][0] / parts[False][1] / width,
            within=0.1,
            because="a tenth; counts are exact",
        ),
        Claim(
            "6ND is the cost of training, also at n = 8D",
            1.0,
            (trained * n + 3 * parts[False][1] * n**2) / (6 * entries * n),
            within=0.1,
            because="a tenth; counts are exact",
        ),
        Claim(
            "the 144 MB of those weights are 144 million bytes",
            144e6,
            float(stored_weights(512, 512, heads=12, layers=12)),
            within=1e6,
            because="a million bytes",
        ),
    )


def _panels(all_grown: list[Grown], times: dict[str, list[float]], width: int) -> tuple[Panel, ...]:
    order = sorted(all_grown, key=lambda each: (each.said, each.found))
    places = torch.arange(1, len(order) + 1)
    lengths = torch.tensor([2.0**power * width for power in range(-2, 6)])
    ratios = [[float(_ratio(int(n), width, gated, causal)) for n in lengths] for gated, causal in KINDS]
    names = ["plain", "gated", "plain, causal", "gated, causal"]
    return (
        Panel(
            "Work of all mechanisms",
            "mechanism, by its formula's power",
            "power of n",
            [
                Series("counted", places, [each.found for each in order], "points"),
                Series("its formula", places, [each.said for each in order]),
            ],
        ),
        Panel(
            "Where attention overtakes the rest of a block",
            "n / D",
            "attention / rest",
            [
                *(Series(name, lengths / width, ratio) for name, ratio in zip(names, ratios, strict=True)),
                Series("as much", lengths / width, torch.ones(len(lengths)), "dashed"),
            ],
            log_x=True,
            log_y=True,
        ),
        Panel(
            "Time on this machine, not claimed",
            "n",
            "seconds, median of five",
            [Series(name, TIMED, taken, "points") for name, taken in times.items()],
            log_x=True,
            log_y=True,
        ),
    )


KINDS = ((False, False), (True, False), (False, True), (True, True))


def _ratio(n: int, width: int, gated: bool, causal: bool) -> float:
    whole = layer(n, width, gated=gated, pairs=n * (n + 1) // 2 if causal else None)
    return whole.attention / whole.rest
