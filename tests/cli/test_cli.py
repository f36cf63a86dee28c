"""The command, run as people run it: in a process of its own, and what it answers to what is wrong."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
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


def commands() -> dict[str, Any]:
    whole: Any = typer.main.get_command(app)
    return dict(whole.commands)


def test_every_command_explains_itself_and_all_it_takes() -> None:
    assert list(commands()) == ["look", "steps", "explain", "cost", "heads", "mechanisms", "theory", "train"]
    for name, command in commands().items():
        assert command.help, name
        for parameter in command.params:
            assert getattr(parameter, "help", None) or parameter.name == "help", f"{name} {parameter.name}"
        code, printed, _ = run(name, "--help")
        assert code == 0 and "Usage: " in printed


def test_whoever_reads_the_help_need_not_wait_for_the_explorer() -> None:
    program = "import sys, regard.cli; print(sorted({'starlette', 'uvicorn', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", ["no such thing", "a"])
def test_a_name_that_is_not_one_mechanism_is_refused(name: str) -> None:
    code, printed, said = run("mechanisms", name)
    assert code == 2 and printed == ""
    assert f"got '{name}'" in said
