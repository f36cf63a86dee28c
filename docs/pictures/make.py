"""Makes the pictures of the README and of the documents again: `.venv/bin/python docs/pictures/make.py [folder]`."""

import runpy
import sys
from pathlib import Path

import numpy as np

import regard
from regard import draw, mask, measure

HERE = Path(__file__).parent
FIRST_LOOK = HERE.parents[1] / "examples" / "first_look.py"


def repetition():
    """README: the head of examples/first_look.py, 8192 tokens, from what one pass over tiles measured."""
    q, k, v = runpy.run_path(str(FIRST_LOOK))["repetition_head"]()
    found = regard.attend(q, k, v, mask=mask.causal()).weights.measure(measure.pool(128, 128))
    return draw.weights(found.pool, scale="log", title="A head that looks for what followed its token before")


def tour():
    """docs/tour.md: the mask of the call that is followed there."""
    return draw.mask(mask.causal() & mask.window(1024), 4096)


def worked():
    """docs/from-scratch.md: the weights of its three words."""
    words = np.array([[1.0, 2.0, 3.0], [0.5, 1.0, 1.5], [2.0, 1.0, 0.5]])
    q = words @ [[0.6, -0.2], [0.1, 0.5], [-0.3, 0.4]]
    k = words @ [[0.2, 0.3], [-0.4, 0.7], [0.5, -0.1]]
    return draw.weights(regard.attend(q, k, words).weights[...], ["dog", "ate", "dinner"])


PICTURES = {"repetition.png": repetition, "mask.png": tour, "worked.png": worked}


def main(folder):
    for name, picture in PICTURES.items():
        # without its version in the file, matplotlib writes the same bytes for the same picture
        picture().savefig(folder / name, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
