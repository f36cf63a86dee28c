"""The supported versions: pyproject.toml, the page on the status and the checks of the source name the same ones."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from regard.cli.installation import TESTED_MACHINE
from regard.integrations.huggingface.transformers_modules import OLDEST_TRANSFORMERS
from regard.torch_ops.private_names import TESTED_TORCH

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
STATUS = (ROOT / "docs" / "get-started" / "status.md").read_text(encoding="utf8")


def listed_versions(row: str) -> list[str]:
    """The versions that the page on the status lists as tested: the first two columns of a row of its table."""
    match = re.search(rf"^\| {row} \|(.*?)\|(.*?)\|", STATUS, re.MULTILINE)
    assert match
    return re.findall(r"\d+\.\d+", match[1] + match[2])


def supported(requirements: list[str], name: str) -> Requirement:
    (requirement,) = (need for need in map(Requirement, requirements) if need.name == name)
    return requirement


def in_order(versions: list[str]) -> list[str]:
    return sorted(versions, key=lambda version: [int(number) for number in version.split(".")])


def next_minor(version: str) -> str:
    major, minor = version.split(".")
    return f"{major}.{int(minor) + 1}.0"


def test_the_classifiers_list_the_tested_versions_of_python_and_the_tested_system() -> None:
    pattern = re.compile(r"Programming Language :: Python :: (3\.\d+)")
    classified = [match[1] for match in map(pattern.fullmatch, PROJECT["classifiers"]) if match]
    assert classified == in_order(listed_versions("Python"))
    assert PROJECT["requires-python"] == f">={classified[0]}"
    systems = [line for line in PROJECT["classifiers"] if line.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]
    assert TESTED_MACHINE.replace("_", "-") in STATUS


def test_the_range_of_torch_ends_at_the_oldest_and_newest_tested_version() -> None:
    versions = in_order(listed_versions("torch"))
    torch_range = supported(PROJECT["dependencies"], "torch").specifier
    assert (versions[0], versions[-1]) == TESTED_TORCH
    assert all(torch_range.contains(f"{version}.0") for version in versions)
    assert not torch_range.contains("2.8.1") and not torch_range.contains(next_minor(versions[-1]))


def test_the_range_of_transformers_ends_at_the_oldest_and_newest_tested_version() -> None:
    versions = in_order(listed_versions("transformers"))
    transformers_range = supported(PROJECT["optional-dependencies"]["hf"], "transformers").specifier
    oldest = ".".join(map(str, OLDEST_TRANSFORMERS))
    assert versions[0] == oldest and transformers_range.contains(f"{oldest}.0")
    assert transformers_range.contains(f"{versions[-1]}.0") and not transformers_range.contains(
        next_minor(versions[-1])
    )
    assert not transformers_range.contains("5.3.9")
    page = (ROOT / "docs" / "how-to" / "huggingface.md").read_text(encoding="utf8")
    assert f"needs transformers {oldest} to {versions[-1]} " in page
