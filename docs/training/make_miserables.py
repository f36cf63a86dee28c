"""Draws miserables.png from miserables.json: `.venv/bin/python docs/training/make_miserables.py`."""

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

HERE = Path(__file__).parent
GUESSES = {"accuracy": "graph attention", "neighbours": "neighbours' majority", "majority": "largest group"}


def picture(found: dict) -> Figure:
    figure = Figure(figsize=(7.5, 2.8), layout="constrained")
    curve, bars = figure.subplots(1, 2)
    step, loss, _ = np.array(found["step, loss, accuracy"]).T
    curve.plot(step, loss, color="#444444")
    curve.set(xlabel="step", ylabel="loss on the known", ylim=(0, None), title="Training")
    shares = [100 * found["results"][name] for name in GUESSES]
    drawn = bars.barh(list(GUESSES.values()), shares, color=["#0b4a78", "#86bfe2", "#86bfe2"])
    bars.bar_label(drawn, fmt="%.1f", padding=3)
    bars.invert_yaxis()
    bars.set(xlabel="% right", xlim=(0, 115), title="The other 62 characters")
    return figure


if __name__ == "__main__":
    found = json.loads((HERE / "miserables.json").read_text(encoding="utf8"))
    # without its version in the file, matplotlib writes the same bytes for the same picture
    picture(found).savefig(HERE / "miserables.png", dpi=90, metadata={"Software": None})
