"""Continuing a text: tokens, probabilities, and the session of the longer text."""

import pytest
import torch

import regard
from regard.errors import ArgumentError
from regard.explorer.api.registry import dispatch
from regard.explorer.explorer import Explorer
from regard.explorer.text_models.registry import load_text_model
from regard.models.bundled import language_model
from tests.explorer.recordings import make_explorer

TEXT = " The captain saw the white"


def continue_example(**params: object) -> tuple[Explorer, dict[str, object], int]:
    explorer = Explorer(load_text_model("language").record_text(TEXT))
    values = dispatch(explorer, "generate", {"session": 0, **params}).values
    return explorer, values, values["id"]


def test_greedy_tokens_equal_those_of_generate() -> None:
    explorer, values, session_id = continue_example(max_new_tokens=6)
    model, tokens = language_model()
    ids = tokens.encode(TEXT)
    generated = regard.nn.generate(model, torch.tensor([ids]), max_new_tokens=6)[0].tolist()
    assert values["first_position"] == len(ids)
    assert explorer.sessions[session_id].token_ids == [*ids, *generated]
    assert explorer.sessions[session_id].text == TEXT + tokens.decode(generated)


def test_each_step_has_its_probability_and_the_top_tokens() -> None:
    explorer, _, session_id = continue_example(max_new_tokens=4)
    steps = explorer.sessions[session_id].to_json()["generation"]["steps"]
    model, tokens = language_model()
    ids = explorer.sessions[session_id].token_ids
    assert ids is not None
    with torch.no_grad():
        probabilities = model(torch.tensor([ids]))[0].softmax(-1)
    for step in steps:
        expected = probabilities[step["position"] - 1]
        token_id = ids[step["position"]]
        assert step["text"] == tokens.token_texts([token_id])[0]
        # with a cache, sums are in another order
        assert step["probability"] == pytest.approx(float(expected[token_id]), rel=1e-3)
        assert [name for name, _ in step["top_tokens"]] == tokens.token_texts(expected.topk(5).indices.tolist())
        assert step["top_tokens"][0] == [step["text"], step["probability"]]


def test_the_session_of_the_longer_text_has_every_weight() -> None:
    explorer, _, session_id = continue_example(max_new_tokens=5)
    ids = explorer.sessions[session_id].token_ids
    with torch.no_grad(), regard.record(language_model()[0]) as recording:
        language_model()[0](torch.tensor([ids]))
    assert ids is not None
    for layer in range(4):
        weights = explorer.sessions[session_id].head(layer, 3).weights(slice(None), slice(None))
        assert weights.shape == (len(ids), len(ids))
        torch.testing.assert_close(weights, recording[layer].weights[0, 3], atol=1e-4, rtol=1e-3)  # as above
    assert "heads" not in dispatch(explorer, "heads", {"session": session_id}).values["rows"][0]


def test_equal_seeds_sample_equal_tokens() -> None:
    first, repeated, other = (
        explorer.sessions[session_id].token_ids
        for explorer, _, session_id in (
            continue_example(max_new_tokens=12, temperature=1.0, seed=seed) for seed in (1, 1, 2)
        )
    )
    assert first == repeated
    assert first != other


def test_a_continued_text_can_be_continued() -> None:
    explorer, _, session_id = continue_example(max_new_tokens=2)
    values = dispatch(explorer, "generate", {"session": session_id, "max_new_tokens": 3}).values
    assert len(explorer.sessions[values["id"]].token_ids or []) == len(explorer.sessions[0].token_ids or []) + 5


def test_a_recording_and_a_translator_cannot_be_continued() -> None:
    with pytest.raises(ArgumentError, match="continued only by a causal language model; got a recording"):
        dispatch(make_explorer(4, 4), "generate", {"session": 0, "max_new_tokens": 1})
    with pytest.raises(ArgumentError, match="continued only by a causal language model; got dates"):
        dispatch(
            Explorer(load_text_model("dates").record_text("march the third nineteen oh five")),
            "generate",
            {"max_new_tokens": 1},
        )


def test_too_many_new_tokens_raise() -> None:
    with pytest.raises(ArgumentError, match="max_new_tokens must be an integer from 1 to 256; got 257"):
        continue_example(max_new_tokens=257)
