"""The paper: nothing lies on top of anything else, nothing global is touched, and matplotlib may be missing."""

import itertools
import subprocess
import sys

import pytest
import torch

from regard import draw, mask, measure
from regard.errors import RegardError
from regard.measure import Pooled

WORDS = ["The", "animal", "did", "not", "cross", "the", "street", "because", "it", "was", "too", "tired"]
PICTURES = {
    "a small mask": lambda: draw.mask(mask.causal() & mask.window(4), 12),
    "a large mask": lambda: draw.mask(mask.bigbird(), 4096),
    "one query": lambda: draw.mask(mask.causal(), 1, 4096),
    "many batch elements": lambda: draw.mask(mask.padding(list(range(1, 7))), 12, batch=6),
    "words": lambda: draw.weights(torch.rand(12, 12), WORDS, title="Who looks at whom"),
    "most heads": lambda: draw.weights(torch.rand(16, 5, 5), WORDS[:5]),
    "many words": lambda: draw.weights(torch.rand(200, 200), [f"word{n}" for n in range(200)]),
    "few queries": lambda: draw.weights(torch.rand(2, 60), (["to", "be"], [f"word{n}" for n in range(60)])),
    "maps": lambda: draw.weights(Pooled(torch.rand(2, 64, 64), torch.rand(2, 64, 64), (128, 128)), scale="log"),
}


def texts(figure):
    """Every text that is shown, with its box."""
    shown = [t for t in (figure._suptitle,) if t is not None]
    for legend in figure.legends:
        shown += [*legend.get_texts(), legend.get_title()]
    for axes in figure.axes:
        if axes.get_visible():
            labels = (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts)
            inside = [t for a in (axes.xaxis, axes.yaxis) for t in _ticks_in_sight(a)]
            shown += [*labels, *inside]
    return [(t.get_text(), t.get_window_extent()) for t in shown if t.get_text().strip() and t.get_visible()]


def _ticks_in_sight(axis):
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [label for tick in ticks for label in (tick.label1, tick.label2) if label.get_visible()]


@pytest.mark.parametrize("name", PICTURES)
def test_no_two_texts_overlap_and_all_are_on_paper_that_fits_a_screen(name):
    figure = PICTURES[name]()
    width, height = figure.get_size_inches()
    assert 2 < width < 22 and 1 < height < 25
    figure.draw_without_rendering()

    found = texts(figure)

    assert len(found) > 3
    for (one, box), (other, second) in itertools.combinations(found, 2):
        assert not _overlap(box, second), f"{one!r} lies on {other!r}"
    paper = figure.bbox
    for text, box in found:
        inside = box.x0 >= paper.x0 and box.x1 <= paper.x1 and box.y0 >= paper.y0 and box.y1 <= paper.y1
        assert inside, f"{text!r} leaves the paper"


def _overlap(one, other):
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    high = min(one.y1, other.y1) - max(one.y0, other.y0)
    return wide > 0.5 and high > 0.5  # half a dot is rounding


def test_a_figure_can_be_saved(tmp_path):
    draw.mask(mask.causal(), 8).savefig(tmp_path / "mask.png")

    assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")


def test_importing_regard_does_not_import_draw_and_drawing_opens_no_window():
    program = (
        "import sys, regard\n"
        "assert 'regard.draw' not in sys.modules and 'matplotlib' not in sys.modules\n"
        "import regard.draw\n"
        "assert 'matplotlib' not in sys.modules\n"
        "regard.draw.mask(regard.mask.causal(), 4)\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ask", [lambda: draw.mask(mask.causal(), 4), lambda: draw.weights([[1.0]])])
def test_without_matplotlib_the_error_says_what_to_install(ask, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(RegardError, match=r"must have matplotlib; got: .*matplotlib.* pip install 'regard\[draw\]'"):
        ask()


def test_drawing_measures_nothing(monkeypatch):
    def refuse(*_):
        raise AssertionError("a picture must be made of what was measured before")

    monkeypatch.setattr(type(measure.entropy), "begin", refuse)
    monkeypatch.setattr(type(measure.pool(1, 1)), "begin", refuse)

    draw.weights(Pooled(torch.rand(4, 4), torch.rand(4, 4), (1, 1)))
