"""Tokens as text: characters that are split into several tokens, in every script and with every kind of tokenizer."""

from pathlib import Path
from typing import Any

import pytest
import torch

from regard.explorer.explorer import Explorer
from regard.explorer.generation import written
from regard.explorer.huggingface import decoder_types
from regard.explorer.opened import opened
from regard.explorer.questions import ask
from regard.explorer.sources import of_name
from regard.explorer.token_text import byte_level_bytes, complete_text, piece_bytes, spell
from regard.models import shipped

ACCENTS = "The café in München costs 5 €"
SCRIPTS = [ACCENTS, "日本語のテキスト", "🙂👩‍🚀🙂", "Привет, мир", "नमस्ते", "مرحبا", "a\u0301 \N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize("text", SCRIPTS)
def test_tokens_of_any_script_join_to_the_text_and_no_label_is_a_replacement(text: str) -> None:
    shown = of_name("language").shown(text).texts[0]
    assert "".join(shown.tokens) == text
    assert len(set(shown.labels) & {"�", ""}) == int("�" in text and "�" in shown.labels)
    for n, part in shown.parts.items():
        assert part.label == shown.labels[n]
        assert part.label.endswith(f"‹{part.hex}›")
        assert any(letter in text for letter in part.label[: -len(part.hex) - 2])


def test_parts_of_a_character_show_it_with_their_bytes_and_belong_to_its_word() -> None:
    shown = of_name("language").shown(" café in").texts[0]
    assert shown.labels == [" ca", "f", "é‹C3›", "é‹A9›", " in"]
    assert shown.tokens == [" ca", "f", "é", "", " in"]
    assert shown.words == [0, 0, 0, 0, 1]
    assert shown.said()["parts"] == {"2": ["é‹C3›", "C3"], "3": ["é‹A9›", "A9"]}


def test_a_token_may_end_one_character_and_begin_the_next() -> None:
    spelled = spell([b"x\xc3", b"\xa9\xe2\x82", b"\xac!"])
    assert spelled.texts == ["xé", "€", "!"]
    assert spelled.labels == ["xé‹C3›", "é€‹A9 E2 82›", "€!‹AC›"]
    assert spelled.names == ["‹C3›", "‹A9 E2 82›", "‹AC›"]


def test_bytes_that_spell_no_character_are_shown_as_bytes() -> None:
    assert spell([b"a", b"\xff", b"\xe2\x82"]).labels == ["a", "�‹FF›", "�‹E2 82›"]
    assert complete_text(b"\xff 5 \xe2\x82") == "� 5 "


def test_the_names_of_parts_depend_on_their_bytes_alone() -> None:
    """Kinds of heads compare tokens by name: the first bytes of é and ü are one token, their last ones are not."""
    tape = of_name("language").shown("é ü").tape
    assert tape.tokens == ["‹C3›", "‹A9›", " ", "‹C3›", "‹BC›"]


class Dictated:
    """The shipped language model, whose next tokens are dictated."""

    def __init__(self, ids: list[int]) -> None:
        self.inner: Any = of_name("language")
        self.ids = iter(ids)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def begun(self) -> "Dictated":
        return self

    def scores(self, ids: list[int]) -> torch.Tensor:
        scores = torch.zeros(4096)
        scores[next(self.ids)] = 9.0
        return scores


def dictated(shown: Any, ids: list[int]) -> Any:
    return written(Dictated(ids), shown, len(ids), 0.0, 0, lambda text, share: None)  # type: ignore[arg-type]


def test_a_text_with_accents_is_intact_after_writing_on() -> None:
    explorer = opened(ACCENTS, model="language")
    number = ask(explorer, "generate", {"shown": 0, "count": 4}).values["id"]
    assert str(explorer.shown[number].text).startswith(ACCENTS)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_writing_that_stops_within_a_character_keeps_the_text_and_goes_on_with_it(cut: int) -> None:
    start, more = of_name("language").shown("5"), shipped.language_model()[1].encode(" € für")
    stopped = dictated(start, more[:cut])
    assert stopped.text == "5 "
    assert stopped.ids == [*(start.ids or []), *more[:cut]]
    assert dictated(stopped, more[cut:]).text == "5 € für"


def test_steps_name_the_character_that_their_token_is_a_part_of() -> None:
    steps = dictated(of_name("language").shown("5"), shipped.language_model()[1].encode(" é")).generated["steps"]
    assert [step["text"] for step in steps] == [" ", "é‹C3›", "é‹A9›"]
    assert steps[1]["others"][0][0] == "‹C3›"  # alone it is no character


transformers = pytest.importorskip("transformers")


def saved(folder: Path, tokenizer: Any, size: int) -> str:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=size, n_positions=128, n_embd=32, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def byte_level() -> Any:
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(shipped.WEIGHTS / "language.json"))


def byte_fallback() -> Any:
    """As Llama's: letters and words are pieces, any other character is written as bytes; a text begins with <s>."""
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import decoders, models, normalizers, processors

    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(33, 127))]
    vocabulary = {piece: n for n, piece in enumerate(pieces)}
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", unk_token="<unk>")


@pytest.mark.parametrize("make, size", [(byte_level, 4096), (byte_fallback, 353)])
@pytest.mark.parametrize("text", SCRIPTS)
def test_models_of_hugging_face_show_every_script(make: Any, size: int, text: str, tmp_path: Path) -> None:
    explorer = opened(text, model=saved(tmp_path, make(), size))
    shown = explorer.shown[0].texts[0]
    assert "".join(shown.tokens).removeprefix("<s>").removeprefix(" ") == text
    assert "�" in text or not any("�" in label for label in shown.labels)
    continued = explorer.shown[ask(explorer, "generate", {"shown": 0, "count": 3}).values["id"]]
    assert str(continued.text).startswith(text)


def test_how_bytes_are_spelled_is_read_from_the_tokenizer_and_not_from_the_text() -> None:
    assert decoder_types(byte_level()) == {"ByteLevel"}
    assert "ByteFallback" in decoder_types(byte_fallback())
    assert byte_level_bytes("æĹ¥").decode() == "日"
    assert piece_bytes("<0xE6>") == b"\xe6"
    assert byte_level_bytes("<｜end of text｜>").decode() == "<｜end of text｜>"


def test_the_state_lists_parts_for_the_page() -> None:
    values = ask(Explorer(of_name("language").shown("é")), "state").values
    assert values["shown"][0]["texts"][0]["parts"] == {"0": ["é‹C3›", "C3"], "1": ["é‹A9›", "A9"]}
