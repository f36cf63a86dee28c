"""Draw the two pictures of the guide: `.venv/bin/python docs/guide/make.py [folder]`.

The numbers are those of `regard.steps`. Colors are variables of the page, or those of the light theme elsewhere.
"""

import sys
from pathlib import Path

import regard
from regard.walkthrough.examples import get_example

HERE = Path(__file__).parent
COLORS = {"query": "#2456c7", "key": "#ad4c07", "value": "#0b6b62", "ink": "#1b1d22", "muted": "#5a606c"}
FONT = "Inter, system-ui, sans-serif"
CELL = 22  # side of a number of the diagram


def color(name):
    return f"var(--{name}, {COLORS[name]})"


def text(x, y, content, *, fill="ink", size=15, anchor="middle", weight=400):
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:g}" y="{y:g}" style="fill: {color(fill)}" {style}>{content}</text>'


def grid(x, y, values, fill, size=CELL):
    """Return a matrix as cells, shaded by the absolute value of each number."""
    largest = max(abs(number) for row in values for number in row)
    return "".join(
        f'<rect x="{x + j * size:g}" y="{y + i * size:g}" width="{size - 2}" height="{size - 2}" rx="3" '
        f'style="fill: {color(fill)}" fill-opacity="{0.08 + 0.82 * abs(number) / largest:.3f}"/>'
        for i, row in enumerate(values)
        for j, number in enumerate(row)
    )


def arrow(*points, fill="muted"):
    path = " L".join(f"{x:g} {y:g}" for x, y in points)
    line = 'fill="none" stroke-width="1.5" marker-end="url(#guide-arrow)"'
    return f'<path d="M{path}" style="stroke: {color(fill)}" {line}/>'


def picture(width, height, title, parts):
    marker = (
        '<defs><marker id="guide-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto">'
        f'<path d="M0 0L8 4L0 8z" style="fill: {color("muted")}"/></marker></defs>'
    )
    paper = f'<rect width="{width}" height="{height}" style="fill: var(--paper, #faf9f6)"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" font-family="{FONT}">'
        f"<title>{title}</title>{marker}{paper}{''.join(parts)}</svg>\n"
    )


def matrix(x, y, values, fill, name, note=""):
    """Return a matrix with its name above and a note below."""
    center = x + len(values[0]) * CELL / 2 - 1
    below = text(center, y + len(values) * CELL + 15, note, fill="muted", size=14) if note else ""
    return grid(x, y, values, fill) + text(center, y - 9, name, fill=fill, size=16, weight=600) + below


def diagram(steps):
    """Return the way from the words to the output, with the matrices of the example."""
    values = {stage.name: stage.values.tolist() for stage in steps.stages}
    rows = {"Q": (36, "query", "queries"), "K": (148, "key", "keys"), "V": (260, "value", "values")}
    labels = {"Q": (88, 116), "K": (112, 174), "V": (88, 260)}
    parts = [matrix(8, 148, values["X"], "ink", "X", "words")]
    for name, (y, fill, note) in rows.items():
        parts += [arrow((78, 181), (138, y + 33)), matrix(146, y, values[name], fill, name, note)]
        parts.append(text(*labels[name], f"W_{name}", fill=fill))
    parts += [
        arrow((194, 69), (218, 96)),
        arrow((194, 175), (218, 142)),
        matrix(226, 86, values["scaled"], "query", "scores", "Q Kᵀ / √d"),
        arrow((296, 119), (350, 119)),
        text(322, 109, "softmax"),
        matrix(358, 86, values["weights"], "query", "weights", "rows sum to 1"),
        arrow((391, 176), (391, 250)),
        arrow((194, 293), (361, 293)),
        matrix(369, 260, values["output"], "value", "", "weights · V"),
        text(422, 298, "output", fill="value", size=16, anchor="start", weight=600),
    ]
    return picture(492, 348, "Queries, keys and values: from the words to the output", parts)


def heat_map(steps, words):
    """Return the weights as a heat map with numbers, one row for each query."""
    weights = steps["weights"].values.tolist()
    side, left, top = 72, 86, 60
    parts = [
        text(left + 1.5 * side, 20, "keys", fill="key", weight=600),
        text(left - 12, 44, "queries", fill="query", anchor="end", weight=600),
    ]
    largest = max(max(row) for row in weights)
    for i, row in enumerate(weights):
        parts.append(text(left + (i + 0.5) * side, 46, words[i], fill="key"))
        parts.append(text(left - 12, top + (i + 0.5) * side + 4, words[i], fill="query", anchor="end"))
        for j, weight in enumerate(row):
            opacity = 0.55 * weight / largest  # light enough for the number on it
            parts.append(
                f'<rect x="{left + j * side}" y="{top + i * side}" width="{side - 3}" height="{side - 3}" rx="6" '
                f'style="fill: {color("query")}" fill-opacity="{opacity:.3f}"/>'
            )
            parts.append(text(left + (j + 0.5) * side - 1, top + (i + 0.5) * side + 3, f"{weight:.4f}", size=14))
    return picture(left + 3 * side + 16, top + 3 * side + 8, "The weights of the three words", parts)


def main(folder):
    example = get_example("dog-ate-dinner")
    steps = regard.steps(*example.inputs)
    (folder / "qkv.svg").write_text(diagram(steps), encoding="utf8")
    (folder / "weights.svg").write_text(heat_map(steps, example.tokens), encoding="utf8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
