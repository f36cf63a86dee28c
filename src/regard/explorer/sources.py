"""Models by name: the shipped ones, those that were trained here, and those of Hugging Face. Each turns a text into a
recording."""

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch

from regard.errors import LoadError, SpecError
from regard.explorer.examples import EXAMPLES
from regard.explorer.shown import Place, Shown, Text
from regard.explorer.token_text import TokenTexts, byte_level_bytes, complete_text, spell
from regard.inside.record import record
from regard.inside.tape import Tape
from regard.inside.texts import crosses
from regard.models.language import LanguageModel
from regard.models.shipped import language_model, translator
from regard.models.tasks import dates
from regard.models.text import Tokens
from regard.models.trained import is_trained, trained
from regard.models.translation import Translator
from regard.nn.cache import KeyValueCache
from regard.nn.generate import generate

TOKENS = 32_768  # the longest text of a model without a limit of its own
CHARACTERS = 1_000_000
BUDGET = "4GB"  # of a recording
ENCODER, DECODER = "encoder", "decoder"  # parts of the paths of layers in every model that has both
TITLES = {
    "language": "the language model: four layers, eight heads",
    "dates": "the translator of dates: an encoder and a decoder",
}


class Model(Protocol):
    """What can be asked to read a text."""

    name: str
    limit: int  # tokens
    example: str  # a text to begin with

    def shown(self, text: str) -> Shown:
        """The recording of this text."""


class Writing(Model, Protocol):
    """A model that can go on with a text."""

    def begun(self) -> "Begun":
        """What writes on."""

    def spelled(self, ids: list[int]) -> TokenTexts:
        """The tokens as text."""

    def decode(self, ids: list[int]) -> str:
        """The text of the tokens together, without a last character whose bytes are not all there."""

    def read(self, ids: list[int], text: str) -> Shown:
        """The recording of these tokens."""


class Begun(Protocol):
    """A text that is being written."""

    def scores(self, ids: list[int]) -> torch.Tensor:
        """Scores (vocabulary,) of the token after these, which follow all that were given before."""


def of_name(name: str) -> Model:
    """A model by its name: "language", "dates", the folder of a run, or a Hugging Face directory or name.

    >>> of_name("language").limit
    32768
    """
    if name in SHIPPED:
        return SHIPPED[name]()
    if is_trained(name):
        return _of_run(name)
    from regard.explorer.huggingface import loaded

    return loaded(name)


@cache
def _of_run(folder: str) -> Model:
    """A model that `regard train` made: one of the kinds that read a text."""
    found = trained(folder)
    if isinstance(found.model, LanguageModel):
        if found.tokens is None:
            raise LoadError(
                f"{folder} must hold model.json, the vocabulary that the model was trained with; it does not."
            )
        return Language(folder, found.model, found.tokens)
    if isinstance(found.model, Translator):
        return Dates(folder, found.model)
    raise LoadError(f"a model must read a text, as those of language and dates do; got {folder}, one of {found.task}.")


def check_length(name: str, count: int, limit: int) -> None:
    """Refuses a text that a model cannot read."""
    if count == 0:
        raise SpecError("a text must have at least one token; got none. Type something.")
    if count > limit:
        raise SpecError(f"a text for {name} must have at most {limit:,} tokens; got {count:,}. Take a part of it.")


def titled(text: str) -> str:
    """The beginning of a text, as a title."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


class Language:
    """A language model of this package: the shipped one, or one that was trained here."""

    limit, example = TOKENS, EXAMPLES["language"]["text"]

    def __init__(self, name: str, model: LanguageModel, tokens: Tokens) -> None:
        self.name, self.model, self.tokens = name, model, tokens

    def spelled(self, ids: list[int]) -> TokenTexts:
        return spell(self._bytes(ids))

    def decode(self, ids: list[int]) -> str:
        return complete_text(b"".join(self._bytes(ids)))

    def _bytes(self, ids: list[int]) -> list[bytes]:
        return [byte_level_bytes(piece) for piece in self.tokens.pieces(ids)]

    def shown(self, text: str) -> Shown:
        return self.read(self.tokens.encode(text), text)

    def read(self, ids: list[int], text: str) -> Shown:
        check_length(self.name, len(ids), self.limit)
        with torch.no_grad(), record(self.model, budget=BUDGET) as tape:
            self.model.states(torch.tensor([ids]))
        return of_one_text(tape, self.spelled(ids), ids, text, self.name)

    def begun(self) -> Begun:
        return _Language(self.model)


class _Language:
    def __init__(self, model: Any) -> None:
        self._model, self._cache = model, KeyValueCache()

    def scores(self, ids: list[int]) -> torch.Tensor:
        found: torch.Tensor = self._model.following(torch.tensor([ids]), self._cache)[0]
        return found


class Dates:
    """A translator of this package: it reads a date in words and writes it in numbers."""

    limit, example = 64, EXAMPLES["dates"]["text"]

    def __init__(self, name: str, model: Translator) -> None:
        self.name, self.model = name, model

    def shown(self, text: str) -> Shown:
        words = text.lower().replace("-", " ").replace(",", " , ").split()
        check_length(self.name, len(words), self.limit)
        unknown = [word for word in words if word not in dates.SOURCE]
        if unknown:
            raise SpecError(
                f"a date must be in words the translator knows, such as 'the twenty first of march nineteen eighty "
                f"four'; got {unknown[0]!r}."
            )
        source, _ = dates.encode([words], "source")
        begin, end = dates.TARGET.index(dates.BEGIN), dates.TARGET.index(dates.END)
        with torch.no_grad():
            written = generate(self.model.reading(source), torch.tensor([[begin]]), most=12, stop=end)[0].tolist()
            target = [begin, *(token for token in written if token != end)]
            with record(self.model) as tape:
                self.model(source, torch.tensor([target]))
        title = f"{titled(text)} → {dates.decode(written)}"
        written_words = TokenTexts([dates.TARGET[token] for token in target], {})
        return of_two_texts(tape, TokenTexts(words, {}), written_words, text, title, self.name)


def of_one_text(tape: Tape, tokens: TokenTexts, ids: list[int], text: str | None, name: str) -> Shown:
    """The session entry of a model that reads one text."""
    tape.tokens = tokens.names
    places = {layer.number: Place(0, 0, len(ids) - layer.take.q.shape[2], False) for layer in tape.layers}
    return Shown(tape, [Text("text", tokens.texts, tokens.parts)], places, titled(text or ""), name, text, ids)


def of_two_texts(tape: Tape, source: TokenTexts, target: TokenTexts, text: str, title: str, name: str) -> Shown:
    """The session entry of a model that reads one text and writes another."""
    tape.tokens = {ENCODER: source.names, DECODER: target.names}
    places = {layer.number: _between(layer.path) for layer in tape.layers}
    texts = [Text(what, side.texts, side.parts) for what, side in (("source", source), ("target", target))]
    return Shown(tape, texts, places, title, name, text)


def _between(path: str) -> Place:
    if crosses(path):
        return Place(1, 0, 0, True)
    side = 0 if ENCODER in path.split(".") else 1
    return Place(side, side, 0, False)


SHIPPED: dict[str, Callable[[], Model]] = {
    "language": cache(lambda: Language("language", *language_model())),
    "dates": cache(lambda: Dates("dates", translator())),
}
