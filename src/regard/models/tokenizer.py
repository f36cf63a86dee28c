"""A byte-level BPE tokenizer; it can encode every string."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import LoadError, MissingDependencyError
from regard.files.atomic import write_text

if TYPE_CHECKING:
    import tokenizers

END_OF_TEXT = "<|end|>"


class Tokenizer:
    """A byte-level BPE tokenizer: `encode` maps a text to token ids, and `decode` maps token ids to a text.

    `Tokenizer.train` and `Tokenizer.from_file` return one. They need tokenizers: `pip install
    '.[models]'` in the repository.

    >>> from regard.models import language_model
    >>> model, tokenizer = language_model()
    >>> tokenizer.decode(tokenizer.encode("Call me Ishmael."))
    'Call me Ishmael.'
    """

    def __init__(self, tokenizer: "tokenizers.Tokenizer") -> None:
        self._tokenizer: Any = tokenizer

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "Tokenizer":
        """Train a tokenizer of `vocab_size` tokens on `texts`."""
        tokenizers = _import_tokenizers()
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    @classmethod
    def from_file(cls, path: str | Path) -> "Tokenizer":
        """Load a tokenizer from a JSON file that `save` wrote."""
        tokenizers = _import_tokenizers()
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # tokenizers raises nothing narrower
            raise LoadError(f"a tokenizer must be a file that Tokenizer.save wrote; got {path}: {error}.") from None

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file."""
        write_text(path, self._tokenizer.to_str(pretty=False))

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    @property
    def eos_token_id(self) -> int:
        """The token that separates texts."""
        return int(self._tokenizer.token_to_id(END_OF_TEXT))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of token ids."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def convert_ids_to_tokens(self, token_ids: Iterable[int]) -> list[str]:
        """Return each token as in the vocabulary: one character per byte, "Ġ" for a space."""
        return [str(self._tokenizer.id_to_token(int(token_id))) for token_id in token_ids]

    def token_texts(self, token_ids: Iterable[int]) -> list[str]:
        """Return the text of each token; an incomplete UTF-8 sequence becomes �."""
        return [self.decode([token_id]) for token_id in token_ids]


def _import_tokenizers() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError:
        raise MissingDependencyError(
            "the tokenizer needs tokenizers, which is not installed. Use pip install 'regard[models]'."
        ) from None
    return tokenizers
