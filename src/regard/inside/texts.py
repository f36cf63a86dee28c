"""Which texts the queries and keys of a layer are of.

The tokens of a tape are those of the one text that a model read, or of each text of a batch. Where it read one text and
wrote another they have names, {"encoder": [...], "decoder": [...]}: a layer is of the text whose name is a part of its
path, and one that crosses over looks from there at the other text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import SpecError

CROSSING = ("cross", "multihead_attn", "encoder_attn", "EncDecAttention")  # in paths of modules that cross over
ONLY = ""  # the name of a text that needs none


def crosses(path: str) -> bool:
    """Whether a layer looks at another text than its own, which only its name tells where both are as long."""
    return any(name in path for name in CROSSING)


@dataclass(frozen=True)
class Texts:
    """The tokens of every text of a batch, by the name of what was read or written.

    >>> both = Texts.of({"encoder": ["eins"], "decoder": ["one"]}, ["encoder.0", "decoder.0.self", "decoder.0.cross"])
    >>> both.of_queries("decoder.0.cross"), both.of_keys("decoder.0.cross")
    ('decoder', 'encoder')
    """

    named: dict[str, list[list[str]]]

    @classmethod
    def of(cls, tokens: Any, paths: Sequence[str]) -> "Texts":
        """The texts of a tape whose layers have these paths. Raises `SpecError` for anything but tokens."""
        check_tokens(tokens)
        if tokens is None:
            return cls({})
        if not isinstance(tokens, Mapping):
            return cls({ONLY: _batch(tokens)})
        for name in tokens:
            if not any(_is_part(name, path) for path in paths):
                raise SpecError(
                    f"tokens must be named by a part of the paths of layers, as in {{'encoder': [...], 'decoder': "
                    f"[...]}}; got {name!r}, and the paths are {', '.join(paths)}."
                )
        return cls({name: _batch(each) for name, each in tokens.items() if each is not None})

    def of_queries(self, path: str) -> str | None:
        """The name of the text that a layer looks from; None where nobody said."""
        fitting = [name for name in self.named if name == ONLY or _is_part(name, path)]
        return max(fitting, key=len) if fitting else None

    def of_keys(self, path: str) -> str | None:
        """The name of the text that a layer looks at; None where nobody said."""
        own = self.of_queries(path)
        if own is None or not crosses(path):
            return own
        others = [name for name in self.named if name != own]
        return others[0] if len(others) == 1 else None


def _is_part(name: str, path: str) -> bool:
    """Whether a path has these modules, one after another."""
    return f".{name}." in f".{path}."


def check_tokens(tokens: Any) -> None:
    """Raises `SpecError` unless these are tokens: of one text, of each text of a batch, or several of these by name."""
    parts = list(tokens.values()) if isinstance(tokens, Mapping) else [tokens]
    names_fit = not isinstance(tokens, Mapping) or all(isinstance(name, str) for name in tokens)
    if not names_fit or not all(part is None or _is_text(part) or _is_batch(part) for part in parts):
        raise SpecError(
            "tokens must be a list of strings, a list of such lists (one for each text of a batch), a dict of either "
            f"by name, or None; got {repr(tokens)[:80]}."
        )


def _is_text(tokens: Any) -> bool:
    return isinstance(tokens, (list, tuple)) and all(isinstance(token, str) for token in tokens)


def _is_batch(tokens: Any) -> bool:
    return isinstance(tokens, (list, tuple)) and all(_is_text(text) for text in tokens)


def _batch(tokens: Sequence[Any]) -> list[list[str]]:
    return [list(tokens)] if _is_text(tokens) else [list(text) for text in tokens]
