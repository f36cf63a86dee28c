"""Draw captions.png: `.venv/bin/python docs/training/make_captions.py [runs/captions/model.safetensors]`.

With a file of weights, captions-attention.json is first written; the digits are read from the folder data, as in
training.
"""

import sys
from pathlib import Path

import torch
from panels import HERE, draw_loss_and_accuracy, draw_overlay, save_picture

from regard.files.tensors_with_metadata import load_tensors_and_metadata
from regard.models.state_dict import load_state_dict
from regard.models.tasks.captions import VOCABULARY, CaptionsTask, build_model, decode, sample_canvases
from regard.nn import generate
from regard.plot.figure import add_title
from regard.plot.style import INK_COLOR, PAGE_WIDTH_IN, apply_style, new_figure, wrap_text

DATA = HERE.parents[1] / "data"
LAYER = -1
CANVAS_INDICES = (0, 1)  # among the sampled test canvases


def generated_captions(model, canvases):
    """Return the tokens that the model generates for canvases, and their texts."""
    first = canvases.tokens[:, :1]
    end = VOCABULARY.index("<end>")
    generated = generate(model.encode_images(canvases.images), first, max_new_tokens=20, eos_token_id=end)
    return torch.cat((first, generated), dim=1), [decode(row) for row in generated.tolist()]


def attention_of_canvases(path):
    """Return canvases with their generated captions, and for each named digit the weights relative to the largest."""
    tensors, config = load_tensors_and_metadata(path)
    model = build_model(config)
    load_state_dict(model, tensors, path)
    model.eval()
    canvases = sample_canvases(CaptionsTask(DATA).splits[1], 40, torch.Generator().manual_seed(1))
    with torch.no_grad():
        tokens, captions = generated_captions(model, canvases)
        results = model.attention_with_weights(tokens[:, :-1], canvases.images)
        weights = results[LAYER].cross_attention.weights[...].mean(1)
    entries = []
    for index in CANVAS_INDICES:
        words = []
        for i, word in enumerate(canvases.captions[index]):
            if word.cells:
                grid = weights[index, i].unflatten(0, model.vision_encoder.grid_size)
                relative = [[round(value, 2) for value in row] for row in (grid / grid.max()).tolist()]
                words.append({"word": VOCABULARY[int(tokens[index, i + 1])], "weights": relative})
        shades = canvases.images[index, 0] - canvases.images.min()  # images have mean 0
        image = [bytes(row).hex() for row in (255 * shades / shades.max()).round().int().tolist()]
        order = canvases.reading_orders[index]
        entries.append({"reading_order": order, "caption": captions[index], "image": image, "words": words})
    return entries


def picture(run, canvases):
    figure = new_figure(PAGE_WIDTH_IN, 7.2)
    parts = figure.subfigures(1 + len(canvases), 1, height_ratios=(1.05, *(1 for _ in canvases)))
    draw_loss_and_accuracy(*parts[0].subplots(1, 2), run)
    exact = run["results"]["exact_match"]
    add_title(figure, f"{exact:.1%} of captions are exact. Orange: where the decoder attends for a word")
    for part, canvas in zip(parts[1:], canvases, strict=True):
        image = [list(bytes.fromhex(row)) for row in canvas["image"]]
        title = f"{canvas['reading_order']}: “{canvas['caption']}”"
        part.suptitle(wrap_text(title, PAGE_WIDTH_IN - 0.3), x=0.02, ha="left", color=INK_COLOR)
        panels = part.subplots(1, max(len(entry["words"]) for entry in canvases))
        for axes in panels:
            axes.set_axis_off()
        for axes, word in zip(panels, canvas["words"], strict=False):
            draw_overlay(axes, image, word["weights"])
            axes.set_title(word["word"], fontweight="bold")
    return apply_style(figure)


def main(path):
    save_picture("captions", picture, path and (lambda: attention_of_canvases(path)))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
