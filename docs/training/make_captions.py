"""Draws captions.png again: `.venv/bin/python docs/training/make_captions.py runs/captions/model.safetensors [folder]`.

Digits are taken from the folder data, as in training.
"""

import sys
from pathlib import Path

import torch
from make_digits import curve, laid_over
from matplotlib.figure import Figure

from regard.models.store import fit, read
from regard.models.tasks.captions import WORDS, CaptionsTask, decode, drawn, made
from regard.nn import generate

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "data"
LAYER = -1
CANVASES = (0, 1)  # of those that are drawn for testing


def written(model, canvases):
    """What the model writes about canvases, as words."""
    first = canvases.tokens[:, :1]
    found = generate(model.seeing(canvases.images), first, most=20, stop=WORDS.index("<end>"))
    return torch.cat((first, found), dim=1), [decode(row) for row in found.tolist()]


def picture(path):
    tensors, words = read(path)
    model = made(words)
    fit(model, tensors, path)
    model.eval()
    canvases = drawn(CaptionsTask(DATA).parts[1], 40, torch.Generator().manual_seed(1))
    with torch.no_grad():
        tokens, captions = written(model, canvases)
        looks = model.attend(tokens[:, :-1], canvases.images)[LAYER].memory.weights[...].mean(1)
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 2))
    curve(left.subplots(), "captions.json")
    rows = right.subfigures(len(CANVASES), 1)
    for row, place in zip(rows, CANVASES, strict=True):
        told = [i for i, word in enumerate(canvases.captions[place]) if word.cells]
        row.suptitle(f"{canvases.ways[place]}: {captions[place]}", fontsize=9)
        for axes, i in zip(row.subplots(1, len(told), squeeze=False)[0], told, strict=True):
            word = WORDS[int(tokens[place, i + 1])]
            laid_over(axes, canvases.images[place, 0], looks[place, i].unflatten(0, model.eye.grid), word)
    return figure


def main(path, folder):
    picture(path).savefig(folder / "captions.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else HERE)
