"""Draws karate.png and miserables.png from the JSON beside them: `.venv/bin/python docs/training/make_graphs.py`."""

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

HERE = Path(__file__).parent
TESTED = {"karate": "The other 32 members", "miserables": "The other 62 characters"}
GUESSES = {"accuracy": "graph attention", "neighbours": "neighbours' majority", "majority": "largest group"}


def picture(found: dict, tested: str) -> Figure:
    figure = Figure(figsize=(7.5, 2.8), layout="constrained")
    curve, bars = figure.subplots(1, 2)
    step, loss, _ = np.array(found["step, loss, accuracy"]).T
    curve.plot(step, loss, color="#444444")
    curve.set(xlabel="step", ylabel="loss on the known", ylim=(0, None), title="Training")
    shares = [100 * found["results"][name] for name in GUESSES]
    drawn = bars.barh(list(GUESSES.values()), shares, color=["#0b4a78", "#86bfe2", "#86bfe2"])
    bars.bar_label(drawn, fmt="%.1f", padding=3)
    bars.invert_yaxis()
    bars.set(xlabel="% right", xlim=(0, 115), title=tested)
    return figure


if __name__ == "__main__":
    for name, tested in TESTED.items():
        found = json.loads((HERE / f"{name}.json").read_text(encoding="utf8"))
        # without its version in the file, matplotlib writes the same bytes for the same picture
        picture(found, tested).savefig(HERE / f"{name}.png", dpi=90, metadata={"Software": None})
