"""Pages for files of the repository outside docs, so that links to code, tests and results work on the site."""

import ast
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = "repository"
LANGUAGES = {".py": "python", ".h": "cpp", ".cpp": "cpp", ".js": "javascript", ".toml": "toml", ".json": "json"}
CODE = {*LANGUAGES, ".tsv", ".mk", ".txt"}
PICTURES = {".png", ".svg", ".webp", ".gif"}
MAX_LINES = 2000  # of a file that is shown
FENCE = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<before>\]\(\s*<?)(?P<target>[^)\s>#]+)(?P<anchor>#[^)\s>]*)?")
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:|//|#", re.IGNORECASE)


def link_targets(markdown: str, source: Path) -> Iterator[Path]:
    """Return the files and folders that the relative links of a document lead to."""
    for match in LINK.finditer(FENCE.sub("", markdown)):
        target = _resolve(match["target"], source)
        if target is not None:
            yield target


def _resolve(target: str, source: Path) -> Path | None:
    if OUTSIDE.match(target):
        return None
    path = (source.parent / target).resolve()
    return path if path.is_relative_to(ROOT) else None


def rewrite_links(markdown: str, source: Path, page_uri: str, site_uri: Callable[[Path], str | None]) -> str:
    """Replace each relative link, which is relative to the source, by one that is relative to the page on the site."""

    def replace(match: re.Match[str]) -> str:
        target = _resolve(match["target"], source)
        uri = target and target.exists() and site_uri(target)
        if not uri:
            return match[0]  # MkDocs reports a dead link
        return match["before"] + os.path.relpath(uri, os.path.dirname(page_uri)) + (match["anchor"] or "")

    parts = []
    end = 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(replace, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(replace, markdown[end:])])


def site_path(path: Path) -> str:
    return f"{FOLDER}/{path.as_posix()}"


def page_path(path: Path) -> str:
    """Return the path of the page that shows a file or a folder of the repository."""
    return f"{FOLDER}/{path.as_posix()}.md"


def page_text(target: Path, root: Path) -> str:
    """Return the Markdown of a page that shows a file, or lists a folder."""
    name = target.relative_to(root).as_posix()
    title = f"---\ntitle: {name}\nsearch: {{exclude: true}}\n---\n\n# `{name}`\n\n"
    if target.is_dir():
        return title + _folder_list(target)
    lines = target.read_text(encoding="utf8").splitlines()
    note = f"\n\nThe first {MAX_LINES} of {len(lines)} lines." if len(lines) > MAX_LINES else ""
    code = "\n".join(lines[:MAX_LINES])
    return f"{title}````{LANGUAGES.get(target.suffix, 'text')} {{linenums=1}}\n{code}\n````{note}\n"


def _folder_list(folder: Path) -> str:
    rows = ["| file | contents |", "|---|---|"]
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and not path.name.startswith("_"):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf8"))) or ""
            rows.append(f"| `{path.name}` | {docstring.partition(chr(10))[0].replace('|', chr(92) + '|')} |")
        elif path.is_dir() and not path.name.startswith("_"):
            rows.append(f"| `{path.name}/` | a folder |")
    return "\n".join(rows) + "\n"
