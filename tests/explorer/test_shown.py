"""What is shown of recordings: texts, layers that cross, batches, steps of a generation."""

import pytest
import torch

import regard
from regard import mask
from regard.errors import SpecError
from regard.explorer.explorer import SHOWN, Explorer
from regard.explorer.questions import ask
from regard.explorer.recorded import of_tape
from regard.explorer.shown import KEPT
from regard.explorer.sources import of_name
from regard.inside.take import taken
from regard.inside.tape import Tape
from tests.explorer.recordings import a_tape, normal, shown


def test_a_translator_has_a_source_and_a_target_and_each_layer_says_which_it_uses() -> None:
    said = of_name("dates").shown("on friday , the twenty first of march nineteen eighty six").said()
    source, target = said["texts"]
    assert source["tokens"] == "on friday , the twenty first of march nineteen eighty six".split()
    assert target["tokens"] == ["<begin>", *"1986-03-21"]
    assert said["title"].endswith("→ 1986-03-21")
    uses = {layer["path"]: (layer["query_text"], layer["key_text"], layer["crosses"]) for layer in said["layers"]}
    assert set(uses.values()) == {(0, 0, False), (1, 1, False), (1, 0, True)}
    assert all(("encoder" in path) == (use[0] == 0) for path, use in uses.items())
    for layer in said["layers"]:
        assert len(said["texts"][layer["query_text"]]["tokens"]) == layer["queries"] + layer["first"]
        assert len(said["texts"][layer["key_text"]]["tokens"]) == layer["keys"]


def test_a_word_that_the_translator_does_not_know_is_named() -> None:
    with pytest.raises(SpecError, match="nineteen eighty four'; got 'white'"):
        of_name("dates").shown("the white whale")


def test_one_text_of_a_batch_is_shown_as_if_it_were_alone() -> None:
    hidden = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(3)) < 0.7
    tape = a_tape(6, 6, batch=3, mask=mask.tensor(hidden) | mask.window(1))
    tape.tokens = [[f"{text}{n}" for n in range(6)] for text in "abc"]
    for text in range(3):
        found = of_tape(tape, text=text, title="three texts")
        assert found.texts[0].tokens == [f"{'abc'[text]}{n}" for n in range(6)]
        assert found.title == f"three texts, text {text + 1} of 3"
        weights = found.head(0, 1).weights(slice(None), slice(None))
        torch.testing.assert_close(weights, tape[0].weights[text, 1], atol=1e-6, rtol=1e-5)
    with pytest.raises(SpecError, match="text must be from 0 to 2, the number of one of the texts; got 3"):
        of_tape(tape, text=3)


def test_queries_that_begin_later_in_each_text_of_a_batch_keep_their_place() -> None:
    tape = a_tape(3, 8, batch=2, mask=mask.causal(), start=torch.tensor([1, 5]))
    for text, start in enumerate((1, 5)):
        found = of_tape(tape, text=text)
        assert found.places[0].first == start
        weights = found.head(0, 0).weights(slice(None), slice(None))
        torch.testing.assert_close(weights, tape[0].weights[text, 0], atol=1e-6, rtol=1e-5)


def test_positions_are_the_names_where_there_are_no_tokens() -> None:
    said = shown(3, 5).said()
    words = {"words": [0, 1, 2, 3, 4], "parts": {}}
    assert said["texts"] == [{"name": "positions", "tokens": ["0", "1", "2", "3", "4"], **words}]
    assert said["layers"][0]["first"] == 2


def test_more_queries_than_keys_are_two_texts() -> None:
    said = shown(5, 3).said()
    assert [len(text["tokens"]) for text in said["texts"]] == [3, 5]
    assert (said["layers"][0]["query_text"], said["layers"][0]["key_text"]) == (1, 0)


def test_tokens_that_do_not_fit_a_layer_are_not_put_on_it() -> None:
    found = of_tape(a_tape(4, 4), tokens=["a", "b"])
    assert found.places[0].key_text == 1
    assert found.texts[1].tokens == ["0", "1", "2", "3"]


def test_words_are_numbered_by_token() -> None:
    text = of_name("language").shown(" The captain saw Zarathustra").said()["texts"][0]
    assert "".join(text["tokens"]) == " The captain saw Zarathustra"
    assert len(set(text["words"])) == 4
    assert len(text["tokens"]) > 4


def test_steps_of_a_generation_are_one_matrix() -> None:
    model, tokens = regard.models.shipped.language_model()
    ids = torch.tensor([tokens.encode(" The white whale")])
    with torch.no_grad(), regard.record(model) as tape:
        written = regard.nn.generate(model, ids, most=4)
    found = of_tape(tape, tokens=tokens.texts([*ids[0].tolist(), *written[0, :-1].tolist()]))
    with torch.no_grad(), regard.record(model) as whole:
        model(torch.cat((ids, written[:, :-1]), 1))
    weights = found.head(2, 3).weights(slice(None), slice(None))
    assert weights.shape == (len(ids[0]) + 3,) * 2
    torch.testing.assert_close(weights, whole[2].weights[0, 3], atol=1e-4, rtol=1e-3)  # rows in another order of sums


def test_calls_that_are_not_one_matrix_show_the_last_and_say_so() -> None:
    tape = Tape()
    for seed in (1, 2):
        q, k, v = (normal(1, 2, 4, 8, seed=3 * seed + n) for n in range(3))
        tape.layer("layer.0", 0, None).add(taken({"q": q, "k": k, "v": v}, None, lambda tensor: tensor, "test"))
    found = of_tape(tape)
    assert found.said()["dropped"] == ["layer 0, layer.0: 2 calls are not one matrix; the last is shown."]
    torch.testing.assert_close(found.head(0, 0).weights(slice(None), slice(None)), tape.calls(0)[1].weights[0, 0])


def test_heads_that_were_picked_keep_their_numbers() -> None:
    model = regard.models.shipped.language_model()[0]
    with torch.no_grad(), regard.record(model, layers=[1], heads=[5, 2]) as tape:
        model(torch.tensor([[5, 6, 7, 8]]))
    found = of_tape(tape)
    assert found.said()["layers"][0]["heads"] == [5, 2]
    torch.testing.assert_close(found.head(1, 2).weights(slice(None), slice(None)), tape[1].weights[0, 1])
    with pytest.raises(SpecError, match="head must be one of 5, 2 of layer 1; got 0"):
        found.head(1, 0)


def test_an_empty_tape_is_refused() -> None:
    with pytest.raises(SpecError, match="a tape must have at least one layer to be shown; this one has none"):
        of_tape(Tape())


def test_a_text_that_is_dropped_from_the_history_is_forgotten() -> None:
    explorer = Explorer(shown(4, 4))
    number = explorer.add(shown(5, 5))
    explorer.shown[number].map(0, 0)
    old = explorer.shown[number].number
    assert KEPT.has((old, "map", 0, 0, ()))
    numbers = [explorer.add(shown(3, 3)) for _ in range(SHOWN + 3)]
    assert len(explorer.shown) == SHOWN
    assert 0 in explorer.shown, "the first stays: it is what was asked for"
    assert numbers[-1] in explorer.shown
    assert number not in explorer.shown and numbers[0] not in explorer.shown
    assert not KEPT.has((old, "map", 0, 0, ()))


def test_the_state_names_everything_a_page_needs() -> None:
    explorer = Explorer(of_name("language").shown(" The whale"), of_tape(a_tape(4, 4)))
    values = ask(explorer, "state").values
    assert [each["can_generate"] for each in values["shown"]] == [True, False]
    assert [model["name"] for model in values["models"]] == ["language", "dates"]
    assert values["limits"] == {"tokens": 32_768, "characters": 1_000_000}
    assert {example["model"] for example in values["examples"]} == {"language", "dates"}
    assert values["shown"][0]["layers"][1]["weighing"] == "softmax"


def test_heads_are_answered_with_their_kinds() -> None:
    text = " The captain saw the white whale and the boats went down. The captain saw the white whale"
    explorer = Explorer(of_name("language").shown(text))
    values = ask(explorer, "heads").values
    assert len(values["rows"]) == 32
    right = [[f.layer, f.head, f.score] for f in explorer.shown[0].tape.find("induction")]
    assert right
    assert values["found"]["induction"] == right
    assert values["kinds"]["induction"] == "what followed its own token earlier"


def test_heads_of_a_translator_are_answered_too() -> None:
    values = ask(
        Explorer(of_name("dates").shown("on friday , the twenty first of march nineteen eighty six")), "heads"
    ).values
    assert {row["layer"] for row in values["rows"]} == {0, 1, 2, 3, 4, 5}
    assert values["found"]["alignment"], [(r["path"], r["alignment"], r["alignment_uniform"]) for r in values["rows"]]


def test_the_table_of_heads_tells_how_far_it_is_and_is_that_of_the_tape() -> None:
    given, told = of_name("language").shown(" The whale saw the whale"), []
    rows = list(given.table(lambda text, share: told.append((text, share))))
    assert told == [("every head is measured", n / 4) for n in range(4)]
    assert rows == list(given.tape.heads())
