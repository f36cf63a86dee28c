"""Recordings of models that read one text and write another: which text a layer is of, in tables, words and files."""

import math
from pathlib import Path

import pytest
import torch

import regard
from regard.errors import SpecError
from regard.explorer.recorded import of_tape
from regard.inside.tape import Tape
from regard.inside.texts import Texts
from regard.models.shipped import translator
from regard.models.tasks.dates import BEGIN, encode
from tests.explorer.recordings import a_tape

SOURCE = "friday , the twenty first of march nineteen eighty six".split()
TARGET = [BEGIN, *"1986-03-2"]  # as many tokens as the source, so that only names can tell them apart
NAMED = {"encoder": SOURCE, "decoder": TARGET}


@pytest.fixture
def tape() -> Tape:
    source, target = encode([SOURCE], "source")[0], encode([TARGET], "target")[0]
    with torch.no_grad(), regard.record(translator()) as found:
        translator()(source, target)
    return found


def test_a_layer_is_of_the_text_that_its_path_names(tape: Tape) -> None:
    texts = Texts.of(NAMED, tape.paths)
    assert len(SOURCE) == len(TARGET)
    found = {path.split(".", 1)[1]: (texts.of_queries(path), texts.of_keys(path)) for path in tape.paths}
    assert found == {
        "encoder.layers.0.self_attn": ("encoder", "encoder"),
        "encoder.layers.1.self_attn": ("encoder", "encoder"),
        "decoder.layers.0.self_attn": ("decoder", "decoder"),
        "decoder.layers.0.multihead_attn": ("decoder", "encoder"),
        "decoder.layers.1.self_attn": ("decoder", "decoder"),
        "decoder.layers.1.multihead_attn": ("decoder", "encoder"),
    }


def test_measures_of_tokens_are_of_the_layer_s_own_text(tape: Tape) -> None:
    tape.tokens = NAMED
    heads = tape.heads()
    weights = {layer.path: layer.attended.weights[...] for layer in tape.layers}
    for row in heads:
        if "multihead_attn" in row["path"]:
            assert math.isnan(row["separator"]) and math.isnan(row["induction_uniform"])
            continue
        text = SOURCE if "encoder" in row["path"].split(".") else TARGET
        of_head = weights[row["path"]][0, row["head"]]
        is_one = torch.tensor([token == "," for token in text])
        sees = torch.tensor([is_one[: i + 1].any() if text is TARGET else True for i in range(len(text))])
        right = of_head[:, is_one].sum(-1)[sees].mean() if is_one.any() else torch.tensor(0.0)
        assert row["separator"] == pytest.approx(float(right), abs=1e-6)


def test_a_uniform_head_is_of_the_layer_s_own_text() -> None:
    both = Tape()
    for number, path in enumerate(("encoder.0", "decoder.0")):
        both.layer(path, number, None).add(a_tape(4, 4).layers[0].take)
    both.tokens = {"encoder": ["a", ".", ".", "."], "decoder": ["b", "c", "d", "."]}
    assert {row["path"]: row["separator_uniform"] for row in both.heads()} == {"encoder.0": 0.75, "decoder.0": 0.25}


def test_a_measure_that_some_heads_lack_sorts_them_last_and_prints_a_dash(tape: Tape) -> None:
    tape.tokens = NAMED
    heads = tape.heads()
    for largest_first in (True, False):
        column = heads.sort("duplicate", largest_first=largest_first).column("duplicate")
        known = [x for x in column if not math.isnan(x)]
        assert len(known) == 16 and all(math.isnan(x) for x in column[16:])
        assert known == sorted(known, reverse=largest_first)
    lines = repr(heads).splitlines()
    assert [" - " in line for line in lines[1:]] == ["multihead" in line for line in lines[1:]]
    assert all("multihead" not in found.path for found in tape.find("separator", least=0.0, heads=heads))


def test_words_of_two_texts(tape: Tape) -> None:
    tape.tokens = {"encoder": [f" {word}" for word in SOURCE[:-1]] + ["six"], "decoder": TARGET}
    found = tape.words("transformer.decoder.layers.1.multihead_attn")
    weights = tape[5].weights[...]
    assert found.shape == (1, 4, 10, 9)  # the source's last two tokens are one word
    torch.testing.assert_close(found[..., :8], weights[..., :8])
    torch.testing.assert_close(found[..., 8], weights[..., 8:].sum(-1))
    tape.tokens = SOURCE
    with pytest.raises(SpecError, match=r'both have names: tape\.tokens = \{"encoder": \[\.\.\.\], "decoder"'):
        tape.words(5)


def test_a_name_that_is_no_part_of_a_path_is_refused() -> None:
    tape = a_tape(3, 3)
    tape.tokens = {"coder": ["a", "b", "c"]}
    with pytest.raises(SpecError, match=r"named by a part of the paths of layers, .*; got 'coder', and the paths are"):
        tape.heads()


def test_tokens_that_fit_no_layer_are_refused_with_both_numbers() -> None:
    tape = a_tape(3, 3, batch=2)
    for tokens, got in ((["a", "b"], "2"), (["a", "b", "c"], "3"), ([["a", "b", "c"], ["d", "e"]], "3, 2")):
        tape.tokens = tokens
        with pytest.raises(
            SpecError, match=rf"one for each of 3 keys, in each of 2 texts; got {got}\. Set tape\.tokens"
        ):
            tape.heads()
    tape.tokens = [["a", "b", "c"], ["d", "e", "f"]]
    assert "induction" in tape.heads().columns
    shown = of_tape(a_tape(3, 3), tokens=["a", "b"])
    assert "induction" not in shown.table().columns


def test_two_texts_are_saved_and_shown_by_their_names(tape: Tape, tmp_path: Path) -> None:
    tape.tokens = NAMED
    tape.save(tmp_path / "tape.safetensors")
    shown = of_tape(regard.load_tape(tmp_path / "tape.safetensors"))
    assert [(text.name, text.tokens) for text in shown.texts] == [("encoder", SOURCE), ("decoder", TARGET)]
    uses = {path: shown.places[number] for number, path in enumerate(tape.paths)}
    for path, place in uses.items():
        side = 0 if "encoder" in path.split(".") else 1
        crosses = "multihead_attn" in path
        assert (place.query_text, place.key_text, place.crosses) == (side, 0 if crosses else side, crosses)
    assert repr(shown.table()) == repr(tape.heads())


def test_a_batch_of_pairs_of_texts_is_shown_one_by_one() -> None:
    tape = a_tape(3, 3, batch=2)
    path = tape.paths[0].split(".")[0]
    tape.tokens = {path: [["a", "b", "c"], ["d", "e", "f"]]}
    assert of_tape(tape, text=1).texts[0].tokens == ["d", "e", "f"]


def test_the_share_that_is_done_is_told(tape: Tape) -> None:
    told: list[float] = []
    tape.heads(progress=told.append)
    assert told == [n / 6 for n in range(6)]
