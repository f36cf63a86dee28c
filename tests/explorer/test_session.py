"""Sessions of recordings: texts, cross-attention layers, batches, and the steps of a generation."""

import pytest
import torch

import regard
from regard import mask
from regard.errors import ArgumentError
from regard.explorer import session as session_module
from regard.explorer.api.registry import dispatch
from regard.explorer.explorer import MAX_SESSIONS, Explorer
from regard.explorer.session_from_recording import session_from_recording
from regard.explorer.text_models.registry import load_text_model
from regard.recording.recorded_call import copy_call
from regard.recording.recording import Recording
from tests.explorer.recordings import make_recording, make_session, randn


def test_each_layer_of_a_translator_names_its_query_text_and_key_text() -> None:
    state = load_text_model("dates").record_text("on friday , the twenty first of march nineteen eighty six").to_json()
    source, target = state["texts"]
    assert source["tokens"] == "on friday , the twenty first of march nineteen eighty six".split()
    assert target["tokens"] == ["<begin>", *"1986-03-21"]
    assert state["title"].endswith("→ 1986-03-21")
    texts_by_path = {
        layer["path"]: (layer["query_text"], layer["key_text"], layer["is_cross_attention"])
        for layer in state["layers"]
    }
    assert set(texts_by_path.values()) == {(0, 0, False), (1, 1, False), (1, 0, True)}
    assert all(("encoder" in path) == (texts[0] == 0) for path, texts in texts_by_path.items())
    for layer in state["layers"]:
        assert len(state["texts"][layer["query_text"]]["tokens"]) == layer["num_queries"] + layer["query_offset"]
        assert len(state["texts"][layer["key_text"]]["tokens"]) == layer["num_keys"]


def test_a_word_outside_of_the_vocabulary_raises() -> None:
    with pytest.raises(ArgumentError, match="nineteen eighty four'; got 'white'"):
        load_text_model("dates").record_text("the white whale")


def test_one_text_of_a_batch_has_its_own_weights() -> None:
    is_visible = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(3)) < 0.7
    recording = make_recording(6, 6, batch_size=3, mask=mask.tensor(is_visible) | mask.sliding_window(1))
    recording.tokens = [[f"{text}{n}" for n in range(6)] for text in "abc"]
    for text in range(3):
        session = session_from_recording(recording, batch_index=text, title="three texts")
        assert session.texts[0].tokens == [f"{'abc'[text]}{n}" for n in range(6)]
        assert session.title == f"three texts, text {text + 1} of 3"
        weights = session.head(0, 1).weights(slice(None), slice(None))
        torch.testing.assert_close(weights, recording[0].weights[text, 1], atol=1e-6, rtol=1e-5)
    with pytest.raises(ArgumentError, match="batch_index must be from 0 to 2; got 3"):
        session_from_recording(recording, batch_index=3)


def test_each_text_of_a_batch_has_its_own_query_offset() -> None:
    recording = make_recording(3, 8, batch_size=2, mask=mask.causal(), query_offset=torch.tensor([1, 5]))
    for text, query_offset in enumerate((1, 5)):
        session = session_from_recording(recording, batch_index=text)
        assert session.layer_texts[0].query_offset == query_offset
        weights = session.head(0, 0).weights(slice(None), slice(None))
        torch.testing.assert_close(weights, recording[0].weights[text, 0], atol=1e-6, rtol=1e-5)


def test_positions_are_the_labels_without_tokens() -> None:
    state = make_session(3, 5).to_json()
    words = {"word_ids": [0, 1, 2, 3, 4], "partial_characters": {}}
    assert state["texts"] == [{"name": "positions", "tokens": ["0", "1", "2", "3", "4"], **words}]
    assert state["layers"][0]["query_offset"] == 2


def test_more_queries_than_keys_give_two_texts() -> None:
    state = make_session(5, 3).to_json()
    assert [len(text["tokens"]) for text in state["texts"]] == [3, 5]
    assert (state["layers"][0]["query_text"], state["layers"][0]["key_text"]) == (1, 0)


def test_tokens_of_another_length_do_not_label_a_layer() -> None:
    session = session_from_recording(make_recording(4, 4), tokens=["a", "b"])
    assert session.layer_texts[0].key_text == 1
    assert session.texts[1].tokens == ["0", "1", "2", "3"]


def test_every_token_has_the_index_of_its_word() -> None:
    text = load_text_model("language").record_text(" The captain saw Zarathustra").to_json()["texts"][0]
    assert "".join(text["tokens"]) == " The captain saw Zarathustra"
    assert len(set(text["word_ids"])) == 4
    assert len(text["tokens"]) > 4


def test_the_steps_of_a_generation_are_one_matrix() -> None:
    model, tokens = regard.models.bundled.language_model()
    ids = torch.tensor([tokens.encode(" The white whale")])
    with torch.no_grad(), regard.record(model) as recording:
        generated = regard.nn.generate(model, ids, max_new_tokens=4)
    session = session_from_recording(
        recording, tokens=tokens.token_texts([*ids[0].tolist(), *generated[0, :-1].tolist()])
    )
    with torch.no_grad(), regard.record(model) as expected:
        model(torch.cat((ids, generated[:, :-1]), 1))
    weights = session.head(2, 3).weights(slice(None), slice(None))
    assert weights.shape == (len(ids[0]) + 3,) * 2
    torch.testing.assert_close(weights, expected[2].weights[0, 3], atol=1e-4, rtol=1e-3)  # sums in another order


def test_calls_that_do_not_form_one_matrix_show_the_last_with_a_warning() -> None:
    recording = Recording()
    for seed in (1, 2):
        q, k, v = (randn(1, 2, 4, 8, seed=3 * seed + n) for n in range(3))
        recording.get_or_add_layer("layer.0", 0, None).add(
            copy_call({"q": q, "k": k, "v": v}, None, lambda tensor: tensor, "test")
        )
    session = session_from_recording(recording)
    assert session.to_json()["warnings"] == ["layer 0, layer.0: its 2 calls do not form one matrix; the last is shown."]
    torch.testing.assert_close(
        session.head(0, 0).weights(slice(None), slice(None)), recording.calls(0)[1].weights[0, 0]
    )


def test_recorded_heads_keep_their_indices() -> None:
    model = regard.models.bundled.language_model()[0]
    with torch.no_grad(), regard.record(model, layers=[1], heads=[5, 2]) as recording:
        model(torch.tensor([[5, 6, 7, 8]]))
    session = session_from_recording(recording)
    assert session.to_json()["layers"][0]["head_indices"] == [5, 2]
    torch.testing.assert_close(session.head(1, 2).weights(slice(None), slice(None)), recording[1].weights[0, 1])
    with pytest.raises(ArgumentError, match="head must be one of 5, 2 of layer 1; got 0"):
        session.head(1, 0)


def test_an_empty_recording_raises() -> None:
    with pytest.raises(ArgumentError, match="a recording must have at least one layer; got none"):
        session_from_recording(Recording())


def test_a_session_removed_from_the_history_is_removed_from_the_cache() -> None:
    explorer = Explorer(make_session(4, 4))
    old_id = explorer.add(make_session(5, 5))
    explorer.sessions[old_id].map_pyramid(0, 0)
    cache_id = explorer.sessions[old_id].cache_id
    assert (cache_id, "map", 0, 0, ()) in session_module._cache
    new_ids = [explorer.add(make_session(3, 3)) for _ in range(MAX_SESSIONS + 3)]
    assert len(explorer.sessions) == MAX_SESSIONS
    assert 0 in explorer.sessions, "the first session stays"
    assert new_ids[-1] in explorer.sessions
    assert old_id not in explorer.sessions and new_ids[0] not in explorer.sessions
    assert (cache_id, "map", 0, 0, ()) not in session_module._cache


def test_the_state_lists_sessions_models_limits_and_examples() -> None:
    explorer = Explorer(
        load_text_model("language").record_text(" The whale"), session_from_recording(make_recording(4, 4))
    )
    values = dispatch(explorer, "state").values
    assert [session["can_generate"] for session in values["sessions"]] == [True, False]
    assert [model["name"] for model in values["models"]] == ["language", "dates"]
    assert values["limits"] == {"tokens": 32_768, "characters": 1_000_000}
    assert {example["model"] for example in values["examples"]} == {"language", "dates"}
    assert values["sessions"][0]["layers"][1]["normalizer"] == "softmax"


def test_heads_are_returned_with_their_kinds() -> None:
    text = " The captain saw the white whale and the boats went down. The captain saw the white whale"
    explorer = Explorer(load_text_model("language").record_text(text))
    values = dispatch(explorer, "heads").values
    assert len(values["rows"]) == 32
    expected = [[head.layer, head.head, head.score] for head in explorer.sessions[0].recording.find_heads("induction")]
    assert expected
    assert values["heads_by_kind"]["induction"] == expected
    assert values["kind_descriptions"]["induction"] == "the tokens after earlier occurrences of the same token"


def test_heads_of_a_translator_are_returned() -> None:
    values = dispatch(
        Explorer(load_text_model("dates").record_text("on friday , the twenty first of march nineteen eighty six")),
        "heads",
    ).values
    assert {row["layer"] for row in values["rows"]} == {0, 1, 2, 3, 4, 5}
    assert values["heads_by_kind"]["alignment"], [
        (r["path"], r["alignment"], r["alignment_uniform"]) for r in values["rows"]
    ]


def test_the_head_table_reports_its_progress_and_equals_that_of_the_recording() -> None:
    session, reports = load_text_model("language").record_text(" The whale saw the whale"), []
    rows = list(session.head_table(lambda text, fraction: reports.append((text, fraction))))
    assert reports == [("measuring every head", n / 4) for n in range(4)]
    assert rows == list(session.recording.head_table())
