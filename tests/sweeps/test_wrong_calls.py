"""Wrong arguments of public functions raise an error of `regard.errors` quickly; none is silently accepted."""

from pathlib import Path

import pytest
import torch.distributed as dist

from tests.sweeps.calls import left_out, run, table, wrong_calls
from tests.sweeps.public_names import public_names
from tests.sweeps.wrong_calls import MAX_INTERNAL, Judged, is_main_function, report, sample, sweep

SAMPLE = 2000


def test_every_public_callable_is_in_the_table_or_left_out_with_a_reason() -> None:
    reasons = left_out()
    assert all(reasons.values())
    calls = table()
    missing = [
        name
        for name in public_names()
        if name not in calls and not any(name == skipped or name.startswith(f"{skipped}.") for skipped in reasons)
    ]
    assert missing == []


def test_every_name_that_is_left_out_exists() -> None:
    names = set(public_names()) | {"regard.integrations.huggingface.attention_interface"}
    assert [name for name in left_out() if name not in names or name in table()] == []


@pytest.mark.parametrize("name", sorted(table()))
def test_every_call_of_the_table_is_valid(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(table()[name], None)
    if dist.is_initialized():  # distributed calls start a process group, which would affect later tests
        dist.destroy_process_group()


def check(judged: list[Judged]) -> None:
    internal = [result for result in judged if result.internal]
    assert [str(result.wrong) for result in judged if result.outcome.kind in ("slow", "crash")] == []
    assert [
        f"{result.wrong}: {result.outcome.error}" for result in internal if is_main_function(result.wrong.call)
    ] == []
    assert len(internal) <= MAX_INTERNAL * len(judged), report(judged)
    assert [str(result.wrong) for result in judged if result.suspicious] == []


@pytest.mark.long
def test_a_sample_of_wrong_calls_raises_errors_of_the_library() -> None:
    calls = table()
    check(sweep(sample(list(wrong_calls(calls.values())), SAMPLE), calls))


@pytest.mark.exhaustive
def test_every_wrong_call_raises_an_error_of_the_library() -> None:
    calls = table()
    wrong = list(wrong_calls(calls.values()))
    assert len(wrong) >= 20_000
    check(sweep(wrong, calls))
