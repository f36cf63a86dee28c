"""Draw captions.png: `.venv/bin/python docs/training/make_captions.py runs/captions/model.safetensors [folder]`.

The digits are read from the folder data, as in training.
"""

import sys
from pathlib import Path

import torch
from make_digits import draw_curve, draw_overlay
from matplotlib.figure import Figure

from regard.files.tensors_with_metadata import load_tensors_and_metadata
from regard.models.state_dict import load_state_dict
from regard.models.tasks.captions import VOCABULARY, CaptionsTask, build_model, decode, sample_canvases
from regard.nn import generate

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "data"
LAYER = -1
CANVAS_INDICES = (0, 1)  # among the sampled test canvases


def generated_captions(model, canvases):
    """Return the tokens that the model generates for canvases, and their texts."""
    first = canvases.tokens[:, :1]
    end = VOCABULARY.index("<end>")
    generated = generate(model.encode_images(canvases.images), first, max_new_tokens=20, eos_token_id=end)
    return torch.cat((first, generated), dim=1), [decode(row) for row in generated.tolist()]


def picture(path):
    tensors, config = load_tensors_and_metadata(path)
    model = build_model(config)
    load_state_dict(model, tensors, path)
    model.eval()
    canvases = sample_canvases(CaptionsTask(DATA).splits[1], 40, torch.Generator().manual_seed(1))
    with torch.no_grad():
        tokens, captions = generated_captions(model, canvases)
        results = model.attention_with_weights(tokens[:, :-1], canvases.images)
        weights = results[LAYER].cross_attention.weights[...].mean(1)
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 2))
    draw_curve(left.subplots(), "captions.json")
    rows = right.subfigures(len(CANVAS_INDICES), 1)
    for row, index in zip(rows, CANVAS_INDICES, strict=True):
        positions = [i for i, word in enumerate(canvases.captions[index]) if word.cells]
        row.suptitle(f"{canvases.reading_orders[index]}: {captions[index]}", fontsize=9)
        for axes, i in zip(row.subplots(1, len(positions), squeeze=False)[0], positions, strict=True):
            word = VOCABULARY[int(tokens[index, i + 1])]
            grid = weights[index, i].unflatten(0, model.vision_encoder.grid_size)
            draw_overlay(axes, canvases.images[index, 0], grid, word)
    return figure


def main(path, folder):
    picture(path).savefig(folder / "captions.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else HERE)
