"""`regard cost --ranks` and `regard train --ranks`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.distributed.cost import predicted


def said(*words: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, list(words))
    return found.exit_code, found.stdout, found.stderr


def test_costs_of_ranks_are_those_of_the_formulas_up_to_a_thousand():
    sizes = ("--model", "llama-3-8b", "--length", "131072", "--mechanism", "causal", "--training")
    code, out, _ = said("cost", *sizes, "--ranks", "1024", "--bandwidth", "5e10", "--flops", "2e14", "--json")
    rows = {(row["method"], row["ranks"]): row for row in json.loads(out)}
    assert code == 0
    assert {ranks for method, ranks in rows if method == "ring"} == {2**n for n in range(11)}
    assert {ranks for method, ranks in rows if method == "ulysses"} == {1, 2, 4, 8, 16, 32}  # it has 32 heads
    one = predicted("ring", 131072, 128, heads=32, key_heads=8, ranks=64, causal=True, training=True)
    row = rows["ring", 64]
    assert (row["flops"], row["sent_bytes"], row["held_bytes"]) == (32 * one.flops, 32 * one.sent, one.held)
    assert row["seconds"] == pytest.approx(32 * max(one.flops / 2e14, one.sent / 5e10))


def test_costs_of_ranks_print_as_a_table():
    code, out, _ = said("cost", "--length", "4096", "--mechanism", "softmax", "--ranks", "3")
    assert code == 0
    assert out.splitlines()[0].split() == ["method", "pairs", "tokens", "ranks", "computes", "sends", "holds", "takes"]
    assert [line.split()[3] for line in out.splitlines() if line.startswith("ring")] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--ranks", "0"), "ranks must be from 1 to 1,048,576; got 0"),
        (("--ranks", "2", "--bandwidth", "0"), "flops and bandwidth must be above 0; got 1e+13 and 0"),
        (("--ranks", "2", "--mechanism", "window"), "over ranks costs are those of softmax or causal attention"),
    ],
)
def test_costs_of_ranks_that_cannot_be_are_refused(words, why):
    code, _, err = said("cost", *words)
    assert code == 2 and why in err


def test_too_many_ranks_on_one_machine_are_refused():
    code, _, err = said("train", "karate", "--ranks", "65")
    assert code == 2 and "ranks must be from 1 to 64 on one machine; got 65. Use torchrun" in err


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Two folders of small texts in the place of those that the language model is trained on."""
    words = "call me some years ago never mind how long having little or no money in my purse and nothing".split()
    for place, folder in enumerate(("sotu", "moby-dick")):
        (tmp_path / folder).mkdir()
        for n in range(100):
            lines = [" ".join(words[(n * m + m * (place + 3)) % len(words)] for m in range(400))]
            (tmp_path / folder / f"{n}.txt").write_text("\n".join(lines), encoding="utf8")
    return tmp_path


def train(texts: Path, out: Path, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "regard.cli", "train", "language", "--data", str(texts), "--out", str(out), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE, start_new_session=True)


@pytest.mark.long
def test_two_ranks_train_as_one_process_and_a_checkpoint_of_theirs_goes_on(texts, tmp_path):
    for ranks in ("1", "2"):
        process = train(texts, tmp_path / ranks, "--steps", "6", "--ranks", ranks)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    curves = [json.loads((tmp_path / ranks / "curve.json").read_text())["step, loss, accuracy"] for ranks in "12"]
    for (_, alone, _), (_, together, _) in zip(*curves, strict=True):
        assert together == pytest.approx(alone, abs=2e-3)  # float32; losses are written with four digits


@pytest.mark.long
def test_ctrl_c_stops_all_ranks_after_the_same_step_and_saves(texts, tmp_path):
    process = train(texts, tmp_path / "out", "--steps", "400", "--ranks", "2", "--every", "3")
    saved = tmp_path / "out" / "checkpoint.safetensors"
    for _ in range(600):
        if saved.exists():
            break
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "stopped and saved after" in err
    assert err.count("stopped and saved") == 1  # one rank speaks
