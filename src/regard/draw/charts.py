"""Charts as data, and charts as pictures: what is in a panel is said once, for matplotlib, a page or a terminal.

>>> line = Series("twice", [1, 2, 3], [2, 4, 6])
>>> charts([Panel("Doubling", "x", "2x", [line])]).axes[0].get_title()
'Doubling'
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard import checks
from regard.argument_types import check_fields, check_types
from regard.draw.figure import SEQUENTIAL, check, paper
from regard.errors import SpecError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by people who see red and green alike, and by their lightness in print (Okabe and Ito).
COLOURS = ("#0b4a78", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f", "#000000")
SIGNED = "RdBu_r"
WIDTH, HEIGHT, MOST_BESIDE = 3.6, 2.6, 3  # inches of a panel, and panels in a row

Style = Literal["line", "dashed", "points"]


@dataclass(frozen=True, eq=False)
class Series:
    """One curve: what was found is drawn as points, what was predicted as a line, what is wrong dashed.

    Curves of one panel that are `of` the same thing, as what was found and what was predicted of it, share a colour.
    """

    label: str
    x: Any
    y: Any
    style: Style = "line"
    of: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        x, y = checks.array(self.x, "x"), checks.array(self.y, "y")
        if x.ndim != 1 or x.shape != y.shape:
            raise SpecError(f"x and y of {self.label!r} must be lists of one length; got {x.shape} and {y.shape}.")
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "y", y)


@dataclass(frozen=True, eq=False)
class Panel:
    """Curves over one pair of axes; `across` and `up` name them."""

    title: str
    across: str
    up: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def colours(self) -> list[int]:
        """The number of each curve's colour, from 0.

        >>> pair = [Series("found", [1], [2], "points", of="a"), Series("formula", [1], [2], of="a")]
        >>> Panel("", "", "", [*pair, Series("other", [1], [3])]).colours
        [0, 0, 1]
        """
        things = [series.of or f"curve {n}" for n, series in enumerate(self.series)]
        return [list(dict.fromkeys(things)).index(thing) for thing in things]


@dataclass(frozen=True, eq=False)
class Image:
    """A matrix as colours: from white where it is least, or around 0 if it has both signs and is `signed`."""

    title: str
    across: str
    up: str
    values: Any
    signed: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        values = checks.array(self.values, "values")
        if values.ndim != 2 or 0 in values.shape:
            raise SpecError(f"the image {self.title!r} must be a matrix; got shape {values.shape}.")
        object.__setattr__(self, "values", values)


@dataclass(frozen=True, eq=False)
class Motion:
    """Points that move: `points` is (moments, points, 2 or 3), `times` says when; `groups` colours them."""

    title: str
    times: Any
    points: Any
    groups: Any = field(default=None)

    def __post_init__(self) -> None:
        check_fields(self)
        times, points = checks.array(self.times, "times"), checks.array(self.points, "points")
        if points.ndim != 3 or points.shape[-1] not in (2, 3) or times.shape != points.shape[:1]:
            raise SpecError(
                f"points must be (moments, points, 2 or 3), with a time for each moment; "
                f"got {points.shape} and {times.shape}."
            )
        groups = np.zeros(points.shape[1], dtype=int) if self.groups is None else _groups(self.groups, points.shape[1])
        for name, value in (("times", times), ("points", points), ("groups", groups)):
            object.__setattr__(self, name, value)


def _groups(groups: Any, count: int) -> NDArray[np.int64]:
    """The group of each point, as whole numbers."""
    numbers = checks.array(groups, "groups", dims=(1,))
    if len(numbers) != count or not (np.isfinite(numbers) & (numbers == np.round(numbers))).all():
        raise SpecError(f"groups must be a whole number for each of {count} points; got {checks.describe(groups)}.")
    return numbers.astype(np.int64)


@check_types
def charts(panels: Sequence[Panel | Image], title: str = "") -> "Figure":
    """All panels in one figure, three beside each other; four are two by two."""
    check()
    if not len(panels):
        raise SpecError("charts must be of at least one panel; got none.")
    beside = 2 if len(panels) == 4 else min(len(panels), MOST_BESIDE)
    figure, rows = paper(-(-len(panels) // beside), beside, WIDTH, HEIGHT)
    places = [axes for row in rows for axes in row]
    for axes, panel in zip(places, panels, strict=False):
        (_image if isinstance(panel, Image) else _curves)(axes, panel)  # type: ignore[arg-type]  # told apart here
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def _curves(axes: "Axes", panel: Panel) -> None:
    looks: dict[Style, dict[str, Any]] = {
        "line": dict(linestyle="-", linewidth=1.6),
        "dashed": dict(linestyle="--", linewidth=1.3),
        "points": dict(linestyle="", marker="o", markersize=4),
    }
    for series, number in zip(panel.series, panel.colours, strict=True):
        axes.plot(series.x, series.y, label=series.label, color=COLOURS[number % len(COLOURS)], **looks[series.style])
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    _words(axes, panel)
    axes.grid(alpha=0.25, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if any(series.label for series in panel.series):
        axes.legend(fontsize=7, frameon=False)


def _image(axes: "Axes", image: Image) -> None:
    most = float(np.abs(image.values).max(initial=0.0)) or 1.0
    colours: dict[str, Any] = dict(cmap=SIGNED, vmin=-most, vmax=most) if image.signed else dict(cmap=SEQUENTIAL)
    shown = axes.imshow(image.values, aspect="auto", interpolation="nearest", **colours)
    axes.figure.colorbar(shown, ax=axes, shrink=0.9).ax.tick_params(labelsize=7)
    _words(axes, image)


def _words(axes: "Axes", panel: Panel | Image) -> None:
    axes.set_title(panel.title, fontsize=9, parse_math=False)
    axes.set_xlabel(panel.across, fontsize=8)
    axes.set_ylabel(panel.up, fontsize=8)
    axes.tick_params(labelsize=7, which="both")
