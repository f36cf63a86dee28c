"""The command, run as people run it: in a process of its own, and what it answers to what is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import regard
from regard.cli import app


def run(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, list(arguments))
    return found.exit_code, found.stdout, found.stderr


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("regard")
    done = subprocess.run([command, "mechanisms", "sparsemax"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{regard.mechanisms().named('sparsemax')}\n"


def test_every_mechanism_is_listed() -> None:
    code, printed, _ = run("mechanisms")
    assert code == 0
    words = " ".join(printed.split())
    assert all(m.name.split()[0] in words for m in regard.mechanisms())


def test_machines_read_json() -> None:
    _, printed, _ = run("mechanisms", "--json")
    found = json.loads(printed)
    assert [m["name"] for m in found] == [m.name for m in regard.mechanisms()]
    assert found[0].keys() >= {"formula", "paper", "exact", "time", "memory", "example", "witness"}


def test_a_page_can_be_made() -> None:
    _, printed, _ = run("mechanisms", "--markdown")
    assert printed.startswith("# Mechanisms\n") and "### sparsemax" in printed


@pytest.mark.parametrize("name", ["no such thing", "a"])
def test_a_name_that_is_not_one_mechanism_is_refused(name: str) -> None:
    code, printed, said = run("mechanisms", name)
    assert code == 2 and printed == ""
    assert f"got '{name}'" in said
