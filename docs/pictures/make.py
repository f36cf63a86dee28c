"""Make three pictures of the documentation: `.venv/bin/python docs/pictures/make.py [folder]`."""

import runpy
import sys
from pathlib import Path

import numpy as np

import regard
from regard import mask, measure, plot

HERE = Path(__file__).parent
FIRST_LOOK = HERE.parents[1] / "examples" / "first_look.py"


def induction_head():
    """Return the picture of docs/recording.md: the head of examples/first_look.py over 8192 tokens."""
    q, k, v = runpy.run_path(str(FIRST_LOOK))["induction_head"]()
    measured = regard.attention_with_weights(q, k, v, mask=mask.causal()).weights.measure(measure.pooled_map(128, 128))
    return plot.weights(measured.pooled_map, scale="log", title="An induction head over a phrase repeated eight times")


def causal_window():
    """Return the picture of docs/architecture.md: the mask of its call."""
    return plot.mask(mask.causal() & mask.sliding_window(1024), 4096)


def three_words():
    """Return the picture of docs/from-scratch.md: the weights of its three words."""
    words = np.array([[1.0, 2.0, 3.0], [0.5, 1.0, 1.5], [2.0, 1.0, 0.5]])
    q = words @ [[0.6, -0.2], [0.1, 0.5], [-0.3, 0.4]]
    k = words @ [[0.2, 0.3], [-0.4, 0.7], [0.5, -0.1]]
    return plot.weights(regard.attention_with_weights(q, k, words).weights[...], ["dog", "ate", "dinner"])


PICTURES = {"repetition.png": induction_head, "mask.png": causal_window, "three-words.png": three_words}


def main(folder):
    for name, picture in PICTURES.items():
        # without its version in the file, matplotlib writes the same bytes for the same picture
        picture().savefig(folder / name, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
