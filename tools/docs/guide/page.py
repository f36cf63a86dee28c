"""The page "Attention, step by step" on the site: its widgets, inline pictures, script and style sheet.

In the Markdown, a widget is a comment with its name and the text of the exercise, which GitHub does not show.
"""

import json
import re
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from regard.explorer import bundle
from tools.docs.guide.static_tables import tables_html
from tools.docs.guide.widget_data import page_variables, widget_data

ROOT = Path(__file__).parents[3]
URI = "guide/attention-step-by-step.md"
SOURCE = ROOT / "docs" / URI
FRONTEND = "tools/docs/guide/frontend"
SCRIPT, STYLE = "assets/guide.js", "assets/guide.css"
WIDGET = re.compile(r"^<!-- widget: (?P<name>\w+)\n(?P<exercise>.+?)\n-->$", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r'<img alt="(?P<alt>[^"]*)" src="(?P<name>\w+)\.svg" ?/?>')


def variables() -> dict[str, Any]:
    """Return the variables of the Python blocks of the page."""
    return _variables_of(SOURCE.read_text(encoding="utf8"))


def data() -> dict[str, Any]:
    """Return the data of all widgets."""
    return _data_of(SOURCE.read_text(encoding="utf8"))


@cache  # by the text, because `make docs-serve` builds the site again after each change
def _variables_of(markdown: str) -> dict[str, Any]:
    return page_variables(markdown)


@cache
def _data_of(markdown: str) -> dict[str, Any]:
    return widget_data(_variables_of(markdown))


def generated_files() -> dict[str, str]:
    """Return the script and the style sheet of the page, by path on the site."""
    script = bundle.bundle_modules(f"{FRONTEND}/main.js", lambda path: (ROOT / path).read_text(encoding="utf8"))
    style = bundle.read_frontend_file("styles/style.css").decode()
    return {
        # a classic script, because a browser does not load modules from the file system
        SCRIPT: f"(() => {{\n{script}\npage.startGuide({json.dumps(data())});\n}})();\n",
        STYLE: style + (ROOT / FRONTEND / "guide.css").read_text(encoding="utf8"),
    }


def insert_widgets(markdown: str) -> str:
    """Replace the comments of the widgets by their elements, which contain the numbers as tables."""
    return WIDGET.sub(lambda match: _widget_html(match["name"], match["exercise"]), markdown)


def _widget_html(name: str, exercise: str) -> str:
    text = escape(" ".join(exercise.split()), quote=False)
    return (
        f'<section class="regard guide-widget" data-widget="{name}" aria-label="Exercise: {name}">'
        f'<p class="exercise"><strong>Try it.</strong> {text}</p>'
        f'<div class="widget-body">{tables_html(name, data())}</div></section>'
    )


def add_files(html: str) -> str:
    """Add the script and the style sheet to the HTML of the page, and put its pictures in line."""
    html = PICTURE.sub(lambda match: _picture_html(match["name"], match["alt"]), html)
    return f'<link rel="stylesheet" href="../{STYLE}">\n{html}\n<script src="../{SCRIPT}"></script>'


def _picture_html(name: str, alt: str) -> str:
    """Return a picture as an element of the page, so that it has the theme of the page."""
    svg = (SOURCE.parent / f"{name}.svg").read_text(encoding="utf8")
    return f'<span class="regard guide-picture" role="img" aria-label="{alt}">{svg}</span>'
