"""Changed texts of serialized options raise an ArgumentError or give a call that runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SWEEP = Path(__file__).with_name("stored_text.py")


def outcomes(first: int, count: int) -> dict[str, int]:
    """Run the sweep in a separate process, which a read outside of a tensor would end."""
    command = [sys.executable, str(SWEEP), str(first), str(count)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    counts: dict[str, int] = json.loads(result.stdout)
    return counts


def check(counts: dict[str, int], count: int) -> None:
    assert sum(counts.values()) == count
    assert not [outcome for outcome in counts if outcome.startswith("internal")], counts
    assert counts["ran"] > count // 20  # not all texts are refused for one common reason


def test_some_changed_texts_are_refused_or_run() -> None:
    check(outcomes(0, 600), 600)


@pytest.mark.long
def test_many_changed_texts_are_refused_or_run() -> None:
    check(outcomes(1000, 5000), 5000)


@pytest.mark.exhaustive
def test_very_many_changed_texts_are_refused_or_run() -> None:
    check(outcomes(10_000, 50_000), 50_000)
