"""Make three pictures of the documentation: `.venv/bin/python docs/pictures/make.py [folder]`."""

import runpy
import sys
from pathlib import Path

from matplotlib.colors import ListedColormap

import regard
from regard import mask, measure, plot
from regard.plot.figure import add_title, draw_cell_borders
from regard.plot.style import HIDDEN_COLOR, PAGE_WIDTH_IN, VISIBLE_COLOR, apply_style, new_figure, save_for_page

HERE = Path(__file__).parent
FIRST_LOOK = HERE.parents[1] / "examples" / "first_look.py"


def induction_head():
    """Return the picture of docs/recording.md: the head of examples/first_look.py over 8192 tokens."""
    q, k, v = runpy.run_path(str(FIRST_LOOK))["induction_head"]()
    weights = regard.attention_with_weights(q, k, v, mask=mask.causal()).weights
    pooled = weights.measure(measure.pooled_map(128, 128)).pooled_map
    return plot.weights(pooled, scale="log", title="A phrase repeated eight times: one stripe for each earlier copy")


def causal_window():
    """Return the picture of docs/architecture.md: the mask of its call."""
    pattern = mask.causal() & mask.sliding_window(1024)
    share = float(pattern.density(4096))
    return plot.mask(pattern, 4096, title=f"A causal window of 1024 keys leaves {share:.0%} of all pairs visible")


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
    figure = new_figure(PAGE_WIDTH_IN, 7.6, "compressed")
    for axes, (name, pattern) in zip(figure.subplots(4, 3).flat, MASKS.items(), strict=True):
        visible = pattern.to_dense(32)[0, 0].numpy()
        axes.imshow(visible, cmap=ListedColormap([HIDDEN_COLOR, VISIBLE_COLOR]), vmin=0, vmax=1)
        draw_cell_borders(axes, 32, 32)
        axes.set_title(name, family="monospace")
        axes.axis("off")
    figure.supxlabel("32 keys, from left to right")
    figure.supylabel("32 queries, from top to bottom")
    add_title(figure, f"{len(MASKS)} masks: each blue cell is a visible pair")
    return apply_style(figure)


PICTURES = {"repetition.png": induction_head, "mask.png": causal_window, "masks.png": all_masks}


def main(folder):
    for name, picture in PICTURES.items():
        save_for_page(picture(), folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
