"""The core runs on the threads of the OpenMP runtime that torch has loaded, and without one on its own pool."""

import subprocess
import sys

import pytest

from regard.backends.native import abi

needs_core = pytest.mark.skipif(abi.core is None, reason="the compiled core was not built")
LOAD_CORE_ALONE = """
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.ExtensionFileLoader("_core", sys.argv[1])
core = importlib.util.module_from_spec(importlib.util.spec_from_loader("_core", loader))
loader.exec_module(core)
assert "torch" not in sys.modules
print(core.thread_runtime())
"""


@needs_core
def test_threads_are_those_of_the_runtime_that_torch_loaded() -> None:
    assert abi.core is not None and abi.core.thread_runtime() in ("GNU OpenMP", "LLVM OpenMP")


@needs_core
def test_without_torch_the_threads_are_those_of_a_pool() -> None:
    command = [sys.executable, "-c", LOAD_CORE_ALONE, str(abi.core.__file__)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout == "thread pool\n"
