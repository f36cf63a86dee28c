"""Stages as text for a terminal: aligned matrices, split into groups of columns where they are too wide."""

from collections.abc import Iterator, Sequence

from regard.walkthrough.render.tables import DEFAULT_DECIMALS, AxisLabels, LabeledMatrix, labeled_matrices
from regard.walkthrough.stage import Stage

MAX_LINE_CHARACTERS = 100


def format_text(stages: Sequence[Stage], labels: AxisLabels, digits: int = DEFAULT_DECIMALS) -> str:
    """Format every stage: its name, description, formula and numbers."""
    return "\n\n".join(format_stage_text(stage, labels, digits) for stage in stages)


def format_stage_text(stage: Stage, labels: AxisLabels, digits: int = DEFAULT_DECIMALS) -> str:
    lines = [f"{stage.name}: {stage.description}"]
    if stage.formula != stage.name:
        lines.append(f"  {stage.formula}")
    for grid in labeled_matrices(stage, labels, digits):
        lines += [f"  {grid.title}"] if grid.title else []
        lines += [f"  {line}".rstrip() for line in _matrix_lines(grid)]
    return "\n".join(lines)


def _matrix_lines(matrix: LabeledMatrix) -> Iterator[str]:
    """Yield the lines of a matrix, split into groups of columns that fit a line."""
    label_width = max((len(name) for name in matrix.rows), default=0)
    count = len(matrix.cells[0]) if matrix.cells else 0
    columns = matrix.columns or ("",) * count
    widths = [max(len(columns[n]), *(len(row[n]) for row in matrix.cells)) for n in range(count)]
    for first, last in _column_ranges(widths, MAX_LINE_CHARACTERS - label_width - 4):
        if last - first < count:
            yield f"columns {first} to {last - 1}"
        if matrix.columns:
            yield _matrix_line("", label_width, columns[first:last], widths[first:last])
        for n, row in enumerate(matrix.cells):
            name = matrix.rows[n] if matrix.rows else ""
            yield _matrix_line(name, label_width, row[first:last], widths[first:last])


def _matrix_line(name: str, label_width: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    gap = "  " if label_width else ""
    return name.ljust(label_width) + gap + " ".join(cell.rjust(w) for cell, w in zip(cells, widths, strict=True))


def _column_ranges(widths: Sequence[int], max_width: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of columns whose total width fits `max_width`."""
    first, used = 0, 0
    for n, width in enumerate(widths):
        if n > first and used + width + 1 > max_width:
            yield first, n
            first, used = n, 0
        used += width + 1
    if len(widths) > first:
        yield first, len(widths)
