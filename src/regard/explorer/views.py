"""Questions about the weights of heads: maps, rows, columns and lines."""

import numpy as np
import torch

from regard.errors import SpecError
from regard.explorer.asked import Asked
from regard.explorer.explorer import Explorer
from regard.explorer.maps import TILE
from regard.explorer.packing import Answer, numbers
from regard.explorer.shown import Shown

LINES = 65_536  # of one answer
SEEN_BY = 8  # queries that must see a key for it to be called a sink


def levels(explorer: Explorer, asked: Asked) -> Answer:
    """The scales of a head's map, and its largest numbers."""
    shown, layer, head, hidden = _about(explorer, asked)
    explorer.tell(asked)("the map is made", None)
    whole = shown.map(layer, head, hidden)
    n_q, n_k = whole.head.shape
    means = {level: float(cells.mean.max()) for level, cells in whole.coarse.items()}
    values = {"levels": whole.levels, "tile": TILE, "queries": n_q, "keys": n_k, "base": whole.base}
    largest = float(whole.coarse[whole.base].max.max())
    return Answer({**values, "largest": largest, "largest_mean": means, "sink": _sink(shown, layer, head)})


def _sink(shown: Shown, layer: int, head: int) -> dict[str, float] | None:
    """The key that gets most of all weight, as far as a few rows tell: those of the last queries."""
    own = shown.head(layer, head)
    n_q = own.shape[0]
    if n_q < SEEN_BY:
        return None
    rows = torch.linspace(n_q // 2, n_q - 1, min(64, n_q - n_q // 2)).long()
    share = own.weights(rows, slice(None)).mean(0)
    return {"key": int(share.argmax()), "share": float(share.max())}


def tile(explorer: Explorer, asked: Asked) -> Answer:
    """One tile of a head's map; level 0 are single weights."""
    shown, layer, head, hidden = _about(explorer, asked)
    level, row, column = (asked.whole(name, 0, 10**9) for name in ("level", "row", "column"))
    cells = shown.map(layer, head, hidden).tile(level, row, column)
    return Answer({}, {"mean": numbers(cells.mean), "max": numbers(cells.max)})


def row(explorer: Explorer, asked: Asked) -> Answer:
    """Where queries look: weights on every key, mean and sum over the queries."""
    shown, layer, heads, hidden = _heads(explorer, asked)
    n_q = shown.layer(layer).take.q.shape[2]
    queries = asked.wholes("queries", 0, n_q - 1)
    found = torch.stack([_sum(shown, layer, head, hidden, queries) for head in heads])
    return Answer({"heads": heads}, {"sum": numbers(found), "mean": numbers(found / len(queries))})


def _sum(shown: Shown, layer: int, head: int, hidden: list[int], queries: list[int]) -> torch.Tensor:
    own = shown.head(layer, head, hidden)
    step = max(1, 2**22 // own.shape[1])
    parts = [own.weights(queries[n : n + step], slice(None)).double().sum(0) for n in range(0, len(queries), step)]
    return torch.stack(parts).sum(0)


def column(explorer: Explorer, asked: Asked) -> Answer:
    """Who looks at keys: every query's weight on them, sum and mean over the keys."""
    shown, layer, heads, hidden = _heads(explorer, asked)
    n_k = shown.layer(layer).take.k.shape[2]
    keys = asked.wholes("keys", 0, n_k - 1)
    each = []
    for head in heads:
        own = shown.head(layer, head, hidden)
        step = max(1, 2**22 // len(keys))
        blocks = range(0, own.shape[0], step)
        each.append(torch.cat([own.weights(slice(n, n + step), keys).double().sum(1) for n in blocks]))
    found = torch.stack(each)
    return Answer({"heads": heads}, {"sum": numbers(found), "mean": numbers(found / len(keys))})


def lines(explorer: Explorer, asked: Asked) -> Answer:
    """Of each query in [from, to) its largest weights, until they have `mass` of the row together."""
    shown, layer, heads, hidden = _heads(explorer, asked)
    n_q, n_k = (x.shape[2] for x in (shown.layer(layer).take.q, shown.layer(layer).take.k))
    first = asked.whole("from", 0, n_q - 1, 0)
    last = asked.whole("to", first + 1, n_q, n_q)
    mass = asked.number("mass", 0.0, 1.0, 0.9)
    if (last - first) * len(heads) * n_k > 2**26:
        raise SpecError(
            f"lines over {n_k} keys and {len(heads)} heads must be asked for at most "
            f"{2**26 // (n_k * len(heads))} queries at a time; got {last - first}. Ask for fewer."
        )
    found: list[tuple[torch.Tensor, ...]] = []
    for head in heads:
        weights, order = shown.head(layer, head, hidden).weights(slice(first, last), slice(None)).sort(-1, True)
        before = weights.double().cumsum(-1) - weights
        wanted = (before < mass * weights.double().sum(-1, keepdim=True)) & (weights > 0)
        query, place = wanted.nonzero(as_tuple=True)
        found.append((query + first, order[query, place], torch.full_like(query, head), weights[query, place]))
    query, key, of_head, weight = (torch.cat(x) for x in zip(*found, strict=True))
    kept = weight.argsort(descending=True)[:LINES].sort().values
    whole = {name: x[kept].numpy().astype(np.int32) for name, x in (("query", query), ("key", key), ("head", of_head))}
    return Answer({"left_out": len(weight) - len(kept)}, {**whole, "weight": numbers(weight[kept])})


def _about(explorer: Explorer, asked: Asked) -> tuple[Shown, int, int, list[int]]:
    """What is shown, the layer and the head that a question is about, and the keys that are hidden."""
    shown = explorer.find(asked)
    layer, head = asked.whole("layer", 0, 10**6), asked.whole("head", 0, 10**6)
    return shown, layer, head, asked.wholes("hide", 0, 10**9, ())


def _heads(explorer: Explorer, asked: Asked) -> tuple[Shown, int, list[int], list[int]]:
    shown = explorer.find(asked)
    layer = asked.whole("layer", 0, 10**6)
    heads = asked.wholes("heads", 0, 10**6, shown.layer(layer).heads)
    return shown, layer, heads, asked.wholes("hide", 0, 10**9, ())
