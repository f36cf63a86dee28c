"""The files of the page, and all its modules bundled into one script, so that a page needs one request.

A module becomes a function that is called once, after the modules it imports, and returns its exports. Modules import
from relative paths inside `frontend` and without cycles; an import may have several lines. They export functions,
classes and constants by name, or one default. Types are comments, which the script does not contain.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from regard.cache import memoize
from regard.errors import LoadError

IMPORT_PATTERN = re.compile(
    r"^import (?:(?P<default>\w+)|\* as (?P<all>\w+)|\{(?P<names>[^}]*)\}) "
    r'from "(?P<path>\.{1,2}/(?:[\w-]+/|\.\./)*[\w-]+\.js)";\s*$',
    re.M,
)
EXPORT_PATTERN = re.compile(r"^export (?P<kind>async function\*?|function\*?|class|const) (?P<name>\w+)", re.M)
TYPE_COMMENT_PATTERN = re.compile(r"^ */\*\*(?:[^*]|\*(?!/))*\*/\n+", re.M)
DEFAULT_EXPORT_PATTERN = re.compile(r"^export default ", re.M)


def frontend_files() -> list[str]:
    """Return the paths of the files in the folder `frontend`, such as "charts/map/viewport.js"."""
    return sorted(_file_paths(files("regard.explorer") / "frontend", ""))


def _file_paths(folder: Traversable, prefix: str) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _file_paths(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}"


def read_frontend_file(path: str) -> bytes:
    """Return the content of a file in the folder `frontend`."""
    if path not in frontend_files():
        raise LoadError(f"a file of the page must be one of {', '.join(frontend_files())}; got {path!r}.")
    return files("regard.explorer").joinpath("frontend", *path.split("/")).read_bytes()


def served_files() -> dict[str, bytes]:
    """Return the content of all files by path, and of `page.js`, the bundled script of `index.html`."""
    return {
        **{path: read_frontend_file(path) for path in frontend_files()},
        "page.js": bundle_script("app/page-entry.js").encode(),
    }


@memoize()
def bundle_script(entry: str) -> str:
    """Return a module of the folder `frontend` and all its imports as one script; see `bundle_modules`.

    >>> "import " in bundle_script("app/widget-entry.js").splitlines()[0]
    False
    """
    return bundle_modules(entry, lambda path: read_frontend_file(path).decode())


def bundle_modules(entry: str, read_module: Callable[[str], str]) -> str:
    """Return a module and all its imports as one script, in which the variable `page` has the exports of `entry`.

    `read_module` returns the text of the module with a path. Imported paths are relative to the importing module.
    """
    modules = _modules_in_import_order(entry, read_module)
    variables = {_module_variable(path): path for path, _ in modules}
    if len(variables) < len(modules):
        path = next(path for path, _ in modules if variables[_module_variable(path)] != path)
        raise LoadError(
            f"modules must have different variable names; got {path} and {variables[_module_variable(path)]}."
        )
    _check_imported_names(dict(modules))
    wrapped = [_wrap_module(path, text) for path, text in modules]
    return "\n".join([*wrapped, f"const page = {_module_variable(entry)};"])


def _modules_in_import_order(entry: str, read_module: Callable[[str], str]) -> list[tuple[str, str]]:
    """Return the paths and texts of modules, each module after those it imports."""
    texts: dict[str, str] = {}

    def visit(path: str, importers: tuple[str, ...]) -> None:
        if path in importers:
            raise LoadError(f"modules must not import each other in a cycle; got {' -> '.join((*importers, path))}.")
        if path in texts:
            return
        text = read_module(path)
        for match in IMPORT_PATTERN.finditer(text):
            visit(_resolve_import(path, match["path"]), (*importers, path))
        texts[path] = text

    visit(entry, ())
    return list(texts.items())


def _resolve_import(importer: str, relative_path: str) -> str:
    """Return the path of an imported module, relative to the same folder as the path of the importer.

    >>> _resolve_import("views/map/map-view.js", "../../charts/map/viewport.js")
    'charts/map/viewport.js'
    """
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), relative_path))


def _check_imported_names(modules: dict[str, str]) -> None:
    """Raise if a module imports a name that the other module does not export: it would be undefined in the script."""
    exports = {path: _exported_names(text) for path, text in modules.items()}
    for path, text in modules.items():
        for match in IMPORT_PATTERN.finditer(text):
            source = _resolve_import(path, match["path"])
            names = ["default"] if match["default"] else [name for name, _ in _imported_names(match)]
            for name in names:
                if name not in exports[source]:
                    raise LoadError(f"{path} must import names that {source} exports; got {name!r}.")


def _imported_names(match: re.Match[str]) -> list[tuple[str, str]]:
    """Return the names in the braces of an import, each with its name in the importing module."""
    parts = [part.split() for part in (match["names"] or "").split(",") if part.strip()]
    return [(part[0], part[-1]) for part in parts]


def _exported_names(text: str) -> list[str]:
    names = [match["name"] for match in EXPORT_PATTERN.finditer(text)]
    return [*names, "default"] if DEFAULT_EXPORT_PATTERN.search(text) else names


def _wrap_module(path: str, text: str) -> str:
    def replace_import(match: re.Match[str]) -> str:
        source = _module_variable(_resolve_import(path, match["path"]))
        if match["names"] is not None:
            names = (f"{name}: {local}" if name != local else name for name, local in _imported_names(match))
            return f"const {{ {', '.join(names)} }} = {source};"
        return f"const {match['all']} = {source};" if match["all"] else f"const {match['default']} = {source}.default;"

    exports = [f"{name}: $default" if name == "default" else name for name in _exported_names(text)]
    body = DEFAULT_EXPORT_PATTERN.sub(
        "const $default = ", EXPORT_PATTERN.sub(r"\g<kind> \g<name>", IMPORT_PATTERN.sub(replace_import, text))
    )
    body = TYPE_COMMENT_PATTERN.sub("", body)
    remaining = re.search(r"^(import|export)\b.*", body, re.M)
    if remaining is not None:
        raise LoadError(
            f"{path} must use imports from relative paths, and export functions, classes, constants or a default; got "
            f"{remaining[0][:60]!r}."
        )
    return f"const {_module_variable(path)} = (() => {{\n{body}\nreturn {{ {', '.join(exports)} }};\n}})();"


def _module_variable(path: str) -> str:
    """Return the variable of a module in the script.

    >>> _module_variable("charts/map/map-axes.js")
    '$charts$map$map_axes'
    """
    return "".join("$" + re.sub(r"\W", "_", part) for part in path.removesuffix(".js").split("/"))
