"""Generate the animation of the clustering page: `.venv/bin/python docs/theory/make_clustering.py`."""

from pathlib import Path

import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.figure import Figure

from regard.plot.chart_panels import CURVE_COLORS
from regard.theory import token_clustering

HERE = Path(__file__).parent
MAX_ANIMATION_BYTES = 300_000
LAST_FRAME = 24  # later frames hardly differ


def main():
    animations = [token_clustering(beta=beta).animation for beta in (1.0, 9.0)]
    figure = Figure(figsize=(5.2, 2.8))
    all_axes = figure.subplots(1, 2)
    angle = np.linspace(0, 2 * np.pi, 200)
    scatters = []
    for axes, animation in zip(all_axes, animations, strict=True):
        axes.plot(np.cos(angle), np.sin(angle), color="#cccccc", linewidth=0.8)
        axes.set_aspect("equal")
        axes.set_axis_off()
        colors = [CURVE_COLORS[group % len(CURVE_COLORS)] for group in animation.groups]
        scatters.append(axes.scatter(*animation.points[0].T, c=colors, s=24, linewidths=0))

    def frame(number):
        for axes, animation, scatter in zip(all_axes, animations, scatters, strict=True):
            scatter.set_offsets(animation.points[number])
            beta = animation.title.split("β = ")[1]
            axes.set_title(f"β = {beta}, time {animation.times[number]:.1f}", fontsize=9)
        return scatters

    path = HERE / "clustering.gif"
    FuncAnimation(figure, frame, frames=LAST_FRAME + 1).save(path, writer=PillowWriter(fps=6), dpi=70)
    size = path.stat().st_size
    assert size <= MAX_ANIMATION_BYTES, f"{path.name} must be at most {MAX_ANIMATION_BYTES:,} bytes, got {size:,}."


if __name__ == "__main__":
    main()
