"""Builds the page of the guide or of the gallery alone, as the site does, in a second instead of half a minute."""

from pathlib import Path

import markdown
from pymdownx import slugs

from tools.docs.gallery import page as gallery
from tools.docs.guide import page

ROOT = Path(__file__).parents[2]
EXTENSIONS = ["attr_list", "md_in_html", "tables", "toc", "pymdownx.superfences", "pymdownx.arithmatex"]
EXTENSION_CONFIGS = {"toc": {"slugify": slugs.slugify(case="lower")}}


def build(folder: Path) -> Path:
    """Write the page of the guide, its script and its style sheet; return the path of the page."""
    text = page.insert_widgets(page.SOURCE.read_text(encoding="utf8"))
    html = page.add_files(markdown.markdown(text, extensions=EXTENSIONS))
    return _write(folder / page.URI.replace(".md", ".html"), folder, html, page.generated_files())


def build_gallery(folder: Path) -> Path:
    """Write the page of the gallery, its script and its style sheet; return the path of the page."""
    text = gallery.insert_cards(gallery.SOURCE.read_text(encoding="utf8"))
    html = gallery.add_files(markdown.markdown(text, extensions=EXTENSIONS, extension_configs=EXTENSION_CONFIGS))
    return _write(folder / gallery.URI.replace(".md", ".html"), folder, html, gallery.generated_files())


def _write(target: Path, folder: Path, html: str, generated_files: dict[str, str]) -> Path:
    body = f'<body data-md-color-scheme="default"><main class="md-typeset">{html}</main></body>'
    # the style sheet of the theme does the same
    style = "<style>pre { overflow-x: auto; } body { margin: 0 16px; }</style>"
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    files = {
        target.relative_to(
            folder
        ): f'<!doctype html><html lang="en"><meta charset="utf-8">{viewport}{style}{body}</html>'
    }
    for path, content in {**files, **generated_files}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content, encoding="utf8")
    return target
