"""The two trained models that are part of the package: a language model and a translator of dates.

`docs/training.md` describes their data, training and accuracy.
"""

from pathlib import Path

from regard.cache import memoize
from regard.models.language import LanguageModel
from regard.models.tokenizer import Tokenizer
from regard.models.trained_model import load_trained
from regard.models.translation import Translator

WEIGHTS_DIR = Path(__file__).parent / "weights"


@memoize()
def language_model() -> tuple[LanguageModel, Tokenizer]:
    """Return a language model with four layers of eight heads, and its tokenizer of 4096 tokens.

    The model has no maximum length; it is tested up to 16,384 tokens. Some of its heads are induction heads. The result
    is cached: every call returns the same objects. Needs tokenizers: `pip install '.[models]'` in the repository.

    >>> import torch
    >>> model, tokenizer = language_model()
    >>> model(torch.tensor([tokenizer.encode("Call me")])).shape
    torch.Size([1, 3, 4096])
    """
    trained = load_trained(WEIGHTS_DIR / "language.safetensors")
    assert isinstance(trained.model, LanguageModel) and trained.tokenizer is not None
    return trained.model, trained.tokenizer


@memoize()
def date_translator() -> Translator:
    """Return a translator of dates from English words to ISO format; `regard.models.tasks.dates` has the vocabulary.

    The result is cached: every call returns the same object.

    >>> import torch
    >>> from regard.models.tasks.dates import decode, encode
    >>> from regard.nn import generate
    >>> source, _ = encode(["the twenty first of march nineteen eighty four".split()], "source")
    >>> decode(generate(date_translator().encode_source(source), torch.tensor([[1]]), max_new_tokens=11)[0].tolist())
    '1984-03-21'
    """
    model = load_trained(WEIGHTS_DIR / "dates.safetensors").model
    assert isinstance(model, Translator)
    return model
