"""The page's files, and all its modules as one script, which is one request instead of one a module.

A module becomes a function that is called once, after those it imports, and gives back what it exports. Modules must
import on one line each, only from files beside them, and not in a circle; they export functions, classes and constants
by name, or one default.
"""

import re
from functools import cache
from importlib.resources import files

from regard.errors import LoadError

IMPORT = re.compile(
    r'^import (?:(?P<default>\w+)|\* as (?P<all>\w+)|\{(?P<names>[^}]*)\}) from "\./(?P<file>[\w-]+\.js)";\s*$', re.M
)
EXPORT = re.compile(r"^export (?P<kind>async function\*?|function\*?|class|const) (?P<name>\w+)", re.M)
DEFAULT = re.compile(r"^export default ", re.M)


def names() -> list[str]:
    """The files of the page."""
    folder = files("regard.explorer") / "static"
    return sorted(each.name for each in folder.iterdir() if each.is_file())


def content(name: str) -> bytes:
    """One of the page's files."""
    if name not in names():
        raise LoadError(f"a file of the page must be one of {', '.join(names())}; got {name!r}.")
    return (files("regard.explorer") / "static" / name).read_bytes()


def served() -> dict[str, bytes]:
    """The files by name, and `page.js`, the script that `index.html` asks for."""
    return {**{name: content(name) for name in names()}, "page.js": joined("boot.js").encode()}


@cache
def joined(entry: str) -> str:
    """A module and all that it imports as one script, in which `entry` comes last and is called `page`.

    >>> "import " in joined("widget.js").splitlines()[0]
    False
    """
    made = [_called(name, text) for name, text in _in_order(entry)]
    return "\n".join([*made, f"const page = {_variable(entry)};"])


def _in_order(entry: str) -> list[tuple[str, str]]:
    """Modules with their texts, each after those it imports."""
    found: dict[str, str] = {}

    def visit(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            raise LoadError(f"modules must not import each other in a circle; got {' -> '.join((*way, name))}.")
        if name in found:
            return
        text = content(name).decode()
        for match in IMPORT.finditer(text):
            visit(match["file"], (*way, name))
        found[name] = text

    visit(entry, ())
    return list(found.items())


def _called(name: str, text: str) -> str:
    exports = [match["name"] for match in EXPORT.finditer(text)]
    body = DEFAULT.sub("const $default = ", EXPORT.sub(r"\g<kind> \g<name>", IMPORT.sub(_taken, text)))
    left = re.search(r"^(import|export)\b.*", body, re.M)
    if left is not None:
        raise LoadError(f"{name} must import and export as the others do; got {left[0][:60]!r}.")
    if DEFAULT.search(text):
        exports.append("default: $default")
    return f"const {_variable(name)} = (() => {{\n{body}\nreturn {{ {', '.join(exports)} }};\n}})();"


def _taken(match: re.Match[str]) -> str:
    """What stands in the place of an import."""
    source = _variable(match["file"])
    if match["names"] is not None:
        return f"const {{ {match['names'].replace(' as ', ': ').strip()} }} = {source};"
    return f"const {match['all']} = {source};" if match["all"] else f"const {match['default']} = {source}.default;"


def _variable(name: str) -> str:
    return "$" + re.sub(r"\W", "_", name.removesuffix(".js"))
