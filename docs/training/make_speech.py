"""Draw speech.png: `.venv/bin/python docs/training/make_speech.py runs/speech/model.safetensors [data]`."""

import json
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch.nn.functional import pad

from regard.files.tensors_with_metadata import load_tensors_and_metadata
from regard.models.state_dict import load_state_dict
from regard.models.tasks.speech import (
    DIGITS,
    MARGIN_SAMPLES,
    SPECTROGRAM,
    as_float,
    build_model,
    clips,
    load_or_synthesize,
    spectrogram_batch,
)

HERE = Path(__file__).parent
VOICE, CLIP_INDEX = "f1", 57  # a held-out voice, "seven" in American English
HOP_S = SPECTROGRAM.hop_length / SPECTROGRAM.sample_rate


def main(path, data):
    tensors, config = load_tensors_and_metadata(path)
    model = build_model(config).eval()
    load_state_dict(model, tensors, path)
    clip, waveform = clips(VOICE)[CLIP_INDEX], load_or_synthesize(VOICE, data)[CLIP_INDEX]
    frames, lengths = spectrogram_batch([pad(as_float(waveform), (MARGIN_SAMPLES, MARGIN_SAMPLES))])
    with torch.no_grad():
        probabilities = model(frames, lengths=lengths).softmax(-1)[0]
        layers = model.attention_with_weights(frames, lengths=lengths)
        weights = torch.cat([layer.self_attention.weights[0, :, 0, 1:] for layer in layers])
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.5), height_ratios=(1, 1))
    draw_curve(figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0]))
    above, below = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])
    predicted = int(probabilities.argmax())
    probability = float(probabilities[predicted])
    above.set_title(
        f"“{DIGITS[clip.digit]}” by {VOICE}, held out: predicted “{DIGITS[predicted]}” with {probability:.2f}"
    )
    draw_clip(above, below, frames[0], weights, model.encoder.block_configs[0].num_heads)
    figure.savefig(HERE / "speech.png", dpi=110, metadata={"Software": None})


def draw_curve(above, below):
    points = json.loads((HERE / "speech.json").read_text(encoding="utf8"))["curve"]
    steps, losses, accuracies = zip(*points, strict=True)
    above.plot(steps, losses, color="#0b4a78")
    above.set_title("Training on augmented clips")
    above.set_ylabel("loss")
    below.plot(steps, accuracies, color="#0b4a78")
    below.set_ylabel("accuracy")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.set_xlim(0, steps[-1])
        axes.grid(alpha=0.3)


def draw_clip(above, below, frames, weights, num_heads):
    """Draw the frames, and below them on the same axis the weights of the CLS token of each head.

    A token is drawn over the middle four of its seven frames.
    """
    seconds = len(frames) * HOP_S
    extent = (0, seconds, 0, SPECTROGRAM.n_mels)
    image = above.imshow(frames.mT, origin="lower", aspect="auto", extent=extent, cmap="magma")
    above.figure.colorbar(image, ax=above, label="log power")
    above.set_ylabel("mel band")
    rows, tokens = weights.shape
    start = 1.5 * HOP_S
    extent = (start, start + tokens * 4 * HOP_S, rows, 0)
    image = below.imshow(weights, aspect="auto", extent=extent, cmap="viridis", vmin=0)
    below.figure.colorbar(image, ax=below, label="weight")
    below.set_title("Attention of the CLS token")
    below.set_xlim(0, seconds)
    below.set_yticks([row + 0.5 for row in range(rows)])
    below.set_yticklabels([f"{row // num_heads + 1}.{row % num_heads + 1}" for row in range(rows)], fontsize=8)
    below.set_ylabel("layer.head")
    below.set_xlabel("seconds")
    for line in range(num_heads, rows, num_heads):
        below.axhline(line, color="white", linewidth=1.5)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path("data"))
