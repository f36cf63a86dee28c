"""Questions about costs: curves against the length, where one overtakes another, and time measured on this machine."""

import time
from collections.abc import Callable
from fractions import Fraction
from statistics import median
from typing import Any

import torch

from regard import cost as price
from regard.errors import SpecError
from regard.explorer.asked import Asked
from regard.explorer.explorer import Explorer
from regard.explorer.packing import Answer
from regard.explorer.prices import EVERY, Priced, named

LENGTHS = [2**power for power in range(6, 21)]
LONGEST = 2**24
FIRST = ["all weights kept", "softmax", "causal", f"{EVERY[3].name}", "linear"]
FLOPS = 4e12  # the most that is timed at once
MANY = 1000  # times that are kept
PATIENCE = 2.0  # seconds in which a call is repeated
SIZES: tuple[dict[str, Any], ...] = (  # of models: what a file can show, and a page begins with
    {"title": "BERT base, GPT-2", "width": 768, "heads": 12, "layers": 12, "feed_forward": 3072, "gated": False},
    {"title": "GPT-2 XL", "width": 1600, "heads": 25, "layers": 48, "feed_forward": 6400, "gated": False},
    {"title": "Llama 2, 7 B", "width": 4096, "heads": 32, "layers": 32, "feed_forward": 11008, "gated": True},
    {"title": "Llama 2, 70 B", "width": 8192, "heads": 64, "layers": 80, "feed_forward": 28672, "gated": True},
)


def cost_names(explorer: Explorer, asked: Asked) -> Answer:
    """The mechanisms that have a price, sizes of models, and the times that were measured so far."""
    each = [{"name": m.name, "what": m.what, "formula": m.formula, "longest": m.longest} for m in EVERY]
    return Answer({"mechanisms": each, "first": FIRST, "sizes": list(SIZES), "timed": explorer.timed})


def cost(explorer: Explorer, asked: Asked) -> Answer:
    """FLOPs and bytes of mechanisms against the length, beside the rest of a layer, and where curves cross."""
    chosen = [named(name) for name in _names(asked)]
    width, heads = asked.whole("width", 1, 2**16, 768), asked.whole("heads", 1, 1024, 12)
    layers = asked.whole("layers", 1, 1000, 1)
    if width % heads:
        raise SpecError(f"width must be a multiple of heads; got width={width}, heads={heads}. Change either.")
    hidden, gated = asked.whole("feed_forward", 0, 2**20, 4 * width), asked.truth("gated", False)
    lengths = asked.wholes("lengths", 1, LONGEST, LENGTHS)

    def rest(n: int) -> int:
        return price.layer(n, width, heads=heads, feed_forward=hidden, gated=gated).rest

    each = width // heads
    curves = [
        {
            "name": m.name,
            "what": m.what,
            "formula": m.formula,
            "flops": [layers * m.flops(n, each, heads) for n in lengths],
            "bytes": [layers * 4 * m.numbers(n, each, heads) for n in lengths],
        }
        for m in chosen
    ]
    other = {"name": "the rest of the layer", "flops": [layers * rest(n) for n in lengths]}
    other["what"] = "projections and the feed-forward part, 2 FLOPs a token for each entry of a matrix"
    found = [*_with_rest(chosen, each, heads, width, hidden, gated), *_with_each_other(chosen, each, heads)]
    return Answer({"lengths": lengths, "curves": curves, "rest": other, "crossings": found})


def _names(asked: Asked) -> list[str]:
    given = asked.any("mechanisms")
    if given is None:
        return FIRST
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given) or len(given) > len(EVERY):
        raise SpecError(f"mechanisms must be a list of at most {len(EVERY)} names; got {str(given)[:60]}.")
    return list(dict.fromkeys(given))


def _with_rest(
    chosen: list[Priced], each: int, heads: int, width: int, hidden: int, gated: bool
) -> list[dict[str, Any]]:
    """Where attention costs as much as the rest of the layer: T = 6 D for a plain layer with F = 4 D."""
    found = []
    for m in chosen:
        if m.name not in ("all weights kept", "softmax", "causal"):
            continue
        pairs = Fraction(1, 2) if m.name == "causal" else Fraction(1)  # in the limit
        rest = price.layer(1, width, heads=heads, feed_forward=hidden, gated=gated).rest
        length = Fraction(rest) / (pairs * 4 * each * heads)
        times = f"{float(length / width):.4g} D"
        text = f"{m.name}: attention costs as much as the rest of the layer at n = {float(length):,.0f} = {times}"
        found.append({"one": m.name, "other": "the rest of the layer", "length": float(length), "text": text})
    return found


def _with_each_other(chosen: list[Priced], each: int, heads: int) -> list[dict[str, Any]]:
    found = []
    for place, one in enumerate(chosen):
        for other in chosen[place + 1 :]:
            length = crossing(one, other, each, heads)
            if length is not None:
                dear, cheap = (
                    (one, other)
                    if one.flops(LONGEST, each, heads) > other.flops(LONGEST, each, heads)
                    else (other, one)
                )
                text = f"{cheap.name} takes fewer FLOPs than {dear.name} from n = {length:,} on"
                found.append({"one": one.name, "other": other.name, "length": float(length), "text": text})
    return found


def crossing(one: Priced, other: Priced, each: int, heads: int) -> int | None:
    """The shortest length from which on the one that is cheaper in the end is cheaper; None if it is from the start."""

    def later(n: int) -> bool:
        a, b = one.flops(n, each, heads), other.flops(n, each, heads)
        return (a > b) == (one.flops(LONGEST, each, heads) > other.flops(LONGEST, each, heads)) and a != b

    if one.flops(LONGEST, each, heads) == other.flops(LONGEST, each, heads) or later(2):
        return None
    low, high = 2, LONGEST  # not yet, and already
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if later(middle) else (middle, high)
    return high


def timing(explorer: Explorer, asked: Asked) -> Answer:
    """The seconds that a mechanism takes on this machine, now: the median of some calls."""
    chosen = named(asked.text("mechanism", 80))
    n = asked.whole("n", 1, chosen.longest)
    heads, width = asked.whole("heads", 1, 64, 1), asked.whole("width", 1, 512, 64)
    if chosen.flops(n, width, heads) > FLOPS:
        raise SpecError(
            f"a call that is timed must take at most {FLOPS:.0e} FLOPs; got {chosen.flops(n, width, heads):.1e} for "
            f"{chosen.name} of {n} tokens. Take fewer tokens or heads."
        )
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, n, width, generator=draw) for _ in range(3))
    explorer.tell(asked)(f"{chosen.name} over {n} tokens", None)
    with explorer.running, torch.no_grad():
        seconds = _timed(lambda: chosen.call(q, k, v))
    found = {"mechanism": chosen.name, "n": n, "heads": heads, "width": width}
    found |= {"seconds": median(seconds), "runs": len(seconds)}
    explorer.timed = [*(each for each in explorer.timed if not _is_same(each, found)), found][-MANY:]
    return Answer(found)


def _is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether both are times of the same."""
    return all(one[key] == other[key] for key in ("mechanism", "n", "heads", "width"))


def _timed(call: Callable[[], Any]) -> list[float]:
    began = time.perf_counter()
    call()
    first = time.perf_counter() - began
    if first > PATIENCE:
        return [first]
    found: list[float] = []
    while len(found) < 3 or (len(found) < 9 and sum(found) < PATIENCE / 2):
        before = time.perf_counter()
        call()
        found.append(time.perf_counter() - before)
    return found
