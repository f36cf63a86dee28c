"""Stages as text for a terminal: aligned matrices, cut into parts where they are too wide."""

from collections.abc import Iterator, Sequence

from regard.worked.stage import Stage
from regard.worked.table import DIGITS, Grid, Labels, grids

WIDTH = 100  # letters in a line


def text_of(stages: Sequence[Stage], labels: Labels, digits: int = DIGITS) -> str:
    """Every stage: its name and what it is, its formula, its numbers."""
    return "\n\n".join(text_of_stage(stage, labels, digits) for stage in stages)


def text_of_stage(stage: Stage, labels: Labels, digits: int = DIGITS) -> str:
    lines = [f"{stage.name}: {stage.words}"]
    if stage.formula != stage.name:
        lines.append(f"  {stage.formula}")
    for grid in grids(stage, labels, digits):
        lines += [f"  {grid.title}"] if grid.title else []
        lines += [f"  {line}".rstrip() for line in _lines(grid)]
    return "\n".join(lines)


def _lines(grid: Grid) -> Iterator[str]:
    """The rows of a matrix, in as many parts as its columns need."""
    side = max((len(name) for name in grid.rows), default=0)
    count = len(grid.texts[0]) if grid.texts else 0
    columns = grid.columns or ("",) * count
    widths = [max(len(columns[n]), *(len(row[n]) for row in grid.texts)) for n in range(count)]
    for first, last in _parts(widths, WIDTH - side - 4):
        if last - first < count:
            yield f"columns {first} to {last - 1}"
        if grid.columns:
            yield _line("", side, columns[first:last], widths[first:last])
        for place, row in enumerate(grid.texts):
            name = grid.rows[place] if grid.rows else ""
            yield _line(name, side, row[first:last], widths[first:last])


def _line(name: str, side: int, cells: Sequence[str], widths: Sequence[int]) -> str:
    gap = "  " if side else ""
    return name.ljust(side) + gap + " ".join(cell.rjust(w) for cell, w in zip(cells, widths, strict=True))


def _parts(widths: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Where to cut columns of these widths, so that each part fits into a line."""
    first, used = 0, 0
    for n, width in enumerate(widths):
        if n > first and used + width + 1 > room:
            yield first, n
            first, used = n, 0
        used += width + 1
    if len(widths) > first:
        yield first, len(widths)
