"""One thing that is looked at: a recording of one text, the tokens of its queries and keys, and what was found."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.errors import SpecError
from regard.explorer.head import Head, can_hide, without
from regard.explorer.kept import Kept
from regard.explorer.maps import Cells, Pyramid, glimpsed
from regard.explorer.token_text import Part, TokenTexts
from regard.inside.layer import Layer
from regard.inside.places import word_ids
from regard.inside.table import HeadTable
from regard.inside.take import Take
from regard.inside.tape import Tape
from regard.spec.weigh import as_weigh

BYTES = 768 * 2**20  # of maps and answers of all that is shown
MANY, ROWS = 4096**2, 4  # pairs from which on a small map is made of so many rows a cell
HIDDEN = 8  # keys at most: each makes the mask one condition longer

KEPT = Kept(BYTES)
Told = Callable[[str, float | None], None]  # words, and the share that is done where it is known
_numbers = itertools.count()


@dataclass(frozen=True)
class Text:
    """The tokens of a text under a name such as "source"; `parts` are tokens with incomplete characters."""

    name: str
    tokens: list[str]
    parts: dict[int, Part] = field(default_factory=dict)

    @property
    def words(self) -> list[int]:
        """The number of its word for each token; bytes that go on with a character belong to its word."""
        begins = [n for n, token in enumerate(self.tokens) if token or n not in self.parts or n == 0]
        words = dict(zip(begins, word_ids([self.tokens[n] for n in begins]), strict=True))
        for n in range(len(self.tokens)):
            words.setdefault(n, words.get(n - 1, 0))
        return [words[n] for n in range(len(self.tokens))]

    @property
    def labels(self) -> list[str]:
        """A label for each token; see `TokenTexts`."""
        return TokenTexts(self.tokens, self.parts).labels

    def said(self) -> dict[str, Any]:
        """The text as the page needs it."""
        parts = {str(n): [part.label, part.hex] for n, part in self.parts.items()}
        return {"name": self.name, "tokens": self.tokens, "words": self.words, "parts": parts}


@dataclass(frozen=True)
class Place:
    """Which texts a layer's queries and keys are of, and where in its text the first query stands."""

    query_text: int
    key_text: int
    first: int
    crosses: bool


@dataclass(eq=False)
class Shown:
    """A recording of one text, open for questions. What is computed is kept for all who ask, and thread-safe.

    `texts` are one, or source and target; `places` say for each layer which it uses. `text` is what was typed, `ids`
    are the tokens' numbers where a model knows them.
    """

    tape: Tape
    texts: list[Text]
    places: dict[int, Place]
    title: str
    model: str = ""
    text: str | None = None
    ids: list[int] | None = None
    generated: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    batch: int = 0  # which text of the recording it is

    def __post_init__(self) -> None:
        self.number = next(_numbers)  # by which what is kept of it is known

    @property
    def nbytes(self) -> int:
        """The bytes of the recorded queries, keys and values."""
        return sum(x.nbytes for layer in self.layers for x in (layer.take.q, layer.take.k, layer.take.v))

    @property
    def layers(self) -> list[Layer]:
        return self.tape.layers

    def layer(self, number: int) -> Layer:
        return self.tape.find_layer(number)

    def head(self, layer: int, head: int, hidden: Sequence[int] = ()) -> Head:
        """A head of a layer by their numbers; the weight of `hidden` keys goes to the others."""
        found = self.layer(layer)
        if head not in found.heads:
            raise SpecError(f"head must be one of {_listed(found.heads)} of layer {layer}; got {head}.")
        hidden = self.checked(layer, hidden)
        place = found.heads.index(head)
        key = (self.number, "head", layer, head, hidden)
        return KEPT.get(key, lambda: Head.of(found.take, place, hidden), lambda made: made.nbytes)

    def taken(self, layer: int, hidden: Sequence[int] = ()) -> Take:
        """What a layer was asked, all heads, less hidden keys."""
        take, keys = self.layer(layer).take, self.checked(layer, hidden)
        return without(take, keys) if keys else take

    def map(self, layer: int, head: int, hidden: Sequence[int] = ()) -> Pyramid:
        """The map of a head at every scale."""
        own = self.head(layer, head, hidden)
        key = (self.number, "map", layer, head, self.checked(layer, hidden))
        return KEPT.get(key, lambda: Pyramid(own), lambda made: made.nbytes)

    def sampled(self, layer: int) -> int | None:
        """How many rows of each cell `small` looks at; None if all."""
        take = self.layer(layer).take
        return ROWS if take.q.shape[2] * take.k.shape[2] > MANY else None

    def small(self, layer: int, head: int, size: int, hidden: Sequence[int] = ()) -> Cells:
        """All of a head's map in at most `size` cells a side, of a long text from some rows."""
        rows = self.sampled(layer)
        if rows is None:
            return self.map(layer, head, hidden).small(size)
        own = self.head(layer, head, hidden)
        key = (self.number, "small", layer, head, self.checked(layer, hidden), size)
        return KEPT.get(key, lambda: glimpsed(own, size, rows), lambda made: 2 * made.mean.nbytes)

    def table(self, tell: Told = lambda text, share: None) -> HeadTable:
        """Every measure of every head; `tell` hears how far it is."""

        def make() -> HeadTable:
            return self.tape.heads(progress=lambda share: tell("every head is measured", share))

        return KEPT.get((self.number, "table"), make, lambda made: 2**16)

    def forget(self) -> None:
        KEPT.drop(lambda key: isinstance(key, tuple) and key[0] == self.number)

    def checked(self, layer: int, hidden: Sequence[int]) -> tuple[int, ...]:
        """Keys that are to be hidden, in order."""
        n_k = self.layer(layer).take.k.shape[2]
        if len(hidden) > HIDDEN or any(not 0 <= key < n_k for key in hidden):
            raise SpecError(f"at most {HIDDEN} keys from 0 to {n_k - 1} can be hidden; got {list(hidden)[:9]}.")
        return tuple(sorted(set(hidden)))

    def said(self) -> dict[str, Any]:
        """All a page must know before it asks for weights."""
        return {
            "title": self.title,
            "text": self.text,
            "model": self.model,
            "texts": [text.said() for text in self.texts],
            "layers": [self._layer_said(layer) for layer in self.layers],
            "dropped": [*self.tape.dropped, *self.notes],
            "generated": self.generated,
        }

    def _layer_said(self, layer: Layer) -> dict[str, Any]:
        place, take = self.places[layer.number], layer.take
        return {
            "number": layer.number,
            "path": layer.path,
            "heads": layer.heads,
            "queries": take.q.shape[2],
            "keys": take.k.shape[2],
            "query_text": place.query_text,
            "key_text": place.key_text,
            "first": place.first,
            "crosses": place.crosses,
            "weighing": as_weigh(take.options["weigh"]).formula,
            "can_hide": can_hide(take),
        }


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) if len(numbers) <= 16 else f"{numbers[0]} to {numbers[-1]}"
