"""The page as one script, and as one file with its answers."""

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

from regard import weigh
from regard.errors import LoadError, SpecError
from regard.explorer import pages
from regard.explorer.explorer import Explorer
from regard.explorer.packing import Answer, unpacked
from regard.explorer.questions import ask
from regard.explorer.recorded import of_tape
from regard.explorer.sources import of_name
from tests.explorer.recordings import a_tape, explorer, shown

SENTENCE = " The captain saw the white whale and the boats went down. The captain saw the white whale"


def written(given: Explorer, **params: Any) -> tuple[str, dict[str, Answer], list[str]]:
    """The file, the answers it holds, and what it says it has not."""
    made = ask(given, "export", {"shown": 0, **params})
    html = made.arrays["html"].tobytes().decode()
    found = re.search(r'<script type="application/json" id="regard-answers">(.*?)</script>', html, re.DOTALL)
    assert found
    packed = json.loads(found[1])["answers"]
    return (
        html,
        {key: unpacked(zlib.decompress(b64decode(data))) for key, data in packed.items()},
        made.values["left_out"],
    )


def test_the_file_holds_the_same_numbers() -> None:
    given = explorer(20, 20)
    _, answers, left_out = written(given, heads=[[0, 1]])
    assert left_out == []
    tile = answers['tile{"column":0,"head":1,"layer":0,"level":0,"row":0,"shown":0}']
    assert np.allclose(tile.arrays["mean"], given.shown[0].tape[0].weights[0, 1], atol=1e-6)
    vectors = answers['head_vectors{"head":1,"layer":0,"shown":0}']
    take = given.shown[0].layer(0).take
    for name, tensor in (("q", take.q), ("k", take.k), ("v", take.v)):
        assert np.array_equal(vectors.arrays[name], tensor[0, 1].numpy())
    assert vectors.arrays["visible"].all()
    assert vectors.values["code"].count("{query}") == 1
    assert 'levels{"head":1,"layer":0,"shown":0}' in answers
    assert 'thumbnails{"layer":0,"shown":0,"size":64}' in answers
    assert 'heads{"shown":0}' in answers
    assert not any('"head":0' in key for key in answers), "only what was asked for"


def test_the_state_in_a_file_has_one_thing_and_no_model() -> None:
    given = Explorer(shown(4, 4), shown(5, 5))
    _, answers, _ = written(given, shown=1)
    values = answers["state{}"].values
    assert [each["id"] for each in values["shown"]] == [1]
    assert (values["models"], values["shown"][0]["can_generate"]) == ([], False)


def test_what_does_not_fit_is_left_out_from_the_finest_on_and_said() -> None:
    _, answers, left_out = written(explorer(1500, 1500), heads=[[0, 0]], budget=2**20)
    levels = {json.loads(key[4:])["level"] for key in answers if key.startswith("tile")}
    assert levels == {3}
    assert answers['levels{"head":0,"layer":0,"shown":0}'].values["finest"] == 3
    assert left_out == ["layer 0, head 0, cells of 4 x 4: does not fit into the file"]


def test_every_head_has_its_coarsest_map_before_one_has_a_finer_one() -> None:
    _, answers, left_out = written(explorer(1100, 1100, heads=8, key_heads=8), budget=3 * 2**20)
    levels = [answers[f'levels{{"head":{head},"layer":0,"shown":0}}'].values for head in range(8)]
    finest = [each["finest"] for each in levels]
    assert len(finest) == 8
    assert max(finest) - min(finest) <= 1, "budget is shared by level, and not by head"
    assert finest == sorted(finest), "the heads that matter most come first"
    for head, level in enumerate(finest):
        assert f'tile{{"column":0,"head":{head},"layer":0,"level":{level},"row":0,"shown":0}}' in answers
    assert len(left_out) == 1
    assert "also of heads after it: does not fit into the file" in left_out[0]


def test_heads_without_a_map_have_their_small_one() -> None:
    _, answers, left_out = written(explorer(1100, 1100, heads=8, key_heads=8), budget=2**16)
    assert not any(key.startswith("tile") for key in answers)
    assert answers['thumbnails{"layer":0,"shown":0,"size":64}'].arrays["max"].shape == (8, 35, 35)
    assert left_out[0] == "layer 0, head 0, cells of 8 x 8, also of heads after it: does not fit into the file"


def test_a_file_of_a_short_text_is_small() -> None:
    """The arithmetic of every cell is computed in the page; one answer a cell took ten megabytes."""
    html, answers, left_out = written(Explorer(of_name("language").shown(SENTENCE)))
    assert left_out == []
    assert sum(key.startswith("head_vectors") for key in answers) == 32
    assert len(html) < 2.5 * 2**20


def test_cells_are_held_where_the_page_cannot_compute_them() -> None:
    _, answers, _ = written(explorer(5, 5, weigh=weigh.sparsemax()), heads=[[0, 0]])
    assert sum(key.startswith("cell") for key in answers) == 25
    assert not any(key.startswith("head_vectors") for key in answers)


def test_the_file_needs_nothing_from_elsewhere() -> None:
    html, _, _ = written(explorer(5, 5))
    head = html[: html.index('id="regard-answers"')]
    assert "default-src 'none'" in head
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert not re.search(r"^\s*(import|export) ", html, re.MULTILINE)
    assert "@import" not in html


def test_markup_in_tokens_stays_inside_the_answers() -> None:
    evil = "</script><script>alert(1)</script>"
    given = Explorer(of_tape(a_tape(3, 3), tokens=[evil, "<!--", "&"], title=evil))
    html, answers, _ = written(given)
    assert "alert(1)" not in html.replace("&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;", "")
    assert html.count("<script") == 2
    assert answers["state{}"].values["shown"][0]["texts"][0]["tokens"] == [evil, "<!--", "&"]


@pytest.mark.parametrize("entry", ["boot.js", "widget.js"])
def test_the_modules_joined_are_a_script_that_can_be_read(entry: str, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node to read scripts here; install nodejs")
    path = tmp_path / "joined.mjs"
    path.write_text(pages.joined(entry), encoding="utf8")
    done = subprocess.run([node, "--check", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_joined_modules_give_what_they_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node to run scripts here; install nodejs")
    files = {
        "a.js": 'import { two as pair, three } from "./b.js";\nimport * as all from "./b.js";\n'
        'import four from "./c.js";\n'
        "export const sum = pair() + three + all.three + four;\nexport default { sum };\n",
        "b.js": 'import four from "./c.js";\nexport function two() { return four / 2; }\nexport const three = 3;\n',
        "c.js": "export default 4;\n",
    }
    _files(monkeypatch, files)
    script = pages.joined.__wrapped__("a.js")
    assert [script.index(f"const ${name} =") for name in "cba"] == sorted(script.index(f"const ${n} =") for n in "abc")
    done = subprocess.run(
        [node, "-e", f"{script}\nconsole.log(page.sum, page.default.sum)"], capture_output=True, text=True
    )
    assert done.stdout.strip() == "12 12", done.stderr


def _files(monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    monkeypatch.setattr(pages, "content", lambda name: files[name].encode())


def test_modules_that_cannot_be_joined_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _files(monkeypatch, {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'})
    with pytest.raises(LoadError, match=r"in a circle; got a\.js -> b\.js -> a\.js"):
        pages.joined.__wrapped__("a.js")
    _files(monkeypatch, {"a.js": 'import "https://example.org/x.js";\n'})
    with pytest.raises(LoadError, match=r"a\.js must import and export as the others do; got 'import \"https"):
        pages.joined.__wrapped__("a.js")
    _files(monkeypatch, {"a.js": "export let a = 1;\n"})
    with pytest.raises(LoadError, match="got 'export let a = 1"):
        pages.joined.__wrapped__("a.js")


def test_a_file_that_is_not_of_the_page_is_refused() -> None:
    with pytest.raises(LoadError, match=r"a file of the page must be one of .*index\.html.*; got '\.\./server\.py'"):
        pages.content("../server.py")


@pytest.mark.parametrize(
    "params, said",
    [
        ({"heads": [[0]]}, r"heads must be a list of lists of 2 whole numbers; got \[\[0\]\]\."),
        ({"heads": "all"}, "heads must be a list of lists of 2 whole numbers; got all"),
        ({"cells": [[0, 0, 1]]}, "cells must be a list of lists of 4 whole numbers"),
        ({"heads": [[0, 9]]}, "head must be one of 0, 1 of layer 0; got 9"),
        ({"budget": 1}, "budget must be a whole number from 65536 to 209715200; got 1"),
    ],
)
def test_an_export_of_what_is_not_there_is_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        ask(explorer(4, 4), "export", params)
