"""Text models by name: bundled models, trained models, and Hugging Face models. Each records a text as a session."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from regard.cache import memoize
from regard.errors import ArgumentError, LoadError
from regard.explorer.session import LayerTexts, Session, TokenizedText
from regard.explorer.text_models.example_texts import EXAMPLE_TEXTS
from regard.explorer.text_models.token_text import TokenTexts, byte_level_bytes, complete_text, token_texts_from_bytes
from regard.models.bundled import date_translator, language_model
from regard.models.language import LanguageModel
from regard.models.tasks import dates
from regard.models.tokenizer import Tokenizer
from regard.models.trained_model import has_trained_model, load_trained
from regard.models.translation import Translator
from regard.nn.generation import generate
from regard.nn.kv_cache import KeyValueCache
from regard.recording.named_tokens import is_cross_attention
from regard.recording.recorder import record
from regard.recording.recording import Recording

MAX_TEXT_TOKENS = 32_768  # for models without a smaller limit
MAX_TEXT_CHARACTERS = 1_000_000
MAX_RECORDING_SIZE = "4GB"
ENCODER_PATH, DECODER_PATH = "encoder", "decoder"  # components of layer paths in every encoder-decoder model
MODEL_TITLES = {
    "language": "language model: four layers, eight heads",
    "dates": "date translator: an encoder and a decoder",
}


class TextModel(Protocol):
    """A model that runs on a text and records its attention. `example_text` is the default text."""

    name: str
    max_tokens: int
    example_text: str

    def record_text(self, text: str) -> Session:
        """Run the model on a text and return the session."""


class GenerativeTextModel(TextModel, Protocol):
    """A model that can continue a text."""

    def start_decoding(self) -> "IncrementalDecoder":
        """Return a new incremental decoder."""

    def token_texts(self, token_ids: list[int]) -> TokenTexts:
        """Return the texts of tokens."""

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of the tokens together, without an incomplete last character."""

    def record_tokens(self, token_ids: list[int], text: str) -> Session:
        """Run the model on tokens and return the session."""


class IncrementalDecoder(Protocol):
    """Computes next-token logits step by step, with a cache of earlier tokens."""

    def next_token_logits(self, token_ids: list[int]) -> torch.Tensor:
        """Append tokens to those of earlier calls and return the logits (vocab_size,) of the next token."""


def load_text_model(name: str) -> TextModel:
    """Return a model by name: "language", "dates", the folder of a training run, or a Hugging Face directory or name.

    >>> load_text_model("language").max_tokens
    32768
    """
    if name in BUILTIN_MODELS:
        return BUILTIN_MODELS[name]()
    if has_trained_model(name):
        return _load_trained_model(name)
    from regard.explorer.text_models.huggingface import load_huggingface_model

    return load_huggingface_model(name)


@memoize()
def _load_trained_model(folder: str) -> TextModel:
    """Return a model written by `regard train`, if it takes a text."""
    trained = load_trained(folder)
    if isinstance(trained.model, LanguageModel):
        if trained.tokenizer is None:
            raise LoadError(f"{folder} must contain model.tokenizer.json, the tokenizer of the model; it does not.")
        return LanguageTextModel(folder, trained.model, trained.tokenizer)
    if isinstance(trained.model, Translator):
        return DateTranslationModel(folder, trained.model)
    raise LoadError(
        f"a model must take a text, as models of the tasks language and dates do; got {folder}, a model of "
        f"{trained.task}."
    )


def check_length(name: str, num_tokens: int, max_tokens: int) -> None:
    """Raise `ArgumentError` for a text that is empty or too long for a model."""
    if num_tokens == 0:
        raise ArgumentError("a text must have at least one token; got none. Enter a text.")
    if num_tokens > max_tokens:
        raise ArgumentError(
            f"a text for {name} must have at most {max_tokens:,} tokens; got {num_tokens:,}. Use a part of it."
        )


def title_from_text(text: str) -> str:
    """Return the beginning of a text as a title of at most 60 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


class LanguageTextModel:
    """A language model of this package, bundled or trained."""

    max_tokens, example_text = MAX_TEXT_TOKENS, EXAMPLE_TEXTS["language"]["text"]

    def __init__(self, name: str, model: LanguageModel, tokenizer: Tokenizer) -> None:
        self.name, self.model, self.tokenizer = name, model, tokenizer

    def token_texts(self, token_ids: list[int]) -> TokenTexts:
        return token_texts_from_bytes(self._token_bytes(token_ids))

    def decode(self, token_ids: list[int]) -> str:
        return complete_text(b"".join(self._token_bytes(token_ids)))

    def _token_bytes(self, token_ids: list[int]) -> list[bytes]:
        return [byte_level_bytes(piece) for piece in self.tokenizer.convert_ids_to_tokens(token_ids)]

    def record_text(self, text: str) -> Session:
        return self.record_tokens(self.tokenizer.encode(text), text)

    def record_tokens(self, token_ids: list[int], text: str) -> Session:
        check_length(self.name, len(token_ids), self.max_tokens)
        with torch.no_grad(), record(self.model, budget=MAX_RECORDING_SIZE) as recording:
            self.model.hidden_states(torch.tensor([token_ids]))
        return single_text_session(recording, self.token_texts(token_ids), token_ids, text, self.name)

    def start_decoding(self) -> IncrementalDecoder:
        return _LanguageDecoder(self.model)


class _LanguageDecoder:
    def __init__(self, model: Any) -> None:
        self._model, self._cache = model, KeyValueCache()

    def next_token_logits(self, token_ids: list[int]) -> torch.Tensor:
        logits: torch.Tensor = self._model.next_token_logits(torch.tensor([token_ids]), self._cache)[0]
        return logits


class DateTranslationModel:
    """A translator of this package, bundled or trained, from dates in words to dates in digits."""

    max_tokens, example_text = 64, EXAMPLE_TEXTS["dates"]["text"]

    def __init__(self, name: str, model: Translator) -> None:
        self.name, self.model = name, model

    def record_text(self, text: str) -> Session:
        words = text.lower().replace("-", " ").replace(",", " , ").split()
        check_length(self.name, len(words), self.max_tokens)
        unknown = [word for word in words if word not in dates.SOURCE_VOCABULARY]
        if unknown:
            raise ArgumentError(
                "a date must consist of words of the vocabulary, such as 'the twenty first of march nineteen eighty "
                f"four'; got {unknown[0]!r}."
            )
        source, _ = dates.encode([words], "source")
        begin, end = dates.TARGET_VOCABULARY.index(dates.BEGIN), dates.TARGET_VOCABULARY.index(dates.END)
        with torch.no_grad():
            generated = generate(
                self.model.encode_source(source), torch.tensor([[begin]]), max_new_tokens=12, eos_token_id=end
            )[0].tolist()
            target = [begin, *(token for token in generated if token != end)]
            with record(self.model) as recording:
                self.model(source, torch.tensor([target]))
        title = f"{title_from_text(text)} → {dates.decode(generated)}"
        target_texts = TokenTexts([dates.TARGET_VOCABULARY[token] for token in target], {})
        return encoder_decoder_session(recording, TokenTexts(words, {}), target_texts, text, title, self.name)


def single_text_session(
    recording: Recording, tokens: TokenTexts, token_ids: list[int], text: str | None, name: str
) -> Session:
    """Return the session of a model with one text."""
    recording.tokens = tokens.names
    layer_texts = {
        layer.index: LayerTexts(0, 0, len(token_ids) - layer.merged_call.q.shape[2], False)
        for layer in recording.layers
    }
    return Session(
        recording,
        [TokenizedText("text", tokens.texts, tokens.partial_characters)],
        layer_texts,
        title_from_text(text or ""),
        name,
        text,
        token_ids,
    )


def encoder_decoder_session(
    recording: Recording, source: TokenTexts, target: TokenTexts, text: str, title: str, name: str
) -> Session:
    """Return the session of a model with a source and a target text."""
    recording.tokens = {ENCODER_PATH: source.names, DECODER_PATH: target.names}
    layer_texts = {layer.index: _encoder_decoder_layer_texts(layer.path) for layer in recording.layers}
    texts = [
        TokenizedText("source", source.texts, source.partial_characters),
        TokenizedText("target", target.texts, target.partial_characters),
    ]
    return Session(recording, texts, layer_texts, title, name, text)


def _encoder_decoder_layer_texts(path: str) -> LayerTexts:
    if is_cross_attention(path):
        return LayerTexts(1, 0, 0, True)
    text = 0 if ENCODER_PATH in path.split(".") else 1
    return LayerTexts(text, text, 0, False)


BUILTIN_MODELS: dict[str, Callable[[], TextModel]] = {
    "language": memoize()(lambda: LanguageTextModel("language", *language_model())),
    "dates": memoize()(lambda: DateTranslationModel("dates", date_translator())),
}
