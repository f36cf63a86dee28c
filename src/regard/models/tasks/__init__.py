"""The training tasks of the models in `regard.models`: model, data, recipe and test, one file per task."""

from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from regard.errors import ArgumentError, LoadError
from regard.models.training import Task

_TASKS = {
    "language": ("language", "LanguageTask"),
    "dates": ("dates", "DatesTask"),
    "bottleneck": ("bottleneck", "BottleneckTask"),
    "digits": ("digits", "DigitsTask"),
    "captions": ("captions", "CaptionsTask"),
    "speech": ("speech", "SpeechTask"),
    "karate": ("graphs", "KarateTask"),
    "miserables": ("graphs", "MiserablesTask"),
}


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks.

    >>> task_names()[:3]
    ('language', 'dates', 'bottleneck')
    """
    return tuple(_TASKS)


def check_task_name(name: str) -> None:
    """Raise `ArgumentError` unless there is a task of this name."""
    if name not in _TASKS:
        raise ArgumentError(f"the task must be one of {', '.join(_TASKS)}; got {name!r}.")


def get_task(name: str, data: str | Path = "data") -> Task:
    """Return the task called `name`; `data` is the folder that `make data` downloads to.

    >>> get_task("dates").recipe.steps
    1200
    """
    check_task_name(name)
    module, class_name = _TASKS[name]
    task: Task = getattr(import_module(f"regard.models.tasks.{module}"), class_name)(Path(data))
    return task


def build_model(name: str, config: dict[str, Any]) -> nn.Module:
    """Return an untrained model of a task, built from the configuration that is saved with its weights."""
    if not isinstance(name, str) or name not in _TASKS:
        raise LoadError(f"weights must be of one of the tasks {', '.join(_TASKS)}; got {name!r}.")
    try:
        model: nn.Module = import_module(f"regard.models.tasks.{_TASKS[name][0]}").build_model(config)
    except (KeyError, TypeError, ValueError, RuntimeError, ArithmeticError, AttributeError) as error:
        raise LoadError(
            f"weights of the task {name!r} must have a valid model configuration; got {str(config)[:200]} ({error})."
        ) from None
    return model
