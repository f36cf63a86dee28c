"""What every test starts from: the same random numbers, the same examples, pictures without a window."""

import os
import signal

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

import regard

os.environ.setdefault("MPLBACKEND", "Agg")
# A shell lets what it starts in the background ignore Ctrl-C, which tests send to themselves and to commands.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The examples are the same in every run, so a red test stays red until it is mended. There is no deadline:
# the first call of a test warms caches up, and two workers share a machine.
settings.register_profile(
    "regard",
    derandomize=True,
    deadline=None,
    max_examples=50,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("regard"), max_examples=10)
# A break is caught or not; the smallest example that catches it is of no interest.
settings.register_profile("mutants", settings.get_profile("regard"), phases=[Phase.explicit, Phase.generate])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "regard"))


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)


MAY_DECLINE = ("native", "fused")  # they know softmax in float32; what others compute they need not


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """A test that asks every engine does not apply to one that says no."""
    try:
        return (yield)
    except regard.errors.EngineError as refusal:
        asked = getattr(pyfuncitem, "callspec", None)
        if asked is not None and asked.params.get("engine") in MAY_DECLINE and "it objects" in str(refusal):
            pytest.skip(str(refusal))
        raise
