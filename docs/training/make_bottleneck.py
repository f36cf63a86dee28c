"""Draws bottleneck.png: `.venv/bin/python docs/training/make_bottleneck.py [runs/bottleneck/model.safetensors]`.

With a file of weights, where its attention rests on one word is written to bottleneck-alignment.json first.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from regard.models.store import fit, read
from regard.models.tasks.bottleneck import BEGIN, FIRST, LENGTHS, LETTERS, LONGEST, REVERSE, asked, made

HERE = Path(__file__).parent
WORD = "sphinxofblackquartz"
WITH, WITHOUT, LOSS = "#0b4a78", "#d55e00", "#444444"


def looked_up(weights: Path) -> dict[str, object]:
    """Where a trained translator looks while it reverses `WORD`."""
    tensors, words = read(weights)
    del words["task"]
    model = made(words)
    fit(model, tensors, weights)
    tokens = torch.tensor([[FIRST + LETTERS.index(letter) for letter in WORD]])
    batch = asked(tokens, torch.tensor([REVERSE]))
    with torch.no_grad():
        rows = model.attention.reading(batch.source, batch.lengths).attend(batch.target[:, :-1])[0]
    assert batch.target[0, 0] == BEGIN
    source, written = ["reverse", *WORD], [*WORD[::-1], "end"]
    return {"source": source, "written": written, "weights": [[round(a, 3) for a in row] for row in rows.tolist()]}


def picture(found: dict, looks: dict) -> Figure:
    figure = Figure(figsize=(11.5, 3.6), layout="constrained")
    curve, lengths, alignment = figure.subplots(1, 3)
    step, loss, _ = np.array(found["step, loss, accuracy"]).T
    curve.plot(step, loss, color=LOSS)
    curve.set(xlabel="step", ylabel="loss, both together", ylim=(0, None), title="Training")
    for name, color, label in (("attention", WITH, "with attention"), ("bottleneck", WITHOUT, "one state only")):
        exact = [100 * found["results"][f"{name}_{length}"] for length in LENGTHS]
        lengths.plot(LENGTHS, exact, "o-", color=color, label=label)
    lengths.axvspan(LONGEST, max(LENGTHS) + 1, color="#f1f1ee", zorder=0)
    lengths.text(LONGEST + 4.5, 85, "longer than\nin training", fontsize=8, va="center")
    lengths.set(xlabel="letters", ylabel="% without a mistake", ylim=(-3, 103), xlim=(4, max(LENGTHS) + 1))
    lengths.set(title="Held-out words, copied and reversed", xticks=LENGTHS)
    lengths.legend(fontsize=8, loc="lower left")
    alignment.imshow(looks["weights"], vmin=0, vmax=1, cmap="viridis")
    alignment.set_xticks(range(len(looks["source"])), ["⟲", *looks["source"][1:]], fontsize=7, family="DejaVu Sans")
    alignment.set_yticks(range(len(looks["written"])), looks["written"], fontsize=7)
    alignment.set(xlabel="read", ylabel="written", title="Where it looks to reverse a word")
    return figure


def main(weights: Path | None) -> None:
    beside = HERE / "bottleneck-alignment.json"
    if weights is not None:
        beside.write_text(json.dumps(looked_up(weights)) + "\n", encoding="utf8")
    found, looks = (json.loads(path.read_text(encoding="utf8")) for path in (HERE / "bottleneck.json", beside))
    # without its version in the file, matplotlib writes the same bytes for the same picture
    picture(found, looks).savefig(HERE / "bottleneck.png", dpi=90, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
