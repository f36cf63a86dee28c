"""Figures: no overlapping text, no global state of matplotlib, and an error if matplotlib is missing."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

from regard import mask, measure, plot
from regard.errors import RegardError
from regard.measure import PooledMap

WORDS = ["The", "animal", "did", "not", "cross", "the", "street", "because", "it", "was", "too", "tired"]
X = np.linspace(0.1, 4, 30)
CURVES = plot.Panel(
    "Three curves and their points, with a title of two lines",
    "time (s)",
    "height (m)",
    [
        plot.Series("computed", X[::3], X[::3] ** 2, "points", color_group="square"),
        plot.Series("x squared", X, X**2, color_group="square"),
        plot.Series("root", X, X**0.5),
        plot.Series("logarithm", X, np.log(X), "dashed"),
    ],
)
IMAGE = plot.ImagePanel("An image", "key", "query", np.eye(4), signed=True)
FIGURES = {
    "small mask": lambda: plot.mask(mask.causal() & mask.sliding_window(4), 12),
    "large mask": lambda: plot.mask(mask.bigbird(), 4096),
    "one query": lambda: plot.mask(mask.causal(), 1, 4096),
    "many batch elements": lambda: plot.mask(mask.padding(list(range(1, 7))), 12, batch_size=6),
    "words": lambda: plot.weights(torch.rand(12, 12), WORDS, title="Attention weights"),
    "many heads": lambda: plot.weights(torch.rand(16, 5, 5), WORDS[:5]),
    "many words": lambda: plot.weights(torch.rand(200, 200), [f"word{n}" for n in range(200)]),
    "few queries": lambda: plot.weights(torch.rand(2, 60), (["to", "be"], [f"word{n}" for n in range(60)])),
    "charts": lambda: plot.charts([CURVES, IMAGE, CURVES], title="Curves and an image"),
    "growth": lambda: plot.growth([64, 128, 256], {"a": [1.0, 2.0, 4.0], "b": [1.0, 2.0, 4.1], "c": [1.0, 2.0, 3.9]}),
    "comparison": lambda: plot.comparison(
        ("causal", torch.rand(8, 8), 1.0, 2**20), ("window", torch.rand(8, 8), 0.5, None), [0.0, 0.1]
    ),
    "heads": lambda: plot.heads([{"layer": n // 12, "head": n % 12, "entropy": 0.1 * n} for n in range(24)], "entropy"),
    "head maps": lambda: plot.head_maps(torch.rand(2, 12, 4, 4), title="Two layers of twelve heads"),
    "lines": lambda: plot.token_lines(torch.eye(12), WORDS, title="Every token attends to itself"),
    "maps": lambda: plot.weights(PooledMap(torch.rand(2, 64, 64), torch.rand(2, 64, 64), (128, 128)), scale="log"),
}


def visible_texts(figure):
    """Return every visible text with its bounding box."""
    artists = [t for t in (figure._suptitle,) if t is not None]
    for legend in figure.legends:
        artists += [*legend.get_texts(), legend.get_title()]
    for axes in figure.axes:
        if axes.get_visible():
            labels = (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts)
            tick_labels = [t for a in (axes.xaxis, axes.yaxis) for t in _visible_tick_labels(a)]
            artists += [*labels, *tick_labels]
    return [(t.get_text(), t.get_window_extent()) for t in artists if t.get_text().strip() and t.get_visible()]


def _visible_tick_labels(axis):
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [label for tick in ticks for label in (tick.label1, tick.label2) if label.get_visible()]


@pytest.mark.parametrize("name", FIGURES)
def test_texts_do_not_overlap_and_are_inside_the_figure(name):
    figure = FIGURES[name]()
    width, height = figure.get_size_inches()
    assert 2 < width < 22 and 1 < height < 25
    figure.draw_without_rendering()

    texts = visible_texts(figure)

    assert len(texts) > 3
    for (text_a, box_a), (text_b, box_b) in itertools.combinations(texts, 2):
        assert not _overlap(box_a, box_b), f"{text_a!r} overlaps {text_b!r}"
    frame = figure.bbox
    for text, box in texts:
        is_inside = box.x0 >= frame.x0 and box.x1 <= frame.x1 and box.y0 >= frame.y0 and box.y1 <= frame.y1
        assert is_inside, f"{text!r} is not inside the figure"


def _overlap(a, b):
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    return width > 0.5 and height > 0.5  # half a pixel is rounding


def test_figures_can_be_saved(tmp_path):
    plot.mask(mask.causal(), 8).savefig(tmp_path / "mask.png")

    assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")


def test_regard_imports_matplotlib_only_for_plots_and_never_pyplot():
    program = (
        "import sys, regard\n"
        "assert 'regard.plot' not in sys.modules and 'matplotlib' not in sys.modules\n"
        "import regard.plot\n"
        "assert 'matplotlib' not in sys.modules\n"
        "regard.plot.mask(regard.mask.causal(), 4)\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("call", [lambda: plot.mask(mask.causal(), 4), lambda: plot.weights([[1.0]])])
def test_missing_matplotlib_raises(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(RegardError, match=r"needs matplotlib; got: .*matplotlib.* pip install 'regard\[plot\]'"):
        call()


def test_plots_compute_no_measures(monkeypatch):
    def refuse(*_):
        raise AssertionError("plots must not compute measures")

    monkeypatch.setattr(type(measure.entropy), "make_state", refuse)
    monkeypatch.setattr(type(measure.pooled_map(1, 1)), "make_state", refuse)

    plot.weights(PooledMap(torch.rand(4, 4), torch.rand(4, 4), (1, 1)))
