"""Draws speech.png: `.venv/bin/python docs/training/make_speech.py runs/speech/model.safetensors [data]`."""

import json
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch.nn.functional import pad

from regard.models.store import fit, read
from regard.models.tasks.speech import DIGITS, FRAMES, MARGIN, as_float, clips, framed, made, spoken

HERE = Path(__file__).parent
VOICE, PLACE = "f1", 57  # held out; its American seven
HOP = FRAMES.step / FRAMES.rate


def main(path, data):
    tensors, words = read(path)
    model = made(words).eval()
    fit(model, tensors, path)
    clip, sound = clips(VOICE)[PLACE], spoken(VOICE, data)[PLACE]
    frames, lengths = framed([pad(as_float(sound), (MARGIN, MARGIN))])
    with torch.no_grad():
        likely = model(frames, lengths=lengths).softmax(-1)[0]
        looks = torch.cat([layer.own.weights[0, :, 0, 1:] for layer in model.attend(frames, lengths=lengths)])
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.5), height_ratios=(1, 1))
    draw_curve(figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0]))
    above, below = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])
    found = int(likely.argmax())
    above.set_title(
        f"“{DIGITS[clip.digit]}” by {VOICE}, held out: heard as “{DIGITS[found]}” with {float(likely[found]):.2f}"
    )
    draw_clip(above, below, frames[0], looks, model.encoder.designs[0].heads)
    figure.savefig(HERE / "speech.png", dpi=110, metadata={"Software": None})


def draw_curve(above, below):
    points = json.loads((HERE / "speech.json").read_text(encoding="utf8"))["step, loss, accuracy"]
    steps, losses, shares = zip(*points, strict=True)
    above.plot(steps, losses, color="#0b4a78")
    above.set_title("Training on varied clips")
    above.set_ylabel("loss")
    below.plot(steps, shares, color="#0b4a78")
    below.set_ylabel("share recognised")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.set_xlim(0, steps[-1])
        axes.grid(alpha=0.3)


def draw_clip(above, below, frames, looks, heads):
    """The frames, and below on the same axis where the gathering token of each head looks; a token is drawn over the
    four frames in the middle of its seven."""
    seconds = len(frames) * HOP
    extent = (0, seconds, 0, FRAMES.bands)
    image = above.imshow(frames.mT, origin="lower", aspect="auto", extent=extent, cmap="magma")
    above.figure.colorbar(image, ax=above, label="log power")
    above.set_ylabel("mel band")
    rows, tokens = looks.shape
    begin = 1.5 * HOP
    extent = (begin, begin + tokens * 4 * HOP, rows, 0)
    image = below.imshow(looks, aspect="auto", extent=extent, cmap="viridis", vmin=0)
    below.figure.colorbar(image, ax=below, label="weight")
    below.set_title("Where the gathering token looks")
    below.set_xlim(0, seconds)
    below.set_yticks([row + 0.5 for row in range(rows)])
    below.set_yticklabels([f"{row // heads + 1}.{row % heads + 1}" for row in range(rows)], fontsize=8)
    below.set_ylabel("layer.head")
    below.set_xlabel("seconds")
    for line in range(heads, rows, heads):
        below.axhline(line, color="white", linewidth=1.5)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path("data"))
