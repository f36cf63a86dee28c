"""The examples in the docstrings of regard run and print their expected output."""

import doctest
import importlib
from pathlib import Path

import pytest
import torch

SOURCE = Path(__file__).parents[2] / "src"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules(source: Path) -> list[str]:
    names = [path.relative_to(source).with_suffix("").parts for path in sorted(source.glob("regard/**/*.py"))]
    return [".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in names]


@pytest.mark.parametrize("name", modules(SOURCE))
def test_the_examples_of_a_module_run(name: str) -> None:
    module = importlib.import_module(name)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for examples in doctest.DocTestFinder().find(module, name):
        torch.manual_seed(0)
        runner.run(examples, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_the_library_has_examples() -> None:
    finder = doctest.DocTestFinder()
    tests = [test for name in modules(SOURCE) for test in finder.find(importlib.import_module(name), name)]
    assert sum(len(test.examples) for test in tests) > 0
