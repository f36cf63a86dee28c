"""Draws language.png: the curve of language.json, every head's share of induction, and the strongest one's weights."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from regard.models.shipped import language_model
from regard.models.tasks.language import STAGES, induction

HERE = Path(__file__).parent
TEXT = " The captain saw the white whale and the boats went down. The captain saw the white whale and the boats"


def main() -> None:
    curve = json.loads((HERE / "language.json").read_text(encoding="utf8"))
    steps, losses, _ = zip(*curve["step, loss, accuracy"], strict=True)
    model, tokens = language_model()
    shares = torch.stack(induction(model))
    layer, head = divmod(int(shares.argmax()), shares.shape[1])
    ids = tokens.encode(TEXT)
    with torch.no_grad():
        weights = model.decoder.attend(model.embedding(torch.tensor([ids])))[layer].own.weights[0, head]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained", width_ratios=(3, 3, 4))
    left.plot(steps, losses, color="#0b7285")
    for stage in STAGES[:-1]:  # what is read changes there
        left.axvline(stage.until, color="#bbbbbb", linewidth=0.8, zorder=0)
    left.set_xlabel("step")
    left.set_ylabel("loss of a token")
    shown = middle.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    middle.set_xlabel("head")
    middle.set_ylabel("layer")
    middle.set_yticks(range(len(shares)))
    middle.set_title("weight on what followed the last time,\nrandom tokens", fontsize=10)
    figure.colorbar(shown, ax=middle, shrink=0.6)
    names = tokens.texts(ids)
    right.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    right.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    right.set_yticks(range(len(names)), names, fontsize=7)
    right.set_title(f"layer {layer}, head {head}: a sentence said twice", fontsize=10)
    figure.savefig(HERE / "language.png", dpi=100)


if __name__ == "__main__":
    main()
