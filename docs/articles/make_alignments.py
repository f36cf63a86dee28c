"""Draw alignments.png from alignments.json: `.venv/bin/python docs/articles/make_alignments.py`."""

import json
from pathlib import Path

from matplotlib.figure import Figure

HERE = Path(__file__).parent
LABELS = {
    "bahdanau": "Bahdanau",
    "luong_dot": "Luong, dot",
    "luong_general": "Luong, general",
    "scaled_dot": "scaled dot",
}
COLORS = ("#0b4a78", "#d55e00", "#e69f00", "#009e73")


def picture(results: dict) -> Figure:
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    curves, errors = figure.subplots(1, 2, width_ratios=(3, 2))
    for row, ((name, score), color) in enumerate(zip(results["scores"].items(), COLORS, strict=True)):
        for run in score["runs"]:
            interval = results["steps"] // len(run["curve"])
            steps = [interval * (i + 1) for i in range(len(run["curve"]))]
            label = LABELS[name] if run is score["runs"][0] else None
            curves.plot(steps, run["curve"], color=color, linewidth=1.5, label=label)
        wrong = [100 * (1 - run["exact_match"]["8"]) for run in score["runs"]]
        errors.plot(wrong, [row] * len(wrong), "o", color=color)
    curves.set(yscale="log", xlabel="step", ylabel="loss", title="Additive scores learn fastest")
    curves.legend(fontsize=9, frameon=False)
    errors.set(xlabel="words of 8 letters with an error (%)", xlim=(0, None), ylim=(3.5, -0.5))
    errors.set_title("Scaled dot products err most here")
    errors.set_yticks(range(4), list(LABELS.values()))
    for axes in (curves, errors):
        axes.grid(color="#e8e8e4")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    results = json.loads((HERE / "alignments.json").read_text(encoding="utf8"))
    # without matplotlib's version in the metadata, the same picture has the same bytes
    picture(results).savefig(HERE / "alignments.png", dpi=90, metadata={"Software": None})


if __name__ == "__main__":
    main()
