"""Trained models of every task are saved and loaded; text models open in the explorer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.errors import LoadError
from regard.explorer.session_factory import create_explorer
from regard.explorer.text_models.registry import load_text_model
from regard.files.tensors_with_metadata import load_tensors_and_metadata, save_tensors_and_metadata
from regard.models.tasks import get_task, task_names
from regard.models.tasks.dates import DatesTask
from regard.models.tasks.language import LanguageTask, build_model
from regard.models.tasks.speech import SpeechTask
from regard.models.tokenizer import Tokenizer
from regard.models.trained_model import MODEL_FILE, TrainedModel, has_trained_model, load_trained, save_trained
from regard.models.training import Recipe, Task, Trainer

CONFIG = {"embed_dim": 32, "num_heads": 4, "norm": "rms", "bias": False}
SMALL = {
    "vocab_size": 300,
    "num_layers": 2,
    "block_config": CONFIG,
    "sliding_windows": [4, None],
    "rope_base": 100.0,
}


class SmallLanguageTask(LanguageTask):
    """The language task with a small model and a tokenizer trained on one sentence."""

    def __init__(self) -> None:
        super().__init__(Path())

    tokenizer = Tokenizer.train([" The captain saw the white whale"] * 20, 300)

    def model_config(self) -> dict[str, Any]:
        return {**SMALL, "vocab_size": self.tokenizer.vocab_size}

    def untrained_model(self) -> nn.Module:
        return build_model(self.model_config())


class SpeechTaskWithoutData(SpeechTask):
    """The speech task without its voices, which its model does not depend on."""

    def __init__(self) -> None:
        """Skip the checks of the data folder."""


SUBSTITUTE_TASKS: dict[str, Callable[[], Task]] = {"language": SmallLanguageTask, "speech": SpeechTaskWithoutData}


def _save_and_load(name: str, folder: Path) -> tuple[Trainer, TrainedModel]:
    task = SUBSTITUTE_TASKS[name]() if name in SUBSTITUTE_TASKS else get_task(name)
    trainer = Trainer(task, Recipe(steps=1, lr=1.0, seed=5))
    save_trained(trainer, folder / MODEL_FILE)
    return trainer, load_trained(folder)


@pytest.mark.parametrize("name", task_names())
def test_a_saved_model_loads_unchanged(name: str, tmp_path: Path) -> None:
    trainer, trained = _save_and_load(name, tmp_path)
    assert trained.task == name
    assert type(trained.model) is type(trainer.model)
    assert not trained.model.training
    expected: dict[str, Tensor] = trainer.model.state_dict()
    assert trained.model.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in trained.model.state_dict().items())
    assert (trained.tokenizer is not None) == (name == "language")
    assert has_trained_model(tmp_path)


def test_half_precision_halves_the_file(tmp_path: Path) -> None:
    trainer = Trainer(DatesTask(), Recipe(steps=1, lr=1.0))
    full, half = (tmp_path / f"{name}.safetensors" for name in ("full", "half"))
    save_trained(trainer, full)
    save_trained(trainer, half, half_precision=True)
    assert 0.45 < half.stat().st_size / full.stat().st_size < 0.55
    parameters = (load_trained(path).model.parameters() for path in (full, half))
    for full_parameter, half_parameter in zip(*parameters, strict=True):
        assert full_parameter.dtype == half_parameter.dtype == torch.float32
        torch.testing.assert_close(full_parameter, half_parameter, rtol=1e-3, atol=1e-6)  # float16 has 11 bits


def test_the_explorer_opens_a_trained_language_model(tmp_path: Path) -> None:
    _, trained = _save_and_load("language", tmp_path)
    session = create_explorer(" the whale saw the whale", model=str(tmp_path)).sessions[0]
    assert trained.tokenizer is not None
    ids = trained.tokenizer.encode(" the whale saw the whale")
    assert session.token_ids == ids
    assert "".join(session.texts[0].tokens) == " the whale saw the whale"
    expected = trained.model.decoder.attention_with_weights(trained.model.embedding(torch.tensor([ids])))  # type: ignore[union-attr, operator]  # a language model
    torch.testing.assert_close(session.recording[1].weights[0, 2], expected[1].self_attention.weights[0, 2])


def test_the_explorer_opens_a_trained_translator_with_an_example(tmp_path: Path) -> None:
    _save_and_load("dates", tmp_path)
    assert create_explorer(model=str(tmp_path)).sessions[0].texts[0].tokens[:2] == ["on", "friday"]


def test_a_language_model_without_its_tokenizer_raises(tmp_path: Path) -> None:
    _save_and_load("language", tmp_path)
    (tmp_path / "model.tokenizer.json").unlink()
    with pytest.raises(LoadError, match=r"must contain model\.tokenizer\.json, the tokenizer of the model"):
        load_text_model(str(tmp_path))


def test_models_without_text_input_raise_in_the_explorer(tmp_path: Path) -> None:
    _save_and_load("karate", tmp_path)
    with pytest.raises(
        LoadError, match=r"a model must take a text, as models of the tasks language and dates do; got .* karate"
    ):
        load_text_model(str(tmp_path))


def test_files_without_a_valid_task_raise(tmp_path: Path) -> None:
    path = tmp_path / MODEL_FILE
    save_tensors_and_metadata(path, {"a": torch.zeros(1)})
    assert not has_trained_model(tmp_path)
    with pytest.raises(LoadError, match=r"must name its task.*regard\.models\.load_pretrained"):
        load_trained(tmp_path)
    save_tensors_and_metadata(path, {"a": torch.zeros(1)}, {"task": "wonder"})
    with pytest.raises(LoadError, match=r"weights must be of one of the tasks language, .*; got 'wonder'"):
        load_trained(tmp_path)
    save_tensors_and_metadata(path, {"a": torch.zeros(1)}, {"task": "dates", "num_layers": 2})
    with pytest.raises(
        LoadError, match=r"weights of the task 'dates' must have a valid model configuration; got {'num_layers': 2}"
    ):
        load_trained(tmp_path)
    _save_and_load("language", tmp_path)
    path.with_suffix(".tokenizer.json").write_text("{}")
    with pytest.raises(
        LoadError, match=r"a tokenizer must be a file that Tokenizer\.save wrote; got .*model\.tokenizer\.json"
    ):
        load_trained(tmp_path)
    with pytest.raises(LoadError, match=r"nothing must be a safetensors file; there is no such file"):
        load_trained(tmp_path / "nothing")
    assert not has_trained_model(tmp_path / "nothing")


def test_a_config_larger_than_the_tensors_raises_before_allocation(tmp_path: Path) -> None:
    path = tmp_path / MODEL_FILE
    _save_and_load("language", tmp_path)
    tensors, config = load_tensors_and_metadata(path)
    sizes = {name: value for name, value in config.items() if isinstance(value, int) and not isinstance(value, bool)}
    assert "vocab_size" in sizes
    save_tensors_and_metadata(path, tensors, {**config, "vocab_size": 2**30})  # over 100 GB of embeddings
    with pytest.raises(LoadError, match=r"'embedding.weight' must have shape \(1073741824, \d+\); got \("):
        load_trained(path)
