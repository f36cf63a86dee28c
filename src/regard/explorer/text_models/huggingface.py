"""Hugging Face text models, by directory or name, from local files where possible.

Code that comes with a model is not run. Weights are read only from safetensors and never unpickled.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from regard.cache import memoize
from regard.errors import ArgumentError, LoadError
from regard.explorer.session import Session
from regard.explorer.text_models.example_texts import EXAMPLE_TEXTS
from regard.explorer.text_models.registry import (
    MAX_RECORDING_SIZE,
    MAX_TEXT_TOKENS,
    IncrementalDecoder,
    TextModel,
    check_length,
    encoder_decoder_session,
    single_text_session,
    title_from_text,
)
from regard.explorer.text_models.token_text import (
    TokenTexts,
    byte_level_bytes,
    complete_text,
    piece_bytes,
    token_texts_from_bytes,
)
from regard.optional_imports import import_optional
from regard.recording.recorder import record
from regard.recording.recording import Recording

CAUSAL_LM_SUFFIXES = ("ForCausalLM", "LMHeadModel")  # suffixes of architecture names
SEQ2SEQ_SUFFIXES = ("ForConditionalGeneration", "MTModel")
MAX_GENERATED_TOKENS = 128  # of a target text
PROBE_TEXT = "Hello, world 1"  # every working tokenizer has tokens for it
SAFETENSORS_HINT = "model.save_pretrained(folder, safe_serialization=True)"


@memoize()
def load_huggingface_model(name: str) -> TextModel:
    """Return a model and its tokenizer, by directory or name."""
    transformers = import_optional("transformers", "a Hugging Face model", "regard[hf]")
    try:
        _check_folder(name)
        config = _from_pretrained(transformers.AutoConfig, name)
        model_class = _saved_class(config, transformers)
        adapter = _adapter_class(model_class.__name__, getattr(config, "is_encoder_decoder", False))
        _check_input(getattr(model_class, "main_input_name", "input_ids"), config)
        _check_weights(name)
        tokenizer = _load_tokenizer(transformers, name)
        model = _from_pretrained(model_class, name, use_safetensors=True).eval()
        _check_input(model.main_input_name, config)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = " ".join(str(error).split())[:400]
        raise LoadError(
            "a model must be language, dates, a folder written by regard train, or a Hugging Face directory or "
            f"name with safetensors and a tokenizer; got {name!r}: {reason}"
        ) from error
    max_tokens = min(getattr(config, "max_position_embeddings", None) or MAX_TEXT_TOKENS, MAX_TEXT_TOKENS)
    return adapter(name, model, tokenizer, max_tokens)


def _saved_class(config: Any, transformers: Any) -> Any:
    """Return the class of the saved weights; another class would have some random weights."""
    for name in config.architectures or ():
        model_class = getattr(transformers, str(name), None)
        if isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel):
            return model_class
    return transformers.AutoModel


def _adapter_class(class_name: str, is_encoder_decoder: bool) -> "type[HuggingFaceModel]":
    """Return the adapter of a model class, by its name and whether it has an encoder and a decoder."""
    if is_encoder_decoder and not class_name.endswith(SEQ2SEQ_SUFFIXES):
        raise ValueError(f"an encoder-decoder model must be saved with its language model head; it is a {class_name}")
    if is_encoder_decoder:
        return HuggingFaceSeq2Seq
    return HuggingFaceCausalLM if class_name.endswith(CAUSAL_LM_SUFFIXES) else HuggingFaceModel


def _check_input(main_input_name: str, config: Any) -> None:
    if main_input_name != "input_ids":
        raise ValueError(
            f"its model type {config.model_type} takes {main_input_name}, not text. Record it with regard.record and "
            "open the recording with regard explore --recording."
        )


def _check_folder(name: str) -> None:
    """Raise an error for a path without a folder, which transformers would report as an invalid name."""
    is_path = name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1
    if is_path and not Path(name).is_dir():
        raise ValueError("there is no such folder.")


def _check_weights(name: str) -> None:
    """Raise an error for a folder whose weights are only pickled, which this library does not read."""
    folder = Path(name)
    pickled = sorted(file.name for file in folder.glob("pytorch_model*.bin")) if folder.is_dir() else []
    if pickled and not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"its weights are only in {pickled[0]}, a pickle, which can run code when it is read. If you trust its "
            f"source, load it with transformers and convert it to safetensors: {SAFETENSORS_HINT}."
        )


def _load_tokenizer(transformers: Any, name: str) -> Any:
    """Return the tokenizer of a model. If its files are missing, transformers may return one without a vocabulary."""
    try:
        tokenizer = _from_pretrained(transformers.AutoTokenizer, name)
        ids = tokenizer(PROBE_TEXT, add_special_tokens=False)["input_ids"]
    except (OSError, ValueError, KeyError, ImportError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"its tokenizer cannot be loaded. {_SAVE_TOKENIZER_HINT} ({reason})") from error
    if set(ids) <= {getattr(tokenizer, "unk_token_id", None)}:
        raise ValueError(f"it has no tokenizer (no tokenizer.json or vocabulary file). {_SAVE_TOKENIZER_HINT}")
    return tokenizer


_SAVE_TOKENIZER_HINT = "Save the tokenizer beside the weights: tokenizer.save_pretrained(folder)."


def _from_pretrained(auto_class: Any, name: str, **options: Any) -> Any:
    """Load from a directory or the local cache; else download."""
    try:
        return auto_class.from_pretrained(name, local_files_only=True, trust_remote_code=False, **options)
    except OSError:
        if Path(name).exists():
            raise
        return auto_class.from_pretrained(name, trust_remote_code=False, **options)


class HuggingFaceModel:
    """A Hugging Face model that takes a text, such as an encoder."""

    example_text = EXAMPLE_TEXTS["language"]["text"]

    def __init__(self, name: str, model: Any, tokenizer: Any, max_tokens: int) -> None:
        self.name, self.model, self.tokenizer, self.max_tokens = name, model, tokenizer, max_tokens
        self.decoder_types = decoder_types(tokenizer)

    def token_texts(self, token_ids: list[int]) -> TokenTexts:
        """Return the texts of tokens, with spaces as spaces."""
        return token_texts_from_bytes(self._token_bytes(token_ids))

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of the tokens together, without an incomplete last character."""
        if self.decoder_types & {"ByteLevel", "ByteFallback"}:
            return complete_text(b"".join(self._token_bytes(token_ids)))
        text: str = self.tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)
        return text

    def _token_bytes(self, token_ids: list[int]) -> list[bytes]:
        added = self.tokenizer.added_tokens_decoder
        convert = byte_level_bytes if "ByteLevel" in self.decoder_types else piece_bytes
        pieces: list[str] = self.tokenizer.convert_ids_to_tokens(token_ids)
        return [
            piece.encode() if token in added else convert(piece) for token, piece in zip(token_ids, pieces, strict=True)
        ]

    def record_text(self, text: str) -> Session:
        return self.record_tokens(self.tokenizer(text)["input_ids"], text)

    def record_tokens(self, token_ids: list[int], text: str) -> Session:
        check_length(self.name, len(token_ids), self.max_tokens)
        with record_attention(self.name, self.model) as recording:
            self.model.base_model(torch.tensor([token_ids]))  # logits of a long text would take gigabytes
        return single_text_session(recording, self.token_texts(token_ids), token_ids, text, self.name)


def decoder_types(tokenizer: Any) -> set[str]:
    """Return the types of a tokenizer's decoders, which determine how its vocabulary spells bytes."""
    if hasattr(tokenizer, "byte_decoder"):
        return {"ByteLevel"}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.decoder is None:
        return set()
    state = json.loads(backend.decoder.__getstate__())
    return {str(decoder["type"]) for decoder in state.get("decoders", [state])}


@contextmanager
def record_attention(name: str, model: Any) -> Iterator[Recording]:
    """Record the attention of a model; raise `LoadError` for a model that cannot be recorded."""
    has_run = False
    try:
        with torch.no_grad(), record(model, budget=MAX_RECORDING_SIZE) as recording:
            yield recording
            has_run = True
    except ArgumentError as error:
        if not has_run or recording.layers or recording.dropped_calls:
            raise
        raise LoadError(
            f"{name} must compute attention with torch.nn.functional.scaled_dot_product_attention or an attention "
            f"function of transformers to be recorded; {type(model).__name__} called neither. Either it computes "
            "softmax in its own code (as DeBERTa does), or it has no attention (as Mamba does)."
        ) from error


class HuggingFaceCausalLM(HuggingFaceModel):
    """A causal language model, which can continue a text."""

    def start_decoding(self) -> IncrementalDecoder:
        return _HuggingFaceDecoder(self.model)


class HuggingFaceSeq2Seq(HuggingFaceModel):
    """An encoder-decoder model, which generates a target text greedily."""

    def record_tokens(self, token_ids: list[int], text: str) -> Session:
        check_length(self.name, len(token_ids), self.max_tokens)
        source, eos = torch.tensor([token_ids]), self.model.generation_config.eos_token_id
        eos_token_ids = eos if isinstance(eos, list) else [eos]
        max_new_tokens = min(MAX_GENERATED_TOKENS, self.max_tokens - 1)  # the target begins with a start token
        with torch.no_grad():
            output = self.model.generate(source, max_new_tokens=max_new_tokens, do_sample=False, num_beams=1)
            generated = output[0].tolist()
            has_eos = len(generated) > 1 and generated[-1] in eos_token_ids
            target = generated[:-1] if has_eos else generated  # the decoder is not run on the last eos token
            with record_attention(self.name, self.model) as recording:
                self.model(input_ids=source, decoder_input_ids=torch.tensor([target]))
        translation = self.tokenizer.decode(generated, skip_special_tokens=True)
        title = f"{title_from_text(text)} → {title_from_text(translation)}"
        return encoder_decoder_session(
            recording, self.token_texts(token_ids), self.token_texts(target), text, title, self.name
        )


class _HuggingFaceDecoder:
    def __init__(self, model: Any) -> None:
        self._model, self._cache = model, None

    def next_token_logits(self, token_ids: list[int]) -> torch.Tensor:
        output = self._model(torch.tensor([token_ids]), past_key_values=self._cache, use_cache=True)
        self._cache = output.past_key_values
        logits: torch.Tensor = output.logits[0, -1].float()
        return logits
