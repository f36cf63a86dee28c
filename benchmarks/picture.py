"""Draws the results: one file of numbers in, one picture out; nothing is measured.

python -m benchmarks.picture [RESULTS.json [PICTURE.png]]
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.mechanisms import PEERS as MECHANISMS

RESULTS = Path(__file__).parent / "results"
FORWARD, BOTH, INK = "#0b7285", "#f08c00", "#343a40"
HEIGHT = 0.38  # of a bar, where rows are 1 apart

MODELS = ("encoder", "decoder", "training", "minilm")
WORDS = {  # who has a mechanism, as a reader knows them
    "entmax's sparsemax": "entmax package",
    "entmax's entmax": "entmax package",
    "POT's log sinkhorn": "POT, with logarithms",
    "POT's sinkhorn": "POT, without logarithms",
    "eager sinkhorn": "eager, with logarithms",
    "quadratic linear": "every weight",
    "performer favor": "performer-pytorch",
    "Hugging Face's global": "Hugging Face",
    "Hugging Face's blocks": "Hugging Face",
}
GROUPS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "against torch": lambda row: _is_torch(row) and bool(row["backward"]) and not _is_tiled(row),
    "few queries over many keys, or a tiny call, against torch": lambda row: _is_call(row),
    "whole models, against the same on torch": lambda row: row["case"]["ours"] in MODELS,
    "measures of all weights, against regard's own forward pass": lambda row: row["case"]["ours"] == "measure",
    "other mechanisms, against whoever has them": lambda row: row["case"]["peer"] in MECHANISMS,
    "rules, against plain causal without them": lambda row: row["case"]["peer"] == "causal",
    "rules, against the same written by hand in C++": lambda row: row["case"]["peer"].startswith("twin"),
    "the engine tiled, against torch": lambda row: _is_tiled(row),
}


def _is_torch(row: dict[str, Any]) -> bool:
    return bool(row["case"]["peer"].startswith(("sdpa", "eager"))) and row["case"]["peer"] not in MECHANISMS


def _is_call(row: dict[str, Any]) -> bool:
    return _is_torch(row) and not row["backward"] and row["case"]["ours"] not in MODELS


def _is_tiled(row: dict[str, Any]) -> bool:
    return bool(row["case"]["ours"].startswith("tiled"))


def draw(results: Path, picture: Path) -> None:
    """Bars of the ratios of the fewest threads, on a logarithmic scale: to the right of 1 regard is faster."""
    data = json.loads(results.read_text())
    threads = min(row["threads"] for row in data["rows"])
    groups = {
        title: [row for row in data["rows"] if row["threads"] == threads and belongs(row)]
        for title, belongs in GROUPS.items()
    }
    groups = {title: rows for title, rows in groups.items() if rows}
    heights = [len(rows) + 1 for rows in groups.values()]
    figure = Figure(figsize=(9, 0.9 + 0.32 * sum(heights)), dpi=110, layout="constrained")
    panels = figure.subplots(len(groups), 1, height_ratios=heights, squeeze=False, sharex=True)[:, 0]
    for axes, (title, rows) in zip(panels, groups.items(), strict=True):
        _bars(axes, rows)
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK)
    _scale(panels[-1], [ratio for rows in groups.values() for row in rows for ratio in _ratios(row)])
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=2, frameon=False, fontsize=9)
    build = data["machine"]["regard"]
    figure.suptitle(
        f"The peer's time over regard's: right of 1 regard is faster. {threads} thread{'s' if threads > 1 else ''}, "
        f"float32 unless said, {build} ({data['machine']['processor']})",
        x=0.01,
        ha="left",
        fontsize=10,
        color=INK,
    )
    figure.savefig(picture)


def _ratios(row: dict[str, Any]) -> list[float]:
    """Of the best times: forward, and where there is one with backward."""
    forward, backward = row["forward"], row["backward"]
    alone = forward["peer"] / forward["ours"]
    if backward is None:
        return [alone]
    return [alone, (forward["peer"] + backward["peer"]) / (forward["ours"] + backward["ours"])]


def _bars(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for place, (label, colour) in enumerate([("forward", FORWARD), ("forward + backward", BOTH)]):
        drawn = [(n, found) for n, row in enumerate(rows) if len(found := _ratios(row)) > place]
        at = [n + (place - 0.5) * HEIGHT if len(found) > 1 else n for n, found in drawn]
        ratios = [found[place] for _, found in drawn]
        axes.barh(at, [ratio - 1 for ratio in ratios], HEIGHT * 0.94, left=1, color=colour, label=label)
        for y, ratio in zip(at, ratios, strict=True):
            text = f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}"
            side = 1 if ratio >= 1 else -1
            axes.annotate(
                text,
                (ratio, y),
                (3 * side, 0),
                textcoords="offset points",
                va="center",
                ha="left" if side > 0 else "right",
                fontsize=7.5,
                color=INK,
            )
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=8.5)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.axvline(1, color=INK, linewidth=1)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color="#dee2e6", linewidth=0.7)
    axes.set_axisbelow(True)


def _label(row: dict[str, Any]) -> str:
    """The case; with what torch runs where that is not its plain call."""
    name, peer = row["case"]["name"].removeprefix("tiled: "), row["case"]["peer"]
    if peer in WORDS:
        return f"{name} ({WORDS[peer]})"
    if peer.startswith("sdpa mask"):
        return f"{name} (dense mask)"
    if peer == "sdpa bias":
        return f"{name} (dense bias)"
    if peer.startswith("eager chunked"):
        return f"{name} (eager, in chunks)"
    if peer.startswith("eager"):
        return f"{name} (eager)"
    if peer == "sdpa causal" and "window" in name:
        return f"{name} (causal, no window)"
    return str(name)


def _scale(axes: Axes, ratios: list[float]) -> None:
    axes.set_xscale("log")
    low, high = min([0.8, *ratios]) * 0.7, max([2.0, *ratios]) * 1.25
    axes.set_xlim(low, high)
    ticks = [tick for tick in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200) if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.tick_params(axis="x", labelsize=8.5)


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:]]
    source = given[0] if given else RESULTS / "attention.json"
    draw(source, given[1] if len(given) > 1 else source.with_suffix(".png"))
