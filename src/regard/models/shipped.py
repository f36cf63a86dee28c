"""The two trained models that come with the package: a language model and a translator of dates.

How they were trained, on what, and how well they do: `docs/training.md`.
"""

from functools import cache
from pathlib import Path

from regard.models.language import LanguageModel
from regard.models.store import fit, read, write
from regard.models.tasks import dates, language
from regard.models.text import Tokens
from regard.models.train import Training
from regard.models.translation import Translator

WEIGHTS = Path(__file__).parent / "weights"


@cache
def language_model() -> tuple[LanguageModel, Tokens]:
    """A language model of four layers and eight heads, and its vocabulary of 4096 pieces of text.

    It takes texts of 16,384 tokens and more. Some of its heads look for what followed the last time: induction.

    >>> import torch
    >>> model, tokens = language_model()
    >>> model(torch.tensor([tokens.encode("Call me")])).shape
    torch.Size([1, 3, 4096])
    """
    path = WEIGHTS / "language.safetensors"
    tensors, words = read(path)
    model = language.made(words)
    fit(model, tensors, path)
    return model.eval(), Tokens.read(WEIGHTS / "language.json")


@cache
def translator() -> Translator:
    """A translator of dates in words into numbers; words are those of `regard.models.tasks.dates`.

    >>> import torch
    >>> from regard.models.tasks.dates import decode, encode
    >>> from regard.nn import generate
    >>> source, _ = encode(["the twenty first of march nineteen eighty four".split()], "source")
    >>> decode(generate(translator().reading(source), torch.tensor([[1]]), most=11)[0].tolist())
    '1984-03-21'
    """
    path = WEIGHTS / "dates.safetensors"
    tensors, words = read(path)
    model = dates.made(words)
    fit(model, tensors, path)
    return model.eval()


def ship(training: Training, path: Path, *, half: bool = False) -> None:
    """The weights alone, as they come with the package; `half` keeps them in 16 bits."""
    state = training.model.state_dict()
    tensors = {name: t.half() if half and t.is_floating_point() else t for name, t in state.items()}
    write(path, tensors, {"task": training.task.name, **training.task.words()})
