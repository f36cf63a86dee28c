"""Draw digits.png: `.venv/bin/python docs/training/make_digits.py [runs/digits/model.safetensors]`.

With a file of weights, the attention on ten held-out images is first written to digits-attention.json.
"""

import sys
from pathlib import Path

import torch
from panels import draw_loss_and_accuracy, draw_overlay, save_picture

from regard.files.tensors_with_metadata import load_tensors_and_metadata
from regard.models.state_dict import load_state_dict
from regard.models.tasks.digits import DigitsTask, build_model
from regard.plot.figure import add_title
from regard.plot.style import CURVE_COLORS, INK_COLOR, PAGE_WIDTH_IN, apply_style, new_figure

NUM_DIGITS = 10  # one image of each


def attention_of_images(path):
    """Return ten held-out images, their predictions, and the weights of the CLS token relative to the largest.

    The weights are those of the last layer, averaged over heads.
    """
    tensors, config = load_tensors_and_metadata(path)
    model = build_model(config)
    load_state_dict(model, tensors, path)
    model.eval()
    held_out = DigitsTask().splits[1]
    indices = torch.stack([(held_out.labels == digit).nonzero()[0, 0] for digit in range(NUM_DIGITS)])
    images = held_out.images[indices].unsqueeze(1)
    with torch.no_grad():
        predicted = model(images).argmax(-1)
        weights = model.attention_with_weights(images)[-1].self_attention.weights[:, :, 0, 1:].mean(1)
        weights = weights.unflatten(-1, model.grid_size)
    return [
        {
            "true": digit,
            "predicted": int(predicted[digit]),
            "image": rounded(images[digit, 0]),
            "weights": rounded(grid / grid.max()),
        }
        for digit, grid in enumerate(weights)
    ]


def rounded(values):
    return [[round(value, 4) for value in row] for row in values.tolist()]


def picture(run, images):
    results = run["results"]
    correct = int(results["num_tested"] - results["num_wrong"])
    figure = new_figure(PAGE_WIDTH_IN, 6.6)
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.5))
    draw_loss_and_accuracy(*above.subplots(1, 2), run)
    for axes, image in zip(below.subplots(2, 5).flat, images, strict=True):
        draw_overlay(axes, image["image"], image["weights"])
        is_wrong = image["true"] != image["predicted"]
        axes.set_title(
            f"true: {image['true']}\npredicted: {image['predicted']}",
            color=CURVE_COLORS[1] if is_wrong else INK_COLOR,
            fontweight="bold" if is_wrong else "normal",
        )
    title = f"{correct} of {results['num_tested']:.0f} held-out digits are correct. Orange: weights of the CLS token"
    add_title(figure, title)
    return apply_style(figure)


def main(path):
    save_picture("digits", picture, path and (lambda: attention_of_images(path)))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
