"""Models that `regard train` wrote are read again, those of every task; and shown, where they read a text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.errors import LoadError
from regard.explorer.opened import opened
from regard.explorer.sources import of_name
from regard.models.store import read, write
from regard.models.tasks import names, task
from regard.models.tasks.dates import DatesTask
from regard.models.tasks.language import LanguageTask, made
from regard.models.tasks.speech import SpeechTask
from regard.models.text import Tokens
from regard.models.train import Recipe, Task, Training
from regard.models.trained import FILE, Trained, is_trained, trained, write_trained

DESIGN = {"width": 32, "heads": 4, "norm": "rms", "bias": False}
SMALL = {"vocabulary": 300, "layers": 2, "design": DESIGN, "windows": [4, None], "base": 100.0}


class SmallLanguage(LanguageTask):
    """The same task with a smaller model, and a vocabulary of one sentence."""

    def __init__(self) -> None:
        super().__init__(Path())

    tokens = Tokens.learned([" The captain saw the white whale"] * 20, 300)

    def words(self) -> dict[str, Any]:
        return {**SMALL, "vocabulary": self.tokens.size}

    def model(self) -> nn.Module:
        return made(self.words())


class SilentSpeech(SpeechTask):
    """The same task without the voices, which a model is not made from."""

    def __init__(self) -> None:
        """Looks for nothing."""


UNLIKE: dict[str, Callable[[], Task]] = {"language": SmallLanguage, "speech": SilentSpeech}


def _written(name: str, folder: Path) -> tuple[Training, Trained]:
    chosen = UNLIKE[name]() if name in UNLIKE else task(name)
    training = Training(chosen, Recipe(steps=1, rate=1.0, seed=5))
    write_trained(training, folder / FILE)
    return training, trained(folder)


@pytest.mark.parametrize("name", names())
def test_a_model_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    training, found = _written(name, tmp_path)
    assert found.task == name
    assert type(found.model) is type(training.model)
    assert not found.model.training
    expected: dict[str, Tensor] = training.model.state_dict()
    assert found.model.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in found.model.state_dict().items())
    assert (found.tokens is not None) == (name == "language")
    assert is_trained(tmp_path)


def test_half_as_many_bits_are_half_as_many_bytes(tmp_path: Path) -> None:
    training = Training(DatesTask(), Recipe(steps=1, rate=1.0))
    write_trained(training, tmp_path / "whole.safetensors")
    write_trained(training, tmp_path / "half.safetensors", half=True)
    whole, half = (tmp_path / f"{name}.safetensors" for name in ("whole", "half"))
    assert 0.45 < half.stat().st_size / whole.stat().st_size < 0.55
    for one, two in zip(trained(whole).model.parameters(), trained(half).model.parameters(), strict=True):
        assert one.dtype == two.dtype == torch.float32
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-6)  # a half has eleven bits


def test_the_explorer_shows_a_language_model_that_was_trained_here(tmp_path: Path) -> None:
    _, found = _written("language", tmp_path)
    shown = opened(" the whale saw the whale", model=str(tmp_path)).shown[0]
    assert found.tokens is not None
    ids = found.tokens.encode(" the whale saw the whale")
    assert shown.ids == ids
    assert "".join(shown.texts[0].tokens) == " the whale saw the whale"
    expected = found.model.decoder.attend(found.model.embedding(torch.tensor([ids])))  # type: ignore[union-attr, operator]  # a language model
    torch.testing.assert_close(shown.tape[1].weights[0, 2], expected[1].own.weights[0, 2])


def test_the_explorer_shows_a_translator_that_was_trained_here_with_a_text_it_knows(tmp_path: Path) -> None:
    _written("dates", tmp_path)
    assert opened(model=str(tmp_path)).shown[0].texts[0].tokens[:2] == ["on", "friday"]


def test_a_language_model_without_its_vocabulary_is_refused(tmp_path: Path) -> None:
    _written("language", tmp_path)
    (tmp_path / "model.json").unlink()
    with pytest.raises(LoadError, match=r"must hold model\.json, the vocabulary that the model was trained with"):
        of_name(str(tmp_path))


def test_models_that_read_no_text_are_not_shown(tmp_path: Path) -> None:
    _written("karate", tmp_path)
    with pytest.raises(LoadError, match=r"a model must read a text, as those of language and dates do; got .* karate"):
        of_name(str(tmp_path))


def test_weights_that_say_nothing_of_a_task_are_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE
    write(path, {"a": torch.zeros(1)})
    assert not is_trained(tmp_path)
    with pytest.raises(LoadError, match=r"must say for which task it was trained.*regard\.models\.load"):
        trained(tmp_path)
    write(path, {"a": torch.zeros(1)}, {"task": "wonder"})
    with pytest.raises(LoadError, match=r"weights must be of one of language, .*; got 'wonder'"):
        trained(tmp_path)
    write(path, {"a": torch.zeros(1)}, {"task": "dates", "layers": 2})
    with pytest.raises(LoadError, match=r"weights of 'dates' must say how their model is made; got {'layers': 2}"):
        trained(tmp_path)
    _written("language", tmp_path)
    path.with_suffix(".json").write_text("{}")
    with pytest.raises(LoadError, match=r"a vocabulary must be a file that Tokens\.write wrote; got .*model\.json"):
        trained(tmp_path)
    with pytest.raises(LoadError, match=r"nothing must be a safetensors file; there is no such file"):
        trained(tmp_path / "nothing")
    assert not is_trained(tmp_path / "nothing")


def test_a_file_that_asks_for_a_larger_model_than_it_holds_is_refused_before_it_is_made(tmp_path: Path) -> None:
    path = tmp_path / FILE
    _written("language", tmp_path)
    tensors, words = read(path)
    sizes = {name: value for name, value in words.items() if isinstance(value, int) and not isinstance(value, bool)}
    assert "vocabulary" in sizes
    write(path, tensors, {**words, "vocabulary": 2**30})  # a table of over a hundred gigabytes
    with pytest.raises(LoadError, match=r"'embedding.weight' must have shape \(1073741824, \d+\); got \("):
        trained(path)
