"""Endpoints about cost: FLOPs and memory by sequence length, crossovers, and timings on this machine."""

import itertools
import time
from collections.abc import Callable
from fractions import Fraction
from statistics import median
from typing import Any

import torch

from regard import cost as cost_formulas
from regard.errors import ArgumentError
from regard.explorer.api.endpoint import endpoint, slow_endpoint
from regard.explorer.api.packing import Payload
from regard.explorer.api.params import Params
from regard.explorer.cost_models import COST_MODELS, CostModel, get_cost_model
from regard.explorer.explorer import Explorer

COST_SEQ_LENS = [2**power for power in range(6, 21)]
MAX_COST_LENGTH = 2**24
DEFAULT_MECHANISMS = ["dense softmax", "softmax", "causal", COST_MODELS[3].name, "linear"]
MAX_TIMED_FLOPS = 4e12
MAX_STORED_TIMINGS = 1000
MAX_REPEAT_S = 2.0  # a longer call is not repeated
COST_PAGE_MODEL_SIZES: tuple[dict[str, Any], ...] = (  # in the menu of the page, and in exported files
    {"title": "BERT base, GPT-2", "embed_dim": 768, "num_heads": 12, "num_layers": 12, "ffn_dim": 3072, "gated": False},
    {"title": "GPT-2 XL", "embed_dim": 1600, "num_heads": 25, "num_layers": 48, "ffn_dim": 6400, "gated": False},
    {"title": "Llama 2 7B", "embed_dim": 4096, "num_heads": 32, "num_layers": 32, "ffn_dim": 11008, "gated": True},
    {"title": "Llama 2 13B", "embed_dim": 5120, "num_heads": 40, "num_layers": 40, "ffn_dim": 13824, "gated": True},
)


@endpoint
def cost_options(explorer: Explorer, params: Params) -> Payload:
    """Return the mechanisms with a cost model, the model sizes to choose from, and the timings so far."""
    mechanisms = [
        {
            "name": m.name,
            "description": m.description,
            "formula": m.formula,
            "max_timed_length": m.max_timed_length,
        }
        for m in COST_MODELS
    ]
    return Payload(
        {
            "mechanisms": mechanisms,
            "default_mechanisms": DEFAULT_MECHANISMS,
            "model_sizes": list(COST_PAGE_MODEL_SIZES),
            "timings": explorer.timings,
        }
    )


@endpoint
def cost(explorer: Explorer, params: Params) -> Payload:
    """Return FLOPs and bytes of mechanisms by sequence length, the rest of a layer, and the crossovers."""
    cost_models = [get_cost_model(name) for name in _mechanism_names(params)]
    embed_dim, num_heads = params.integer("embed_dim", 1, 2**16, 768), params.integer("num_heads", 1, 1024, 12)
    num_layers = params.integer("num_layers", 1, 1000, 1)
    if embed_dim % num_heads:
        raise ArgumentError(
            f"num_heads must divide embed_dim; got num_heads={num_heads} and embed_dim={embed_dim}. Change either."
        )
    ffn_dim, gated = params.integer("ffn_dim", 0, 2**20, 4 * embed_dim), params.boolean("gated", False)
    seq_lens = params.integers("seq_lens", 1, MAX_COST_LENGTH, COST_SEQ_LENS)

    def non_attention(n: int) -> int:
        return cost_formulas.layer(n, embed_dim, num_heads=num_heads, ffn_dim=ffn_dim, gated=gated).non_attention

    head_dim = embed_dim // num_heads
    curves = [
        {
            "name": m.name,
            "description": m.description,
            "formula": m.formula,
            "flops": [num_layers * m.flops(n, head_dim, num_heads) for n in seq_lens],
            "bytes": [num_layers * 4 * m.num_floats(n, head_dim, num_heads) for n in seq_lens],
        }
        for m in cost_models
    ]
    other = {
        "name": "the rest of the layer",
        "flops": [num_layers * non_attention(n) for n in seq_lens],
        "description": "projections and the feed-forward network, 2 FLOPs per token and matrix entry",
    }
    crossovers = [
        *_attention_vs_rest_crossovers(cost_models, head_dim, num_heads, embed_dim, ffn_dim, gated),
        *_pairwise_crossovers(cost_models, head_dim, num_heads),
    ]
    return Payload({"seq_lens": seq_lens, "curves": curves, "non_attention": other, "crossovers": crossovers})


def _mechanism_names(params: Params) -> list[str]:
    names = params.raw("mechanisms")
    if names is None:
        return DEFAULT_MECHANISMS
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(names) > len(COST_MODELS):
        raise ArgumentError(f"mechanisms must be a list of at most {len(COST_MODELS)} names; got {str(names)[:60]}.")
    return list(dict.fromkeys(names))


def _attention_vs_rest_crossovers(
    cost_models: list[CostModel], head_dim: int, num_heads: int, embed_dim: int, ffn_dim: int, gated: bool
) -> list[dict[str, Any]]:
    """Return the lengths at which attention costs as much as the rest of the layer: 6 D if ffn_dim is 4 D."""
    crossovers = []
    for m in cost_models:
        if m.name not in ("dense softmax", "softmax", "causal"):
            continue
        # a causal mask hides half of the pairs of a long text
        pair_fraction = Fraction(1, 2) if m.name == "causal" else Fraction(1)
        layer = cost_formulas.layer(1, embed_dim, num_heads=num_heads, ffn_dim=ffn_dim, gated=gated)
        length = Fraction(layer.non_attention) / (pair_fraction * 4 * head_dim * num_heads)
        multiple = f"{float(length / embed_dim):.4g} D"
        text = f"{m.name}: attention costs as much as the rest of the layer at n = {float(length):,.0f} = {multiple}"
        second = "the rest of the layer"
        crossovers.append({"first": m.name, "second": second, "seq_len": float(length), "text": text})
    return crossovers


def _pairwise_crossovers(cost_models: list[CostModel], head_dim: int, num_heads: int) -> list[dict[str, Any]]:
    crossovers = []
    for one, other in itertools.combinations(cost_models, 2):
        length = mechanism_crossover(one, other, head_dim, num_heads)
        if length is None:
            continue
        one_flops, other_flops = (m.flops(MAX_COST_LENGTH, head_dim, num_heads) for m in (one, other))
        cheaper, costlier = (other, one) if one_flops > other_flops else (one, other)
        text = f"{cheaper.name} takes fewer FLOPs than {costlier.name} for n ≥ {length:,}"
        crossovers.append({"first": one.name, "second": other.name, "seq_len": float(length), "text": text})
    return crossovers


def mechanism_crossover(one: CostModel, other: CostModel, head_dim: int, num_heads: int) -> int | None:
    """Return the shortest length at which the mechanism that is cheaper for long texts is cheaper; None if always."""

    def order(n: int) -> int:
        a, b = one.flops(n, head_dim, num_heads), other.flops(n, head_dim, num_heads)
        return (a > b) - (a < b)

    final_order = order(MAX_COST_LENGTH)
    if final_order == 0 or order(2) == final_order:
        return None
    low, high = 2, MAX_COST_LENGTH  # before and after the crossover
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if order(middle) == final_order else (middle, high)
    return high


@slow_endpoint
def timing(explorer: Explorer, params: Params) -> Payload:
    """Time a mechanism on this machine and return the median seconds of several calls."""
    cost_model = get_cost_model(params.text("mechanism", 80))
    seq_len = params.integer("seq_len", 1, cost_model.max_timed_length)
    num_heads, head_dim = params.integer("num_heads", 1, 64, 1), params.integer("head_dim", 1, 512, 64)
    flops = cost_model.flops(seq_len, head_dim, num_heads)
    if flops > MAX_TIMED_FLOPS:
        raise ArgumentError(
            f"a timed call must take at most {MAX_TIMED_FLOPS:.0e} FLOPs; got {flops:.1e} for {cost_model.name} with "
            f"{seq_len} tokens. Use fewer tokens or heads."
        )
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, num_heads, seq_len, head_dim, generator=generator) for _ in range(3))
    explorer.progress_callback(params)(f"{cost_model.name} over {seq_len} tokens", None)
    with explorer.model_lock, torch.no_grad():
        seconds = _measure_seconds(lambda: cost_model.call(q, k, v))
    entry = {"mechanism": cost_model.name, "seq_len": seq_len, "num_heads": num_heads, "head_dim": head_dim}
    entry |= {"seconds": median(seconds), "num_runs": len(seconds)}
    others = [timed for timed in explorer.timings if not _is_same_configuration(timed, entry)]
    explorer.timings = [*others, entry][-MAX_STORED_TIMINGS:]
    return Payload(entry)


def _is_same_configuration(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether both timings are of the same mechanism and sizes."""
    return all(one[key] == other[key] for key in ("mechanism", "seq_len", "num_heads", "head_dim"))


def _measure_seconds(call: Callable[[], Any]) -> list[float]:
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    if first > MAX_REPEAT_S:
        return [first]
    seconds: list[float] = []
    while len(seconds) < 3 or (len(seconds) < 9 and sum(seconds) < MAX_REPEAT_S / 2):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds
