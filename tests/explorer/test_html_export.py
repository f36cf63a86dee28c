"""The bundled script, and the exported file with its responses."""

import json
import re
import shutil
import subprocess
import zlib
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard import normalizer
from regard.errors import ArgumentError, LoadError
from regard.explorer import bundle
from regard.explorer.api.packing import Payload, unpack
from regard.explorer.api.registry import dispatch
from regard.explorer.explorer import Explorer
from regard.explorer.session_from_recording import session_from_recording
from regard.explorer.text_models.registry import load_text_model
from tests.explorer.recordings import make_explorer, make_recording, make_session

SENTENCE = " The captain saw the white whale and the boats went down. The captain saw the white whale"


def export(explorer: Explorer, **params: Any) -> tuple[str, dict[str, Payload], list[str]]:
    """Return the HTML of an exported file, its responses by request, and the list of omitted parts."""
    response = dispatch(explorer, "export", {"session": 0, **params})
    html = response.arrays["html"].tobytes().decode()
    match = re.search(r'<script type="application/json" id="regard-responses">(.*?)</script>', html, re.DOTALL)
    assert match
    packed = json.loads(match[1])["responses"]
    return (
        html,
        {key: unpack(zlib.decompress(b64decode(data))) for key, data in packed.items()},
        response.values["omitted"],
    )


def test_the_file_contains_the_weights_of_the_recording() -> None:
    explorer = make_explorer(20, 20)
    _, responses, omitted = export(explorer, heads=[[0, 1]])
    assert omitted == []
    tile = responses['tile{"column":0,"head":1,"layer":0,"level":0,"row":0,"session":0}']
    assert np.allclose(tile.arrays["mean"], explorer.sessions[0].recording[0].weights[0, 1], atol=1e-6)
    vectors = responses['head_vectors{"head":1,"layer":0,"session":0}']
    call = explorer.sessions[0].layer(0).merged_call
    for name, tensor in (("q", call.q), ("k", call.k), ("v", call.v)):
        assert np.array_equal(vectors.arrays[name], tensor[0, 1].numpy())
    assert vectors.arrays["visible"].all()
    assert vectors.values["code"].count("{query}") == 1
    assert 'map_info{"head":1,"layer":0,"session":0}' in responses
    assert 'thumbnails{"layer":0,"session":0,"size":64}' in responses
    assert 'heads{"session":0}' in responses
    assert not any('"head":0' in key for key in responses), "only the requested heads"


def test_the_state_in_a_file_has_one_session_and_no_models() -> None:
    explorer = Explorer(make_session(4, 4), make_session(5, 5))
    _, responses, _ = export(explorer, session=1)
    values = responses["state{}"].values
    assert [session["id"] for session in values["sessions"]] == [1]
    assert (values["models"], values["sessions"][0]["can_generate"]) == ([], False)


def test_the_finest_levels_are_omitted_first_and_listed() -> None:
    _, responses, omitted = export(make_explorer(1500, 1500), heads=[[0, 0]], max_bytes=2**20)
    levels = {json.loads(key[4:])["level"] for key in responses if key.startswith("tile")}
    assert levels == {3}
    assert responses['map_info{"head":0,"layer":0,"session":0}'].values["finest_level"] == 3
    assert omitted == ["cells of 4 x 4 weights of layer 0, head 0: too large for the file"]


def test_coarse_maps_of_all_heads_come_before_finer_maps() -> None:
    _, responses, omitted = export(make_explorer(1100, 1100, num_heads=8, num_kv_heads=8), max_bytes=3 * 2**20)
    infos = [responses[f'map_info{{"head":{head},"layer":0,"session":0}}'].values for head in range(8)]
    finest = [info["finest_level"] for info in infos]
    assert len(finest) == 8
    assert max(finest) - min(finest) <= 1, "the bytes are shared by level, not by head"
    assert finest == sorted(finest), "the most important heads come first"
    for head, level in enumerate(finest):
        assert f'tile{{"column":0,"head":{head},"layer":0,"level":{level},"row":0,"session":0}}' in responses
    assert len(omitted) == 1
    assert "and later heads: too large for the file" in omitted[0]


def test_heads_without_a_map_have_a_thumbnail() -> None:
    _, responses, omitted = export(make_explorer(1100, 1100, num_heads=8, num_kv_heads=8), max_bytes=2**16)
    assert not any(key.startswith("tile") for key in responses)
    assert responses['thumbnails{"layer":0,"session":0,"size":64}'].arrays["max"].shape == (8, 35, 35)
    assert omitted[0] == "cells of 8 x 8 weights of layer 0, head 0 and later heads: too large for the file"


def test_a_file_of_a_short_text_is_small() -> None:
    """The page computes the arithmetic of every cell; a response per cell would take ten megabytes."""
    html, responses, omitted = export(Explorer(load_text_model("language").record_text(SENTENCE)))
    assert omitted == []
    assert sum(key.startswith("head_vectors") for key in responses) == 32
    assert len(html) < 2.5 * 2**20


def test_cells_are_stored_if_the_page_cannot_compute_them() -> None:
    _, responses, _ = export(make_explorer(5, 5, normalizer=normalizer.sparsemax()), heads=[[0, 0]])
    assert sum(key.startswith("cell_steps") for key in responses) == 25
    assert not any(key.startswith("head_vectors") for key in responses)


def test_the_file_has_no_remote_resources() -> None:
    html, _, _ = export(make_explorer(5, 5))
    head = html[: html.index('id="regard-responses"')]
    assert "default-src 'none'" in head
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert not re.search(r"^\s*(import|export) ", html, re.MULTILINE)
    assert "@import" not in html


def test_markup_in_tokens_is_escaped() -> None:
    markup = "</script><script>alert(1)</script>"
    explorer = Explorer(session_from_recording(make_recording(3, 3), tokens=[markup, "<!--", "&"], title=markup))
    html, responses, _ = export(explorer)
    assert "alert(1)" not in html.replace("&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;", "")
    assert html.count("<script") == 2
    assert responses["state{}"].values["sessions"][0]["texts"][0]["tokens"] == [markup, "<!--", "&"]


@pytest.mark.parametrize("entry", ["app/page-entry.js", "app/widget-entry.js"])
def test_the_bundled_script_has_valid_syntax(entry: str, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed; install nodejs to check scripts")
    path = tmp_path / "bundle.mjs"
    path.write_text(bundle.bundle_script(entry), encoding="utf8")
    result = subprocess.run([node, "--check", str(path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_bundled_modules_have_their_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed; install nodejs to run scripts")
    files = {
        "a.js": 'import {\n  two as pair,\n  three,\n} from "./b.js";\nimport * as all from "./b.js";\n'
        'import four from "./c.js";\n'
        "export const sum = pair() + three + all.three + four;\nexport default { sum };\n",
        "b.js": 'import four from "./c.js";\nexport function two() { return four / 2; }\nexport const three = 3;\n',
        "c.js": "export default 4;\n",
    }
    _replace_files(monkeypatch, files)
    script = bundle.bundle_script.__wrapped__("a.js")
    assert [script.index(f"const ${name} =") for name in "cba"] == sorted(script.index(f"const ${n} =") for n in "abc")
    result = subprocess.run(
        [node, "-e", f"{script}\nconsole.log(page.sum, page.default.sum)"], capture_output=True, text=True
    )
    assert result.stdout.strip() == "12 12", result.stderr


def _replace_files(monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    monkeypatch.setattr(bundle, "read_frontend_file", lambda name: files[name].encode())


def test_modules_that_cannot_be_bundled_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    _replace_files(monkeypatch, {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'})
    with pytest.raises(LoadError, match=r"in a cycle; got a\.js -> b\.js -> a\.js"):
        bundle.bundle_script.__wrapped__("a.js")
    _replace_files(monkeypatch, {"a.js": 'import "https://example.org/x.js";\n'})
    with pytest.raises(LoadError, match=r"a\.js must use imports from relative paths, .*; got 'import \"https"):
        bundle.bundle_script.__wrapped__("a.js")
    _replace_files(monkeypatch, {"a.js": "export let a = 1;\n"})
    with pytest.raises(LoadError, match="got 'export let a = 1"):
        bundle.bundle_script.__wrapped__("a.js")


@pytest.mark.parametrize(
    "statement", ["import {\n  one,\n  four,\n} from", "import four from", "import { four as one } from"]
)
def test_an_import_of_a_name_that_is_not_exported_raises(statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _replace_files(monkeypatch, {"a.js": f'{statement} "./b.js";\n', "b.js": "export const one = 1;\n"})
    name = "default" if statement == "import four from" else "four"
    with pytest.raises(LoadError, match=rf"a\.js must import names that b\.js exports; got '{name}'"):
        bundle.bundle_script.__wrapped__("a.js")


def test_the_script_has_no_types(monkeypatch: pytest.MonkeyPatch) -> None:
    types = '/** @import { Context } from "./types.js" */\n\n/**\n * A number.\n * @type {number} **/\n'
    _replace_files(monkeypatch, {"a.js": f'{types}export const a = 1; // "/** text */"\n'})
    lines = bundle.bundle_script.__wrapped__("a.js").splitlines()
    assert lines[:2] == ["const $a = (() => {", 'const a = 1; // "/** text */"']
    assert not any("Context" in line or "number" in line for line in lines)


def test_a_file_outside_of_the_page_raises() -> None:
    with pytest.raises(LoadError, match=r"a file of the page must be one of .*index\.html.*; got '\.\./server\.py'"):
        bundle.read_frontend_file("../server.py")


@pytest.mark.parametrize(
    "params, message",
    [
        ({"heads": [[0]]}, r"heads must be a list of lists of 2 integers; got \[\[0\]\]\."),
        ({"heads": "all"}, "heads must be a list of lists of 2 integers; got all"),
        ({"cells": [[0, 0, 1]]}, "cells must be a list of lists of 4 integers"),
        ({"heads": [[0, 9]]}, "head must be one of 0, 1 of layer 0; got 9"),
        ({"max_bytes": 1}, "max_bytes must be an integer from 65536 to 209715200; got 1"),
    ],
)
def test_invalid_export_requests_raise(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        dispatch(make_explorer(4, 4), "export", params)
