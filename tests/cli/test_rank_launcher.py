"""`regard cost --max-world-size` and `regard train --world-size`."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regard.cli import rank_launcher
from regard.distributed.ranks.rank_cost import predict_rank_cost
from regard.files.lock import locked_folder
from tests.cli.command import run_command


def test_rank_costs_are_those_of_predict_rank_cost():
    sizes = ("--model", "llama-3-8b", "--seq-len", "131072", "--mechanism", "causal", "--training")
    code, out, _ = run_command(
        "cost", *sizes, "--max-world-size", "1024", "--bandwidth", "5e10", "--flops-per-second", "2e14", "--json"
    )
    rows = {(row["method"], row["world_size"]): row for row in json.loads(out)}
    assert code == 0
    assert {world_size for method, world_size in rows if method == "ring"} == {2**n for n in range(11)}
    assert {world_size for method, world_size in rows if method == "ulysses"} == {2**n for n in range(6)}  # 32 heads
    predicted = predict_rank_cost(
        "ring", 131072, 128, num_heads=32, num_kv_heads=8, world_size=64, causal=True, training=True
    )
    row = rows["ring", 64]
    assert (row["flops"], row["bytes_sent"], row["extra_memory"]) == (
        32 * predicted.flops,
        32 * predicted.bytes_sent,
        predicted.extra_memory,
    )
    assert row["seconds"] == pytest.approx(32 * max(predicted.flops / 2e14, predicted.bytes_sent / 5e10))


def test_rank_costs_are_printed_as_a_table():
    code, out, _ = run_command("cost", "--seq-len", "4096", "--mechanism", "softmax", "--max-world-size", "3")
    assert code == 0
    headers = re.split(r"  +", out.splitlines()[0])
    assert headers == ["method", "mask", "tokens", "ranks", "FLOPs", "sent", "extra memory", "time"]
    assert [line.split()[3] for line in out.splitlines() if line.startswith("ring")] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--max-world-size", "0"), "max_world_size must be from 1 to 1,048,576; got 0"),
        (
            ("--max-world-size", "2", "--bandwidth", "0"),
            "flops_per_second and bandwidth must be above 0; got 1e+13 and 0",
        ),
        (
            ("--max-world-size", "2", "--mechanism", "sliding_window"),
            "with max_world_size the mechanism must be softmax or causal; got 'sliding_window'",
        ),
    ],
)
def test_invalid_rank_costs_exit_with_2(arguments, message):
    code, _, err = run_command("cost", *arguments)
    assert code == 2 and message in err


def test_too_many_ranks_exit_with_2():
    code, _, err = run_command("train", "karate", "--world-size", "65")
    assert code == 2 and "world_size must be from 1 to 64 on one machine; got 65. Use torchrun" in err


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Two folders of small texts instead of the data of the language model."""
    words = "call me some years ago never mind how long having little or no money in my purse and nothing".split()
    for index, folder in enumerate(("sotu", "moby-dick")):
        (tmp_path / folder).mkdir()
        for n in range(100):
            lines = [" ".join(words[(n * m + m * (index + 3)) % len(words)] for m in range(400))]
            (tmp_path / folder / f"{n}.txt").write_text("\n".join(lines), encoding="utf8")
    return tmp_path


def train(texts: Path, out: Path, *options: str) -> "subprocess.Popen[str]":
    command = [
        sys.executable,
        "-m",
        "regard.cli",
        "train",
        "language",
        "--data",
        str(texts),
        "--out",
        str(out),
        *options,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE, start_new_session=True)


@pytest.mark.long
def test_two_ranks_train_like_one_process(texts, tmp_path):
    for count in ("1", "2"):
        process = train(texts, tmp_path / count, "--steps", "6", "--world-size", count)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    curves = [json.loads((tmp_path / count / "curve.json").read_text())["curve"] for count in "12"]
    for (_, expected, _), (_, loss, _) in zip(*curves, strict=True):
        assert loss == pytest.approx(expected, abs=2e-3)  # float32; losses are written with four digits


@pytest.mark.long
def test_ctrl_c_saves_and_stops_all_ranks_after_the_same_step(texts, tmp_path):
    process = train(texts, tmp_path / "out", "--steps", "400", "--world-size", "2", "--save-steps", "3")
    saved = tmp_path / "out" / "checkpoint.safetensors"
    for _ in range(600):
        if saved.exists():
            break
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "saved after" in err
    assert err.count("saved after") == 1  # one rank prints


def _training_processes(folder: Path) -> list[int]:
    """Return the processes that train in a folder, by their command lines."""
    process_ids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # the process has ended
            continue
        if str(folder).encode() in arguments and state != "Z":
            process_ids.append(int(entry.name))
    return process_ids


def _wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    return condition()


NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are counted in /proc")


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A folder to train in. Processes that still train there after the test are killed."""
    yield tmp_path / "out"
    for process in _training_processes(tmp_path / "out"):
        os.kill(process, signal.SIGKILL)


@pytest.mark.long
@NEEDS_PROC
def test_ranks_end_when_their_command_is_killed_and_training_can_restart(texts, out):
    process = train(texts, out, "--steps", "4000", "--world-size", "2", "--save-steps", "2")
    assert _wait_until((out / "checkpoint.safetensors").exists, 120)
    assert len(_training_processes(out)) == 3  # the command and its two ranks
    second = train(texts, out, "--steps", "4000", "--world-size", "2")
    _, err = second.communicate(timeout=60)
    assert second.returncode == 2
    assert f"{out} must be used by one training at a time; another training holds its lock" in err
    process.kill()
    process.communicate(timeout=60)
    assert _wait_until(lambda: not _training_processes(out), 20), _training_processes(out)
    restarted = train(texts, out, "--steps", "4000", "--world-size", "2")
    assert _wait_until(lambda: len(_training_processes(out)) == 3, 60)
    restarted.kill()
    restarted.communicate(timeout=60)
    assert _wait_until(lambda: not _training_processes(out), 20), _training_processes(out)


@pytest.mark.long
@NEEDS_PROC
def test_sigterm_to_the_command_saves_and_ends_all_ranks(texts, out):
    process = train(texts, out, "--steps", "4000", "--world-size", "2", "--save-steps", "2")
    assert _wait_until((out / "checkpoint.safetensors").exists, 120)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert err.count("saved after") == 1
    assert not _training_processes(out)


def test_ranks_are_killed_after_one_fails(monkeypatch):
    monkeypatch.setattr(rank_launcher, "GRACE_S", 0.2)
    commands = ("import sys; sys.exit(3)", "import time; time.sleep(20)")
    processes = [subprocess.Popen([sys.executable, "-S", "-c", command]) for command in commands]
    assert rank_launcher._wait_for_ranks(processes) == [3, -signal.SIGKILL]


def test_a_second_training_in_the_same_folder_exits_with_2(tmp_path):
    with locked_folder(tmp_path, "training"):
        code, _, err = run_command("train", "dates", "--out", str(tmp_path))
    assert code == 2
    assert f"{tmp_path} must be used by one training at a time; another training holds its lock" in err
    assert "Wait until the other training ends, stop it, or choose another folder" in err
