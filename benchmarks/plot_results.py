"""Plot a file of benchmark results.

python -m benchmarks.plot_results [RESULTS.json [PICTURE.png]]
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.baselines.mechanisms import MECHANISM_BASELINES as MECHANISMS

RESULTS = Path(__file__).parent / "results"
FORWARD_COLOR, FORWARD_BACKWARD_COLOR, TEXT_COLOR = "#0b7285", "#f08c00", "#343a40"
BAR_HEIGHT = 0.38  # rows have distance 1

MODEL_NAMES = ("encoder", "decoder", "training", "minilm")
BASELINE_LABELS = {
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
PANELS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "against torch": lambda row: _has_torch_baseline(row) and bool(row["backward"]) and not _uses_tiled(row),
    "few queries over many keys, or a tiny call, against torch": lambda row: _is_single_call(row),
    "models, against the same models on torch": lambda row: row["case"]["call_name"] in MODEL_NAMES,
    "measures of all weights, against the forward pass of regard": lambda row: row["case"]["call_name"] == "measure",
    "other mechanisms, against other libraries": lambda row: row["case"]["baseline"] in MECHANISMS,
    "score modifiers, against causal attention without them": lambda row: row["case"]["baseline"] == "causal",
    "score modifiers, against handwritten C++": lambda row: row["case"]["baseline"].startswith("handwritten"),
    "the backend tiled, against torch": lambda row: _uses_tiled(row),
}


def _has_torch_baseline(row: dict[str, Any]) -> bool:
    return bool(row["case"]["baseline"].startswith(("sdpa", "eager"))) and row["case"]["baseline"] not in MECHANISMS


def _is_single_call(row: dict[str, Any]) -> bool:
    return _has_torch_baseline(row) and not row["backward"] and row["case"]["call_name"] not in MODEL_NAMES


def _uses_tiled(row: dict[str, Any]) -> bool:
    return bool(row["case"]["call_name"].startswith("tiled"))


def plot_results(results: Path, path: Path) -> None:
    """Plot the ratios for the smallest number of threads as bars on a logarithmic scale."""
    data = json.loads(results.read_text())
    threads = min(row["num_threads"] for row in data["rows"])
    groups = {
        title: [row for row in data["rows"] if row["num_threads"] == threads and selects(row)]
        for title, selects in PANELS.items()
    }
    groups = {title: rows for title, rows in groups.items() if rows}
    heights = [len(rows) + 1 for rows in groups.values()]
    figure = Figure(figsize=(9, 0.9 + 0.32 * sum(heights)), dpi=110, layout="constrained")
    panels = figure.subplots(len(groups), 1, height_ratios=heights, squeeze=False, sharex=True)[:, 0]
    for axes, (title, rows) in zip(panels, groups.items(), strict=True):
        _plot_bars(axes, rows)
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=TEXT_COLOR)
    _set_scale(panels[-1], [ratio for rows in groups.values() for row in rows for ratio in _ratios(row)])
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=2, frameon=False, fontsize=9)
    build = data["machine"]["regard"]
    figure.suptitle(
        f"Time of baseline / time of regard: above 1 regard is faster. {threads} thread{'s' if threads > 1 else ''}, "
        f"float32 unless stated, {build} ({data['machine']['processor']})",
        x=0.01,
        ha="left",
        fontsize=10,
        color=TEXT_COLOR,
    )
    figure.savefig(path)


def _ratios(row: dict[str, Any]) -> list[float]:
    """Return the ratios of the best times: forward, and forward with backward if measured."""
    forward, backward = row["forward"], row["backward"]
    forward_ratio = forward["baseline"] / forward["regard"]
    if backward is None:
        return [forward_ratio]
    return [forward_ratio, (forward["baseline"] + backward["baseline"]) / (forward["regard"] + backward["regard"])]


def _plot_bars(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for index, (label, color) in enumerate(
        [("forward", FORWARD_COLOR), ("forward + backward", FORWARD_BACKWARD_COLOR)]
    ):
        plotted = [(n, pair) for n, row in enumerate(rows) if len(pair := _ratios(row)) > index]
        positions = [n + (index - 0.5) * BAR_HEIGHT if len(pair) > 1 else n for n, pair in plotted]
        ratios = [pair[index] for _, pair in plotted]
        axes.barh(positions, [ratio - 1 for ratio in ratios], BAR_HEIGHT * 0.94, left=1, color=color, label=label)
        for y, ratio in zip(positions, ratios, strict=True):
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
                color=TEXT_COLOR,
            )
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=8.5)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.axvline(1, color=TEXT_COLOR, linewidth=1)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color="#dee2e6", linewidth=0.7)
    axes.set_axisbelow(True)


def _label(row: dict[str, Any]) -> str:
    """Return the name of the case, with the baseline unless it is a plain call of torch."""
    name, baseline = row["case"]["name"].removeprefix("tiled: "), row["case"]["baseline"]
    if baseline in BASELINE_LABELS:
        return f"{name} ({BASELINE_LABELS[baseline]})"
    if baseline.startswith("sdpa mask"):
        return f"{name} (dense mask)"
    if baseline == "sdpa bias":
        return f"{name} (dense bias)"
    if baseline.startswith("eager chunked"):
        return f"{name} (eager, in chunks)"
    if baseline.startswith("eager"):
        return f"{name} (eager)"
    if baseline == "sdpa causal" and "window" in name:
        return f"{name} (causal, no window)"
    return str(name)


def _set_scale(axes: Axes, ratios: list[float]) -> None:
    axes.set_xscale("log")
    low, high = min([0.8, *ratios]) * 0.7, max([2.0, *ratios]) * 1.25
    axes.set_xlim(low, high)
    ticks = [tick for tick in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200) if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.tick_params(axis="x", labelsize=8.5)


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:]]
    source = paths[0] if paths else RESULTS / "attention.json"
    plot_results(source, paths[1] if len(paths) > 1 else source.with_suffix(".png"))
