"""Stages as self-contained HTML, for a notebook or as a page. All text is escaped."""

from collections.abc import Sequence
from html import escape

from regard.walkthrough.render.tables import DEFAULT_DECIMALS, AxisLabels, LabeledMatrix, labeled_matrices
from regard.walkthrough.stage import Stage

STEPS_STYLE = """
.regard-steps{--ink:#1c2733;--muted:#5b6875;--line:#d5dce3;--hue:38,110,176;color:var(--ink);background:transparent;
font:14px/1.45 system-ui,sans-serif}
@media (prefers-color-scheme:dark){.regard-steps{--ink:#e4e9ee;--muted:#9aa7b3;--line:#3b4651;--hue:110,170,230}}
[data-jp-theme-light="true"] .regard-steps{--ink:#1c2733;--muted:#5b6875;--line:#d5dce3;--hue:38,110,176}
[data-jp-theme-light="false"] .regard-steps,.vscode-dark .regard-steps,html[theme="dark"] .regard-steps{
--ink:#e4e9ee;--muted:#9aa7b3;--line:#3b4651;--hue:110,170,230}
.regard-steps .formula{color:var(--muted);font-family:ui-monospace,monospace}
.regard-steps .stages{display:flex;flex-wrap:wrap;gap:1.1em 2.6em;align-items:flex-start;margin-top:.9em}
.regard-steps section{max-width:100%;overflow-x:auto}
.regard-steps h3{font-size:1em;margin:0}
.regard-steps p{margin:.1em 0;max-width:25em}
.regard-steps>p{max-width:none}
.regard-steps table{border-collapse:collapse;margin:.35em 0;font-family:ui-monospace,monospace;background:transparent}
.regard-steps caption{text-align:left;color:var(--muted)}
.regard-steps th{font-weight:normal;color:var(--muted);padding:1px 7px;text-align:right;white-space:pre;border:0}
.regard-steps td{padding:1px 7px;text-align:right;border:1px solid var(--line);color:var(--ink)}
"""
PAGE_STYLE = """
:root{color-scheme:light dark}body{margin:2em auto;max-width:75em;padding:0 1em;background:#fff}
@media (prefers-color-scheme:dark){body{background:#12181f}}
"""


def format_html(stages: Sequence[Stage], labels: AxisLabels, formula: str, digits: int = DEFAULT_DECIMALS) -> str:
    """Format stages as an HTML fragment with its style sheet, one section per stage."""
    parts = [_stage_section(stage, labels, digits) for stage in stages]
    head = f'<p class="formula">{escape(formula)}</p>'
    return (
        f'<div class="regard-steps"><style>{STEPS_STYLE}</style>{head}<div class="stages">{"".join(parts)}</div></div>'
    )


def format_html_page(stages: Sequence[Stage], labels: AxisLabels, formula: str, digits: int = DEFAULT_DECIMALS) -> str:
    """Format stages as a self-contained HTML page, without remote resources."""
    inner = format_html(stages, labels, formula, digits)
    title = f"<title>{escape(formula)}</title>"
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">{title}<style>{PAGE_STYLE}</style>'
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{inner}</body></html>\n'


def _stage_section(stage: Stage, labels: AxisLabels, digits: int) -> str:
    formula = f'<p class="formula">{escape(stage.formula)}</p>' if stage.formula != stage.name else ""
    tables = "".join(_html_table(stage, grid) for grid in labeled_matrices(stage, labels, digits))
    return f"<section><h3>{escape(stage.name)}</h3><p>{escape(stage.description)}</p>{formula}{tables}</section>"


def _html_table(stage: Stage, matrix: LabeledMatrix) -> str:
    caption = f"<caption>{escape(matrix.title)}</caption>" if matrix.title else ""
    corner = "<td style='border:0'></td>" if any(matrix.rows) else ""
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in matrix.columns)
    head = f"<thead><tr>{corner}{names}</tr></thead>" if matrix.columns else ""
    rows = []
    for n, row in enumerate(matrix.cells):
        name = f'<th scope="row">{escape(matrix.rows[n])}</th>' if any(matrix.rows) else ""
        shades = matrix.values[n].tolist() if _has_weights(stage) else [0.0] * len(row)
        rows.append(f"<tr>{name}{''.join(_html_cell(t, x) for t, x in zip(row, shades, strict=True))}</tr>")
    return f"<table>{caption}{head}<tbody>{''.join(rows)}</tbody></table>"


def _has_weights(stage: Stage) -> bool:
    """Whether the values are weights, whose cells are shaded."""
    return stage.name in ("weights", "after dropout")


def _html_cell(text: str, weight: float) -> str:
    shade = min(1.0, weight) if weight > 0 else 0.0
    style = f' style="background:rgba(var(--hue),{0.55 * shade:.3f})"' if shade else ""
    return f"<td{style}>{escape(text)}</td>"
