"""Response times of the explorer for a long text and for a very long recording.

    python -m benchmarks.studies.explorer [--tokens 16384] [--recording 100000] [--tiles 200]

All requests run in one process through the function that the server calls, with packed responses:

    reading       the forward pass of the bundled language model over the text, recorded
    opening       the requests for the first map of one head: `state`, `map_info`, and the tiles of the coarsest level
    tiles         tiles of random levels and positions, half of them below the diagonal: median and worst
    rows          the weights of one query, and of one key
    thumbnails    the small maps of all heads of a layer
    heads         the table of all heads
    recording     one head over a very long random sequence: opening, and tiles

Cached tiles are not counted. Prints the times in seconds and writes them to benchmarks/results/explorer.json.
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
from benchmarks.run import RESULTS, machine_info
from regard.explorer.api.packing import Payload, pack, unpack
from regard.explorer.api.registry import dispatch
from regard.explorer.explorer import Explorer
from regard.explorer.map_pyramid import TILE_SIZE
from regard.explorer.session_from_recording import session_from_recording
from regard.explorer.text_models.registry import load_text_model

LAYER, HEAD = 1, 5


def timed_request(explorer: Explorer, name: str, **params: Any) -> tuple[Payload, float]:
    """Return the unpacked response and the seconds until its bytes were complete."""
    start = time.perf_counter()
    data = pack(dispatch(explorer, name, params))
    return unpack(data), time.perf_counter() - start


def random_text(tokens: int) -> str:
    """Return a fixed text of sentences with about this many tokens."""
    words = "the whale boat captain saw white sea went down and ship a man old said to of with from deck night".split()
    rng = random.Random(0)
    sentences = []
    while sum(map(len, sentences)) < tokens * 6:
        sentence = [rng.choice(words) for _ in range(rng.randint(5, 14))]
        sentences.append(" " + " ".join(sentence).capitalize() + ".")
    return "".join(sentences)


def open_head(explorer: Explorer, layer: int, head: int) -> tuple[float, Payload]:
    """Return the seconds until the whole map of a head is available, and its levels."""
    start = time.perf_counter()
    timed_request(explorer, "state")
    levels, _ = timed_request(explorer, "map_info", session=0, layer=layer, head=head)
    last = levels.values["num_levels"] - 1
    timed_request(explorer, "tile", session=0, layer=layer, head=head, level=last, row=0, column=0)
    return time.perf_counter() - start, levels


def tile_times(explorer: Explorer, layer: int, head: int, levels: Payload, count: int) -> list[float]:
    """Return the seconds of tiles at random levels and positions."""
    rng = random.Random(1)
    times: list[float] = []
    requested = set()
    while len(times) < count:
        level = rng.randrange(levels.values["num_levels"])
        rows = -(-levels.values["num_queries"] // (TILE_SIZE * 2**level))
        row = rng.randrange(rows)
        column = rng.randrange(row + 1) if rng.random() < 0.5 else rng.randrange(rows)
        if (level, row, column) in requested and len(requested) > 8 * levels.values["num_levels"]:
            continue
        requested.add((level, row, column))
        _, seconds = timed_request(
            explorer, "tile", session=0, layer=layer, head=head, level=level, row=row, column=column
        )
        times.append(seconds)
    return times


def bench_text(tokens: int, count: int) -> dict[str, Any]:
    model = load_text_model("language")
    text = random_text(tokens)
    ids = model.tokens.encode(text)[:tokens]  # type: ignore[attr-defined]  # the bundled model has a tokenizer
    text = model.tokens.decode(ids)  # type: ignore[attr-defined]  # the same
    start = time.perf_counter()
    explorer = Explorer(model.record_text(text))
    reading = time.perf_counter() - start
    opening, levels = open_head(explorer, LAYER, HEAD)
    times = tile_times(explorer, LAYER, HEAD, levels, count)
    params = {"session": 0, "layer": LAYER, "heads": [HEAD]}
    results = {
        "tokens": levels.values["num_queries"],
        "reading": reading,
        "opening": opening,
        "tile, median": statistics.median(times),
        "tile, worst": max(times),
        "row": timed_request(explorer, "query_weights", queries=[levels.values["num_queries"] - 1], **params)[1],
        "column": timed_request(explorer, "key_weights", keys=[3], **params)[1],
        "thumbnails of a layer": timed_request(explorer, "thumbnails", session=0, layer=2, size=64)[1],
        "heads": timed_request(explorer, "heads", session=0)[1],
    }
    return {**results, "peak memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def bench_recording(tokens: int, count: int) -> dict[str, Any]:
    layer = torch.nn.MultiheadAttention(64, 1, batch_first=True).eval()
    x = torch.randn(1, tokens, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), regard.record(layer) as recording:
        causal = torch.nn.Transformer.generate_square_subsequent_mask(8)
        layer(x[:, :8], x[:, :8], x[:, :8], attn_mask=causal, is_causal=True, need_weights=False)
    call = recording.layers[0].calls[0]
    with torch.no_grad():  # the layer would take minutes at this length
        q, k, v = layer.in_proj_weight.chunk(3)
        call.q, call.k, call.v = ((x @ w.mT)[None] * 2 for w in (q, k, v))
    explorer = Explorer(session_from_recording(recording, title="a long recording"))
    opening, levels = open_head(explorer, 0, 0)
    times = tile_times(explorer, 0, 0, levels, count)
    results = {
        "tokens": tokens,
        "opening": opening,
        "tile, median": statistics.median(times),
        "tile, worst": max(times),
    }
    return {**results, "peak memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--recording", type=int, default=100_000)
    parser.add_argument("--tiles", type=int, default=200)
    options = parser.parse_args()
    print("threads", torch.get_num_threads(), flush=True)
    results: dict[str, Any] = {"machine": machine_info(), "threads": torch.get_num_threads()}
    for name, bench in (
        ("text", lambda: bench_text(options.tokens, options.tiles)),
        ("recording", lambda: bench_recording(options.recording, options.tiles)),
    ):
        results[name] = bench()
        print(name, json.dumps(results[name], indent=1), flush=True)
    (RESULTS / "explorer.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
