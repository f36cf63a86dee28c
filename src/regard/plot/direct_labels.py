"""Labels of curves inside the panel, next to their curves and over none."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.plot.style import PAPER_COLOR, TEXT_SIZE_PT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

Points = NDArray[np.float64]

GAPS_PT = (5, 12, 22)  # between a curve and its label
PADDING_PT = 2.5  # around a label
MAX_ANCHORS = 48  # places along a curve that are tried
SAMPLE_DISTANCE_PT = 3.0
DIRECTIONS = ((-0.5, 0), (-0.5, -1), (0, -0.5), (-1, -0.5), (0, 0), (-1, 0), (0, -1), (-1, -1))
OVERLAP_COST, AMBIGUITY_COST = 10.0, 60.0


class CurveLabel(NamedTuple):
    """The text and color of a label, and the points (n, 2) of the data that it belongs to."""

    text: str
    color: str
    points: Points


def place_labels(axes: "Axes", labels: list[CurveLabel], curves: list[Points]) -> None:
    """Add each label where it covers the fewest points of all curves, and is closest to its own.

    The layout of the figure must be computed before. `curves` are the points (n, 2) of the lines to avoid.
    """
    unit = axes.figure.dpi / 72
    obstacles = [_sampled(_to_pixels(axes, curve), SAMPLE_DISTANCE_PT * unit) for curve in curves]
    frame = np.asarray(axes.bbox.extents)
    boxes: list[Points] = []
    for label in labels:
        anchors = _inside(_sampled(_to_pixels(axes, label.points), SAMPLE_DISTANCE_PT * unit), frame)
        if len(anchors):
            text = _add_text(axes, label)
            boxes.append(_best_box(anchors, _size(text), frame, obstacles, boxes, unit))
            x, y = axes.transAxes.inverted().transform(boxes[-1][:2])
            text.set_position((x, y))


def _to_pixels(axes: "Axes", points: Points) -> Points:
    with np.errstate(all="ignore"):
        pixels = axes.transData.transform(points)
    return np.asarray(pixels[np.isfinite(pixels).all(1)])


def _sampled(pixels: Points, distance: float) -> Points:
    """Return points at about equal distances along a polygon."""
    if len(pixels) < 2:
        return pixels
    lengths = np.concatenate([[0.0], np.hypot(*np.diff(pixels, axis=0).T).cumsum()])
    positions = np.linspace(0, lengths[-1], min(4000, 2 + int(lengths[-1] / distance)))
    return np.stack([np.interp(positions, lengths, pixels[:, n]) for n in range(2)], axis=1)


def _inside(pixels: Points, frame: Points) -> Points:
    return pixels[((pixels >= frame[:2]) & (pixels <= frame[2:])).all(1)]


def _add_text(axes: "Axes", label: CurveLabel) -> "Text":
    from matplotlib.patheffects import withStroke

    outline = withStroke(linewidth=3, foreground=PAPER_COLOR)
    return axes.text(
        0, 0, label.text, color=label.color, fontsize=TEXT_SIZE_PT, transform=axes.transAxes, ha="left", va="bottom",
        parse_math=False, in_layout=False, linespacing=1.1, path_effects=[outline],
    )  # fmt: skip


def _size(text: "Text") -> Points:
    box = text.get_window_extent()
    return np.array([box.width, box.height])


def _best_box(
    anchors: Points, size: Points, frame: Points, obstacles: list[Points], boxes: list[Points], unit: float
) -> Points:
    """Return left, bottom, right and top of the best place of a label, in pixels."""
    anchors = anchors[np.linspace(0, len(anchors) - 1, min(MAX_ANCHORS, len(anchors))).astype(int)]
    candidates = []
    for n, anchor in enumerate(anchors):
        for level, gap in enumerate(GAPS_PT):
            for x, y in DIRECTIONS:
                shift = np.sign([x + 0.5, y + 0.5]) * gap * unit
                corner = anchor + size * (x, y) + shift
                corner = np.clip(corner, frame[:2] + unit, np.maximum(frame[2:] - unit - size, frame[:2] + unit))
                # a small preference for near places and for the end of the curve
                candidates.append((*corner, level + 1.5 * (1 - n / len(anchors))))
    table = np.array(candidates)
    places = np.concatenate([table[:, :2], table[:, :2] + size], axis=1)
    costs = table[:, 2] + _overlap_costs(places, obstacles, boxes, unit) + _ambiguity_costs(places, anchors, obstacles)
    return np.asarray(places[costs.argmin()])


def _overlap_costs(places: Points, obstacles: list[Points], boxes: list[Points], unit: float) -> Points:
    """Return a cost for each point of a curve under a label, and a high cost for each label under it."""
    padding = PADDING_PT * unit
    costs = np.zeros(len(places))
    for pixels in obstacles:
        x, y = pixels[:, 0], pixels[:, 1]
        left, bottom, right, top = (places[:, n, None] for n in range(4))
        is_under = (x > left - padding) & (x < right + padding) & (y > bottom - padding) & (y < top + padding)
        costs += OVERLAP_COST * is_under.sum(1)
    for box in boxes:
        width = np.minimum(places[:, 2], box[2]) - np.maximum(places[:, 0], box[0]) + 2 * padding
        height = np.minimum(places[:, 3], box[3]) - np.maximum(places[:, 1], box[1]) + padding
        costs += np.where((width > 0) & (height > 0), 1e4, 0.0)
    return costs


def _ambiguity_costs(places: Points, anchors: Points, obstacles: list[Points]) -> Points:
    """Return a cost for each label that is closer to a curve that is not its own."""
    own = _distances(places, anchors)
    others = [pixels for pixels in obstacles if len(pixels) and _distances(_as_boxes(anchors[:1]), pixels)[0] > 1]
    costs = np.zeros(len(places))
    for pixels in others:
        costs += np.where(_distances(places, pixels) < own, AMBIGUITY_COST, 0.0)
    return costs


def _as_boxes(points: Points) -> Points:
    return np.concatenate([points, points], axis=1)


def _distances(places: Points, pixels: Points) -> Points:
    """Return the distance from each box to the nearest of the points."""
    x, y = pixels[:, 0], pixels[:, 1]
    left, bottom, right, top = (places[:, n, None] for n in range(4))
    across = np.maximum(np.maximum(left - x, x - right), 0)
    along = np.maximum(np.maximum(bottom - y, y - top), 0)
    return np.asarray(np.hypot(across, along).min(1))


def label_ends(axes: "Axes", labels: list[tuple[str, str, float]]) -> None:
    """Add (text, color, y) to the right of the axes, moved apart where labels would overlap."""
    texts = [
        axes.annotate(
            text, (1, y), xycoords=("axes fraction", "data"), xytext=(6, 0), textcoords="offset points", color=color,
            fontsize=TEXT_SIZE_PT, va="center", parse_math=False, annotation_clip=False,
        )
        for text, color, y in labels
    ]  # fmt: skip
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]  # axes of a figure
    unit = axes.figure.dpi / 72
    heights = np.array([axes.transData.transform((1, y))[1] for _, _, y in labels])
    for text, moved, height in zip(texts, _spread(heights, 1.35 * TEXT_SIZE_PT * unit), heights, strict=True):
        text.set_position((6, (moved - height) / unit))


def _spread(heights: Points, distance: float) -> Points:
    """Return heights that differ by at least `distance`, in the same order and close to the given ones."""
    order = np.argsort(heights, kind="stable")
    groups: list[list[float]] = []  # the sum of the targets of a group, and its number of labels
    for rank, n in enumerate(order):
        groups.append([float(heights[n]) - rank * distance, 1])
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] > groups[-1][0] / groups[-1][1]:
            total, count = groups.pop()
            groups[-1][0] += total
            groups[-1][1] += count
    bases = np.concatenate([np.full(int(count), total / count) for total, count in groups]) if groups else np.zeros(0)
    result = np.empty(len(heights))
    result[order] = bases + distance * np.arange(len(heights))
    return result
