"""Draw bottleneck.png: `.venv/bin/python docs/training/make_bottleneck.py [runs/bottleneck/model.safetensors]`.

With a file of weights, the attention weights for one word are first written to bottleneck-alignment.json.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

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

HERE = Path(__file__).parent
WORD = "sphinxofblackquartz"
WITH, WITHOUT, LOSS = "#0b4a78", "#d55e00", "#444444"


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
    figure = Figure(figsize=(11.5, 3.6), layout="constrained")
    curve, lengths, alignment = figure.subplots(1, 3)
    step, loss, _ = np.array(run["curve"]).T
    curve.plot(step, loss, color=LOSS)
    curve.set(xlabel="step", ylabel="sum of both losses", ylim=(0, None), title="Training")
    for name, color, label in (("attention", WITH, "with attention"), ("bottleneck", WITHOUT, "without attention")):
        exact = [100 * run["results"][f"{name}_{length}"] for length in TEST_LENGTHS]
        lengths.plot(TEST_LENGTHS, exact, "o-", color=color, label=label)
    lengths.axvspan(MAX_TRAIN_LETTERS, max(TEST_LENGTHS) + 1, color="#f1f1ee", zorder=0)
    lengths.text(MAX_TRAIN_LETTERS + 4.5, 85, "longer than\nin training", fontsize=8, va="center")
    lengths.set(xlabel="letters", ylabel="exact match (%)", ylim=(-3, 103), xlim=(4, max(TEST_LENGTHS) + 1))
    lengths.set(title="Held-out words, copied and reversed", xticks=TEST_LENGTHS)
    lengths.legend(fontsize=8, loc="center")
    alignment.imshow(alignments["weights"], vmin=0, vmax=1, cmap="viridis")
    alignment.set_xticks(
        range(len(alignments["source"])), ["⟲", *alignments["source"][1:]], fontsize=7, family="DejaVu Sans"
    )
    alignment.set_yticks(range(len(alignments["target"])), alignments["target"], fontsize=7)
    alignment.set(xlabel="source", ylabel="target", title="Attention while reversing a word")
    return figure


def main(weights: Path | None) -> None:
    alignment_path = HERE / "bottleneck-alignment.json"
    if weights is not None:
        alignment_path.write_text(json.dumps(alignment_weights(weights)) + "\n", encoding="utf8")
    paths = HERE / "bottleneck.json", alignment_path
    run, alignments = (json.loads(path.read_text(encoding="utf8")) for path in paths)
    # without matplotlib's version in the metadata, the same picture has the same bytes
    picture(run, alignments).savefig(HERE / "bottleneck.png", dpi=90, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
