"""`regard cost --ranks` and `regard train --ranks`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli import app, ranks
from regard.distributed.cost import predicted
from regard.files.lock import locked_folder


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
    for count in ("1", "2"):
        process = train(texts, tmp_path / count, "--steps", "6", "--ranks", count)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    curves = [json.loads((tmp_path / count / "curve.json").read_text())["step, loss, accuracy"] for count in "12"]
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


def _ranks_of(folder: Path) -> list[int]:
    """The processes that train in a folder, by their command lines."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it ended meanwhile
            continue
        if str(folder).encode() in words and state != "Z":
            found.append(int(entry.name))
    return found


def _until(holds: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.1)
    return holds()


IN_PROC = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are counted in /proc")


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A folder to train in. Whatever still trains there at the end of the test is ended."""
    yield tmp_path / "out"
    for process in _ranks_of(tmp_path / "out"):
        os.kill(process, signal.SIGKILL)


@pytest.mark.long
@IN_PROC
def test_ranks_end_when_the_command_that_started_them_is_killed_and_the_next_start_works(texts, out):
    process = train(texts, out, "--steps", "4000", "--ranks", "2", "--every", "2")
    assert _until((out / "checkpoint.safetensors").exists, 120)
    assert len(_ranks_of(out)) == 3  # the command and its two ranks
    second = train(texts, out, "--steps", "4000", "--ranks", "2")
    _, refusal = second.communicate(timeout=60)
    assert second.returncode == 2
    assert f"{out} must be used by one training at a time; another training holds its lock" in refusal
    process.kill()
    process.communicate(timeout=60)
    assert _until(lambda: not _ranks_of(out), 20), _ranks_of(out)
    again = train(texts, out, "--steps", "4000", "--ranks", "2")
    assert _until(lambda: len(_ranks_of(out)) == 3, 60)
    again.kill()
    again.communicate(timeout=60)
    assert _until(lambda: not _ranks_of(out), 20), _ranks_of(out)


@pytest.mark.long
@IN_PROC
def test_term_to_the_command_alone_saves_and_ends_all_ranks(texts, out):
    process = train(texts, out, "--steps", "4000", "--ranks", "2", "--every", "2")
    assert _until((out / "checkpoint.safetensors").exists, 120)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert err.count("stopped and saved after") == 1
    assert not _ranks_of(out)


def test_ranks_that_wait_for_a_failed_one_are_ended(monkeypatch):
    monkeypatch.setattr(ranks, "GRACE_S", 0.2)
    commands = ("import sys; sys.exit(3)", "import time; time.sleep(20)")
    processes = [subprocess.Popen([sys.executable, "-S", "-c", command]) for command in commands]
    assert ranks._wait(processes) == [3, -signal.SIGKILL]


def test_a_second_training_in_one_folder_is_refused(tmp_path):
    with locked_folder(tmp_path, "training"):
        code, _, err = said("train", "dates", "--out", str(tmp_path))
    assert code == 2
    assert f"{tmp_path} must be used by one training at a time; another training holds its lock" in err
    assert "Wait until the other training ends, stop it, or choose another folder" in err
