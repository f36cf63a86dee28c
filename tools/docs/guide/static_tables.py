"""The numbers of each widget as tables, for readers without JavaScript and for the search."""

from collections.abc import Iterator
from html import escape
from typing import Any

import regard
from regard.walkthrough.projection import project
from tools.docs.guide.widget_data import page_masks

Table = tuple[str, list[str], list[str], list[list[float]]]  # caption, labels of rows and columns, values


def tables_html(widget: str, data: dict[str, Any]) -> str:
    """Return the tables of the initial state of a widget."""
    return "".join(_table_html(*table) for table in TABLES[widget](data))


def _word_tables(data: dict[str, Any], mask_name: str | None = None) -> Iterator[Table]:
    words = data["words"]
    matrices = (project(words["x"], words[name]) for name in ("w_q", "w_k", "w_v"))
    steps = regard.steps(*matrices, mask=None if mask_name is None else page_masks()[mask_name])
    tokens = words["tokens"]
    yield "scores", tokens, tokens, steps["scaled" if mask_name is None else "masked"].values.tolist()
    yield "weights", tokens, tokens, steps["weights"].values.tolist()
    yield "output", tokens, ["", ""], steps["output"].values.tolist()


def _scale_tables(data: dict[str, Any]) -> Iterator[Table]:
    q, k = data["saturation"]["q"], data["saturation"]["k"]
    scales = {"1/√64": len(q[0]) ** -0.5, "1": 1.0}
    rows = [
        regard.steps(q, k, [[0.0]] * len(k), score=regard.score.scaled_dot(scale))["weights"].values[0].tolist()
        for scale in scales.values()
    ]
    yield "weights by scale", list(scales), [f"key {n}" for n in range(len(k))], rows


def _paint_tables(data: dict[str, Any]) -> Iterator[Table]:
    paint = data["paint"]
    yield "red, green and blue", paint["cans"], ["red", "green", "blue"], paint["v"]


def _head_tables(data: dict[str, Any], count: int) -> Iterator[Table]:
    sentence = data["sentence"]
    tokens, weights = sentence["tokens"], data["model"]["weights"][sentence["layer"]]
    for entry in sentence["heads"][:count]:
        yield f"weights of head {entry['head']}", tokens, tokens, weights[entry["head"]]


def _model_tables(data: dict[str, Any]) -> Iterator[Table]:
    for token, predictions in zip(data["sentence"]["tokens"], data["model"]["predictions"], strict=True):
        columns = [text.strip() or "line break" for text, _ in predictions]
        yield f"next tokens after “{token}”", ["probability"], columns, [[p for _, p in predictions]]


TABLES = {
    "steps": _word_tables,
    "causal": lambda data: _word_tables(data, "causal"),
    "padding": lambda data: _word_tables(data, "padding"),
    "scale": _scale_tables,
    "paint": _paint_tables,
    "sentence": lambda data: _head_tables(data, 1),
    "heads": lambda data: _head_tables(data, 2),
    "model": _model_tables,
}


def _table_html(caption: str, rows: list[str], columns: list[str], values: list[list[float]]) -> str:
    header = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    lines = (
        f'<tr><th scope="row">{escape(label)}</th>{"".join(f"<td>{_format(x)}</td>" for x in line)}</tr>'
        for label, line in zip(rows, values, strict=True)
    )
    head = f"<thead><tr><td></td>{header}</tr></thead>"
    return (
        f'<div class="scroll-x"><table class="matrix"><caption>{escape(caption)}</caption>{head}'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _format(x: float) -> str:
    if x == -float("inf"):
        return "−∞"
    text = f"{x:.4f}".rstrip("0").rstrip(".")
    return text.replace("-", "−")
