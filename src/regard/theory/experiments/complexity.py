"""The cost of attention: counted FLOPs against formulas, sequential steps, and where attention dominates a block.

FLOPs are those of matrix products, 2 m k n for (m, k) times (k, n). For a block with embed_dim D over n tokens and a
feed-forward dimension of 4D,

    projections 8nD²    feed-forward 16nD²    attention 4n²D        attention equals the rest at n = 6D
    gated: 24nD²        at n = 8D             causal: 2n(n + 1)D    at n = 12D - 1, gated 16D - 1

Attention equals its projections alone at n = 2D, or 1.5D without the output projection. Training costs three times as
much: 6 FLOPs per weight and token, and 12 n² D for attention.

Sequential steps, and layers until the last output depends on the first token:

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

from regard import mask
from regard.attention import attention, attention_with_weights
from regard.cost import attention as attention_cost
from regard.cost import attention_weights_bytes, crossover_length, layer, lm_head, projections, six_n_d, training
from regard.mechanisms.linear import linear_attention
from regard.nn import Block, BlockConfig
from regard.plot.chart_panels import Panel, Series
from regard.theory.analysis.flop_scaling import FlopExponent, count_flops, flop_exponents
from regard.theory.experiment import ProgressCallback, check_settings
from regard.theory.experiment_result import Claim, ExperimentResult

TIMED_LENGTHS = (512, 1024, 2048, 4096)
EXACT_REASON = "counts are integers"


@check_settings
def complexity(
    *,
    embed_dim: int = 32,
    num_tokens: int = 64,
    window: int = 8,
    mechanism_stride: int = 1,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> ExperimentResult:
    """Count FLOPs, memory, sequential steps and path lengths, and compare them with formulas.

    `embed_dim` is the dimension of the block whose FLOPs are counted. `num_tokens` and `window` are those of the path
    lengths. Every `mechanism_stride`-th mechanism is counted. Times are measured for the chart only.

    `seed` (default 0) seeds the random numbers. `progress`, if given, is called with the completed fraction of the
    work.

    >>> complexity(embed_dim=16, num_tokens=16, mechanism_stride=8).is_consistent
    True
    """
    report = progress or (lambda fraction: None)
    exponents = flop_exponents(mechanism_stride, lambda fraction: report(0.7 * fraction))
    block_flops = {gated: _block_flops(embed_dim, gated) for gated in (False, True)}
    flops_per_token, num_weights = _training_flops(embed_dim)
    report(0.8)
    depths = [_graph_depth(n, cell) for cell in (False, True) for n in (8, 16, 32)]
    layers = _depths_to_reach_the_first_token(num_tokens, window)
    times = _measure_times()
    report(1.0)
    data = {
        "counted_exponents": torch.tensor([e.counted_exponent for e in exponents], dtype=torch.float64),
        "formula_exponents": torch.tensor([e.formula_exponent for e in exponents], dtype=torch.float64),
        "layers_to_reach": torch.tensor(layers),
        "graph_depth": torch.tensor(depths),
    }
    return ExperimentResult(
        name="complexity",
        claims=(
            Claim(
                f"{len(exponents)} mechanisms: counted FLOPs grow with the exponent of n in the formula",
                data["formula_exponents"],
                data["counted_exponents"],
                tolerance=0.1,
                tolerance_reason="formulas omit factors and lower orders; different exponents differ by at least 0.5",
            ),
            *_crossing_claims(block_flops, embed_dim),
            *_training_claims(flops_per_token, num_weights, embed_dim),
            *_memory_claims(),
            *_step_claims(depths, layers, num_tokens, window),
        ),
        false_claims=_false_claims(block_flops, flops_per_token, num_weights, embed_dim),
        panels=_panels(exponents, times, embed_dim),
        settings={
            "embed_dim": embed_dim,
            "num_tokens": num_tokens,
            "window": window,
            "mechanism_stride": mechanism_stride,
            "seed": seed,
        },
        data=data,
    )


# ---- FLOPs of a block ---------------------------------------------------------------------------------------
def _block(embed_dim: int, gated: bool) -> Block:
    activation = "swiglu" if gated else "gelu"
    return Block(
        BlockConfig(embed_dim=embed_dim, num_heads=1, ffn_dim=4 * embed_dim, activation=activation, bias=False)
    ).double()


def _block_flops(embed_dim: int, gated: bool) -> tuple[float, float]:
    """Return the FLOPs per token of a block's matrices, and the FLOPs per pair of its attention.

    The linear term is extracted from runs at two lengths. The quadratic term is counted with the reference backend,
    because torch's counter misses products that write into an existing tensor.
    """
    block = _block(embed_dim, gated)

    @torch.no_grad()
    def total(n: int) -> int:
        return count_flops(lambda: block(torch.zeros(1, n, embed_dim, dtype=torch.float64)))

    n = 32
    per_token = (4 * total(n) - total(2 * n)) / (2 * n)
    x = torch.zeros(n, embed_dim, dtype=torch.float64)
    return per_token, count_flops(lambda: attention(x, x, x, backend="reference")) / n**2


def _training_flops(embed_dim: int) -> tuple[float, int]:
    """Return the FLOPs per token of the matrices, forward and backward, and the number of their weights."""
    block = _block(embed_dim, False)

    def total(n: int) -> int:
        x = torch.randn(1, n, embed_dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return count_flops(lambda: block(x.requires_grad_(True)).sum().backward())

    n = 32
    num_weights = sum(parameter.numel() for parameter in block.parameters() if parameter.dim() == 2)
    return (4 * total(n) - total(2 * n)) / (2 * n), num_weights


# ---- steps and paths ----------------------------------------------------------------------------------------
def _graph_depth(n: int, is_recurrent: bool) -> int:
    """Return the number of operations on the longest path of the autograd graph."""
    x = torch.zeros(n, 4, dtype=torch.float64, requires_grad=True)
    if is_recurrent:
        state, gru = torch.zeros(1, 4, dtype=torch.float64), torch.nn.GRUCell(4, 4).double()
        for row in x.split(1):
            state = gru(row, state)
        return _longest_path(state)
    return _longest_path(attention(x, x, x))


def _longest_path(output: Tensor) -> int:
    """Return the length of the longest path from the output to an input, by a topological sort."""
    order, visited, stack = [], set(), [(output.grad_fn, False)]
    while stack:
        node, is_finished = stack.pop()
        if node is None or (node in visited and not is_finished):
            continue
        if is_finished:
            order.append(node)
            continue
        visited.add(node)
        stack.append((node, True))
        stack.extend((parent, False) for parent, _ in node.next_functions)
    depth: dict[Any, int] = {}
    for node in order:
        depth[node] = 1 + max((depth.get(parent, 0) for parent, _ in node.next_functions), default=0)
    return depth[output.grad_fn]


def _depths_to_reach_the_first_token(num_tokens: int, window: int) -> list[int]:
    """Return the layers until the last output depends on the first token: full, windowed and dilated attention."""

    def dilated(layer: int) -> Any:
        step = window**layer
        return mask.causal() & (lambda b, h, i, j: ((i - j) % step == 0) & (i - j < window * step))

    return [
        _count_layers_to_reach_the_first_token(num_tokens, lambda layer: mask.causal()),
        _count_layers_to_reach_the_first_token(num_tokens, lambda layer: mask.causal() & mask.sliding_window(window)),
        _count_layers_to_reach_the_first_token(num_tokens, dilated),
    ]


def _count_layers_to_reach_the_first_token(num_tokens: int, layer_mask: Callable[[int], Any]) -> int:
    """Propagate a value of the first token with uniform weights until the last token is not exactly 0."""
    zeros = torch.zeros(num_tokens, 1, dtype=torch.float64)
    signal, layers = zeros.clone(), 0
    signal[0] = 1
    while not float(signal[-1]):
        signal = attention(zeros, zeros, signal, mask=layer_mask(layers))
        layers += 1
    return layers


# ---- times, for the chart only ------------------------------------------------------------------------------
def _measure_times() -> dict[str, list[float]]:
    kinds: dict[str, Callable[[Tensor], Any]] = {
        "softmax": lambda x: attention(x, x, x),
        "causal window of 256": lambda x: attention(x, x, x, mask=mask.causal() & mask.sliding_window(256)),
        "linear attention": lambda x: linear_attention(x, x, x, causal=True),
    }
    return {name: [_median_seconds(call, n) for n in TIMED_LENGTHS] for name, call in kinds.items()}


@torch.no_grad()
def _median_seconds(call: Callable[[Tensor], Any], n: int) -> float:
    x = torch.randn(1, 1, n, 64, generator=torch.Generator().manual_seed(0))
    call(x)
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        call(x)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


# ---- claims and charts --------------------------------------------------------------------------------------
def _crossing_claims(block_flops: dict[bool, tuple[float, float]], embed_dim: int) -> tuple[Claim, ...]:
    crossovers = [crossover_length(layer(1024, embed_dim, gated=gated), 1024) / embed_dim for gated in (False, True)]
    causal_ratios = []
    for gated, factor in ((False, 12), (True, 16)):
        n = factor * embed_dim - 1
        per_token, per_pair = block_flops[gated]
        causal_ratios.append(per_pair * _num_causal_pairs(n) / (per_token * n))
    return (
        Claim(
            "counted: attention costs as much as the rest of a block at n = 6D, and at 8D if gated",
            torch.tensor([6.0, 8.0]),
            [per_token / per_pair / embed_dim for per_token, per_pair in (block_flops[False], block_flops[True])],
            tolerance=0.0,
            tolerance_reason=EXACT_REASON,
        ),
        Claim(
            "the same by regard.cost",
            torch.tensor([6.0, 8.0]),
            [float(ratio) for ratio in crossovers],
            tolerance=0.0,
            tolerance_reason=EXACT_REASON,
        ),
        Claim(
            "causal: attention costs as much as the rest at n = 12D - 1, and at 16D - 1 if gated",
            torch.ones(2),
            causal_ratios,
            tolerance=1e-15,
            tolerance_reason="a quotient of integers",
        ),
    )


def _num_causal_pairs(n: int) -> int:
    x = torch.zeros(n, 1)
    weights: Tensor = attention_with_weights(x, x, x, mask=mask.causal()).weights.to_dense()
    return int((weights > 0).sum())


def _training_claims(flops_per_token: float, num_weights: int, embed_dim: int) -> tuple[Claim, Claim]:
    model = 12 * layer(1024, 768, num_heads=12) + lm_head(1024, 768, vocab_size=50257)
    per_token = 12 * layer(1, 768, num_heads=12) + lm_head(1, 768, vocab_size=50257)
    rule = six_n_d(per_token.non_attention // 2, 1024, num_layers=12, embed_dim=768, keys_per_query=1024)
    return (
        Claim(
            "training: 6 FLOPs per weight and token, counted",
            6.0,
            flops_per_token / num_weights,
            tolerance=0.0,
            tolerance_reason=EXACT_REASON,
        ),
        Claim(
            "GPT-2 small on 1024 tokens: 6ND plus 12 L n² D for attention are all FLOPs of training",
            1.0,
            rule / training(model).total,
            tolerance=0.0,
            tolerance_reason=EXACT_REASON,
        ),
    )


def _memory_claims() -> tuple[Claim, ...]:
    x = torch.zeros(512, 64)
    weights: Tensor = attention_with_weights(x, x, x).weights.to_dense()
    return (
        Claim(
            "the weights of 12 layers of 12 heads over 512 tokens are 150,994,944 bytes, 144 MiB",
            150_994_944.0,
            144.0 * weights.nbytes,
            tolerance=0.0,
            tolerance_reason=EXACT_REASON,
        ),
    )


def _step_claims(depths: list[int], layers_to_reach: list[int], num_tokens: int, window: int) -> tuple[Claim, ...]:
    depth_8, depth_16, depth_32 = depths[3:]
    dilated = next(count for count in range(1, 99) if window**count >= num_tokens)
    return (
        Claim(
            "attention: the depth of the graph is the same at 8, 16 and 32 tokens",
            [depths[0]] * 3,
            depths[:3],
            tolerance=0.0,
            tolerance_reason=EXACT_REASON,
        ),
        Claim(
            "a recurrent cell: the depth of the graph grows linearly with the number of tokens",
            2 * (depth_16 - depth_8),
            depth_32 - depth_16,
            tolerance=0.0,
            tolerance_reason=EXACT_REASON,
        ),
        Claim(
            "layers until the last output depends on the first token: full, windowed, dilated attention",
            [1, -(-(num_tokens - 1) // (window - 1)), dilated],
            layers_to_reach,
            tolerance=0.0,
            tolerance_reason="hidden keys have a weight of exactly 0",
        ),
    )


def _false_claims(
    block_flops: dict[bool, tuple[float, float]], flops_per_token: float, num_weights: int, embed_dim: int
) -> tuple[Claim, ...]:
    queries_keys_values = projections(embed_dim, embed_dim, embed_dim, has_output_projection=False).total
    n = 8 * embed_dim
    return (
        Claim(
            "attention costs more than the projections of q, k and v as soon as n > d",
            1.0,
            queries_keys_values / attention_cost(embed_dim, embed_dim, embed_dim).total,
            tolerance=0.1,
            tolerance_reason="a tenth; the crossing is at 1.5 d",
        ),
        Claim(
            "attention dominates beyond T = 8D in every transformer",
            8.0,
            block_flops[False][0] / block_flops[False][1] / embed_dim,
            tolerance=0.1,
            tolerance_reason="a tenth; counts are exact",
        ),
        Claim(
            "6ND is the total cost of training, even at n = 8D",
            1.0,
            (flops_per_token * n + 3 * block_flops[False][1] * n**2) / (6 * num_weights * n),
            tolerance=0.1,
            tolerance_reason="a tenth; counts are exact",
        ),
        Claim(
            "the 144 MB of those weights are 144 million bytes",
            144e6,
            float(attention_weights_bytes(512, 512, num_heads=12, num_layers=12)),
            tolerance=1e6,
            tolerance_reason="a million bytes",
        ),
    )


def _panels(exponents: list[FlopExponent], times: dict[str, list[float]], embed_dim: int) -> tuple[Panel, ...]:
    order = sorted(exponents, key=lambda e: (e.formula_exponent, e.counted_exponent))
    ranks = torch.arange(1, len(order) + 1)
    lengths = torch.tensor([2.0**power * embed_dim for power in range(-2, 6)])
    ratios = [
        [float(_attention_ratio(int(n), embed_dim, gated, causal)) for n in lengths] for gated, causal in BLOCK_VARIANTS
    ]
    names = ["plain", "gated", "plain, causal", "gated, causal"]
    crossings = [float(lengths[-1] / embed_dim / ratio[-1]) for ratio in ratios]
    largest_error = max(abs(e.counted_exponent - e.formula_exponent) for e in exponents)
    speedup = times["softmax"][-1] / times["linear attention"][-1]
    return (
        Panel(
            f"Counted exponents of {len(order)} mechanisms are within {largest_error:.2f} of their formulas",
            "mechanism, in the order of its exponent",
            "exponent of n",
            [
                Series("counted", ranks, [e.counted_exponent for e in order], "points"),
                Series("formula", ranks, [e.formula_exponent for e in order]),
            ],
        ),
        Panel(
            f"Attention outweighs the rest of a block from {min(crossings):.0f}D to {max(crossings):.0f}D tokens on",
            "tokens n / dimension D",
            "FLOPs of attention / rest",
            [
                *(
                    Series(f"{name}: {crossing:.0f}D", lengths / embed_dim, ratio)
                    for name, crossing, ratio in zip(names, crossings, ratios, strict=True)
                ),
                Series("equal cost", lengths / embed_dim, torch.ones(len(lengths)), "dashed"),
            ],
            log_x=True,
            log_y=True,
        ),
        Panel(
            f"At {TIMED_LENGTHS[-1]:,} tokens, linear attention takes 1/{speedup:.0f} of the time of softmax",
            "tokens n",
            "time on this machine (s)",
            [Series(name, TIMED_LENGTHS, seconds) for name, seconds in times.items()],
            log_x=True,
            log_y=True,
        ),
    )


BLOCK_VARIANTS = ((False, False), (True, False), (False, True), (True, True))


def _attention_ratio(n: int, embed_dim: int, gated: bool, causal: bool) -> float:
    cost = layer(n, embed_dim, gated=gated, pairs=n * (n + 1) // 2 if causal else None)
    return cost.attention / cost.non_attention
