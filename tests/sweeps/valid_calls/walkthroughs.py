"""Valid calls of the methods of `regard.Steps`."""

from typing import Any

import regard
from tests.sweeps.valid_calls.inputs import qkv
from tests.sweeps.valid_calls.table import ValidCall, args

STEPS = regard.steps(*(x[:, :, :3, :2] for x in qkv()))


def method(name: str, *positional: Any) -> ValidCall:
    return ValidCall(f"regard.Steps.{name}", lambda: getattr(STEPS, name), lambda: args(*positional))


CALLS = [method("at", 0, 1), *(method(name) for name in ("text", "latex", "html", "code", "as_dict", "json"))]

LEFT_OUT = {"regard.Steps": "a result, made by steps"}
