"""A session: a recording of one text, the tokens of its queries and keys, and cached results."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from regard.cache import BoundedCache
from regard.errors import ArgumentError
from regard.explorer.head_weights import HeadWeights, can_hide_keys, hide_keys
from regard.explorer.map_pyramid import MapCells, MapPyramid, sampled_thumbnail
from regard.explorer.text_models.token_text import PartialCharacter, TokenTexts
from regard.normalizer import as_normalizer
from regard.recording.metrics.head_table import HeadTable
from regard.recording.metrics.token_groups import word_ids
from regard.recording.recorded_call import RecordedCall
from regard.recording.recorded_layer import RecordedLayer
from regard.recording.recording import Recording

MAX_SESSION_CACHE_BYTES = 768 * 2**20  # maps and results of all sessions
MAX_EXACT_THUMBNAIL_PAIRS = 4096**2  # thumbnails of heads with more pairs are sampled
SAMPLED_ROWS_PER_CELL = 4
MAX_HIDDEN_KEYS = 8  # each adds a condition to the mask
MAX_CACHED_RESULTS = 2**14

T = TypeVar("T")
ProgressReporter = Callable[[str, float | None], None]  # takes a description, and the completed fraction if known
_cache_ids = itertools.count()


def _result_bytes(result: Any) -> int:
    """The bytes of a head's weights, a map or a table; a result larger than the cache is cached alone."""
    num_bytes = 2 * result.mean.nbytes if isinstance(result, MapCells) else getattr(result, "nbytes", 2**16)
    return min(int(num_bytes), MAX_SESSION_CACHE_BYTES)


_cache: BoundedCache[Any] = BoundedCache(
    "explorer results", max_entries=MAX_CACHED_RESULTS, max_bytes=MAX_SESSION_CACHE_BYTES, sizeof=_result_bytes
)


def _cached(key: tuple[Any, ...], compute: Callable[[], T]) -> T:
    result: T = _cache.get_or_create(key, compute)
    return result


@dataclass(frozen=True)
class TokenizedText:
    """A text: its name such as "source", its tokens, and the tokens with incomplete characters by position."""

    name: str
    tokens: list[str]
    partial_characters: dict[int, PartialCharacter] = field(default_factory=dict)

    @property
    def word_ids(self) -> list[int]:
        """The index of the word of each token; tokens with later bytes of a character belong to its word."""
        starts = [n for n, token in enumerate(self.tokens) if token or n not in self.partial_characters or n == 0]
        words = dict(zip(starts, word_ids([self.tokens[n] for n in starts]), strict=True))
        for n in range(len(self.tokens)):
            words.setdefault(n, words.get(n - 1, 0))
        return [words[n] for n in range(len(self.tokens))]

    @property
    def labels(self) -> list[str]:
        """A label for each token; see `TokenTexts`."""
        return TokenTexts(self.tokens, self.partial_characters).labels

    def to_json(self) -> dict[str, Any]:
        """Return the text as JSON values."""
        partial = {str(n): [part.label, part.hex] for n, part in self.partial_characters.items()}
        return {"name": self.name, "tokens": self.tokens, "word_ids": self.word_ids, "partial_characters": partial}


@dataclass(frozen=True)
class LayerTexts:
    """The texts of a layer's queries and keys, by index, and the position of the first query in its text."""

    query_text: int
    key_text: int
    query_offset: int
    is_cross_attention: bool


@dataclass(eq=False)
class Session:
    """A recording of one text with cached results. Thread-safe.

    `texts` has one text, or source and target. `layer_texts` maps each layer to its texts. `text` is the input text,
    and `token_ids` are the ids of its tokens if the model has a tokenizer. `batch_index` is the index of the text in
    the batch of the recording.
    """

    recording: Recording
    texts: list[TokenizedText]
    layer_texts: dict[int, LayerTexts]
    title: str
    model: str = ""
    text: str | None = None
    token_ids: list[int] | None = None
    generation: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    batch_index: int = 0

    def __post_init__(self) -> None:
        self.cache_id = next(_cache_ids)  # part of the cache keys

    @property
    def nbytes(self) -> int:
        """The bytes of the recorded queries, keys and values."""
        return sum(
            x.nbytes for layer in self.layers for x in (layer.merged_call.q, layer.merged_call.k, layer.merged_call.v)
        )

    @property
    def layers(self) -> list[RecordedLayer]:
        return self.recording.layers

    def layer(self, index: int) -> RecordedLayer:
        return self.recording.layer_named(index)

    def head(self, layer: int, head: int, hidden_keys: Sequence[int] = ()) -> HeadWeights:
        """Return the weights of a head; `hidden_keys` get weight 0, and each row is renormalized."""
        recorded_layer = self.layer(layer)
        if head not in recorded_layer.head_indices:
            raise ArgumentError(
                f"head must be one of {_format_int_list(recorded_layer.head_indices)} of layer {layer}; got {head}."
            )
        hidden_keys = self.check_hidden_keys(layer, hidden_keys)
        head_index = recorded_layer.head_indices.index(head)
        key = (self.cache_id, "head", layer, head, hidden_keys)
        return _cached(key, lambda: HeadWeights.from_call(recorded_layer.merged_call, head_index, hidden_keys))

    def layer_call(self, layer: int, hidden_keys: Sequence[int] = ()) -> RecordedCall:
        """Return the recorded call of a layer, with all heads and without the hidden keys."""
        call, keys = self.layer(layer).merged_call, self.check_hidden_keys(layer, hidden_keys)
        return hide_keys(call, keys) if keys else call

    def map_pyramid(self, layer: int, head: int, hidden_keys: Sequence[int] = ()) -> MapPyramid:
        """Return the map of a head at every scale."""
        head_weights = self.head(layer, head, hidden_keys)
        key = (self.cache_id, "map", layer, head, self.check_hidden_keys(layer, hidden_keys))
        return _cached(key, lambda: MapPyramid(head_weights))

    def num_sampled_rows(self, layer: int) -> int | None:
        """Return the number of rows per cell that `thumbnail` samples; None if it uses all rows."""
        call = self.layer(layer).merged_call
        return SAMPLED_ROWS_PER_CELL if call.q.shape[2] * call.k.shape[2] > MAX_EXACT_THUMBNAIL_PAIRS else None

    def thumbnail(self, layer: int, head: int, max_size: int, hidden_keys: Sequence[int] = ()) -> MapCells:
        """Return the whole map of a head with at most `max_size` cells per side, sampled for a long text."""
        rows = self.num_sampled_rows(layer)
        if rows is None:
            return self.map_pyramid(layer, head, hidden_keys).thumbnail(max_size)
        head_weights = self.head(layer, head, hidden_keys)
        key = (self.cache_id, "thumbnail", layer, head, self.check_hidden_keys(layer, hidden_keys), max_size)
        return _cached(key, lambda: sampled_thumbnail(head_weights, max_size, rows))

    def head_table(self, progress: ProgressReporter = lambda text, fraction: None) -> HeadTable:
        """Return every measure of every head; `progress` is called with the completed fraction."""

        def compute() -> HeadTable:
            return self.recording.head_table(progress=lambda fraction: progress("measuring every head", fraction))

        return _cached((self.cache_id, "table"), compute)

    def clear_cache(self) -> None:
        _cache.discard_where(lambda key: isinstance(key, tuple) and key[0] == self.cache_id)

    def check_hidden_keys(self, layer: int, hidden_keys: Sequence[int]) -> tuple[int, ...]:
        """Return the hidden keys, sorted; raise `ArgumentError` for too many keys or keys out of range."""
        n_k = self.layer(layer).merged_call.k.shape[2]
        if len(hidden_keys) > MAX_HIDDEN_KEYS or any(not 0 <= key < n_k for key in hidden_keys):
            raise ArgumentError(
                f"at most {MAX_HIDDEN_KEYS} keys from 0 to {n_k - 1} can be hidden; got {list(hidden_keys)[:9]}."
            )
        return tuple(sorted(set(hidden_keys)))

    def to_json(self) -> dict[str, Any]:
        """Return the session as JSON values, without weights."""
        return {
            "title": self.title,
            "text": self.text,
            "model": self.model,
            "texts": [text.to_json() for text in self.texts],
            "layers": [self._layer_to_json(layer) for layer in self.layers],
            "warnings": [*self.recording.dropped_calls, *self.notes],
            "generation": self.generation,
        }

    def _layer_to_json(self, layer: RecordedLayer) -> dict[str, Any]:
        texts, call = self.layer_texts[layer.index], layer.merged_call
        return {
            "index": layer.index,
            "path": layer.path,
            "head_indices": layer.head_indices,
            "num_queries": call.q.shape[2],
            "num_keys": call.k.shape[2],
            "query_text": texts.query_text,
            "key_text": texts.key_text,
            "query_offset": texts.query_offset,
            "is_cross_attention": texts.is_cross_attention,
            "normalizer": as_normalizer(call.options["normalizer"]).formula,
            "can_hide_keys": can_hide_keys(call),
        }


def _format_int_list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) if len(numbers) <= 16 else f"{numbers[0]} to {numbers[-1]}"
