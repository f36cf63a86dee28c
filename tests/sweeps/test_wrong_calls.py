"""Wrong arguments of public functions get an error of `regard.errors`, soon, and nothing is accepted in silence."""

from pathlib import Path

import pytest
import torch.distributed as dist

from tests.sweeps.calls import left_out, run, table, wrong_calls
from tests.sweeps.public_names import public_names
from tests.sweeps.wrong_calls import MAX_INTERNAL, Judged, in_readme, report, sample, sweep

SAMPLE = 2000


def test_every_public_callable_is_in_the_table_or_left_out_with_a_reason() -> None:
    reasons = left_out()
    assert all(reasons.values())
    calls = table()
    missing = [
        name
        for name in public_names()
        if name not in calls and not any(name == one or name.startswith(f"{one}.") for one in reasons)
    ]
    assert missing == []


def test_no_reason_for_leaving_out_is_stale() -> None:
    names = set(public_names()) | {"regard.integrations.huggingface"}
    assert [name for name in left_out() if name not in names or name in table()] == []


@pytest.mark.parametrize("name", sorted(table()))
def test_every_call_of_the_table_is_valid(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(table()[name], None)
    if dist.is_initialized():  # calls over ranks start a group, which later tests must not find
        dist.destroy_process_group()


def check(judged: list[Judged]) -> None:
    internal = [one for one in judged if one.internal]
    assert [str(one.wrong) for one in judged if one.outcome.kind in ("slow", "crash")] == []
    assert [f"{one.wrong}: {one.outcome.error}" for one in internal if in_readme(one.wrong.call)] == []
    assert len(internal) <= MAX_INTERNAL * len(judged), report(judged)
    assert [str(one.wrong) for one in judged if one.suspicious] == []


@pytest.mark.long
def test_a_sample_of_wrong_calls_gets_errors_of_the_project() -> None:
    calls = table()
    check(sweep(sample(list(wrong_calls(calls.values())), SAMPLE), calls))


@pytest.mark.exhaustive
def test_every_wrong_call_gets_an_error_of_the_project() -> None:
    calls = table()
    wrong = list(wrong_calls(calls.values()))
    assert len(wrong) >= 20_000
    check(sweep(wrong, calls))
