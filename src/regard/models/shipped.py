"""The two trained models that come with the package: a language model and a translator of dates.

How they were trained, on what, and how well they do: `docs/training.md`.
"""

from functools import cache
from pathlib import Path

from regard.models.language import LanguageModel
from regard.models.text import Tokens
from regard.models.trained import trained
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
    found = trained(WEIGHTS / "language.safetensors")
    assert isinstance(found.model, LanguageModel) and found.tokens is not None
    return found.model, found.tokens


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
    model = trained(WEIGHTS / "dates.safetensors").model
    assert isinstance(model, Translator)
    return model
