"""The command `regard`: its installation, help, catalog and errors."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import regard
from regard.cli import app
from tests.cli.command import run_command


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("regard")
    process = subprocess.run([command, "mechanisms", "sparsemax"], capture_output=True, text=True, check=True)
    assert process.stdout == f"{regard.mechanisms.catalog().find('sparsemax')}\n"


def test_every_mechanism_is_listed() -> None:
    code, stdout, _ = run_command("mechanisms")
    assert code == 0
    words = " ".join(stdout.split())
    assert all(m.name.split()[0] in words for m in regard.mechanisms.catalog())


def test_mechanisms_are_printed_as_json() -> None:
    _, stdout, _ = run_command("mechanisms", "--json")
    entries = json.loads(stdout)
    assert [m["name"] for m in entries] == [m.name for m in regard.mechanisms.catalog()]
    assert entries[0].keys() >= {
        "formula",
        "paper",
        "exact",
        "time_complexity",
        "memory_complexity",
        "example",
        "reference_test",
    }


def test_mechanisms_are_printed_as_markdown() -> None:
    _, stdout, _ = run_command("mechanisms", "--markdown")
    assert stdout.startswith("# Gallery of mechanisms\n") and "### sparsemax" in stdout


def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def test_every_command_and_parameter_has_a_help_text() -> None:
    names = ["explore", "steps", "explain", "cost", "heads", "mechanisms", "theory", "train", "doctor"]
    assert list(commands()) == names
    for name, command in commands().items():
        assert command.help, name
        for parameter in command.params:
            assert getattr(parameter, "help", None) or parameter.name == "help", f"{name} {parameter.name}"
        code, stdout, _ = run_command(name, "--help")
        assert code == 0 and "Usage: " in stdout


def test_the_cli_does_not_import_the_explorer_server() -> None:
    program = "import sys, regard.cli; print(sorted({'starlette', 'uvicorn', 'transformers'} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"


@pytest.mark.parametrize("name", ["no such thing", "a"])
def test_names_that_do_not_match_one_mechanism_exit_with_2(name: str) -> None:
    code, stdout, stderr = run_command("mechanisms", name)
    assert code == 2 and stdout == ""
    assert f"got '{name}'" in stderr
