"""Draw speech.png: `.venv/bin/python docs/training/make_speech.py [runs/speech/model.safetensors [data]]`.

With a file of weights, the frames of one clip and its attention are first written to speech-attention.json.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from panels import draw_loss_and_accuracy, save_picture
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
from regard.plot.figure import add_title
from regard.plot.style import (
    PAGE_WIDTH_IN,
    PAPER_COLOR,
    apply_style,
    new_figure,
    sequential_colormap,
    set_title,
)

VOICE, CLIP_INDEX = "f1", 57  # a held-out voice, "seven" in American English
HOP_S = SPECTROGRAM.hop_length / SPECTROGRAM.sample_rate
TITLE_WIDTH_IN = 4.8


def attention_of_clip(path, data):
    """Return the frames (frames, bands) of a clip, and the weights of the CLS token (layers x heads, tokens)."""
    tensors, config = load_tensors_and_metadata(path)
    model = build_model(config).eval()
    load_state_dict(model, tensors, path)
    clip, waveform = clips(VOICE)[CLIP_INDEX], load_or_synthesize(VOICE, data)[CLIP_INDEX]
    frames, lengths = spectrogram_batch([pad(as_float(waveform), (MARGIN_SAMPLES, MARGIN_SAMPLES))])
    with torch.no_grad():
        probabilities = model(frames, lengths=lengths).softmax(-1)[0]
        layers = model.attention_with_weights(frames, lengths=lengths)
        weights = torch.cat([layer.self_attention.weights[0, :, 0, 1:] for layer in layers])
    predicted = int(probabilities.argmax())
    return {
        "digit": DIGITS[clip.digit],
        "voice": VOICE,
        "predicted": DIGITS[predicted],
        "probability": round(float(probabilities[predicted]), 2),
        "num_heads": model.encoder.block_configs[0].num_heads,
        "frames": [[round(value, 1) for value in row] for row in frames[0].tolist()],
        "weights": [[round(value, 2) for value in row] for row in weights.tolist()],
    }


def picture(run, clip):
    figure = new_figure(PAGE_WIDTH_IN, 7.6)
    above, below = figure.subfigures(2, 1, height_ratios=(1, 2))
    draw_loss_and_accuracy(*above.subplots(1, 2), run)
    spectrogram, weights = below.subplots(2, 1, height_ratios=(1, 1.4), sharex=True)
    draw_spectrogram(spectrogram, clip)
    draw_weights(weights, clip)
    results = run["results"]
    add_title(figure, f"{results['accuracy']:.1%} of {results['num_tested']:,.0f} clips of held-out voices are correct")
    return apply_style(figure)


def draw_spectrogram(axes, clip):
    frames = np.array(clip["frames"])
    extent = (0, len(frames) * HOP_S, 0, frames.shape[1])
    image = axes.imshow(frames.T, origin="lower", aspect="auto", extent=extent, cmap=sequential_colormap())
    axes.figure.colorbar(image, ax=axes, pad=0.02, label="log power").outline.set_visible(False)
    axes.set(ylabel="mel band")
    title = (
        f"“{clip['digit']}” by {clip['voice']}: predicted “{clip['predicted']}” with probability {clip['probability']}"
    )
    set_title(axes, title, TITLE_WIDTH_IN)


def draw_weights(axes, clip):
    """Draw the weights of each head. A token is drawn over the middle four of its seven frames."""
    weights, num_heads = np.array(clip["weights"]), clip["num_heads"]
    rows, tokens = weights.shape
    start = 1.5 * HOP_S
    extent = (start, start + tokens * 4 * HOP_S, rows, 0)
    image = axes.imshow(weights, aspect="auto", extent=extent, cmap=sequential_colormap(), vmin=0)
    axes.figure.colorbar(image, ax=axes, pad=0.02, label="weight").outline.set_visible(False)
    labels = [f"{row // num_heads + 1}.{row % num_heads + 1}" for row in range(rows)]
    axes.set(xlabel="time (s)", ylabel="layer.head", xlim=(0, len(clip["frames"]) * HOP_S))
    axes.set_yticks(np.arange(rows) + 0.5, labels)
    for line in range(num_heads, rows, num_heads):
        axes.axhline(line, color=PAPER_COLOR, linewidth=4)
    row, token = np.unravel_index(weights.argmax(), weights.shape)
    seconds = start + (token + 0.5) * 4 * HOP_S
    title = f"The CLS token puts a weight of {weights.max():.2f} on {seconds:.2f} s, in head {labels[row]}"
    set_title(axes, title, TITLE_WIDTH_IN)


def main(path, data):
    save_picture("speech", picture, path and (lambda: attention_of_clip(path, data)))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None, Path(sys.argv[2]) if len(sys.argv) > 2 else Path("data"))
