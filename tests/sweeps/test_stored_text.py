"""Texts that files hold may be anything: whatever is changed in one, it is refused or gives a call that runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SWEEP = Path(__file__).with_name("stored_text.py")


def outcomes(first: int, count: int) -> dict[str, int]:
    """A sweep in a process of its own, which a read outside of a tensor would end."""
    run = [sys.executable, str(SWEEP), str(first), str(count)]
    result = subprocess.run(run, capture_output=True, text=True, timeout=1200, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    counts: dict[str, int] = json.loads(result.stdout)
    return counts


def check(counts: dict[str, int], count: int) -> None:
    assert sum(counts.values()) == count
    assert not [outcome for outcome in counts if outcome.startswith("internal")], counts
    assert counts["ran"] > count // 20  # the texts are not refused for one reason that all of them share


def test_some_changed_texts_are_refused_or_run() -> None:
    check(outcomes(0, 600), 600)


@pytest.mark.long
def test_many_changed_texts_are_refused_or_run() -> None:
    check(outcomes(1000, 5000), 5000)


@pytest.mark.exhaustive
def test_very_many_changed_texts_are_refused_or_run() -> None:
    check(outcomes(10_000, 50_000), 50_000)
