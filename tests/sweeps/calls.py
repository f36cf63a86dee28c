"""The table of valid calls, and the wrong calls that replace one argument of a valid call."""

import inspect
from collections.abc import Iterable, Iterator
from contextlib import chdir
from dataclasses import dataclass
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

from tests.sweeps.valid_calls.table import Enough, ValidCall
from tests.sweeps.wrong_values import wrong_values

PACKAGES = (
    "core", "masks", "scores", "normalizers", "features", "measures", "costs", "mechanisms", "integrations",
    "layers", "models", "distributed", "plots", "recordings", "walkthroughs", "theory",
)  # fmt: skip


@dataclass(frozen=True)
class WrongCall:
    """A valid call with one argument, a name or `*index`, replaced by the wrong value `label`."""

    call: str
    argument: str
    label: str

    def __str__(self) -> str:
        return f"{self.call}({self.argument}={self.label})"


def table(packages: Iterable[str] = PACKAGES) -> dict[str, ValidCall]:
    calls: dict[str, ValidCall] = {}
    for package in packages:
        for call in import_module(f"tests.sweeps.valid_calls.{package}").CALLS:
            assert call.name not in calls, f"{call.name} is in the table twice"
            calls[call.name] = call
    return calls


def left_out() -> dict[str, str]:
    reasons: dict[str, str] = {}
    for package in PACKAGES:
        reasons |= import_module(f"tests.sweeps.valid_calls.{package}").LEFT_OUT
    return reasons


def bind(call: ValidCall) -> tuple[Any, dict[str, Any], dict[str, inspect.Parameter]]:
    """Return the callable, its arguments by name or `*index`, and the parameter of each."""
    function, arguments = call.function(), call.arguments()
    parameters = inspect.signature(function).parameters
    slots: dict[str, Any] = {}
    slot_parameters: dict[str, inspect.Parameter] = {}
    remaining = iter(arguments.positional)
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            for index, value in enumerate(remaining):
                slots[f"*{index}"], slot_parameters[f"*{index}"] = value, parameter
        elif parameter.kind is parameter.VAR_KEYWORD:
            extra = {key: value for key, value in arguments.keywords.items() if key not in parameters}
            slots |= extra
            slot_parameters |= dict.fromkeys(extra, parameter)
        else:
            value = (
                next(remaining, parameter.default)
                if parameter.kind is not parameter.KEYWORD_ONLY
                else parameter.default
            )
            slots[name], slot_parameters[name] = arguments.keywords.get(name, value), parameter
    return function, slots, slot_parameters


def wrong_calls(calls: Iterable[ValidCall]) -> Iterator[WrongCall]:
    """Yield every wrong call of the table, in a fixed order."""
    for call in calls:
        with TemporaryDirectory() as folder, chdir(folder):  # arguments may be files
            _, slots, _ = bind(call)
        for argument, valid in slots.items():
            if argument not in call.skip:
                yield from (WrongCall(call.name, argument, label) for label, _ in wrong_values(valid))


def run(call: ValidCall, wrong: WrongCall | None) -> object:
    """Run a call with one argument replaced; None runs the valid call."""
    function, slots, slot_parameters = bind(call)
    if wrong is not None:
        slots[wrong.argument] = dict(wrong_values(slots[wrong.argument]))[wrong.label]()
    has_varargs = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in slot_parameters.values())
    positional, keywords = [], {}
    for name, parameter in slot_parameters.items():
        value = slots[name]
        if value is inspect.Parameter.empty:
            continue
        positional_only = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL)
        if positional_only or (has_varargs and parameter.kind is parameter.POSITIONAL_OR_KEYWORD):
            positional.append(value)
        elif value is not parameter.default or (wrong is not None and name == wrong.argument):
            keywords[name] = value
    try:
        result = function(*positional, **keywords)
    except Enough:
        return None
    return call.use(result) if call.use is not None else result
