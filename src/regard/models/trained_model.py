"""Loading and saving of trained models: NAME.safetensors and, for text models, NAME.tokenizer.json."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from regard.checks import instance
from regard.errors import LoadError
from regard.files.tensors_with_metadata import (
    load_metadata,
    load_tensors_and_metadata,
    save_tensors_and_metadata,
)
from regard.models import tasks
from regard.models.state_dict import check_state_dict, load_state_dict
from regard.models.tokenizer import Tokenizer
from regard.models.training import Trainer

MODEL_FILE = "model.safetensors"  # in the folder of a run
TOKENIZER_SUFFIX = ".tokenizer.json"  # replaces .safetensors


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A trained model, the name of its task, and its tokenizer or None."""

    task: str
    model: nn.Module
    tokenizer: Tokenizer | None


def load_trained(path: str | Path) -> TrainedModel:
    """Load a trained model from the folder of a run, such as "runs/digits", or from a file of weights.

    `path` is the folder or the file. The model is in eval mode.

    >>> from regard.models.bundled import WEIGHTS_DIR
    >>> load_trained(WEIGHTS_DIR / "dates.safetensors").task
    'dates'
    """
    path = _check_path(path, "path")
    path = path / MODEL_FILE if path.is_dir() else path
    tensors, config = load_tensors_and_metadata(path)
    task = config.pop("task", None)
    if task is None:
        raise LoadError(
            f"{path} must name its task, as files written by regard train do; it does not. Load Hugging Face "
            "checkpoints with regard.models.load_pretrained."
        )
    with torch.device("meta"):  # raises before any allocation if the config is for a larger model than the tensors
        check_state_dict(tasks.build_model(task, dict(config)), tensors, path)
    model = tasks.build_model(task, config)
    load_state_dict(model, tensors, path)
    tokenizer_path = path.with_suffix(TOKENIZER_SUFFIX)
    return TrainedModel(task, model.eval(), Tokenizer.from_file(tokenizer_path) if tokenizer_path.is_file() else None)


def has_trained_model(folder: str | Path) -> bool:
    """Return whether the folder of a run holds a trained model.

    >>> has_trained_model("missing-folder")
    False
    """
    path = _check_path(folder, "folder") / MODEL_FILE
    return path.is_file() and "task" in load_metadata(path)


def save_trained(trainer: Trainer, path: Path, *, half_precision: bool = False) -> None:
    """Write the weights without the optimizer state, in float16 if `half_precision`."""
    tensors = {
        name: tensor.half() if half_precision and tensor.is_floating_point() else tensor
        for name, tensor in trainer.model.state_dict().items()
    }
    save_tensors_and_metadata(path, tensors, {"task": trainer.task.name, **trainer.task.model_config()})
    tokenizer = getattr(trainer.task, "tokenizer", None)
    if isinstance(tokenizer, Tokenizer):
        tokenizer.save(path.with_suffix(TOKENIZER_SUFFIX))


def _check_path(value: str | Path, name: str) -> Path:
    instance(value, name, (str, Path), "a path")
    return Path(value)
