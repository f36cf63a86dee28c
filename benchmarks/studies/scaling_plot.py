"""Plot time and memory of mechanisms by sequence length from a file of results.

python -m benchmarks.studies.scaling_plot [RESULTS.json [PICTURE.png]]
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import regard
from benchmarks.studies.scaling import EXTERNAL_CALLS

RESULTS = Path(__file__).parents[1] / "results"
COLORS = ("#0b7285", "#f08c00", "#5f3dc4", "#2b8a3e", "#c92a2a", "#1971c2", "#a61e4d", "#495057", "#e8590c", "#087f5b")
BASELINE_MECHANISM = "softmax"  # in every panel, for comparison
MIN_PLOTTED_BYTES = 2**16  # smaller amounts of memory are plotted as this one


def family_of(name: str) -> str:
    return EXTERNAL_CALLS[name][0] if name in EXTERNAL_CALLS else regard.mechanisms.catalog().find(name).family


def plot_scaling(results: Path, path: Path) -> None:
    """Plot one row of panels for each family: time on the left, memory on the right, softmax in gray."""
    points = json.loads(results.read_text())["points"]
    names = list(dict.fromkeys(point["mechanism"] for point in points))
    families = list(dict.fromkeys(family_of(name) for name in names))
    figure = Figure(figsize=(10, 2.3 * len(families) + 0.6), dpi=100, layout="constrained")
    figure.suptitle("one head of dimension 64, forward, one thread; gray: softmax", fontsize=10)
    panels = figure.subplots(len(families), 2, sharex=True, squeeze=False)
    for row, family in zip(panels, families, strict=True):
        members = [name for name in names if family_of(name) == family]
        for axes, quantity, minimum in ((row[0], "seconds", 0.0), (row[1], "memory", MIN_PLOTTED_BYTES)):
            _curve(axes, points, BASELINE_MECHANISM, quantity, minimum, dict(color="#adb5bd", linewidth=3))
            for name, color in zip(members, COLORS, strict=False):
                _curve(axes, points, name, quantity, minimum, dict(color=color, linewidth=1.3, marker=".", label=name))
            axes.loglog(base=2)
            axes.set_yscale("log")
            axes.grid(alpha=0.25, linewidth=0.5)
            axes.tick_params(labelsize=7)
        row[0].set_ylabel(family, fontsize=9, fontweight="bold")
        row[1].legend(fontsize=6.5, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    panels[0][0].set_title("seconds", fontsize=9)
    panels[0][1].set_title("bytes beyond inputs and output (at least 64 KiB)", fontsize=9)
    for axes in panels[-1]:
        axes.set_xlabel("length", fontsize=8)
    figure.savefig(path)


def _curve(axes: Axes, points: list[Any], name: str, quantity: str, minimum: float, style: dict[str, Any]) -> None:
    selected = [point for point in points if point["mechanism"] == name]
    axes.plot([point["n"] for point in selected], [max(point[quantity], minimum) for point in selected], **style)


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:]]
    plot_scaling(*(paths + [RESULTS / "scaling.json", RESULTS / "scaling.png"][len(paths) :]))
