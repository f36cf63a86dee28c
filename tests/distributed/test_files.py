"""Attention over files is attention, whatever the size of the steps; what cannot be right is refused before work."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from regard import mask, score, weigh
from regard.distributed import ahead, files, reading, schedule, written
from regard.distributed.files import attention_from_files
from regard.distributed.stored import mapped
from regard.errors import BudgetError, EngineError, LoadError, SpecError

ROOT = Path(__file__).parents[2]
N, HEADS, WIDTH = 200, 4, 8
CLOSE = dict(rtol=0, atol=2e-12)  # float64: sums of some hundred terms of size about 1

Options = dict[str, Any]


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 48 queries and 48 keys, so that two hundred tokens take many."""
    monkeypatch.setattr(schedule, "MOST", 48)
    monkeypatch.setattr(schedule, "GRAIN", 16)


def _numbers(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _rows(n_q: int = N, n_k: int = N, key_heads: int = HEADS, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = (2, HEADS, n_q, WIDTH), (2, key_heads, n_k, WIDTH), (2, key_heads, n_k, 5)
    return [_numbers(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]


def _saved(place: Path, rows: list[Tensor]) -> list[Path]:
    paths = [place / f"{name}.npy" for name in "qkv"]
    for path, x in zip(paths, rows, strict=True):
        np.save(path, x.numpy())
    return paths


IDS = torch.arange(N) // 70
CASES: dict[str, Callable[[], Options]] = {
    "full": dict,
    "causal": lambda: dict(mask=mask.causal()),
    "window and global": lambda: dict(mask=mask.window(20) | mask.tokens([0, 77])),
    "documents": lambda: dict(mask=mask.documents(IDS) & mask.causal()),
    "padding": lambda: dict(mask=mask.padding(torch.tensor([60, 150]))),
    "padding on the left": lambda: dict(mask=mask.padding(torch.tensor([60, 150]), side="left")),
    "bigbird": lambda: dict(mask=mask.bigbird(8)),
    "a function": lambda: dict(mask=lambda b, h, i, j: (i * 3 + j + h + b) % 5 != 0),
    "a tensor": lambda: dict(mask=_numbers(N, N, seed=9) > 1.0),
    "nothing for some": lambda: dict(mask=lambda b, h, i, j: (j <= i) & (i > 90)),
    "alibi": lambda: dict(score=score.alibi(), mask=mask.causal()),
    "a rule": lambda: dict(score=lambda s, b, h, i, j: s + torch.where(i > j, 0.5, -0.1) * h),
    "a bias": lambda: dict(score=score.bias(_numbers(HEADS, N, N, seed=8))),
    "relative": lambda: dict(score=score.relative(_numbers(32, HEADS, seed=7))),
    "shaw keys": lambda: dict(score=score.shaw_keys(_numbers(9, WIDTH, seed=7))),
    "shaw values": lambda: dict(value=score.shaw_values(_numbers(9, 5, seed=7))),
    "shaw values and a sink": lambda: dict(value=score.shaw_values(_numbers(9, 5, seed=7)), weigh=weigh.sink(1.0)),
    "dot": lambda: dict(score=score.dot()),
    "scaled by head": lambda: dict(score=score.scaled_dot(torch.linspace(0.1, 1.0, HEADS).double())),
    "cosine": lambda: dict(score=score.cosine(4.0)),
    "multiplicative": lambda: dict(score=score.multiplicative(_numbers(WIDTH, WIDTH, seed=6))),
    "metric": lambda: dict(score=score.metric(2.0)),
    "mahalanobis": lambda: dict(score=score.mahalanobis(torch.eye(WIDTH).double() * 0.3)),
    "additive": lambda: dict(score=score.additive(*(_numbers(*s, seed=5) for s in ((WIDTH, 6), (WIDTH, 6), (6,))))),
    "custom": lambda: dict(score=score.custom(lambda q, k: (q @ k.mT).tanh())),
    "sink": lambda: dict(weigh=weigh.sink(torch.linspace(-1.0, 2.0, HEADS))),
    "sigmoid": lambda: dict(weigh=weigh.sigmoid(-3.0), mask=mask.causal()),
    "relu": lambda: dict(weigh=weigh.relu()),
    "kernel": lambda: dict(weigh=weigh.kernel()),
    "favor": lambda: dict(weigh=weigh.kernel(regard.feature.favor(WIDTH)), mask=mask.causal()),
    "gumbel": lambda: dict(weigh=weigh.gumbel(seed=3)),
    "entmax": lambda: dict(weigh=weigh.entmax(1.5)),
    "entmax by head": lambda: dict(weigh=weigh.entmax(torch.linspace(1.1, 2.0, HEADS)), mask=mask.window(30)),
    "sparsemax": lambda: dict(weigh=weigh.sparsemax(), mask=mask.window(20) | mask.tokens([0, 77])),
    "top": lambda: dict(weigh=weigh.top(3), mask=mask.causal()),
    "argmax": lambda: dict(weigh=weigh.argmax()),
    "a value function": lambda: dict(value=lambda v: torch.cat([v.tanh(), v], -1)),
    "dropout": lambda: dict(dropout=0.3, seed=5, mask=mask.causal()),
    "dropout of a sink": lambda: dict(dropout=0.3, seed=5, weigh=weigh.sink()),
    "starting": lambda: dict(mask=mask.causal(), start=-50),
    "starting apart": lambda: dict(mask=mask.causal(), score=score.alibi(), start=torch.tensor([-20, 30])),
}


@pytest.mark.parametrize("case", CASES)
def test_attention_over_files_is_attention_in_memory(case: str, tmp_path: Path) -> None:
    rows, told = _rows(), []
    paths = _saved(tmp_path, rows)
    found = attention_from_files(*paths, tmp_path / "o.npy", progress=told.append, **CASES[case]())
    torch.testing.assert_close(found, regard.attention(*rows, **CASES[case]()), **CLOSE)
    assert np.array_equal(np.load(tmp_path / "o.npy"), found.numpy())
    assert len(told) >= math.ceil(N / 48)
    assert told == sorted(told)
    assert told[-1] == 1.0


@pytest.mark.parametrize("engine", regard.engines())
def test_every_engine_answers_over_files(engine: str, tmp_path: Path) -> None:
    rows = _rows(dtype=torch.float32)
    asked = dict(mask=mask.causal() & mask.window(70), score=score.alibi())
    found = attention_from_files(*_saved(tmp_path, rows), engine=engine, **asked)
    exact = regard.attention(*(x.double() for x in rows), **asked)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-6)  # float32 sums of 70 terms


@pytest.mark.parametrize("n_q, n_k", [(1, N), (N, 1), (30, N), (N, 60), (0, 5), (5, 0), (49, 49)])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_any_lengths_and_shared_heads_are_fine(n_q: int, n_k: int, key_heads: int, tmp_path: Path) -> None:
    rows = _rows(n_q, n_k, key_heads)
    found = attention_from_files(*_saved(tmp_path, rows), tmp_path / "o.npy", mask=mask.causal())
    torch.testing.assert_close(found, regard.attention(*rows, mask=mask.causal()), **CLOSE)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3, 4)])
def test_shapes_are_those_of_attention(leading: tuple[int, ...], tmp_path: Path) -> None:
    rows = [_numbers(*leading, n, WIDTH, seed=n) for n in (70, 90)]
    given = [rows[0], rows[1], rows[1]]
    found = attention_from_files(*_saved(tmp_path, given), tmp_path / "o.npy", weigh=weigh.relu())
    torch.testing.assert_close(found, regard.attention(*given, weigh=weigh.relu()), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_stay_within_twice_the_error_of_the_direct_formula(dtype: torch.dtype, tmp_path: Path) -> None:
    rows = _rows(dtype=dtype)
    save_file(dict(zip("qkv", rows, strict=True)), tmp_path / "qkv.safetensors")
    names = [f"{tmp_path}/qkv.safetensors:{name}" for name in "qkv"]
    found = attention_from_files(*names, tmp_path / "o.safetensors:made", mask=mask.causal())
    assert torch.equal(load_file(tmp_path / "o.safetensors")["made"], found)
    exact = regard.attention(*(x.double() for x in rows), mask=mask.causal())
    q, k, v = rows
    hidden = torch.ones(N, N, dtype=torch.bool).triu(1)
    scores = (q @ k.mT / math.sqrt(WIDTH)).masked_fill(hidden, -torch.inf)
    direct = scores.softmax(-1) @ v
    assert (found.double() - exact).abs().max() <= 2 * (direct.double() - exact).abs().max()


def test_tensors_arrays_and_maps_are_read_as_well(tmp_path: Path) -> None:
    q, k, v = _rows()
    paths = _saved(tmp_path, [q, k, v])
    wanted = regard.attention(q[:, :, -20:], k, v, mask=mask.causal())
    kinds = (mapped(paths[0])[..., -20:, :], np.load(paths[1], mmap_mode="r"), v.numpy())
    torch.testing.assert_close(attention_from_files(*kinds, mask=mask.causal()), wanted, **CLOSE)
    turned = k.transpose(1, 2).contiguous().transpose(1, 2)  # (batch, tokens, heads, width) in memory
    torch.testing.assert_close(attention_from_files(q[:, :, -20:], turned, v, mask=mask.causal()), wanted, **CLOSE)


def test_the_output_may_be_an_array_that_is_there(tmp_path: Path) -> None:
    rows = _rows()
    room = np.lib.format.open_memmap(tmp_path / "o.npy", "w+", np.float64, (2, HEADS, N, 5))
    found = attention_from_files(*rows, room)
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "o.npy")), regard.attention(*rows), **CLOSE)
    assert found.data_ptr() == room.__array_interface__["data"][0]


def test_what_is_mapped_may_be_changed_without_changing_the_file(tmp_path: Path) -> None:
    (path, *_), (q, *_) = _saved(tmp_path, _rows()), _rows()
    there = mapped(path)
    there += 1.0
    assert torch.equal(there, q + 1.0)
    assert torch.equal(mapped(path), q)


def test_keys_that_no_query_of_a_block_sees_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[range] = []
    plain = reading.FileRows.rows

    def counted(self: reading.FileRows, wanted: range, room: Tensor | None = None) -> Tensor:
        asked.extend([wanted] if self.stored.path.name == "k.npy" else [])
        return plain(self, wanted, room)

    monkeypatch.setattr(reading.FileRows, "rows", counted)
    attention_from_files(*_saved(tmp_path, _rows()), mask=mask.causal() & mask.window(10))
    # five blocks of 48 queries: their own keys and ten before them, in stretches of 16
    assert sum(len(r) for r in asked) <= N + 5 * 2 * 16
    assert all(len(r) <= 48 for r in asked)


def test_a_file_may_hold_anything_where_the_mask_hides_it(tmp_path: Path) -> None:
    q, k, v = _rows()
    k[:, :, 100:], v[:, :, 100:] = torch.nan, torch.inf
    found = attention_from_files(*_saved(tmp_path, [q, k, v]), mask=lambda b, h, i, j: j < 100)
    torch.testing.assert_close(found, regard.attention(q, k[:, :, :100], v[:, :, :100]), **CLOSE)


def test_the_next_rows_are_read_while_the_engine_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = [threading.Event() for _ in range(25)]
    plain_rows, plain_answer, answers = ahead.Reader.rows, files._Call._answer, []

    def rows(self: ahead.Reader, number: int) -> list[Tensor]:
        begun[number].set()
        return plain_rows(self, number)

    def answer(self: Any, step: schedule.Step, given: list[Tensor]) -> Any:
        answers.append(step)
        if len(answers) < len(begun):
            assert begun[len(answers)].wait(5.0), "the next rows are not read before this step is over"
        return plain_answer(self, step, given)

    monkeypatch.setattr(ahead.Reader, "rows", rows)
    monkeypatch.setattr(files._Call, "_answer", answer)
    attention_from_files(*_saved(tmp_path, _rows()))
    assert len(answers) == 25


def test_rows_that_are_worked_on_stay_while_the_next_are_read() -> None:
    numbers = torch.arange(200.0).view(200, 1)
    todo = [schedule.Step(range(n // 60 * 60, n // 60 * 60 + 60), range(n, n + 20), False) for n in range(0, 180, 20)]
    seen = []
    for step, (q, k, v) in ahead.read_ahead([reading.source(numbers, name) for name in "qkv"], todo):
        time.sleep(0.01)  # the next ones are there by now
        assert torch.equal(q[:, 0], numbers[step.queries.start : step.queries.stop, 0])
        assert torch.equal(k, v) and torch.equal(k, numbers[step.keys.start : step.keys.stop])
        seen.append(k.data_ptr())
    assert len(set(seen)) == 2  # rooms, however many steps there are


def test_the_same_call_gives_the_same_bits_and_draws_one_pattern_of_dropout(tmp_path: Path) -> None:
    paths = _saved(tmp_path, _rows())
    torch.manual_seed(3)
    first = attention_from_files(*paths, dropout=0.5)
    torch.manual_seed(3)
    assert torch.equal(attention_from_files(*paths, dropout=0.5), first)
    torch.manual_seed(3)
    torch.testing.assert_close(regard.attention(*_rows(), dropout=0.5), first, **CLOSE)


def test_a_smaller_budget_takes_smaller_steps_and_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "MOST", 4096)
    rows = [_numbers(1, 2, 3000, 16, seed=s, dtype=torch.float32) for s in range(3)]
    paths, counts = _saved(tmp_path, rows), {}
    wanted = regard.attention(*rows, mask=mask.causal())
    for budget in ("1GB", "2MB", "900 KB"):
        told: list[float] = []
        found = attention_from_files(*paths, mask=mask.causal(), budget=budget, progress=told.append)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)  # float32 sums of 3,000 terms
        counts[budget] = len(told)
    assert counts["1GB"] == 1
    assert 4 <= counts["2MB"] < counts["900 KB"]


def test_a_budget_that_holds_nothing_is_refused_with_what_would_be_needed(tmp_path: Path) -> None:
    paths = _saved(tmp_path, _rows())
    with pytest.raises(BudgetError, match=r"at least 16 queries with 16 keys each, which take .* got 1,000 bytes"):
        attention_from_files(*paths, tmp_path / "o.npy", budget=1000)
    assert not list(tmp_path.glob("*o.npy*"))
    with pytest.raises(SpecError, match="a budget must be a number of bytes such as '1GB' or '512MiB'; got 'much'"):
        attention_from_files(*paths, budget="much")


def test_what_needs_whole_rows_says_what_they_would_take(tmp_path: Path) -> None:
    rows = _rows(n_q=40, n_k=6000)
    paths, asked = _saved(tmp_path, rows), dict(weigh=weigh.entmax(1.5), engine="tiled")
    match = r"entmax of 1.5 must have all keys of a query in memory at once; for 16 queries with 6,000 keys each"
    with pytest.raises(BudgetError, match=match) as refused:
        attention_from_files(*paths, budget="10MB", **asked)
    needed = int(str(refused.value).split("(")[1].split(" bytes")[0].replace(",", ""))
    assert needed > 2 * rows[1].nbytes + 2 * rows[2].nbytes  # these keys and values, and the next ones
    assert refused.match(r"the budget is 10,000,000 bytes")
    found = attention_from_files(*paths, budget=needed, **asked)
    torch.testing.assert_close(found, regard.attention(*rows, **asked), rtol=0, atol=1e-9)  # a threshold's own rounding
    narrow = attention_from_files(*paths, budget="10MB", mask=mask.window(50), **asked)
    torch.testing.assert_close(narrow, regard.attention(*rows, mask=mask.window(50), **asked), **CLOSE)


def test_sinkhorn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="must be able to go row by row; got sinkhorn of 3, which normalises whole"):
        attention_from_files(*_saved(tmp_path, _rows()), weigh=weigh.sinkhorn(3))


def test_relative_values_with_a_start_for_each_batch_element_are_refused(tmp_path: Path) -> None:
    options = dict(value=score.shaw_values(_numbers(9, 5, seed=7)), start=torch.tensor([0, 3]))
    with pytest.raises(SpecError, match="must have one start over files; got one a batch element"):
        attention_from_files(*_saved(tmp_path, _rows()), **options)


def test_gradients_are_refused() -> None:
    q, k, v = _rows()
    with pytest.raises(SpecError, match="has no gradients; got k that requires them"):
        attention_from_files(q, k.requires_grad_(), v)
    logit = torch.zeros(1, requires_grad=True)
    slopes = torch.ones(HEADS, requires_grad=True)
    with pytest.raises(SpecError, match="has no gradients; got tensors that require them"):
        attention_from_files(q, k.detach(), v, score=score.alibi(slopes))
    with torch.no_grad():
        found = attention_from_files(q, k, v, score=score.alibi(slopes), weigh=weigh.sink(logit))
    assert not found.requires_grad


def _broken(place: Path, kind: str) -> list[Any]:
    """Paths of q, k and v, of which k cannot be right."""
    paths: list[Any] = _saved(place, _rows())
    k = _rows()[1].numpy()
    whole = paths[1].read_bytes()
    made = {
        "cut": lambda: paths[1].write_bytes(whole[:-10]),
        "cut in its header": lambda: paths[1].write_bytes(whole[:40]),
        "empty": lambda: paths[1].write_bytes(b""),
        "missing": lambda: paths[1].unlink(),
        "by columns": lambda: np.save(paths[1], np.asfortranarray(k)),
        "high byte first": lambda: np.save(paths[1], k.astype(">f8")),
        "complex": lambda: np.save(paths[1], k.astype(np.complex64)),
        "objects": lambda: np.save(paths[1], np.array([None, {}]), allow_pickle=True),
        "whole numbers": lambda: np.save(paths[1], k.astype(np.int64)),
        "another dtype": lambda: np.save(paths[1], k.astype(np.float32)),
        "too short": lambda: np.save(paths[1], k[:, :, :-1]),
        "too wide": lambda: np.save(paths[1], np.concatenate([k, k], -1)),
        "three heads": lambda: np.save(paths[1], k[:, :3]),
        "one dimension": lambda: np.save(paths[1], k[0, 0, 0]),
    }
    made[kind]()
    return paths


REFUSALS = [
    ("cut", LoadError, r"k.npy must hold all of its tensor, 102,400 bytes behind its header; only 102,390 are there"),
    ("cut in its header", LoadError, r"k.npy must be a file that numpy.save wrote"),
    ("empty", LoadError, r"k.npy must be a file that numpy.save wrote"),
    ("missing", LoadError, r"k.npy must be a file with a tensor in it; there is no such file"),
    ("by columns", LoadError, r"k.npy must hold its numbers row by row; got Fortran order"),
    ("high byte first", LoadError, r"k.npy must hold plain numbers, the low byte first; got >f8"),
    ("complex", LoadError, r"k.npy must hold plain numbers, the low byte first; got <c8"),
    ("objects", LoadError, r"k.npy must hold plain numbers, the low byte first; got \|O"),
    ("whole numbers", SpecError, r"k must hold float64, float32, bfloat16 or float16; got torch.int64"),
    ("another dtype", SpecError, r"one dtype; got q=torch.float64, k=torch.float32, v=torch.float64"),
    ("too short", SpecError, r"k and v must have the same length; got k=199, v=200"),
    ("too wide", SpecError, r"q and k must have the same width; got q=8, k=16"),
    ("three heads", SpecError, r"must divide that of q; got q=4, k=3, v=4 heads"),
    ("one dimension", SpecError, r"k must have at least 2 dimensions, \(length, width\); got shape \(8,\)"),
]


@pytest.mark.parametrize("kind, error, message", REFUSALS)
def test_a_file_that_cannot_be_right_is_refused_before_any_work(
    kind: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    paths = _broken(tmp_path, kind)
    with pytest.raises(error, match=message):
        attention_from_files(*paths, tmp_path / "o.npy", progress=lambda _: pytest.fail("it worked"))
    assert not list(tmp_path.glob("*o.npy*"))


def _safetensors(place: Path, change: Callable[[dict[str, Any]], Any], cut: int = 0) -> str:
    """A safetensors file with another header than it should have."""
    path = place / "k.safetensors"
    save_file({"k": _rows()[1], "other": torch.zeros(3)}, path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = change(json.loads(data[8 : 8 + length]))
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length : len(data) - cut])
    return f"{path}:k"


def test_a_safetensors_file_that_cannot_be_right_is_refused(tmp_path: Path) -> None:
    q, _, v = _rows()

    def wider(header: dict[str, Any]) -> dict[str, Any]:
        header["k"]["shape"][-1] += 1
        return header

    def renamed(header: dict[str, Any]) -> dict[str, Any]:
        return {"keys": header["k"], "other": header["other"]}

    def in_eights(header: dict[str, Any]) -> dict[str, Any]:
        header["k"] |= {"dtype": "F8_E4M3", "shape": [header["k"]["data_offsets"][1] - header["k"]["data_offsets"][0]]}
        return header

    for change, cut, message in (
        (lambda h: h, 500, r"must hold all of its tensors; 'k' ends at byte 102400 of the data, and only 101912 are"),
        (wider, 0, r"'k' in .* must take 115,200 bytes, for its shape \(2, 4, 200, 9\) .* gives it 102,400"),
        (renamed, 0, r"must hold the tensor that is named behind it; got 'k', and it holds keys, other"),
        (in_eights, 0, r"must have a dtype that attention supports; got F8_E4M3"),
        (lambda h: b"nothing", 0, r"must be a safetensors file; its header is not JSON"),
        (lambda h: {"k": 3}, 0, r"'k' in .* must have a dtype, a shape and offsets; its header has 3"),
    ):
        with pytest.raises(LoadError, match=message):
            attention_from_files(q, _safetensors(tmp_path, change, cut), v)
    (tmp_path / "k.safetensors").write_bytes(b"abc")
    with pytest.raises(LoadError, match="must be a safetensors file; it does not begin like one"):
        attention_from_files(q, f"{tmp_path}/k.safetensors:k", v)


def test_a_name_may_be_left_out_where_there_is_one_tensor(tmp_path: Path) -> None:
    rows = _rows()
    paths = [tmp_path / f"{name}.safetensors" for name in "qkv"]
    for path, x in zip(paths, rows, strict=True):
        save_file({"rows": x}, path)
    found = attention_from_files(*paths, tmp_path / "o.safetensors")
    torch.testing.assert_close(found, regard.attention(*rows), **CLOSE)
    assert list(load_file(tmp_path / "o.safetensors")) == ["o"]
    save_file({"a": rows[1], "b": rows[2]}, paths[1])
    with pytest.raises(LoadError, match=r"got no name for one of 2, and it holds a, b"):
        attention_from_files(*paths)


def test_what_is_no_file_is_refused() -> None:
    q, _, v = _rows()
    with pytest.raises(LoadError, match=r"a file must be named \*.npy or \*.safetensors:name; got k.bin"):
        attention_from_files(q, "k.bin", v)
    with pytest.raises(SpecError, match="k must be the path of a file, a tensor or an array; got list"):
        attention_from_files(q, [1.0], v)


def test_an_output_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    rows = _rows()
    (tmp_path / "o.npy").write_bytes(b"mine")
    with pytest.raises(SpecError, match=r"out must name a new file; .*o.npy exists"):
        attention_from_files(*rows, tmp_path / "o.npy")
    assert (tmp_path / "o.npy").read_bytes() == b"mine"
    with pytest.raises(SpecError, match=r"out must lie in a directory that exists; got .*nowhere"):
        attention_from_files(*rows, tmp_path / "nowhere" / "o.npy")
    with pytest.raises(SpecError, match=r"the shape \(2, 4, 200, 5\) and hold torch.float64; got \(2, 4, 200, 6\)"):
        attention_from_files(*rows, np.zeros((2, HEADS, N, 6)))
    with pytest.raises(SpecError, match=r"hold torch.float64; got \(2, 4, 200, 5\) of torch.float32"):
        attention_from_files(*rows, torch.zeros(2, HEADS, N, 5))
    closed = np.zeros((2, HEADS, N, 5))
    closed.flags.writeable = False
    with pytest.raises(SpecError, match="out must be writable"):
        attention_from_files(*rows, closed)
    with pytest.raises(SpecError, match=r"can hold torch.bfloat16, and .npy cannot; got .*p.npy. Use .safetensors"):
        attention_from_files(*(x.bfloat16() for x in rows), tmp_path / "p.npy")
    assert sorted(x.name for x in tmp_path.iterdir()) == ["o.npy"]


def test_a_disk_without_room_is_noticed_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, size = _rows(), 2 * HEADS * N * 5 * 8 + 128
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(written.shutil, "disk_usage", lambda _: usage._replace(free=1000))
        with pytest.raises(BudgetError, match=rf"room for the output, .* \({size:,} bytes\); 1,000 bytes are free"):
            attention_from_files(*rows, tmp_path / "o.npy", progress=lambda _: pytest.fail("it worked"))

    def refuses(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(written.os, "posix_fallocate", refuses)
    with pytest.raises(BudgetError, match=rf"{size:,} bytes; where .*o.npy would lie it has not .*No space left"):
        attention_from_files(*rows, tmp_path / "o.npy", progress=lambda _: pytest.fail("it worked"))
    assert not list(tmp_path.iterdir())


def test_whoever_stops_it_leaves_nothing_behind(tmp_path: Path) -> None:
    shares: list[float] = []

    def stop(share: float) -> None:
        shares.append(share)
        assert not (tmp_path / "o.npy").exists()
        assert len(list(tmp_path.glob(".o.npy.*"))) == 1
        if len(shares) == 7:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        attention_from_files(*_rows(), tmp_path / "o.npy", progress=stop)
    assert 7 <= len(shares) < 25
    assert not list(tmp_path.iterdir())
    assert not [t for t in threading.enumerate() if t.name.startswith("regard-reads")]


def test_a_file_that_is_cut_while_it_is_read_ends_the_call_alone(tmp_path: Path) -> None:
    paths = _saved(tmp_path, _rows())

    def cut(_: float) -> None:
        os.truncate(paths[1], 5000)

    with pytest.raises(LoadError, match=r"k.npy must stay as it is while it is read"):
        attention_from_files(*paths, tmp_path / "o.npy", progress=cut)
    assert not list(tmp_path.glob("*o.npy*"))


def test_an_engine_that_objects_is_not_asked(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="engine 'native' must be able to answer this, and it objects"):
        attention_from_files(*_saved(tmp_path, _rows()), tmp_path / "o.npy", engine="native")  # float64
    assert not (tmp_path / "o.npy").exists()


def test_an_engine_that_keeps_pairs_gets_steps_that_it_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "MOST", 2**13)
    rows, told = [_numbers(1, 1, 2000, 4, seed=s) for s in range(3)], []
    found = attention_from_files(*_saved(tmp_path, rows), engine="reference", budget="10MB", progress=told.append)
    torch.testing.assert_close(found, regard.attention(*rows), **CLOSE)
    assert len(told) > 2000 * 2000 * 8 * 4 / 10e6  # four matrices of float64 at a time


@pytest.mark.long
def test_memory_does_not_grow_with_the_length_and_work_grows_with_it(tmp_path: Path) -> None:
    results = tmp_path / "files.json"
    command = [sys.executable, "-m", "benchmarks.files", "--place", str(tmp_path), "--results", str(results)]
    subprocess.run([*command, "--tokens", "125000", "250000"], cwd=ROOT, check=True)
    found = json.loads(results.read_text())["rows"]
    for row in found:
        assert row["anonymous"] < 1.2e9  # a budget of 1 GB, and what importing torch takes
        assert row["error"] < 1e-5  # float32 sums of at most 250,000 weights that are 1 together
    for half, whole in zip(found[:2], found[2:], strict=True):
        assert whole["anonymous"] < 1.1 * half["anonymous"]
        assert whole["steps"] <= 2 * half["steps"] + 2
