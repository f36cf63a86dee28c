"""Plot of time, memory or FLOPs against the sequence length, on logarithmic axes."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from regard import checks
from regard.argument_types import check_types
from regard.errors import ArgumentError
from regard.plot.direct_labels import label_ends
from regard.plot.figure import add_title
from regard.plot.style import CURVE_COLORS, PAGE_WIDTH_IN, apply_style, new_figure, require_matplotlib, style_chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@check_types
def growth(
    seq_lens: Sequence[int], curves: Mapping[str, Sequence[float]], *, unit: str = "seconds", title: str = ""
) -> "Figure":
    """Plot curves over the sequence length. The label of a curve has its last growth exponent.

    Args:
        seq_lens: at least two increasing lengths.
        curves: from the name of a curve to its values, one for each length.
        unit: label of the y axis. Default: "seconds".
        title: title of the figure. Default: none.

    >>> figure = growth([1024, 2048, 4096], {"softmax": [1.0, 4.0, 16.0], "linear": [2.0, 4.0, 8.0]})
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['softmax, n^2.0', 'linear, n^1.0']
    """
    require_matplotlib()
    _check_curves(seq_lens, curves)
    from math import log

    figure = new_figure(PAGE_WIDTH_IN, 3.6)
    axes = figure.subplots()
    labels = []
    for n, (name, values) in enumerate(curves.items()):
        color = CURVE_COLORS[n % len(CURVE_COLORS)]
        exponent = log(values[-1] / values[-2]) / log(seq_lens[-1] / seq_lens[-2])
        axes.plot(seq_lens, values, "o-", color=color, markersize=4, linewidth=1.8, clip_on=False)
        labels.append((f"{name}, n^{exponent:.1f}", color, float(values[-1])))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    style_chart(axes)
    axes.set_xticks(seq_lens, [f"{n:,}" for n in seq_lens])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("tokens")
    axes.set_ylabel(unit)
    if title:
        add_title(figure, title)
    axes.set_xlim(right=seq_lens[-1])
    label_ends(axes, labels)
    return apply_style(figure)


def _check_curves(seq_lens: Sequence[int], curves: Mapping[str, Sequence[float]]) -> None:
    if len(seq_lens) < 2 or any(b <= a for a, b in pairwise(seq_lens)) or seq_lens[0] < 1:
        raise ArgumentError(f"seq_lens must be at least two increasing integers above 0; got {list(seq_lens)[:8]}.")
    for name, values in curves.items():
        curve = checks.array(values, f"the curve {name!r}", dims=(1,))
        if len(curve) != len(seq_lens):
            raise ArgumentError(
                f"a curve must have a value for each of {len(seq_lens)} lengths; {name} has {len(curve)}."
            )
        if not ((curve > 0) & (curve < float("inf"))).all():
            raise ArgumentError(f"curves must have finite values above 0; {name} has others.")
