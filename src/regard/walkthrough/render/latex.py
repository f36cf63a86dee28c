"""Stages as LaTeX: each formula and its matrix, for a document that uses amsmath."""

from collections.abc import Sequence

from regard.walkthrough.render.tables import DEFAULT_DECIMALS, HIDDEN_MARK, VISIBLE_MARK, AxisLabels, labeled_matrices
from regard.walkthrough.stage import Stage

_LATEX_SYMBOLS = {VISIBLE_MARK: "1", HIDDEN_MARK: r"\cdot", "∞": r"\infty", "-∞": r"-\infty", "nan": r"\mathrm{nan}"}
MAX_DEFAULT_COLUMNS = 10  # amsmath allows no more unless MaxMatrixCols is set


def format_latex(stages: Sequence[Stage], labels: AxisLabels, digits: int = DEFAULT_DECIMALS) -> str:
    """Format all stages as one `align*` environment, one line per matrix."""
    widest = max((stage.values.shape[-1] for stage in stages if stage.values.dim() > 1), default=0)
    wide = [rf"\setcounter{{MaxMatrixCols}}{{{widest}}}"] if widest > MAX_DEFAULT_COLUMNS else []
    lines = [line for stage in stages for line in format_stage_latex(stage, labels, digits)]
    return "\n".join([*wide, r"\begin{align*}", " \\\\\n".join(lines), r"\end{align*}"])


def format_stage_latex(stage: Stage, labels: AxisLabels, digits: int = DEFAULT_DECIMALS) -> list[str]:
    """Return the lines of an `align*` for a stage, one per matrix: its name, formula and numbers."""
    lines = []
    for grid in labeled_matrices(stage, labels, digits):
        rows = [" & ".join(_LATEX_SYMBOLS.get(text, text) for text in row) for row in grid.cells]
        matrix = r"\begin{pmatrix} " + r" \\ ".join(rows) + r" \end{pmatrix}"
        title = rf"\text{{ ({_escape_latex(grid.title)})}}" if grid.title else ""
        lines.append(rf"\text{{{_escape_latex(stage.name)}}}{title} &: \; {stage.latex} = {matrix}")
    return lines


def _escape_latex(text: str) -> str:
    """Escape the special characters of LaTeX."""
    commands = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(commands.get(c) or (f"\\{c}" if c in "_%&#${}" else c) for c in text)
