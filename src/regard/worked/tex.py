"""Stages as LaTeX: each formula and its matrix, for a document that uses amsmath."""

from collections.abc import Sequence

from regard.worked.stage import Stage
from regard.worked.table import DIGITS, HIDDEN, SEEN, Labels, grids

_SIGNS = {SEEN: "1", HIDDEN: r"\cdot", "∞": r"\infty", "-∞": r"-\infty", "nan": r"\mathrm{nan}"}
WIDEST = 10  # columns that amsmath's matrices have unless they are told


def latex_of(stages: Sequence[Stage], labels: Labels, digits: int = DIGITS) -> str:
    """One `align*` of all stages, a line each."""
    widest = max((stage.values.shape[-1] for stage in stages if stage.values.dim() > 1), default=0)
    wide = [rf"\setcounter{{MaxMatrixCols}}{{{widest}}}"] if widest > WIDEST else []
    lines = [line for stage in stages for line in latex_of_stage(stage, labels, digits)]
    return "\n".join([*wide, r"\begin{align*}", " \\\\\n".join(lines), r"\end{align*}"])


def latex_of_stage(stage: Stage, labels: Labels, digits: int = DIGITS) -> list[str]:
    """A line of an `align*` for each matrix of a stage: its name, and the formula with its numbers."""
    found = []
    for grid in grids(stage, labels, digits):
        rows = [" & ".join(_SIGNS.get(text, text) for text in row) for row in grid.texts]
        matrix = r"\begin{pmatrix} " + r" \\ ".join(rows) + r" \end{pmatrix}"
        at = rf"\text{{ ({_escaped(grid.title)})}}" if grid.title else ""
        found.append(rf"\text{{{_escaped(stage.name)}}}{at} &: \; {stage.latex} = {matrix}")
    return found


def _escaped(text: str) -> str:
    """Text that LaTeX takes for nothing else."""
    signs = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(signs.get(c) or (f"\\{c}" if c in "_%&#${}" else c) for c in text)
