"""How long the explorer lets a person wait: opening a long text, tiles of its map at every scale, a very long tape.

python -m benchmarks.explorer [--tokens 16384] [--tape 100000] [--tiles 200]

What is measured, in one process, through the same function that the server calls, answers packed as it packs them:

    reading       the shipped language model reads a text of so many tokens and is recorded: its own forward
    opening       from there to the first map of one head: `state`, `levels`, and the tiles of the coarsest level
    tiles         levels and places drawn at random, half of them below the diagonal: median and worst
    rows          where one token looks, and who looks at it
    thumbnails    the small maps of all heads of a layer, from some rows of each cell
    heads         the table of all heads, which the overview fills in when it is there
    tape          one head over a very long random text: opening, and tiles

A tile that was asked for before comes from memory and is not counted. Seconds are printed as they are found, and
written to benchmarks/results/explorer.json.
"""

import argparse
import json
import random
import resource
import statistics
import time
from typing import Any

import torch

import regard
from benchmarks.run import RESULTS, machine
from regard.explorer.explorer import Explorer
from regard.explorer.maps import TILE
from regard.explorer.packing import Answer, packed, unpacked
from regard.explorer.questions import ask
from regard.explorer.recorded import of_tape
from regard.explorer.sources import of_name

LAYER, HEAD = 1, 5


def asked(explorer: Explorer, name: str, **params: Any) -> tuple[Answer, float]:
    """The answer as a page unpacks it, and the seconds until its bytes were there."""
    before = time.perf_counter()
    data = packed(ask(explorer, name, params))
    return unpacked(data), time.perf_counter() - before


def a_text(tokens: int) -> str:
    """About so many tokens of words in sentences, the same in every run."""
    words = "the whale boat captain saw white sea went down and ship a man old said to of with from deck night".split()
    draw = random.Random(0)
    sentences = []
    while sum(map(len, sentences)) < tokens * 6:
        sentence = [draw.choice(words) for _ in range(draw.randint(5, 14))]
        sentences.append(" " + " ".join(sentence).capitalize() + ".")
    return "".join(sentences)


def opened(explorer: Explorer, layer: int, head: int) -> tuple[float, Answer]:
    """Seconds until the whole map of a head is on the page, and the scales it has."""
    before = time.perf_counter()
    asked(explorer, "state")
    levels, _ = asked(explorer, "levels", shown=0, layer=layer, head=head)
    last = levels.values["levels"] - 1
    asked(explorer, "tile", shown=0, layer=layer, head=head, level=last, row=0, column=0)
    return time.perf_counter() - before, levels


def tiles(explorer: Explorer, layer: int, head: int, levels: Answer, count: int) -> list[float]:
    """Seconds of tiles at random levels and places."""
    draw = random.Random(1)
    found: list[float] = []
    seen = set()
    while len(found) < count:
        level = draw.randrange(levels.values["levels"])
        rows = -(-levels.values["queries"] // (TILE * 2**level))
        row = draw.randrange(rows)
        column = draw.randrange(row + 1) if draw.random() < 0.5 else draw.randrange(rows)
        if (level, row, column) in seen and len(seen) > 8 * levels.values["levels"]:
            continue
        seen.add((level, row, column))
        _, seconds = asked(explorer, "tile", shown=0, layer=layer, head=head, level=level, row=row, column=column)
        found.append(seconds)
    return found


def long_text(tokens: int, count: int) -> dict[str, Any]:
    model = of_name("language")
    text = a_text(tokens)
    ids = model.tokens.encode(text)[:tokens]  # type: ignore[attr-defined]  # the shipped model has them
    text = model.tokens.decode(ids)  # type: ignore[attr-defined]  # the same
    before = time.perf_counter()
    explorer = Explorer(model.shown(text))
    reading = time.perf_counter() - before
    opening, levels = opened(explorer, LAYER, HEAD)
    each = tiles(explorer, LAYER, HEAD, levels, count)
    about = {"shown": 0, "layer": LAYER, "heads": [HEAD]}
    found = {
        "tokens": levels.values["queries"],
        "reading": reading,
        "opening": opening,
        "tile, median": statistics.median(each),
        "tile, worst": max(each),
        "row": asked(explorer, "row", queries=[levels.values["queries"] - 1], **about)[1],
        "column": asked(explorer, "column", keys=[3], **about)[1],
        "thumbnails of a layer": asked(explorer, "thumbnails", shown=0, layer=2, size=64)[1],
        "heads": asked(explorer, "heads", shown=0)[1],
    }
    return {**found, "most memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def long_tape(tokens: int, count: int) -> dict[str, Any]:
    layer = torch.nn.MultiheadAttention(64, 1, batch_first=True).eval()
    x = torch.randn(1, tokens, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), regard.record(layer) as tape:
        causal = torch.nn.Transformer.generate_square_subsequent_mask(8)
        layer(x[:, :8], x[:, :8], x[:, :8], attn_mask=causal, is_causal=True, need_weights=False)
    take = tape.layers[0].takes[0]
    with torch.no_grad():  # the layer itself would take minutes at this length
        q, k, v = layer.in_proj_weight.chunk(3)
        take.q, take.k, take.v = ((x @ w.mT)[None] * 2 for w in (q, k, v))
    explorer = Explorer(of_tape(tape, title="a long tape"))
    opening, levels = opened(explorer, 0, 0)
    each = tiles(explorer, 0, 0, levels, count)
    found = {"tokens": tokens, "opening": opening, "tile, median": statistics.median(each), "tile, worst": max(each)}
    return {**found, "most memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--tape", type=int, default=100_000)
    parser.add_argument("--tiles", type=int, default=200)
    given = parser.parse_args()
    print("threads", torch.get_num_threads(), flush=True)
    figures: dict[str, Any] = {"machine": machine(), "threads": torch.get_num_threads()}
    for what, found in (
        ("text", lambda: long_text(given.tokens, given.tiles)),
        ("tape", lambda: long_tape(given.tape, given.tiles)),
    ):
        figures[what] = found()
        print(what, json.dumps(figures[what], indent=1), flush=True)
    (RESULTS / "explorer.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
