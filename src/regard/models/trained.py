"""What `regard train` writes of a model, and reads again: its weights and, if it reads text, its vocabulary beside them
in a file of the same name, which ends in .json."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from regard.checks import instance
from regard.errors import LoadError
from regard.models import tasks
from regard.models.store import check_fit, fit, read, read_words, write
from regard.models.text import Tokens
from regard.models.train import Training

FILE = "model.safetensors"  # in the folder of a run


@dataclass(frozen=True, eq=False)
class Trained:
    """A model that has learned something, the task it learned, and its vocabulary, if it has one."""

    task: str
    model: nn.Module
    tokens: Tokens | None


def trained(path: str | Path) -> Trained:
    """The model of a run, such as `trained("runs/digits").model`, ready to be used; or that of a file of weights."""
    path = _path(path, "path")
    path = path / FILE if path.is_dir() else path
    tensors, words = read(path)
    task = words.pop("task", None)
    if task is None:
        raise LoadError(
            f"{path} must say for which task it was trained, as regard train writes it; it does not. Models of Hugging "
            "Face are read by regard.models.load."
        )
    with torch.device("meta"):  # a file that asks for a larger model than it holds is refused before any is allocated
        check_fit(tasks.made(task, dict(words)), tensors, path)
    model = tasks.made(task, words)
    fit(model, tensors, path)
    beside = path.with_suffix(".json")
    return Trained(task, model.eval(), Tokens.read(beside) if beside.is_file() else None)


def is_trained(folder: str | Path) -> bool:
    """Whether a folder is that of a run that came to its end."""
    path = _path(folder, "folder") / FILE
    return path.is_file() and "task" in read_words(path)


def write_trained(training: Training, path: Path, *, half: bool = False) -> None:
    """The weights alone, without what is needed to go on; `half` keeps them in 16 bits."""
    state = training.model.state_dict()
    tensors = {name: t.half() if half and t.is_floating_point() else t for name, t in state.items()}
    write(path, tensors, {"task": training.task.name, **training.task.words()})
    tokens = getattr(training.task, "tokens", None)
    if isinstance(tokens, Tokens):
        tokens.write(path.with_suffix(".json"))


def _path(value: str | Path, name: str) -> Path:
    instance(value, name, (str, Path), "a path")
    return Path(value)
