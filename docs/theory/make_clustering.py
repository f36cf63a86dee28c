"""Makes the animation of clustering again: `.venv/bin/python docs/theory/make_clustering.py`."""

from pathlib import Path

import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.figure import Figure

from regard.draw.charts import COLOURS
from regard.theory import clustering

HERE = Path(__file__).parent
LARGEST = 300_000  # bytes
LAST = 24  # frames, after which hardly anything moves


def main():
    motions = [clustering(beta=beta).motion for beta in (1.0, 9.0)]
    figure = Figure(figsize=(5.2, 2.8))
    places = figure.subplots(1, 2)
    turn = np.linspace(0, 2 * np.pi, 200)
    dots = []
    for axes, motion in zip(places, motions, strict=True):
        axes.plot(np.cos(turn), np.sin(turn), color="#cccccc", linewidth=0.8)
        axes.set_aspect("equal")
        axes.set_axis_off()
        colours = [COLOURS[group % len(COLOURS)] for group in motion.groups]
        dots.append(axes.scatter(*motion.points[0].T, c=colours, s=24, linewidths=0))

    def frame(number):
        for axes, motion, dot in zip(places, motions, dots, strict=True):
            dot.set_offsets(motion.points[number])
            beta = motion.title.split("β = ")[1]
            axes.set_title(f"β = {beta}, time {motion.times[number]:.1f}", fontsize=9)
        return dots

    path = HERE / "clustering.gif"
    FuncAnimation(figure, frame, frames=LAST + 1).save(path, writer=PillowWriter(fps=6), dpi=70)
    size = path.stat().st_size
    assert size <= LARGEST, f"{path.name} must be at most {LARGEST:,} bytes; got {size:,}."


if __name__ == "__main__":
    main()
