"""Draw alignments.png from alignments.json: `.venv/bin/python docs/articles/make_alignments.py`."""

import json
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard.plot.style import (
    CURVE_COLORS,
    PAGE_WIDTH_IN,
    apply_style,
    new_figure,
    save_for_page,
    set_title,
    style_chart,
)

HERE = Path(__file__).parent
PANEL_WIDTH_IN = 2.4
NAMES = {
    "bahdanau": "Bahdanau",
    "luong_dot": "Luong, dot",
    "luong_general": "Luong, general",
    "scaled_dot": "scaled dot",
}


def picture(results: dict) -> Figure:
    figure = new_figure(PAGE_WIDTH_IN, 3.4)
    curves, errors = figure.subplots(1, 2)
    draw_errors(errors, results["scores"])
    draw_curves(curves, results)
    return apply_style(figure)


def draw_errors(axes: Axes, scores: dict) -> None:
    wrong = {name: [100 * (1 - run["exact_match"]["8"]) for run in score["runs"]] for name, score in scores.items()}
    for row, (name, color) in enumerate(zip(NAMES, CURVE_COLORS, strict=False)):
        axes.plot(wrong[name], [row] * len(wrong[name]), "o", color=color, markersize=5)
        axes.annotate(
            NAMES[name], (max(wrong[name]), row), (7, 0), textcoords="offset points", color=color, va="center"
        )
    worst = max(NAMES, key=lambda name: median(wrong[name]))
    set_title(axes, f"Tested, {NAMES[worst]} makes the most errors", PANEL_WIDTH_IN)
    axes.set(xlabel="words of 8 letters with an error (%)", xlim=(0, 8), ylim=(3.5, -0.5), yticks=[])
    style_chart(axes)


def draw_curves(axes: Axes, results: dict) -> None:
    for name, color in zip(NAMES, CURVE_COLORS, strict=False):
        for run in results["scores"][name]["runs"]:
            interval = results["steps"] // len(run["curve"])
            axes.plot(range(interval, results["steps"] + 1, interval), run["curve"], color=color, linewidth=1.3)
    third = {name: median(run["curve"][2] for run in score["runs"]) for name, score in results["scores"].items()}
    set_title(axes, f"In training, {NAMES[min(third, key=third.__getitem__)]} learns fastest", PANEL_WIDTH_IN)
    axes.set(yscale="log", xlabel="step of training", ylabel="loss", xticks=range(0, results["steps"] + 1, 400))
    style_chart(axes)


def main() -> None:
    results = json.loads((HERE / "alignments.json").read_text(encoding="utf8"))
    save_for_page(picture(results), HERE / "alignments.png")


if __name__ == "__main__":
    main()
