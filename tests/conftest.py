"""Setup of all tests: seeded random numbers, fixed Hypothesis examples, plots without a window."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

import regard
from tests.chromium import chromium
from tests.sampling import mark_cases_outside_samples

os.environ.setdefault("MPLBACKEND", "Agg")
# A background job of a shell ignores SIGINT, which some tests send to themselves and to subprocesses.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The examples are the same in every run, so a failing test keeps failing until it is fixed. There is no deadline,
# because the first call of a test fills caches and several workers share a machine.
settings.register_profile(
    "regard",
    derandomize=True,
    deadline=None,
    max_examples=20,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("regard"), max_examples=10)
settings.register_profile("thorough", settings.get_profile("regard"), max_examples=100)
# A mutant is either killed or not; shrinking the example that kills it would only cost time.
settings.register_profile(
    "mutants", settings.get_profile("regard"), max_examples=50, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "regard"))


def pytest_configure() -> None:
    gc.disable()  # collection creates a million objects and no garbage


@pytest.hookimpl(tryfirst=True)  # before pytest deselects the tests marked long
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_cases_outside_samples(items)


def pytest_collection_finish() -> None:
    """Leave the collected tests out of later garbage collections, which would each take a second."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)  # tests keep many objects, and each full collection visits them all


@pytest.fixture(autouse=True)
def _seed_torch() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all tests of a process, because starting it takes seconds."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def reset_compiler() -> Iterator[None]:
    """Remove compiled graphs after the test: torch stops compiling a function after eight graphs of it."""
    yield
    torch.compiler.reset()


SUPPORTS_EVERY_CALL = ("tiled", "reference")  # other backends need not support every call


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Skip a test that is parametrized over backends where the backend does not support the call."""
    try:
        return (yield)
    except regard.errors.BackendError as error:
        callspec = getattr(pyfuncitem, "callspec", None)
        params = {} if callspec is None else callspec.params
        backend = params.get("backend", params.get("engine"))
        if backend not in (None, *SUPPORTS_EVERY_CALL) and "does not support this call" in str(error):
            pytest.skip(str(error))
        raise
