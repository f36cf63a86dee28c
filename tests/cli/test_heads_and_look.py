"""`regard heads` over recordings and models, and `regard look` as a process that serves a page and ends on Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.models.shipped import language_model

TEXT = "The cat sat on the mat. The cat sat on the mat."


def run(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, list(arguments))
    return found.exit_code, found.stdout, found.stderr


@pytest.fixture(scope="module")
def tape() -> regard.Tape:
    model, tokens = language_model()
    ids = tokens.encode(TEXT)
    with torch.no_grad(), regard.record(model) as tape:
        model(torch.tensor([ids]))
    tape.tokens = tokens.texts(ids)
    return tape


@pytest.fixture(scope="module")
def saved(tape: regard.Tape, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tape") / "tape.safetensors"
    tape.save(path)
    return str(path)


def test_every_head_of_a_recording_is_listed(tape: regard.Tape, saved: str) -> None:
    code, printed, said = run("heads", saved)
    assert code == 0, said
    assert printed == f"{tape.heads()!r}\n"


def test_machines_read_every_measure(tape: regard.Tape, saved: str) -> None:
    _, printed, _ = run("heads", saved, "--sort", "entropy", "--json")
    found = json.loads(printed)
    expected = tape.heads().sort("entropy")
    assert [(row["layer"], row["head"]) for row in found] == [(row["layer"], row["head"]) for row in expected]
    assert found[0]["entropy"] == pytest.approx(expected[0]["entropy"])


def test_a_model_reads_a_text_from_the_command_or_a_file(tape: regard.Tape, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf8")
    for arguments in ((TEXT,), ("--file", str(tmp_path / "text.txt"))):
        code, printed, said = run("heads", "language", *arguments, "--columns", "previous, first")
        assert code == 0, said
        lines = printed.splitlines()
        assert lines[0].split() == ["layer", "head", "previous", "first"]
        shown = [float(line.split()[2]) for line in lines[1:]]
        assert shown == pytest.approx(tape.heads().column("previous"), abs=2e-3)


def test_heads_of_a_kind_are_found(tape: regard.Tape, saved: str) -> None:
    _, printed, _ = run("heads", saved, "--find", "previous")
    assert printed.splitlines() == [str(each) for each in tape.find("previous")] != []
    _, printed, _ = run("heads", saved, "--find", "previous", "--json")
    assert json.loads(printed)[0]["kind"] == "previous"
    _, printed, _ = run("heads", saved, "--find", "next")
    assert printed == "no head has 0.4 or more on the token after, and three times as much as a uniform one\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["language"], "give it a text to read, or --file"),
        (["language", TEXT, "--find", "wonder"], "a kind of head must be one of self, previous"),
        (["language", TEXT, "--sort", "wonder"], "got 'wonder'"),
        (["language", TEXT, "--columns", "wonder"], "got 'wonder'"),
        (["language", TEXT, "--find", "self", "--sort", "self"], "--find lists heads with their evidence"),
        (["language", TEXT, "--file", "x"], "from the command or from --file; got both"),
        (["language", "--file", "no such file"], "--file must be a text file; got no such file: No such file"),
        (["dates", "hello"], "got 'hello'"),
        (["no/such/model", TEXT], "no/such/model"),
    ],
)
def test_what_cannot_be_listed_is_refused(arguments: list[str], message: str) -> None:
    code, printed, said = run("heads", *arguments)
    assert (code, printed) == (2, "")
    assert message in " ".join(said.split())


def test_a_recording_has_its_own_text(saved: str) -> None:
    for command in (("heads", saved, TEXT), ("look", TEXT, "--tape", saved)):
        code, _, said = run(*command)
        assert code == 2 and "a recording has its own text" in said


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"\x80\x04pickle")
    code, _, said = run("heads", str(tmp_path / "x.safetensors"))
    assert code == 2 and "it is pickled" in said


def test_a_port_that_is_none_is_refused() -> None:
    code, _, said = run("look", "--port", "70000", "--no-browser")
    assert code == 2 and "from 0 to 65535; got 70000" in said


@pytest.mark.parametrize("arguments", [(TEXT,), ("--model", "dates"), ("--tape",)])
def test_look_serves_a_page_until_it_is_stopped(arguments: tuple[str, ...], saved: str) -> None:
    pytest.importorskip("uvicorn", reason="regard look needs pip install regard[explorer]")
    words = [*arguments, saved] if arguments == ("--tape",) else list(arguments)
    command = [sys.executable, "-m", "regard.cli", "look", *words, "--no-browser"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as running:
        try:
            assert running.stdout is not None
            address = running.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]+/", address), address
            with urllib.request.urlopen(address, timeout=20) as page:
                assert page.status == 200 and "text/html" in page.headers["content-type"]
        finally:
            running.send_signal(signal.SIGINT)
            rest, errors = running.communicate(timeout=20)
    assert "Traceback" not in errors and rest == ""
