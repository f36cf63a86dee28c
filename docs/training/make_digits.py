"""Draw digits.png: `.venv/bin/python docs/training/make_digits.py runs/digits/model.safetensors [folder]`."""

import json
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

from regard.files.tensors_with_metadata import load_tensors_and_metadata
from regard.models.state_dict import load_state_dict
from regard.models.tasks.digits import DigitsTask, build_model

HERE = Path(__file__).parent
NUM_IMAGES = 10  # one of each digit


def draw_curve(axes, name):
    """Draw the loss and the accuracy over the steps, from the file `name`."""
    steps, loss, accuracy = zip(*json.loads((HERE / name).read_text(encoding="utf8"))["curve"], strict=True)
    accuracy_axes = axes.twinx()
    axes.plot(steps, loss, color="#0b4a78")
    accuracy_axes.plot(steps, accuracy, color="#d55e00")
    axes.set_xlabel("step")
    axes.set_ylabel("loss", color="#0b4a78")
    axes.set_ylim(bottom=0)
    accuracy_axes.set_ylabel("training accuracy", color="#d55e00")
    accuracy_axes.set_ylim(0, 1)


def draw_overlay(axes, image, weights, title):
    """Draw an image, and over it in orange the weights (rows, columns) of its patches."""
    height, width = image.shape
    axes.imshow(image, cmap="gray", extent=(0, width, height, 0))
    color = torch.tensor([0.84, 0.37, 0.0]).expand(*weights.shape, 3)
    overlay = torch.cat((color, (0.85 * weights / weights.max()).unsqueeze(-1)), dim=-1)
    axes.imshow(overlay.numpy(), extent=(0, width, height, 0), interpolation="nearest")
    axes.set_title(title, fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])


def picture(path):
    tensors, config = load_tensors_and_metadata(path)
    model = build_model(config)
    load_state_dict(model, tensors, path)
    model.eval()
    held_out = DigitsTask().splits[1]
    indices = torch.stack([(held_out.labels == digit).nonzero()[0, 0] for digit in range(NUM_IMAGES)])
    images = held_out.images[indices].unsqueeze(1)
    with torch.no_grad():
        predicted = model(images).argmax(-1)
        weights = model.attention_with_weights(images)[-1].self_attention.weights[:, :, 0, 1:].mean(1)
        weights = weights.unflatten(-1, model.grid_size)
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.7))
    draw_curve(left.subplots(), "digits.json")
    for axes, image, weight, digit in zip(right.subplots(2, 5).flat, images[:, 0], weights, predicted, strict=True):
        draw_overlay(axes, image, weight, f"predicted {int(digit)}")
    right.suptitle("attention of the CLS token in the last layer, mean over heads", fontsize=9)
    return figure


def main(path, folder):
    # without matplotlib's version in the metadata, the same picture has the same bytes
    picture(path).savefig(folder / "digits.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else HERE)
