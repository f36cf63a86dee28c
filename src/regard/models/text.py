"""Text into tokens and back: byte pairs, learned from the text itself. Every string has tokens; nothing is unknown."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard.errors import LoadError, MissingError
from regard.files.atomic import write_text

END = "<|end|>"  # between two texts


class Tokens:
    """A vocabulary of pieces of text.

    `texts` are pieces as they read in the text, one for each token.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @classmethod
    def learned(cls, texts: Iterable[str], size: int) -> "Tokens":
        """The `size` pieces that occur most, found by joining the most frequent neighbours again and again."""
        tokenizers = _tokenizers()
        inner = tokenizers.Tokenizer(tokenizers.models.BPE())
        inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=[END],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(texts, trainer)
        return cls(inner)

    @classmethod
    def read(cls, path: str | Path) -> "Tokens":
        tokenizers = _tokenizers()
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # tokenizers raises nothing narrower
            raise LoadError(f"a vocabulary must be a file that Tokens.write wrote; got {path}: {error}.") from None

    def write(self, path: str | Path) -> None:
        """Writes the vocabulary into a file of JSON."""
        write_text(path, self._inner.to_str(pretty=False))

    @property
    def size(self) -> int:
        return int(self._inner.get_vocab_size())

    @property
    def end(self) -> int:
        """The token between two texts."""
        return int(self._inner.token_to_id(END))

    def encode(self, text: str) -> list[int]:
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Iterable[int]) -> str:
        return str(self._inner.decode(list(tokens), skip_special_tokens=False))

    def pieces(self, tokens: Iterable[int]) -> list[str]:
        """Each token as the vocabulary spells it: one letter for each byte, "Ġ" for a space."""
        return [str(self._inner.id_to_token(int(token))) for token in tokens]

    def texts(self, tokens: Iterable[int]) -> list[str]:
        """Each token as it reads; one that is a part of a letter reads as �."""
        return [self.decode([token]) for token in tokens]


def _tokenizers() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError:
        raise MissingError(
            "text is cut into tokens by the package tokenizers, which is not installed. Use pip install regard[models]."
        ) from None
    return tokenizers
