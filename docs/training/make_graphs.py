"""Draw karate.png and miserables.png from their JSON files: `.venv/bin/python docs/training/make_graphs.py`."""

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

HERE = Path(__file__).parent
TITLES = {"karate": "Unlabeled members (32)", "miserables": "Unlabeled characters (62)"}
METHODS = {"accuracy": "graph attention", "label_propagation": "label propagation", "majority": "majority label"}


def picture(run: dict, title: str) -> Figure:
    figure = Figure(figsize=(7.5, 2.8), layout="constrained")
    curve, bars = figure.subplots(1, 2)
    step, loss, _ = np.array(run["curve"]).T
    curve.plot(step, loss, color="#444444")
    curve.set(xlabel="step", ylabel="loss on labeled nodes", ylim=(0, None), title="Training")
    percentages = [100 * run["results"][name] for name in METHODS]
    container = bars.barh(list(METHODS.values()), percentages, color=["#0b4a78", "#86bfe2", "#86bfe2"])
    bars.bar_label(container, fmt="%.1f", padding=3)
    bars.invert_yaxis()
    bars.set(xlabel="accuracy (%)", xlim=(0, 115), title=title)
    return figure


if __name__ == "__main__":
    for name, title in TITLES.items():
        run = json.loads((HERE / f"{name}.json").read_text(encoding="utf8"))
        # without matplotlib's version in the metadata, the same picture has the same bytes
        picture(run, title).savefig(HERE / f"{name}.png", dpi=90, metadata={"Software": None})
