"""Make three pictures of the documentation: `.venv/bin/python docs/pictures/make.py [folder]`."""

import runpy
import sys
from pathlib import Path

from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

import regard
from regard import mask, measure, plot
from regard.plot.figure import draw_cell_borders
from regard.plot.style import HIDDEN_COLOR, VISIBLE_COLOR

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


MASKS = {
    "causal()": mask.causal(),
    "sliding_window(8)": mask.sliding_window(8),
    "dilated(4, 2)": mask.dilated(4, 2),
    "chunked(8)": mask.chunked(8),
    "strided(8)": mask.strided(8),
    "fixed(8)": mask.fixed(8),
    "causal() | prefix(5)": mask.causal() | mask.prefix(5),
    "document(ids)": mask.document([0] * 20 + [1] * 12),
    "random_blocks(8, 2)": mask.random_blocks(8, 2),
    "global_tokens([0])": mask.global_tokens([0]),
    "longformer(8, [0])": mask.longformer(8, [0]),
    "bigbird(2)": mask.bigbird(2),
}


def all_masks():
    """Return the picture of docs/how-to/options.md: masks of 32 queries and 32 keys."""
    figure = Figure(figsize=(7.2, 6.0), layout="compressed")
    for axes, (name, pattern) in zip(figure.subplots(3, 4).flat, MASKS.items(), strict=True):
        visible = pattern.to_dense(32)[0, 0]
        axes.imshow(visible, cmap=ListedColormap([HIDDEN_COLOR, VISIBLE_COLOR]), vmin=0, vmax=1)
        draw_cell_borders(axes, 32, 32)
        axes.set_title(name, fontsize=9, family="monospace")
        axes.axis("off")
    figure.supxlabel("32 keys, from left to right", fontsize=9)
    figure.supylabel("32 queries, from top to bottom", fontsize=9)
    return figure


PICTURES = {"repetition.png": induction_head, "mask.png": causal_window, "masks.png": all_masks}


def main(folder):
    for name, picture in PICTURES.items():
        # without its version in the file, matplotlib writes the same bytes for the same picture
        picture().savefig(folder / name, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
