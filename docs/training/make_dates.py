"""Draws dates.png: the curve of dates.json, and where the translator that comes with the package looks."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from regard.models.shipped import translator
from regard.models.tasks.dates import BEGIN, encode

HERE = Path(__file__).parent
WORDS = "on friday , the twenty first of march nineteen eighty six".split()
WRITTEN = "1986-03-21"


def looks() -> torch.Tensor:
    """(written, words): the largest weight that any head of any layer gives."""
    model = translator()
    source, _ = encode([WORDS], "source")
    target, _ = encode([[BEGIN, *WRITTEN[:-1]]], "target")
    with torch.no_grad():
        memory = model.transformer.encoder(model.source_embedding(source))
        found = model.transformer.decoder.attend(model.target_embedding(target), memory)
        return torch.stack([look.memory.weights[0] for look in found if look.memory is not None]).amax((0, 1))


def main() -> None:
    curve = json.loads((HERE / "dates.json").read_text(encoding="utf8"))
    steps, losses, right = zip(*curve["step, loss, accuracy"], strict=True)
    figure, (left, other) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.plot(steps, losses, color="#0b7285", label="loss")
    left.plot(steps, right, color="#f08c00", label="share of digits that are right")
    left.set_xlabel("step")
    left.set_ylim(bottom=0)
    left.legend(frameon=False)
    other.imshow(looks(), cmap="Blues", vmin=0, vmax=1)
    other.set_xticks(range(len(WORDS)), WORDS, rotation=60, ha="right")
    other.set_yticks(range(len(WRITTEN)), list(WRITTEN))
    other.set_title("where it looks to write each sign", fontsize=10)
    figure.savefig(HERE / "dates.png", dpi=100)


if __name__ == "__main__":
    main()
