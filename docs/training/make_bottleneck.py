"""Draw bottleneck.png: `.venv/bin/python docs/training/make_bottleneck.py [runs/bottleneck/model.safetensors]`.

With a file of weights, the attention weights for one word are first written to bottleneck-alignment.json.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from panels import HERE, draw_curve, read_json

from regard.files.tensors_with_metadata import load_tensors_and_metadata
from regard.models.state_dict import load_state_dict
from regard.models.tasks.bottleneck import (
    BEGIN,
    FIRST_LETTER_TOKEN,
    LETTERS,
    MAX_TRAIN_LETTERS,
    REVERSE,
    TEST_LENGTHS,
    build_model,
    make_batch,
)
from regard.plot.style import (
    CURVE_COLORS,
    HIDDEN_COLOR,
    PAGE_WIDTH_IN,
    apply_style,
    new_figure,
    save_for_page,
    sequential_colormap,
    set_title,
    style_chart,
)

WORD = "sphinxofblackquartz"
# text, position and side of the labels of the curves
LABELS = {
    "attention": ("with attention", 19, 88, "right"),
    "bottleneck": ("without attention", 7.6, 60, "left"),
}


def alignment_weights(weights: Path) -> dict[str, object]:
    """Return the attention weights of a trained translator that reverses `WORD`."""
    tensors, config = load_tensors_and_metadata(weights)
    del config["task"]
    model = build_model(config)
    load_state_dict(model, tensors, weights)
    tokens = torch.tensor([[FIRST_LETTER_TOKEN + LETTERS.index(letter) for letter in WORD]])
    batch = make_batch(tokens, torch.tensor([REVERSE]))
    with torch.no_grad():
        attention_weights = model.attention.encode_source(batch.source, batch.lengths).attention_weights(
            batch.target[:, :-1]
        )[0]
    assert batch.target[0, 0] == BEGIN
    rounded = [[round(weight, 3) for weight in row] for row in attention_weights.tolist()]
    return {"source": ["reverse", *WORD], "target": [*WORD[::-1], "end"], "weights": rounded}


def picture(run: dict, alignments: dict) -> Figure:
    figure = new_figure(PAGE_WIDTH_IN, 6.4)
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.35))
    curve, lengths = above.subplots(1, 2)
    draw_curve(curve, run, 1, "sum of both losses", f"The losses fall to {run['curve'][-1][1]:.1f}")
    exact = {
        name: np.array([100 * run["results"][f"{name}_{length}"] for length in TEST_LENGTHS])
        for name in ("attention", "bottleneck")
    }
    lengths.axvspan(MAX_TRAIN_LETTERS, max(TEST_LENGTHS) + 1, color=HIDDEN_COLOR, linewidth=0, zorder=0)
    for (name, label), color in zip(LABELS.items(), CURVE_COLORS, strict=False):
        lengths.plot(TEST_LENGTHS, exact[name], "o-", color=color, linewidth=1.8, markersize=4.5, clip_on=False)
        text, x, y, side = label
        lengths.text(x, y, text, color=color, ha=side, va="center")
    lengths.text(MAX_TRAIN_LETTERS + 0.5, 28, "longer\nthan in\ntraining", va="center")
    lengths.set(xlabel="letters of a held-out word", ylabel="exact match (%)", ylim=(0, 105))
    lengths.set(xlim=(4, max(TEST_LENGTHS) + 1), xticks=TEST_LENGTHS)
    style_chart(lengths)
    lengths.set_xticks(TEST_LENGTHS)
    row = TEST_LENGTHS.index(MAX_TRAIN_LETTERS)
    with_attention, without = exact["attention"][row], exact["bottleneck"][row]
    title = f"{MAX_TRAIN_LETTERS} letters: {with_attention:.0f}% are exact, without attention {without:.0f}%"
    set_title(lengths, title, 2.2)
    draw_alignment(below.subplots(), alignments)
    return apply_style(figure)


def draw_alignment(axes: Axes, alignments: dict) -> None:
    weights = np.array(alignments["weights"])
    image = axes.imshow(weights, vmin=0, vmax=1, cmap=sequential_colormap(), aspect="auto")
    axes.set_xticks(range(len(alignments["source"])), ["⟲", *alignments["source"][1:]])
    axes.set_yticks(range(len(alignments["target"])), alignments["target"])
    axes.set(xlabel="source letter (⟲: reverse)", ylabel="target letter")
    targets = weights[:-1, 1:].argmax(-1)[::-1]
    count = int((targets == np.arange(len(targets))).sum())
    set_title(axes, f"Reversing a word, {count} of {len(targets)} letters attend most to their source", 5.0)
    axes.figure.colorbar(image, ax=axes, pad=0.02, label="weight").outline.set_visible(False)


def main(weights: Path | None) -> None:
    alignment_path = HERE / "bottleneck-alignment.json"
    if weights is not None:
        alignment_path.write_text(json.dumps(alignment_weights(weights)) + "\n", encoding="utf8")
    figure = picture(read_json("bottleneck.json"), read_json(alignment_path.name))
    save_for_page(figure, HERE / "bottleneck.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
