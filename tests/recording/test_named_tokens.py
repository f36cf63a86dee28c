"""Recordings of encoder-decoder models: the tokens of each layer in tables, words and files."""

import math
from pathlib import Path

import pytest
import torch

import regard
from regard.errors import ArgumentError
from regard.explorer.session_from_recording import session_from_recording
from regard.models.bundled import date_translator
from regard.models.tasks.dates import BEGIN, encode
from regard.recording.named_tokens import NamedTokens
from regard.recording.recording import Recording
from tests.explorer.recordings import make_recording

SOURCE = "friday , the twenty first of march nineteen eighty six".split()
TARGET = [BEGIN, *"1986-03-2"]  # as long as the source, so that only names distinguish them
NAMED = {"encoder": SOURCE, "decoder": TARGET}


@pytest.fixture
def recording() -> Recording:
    source, target = encode([SOURCE], "source")[0], encode([TARGET], "target")[0]
    with torch.no_grad(), regard.record(date_translator()) as recording:
        date_translator()(source, target)
    return recording


def test_layers_have_the_tokens_that_their_paths_name(recording: Recording) -> None:
    texts = NamedTokens.from_tokens(NAMED, recording.layer_paths)
    assert len(SOURCE) == len(TARGET)
    names = {path.split(".", 1)[1]: (texts.query_name(path), texts.key_name(path)) for path in recording.layer_paths}
    assert names == {
        "encoder.layers.0.self_attn": ("encoder", "encoder"),
        "encoder.layers.1.self_attn": ("encoder", "encoder"),
        "decoder.layers.0.self_attn": ("decoder", "decoder"),
        "decoder.layers.0.multihead_attn": ("decoder", "encoder"),
        "decoder.layers.1.self_attn": ("decoder", "decoder"),
        "decoder.layers.1.multihead_attn": ("decoder", "encoder"),
    }


def test_token_metrics_use_the_tokens_of_the_layer(recording: Recording) -> None:
    recording.tokens = NAMED
    table = recording.head_table()
    weights = {layer.path: layer.result.weights[...] for layer in recording.layers}
    for row in table:
        if "multihead_attn" in row["path"]:
            assert math.isnan(row["separator"]) and math.isnan(row["induction_uniform"])
            continue
        text = SOURCE if "encoder" in row["path"].split(".") else TARGET
        head_weights = weights[row["path"]][0, row["head"]]
        is_separator = torch.tensor([token == "," for token in text])
        has_separator = torch.tensor(
            [is_separator[: i + 1].any() if text is TARGET else True for i in range(len(text))]
        )
        mass = head_weights[:, is_separator].sum(-1)
        expected = mass[has_separator].mean() if is_separator.any() else torch.tensor(0.0)
        assert row["separator"] == pytest.approx(float(expected), abs=1e-6)


def test_uniform_baselines_use_the_tokens_of_the_layer() -> None:
    both = Recording()
    for number, path in enumerate(("encoder.0", "decoder.0")):
        both.get_or_add_layer(path, number, None).add(make_recording(4, 4).layers[0].merged_call)
    both.tokens = {"encoder": ["a", ".", ".", "."], "decoder": ["b", "c", "d", "."]}
    assert {row["path"]: row["separator_uniform"] for row in both.head_table()} == {
        "encoder.0": 0.75,
        "decoder.0": 0.25,
    }


def test_missing_metrics_are_sorted_last_and_printed_as_a_dash(recording: Recording) -> None:
    recording.tokens = NAMED
    table = recording.head_table()
    for descending in (True, False):
        column = table.sort("duplicate", descending=descending).column("duplicate")
        values = [x for x in column if not math.isnan(x)]
        assert len(values) == 16 and all(math.isnan(x) for x in column[16:])
        assert values == sorted(values, reverse=descending)
    lines = repr(table).splitlines()
    assert [" - " in line for line in lines[1:]] == ["multihead" in line for line in lines[1:]]
    assert all("multihead" not in head.path for head in recording.find_heads("separator", min_score=0.0, table=table))


def test_word_weights_of_cross_attention(recording: Recording) -> None:
    recording.tokens = {"encoder": [f" {word}" for word in SOURCE[:-1]] + ["six"], "decoder": TARGET}
    word_weights = recording.word_weights("transformer.decoder.layers.1.multihead_attn")
    weights = recording[5].weights[...]
    assert word_weights.shape == (1, 4, 10, 9)  # the source's last two tokens are one word
    torch.testing.assert_close(word_weights[..., :8], weights[..., :8])
    torch.testing.assert_close(word_weights[..., 8], weights[..., 8:].sum(-1))
    recording.tokens = SOURCE
    with pytest.raises(
        ArgumentError, match=r'tokens of both texts: recording\.tokens = \{"encoder": \[\.\.\.\], "decoder"'
    ):
        recording.word_weights(5)


def test_token_names_must_be_parts_of_layer_paths() -> None:
    recording = make_recording(3, 3)
    recording.tokens = {"coder": ["a", "b", "c"]}
    with pytest.raises(ArgumentError, match=r"must be parts of layer paths, .*; got 'coder', and the paths are"):
        recording.head_table()


def test_tokens_of_the_wrong_length_raise() -> None:
    recording = make_recording(3, 3, batch_size=2)
    for tokens, lengths in ((["a", "b"], "2"), (["a", "b", "c"], "3"), ([["a", "b", "c"], ["d", "e"]], "3, 2")):
        recording.tokens = tokens
        with pytest.raises(
            ArgumentError,
            match=rf"one token for each of 3 keys, in each of 2 texts; got {lengths}\. Set recording\.tokens",
        ):
            recording.head_table()
    recording.tokens = [["a", "b", "c"], ["d", "e", "f"]]
    assert "induction" in recording.head_table().columns
    session = session_from_recording(make_recording(3, 3), tokens=["a", "b"])
    assert "induction" not in session.head_table().columns


def test_named_tokens_are_saved_and_explored(recording: Recording, tmp_path: Path) -> None:
    recording.tokens = NAMED
    recording.save(tmp_path / "recording.safetensors")
    session = session_from_recording(regard.load_recording(tmp_path / "recording.safetensors"))
    assert [(text.name, text.tokens) for text in session.texts] == [("encoder", SOURCE), ("decoder", TARGET)]
    for index, path in enumerate(recording.layer_paths):
        texts = session.layer_texts[index]
        own = 0 if "encoder" in path.split(".") else 1
        is_cross = "multihead_attn" in path
        assert (texts.query_text, texts.key_text, texts.is_cross_attention) == (own, 0 if is_cross else own, is_cross)
    assert repr(session.head_table()) == repr(recording.head_table())


def test_batch_index_selects_the_named_tokens() -> None:
    recording = make_recording(3, 3, batch_size=2)
    path = recording.layer_paths[0].split(".")[0]
    recording.tokens = {path: [["a", "b", "c"], ["d", "e", "f"]]}
    assert session_from_recording(recording, batch_index=1).texts[0].tokens == ["d", "e", "f"]


def test_progress_is_reported(recording: Recording) -> None:
    fractions: list[float] = []
    recording.head_table(progress=fractions.append)
    assert fractions == [n / 6 for n in range(6)]
