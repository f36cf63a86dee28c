"""The gallery on the site: the table and sections of the Markdown page become cards with pictures and filters."""

import re
from functools import cache
from pathlib import Path

from regard.catalog_entry import Mechanism
from regard.explorer import bundle
from regard.mechanisms import catalog
from regard.mechanisms.gallery_page import CARDS_MARKER, anchor, exactness, paper, witness
from regard.mechanisms.weight_matrices import weight_matrix
from tools.docs.gallery.pictures import picture_uri

ROOT = Path(__file__).parents[3]
URI = "gallery/index.md"
SOURCE = ROOT / "docs" / URI
FRONTEND = "tools/docs/gallery/frontend"
SCRIPT, STYLE = "assets/gallery.js", "assets/gallery.css"
MAX_NARROW_FORMULA = 75  # characters of LaTeX of a formula beside the picture
SPACE_BETWEEN_FORMULAS = re.compile(r",?\s*\\q?quad\s*|,\\ (?=[A-Z])")
NOTE_IN_REPOSITORY = re.compile(r"\s+The pictures and filters are on the site, which `make docs` builds\.")
LEGEND = (
    "In a picture, row i is query i, and column j is key j. Dark blue is a weight of 1, orange is negative, and a "
    "blank cell is exactly 0. [More about the pictures](#the-pictures)"
)


def generated_files() -> dict[str, str]:
    """Return the script and the style sheet of the page, by path on the site."""
    script = bundle.bundle_modules(f"{FRONTEND}/main.js", lambda path: (ROOT / path).read_text(encoding="utf8"))
    return {
        # a classic script, because a browser does not load modules from the file system
        SCRIPT: f"(() => {{\n{script}\npage.startGallery();\n}})();\n",
        STYLE: (ROOT / FRONTEND / "gallery.css").read_text(encoding="utf8"),
    }


def insert_cards(markdown: str) -> str:
    """Replace the table and the sections of all mechanisms by filters and cards, above the explanations."""
    title, explanations = markdown.partition(CARDS_MARKER)[0].split("\n## ", 1)
    title = NOTE_IN_REPOSITORY.sub("", title).rstrip()
    return "\n".join([title, "", LEGEND, "", _filters(), "", *_cards(), "", f"## {explanations}"])


def _filters() -> str:
    counts = {name: sum(m.properties[name] for m in catalog()) for name in catalog()[0].properties}
    buttons = (
        f'<button type="button" aria-pressed="false" data-property="{anchor(name)}">{name} <span>{n}</span></button>'
        for name, n in counts.items()
    )
    return (
        f'<div class="gallery-filters" data-total="{len(catalog())}" hidden>'
        f'<div role="group" aria-label="Properties of the mechanisms to show">{"".join(buttons)}'
        '<button type="button" class="show-all">show all</button></div>'
        '<p role="status"></p></div>'
    )


@cache
def _cards() -> list[str]:
    """Return the lines of all cards; they do not depend on the Markdown."""
    lines = []
    for family, members in catalog().by_family():
        lines += ["", f"## {family.capitalize()}", "", '<div class="mechanism-cards" markdown>']
        for m in members:
            lines += _card(m)
        lines += ["", "</div>"]
    return lines


def _card(m: Mechanism) -> list[str]:
    properties = [name for name, holds in m.properties.items() if holds]
    labels = "".join(f"<li>{name}</li>" for name in [*properties, *([] if m.exact else ["approximate"])])
    weights = weight_matrix(m.name)
    label = f"Weights of 32 queries and 32 keys, from {weights.min():.2g} to {weights.max():.2g}"
    width = "wide" if len(m.formula) > MAX_NARROW_FORMULA else "narrow"
    return [
        *("", f'<article class="mechanism-card" data-properties="{" ".join(map(anchor, properties))}" markdown>'),
        *("", f"### {m.name}", ""),
        f'<img class="weights themed" src="{picture_uri(weights)}" width="128" height="128" alt="{label}">',
        *("", m.idea, ""),
        *(f'<div class="formula {width}" markdown>', "", f"$$\n{formula(m)}\n$$", "", "</div>", ""),
        f'<ul class="properties" aria-label="Properties">{labels}</ul>',
        *("", "```python", *filter(None, m.example.splitlines()), "```", ""),
        *('<div class="facts" markdown>', ""),
        f"- **Time** {complexity_html(m.time_complexity)}, **memory** {complexity_html(m.memory_complexity)}",
        *(f"- {fact}" for fact in (exactness(m), f"**Paper** {paper(m)}", f"**Witness** {witness(m)}")),
        *("", "</div>", "", "</article>"),
    ]


def formula(m: Mechanism) -> str:
    """Return the formula; the parts of a long one are below each other."""
    latex = m.formula.replace("<", r"\lt ").replace(">", r"\gt ")  # not the start of an element
    if len(latex) <= MAX_NARROW_FORMULA:
        return latex
    lines = r" \\ ".join(SPACE_BETWEEN_FORMULAS.split(latex))
    return rf"\begin{{gathered}} {lines} \end{{gathered}}"


def complexity_html(text: str) -> str:
    """Return a complexity with raised powers and lowered indices.

    >>> complexity_html("n^1.5 d_a")
    'n<sup>1.5</sup> d<sub>a</sub>'
    """
    text = re.sub(r"\^(\d+(?:\.\d+)?|\([^)]*\))", r"<sup>\1</sup>", text)
    return re.sub(r"_(\w)", r"<sub>\1</sub>", text)


def add_files(html: str) -> str:
    """Add the script and the style sheet to the HTML of the page."""
    return f'<link rel="stylesheet" href="../{STYLE}">\n{html}\n<script src="../{SCRIPT}"></script>'
