"""Draw dates.png: the curve of dates.json, and the cross-attention of the bundled translator."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from regard.models.bundled import date_translator
from regard.models.tasks.dates import BEGIN, encode

HERE = Path(__file__).parent
WORDS = "on friday , the twenty first of march nineteen eighty six".split()
TARGET = "1986-03-21"


def largest_weights() -> torch.Tensor:
    """Return the largest cross-attention weights (target, source) over all heads and layers."""
    model = date_translator()
    source, _ = encode([WORDS], "source")
    target, _ = encode([[BEGIN, *TARGET[:-1]]], "target")
    with torch.no_grad():
        memory = model.transformer.encoder(model.source_embedding(source))
        layers = model.transformer.decoder.attention_with_weights(model.target_embedding(target), memory)
        cross = [layer.cross_attention for layer in layers if layer.cross_attention is not None]
        return torch.stack([result.weights[0] for result in cross]).amax((0, 1))


def main() -> None:
    curve = json.loads((HERE / "dates.json").read_text(encoding="utf8"))
    steps, losses, accuracies = zip(*curve["curve"], strict=True)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.plot(steps, losses, color="#0b7285", label="loss")
    left.plot(steps, accuracies, color="#f08c00", label="accuracy of digits")
    left.set_xlabel("step")
    left.set_ylim(bottom=0)
    left.legend(frameon=False)
    right.imshow(largest_weights(), cmap="Blues", vmin=0, vmax=1)
    right.set_xticks(range(len(WORDS)), WORDS, rotation=60, ha="right")
    right.set_yticks(range(len(TARGET)), list(TARGET))
    right.set_title("cross-attention for each character", fontsize=10)
    figure.savefig(HERE / "dates.png", dpi=100)


if __name__ == "__main__":
    main()
