"""Panels of the pictures of this folder: the curve of a run, and attention over an image."""

import json
from pathlib import Path

import torch

from regard.plot.style import CURVE_COLORS, OVERLAY_COLOR, save_for_page, set_title, style_chart

HERE = Path(__file__).parent
IMAGE_COLORMAP = "gray"


def read_json(name):
    return json.loads((HERE / name).read_text(encoding="utf8"))


def save_picture(name, picture, compute_attention=None):
    """Save `picture(run, attention)` as NAME.png, from NAME.json and NAME-attention.json.

    `compute_attention`, if given, returns the attention, which is written first.
    """
    attention_path = HERE / f"{name}-attention.json"
    if compute_attention is not None:
        attention_path.write_text(json.dumps(compute_attention()) + "\n", encoding="utf8")
    save_for_page(picture(read_json(f"{name}.json"), read_json(attention_path.name)), HERE / f"{name}.png")


def draw_curve(axes, run, column, ylabel, title, width=2.2):
    """Draw one column of a run's curve over the steps: 1 for the loss, 2 for the accuracy."""
    steps, values = [point[0] for point in run["curve"]], [point[column] for point in run["curve"]]
    axes.plot(steps, values, color=CURVE_COLORS[column - 1], linewidth=1.8)
    axes.set(xlabel="step", ylabel=ylabel, xlim=(0, steps[-1]), ylim=(0, None if column == 1 else 1.02))
    style_chart(axes)
    axes.xaxis.get_major_locator().set_params(nbins=4)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    set_title(axes, title, width)


def draw_loss_and_accuracy(loss_axes, accuracy_axes, run):
    """Draw the loss and the training accuracy of a run; titles have the last values."""
    _, loss, accuracy = run["curve"][-1]
    draw_curve(loss_axes, run, 1, "loss", f"The loss falls to {loss:.2f}")
    draw_curve(accuracy_axes, run, 2, "accuracy", f"{accuracy:.1%} are correct in training")


def draw_overlay(axes, image, weights):
    """Draw a gray image, and over it in orange the weights (rows, columns) of its patches."""
    image, weights = torch.as_tensor(image), torch.as_tensor(weights)
    height, width = image.shape
    axes.imshow(image.numpy(), cmap=IMAGE_COLORMAP, extent=(0, width, height, 0), vmin=0, vmax=float(image.max()))
    color = torch.tensor([int(OVERLAY_COLOR[n : n + 2], 16) / 255 for n in (1, 3, 5)]).expand(*weights.shape, 3)
    overlay = torch.cat((color, (0.8 * weights / weights.max()).unsqueeze(-1)), dim=-1)
    axes.imshow(overlay.numpy(), extent=(0, width, height, 0), interpolation="nearest")
    axes.set_axis_off()
