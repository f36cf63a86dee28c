"""Models of Hugging Face as what is shown: a directory, or a name, from files that are here already where possible.

Code that comes with a model is not run, and weights are read from safetensors alone, never unpickled.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from regard.errors import LoadError, MissingError
from regard.explorer.examples import EXAMPLES
from regard.explorer.shown import Shown
from regard.explorer.sources import BUDGET, TOKENS, Begun, Model, check_length, of_one_text, of_two_texts, titled
from regard.inside.record import record

WRITES = ("ForCausalLM", "LMHeadModel")  # ends of the names of architectures that go on with a text
TRANSLATES = ("ForConditionalGeneration", "MTModel")  # and of those that write another
WRITTEN = 128  # tokens, at most, of a text that a model writes for another


@cache
def loaded(name: str) -> Model:
    """A model and its tokenizer by directory or name."""
    transformers = _transformers()
    try:
        config = _read(transformers.AutoConfig, name)
        tokenizer = _read(transformers.AutoTokenizer, name)
        kind = _saved_as(config, transformers)
        shows = _shown_as(kind.__name__, getattr(config, "is_encoder_decoder", False))
        model = _read(kind, name, use_safetensors=True).eval()
        if model.main_input_name != "input_ids":
            raise ValueError(f"it reads {model.main_input_name}, and not a text")
    except (OSError, ValueError, KeyError, ImportError) as error:
        said = " ".join(str(error).split())[:200]
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

    def texts(self, ids: list[int]) -> list[str]:
        """Tokens as they read: spaces as spaces."""
        raw: list[str] = self.tokenizer.convert_ids_to_tokens(ids)
        if any(token.startswith("Ġ") for token in raw):  # bytes are written as letters there
            return [self.tokenizer.decode([token]) for token in ids]
        return [token.replace("▁", " ") for token in raw]

    def shown(self, text: str) -> Shown:
        return self.read(self.tokenizer(text)["input_ids"], text)

    def read(self, ids: list[int], text: str) -> Shown:
        check_length(self.name, len(ids), self.limit)
        with torch.no_grad(), record(self.model, budget=BUDGET) as tape:
            self.model.base_model(torch.tensor([ids]))  # logits of a long text would take gigabytes
        return of_one_text(tape, self.texts(ids), ids, text, self.name)


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
            with record(self.model, budget=BUDGET) as tape:
                self.model(input_ids=source, decoder_input_ids=torch.tensor([target]))
        title = f"{titled(text)} → {titled(self.tokenizer.decode(written, skip_special_tokens=True))}"
        return of_two_texts(tape, self.texts(ids), self.texts(target), text, title, self.name)


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
