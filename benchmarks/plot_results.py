"""Plot a file of benchmark results.

python -m benchmarks.plot_results [RESULTS.json [PICTURE.png]]
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from benchmarks.baselines.mechanisms import MECHANISM_BASELINES as MECHANISMS
from regard.plot.figure import add_title
from regard.plot.style import (
    CURVE_COLORS,
    LINE_COLOR,
    MUTED_COLOR,
    PAGE_WIDTH_IN,
    apply_style,
    new_figure,
    save_for_page,
    set_title,
    wrap_text,
)

RESULTS = Path(__file__).parent / "results"
DIRECTIONS = ("forward", "forward + backward")
BAR_HEIGHT = 0.38  # rows have distance 1
ROW_HEIGHT_IN, LABEL_WIDTH_IN, TITLE_WIDTH_IN = 0.37, 2.3, 3.2

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
    heights = [len(rows) for rows in groups.values()]
    figure = new_figure(PAGE_WIDTH_IN, 1.6 + 0.35 * len(groups) + ROW_HEIGHT_IN * sum(heights))
    panels = figure.subplots(len(groups), 1, height_ratios=heights, squeeze=False, sharex=True)[:, 0]
    for axes, (title, rows) in zip(panels, groups.items(), strict=True):
        _plot_bars(axes, rows)
        set_title(axes, title, TITLE_WIDTH_IN)
    ratios = [ratio for rows in groups.values() for row in rows for ratio in _ratios(row)]
    _set_scale(panels[-1], ratios)
    add_title(figure, f"regard is faster in {sum(ratio > 1 for ratio in ratios)} of {len(ratios)} comparisons")
    machine = f"{data['machine']['regard']} ({data['machine']['processor']})"
    conditions = f"{threads} thread{'s' if threads > 1 else ''}, float32 unless stated, {machine}"
    panels[-1].set_xlabel(f"time of the baseline / time of regard\n{conditions}", x=0.1)
    bars = [Patch(color=color, label=label) for label, color in zip(DIRECTIONS, CURVE_COLORS, strict=False)]
    figure.legend(handles=bars, loc="outside lower center", ncols=2, frameon=False, labelcolor="linecolor")
    apply_style(figure)
    save_for_page(figure, path)


def _ratios(row: dict[str, Any]) -> list[float]:
    """Return the ratios of the best times: forward, and forward with backward if measured."""
    forward, backward = row["forward"], row["backward"]
    forward_ratio = forward["baseline"] / forward["regard"]
    if backward is None:
        return [forward_ratio]
    return [forward_ratio, (forward["baseline"] + backward["baseline"]) / (forward["regard"] + backward["regard"])]


def _plot_bars(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for index, color in enumerate(CURVE_COLORS[: len(DIRECTIONS)]):
        plotted = [(n, pair) for n, row in enumerate(rows) if len(pair := _ratios(row)) > index]
        positions = [n + (index - 0.5) * BAR_HEIGHT if len(pair) > 1 else n for n, pair in plotted]
        ratios = [pair[index] for _, pair in plotted]
        axes.barh(positions, [ratio - 1 for ratio in ratios], BAR_HEIGHT * 0.94, left=1, color=color)
        for y, ratio in zip(positions, ratios, strict=True):
            text = f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}"
            style = dict(textcoords="offset points", va="center", color=color, annotation_clip=False)
            axes.annotate(text, (max(ratio, 1), y), (4, 0), **style)
    axes.set_yticks(range(len(rows)), [_wrapped_label(row) for row in rows], linespacing=0.95)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.axvline(1, color=MUTED_COLOR, linewidth=1)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color=LINE_COLOR, linewidth=0.7)
    axes.set_axisbelow(True)


def _wrapped_label(row: dict[str, Any]) -> str:
    """Return the label in lines; a length stays in the line of its n."""
    return wrap_text(re.sub(r"\bn (?=\d)", "n\u00a0", _label(row)), LABEL_WIDTH_IN)


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


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:]]
    source = paths[0] if paths else RESULTS / "attention.json"
    plot_results(source, paths[1] if len(paths) > 1 else source.with_suffix(".png"))
