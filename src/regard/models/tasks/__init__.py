"""What the models of `regard.models` are trained on, and how well they must do: one file a task."""

from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from regard.errors import LoadError, SpecError
from regard.models.train import Task

_WHERE = {
    "language": ("language", "LanguageTask"),
    "dates": ("dates", "DatesTask"),
    "bottleneck": ("bottleneck", "BottleneckTask"),
    "digits": ("digits", "DigitsTask"),
    "captions": ("captions", "CaptionsTask"),
    "speech": ("speech", "SpeechTask"),
    "karate": ("graphs", "KarateTask"),
    "miserables": ("graphs", "MiserablesTask"),
}


def names() -> tuple[str, ...]:
    return tuple(_WHERE)


def check_name(name: str) -> None:
    """Raises `SpecError` unless there is a task of this name."""
    if name not in _WHERE:
        raise SpecError(f"the task must be one of {', '.join(_WHERE)}; got {name!r}.")


def task(name: str, data: str | Path = "data") -> Task:
    """The task of a name; `data` is the folder that `make data` fills."""
    check_name(name)
    module, maker = _WHERE[name]
    made: Task = getattr(import_module(f"regard.models.tasks.{module}"), maker)(Path(data))
    return made


def made(name: str, words: dict[str, Any]) -> nn.Module:
    """The model of a task that a file of weights is for, by what the file says of it; nothing in it is trained yet."""
    if not isinstance(name, str) or name not in _WHERE:
        raise LoadError(f"weights must be of one of {', '.join(_WHERE)}; got {name!r}.")
    try:
        found: nn.Module = import_module(f"regard.models.tasks.{_WHERE[name][0]}").made(words)
    except (KeyError, TypeError, ValueError, RuntimeError, ArithmeticError, AttributeError) as error:
        got = str(words)[:200]
        raise LoadError(f"weights of {name!r} must say how their model is made; got {got} ({error}).") from None
    return found
