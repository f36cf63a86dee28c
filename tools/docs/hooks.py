"""MkDocs hooks: the pages of the site that are generated, and links to files of the repository.

The sources are in docs/. Other pages come from README.md (the home page) and other documents of the root folder, from
the public modules and the command line, and from every file of the repository that a page links to.
"""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.docs import command_line, reference, repository, tutorials
from tools.docs.gallery import page as gallery
from tools.docs.guide import page as guide

ROOT = Path(__file__).parents[2]
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
    "THIRD_PARTY_NOTICES.md": "project/third-party-notices.md",
}
# Weights of pages in the search, by the start of their paths: answers to questions come before records of decisions.
SEARCH_BOOSTS = {
    "how-to/": 2.0,
    "get-started/": 2.0,
    "guide/": 2.0,
    "gallery/which-one": 4.0,
    "gallery/": 0.5,
    "recording": 4.0,
    "decisions/": 0.1,
    "project/": 0.3,
}
BLANK_LINE = re.compile(r"^ *<BLANKLINE>$", re.MULTILINE)  # doctest's mark of an empty line of output
FORMULA = re.compile(r"\\\((.*?)\\\)|\\\[(.*?)\\\]", re.DOTALL)
# A link to the source of a public module leads to its page of the reference, which the repository does not contain.
REFERENCE_PAGES = reference.pages_by_source()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the parts of the navigation that are generated."""
    for section in config.nav or ():
        for title, entries in section.items():
            if title == "Reference":
                entries.extend(reference.navigation())
            if title == "Project":
                entries.append(
                    {"Decisions": [f"decisions/{p.name}" for p in sorted((ROOT / "docs/decisions").glob("*.md"))]}
                )
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages, and a page for each file of the repository that a page links to."""
    for source, target in ROOT_PAGES.items():
        if (ROOT / source).exists():
            files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf8")))
    for path, text in {**reference.pages(), **command_line.pages()}.items():
        files.append(File.generated(config, path, content=text))
    generated = {**guide.generated_files(), **gallery.generated_files(), **tutorials.generated_files()}
    for path, content in generated.items():
        files.append(File.generated(config, path, content=content))
    for target in sorted(set(_outside_targets(files))):
        if target.suffix in repository.PICTURES:
            path = repository.site_path(target.relative_to(ROOT))
            files.append(File.generated(config, path, abs_src_path=str(target)))
        else:
            path = repository.page_path(target.relative_to(ROOT))
            files.append(File.generated(config, path, content=repository.page_text(target, ROOT)))
    return files


def _outside_targets(files: Files) -> Any:
    for file in files.documentation_pages():
        for target in repository.link_targets(file.content_string, source_of(file.src_uri)):
            if target.exists() and not _is_page(target):
                yield target


def source_of(uri: str) -> Path:
    """Return the file of the repository that a page of the site is made from."""
    for source, target in ROOT_PAGES.items():
        if target == uri:
            return ROOT / source
    return ROOT / "docs" / uri


def _is_page(target: Path) -> bool:
    """Return whether a file, which is in the repository, has a page of its own on the site."""
    if target.relative_to(ROOT) in REFERENCE_PAGES:
        return True
    is_in_docs = target.is_relative_to(ROOT / "docs") and not target.is_dir() and target.suffix not in repository.CODE
    return is_in_docs or target.relative_to(ROOT).as_posix() in ROOT_PAGES


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert the widgets of the guide and the cards of the gallery; point relative links to the pages of the site.

    Outputs of examples show their empty lines as such.
    """
    if page.file.src_uri == guide.URI:
        markdown = guide.insert_widgets(markdown)
    elif page.file.src_uri == gallery.URI:
        markdown = gallery.insert_cards(markdown)
        page.meta["hide"] = ["navigation"]  # room for two columns
    if not page.file.src_uri.startswith(f"{repository.FOLDER}/"):
        markdown = BLANK_LINE.sub("", markdown)
    source = source_of(page.file.src_uri)
    for start, boost in SEARCH_BOOSTS.items():
        if page.file.src_uri.startswith(start):
            page.meta.setdefault("search", {"boost": boost})

    def site_uri(target: Path) -> str | None:
        relative = target.relative_to(ROOT)
        if relative in REFERENCE_PAGES:
            return REFERENCE_PAGES[relative]
        if relative.as_posix() in ROOT_PAGES:
            return ROOT_PAGES[relative.as_posix()]
        if target.suffix == ".ipynb":
            return tutorials.page_uri(target)
        if _is_page(target):
            return target.relative_to(ROOT / "docs").as_posix()
        if target.suffix in repository.PICTURES:
            return repository.site_path(target.relative_to(ROOT))
        return repository.page_path(target.relative_to(ROOT))

    return repository.rewrite_links(markdown, source, page.file.src_uri, site_uri)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add the scripts of the guide and of the gallery to their pages."""
    for interactive in (guide, gallery):
        if page.file.src_uri == interactive.URI:
            return interactive.add_files(html)
    return html


def on_post_build(*, config: MkDocsConfig) -> None:
    """Replace formulas in the search index, which would show their LaTeX; those without commands stay as text."""
    path = Path(config.site_dir) / "search" / "search_index.json"
    index = json.loads(path.read_text(encoding="utf8"))
    for entry in index["docs"]:
        for field in ("title", "text"):
            entry[field] = FORMULA.sub(_formula_text, entry[field])
    path.write_text(json.dumps(index), encoding="utf8")


def _formula_text(match: re.Match[str]) -> str:
    formula = match[1] or match[2] or ""
    return "…" if "\\" in formula else formula.replace("{", "").replace("}", "")
