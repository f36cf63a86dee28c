"""The tokens of a recording, and which tokens are the queries and the keys of a layer.

The tokens are those of one text, or of each text of a batch. For an encoder-decoder model they have names, as in
{"encoder": [...], "decoder": [...]}. The queries of a layer are the tokens whose name is a part of the layer's path.
Its keys are the same tokens, except for cross-attention, whose keys are the other tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import ArgumentError

CROSS_ATTENTION_MARKS = ("cross", "multihead_attn", "encoder_attn", "EncDecAttention")  # in paths of modules
UNNAMED = ""  # the name of tokens that have none


def is_cross_attention(path: str) -> bool:
    """Return whether a layer is cross-attention, judged by its path."""
    return any(mark in path for mark in CROSS_ATTENTION_MARKS)


@dataclass(frozen=True)
class NamedTokens:
    """The tokens of every text of a batch, by name.

    >>> paths = ["encoder.0", "decoder.0.self", "decoder.0.cross"]
    >>> both = NamedTokens.from_tokens({"encoder": ["eins"], "decoder": ["one"]}, paths)
    >>> both.query_name("decoder.0.cross"), both.key_name("decoder.0.cross")
    ('decoder', 'encoder')
    """

    tokens_by_name: dict[str, list[list[str]]]

    @classmethod
    def from_tokens(cls, tokens: Any, layer_paths: Sequence[str]) -> "NamedTokens":
        """Return the tokens of a recording whose layers have these paths.

        Raises `ArgumentError` unless `tokens` are tokens and every name is a part of a path.
        """
        check_tokens(tokens)
        if tokens is None:
            return cls({})
        if not isinstance(tokens, Mapping):
            return cls({UNNAMED: _to_batch(tokens)})
        for name in tokens:
            if not any(_path_contains(name, path) for path in layer_paths):
                raise ArgumentError(
                    f"the names of tokens must be parts of layer paths, as in {{'encoder': [...], 'decoder': [...]}}; "
                    f"got {name!r}, and the paths are {', '.join(layer_paths)}."
                )
        return cls({name: _to_batch(text) for name, text in tokens.items() if text is not None})

    def query_name(self, path: str) -> str | None:
        """Return the name of the tokens that are the queries of a layer; None if they are unknown."""
        matches = [name for name in self.tokens_by_name if name == UNNAMED or _path_contains(name, path)]
        return max(matches, key=len) if matches else None

    def key_name(self, path: str) -> str | None:
        """Return the name of the tokens that are the keys of a layer; None if they are unknown."""
        own = self.query_name(path)
        if own is None or not is_cross_attention(path):
            return own
        others = [name for name in self.tokens_by_name if name != own]
        return others[0] if len(others) == 1 else None


def _path_contains(name: str, path: str) -> bool:
    """Return whether the modules of `name` are consecutive modules of `path`."""
    return f".{name}." in f".{path}."


def check_tokens(tokens: Any) -> None:
    """Raise `ArgumentError` unless these are tokens: of one text, of each text of a batch, or a dict of these."""
    parts = list(tokens.values()) if isinstance(tokens, Mapping) else [tokens]
    has_valid_names = not isinstance(tokens, Mapping) or all(isinstance(name, str) for name in tokens)
    if not has_valid_names or not all(part is None or _is_token_list(part) or _is_batch(part) for part in parts):
        raise ArgumentError(
            "tokens must be a list of strings, a list of such lists (one for each text of a batch), a dict of either "
            f"by name, or None; got {repr(tokens)[:80]}."
        )


def _is_token_list(tokens: Any) -> bool:
    return isinstance(tokens, (list, tuple)) and all(isinstance(token, str) for token in tokens)


def _is_batch(tokens: Any) -> bool:
    return isinstance(tokens, (list, tuple)) and all(_is_token_list(text) for text in tokens)


def _to_batch(tokens: Sequence[Any]) -> list[list[str]]:
    return [list(tokens)] if _is_token_list(tokens) else [list(text) for text in tokens]
