"""Tokens as text: characters split into several tokens, in many scripts and with several kinds of tokenizers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from regard.explorer.api.generation import continue_text
from regard.explorer.api.registry import dispatch
from regard.explorer.explorer import Explorer
from regard.explorer.session_factory import create_explorer
from regard.explorer.text_models.huggingface import decoder_types
from regard.explorer.text_models.registry import load_text_model
from regard.explorer.text_models.token_text import byte_level_bytes, complete_text, piece_bytes, token_texts_from_bytes
from regard.models import bundled
from tests.explorer.text_models.bundled_tokenizer import bundled_tokenizer

ACCENTS = "The café in München costs 5 €"
SCRIPTS = [ACCENTS, "日本語のテキスト", "🙂👩‍🚀🙂", "Привет, мир", "नमस्ते", "مرحبا", "a\u0301 \N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize("text", SCRIPTS)
def test_tokens_of_any_script_join_to_the_text_without_replacement_characters(text: str) -> None:
    tokenized = load_text_model("language").record_text(text).texts[0]
    assert "".join(tokenized.tokens) == text
    assert len(set(tokenized.labels) & {"�", ""}) == int("�" in text and "�" in tokenized.labels)
    for n, part in tokenized.partial_characters.items():
        assert part.label == tokenized.labels[n]
        assert part.label.endswith(f"‹{part.hex}›")
        assert any(letter in text for letter in part.label[: -len(part.hex) - 2])


def test_parts_of_a_character_are_labeled_with_it_and_belong_to_its_word() -> None:
    tokenized = load_text_model("language").record_text(" café in").texts[0]
    assert tokenized.labels == [" ca", "f", "é‹C3›", "é‹A9›", " in"]
    assert tokenized.tokens == [" ca", "f", "é", "", " in"]
    assert tokenized.word_ids == [0, 0, 0, 0, 1]
    assert tokenized.to_json()["partial_characters"] == {"2": ["é‹C3›", "C3"], "3": ["é‹A9›", "A9"]}


def test_a_token_may_end_one_character_and_begin_the_next() -> None:
    texts = token_texts_from_bytes([b"x\xc3", b"\xa9\xe2\x82", b"\xac!"])
    assert texts.texts == ["xé", "€", "!"]
    assert texts.labels == ["xé‹C3›", "é€‹A9 E2 82›", "€!‹AC›"]
    assert texts.names == ["‹C3›", "‹A9 E2 82›", "‹AC›"]


def test_invalid_bytes_are_labeled_as_bytes() -> None:
    assert token_texts_from_bytes([b"a", b"\xff", b"\xe2\x82"]).labels == ["a", "�‹FF›", "�‹E2 82›"]
    assert complete_text(b"\xff 5 \xe2\x82") == "� 5 "


def test_the_names_of_partial_characters_depend_only_on_their_bytes() -> None:
    """Measures of heads compare tokens by name: é and ü begin with equal tokens and end with different ones."""
    recording = load_text_model("language").record_text("é ü").recording
    assert recording.tokens == ["‹C3›", "‹A9›", " ", "‹C3›", "‹BC›"]


class ScriptedModel:
    """The bundled language model with fixed next tokens."""

    def __init__(self, ids: list[int]) -> None:
        self.model: Any = load_text_model("language")
        self.ids = iter(ids)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def start_decoding(self) -> "ScriptedModel":
        return self

    def next_token_logits(self, ids: list[int]) -> torch.Tensor:
        scores = torch.zeros(4096)
        scores[next(self.ids)] = 9.0
        return scores


def continue_with(session: Any, ids: list[int]) -> Any:
    return continue_text(ScriptedModel(ids), session, len(ids), 0.0, 0, lambda text, fraction: None)  # type: ignore[arg-type]


def test_continuing_a_text_with_accents_keeps_the_text() -> None:
    explorer = create_explorer(ACCENTS, model="language")
    session_id = dispatch(explorer, "generate", {"session": 0, "max_new_tokens": 4}).values["id"]
    assert str(explorer.sessions[session_id].text).startswith(ACCENTS)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_continuation_that_stops_within_a_character_can_be_continued(cut: int) -> None:
    start, more = load_text_model("language").record_text("5"), bundled.language_model()[1].encode(" € für")
    stopped = continue_with(start, more[:cut])
    assert stopped.text == "5 "
    assert stopped.token_ids == [*(start.token_ids or []), *more[:cut]]
    assert continue_with(stopped, more[cut:]).text == "5 € für"


def test_generation_steps_are_labeled_with_the_character_of_a_partial_token() -> None:
    steps = continue_with(
        load_text_model("language").record_text("5"), bundled.language_model()[1].encode(" é")
    ).generation["steps"]
    assert [step["text"] for step in steps] == [" ", "é‹C3›", "é‹A9›"]
    assert steps[1]["top_tokens"][0][0] == "‹C3›"  # the token alone is not a character


transformers = pytest.importorskip("transformers")


def save_model(folder: Path, tokenizer: Any, size: int) -> str:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=size, n_positions=128, n_embd=32, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def byte_fallback() -> Any:
    """Return a tokenizer like Llama's: ASCII letters are pieces, other characters are bytes, a text begins with <s>."""
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import decoders, models, normalizers, processors

    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(33, 127))]
    vocabulary = {piece: n for n, piece in enumerate(pieces)}
    model = tokenizers.Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    model.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    model.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    model.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, bos_token="<s>", unk_token="<unk>")


@pytest.mark.parametrize(
    "make_tokenizer, size",
    [(bundled_tokenizer, 4096), (byte_fallback, 353)],
    ids=["byte_level-4096", "byte_fallback-353"],
)
@pytest.mark.parametrize("text", SCRIPTS)
def test_hugging_face_tokenizers_handle_every_script(make_tokenizer: Any, size: int, text: str, tmp_path: Path) -> None:
    explorer = create_explorer(text, model=save_model(tmp_path, make_tokenizer(), size))
    tokenized = explorer.sessions[0].texts[0]
    assert "".join(tokenized.tokens).removeprefix("<s>").removeprefix(" ") == text
    assert "�" in text or not any("�" in label for label in tokenized.labels)
    continued = explorer.sessions[dispatch(explorer, "generate", {"session": 0, "max_new_tokens": 3}).values["id"]]
    assert str(continued.text).startswith(text)


def test_the_byte_encoding_is_determined_by_the_tokenizer() -> None:
    assert decoder_types(bundled_tokenizer()) == {"ByteLevel"}
    assert "ByteFallback" in decoder_types(byte_fallback())
    assert byte_level_bytes("æĹ¥").decode() == "日"
    assert piece_bytes("<0xE6>") == b"\xe6"
    assert byte_level_bytes("<｜end of text｜>").decode() == "<｜end of text｜>"


def test_the_state_lists_partial_characters() -> None:
    values = dispatch(Explorer(load_text_model("language").record_text("é")), "state").values
    assert values["sessions"][0]["texts"][0]["partial_characters"] == {"0": ["é‹C3›", "C3"], "1": ["é‹A9›", "A9"]}
