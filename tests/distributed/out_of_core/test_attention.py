"""Attention over files matches attention in memory for any step size; invalid files raise before any work."""

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
from regard import mask, normalizer, score
from regard.distributed.out_of_core import attention, file_writer, prefetch, row_source, schedule
from regard.distributed.out_of_core.attention import attention_from_files
from regard.distributed.out_of_core.tensor_file import open_memmap
from regard.errors import ArgumentError, BackendError, BudgetError, LoadError

ROOT = Path(__file__).parents[3]
N, NUM_HEADS, HEAD_DIM, VALUE_DIM = 200, 4, 8, 5
CLOSE = dict(rtol=0, atol=2e-12)  # float64: sums of a few hundred terms of size about 1

Options = dict[str, Any]


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit steps to 48 queries and 48 keys, so that 200 tokens take many steps."""
    monkeypatch.setattr(schedule, "MAX_STEP_ROWS", 48)
    monkeypatch.setattr(schedule, "MASK_TILE_KEYS", 16)


def _randn(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _qkv(n_q: int = N, n_k: int = N, kv_heads: int = NUM_HEADS, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = (2, NUM_HEADS, n_q, HEAD_DIM), (2, kv_heads, n_k, HEAD_DIM), (2, kv_heads, n_k, VALUE_DIM)
    return [_randn(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]


def _save(folder: Path, tensors: list[Tensor]) -> list[Path]:
    paths = [folder / f"{name}.npy" for name in "qkv"]
    for path, x in zip(paths, tensors, strict=True):
        np.save(path, x.numpy())
    return paths


DOCUMENT_IDS = torch.arange(N) // 70
CASES: dict[str, Callable[[], Options]] = {
    "full": dict,
    "causal": lambda: dict(mask=mask.causal()),
    "sliding window and global tokens": lambda: dict(mask=mask.sliding_window(20) | mask.global_tokens([0, 77])),
    "documents": lambda: dict(mask=mask.document(DOCUMENT_IDS) & mask.causal()),
    "padding": lambda: dict(mask=mask.padding(torch.tensor([60, 150]))),
    "left padding": lambda: dict(mask=mask.padding(torch.tensor([60, 150]), side="left")),
    "bigbird": lambda: dict(mask=mask.bigbird(8)),
    "mask function": lambda: dict(mask=lambda b, h, i, j: (i * 3 + j + h + b) % 5 != 0),
    "mask tensor": lambda: dict(mask=_randn(N, N, seed=9) > 1.0),
    "queries without keys": lambda: dict(mask=lambda b, h, i, j: (j <= i) & (i > 90)),
    "alibi": lambda: dict(score=score.alibi(), mask=mask.causal()),
    "score modifier": lambda: dict(score=lambda s, b, h, i, j: s + torch.where(i > j, 0.5, -0.1) * h),
    "bias": lambda: dict(score=score.bias(_randn(NUM_HEADS, N, N, seed=8))),
    "t5 bias": lambda: dict(score=score.t5_bias(_randn(32, NUM_HEADS, seed=7))),
    "shaw keys": lambda: dict(score=score.shaw_keys(_randn(9, HEAD_DIM, seed=7))),
    "shaw values": lambda: dict(value=score.shaw_values(_randn(9, 5, seed=7))),
    "shaw values and a sink": lambda: dict(
        value=score.shaw_values(_randn(9, 5, seed=7)), normalizer=normalizer.sink(1.0)
    ),
    "dot": lambda: dict(score=score.dot()),
    "scale per head": lambda: dict(score=score.scaled_dot(torch.linspace(0.1, 1.0, NUM_HEADS).double())),
    "cosine": lambda: dict(score=score.cosine(4.0)),
    "bilinear": lambda: dict(score=score.bilinear(_randn(HEAD_DIM, HEAD_DIM, seed=6))),
    "gaussian": lambda: dict(score=score.gaussian(2.0)),
    "mahalanobis": lambda: dict(score=score.mahalanobis(torch.eye(HEAD_DIM).double() * 0.3)),
    "additive": lambda: dict(score=score.additive(*(_randn(*s, seed=5) for s in ((HEAD_DIM, 6), (HEAD_DIM, 6), (6,))))),
    "custom score": lambda: dict(score=score.custom(lambda q, k: (q @ k.mT).tanh())),
    "sink": lambda: dict(normalizer=normalizer.sink(torch.linspace(-1.0, 2.0, NUM_HEADS))),
    "sigmoid": lambda: dict(normalizer=normalizer.sigmoid(-3.0), mask=mask.causal()),
    "relu": lambda: dict(normalizer=normalizer.relu()),
    "kernel": lambda: dict(normalizer=normalizer.kernel()),
    "favor": lambda: dict(normalizer=normalizer.kernel(regard.feature_map.favor(HEAD_DIM)), mask=mask.causal()),
    "gumbel": lambda: dict(normalizer=normalizer.gumbel(seed=3)),
    "entmax": lambda: dict(normalizer=normalizer.entmax(1.5)),
    "entmax per head": lambda: dict(
        normalizer=normalizer.entmax(torch.linspace(1.1, 2.0, NUM_HEADS)), mask=mask.sliding_window(30)
    ),
    "sparsemax": lambda: dict(
        normalizer=normalizer.sparsemax(), mask=mask.sliding_window(20) | mask.global_tokens([0, 77])
    ),
    "topk": lambda: dict(normalizer=normalizer.topk(3), mask=mask.causal()),
    "hardmax": lambda: dict(normalizer=normalizer.hardmax()),
    "value function": lambda: dict(value=lambda v: torch.cat([v.tanh(), v], -1)),
    "dropout": lambda: dict(dropout=0.3, seed=5, mask=mask.causal()),
    "dropout with a sink": lambda: dict(dropout=0.3, seed=5, normalizer=normalizer.sink()),
    "query offset": lambda: dict(mask=mask.causal(), query_offset=-50),
    "query offset per batch element": lambda: dict(
        mask=mask.causal(), score=score.alibi(), query_offset=torch.tensor([-20, 30])
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_attention_over_files_matches_attention_in_memory(case: str, tmp_path: Path) -> None:
    qkv, fractions = _qkv(), []
    paths = _save(tmp_path, qkv)
    output = attention_from_files(*paths, tmp_path / "o.npy", progress=fractions.append, **CASES[case]())
    torch.testing.assert_close(output, regard.attention(*qkv, **CASES[case]()), **CLOSE)
    assert np.array_equal(np.load(tmp_path / "o.npy"), output.numpy())
    assert len(fractions) >= math.ceil(N / 48)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


@pytest.mark.parametrize("backend", regard.available_backends())
def test_every_backend_supports_files(backend: str, tmp_path: Path) -> None:
    qkv = _qkv(dtype=torch.float32)
    options = dict(mask=mask.causal() & mask.sliding_window(70), score=score.alibi())
    output = attention_from_files(*_save(tmp_path, qkv), backend=backend, **options)
    exact = regard.attention(*(x.double() for x in qkv), **options)
    torch.testing.assert_close(output.double(), exact, rtol=0, atol=2e-6)  # float32 sums of 70 terms


@pytest.mark.parametrize("n_q, n_k", [(1, N), (N, 1), (30, N), (N, 60), (0, 5), (5, 0), (49, 49)])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_lengths_and_grouped_heads(n_q: int, n_k: int, kv_heads: int, tmp_path: Path) -> None:
    qkv = _qkv(n_q, n_k, kv_heads)
    output = attention_from_files(*_save(tmp_path, qkv), tmp_path / "o.npy", mask=mask.causal())
    torch.testing.assert_close(output, regard.attention(*qkv, mask=mask.causal()), **CLOSE)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3, 4)])
def test_leading_dimensions(leading: tuple[int, ...], tmp_path: Path) -> None:
    q, k = (_randn(*leading, n, HEAD_DIM, seed=n) for n in (70, 90))
    output = attention_from_files(*_save(tmp_path, [q, k, k]), tmp_path / "o.npy", normalizer=normalizer.relu())
    torch.testing.assert_close(output, regard.attention(q, k, k, normalizer=normalizer.relu()), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_error_is_at_most_twice_that_of_the_direct_formula(dtype: torch.dtype, tmp_path: Path) -> None:
    q, k, v = _qkv(dtype=dtype)
    save_file({"q": q, "k": k, "v": v}, tmp_path / "qkv.safetensors")
    sources = [f"{tmp_path}/qkv.safetensors:{name}" for name in "qkv"]
    output = attention_from_files(*sources, tmp_path / "o.safetensors:output", mask=mask.causal())
    assert torch.equal(load_file(tmp_path / "o.safetensors")["output"], output)
    exact = regard.attention(q.double(), k.double(), v.double(), mask=mask.causal())
    hidden = torch.ones(N, N, dtype=torch.bool).triu(1)
    scores = (q @ k.mT / math.sqrt(HEAD_DIM)).masked_fill(hidden, -torch.inf)
    direct = scores.softmax(-1) @ v
    assert (output.double() - exact).abs().max() <= 2 * (direct.double() - exact).abs().max()


def test_inputs_may_be_tensors_arrays_and_memory_maps(tmp_path: Path) -> None:
    q, k, v = _qkv()
    paths = _save(tmp_path, [q, k, v])
    expected = regard.attention(q[:, :, -20:], k, v, mask=mask.causal())
    inputs = (open_memmap(paths[0])[..., -20:, :], np.load(paths[1], mmap_mode="r"), v.numpy())
    torch.testing.assert_close(attention_from_files(*inputs, mask=mask.causal()), expected, **CLOSE)
    strided_k = k.transpose(1, 2).contiguous().transpose(1, 2)  # (batch, tokens, heads, head_dim) in memory
    output = attention_from_files(q[:, :, -20:], strided_k, v, mask=mask.causal())
    torch.testing.assert_close(output, expected, **CLOSE)


def test_output_may_be_an_existing_array(tmp_path: Path) -> None:
    qkv = _qkv()
    out = np.lib.format.open_memmap(tmp_path / "o.npy", "w+", np.float64, (2, NUM_HEADS, N, VALUE_DIM))
    result = attention_from_files(*qkv, out)
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "o.npy")), regard.attention(*qkv), **CLOSE)
    assert result.data_ptr() == out.__array_interface__["data"][0]


def test_writing_to_a_memory_map_does_not_change_the_file(tmp_path: Path) -> None:
    (path, *_), (q, *_) = _save(tmp_path, _qkv()), _qkv()
    mapped = open_memmap(path)
    mapped += 1.0
    assert torch.equal(mapped, q + 1.0)
    assert torch.equal(open_memmap(path), q)


def test_masked_keys_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key_ranges: list[range] = []
    original = row_source.FileSource.read_rows

    def read_rows(self: row_source.FileSource, row_range: range, buffer: Tensor | None = None) -> Tensor:
        key_ranges.extend([row_range] if self.location.path.name == "k.npy" else [])
        return original(self, row_range, buffer)

    monkeypatch.setattr(row_source.FileSource, "read_rows", read_rows)
    attention_from_files(*_save(tmp_path, _qkv()), mask=mask.causal() & mask.sliding_window(10))
    # five blocks of 48 queries: their own keys and ten before them, in tiles of 16
    assert sum(len(keys) for keys in key_ranges) <= N + 5 * 2 * 16
    assert all(len(keys) <= 48 for keys in key_ranges)


def test_masked_keys_may_be_nonfinite(tmp_path: Path) -> None:
    q, k, v = _qkv()
    k[:, :, 100:], v[:, :, 100:] = torch.nan, torch.inf
    output = attention_from_files(*_save(tmp_path, [q, k, v]), mask=lambda b, h, i, j: j < 100)
    torch.testing.assert_close(output, regard.attention(q, k[:, :, :100], v[:, :, :100]), **CLOSE)


def test_next_rows_are_read_during_computation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_started = [threading.Event() for _ in range(25)]
    original_read, original_partial = prefetch.StepReader.read_step, attention._OutOfCoreCall._step_partial
    computed_steps = []

    def read_step(self: prefetch.StepReader, step_index: int) -> list[Tensor]:
        read_started[step_index].set()
        return original_read(self, step_index)

    def step_partial(self: Any, step: schedule.ScheduleStep, rows: list[Tensor]) -> Any:
        computed_steps.append(step)
        if len(computed_steps) < len(read_started):
            assert read_started[len(computed_steps)].wait(5.0), "the next rows are not read during this step"
        return original_partial(self, step, rows)

    monkeypatch.setattr(prefetch.StepReader, "read_step", read_step)
    monkeypatch.setattr(attention._OutOfCoreCall, "_step_partial", step_partial)
    attention_from_files(*_save(tmp_path, _qkv()))
    assert len(computed_steps) == 25


def test_rows_of_a_step_are_valid_while_the_next_are_read() -> None:
    rows = torch.arange(200.0).view(200, 1)
    steps = [
        schedule.ScheduleStep(range(n // 60 * 60, n // 60 * 60 + 60), range(n, n + 20), False)
        for n in range(0, 180, 20)
    ]
    buffers = set()
    for step, (q, k, v) in prefetch.prefetch_rows([row_source.as_row_source(rows, name) for name in "qkv"], steps):
        time.sleep(0.01)  # enough for the next read
        assert torch.equal(q[:, 0], rows[step.queries.start : step.queries.stop, 0])
        assert torch.equal(k, v) and torch.equal(k, rows[step.keys.start : step.keys.stop])
        buffers.add(k.data_ptr())
    assert len(buffers) == 2


def test_dropout_follows_the_manual_seed_and_matches_attention_in_memory(tmp_path: Path) -> None:
    paths = _save(tmp_path, _qkv())
    torch.manual_seed(3)
    first = attention_from_files(*paths, dropout=0.5)
    torch.manual_seed(3)
    assert torch.equal(attention_from_files(*paths, dropout=0.5), first)
    torch.manual_seed(3)
    torch.testing.assert_close(regard.attention(*_qkv(), dropout=0.5), first, **CLOSE)


def test_smaller_budget_takes_more_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "MAX_STEP_ROWS", 4096)
    qkv = [_randn(1, 2, 3000, 16, seed=s, dtype=torch.float32) for s in range(3)]
    paths, num_steps = _save(tmp_path, qkv), {}
    expected = regard.attention(*qkv, mask=mask.causal())
    for budget in ("1GB", "2MB", "900 KB"):
        fractions: list[float] = []
        output = attention_from_files(*paths, mask=mask.causal(), budget=budget, progress=fractions.append)
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)  # float32 sums of 3,000 terms
        num_steps[budget] = len(fractions)
    assert num_steps["1GB"] == 1
    assert 4 <= num_steps["2MB"] < num_steps["900 KB"]


def test_budget_error_names_the_required_bytes(tmp_path: Path) -> None:
    paths = _save(tmp_path, _qkv())
    with pytest.raises(BudgetError, match=r"at least 16 queries with 16 keys each, which take .* got 1,000 bytes"):
        attention_from_files(*paths, tmp_path / "o.npy", budget=1000)
    assert not list(tmp_path.glob("*o.npy*"))
    with pytest.raises(ArgumentError, match="a budget must be a number of bytes such as '1GB' or '512MiB'; got 'much'"):
        attention_from_files(*paths, budget="much")


def test_budget_error_of_a_whole_row_normalizer_names_the_required_bytes(tmp_path: Path) -> None:
    qkv = _qkv(n_q=40, n_k=6000)
    paths, options = _save(tmp_path, qkv), dict(normalizer=normalizer.entmax(1.5), backend="tiled")
    match = r"1.5-entmax needs all keys of a query in memory at once: 16 queries with 6,000 keys each take"
    with pytest.raises(BudgetError, match=match) as error:
        attention_from_files(*paths, budget="10MB", **options)
    required_bytes = int(str(error.value).split("(")[1].split(" bytes")[0].replace(",", ""))
    assert required_bytes > 2 * qkv[1].nbytes + 2 * qkv[2].nbytes  # keys and values of this step and the next
    assert error.match(r"the budget is 10,000,000 bytes")
    output = attention_from_files(*paths, budget=required_bytes, **options)
    torch.testing.assert_close(
        output, regard.attention(*qkv, **options), rtol=0, atol=1e-9
    )  # rounding of the threshold
    narrow = attention_from_files(*paths, budget="10MB", mask=mask.sliding_window(50), **options)
    torch.testing.assert_close(narrow, regard.attention(*qkv, mask=mask.sliding_window(50), **options), **CLOSE)


def test_sinkhorn_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match="a normalizer of single rows; got 3-step sinkhorn, which also normalizes col"
    ):
        attention_from_files(*_save(tmp_path, _qkv()), normalizer=normalizer.sinkhorn(3))


def test_relative_values_with_a_query_offset_per_batch_element_are_rejected(tmp_path: Path) -> None:
    options = dict(value=score.shaw_values(_randn(9, 5, seed=7)), query_offset=torch.tensor([0, 3]))
    with pytest.raises(ArgumentError, match="need one query_offset for the whole batch; got one per batch element"):
        attention_from_files(*_save(tmp_path, _qkv()), **options)


def test_gradients_are_rejected() -> None:
    q, k, v = _qkv()
    with pytest.raises(ArgumentError, match="has no gradients; got k with requires_grad=True"):
        attention_from_files(q, k.requires_grad_(), v)
    logit = torch.zeros(1, requires_grad=True)
    slopes = torch.ones(NUM_HEADS, requires_grad=True)
    with pytest.raises(ArgumentError, match="has no gradients; got tensors that require gradients"):
        attention_from_files(q, k.detach(), v, score=score.alibi(slopes))
    with torch.no_grad():
        output = attention_from_files(q, k, v, score=score.alibi(slopes), normalizer=normalizer.sink(logit))
    assert not output.requires_grad


def _save_invalid(folder: Path, defect: str) -> list[Any]:
    """Save q, k and v, with an invalid file for k."""
    paths: list[Any] = _save(folder, _qkv())
    k = _qkv()[1].numpy()
    data = paths[1].read_bytes()
    write = {
        "truncated": lambda: paths[1].write_bytes(data[:-10]),
        "truncated header": lambda: paths[1].write_bytes(data[:40]),
        "empty": lambda: paths[1].write_bytes(b""),
        "missing": lambda: paths[1].unlink(),
        "Fortran order": lambda: np.save(paths[1], np.asfortranarray(k)),
        "big-endian": lambda: np.save(paths[1], k.astype(">f8")),
        "complex": lambda: np.save(paths[1], k.astype(np.complex64)),
        "objects": lambda: np.save(paths[1], np.array([None, {}]), allow_pickle=True),
        "integers": lambda: np.save(paths[1], k.astype(np.int64)),
        "another dtype": lambda: np.save(paths[1], k.astype(np.float32)),
        "too short": lambda: np.save(paths[1], k[:, :, :-1]),
        "other head_dim": lambda: np.save(paths[1], np.concatenate([k, k], -1)),
        "three heads": lambda: np.save(paths[1], k[:, :3]),
        "one dimension": lambda: np.save(paths[1], k[0, 0, 0]),
    }
    write[defect]()
    return paths


INVALID_FILES = [
    ("truncated", LoadError, r"k.npy must contain its whole tensor, 102,400 bytes after its header; got 102,390"),
    ("truncated header", LoadError, r"k.npy must be a file written by numpy.save; its header is invalid"),
    ("empty", LoadError, r"k.npy must be a file written by numpy.save; its header is invalid"),
    ("missing", LoadError, r"k.npy must be an existing file; it does not exist"),
    ("Fortran order", LoadError, r"k.npy must be in C order; got Fortran order"),
    ("big-endian", LoadError, r"k.npy must contain little-endian floats or integers; got dtype >f8"),
    ("complex", LoadError, r"k.npy must contain little-endian floats or integers; got dtype <c8"),
    ("objects", LoadError, r"k.npy must contain little-endian floats or integers; got dtype \|O"),
    ("integers", ArgumentError, r"k must .*float32, bfloat16 or float16; got torch.int64"),
    ("another dtype", ArgumentError, r"dtype; got q=torch.float64, k=torch.float32, v=torch.float64"),
    ("too short", ArgumentError, r"k and v must have the same length; got k=199, v=200"),
    ("other head_dim", ArgumentError, r"q and k must have the same head dimension; got q=8, k=16"),
    ("three heads", ArgumentError, r"must divide that of q; got q=4, k=3, v=4 heads"),
    ("one dimension", ArgumentError, r"k must have at least 2 dimensions, \(length, head_dim\); got shape \(8,\)"),
]


@pytest.mark.parametrize("defect, error, message", INVALID_FILES)
def test_invalid_npy_files_raise_before_any_work(
    defect: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    paths = _save_invalid(tmp_path, defect)
    with pytest.raises(error, match=message):
        attention_from_files(*paths, tmp_path / "o.npy", progress=lambda _: pytest.fail("a step was computed"))
    assert not list(tmp_path.glob("*o.npy*"))


def _save_safetensors(folder: Path, change_header: Callable[[dict[str, Any]], Any], num_missing_bytes: int = 0) -> str:
    """Save a safetensors file with a changed header and return the source of its tensor k."""
    path = folder / "k.safetensors"
    save_file({"k": _qkv()[1], "other": torch.zeros(3)}, path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = change_header(json.loads(data[8 : 8 + length]))
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length : len(data) - num_missing_bytes])
    return f"{path}:k"


def test_invalid_safetensors_files_are_rejected(tmp_path: Path) -> None:
    q, _, v = _qkv()

    def widen(header: dict[str, Any]) -> dict[str, Any]:
        header["k"]["shape"][-1] += 1
        return header

    def rename(header: dict[str, Any]) -> dict[str, Any]:
        return {"keys": header["k"], "other": header["other"]}

    def as_float8(header: dict[str, Any]) -> dict[str, Any]:
        begin, end = header["k"]["data_offsets"]
        header["k"] |= {"dtype": "F8_E4M3", "shape": [end - begin]}
        return header

    for change_header, num_missing_bytes, message in (
        (lambda h: h, 500, r"must hold all of its tensors; 'k' ends at byte 102400 of the data, and only 101912 are"),
        (widen, 0, r"'k' in .* must take 115,200 bytes, for its shape \(2, 4, 200, 9\) .* gives it 102,400"),
        (rename, 0, r"the name of one of its 2 tensors; got 'k'. It contains keys, other"),
        (as_float8, 0, r"must have a dtype that attention supports; got F8_E4M3"),
        (lambda h: b"nothing", 0, r"must be a safetensors file; its header is not JSON"),
        (lambda h: {"k": 3}, 0, r"'k' in .* must have a dtype, a shape and offsets; its header has 3"),
    ):
        with pytest.raises(LoadError, match=message):
            attention_from_files(q, _save_safetensors(tmp_path, change_header, num_missing_bytes), v)
    (tmp_path / "k.safetensors").write_bytes(b"abc")
    with pytest.raises(LoadError, match="must be a safetensors file; its header size is invalid"):
        attention_from_files(q, f"{tmp_path}/k.safetensors:k", v)


def test_tensor_name_is_optional_for_a_single_tensor(tmp_path: Path) -> None:
    qkv = _qkv()
    paths = [tmp_path / f"{name}.safetensors" for name in "qkv"]
    for path, x in zip(paths, qkv, strict=True):
        save_file({"tensor": x}, path)
    output = attention_from_files(*paths, tmp_path / "o.safetensors")
    torch.testing.assert_close(output, regard.attention(*qkv), **CLOSE)
    assert list(load_file(tmp_path / "o.safetensors")) == ["o"]
    save_file({"a": qkv[1], "b": qkv[2]}, paths[1])
    with pytest.raises(LoadError, match=r"the name of one of its 2 tensors; got no name. It contains a, b"):
        attention_from_files(*paths)


def test_unsupported_inputs_are_rejected() -> None:
    q, _, v = _qkv()
    with pytest.raises(LoadError, match=r"a file must be named \*.npy or \*.safetensors:name; got k.bin"):
        attention_from_files(q, "k.bin", v)
    with pytest.raises(ArgumentError, match="k must be a path, a tensor or an array; got list"):
        attention_from_files(q, [1.0], v)


def test_invalid_outputs_are_rejected(tmp_path: Path) -> None:
    qkv = _qkv()
    (tmp_path / "o.npy").write_bytes(b"mine")
    with pytest.raises(ArgumentError, match=r"out must name a new file; .*o.npy exists"):
        attention_from_files(*qkv, tmp_path / "o.npy")
    assert (tmp_path / "o.npy").read_bytes() == b"mine"
    with pytest.raises(ArgumentError, match=r"out must be in an existing directory; got .*nowhere"):
        attention_from_files(*qkv, tmp_path / "nowhere" / "o.npy")
    with pytest.raises(ArgumentError, match=r"shape \(2, 4, 200, 5\) and dtype torch.float64; got \(2, 4, 200, 6\)"):
        attention_from_files(*qkv, np.zeros((2, NUM_HEADS, N, 6)))
    with pytest.raises(ArgumentError, match=r"dtype torch.float64; got \(2, 4, 200, 5\) and torch.float32"):
        attention_from_files(*qkv, torch.zeros(2, NUM_HEADS, N, VALUE_DIM))
    read_only = np.zeros((2, NUM_HEADS, N, VALUE_DIM))
    read_only.flags.writeable = False
    with pytest.raises(ArgumentError, match="out must be writable; got a read-only array"):
        attention_from_files(*qkv, read_only)
    with pytest.raises(
        ArgumentError, match=r"out must support torch.bfloat16, which .npy files do not; got .*p.npy. Use .safetensors"
    ):
        attention_from_files(*(x.bfloat16() for x in qkv), tmp_path / "p.npy")
    assert sorted(x.name for x in tmp_path.iterdir()) == ["o.npy"]


def test_full_disk_raises_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qkv, size = _qkv(), 2 * NUM_HEADS * N * VALUE_DIM * 8 + 128
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as context:
        context.setattr(file_writer.shutil, "disk_usage", lambda _: usage._replace(free=1000))
        with pytest.raises(BudgetError, match=rf"room for the output, .* \({size:,} bytes\); got 1,000 free bytes"):
            attention_from_files(*qkv, tmp_path / "o.npy", progress=lambda _: pytest.fail("a step was computed"))

    def posix_fallocate(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_writer.os, "posix_fallocate", posix_fallocate)
    with pytest.raises(BudgetError, match=rf"{size:,} bytes; got an error for .*o.npy: .*No space left"):
        attention_from_files(*qkv, tmp_path / "o.npy", progress=lambda _: pytest.fail("a step was computed"))
    assert not list(tmp_path.iterdir())


def test_an_interrupted_call_leaves_no_file_and_no_thread(tmp_path: Path) -> None:
    fractions: list[float] = []

    def interrupt(fraction: float) -> None:
        fractions.append(fraction)
        assert not (tmp_path / "o.npy").exists()
        assert len(list(tmp_path.glob(".o.npy.*"))) == 1
        if len(fractions) == 7:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        attention_from_files(*_qkv(), tmp_path / "o.npy", progress=interrupt)
    assert 7 <= len(fractions) < 25
    assert not list(tmp_path.iterdir())
    assert not [t for t in threading.enumerate() if t.name.startswith("regard-reads")]


def test_truncating_a_file_during_the_call_raises_an_error(tmp_path: Path) -> None:
    paths = _save(tmp_path, _qkv())

    def truncate(_: float) -> None:
        os.truncate(paths[1], 5000)

    with pytest.raises(LoadError, match=r"k.npy must not change while it is read"):
        attention_from_files(*paths, tmp_path / "o.npy", progress=truncate)
    assert not list(tmp_path.glob("*o.npy*"))


def test_unsupported_backend_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="backend 'native' does not support this call"):
        attention_from_files(*_save(tmp_path, _qkv()), tmp_path / "o.npy", backend="native")  # float64
    assert not (tmp_path / "o.npy").exists()


def test_quadratic_backend_gets_steps_within_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "MAX_STEP_ROWS", 2**13)
    qkv, fractions = [_randn(1, 1, 2000, 4, seed=s) for s in range(3)], []
    output = attention_from_files(*_save(tmp_path, qkv), backend="reference", budget="10MB", progress=fractions.append)
    torch.testing.assert_close(output, regard.attention(*qkv), **CLOSE)
    assert len(fractions) > 2000 * 2000 * 8 * 4 / 10e6  # four float64 matrices at a time


@pytest.mark.long
def test_memory_is_constant_and_work_is_linear_in_the_length(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.studies.out_of_core",
        "--folder",
        str(tmp_path),
        "--results",
        str(results),
    ]
    subprocess.run([*command, "--tokens", "125000", "250000"], cwd=ROOT, check=True)
    rows = json.loads(results.read_text())["rows"]
    for row in rows:
        assert row["anonymous"] < 1.2e9  # a budget of 1 GB, and the memory of importing torch
        assert row["error"] < 1e-5  # float32 sums of at most 250,000 weights with sum 1
    for half, whole in zip(rows[:2], rows[2:], strict=True):
        assert whole["anonymous"] < 1.1 * half["anonymous"]
        assert whole["steps"] <= 2 * half["steps"] + 2
