"""Pictures of how something grows with the length: time, memory or work of mechanisms on two logarithmic axes."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from regard import checks
from regard.argument_types import check_types
from regard.draw.figure import check
from regard.errors import SpecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0b4a78", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#444444")


@check_types
def growth(
    lengths: Sequence[int], curves: Mapping[str, Sequence[float]], *, unit: str = "seconds", title: str = ""
) -> "Figure":
    """A line for each curve over the lengths, and beside its end the power of n by which it grew last.

    >>> figure = growth([1024, 2048, 4096], {"softmax": [1.0, 4.0, 16.0], "linear": [2.0, 4.0, 8.0]})
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['softmax, n^2.0', 'linear, n^1.0']
    """
    check()
    _check_curves(lengths, curves)
    from math import log

    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for place, (name, values) in enumerate(curves.items()):
        colour = COLOURS[place % len(COLOURS)]
        power = log(values[-1] / values[-2]) / log(lengths[-1] / lengths[-2])
        axes.plot(lengths, values, "o-", color=colour, markersize=3, linewidth=1.4)
        axes.annotate(
            f"{name}, n^{power:.1f}", (lengths[-1], values[-1]), (5, 0), textcoords="offset points", fontsize=8,
            color=colour, va="center",
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths], fontsize=8)
    axes.tick_params(labelsize=8)
    axes.set_xlabel("tokens", fontsize=9)
    axes.set_ylabel(unit, fontsize=9)
    axes.set_xlim(right=lengths[-1] * (lengths[-1] / lengths[0]) ** 0.35)
    axes.grid(True, color="#e4e4e0", linewidth=0.6)
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)
    if title:
        axes.set_title(title, fontsize=10)
    return figure


def _check_curves(lengths: Sequence[int], curves: Mapping[str, Sequence[float]]) -> None:
    if len(lengths) < 2 or any(b <= a for a, b in pairwise(lengths)) or lengths[0] < 1:
        raise SpecError(f"lengths must be at least two whole numbers above 0, increasing; got {list(lengths)[:8]}.")
    for name, values in curves.items():
        numbers = checks.array(values, f"the curve {name!r}", dims=(1,))
        if len(numbers) != len(lengths):
            raise SpecError(
                f"a curve must have a number for each of {len(lengths)} lengths; {name} has {len(numbers)}."
            )
        if not ((numbers > 0) & (numbers < float("inf"))).all():
            raise SpecError(f"a curve on logarithmic axes must have finite numbers above 0; {name} has others.")
