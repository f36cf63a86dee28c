"""The sample of a large family of tests covers every value, and every value on every backend."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

from tests.sampling import covering_sample

ROOT = Path(__file__).parents[2]
BACKENDS = ("native", "tiled", "reference")
CASES = [
    {"backend": backend, "mask": mask, "size": size}
    for backend, mask, size in itertools.product(BACKENDS, range(10), range(5))
]


def sampled_cases(seed: str = "family") -> list[dict[str, object]]:
    return [CASES[index] for index in sorted(covering_sample(CASES, seed))]


def test_every_value_occurs_on_every_backend() -> None:
    sample = sampled_cases()
    assert {(case["backend"], case["mask"]) for case in sample} == set(itertools.product(BACKENDS, range(10)))
    assert {(case["backend"], case["size"]) for case in sample} == set(itertools.product(BACKENDS, range(5)))


def test_a_product_of_parameters_is_much_smaller_in_the_sample() -> None:
    assert len(sampled_cases()) < len(CASES) / 3


def test_values_of_different_parameters_mix() -> None:
    pairs = {(case["mask"], case["size"]) for case in sampled_cases()}
    assert len(pairs) > 20  # in the order of the cases, each size would occur with the first mask only


def test_the_sample_is_the_same_in_every_process() -> None:
    assert covering_sample(CASES, "family") == covering_sample(CASES, "family")
    assert covering_sample(CASES, "family") != covering_sample(CASES, "another family")


def test_a_list_of_different_values_runs_completely() -> None:
    cases = [{"name": f"example {n}"} for n in range(40)]
    assert covering_sample(cases, "list") == set(range(40))


def test_each_case_runs_either_in_the_sample_or_in_the_long_tests(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.sampling import mark_cases_outside_samples\n"
        "import pytest\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_collection_modifyitems(items): mark_cases_outside_samples(items)\n"
    )
    (tmp_path / "test_family.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('backend', ['native', 'tiled'])\n"
        "@pytest.mark.parametrize('mask', range(5))\n"
        "@pytest.mark.parametrize('size', range(6))\n"
        "def test_family(backend, mask, size): pass\n"
    )
    sample, others = collected(tmp_path, "not long"), collected(tmp_path, "long")
    assert 12 <= len(sample) < 30
    assert not sample & others
    assert len(sample | others) == 60


def collected(folder: Path, expression: str) -> set[str]:
    """Return the names of the tests that a run in another process selects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [*command, "--rootdir", str(folder), "-m", expression, str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.strip() for line in done.stdout.splitlines() if "::" in line}
