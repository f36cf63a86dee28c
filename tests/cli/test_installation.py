"""The facts that `regard doctor` prints: requirements, ranges of versions, the core, the timed call."""

import platform
import sys
from dataclasses import replace
from email.message import Message
from importlib.metadata import PackageNotFoundError

import pytest
import torch

from regard.backends.native import abi
from regard.backends.native.backend import builds
from regard.cli import installation as module
from regard.cli.installation import Installation, inspect_core, inspect_installation, is_in_range, time_attention

VERSIONS = {"torch": "2.16.0+cpu", "numpy": "1.25.0", "rich": "15.0", "tokenizers": "0.22.0", "matplotlib": "3.11"}


def project_metadata(python: str = "3.99") -> Message:
    fields = Message()
    fields["Version"] = "0.1.0"
    fields["Requires-Python"] = ">=3.11"
    for release in ("3", "3.11", python):
        fields["Classifier"] = f"Programming Language :: Python :: {release}"
    for need in (
        "torch<2.16,>=2.9",
        "numpy>=1.26",
        "rich>=13",
        "typer>=0.15",
        'matplotlib>=3.8; extra == "plot"',
        'safetensors>=0.4.3; extra == "models"',
        'tokenizers>=0.20; extra == "models"',
        'regard[models,plot]; extra == "train"',
        'networkx>=3; extra == "train"',
        'ruff>=0.9; extra == "dev"',
    ):
        fields["Requires-Dist"] = need
    return fields


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Installation:
    """An installation with old and missing packages; nothing is timed."""

    def version(name: str) -> str:
        if name in VERSIONS:
            return VERSIONS[name]
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "version", version)
    monkeypatch.setattr(module, "metadata", lambda name: project_metadata())
    monkeypatch.setattr(module, "time_attention", lambda: module.TimedCall((1, 8, 1024, 64), 3, 2.0, 3.0, 1e-6))
    return inspect_installation()


@pytest.mark.parametrize(
    ("version", "supported", "expected"),
    [
        ("2.9", ">=2.9,<2.16", True),
        ("2.13.0+cpu", ">=2.9,<2.16", True),
        ("2.8.1", ">=2.9,<2.16", False),
        ("2.16.0", ">=2.9,<2.16", False),
        ("2.15.9", "<2.16,>=2.9", True),
        ("3.0.0rc1", ">=2.9,<3", False),
        ("0.9.7.post1", ">=0.9.5", True),
        ("13", ">=13.0.0", True),
        ("1.2", "==1.2.0", True),
        ("1.2", "<=1.1", False),
        ("1.2", ">1.2", False),
        ("anything", "", True),
    ],
)
def test_a_version_is_compared_with_every_bound_of_a_range(version: str, supported: str, expected: bool) -> None:
    assert is_in_range(version, supported) is expected


def test_required_packages_have_their_version_and_range(installed: Installation) -> None:
    packages = {package.name: package for package in installed.required}
    assert list(packages) == ["torch", "numpy", "rich", "typer"]
    assert packages["torch"] == module.Package("torch", "2.16.0+cpu", ">=2.9,<2.16", False)
    assert packages["rich"].is_supported is True
    assert packages["typer"] == module.Package("typer", None, ">=0.15", None)


def test_an_extra_has_the_packages_of_the_extras_that_it_names(installed: Installation) -> None:
    extras = {extra.name: extra for extra in installed.extras}
    assert list(extras) == ["plot", "models", "train"]  # none of these packages needs dev
    assert [package.name for package in extras["train"].packages] == [
        "safetensors",
        "tokenizers",
        "matplotlib",
        "networkx",
    ]
    assert extras["train"].missing == ("safetensors", "networkx")
    assert extras["train"].install_command == "pip install 'regard[train]'"
    assert extras["plot"].missing == ()


def test_versions_outside_of_their_range_are_warnings_with_a_fix(installed: Installation) -> None:
    assert "torch must be >=2.9,<2.16; got 2.16.0+cpu. Use pip install 'torch>=2.9,<2.16'." in installed.warnings
    assert "numpy must be >=1.26; got 1.25.0. Use pip install 'numpy>=1.26'." in installed.warnings
    assert len([warning for warning in installed.warnings if "must be" in warning]) == 2


def test_an_untested_python_and_system_are_warnings(installed: Installation) -> None:
    other = replace(installed, system="Darwin 25.0 arm64", python=replace(installed.python, version="3.14.2"))
    assert "Python 3.14 is not tested; 3.11, 3.99 are." in other.warnings
    assert "Darwin 25.0 arm64 is not tested; Linux on x86_64 is." in other.warnings
    assert other.tested_python == ("3.11", "3.99")


def test_a_wrong_result_is_a_problem(installed: Installation) -> None:
    for difference in (0.5, float("nan")):
        wrong = replace(installed, timed_call=replace(installed.timed_call, max_difference=difference))
        assert f"the largest difference is {difference:.3g}." in wrong.problems[-1]


def test_a_core_error_is_a_problem_with_its_fix(installed: Installation) -> None:
    core = replace(inspect_core(), is_built=False, error="the build failed with: x.cpp:1: error", fix="Do this.")
    failed = replace(installed, core=core)
    assert failed.problems == ("The compiled core is not used: the build failed with: x.cpp:1: error. Do this.",)
    assert not any("without building" in warning for warning in failed.warnings)


def test_without_metadata_the_versions_of_python_and_torch_are_still_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_metadata(name: str) -> Message:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "metadata", no_metadata)
    monkeypatch.setattr(module, "time_attention", lambda: module.TimedCall((1, 8, 1024, 64), 3, 2.0, 3.0, 1e-6))
    bare = inspect_installation()
    assert bare.regard_version is None and bare.extras == ()
    assert [(package.name, package.supported) for package in bare.required] == [("torch", ""), ("numpy", "")]
    assert any("without package metadata" in warning for warning in bare.warnings)


def test_the_installation_of_the_tests_is_described() -> None:
    installation = inspect_installation()
    assert installation.python.version == platform.python_version() and installation.python.is_supported
    assert ".".join(map(str, sys.version_info[:2])) in installation.tested_python
    assert installation.torch_threads == torch.get_num_threads()
    names = {extra.name for extra in installation.extras}
    assert names == {"plot", "models", "explorer", "hf", "train", "bench"}


@pytest.mark.skipif(not builds(), reason="the compiled core is not built")
def test_the_core_of_the_tests_is_described() -> None:
    core = inspect_core()
    assert core.is_built and core.error == "" and core.path is not None and "_core" in core.path
    assert core.available_instruction_sets == tuple(build.name for build in builds())
    assert core.instruction_set == builds()[0].name
    assert abi.core is not None and core.thread_runtime == abi.core.thread_runtime()


def test_the_timed_call_agrees_with_torch() -> None:
    timed = time_attention()
    assert timed.max_difference < 1e-5  # both compute in float32, from standard normal inputs
    assert 3 <= timed.rounds <= 21
    assert timed.regard_ms > 0 and timed.speedup == timed.torch_ms / timed.regard_ms
