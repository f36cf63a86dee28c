"""Draws digits.png again: `.venv/bin/python docs/training/make_digits.py runs/digits/model.safetensors [folder]`."""

import json
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

from regard.models.store import fit, read
from regard.models.tasks.digits import DigitsTask, made

HERE = Path(__file__).parent
SHOWN = 10  # one image of each digit


def curve(axes, name):
    """Loss and share of right answers over the steps, from the file of that name."""
    steps, loss, right = zip(*json.loads((HERE / name).read_text(encoding="utf8"))["step, loss, accuracy"], strict=True)
    beside = axes.twinx()
    axes.plot(steps, loss, color="#0b4a78")
    beside.plot(steps, right, color="#d55e00")
    axes.set_xlabel("step")
    axes.set_ylabel("loss", color="#0b4a78")
    axes.set_ylim(bottom=0)
    beside.set_ylabel("right while training", color="#d55e00")
    beside.set_ylim(0, 1)


def laid_over(axes, image, weights, title):
    """An image, and over it in orange how much attention each of its patches (rows, columns) gets."""
    height, width = image.shape
    axes.imshow(image, cmap="gray", extent=(0, width, height, 0))
    colour = torch.tensor([0.84, 0.37, 0.0]).expand(*weights.shape, 3)
    over = torch.cat((colour, (0.85 * weights / weights.max()).unsqueeze(-1)), dim=-1)
    axes.imshow(over.numpy(), extent=(0, width, height, 0), interpolation="nearest")
    axes.set_title(title, fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])


def drawn(path):
    tensors, words = read(path)
    model = made(words)
    fit(model, tensors, path)
    model.eval()
    held = DigitsTask().parts[1]
    chosen = torch.stack([(held.digits == digit).nonzero()[0, 0] for digit in range(SHOWN)])
    images = held.images[chosen].unsqueeze(1)
    with torch.no_grad():
        found = model(images).argmax(-1)
        weights = model.attend(images)[-1].own.weights[:, :, 0, 1:].mean(1).unflatten(-1, model.grid)
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.7))
    curve(left.subplots(), "digits.json")
    for axes, image, weight, digit in zip(right.subplots(2, 5).flat, images[:, 0], weights, found, strict=True):
        laid_over(axes, image, weight, f"told as {int(digit)}")
    right.suptitle("where the gathering token looks in the last layer, mean of all heads", fontsize=9)
    return figure


def main(path, folder):
    # without its version in the file, matplotlib writes the same bytes for the same picture
    drawn(path).savefig(folder / "digits.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else HERE)
