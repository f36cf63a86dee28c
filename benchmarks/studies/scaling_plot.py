"""Plot time and memory of mechanisms by sequence length from a file of results.

python -m benchmarks.studies.scaling_plot [RESULTS.json [PICTURE.png]]
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

import regard
from benchmarks.studies.scaling import EXTERNAL_CALLS
from regard.plot.figure import add_title
from regard.plot.style import (
    INK_COLOR,
    LINE_COLOR,
    MUTED_COLOR,
    PAGE_WIDTH_IN,
    apply_style,
    new_figure,
    save_for_page,
    sequential_colormap,
)

RESULTS = Path(__file__).parents[1] / "results"
BASELINE_MECHANISM = "softmax"
MIN_PLOTTED_BYTES = 2**16  # smaller amounts of memory are plotted as this one
NUM_PLOTTED_LENGTHS = 4
ROW_HEIGHT_IN = 0.2


def family_of(name: str) -> str:
    return EXTERNAL_CALLS[name][0] if name in EXTERNAL_CALLS else regard.mechanisms.catalog().find(name).family


def plot_scaling(results: Path, path: Path) -> None:
    """Plot one row for each mechanism: a dot for each of a few lengths, at its time and at its memory."""
    points = json.loads(results.read_text())["points"]
    lengths = plotted_lengths(sorted({point["n"] for point in points}))
    rows = table_rows(points)
    figure = new_figure(PAGE_WIDTH_IN, ROW_HEIGHT_IN * len(rows) + 1.6)
    times, memory = figure.subplots(1, 2, sharey=True)
    plot_dots(times, rows, points, lengths, "seconds", 0.0)
    plot_dots(memory, rows, points, lengths, "memory", MIN_PLOTTED_BYTES)
    times.set_xlabel("time, one head (s)")
    memory.set_xlabel("extra memory (bytes)")
    times.set_yticks(range(len(rows)), [name for name, _ in rows])
    times.set_ylim(len(rows) - 0.5, -0.5)
    add_title(figure, finding(points))
    apply_style(figure)
    for label, (_, is_family) in zip(times.get_yticklabels(), rows, strict=True):
        label.set(color=INK_COLOR if is_family else MUTED_COLOR, fontweight="bold" if is_family else "normal")
    label_lengths(times, lengths)
    save_for_page(figure, path)


def plotted_lengths(lengths: list[int]) -> list[int]:
    """Return at most four lengths, as far apart as possible: the longest, and equal steps down from there."""
    step = max(1, math.ceil((len(lengths) - 1) / (NUM_PLOTTED_LENGTHS - 1)))
    return lengths[::-1][::step][::-1]


def table_rows(points: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    """Return the names of families (True), each followed by its mechanisms (False), the fastest first."""
    names = list(dict.fromkeys(point["mechanism"] for point in points))
    rows: list[tuple[str, bool]] = []
    for family in dict.fromkeys(map(family_of, names)):
        members = [name for name in names if family_of(name) == family]
        rows += [(family, True), *((name, False) for name in sorted(members, key=lambda name: last_time(points, name)))]
    return rows


def last_time(points: list[dict[str, Any]], name: str) -> float:
    """Return seconds per squared token at the longest measured length, which orders mechanisms of equal growth."""
    last = max((point for point in points if point["mechanism"] == name), key=lambda point: point["n"])
    return float(last["seconds"] / last["n"] ** 2)


def plot_dots(
    axes: Axes,
    rows: list[tuple[str, bool]],
    points: list[dict[str, Any]],
    lengths: list[int],
    quantity: str,
    low: float,
) -> None:
    for row, (name, is_family) in enumerate(rows):
        if is_family:
            continue
        measured = {point["n"]: max(point[quantity], low) for point in points if point["mechanism"] == name}
        dots = [(n, measured[n]) for n in lengths if n in measured]
        axes.plot([value for _, value in dots], [row] * len(dots), color=LINE_COLOR, linewidth=2.5, zorder=1)
        for n, value in dots:
            axes.scatter(value, row, s=34, color=length_color(n, lengths), zorder=2, linewidths=0)
    axes.set_xscale("log")
    axes.grid(axis="x", color=LINE_COLOR, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def length_color(n: int, lengths: list[int]) -> Any:
    """Return a color that is darker for longer sequences."""
    return sequential_colormap()(0.3 + 0.7 * lengths.index(n) / max(1, len(lengths) - 1))


def label_lengths(axes: Axes, lengths: list[int]) -> None:
    """Write the lengths below the panels, each next to its dot."""
    handles = [
        axes.scatter([], [], s=34, color=length_color(n, lengths), linewidths=0, label=f"{n:,}") for n in lengths
    ]
    axes.figure.legend(  # type: ignore[union-attr]  # axes of a figure
        handles=handles, loc="outside lower center", ncols=len(lengths), frameon=False, fontsize=10, handletextpad=0.1,
        title="tokens", title_fontsize=10, columnspacing=1.5,
    )  # fmt: skip


def finding(points: list[dict[str, Any]]) -> str:
    """Return how many mechanisms are faster than softmax at its longest measured length.

    A mechanism without a time at this length was not measured there because it takes longer.
    """
    n = max(point["n"] for point in points if point["mechanism"] == BASELINE_MECHANISM)
    seconds = {point["mechanism"]: point["seconds"] for point in points if point["n"] == n}
    count = sum(time < seconds[BASELINE_MECHANISM] for time in seconds.values())
    num_others = len({point["mechanism"] for point in points}) - 1
    return f"At {n:,} tokens, {count} of {num_others} mechanisms are faster than softmax"


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:]]
    plot_scaling(*(paths + [RESULTS / "scaling.json", RESULTS / "scaling.png"][len(paths) :]))
