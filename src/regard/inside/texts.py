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
        """What somebody gave a tape whose layers have these paths."""
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
        return cls({name: _batch(each) for name, each in tokens.items()})

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


def _batch(tokens: Sequence[Any]) -> list[list[str]]:
    return [list(tokens)] if not tokens or isinstance(tokens[0], str) else [list(text) for text in tokens]
