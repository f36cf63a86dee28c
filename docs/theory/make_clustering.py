"""Generate the animation of the clustering page: `.venv/bin/python docs/theory/make_clustering.py`."""

from pathlib import Path

import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter

from regard.plot.style import (
    CURVE_COLORS,
    INK_COLOR,
    LINE_COLOR,
    MUTED_COLOR,
    PAGE_WIDTH_IN,
    apply_style,
    new_figure,
    set_title,
)
from regard.theory import token_clustering

HERE = Path(__file__).parent
WIDTH_PX = 800
MAX_ANIMATION_BYTES = 1_000_000
LAST_FRAME = 24  # later frames hardly differ
FRAMES_PER_SECOND = 6
FINAL_FRAMES = 9  # the last frame is shown longer
BETAS = (1.0, 9.0)


def main():
    results = [token_clustering(beta=beta) for beta in BETAS]
    figure = new_figure(PAGE_WIDTH_IN, 3.6)
    figure.get_layout_engine().set(h_pad=0.1)
    panels = figure.subplots(1, 2)
    scatters = [draw_circle(axes, result, beta) for axes, result, beta in zip(panels, results, BETAS, strict=True)]
    times = results[0].animation.times
    clock = figure.text(0.5, 0.045, "time 00.0", ha="center", color=INK_COLOR)
    bar = figure.add_artist(progress_bar(figure))
    apply_style(figure)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the panels do not move from frame to frame

    def draw(number):
        number = min(number, LAST_FRAME)
        for scatter, result in zip(scatters, results, strict=True):
            scatter.set_offsets(result.animation.points[number])
        clock.set_text(f"time {times[number]:.1f}")
        bar.set_width(0.3 * number / LAST_FRAME)
        return scatters

    path = HERE / "clustering.gif"
    animation = FuncAnimation(figure, draw, frames=LAST_FRAME + 1 + FINAL_FRAMES)
    animation.save(path, writer=PillowWriter(fps=FRAMES_PER_SECOND), dpi=WIDTH_PX / PAGE_WIDTH_IN)
    size = path.stat().st_size
    assert size <= MAX_ANIMATION_BYTES, f"{path.name} must be at most {MAX_ANIMATION_BYTES:,} bytes, got {size:,}."


def draw_circle(axes, result, beta):
    """Draw the circle and the tokens at the start; return the tokens."""
    animation = result.animation
    angle = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(angle), np.sin(angle), color=LINE_COLOR, linewidth=1.5)
    axes.set(aspect="equal", xlim=(-1.15, 1.15), ylim=(-1.15, 1.15))
    axes.set_axis_off()
    count = len(np.unique(animation.groups))
    set_title(axes, f"β = {beta:g}: {len(animation.groups)} tokens form {count} cluster{'s' * (count != 1)}", 2.6)
    colors = [CURVE_COLORS[group % len(CURVE_COLORS)] for group in animation.groups]
    return axes.scatter(*animation.points[0].T, c=colors, s=55, linewidths=0.8, edgecolors="white", zorder=3)


def progress_bar(figure):
    """Return a bar below the panels, of which the width is the time."""
    from matplotlib.patches import Rectangle

    track = Rectangle((0.35, 0.012), 0.3, 0.008, transform=figure.transFigure, color=LINE_COLOR)
    figure.add_artist(track)
    return Rectangle((0.35, 0.012), 0.0, 0.008, transform=figure.transFigure, color=MUTED_COLOR)


if __name__ == "__main__":
    main()
