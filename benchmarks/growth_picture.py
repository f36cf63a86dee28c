"""Draws how time and memory grow: one file of numbers in, one picture out; nothing is measured.

python -m benchmarks.growth_picture [RESULTS.json [PICTURE.png]]
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import regard
from benchmarks.growth import OTHERS

RESULTS = Path(__file__).parent / "results"
COLOURS = ("#0b7285", "#f08c00", "#5f3dc4", "#2b8a3e", "#c92a2a", "#1971c2", "#a61e4d", "#495057", "#e8590c", "#087f5b")
PLAIN, LEAST = "softmax", 2**16  # what each panel is compared with; bytes below which memory is not told apart


def family_of(name: str) -> str:
    return OTHERS[name][0] if name in OTHERS else regard.mechanisms().named(name).family


def draw(results: Path, picture: Path) -> None:
    """A row of panels for each family: time on the left, memory on the right, softmax in grey in each."""
    points = json.loads(results.read_text())["points"]
    names = list(dict.fromkeys(point["mechanism"] for point in points))
    families = list(dict.fromkeys(family_of(name) for name in names))
    figure = Figure(figsize=(10, 2.3 * len(families) + 0.6), dpi=100, layout="constrained")
    figure.suptitle("one head of width 64, forward, one thread; grey: softmax", fontsize=10)
    panels = figure.subplots(len(families), 2, sharex=True, squeeze=False)
    for row, family in zip(panels, families, strict=True):
        members = [name for name in names if family_of(name) == family]
        for axes, what, least in ((row[0], "seconds", 0.0), (row[1], "memory", LEAST)):
            _curve(axes, points, PLAIN, what, least, dict(color="#adb5bd", linewidth=3))
            for name, colour in zip(members, COLOURS, strict=False):
                _curve(axes, points, name, what, least, dict(color=colour, linewidth=1.3, marker=".", label=name))
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
    figure.savefig(picture)


def _curve(axes: Axes, points: list[Any], name: str, what: str, least: float, style: dict[str, Any]) -> None:
    own = [point for point in points if point["mechanism"] == name]
    axes.plot([point["n"] for point in own], [max(point[what], least) for point in own], **style)


if __name__ == "__main__":
    places = [Path(place) for place in sys.argv[1:]]
    draw(*(places + [RESULTS / "growth.json", RESULTS / "growth.png"][len(places) :]))
