"""Models of Hugging Face as what is shown: a directory, or a name, from files that are here already where possible.

Code that comes with a model is not run, and weights are read from safetensors alone, never unpickled.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from regard.errors import LoadError, MissingError, SpecError
from regard.explorer.examples import EXAMPLES
from regard.explorer.shown import Shown
from regard.explorer.sources import BUDGET, TOKENS, Begun, Model, check_length, of_one_text, of_two_texts, titled
from regard.explorer.token_text import TokenTexts, byte_level_bytes, complete_text, piece_bytes, spell
from regard.inside.record import record
from regard.inside.tape import Tape

WRITES = ("ForCausalLM", "LMHeadModel")  # ends of the names of architectures that go on with a text
TRANSLATES = ("ForConditionalGeneration", "MTModel")  # and of those that write another
WRITTEN = 128  # tokens, at most, of a text that a model writes for another
PROBE = "Hello, world 1"  # every tokenizer has tokens for it
TO_SAFETENSORS = "model.save_pretrained(folder, safe_serialization=True)"


@cache
def loaded(name: str) -> Model:
    """A model and its tokenizer by directory or name."""
    transformers = _transformers()
    try:
        config = _read(transformers.AutoConfig, name)
        kind = _saved_as(config, transformers)
        shows = _shown_as(kind.__name__, getattr(config, "is_encoder_decoder", False))
        _check_input(getattr(kind, "main_input_name", "input_ids"), config)
        _check_weights(name)
        tokenizer = _tokenizer(transformers, name)
        model = _read(kind, name, use_safetensors=True).eval()
        _check_input(model.main_input_name, config)
    except (OSError, ValueError, KeyError, ImportError) as error:
        said = " ".join(str(error).split())[:400]
        raise LoadError(
            "a model must be language, dates, the folder of a finished regard train, or a Hugging Face directory or "
            f"name with safetensors and a tokenizer; got {name!r}: {said}"
        ) from error
    limit = min(getattr(config, "max_position_embeddings", None) or TOKENS, TOKENS)
    return shows(name, model, tokenizer, limit)


def _saved_as(config: Any, transformers: Any) -> Any:
    """The class whose weights were saved: those of another one would be random in part."""
    for name in config.architectures or ():
        kind = getattr(transformers, str(name), None)
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
            return kind
    return transformers.AutoModel


def _shown_as(kind: str, has_both: bool) -> "type[HuggingFace]":
    """What a class can do, by its name and whether it has an encoder and a decoder."""
    if has_both and not kind.endswith(TRANSLATES):
        raise ValueError(f"it has an encoder and a decoder, and was not saved to write, but as {kind}")
    if has_both:
        return HuggingFaceTranslator
    return HuggingFaceWriter if kind.endswith(WRITES) else HuggingFace


def _check_input(name: str, config: Any) -> None:
    if name != "input_ids":
        raise ValueError(
            f"its model type {config.model_type} reads {name}, and not a text. Record it with regard.record and open "
            "the recording with regard look --tape."
        )


def _check_weights(name: str) -> None:
    """Raises an error for a folder whose weights are pickled, which this library does not read."""
    folder = Path(name)
    pickled = sorted(file.name for file in folder.glob("pytorch_model*.bin")) if folder.is_dir() else []
    if pickled and not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"its weights are only in {pickled[0]}, a pickle, which can run code when it is read. If you trust its "
            f"source, load it with transformers and convert it to safetensors once: {TO_SAFETENSORS}."
        )


def _tokenizer(transformers: Any, name: str) -> Any:
    """The tokenizer of a model. Where its files are missing, transformers may return one that knows no piece."""
    try:
        tokenizer = _read(transformers.AutoTokenizer, name)
        ids = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    except (OSError, ValueError, KeyError, ImportError, AttributeError, TypeError) as error:
        said = " ".join(str(error).split())[:120]
        raise ValueError(f"its tokenizer cannot be loaded. {_SAVE_TOKENIZER} ({said})") from error
    if set(ids) <= {getattr(tokenizer, "unk_token_id", None)}:
        raise ValueError(f"it has no tokenizer (no tokenizer.json or vocabulary file). {_SAVE_TOKENIZER}")
    return tokenizer


_SAVE_TOKENIZER = "Save the tokenizer beside the weights: tokenizer.save_pretrained(folder)."


def _read(kind: Any, name: str, **options: Any) -> Any:
    """From a directory or what was fetched before; else from where models are published."""
    try:
        return kind.from_pretrained(name, local_files_only=True, trust_remote_code=False, **options)
    except OSError:
        if Path(name).exists():
            raise
        return kind.from_pretrained(name, trust_remote_code=False, **options)


class HuggingFace:
    """A model that reads a text."""

    example = EXAMPLES["language"]["text"]

    def __init__(self, name: str, model: Any, tokenizer: Any, limit: int) -> None:
        self.name, self.model, self.tokenizer, self.limit = name, model, tokenizer, limit
        self.decoders = decoder_types(tokenizer)

    def spelled(self, ids: list[int]) -> TokenTexts:
        """The tokens as text, with spaces as spaces."""
        return spell(self._bytes(ids))

    def decode(self, ids: list[int]) -> str:
        """The text of the tokens together, without a last character whose bytes are not all there."""
        if self.decoders & {"ByteLevel", "ByteFallback"}:
            return complete_text(b"".join(self._bytes(ids)))
        text: str = self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return text

    def _bytes(self, ids: list[int]) -> list[bytes]:
        added = self.tokenizer.added_tokens_decoder
        convert = byte_level_bytes if "ByteLevel" in self.decoders else piece_bytes
        pieces: list[str] = self.tokenizer.convert_ids_to_tokens(ids)
        return [piece.encode() if token in added else convert(piece) for token, piece in zip(ids, pieces, strict=True)]

    def shown(self, text: str) -> Shown:
        return self.read(self.tokenizer(text)["input_ids"], text)

    def read(self, ids: list[int], text: str) -> Shown:
        check_length(self.name, len(ids), self.limit)
        with recorded(self.name, self.model) as tape:
            self.model.base_model(torch.tensor([ids]))  # logits of a long text would take gigabytes
        return of_one_text(tape, self.spelled(ids), ids, text, self.name)


def decoder_types(tokenizer: Any) -> set[str]:
    """The types of a tokenizer's decoders: they say how bytes are spelled in its vocabulary, whatever the text is."""
    if hasattr(tokenizer, "byte_decoder"):
        return {"ByteLevel"}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.decoder is None:
        return set()
    state = json.loads(backend.decoder.__getstate__())
    return {str(each["type"]) for each in state.get("decoders", [state])}


@contextmanager
def recorded(name: str, model: Any) -> Iterator[Tape]:
    """Records a model's attention; a model that calls none is refused with the reason."""
    is_run = False
    try:
        with torch.no_grad(), record(model, budget=BUDGET) as tape:
            yield tape
            is_run = True
    except SpecError as error:
        if not is_run or tape.layers or tape.dropped:
            raise
        raise LoadError(
            f"{name} must compute attention with torch.nn.functional.scaled_dot_product_attention or an attention "
            f"function of transformers to be recorded; {type(model).__name__} called neither. It computes softmax in "
            "code of its own (as DeBERTa does), or it has no attention (as Mamba does)."
        ) from error


class HuggingFaceWriter(HuggingFace):
    """One that goes on with it."""

    def begun(self) -> Begun:
        return _Begun(self.model)


class HuggingFaceTranslator(HuggingFace):
    """One that reads a text and writes another, the likeliest token at each step."""

    def read(self, ids: list[int], text: str) -> Shown:
        check_length(self.name, len(ids), self.limit)
        source, end = torch.tensor([ids]), self.model.generation_config.eos_token_id
        ends = end if isinstance(end, list) else [end]
        most = min(WRITTEN, self.limit - 1)  # the decoder's text begins with a token of its own
        with torch.no_grad():
            written = self.model.generate(source, max_new_tokens=most, do_sample=False, num_beams=1)[0].tolist()
            target = written[:-1] if len(written) > 1 and written[-1] in ends else written  # nothing follows an end
            with recorded(self.name, self.model) as tape:
                self.model(input_ids=source, decoder_input_ids=torch.tensor([target]))
        title = f"{titled(text)} → {titled(self.tokenizer.decode(written, skip_special_tokens=True))}"
        return of_two_texts(tape, self.spelled(ids), self.spelled(target), text, title, self.name)


class _Begun:
    def __init__(self, model: Any) -> None:
        self._model, self._cache = model, None

    def scores(self, ids: list[int]) -> torch.Tensor:
        answer = self._model(torch.tensor([ids]), past_key_values=self._cache, use_cache=True)
        self._cache = answer.past_key_values
        found: torch.Tensor = answer.logits[0, -1].float()
        return found


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingError(
            "a model of Hugging Face is read by the package transformers, which is not installed. "
            "Use pip install regard[hf]."
        ) from None
    return transformers
