"""`regard heads` over recordings and models, and `regard explore` as a process that ends on Ctrl-C."""

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

import regard
from regard.models.bundled import language_model
from tests.cli.command import run_command

TEXT = "The cat sat on the mat. The cat sat on the mat."


@pytest.fixture(scope="module")
def recording() -> regard.Recording:
    model, tokens = language_model()
    ids = tokens.encode(TEXT)
    with torch.no_grad(), regard.record(model) as recording:
        model(torch.tensor([ids]))
    recording.tokens = tokens.token_texts(ids)
    return recording


@pytest.fixture(scope="module")
def saved(recording: regard.Recording, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("recording") / "recording.safetensors"
    recording.save(path)
    return str(path)


def test_heads_lists_every_head_of_a_recording(recording: regard.Recording, saved: str) -> None:
    code, stdout, stderr = run_command("heads", saved)
    assert code == 0, stderr
    assert stdout == f"{recording.head_table()!r}\n"


def test_heads_prints_json(recording: regard.Recording, saved: str) -> None:
    _, stdout, _ = run_command("heads", saved, "--sort", "entropy", "--json")
    rows = json.loads(stdout)
    expected = recording.head_table().sort("entropy")
    assert [(row["layer"], row["head"]) for row in rows] == [(row["layer"], row["head"]) for row in expected]
    assert rows[0]["entropy"] == pytest.approx(expected[0]["entropy"])


def test_heads_runs_a_model_on_a_text_or_a_file(recording: regard.Recording, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf8")
    for arguments in ((TEXT,), ("--file", str(tmp_path / "text.txt"))):
        code, stdout, stderr = run_command("heads", "language", *arguments, "--columns", "previous, first_token")
        assert code == 0, stderr
        lines = stdout.splitlines()
        assert lines[0].split() == ["layer", "head", "previous", "first_token"]
        scores = [float(line.split()[2]) for line in lines[1:]]
        assert scores == pytest.approx(recording.head_table().column("previous"), abs=2e-3)


def test_heads_finds_heads_of_a_kind(recording: regard.Recording, saved: str) -> None:
    _, stdout, _ = run_command("heads", saved, "--find", "previous")
    assert stdout.splitlines() == [str(head) for head in recording.find_heads("previous")] != []
    _, stdout, _ = run_command("heads", saved, "--find", "previous", "--json")
    assert json.loads(stdout)[0]["kind"] == "previous"
    _, stdout, _ = run_command("heads", saved, "--find", "next")
    assert stdout == "no head has a next score of at least 0.4 and three times that of a uniform head\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["language"], "Add a text or --file"),
        (["language", TEXT, "--find", "wonder"], "kind must be one of self, previous"),
        (["language", TEXT, "--sort", "wonder"], "got 'wonder'"),
        (["language", TEXT, "--columns", "wonder"], "got 'wonder'"),
        (["language", TEXT, "--find", "self", "--sort", "self"], "--find prints heads with their scores"),
        (["language", TEXT, "--file", "x"], "an argument or come from --file; got both"),
        (["language", "--file", "no such file"], "--file must be a text file; got no such file: No such file"),
        (["dates", "hello"], "got 'hello'"),
        (["no/such/model", TEXT], "no/such/model"),
    ],
)
def test_invalid_calls_of_heads_exit_with_2(arguments: list[str], message: str) -> None:
    code, stdout, stderr = run_command("heads", *arguments)
    assert (code, stdout) == (2, "")
    assert message in " ".join(stderr.split())


def test_recordings_cannot_be_combined_with_a_text(saved: str) -> None:
    for command in (("heads", saved, TEXT), ("explore", TEXT, "--recording", saved)):
        code, _, stderr = run_command(*command)
        assert code == 2 and "a recording has its own text" in stderr


def test_files_that_are_not_recordings_exit_with_2(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"\x80\x04pickle")
    code, _, stderr = run_command("heads", str(tmp_path / "x.safetensors"))
    assert code == 2 and "it is pickled" in stderr


def test_invalid_ports_exit_with_2() -> None:
    code, _, stderr = run_command("explore", "--port", "70000", "--no-browser")
    assert code == 2 and "from 0 to 65535; got 70000" in stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (TEXT,),
        pytest.param(("--model", "dates"), marks=pytest.mark.long),
        pytest.param(("--recording",), marks=pytest.mark.long),
    ],
)
def test_explore_serves_a_page_until_ctrl_c(arguments: tuple[str, ...], saved: str) -> None:
    pytest.importorskip("uvicorn", reason="regard explore needs pip install regard[explorer]")
    options = [*arguments, saved] if arguments == ("--recording",) else list(arguments)
    command = [sys.executable, "-m", "regard.cli", "explore", *options, "--no-browser"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]+/", address), address
            with urllib.request.urlopen(address, timeout=20) as page:
                assert page.status == 200 and "text/html" in page.headers["content-type"]
        finally:
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=20)
    assert "Traceback" not in errors and rest == ""
