"""A model goes on with a text, and every step's row is there."""

import pytest
import torch

import regard
from regard.errors import SpecError
from regard.explorer.explorer import Explorer
from regard.explorer.questions import ask
from regard.explorer.sources import of_name
from regard.models.shipped import language_model
from tests.explorer.recordings import explorer as recorded

TEXT = " The captain saw the white"


def going_on(**params: object) -> tuple[Explorer, dict[str, object], int]:
    explorer = Explorer(of_name("language").shown(TEXT))
    values = ask(explorer, "generate", {"shown": 0, **params}).values
    return explorer, values, values["id"]


def test_the_likeliest_tokens_are_those_that_generate_gives() -> None:
    explorer, values, number = going_on(count=6)
    model, tokens = language_model()
    ids = tokens.encode(TEXT)
    written = regard.nn.generate(model, torch.tensor([ids]), most=6)[0].tolist()
    assert values["first"] == len(ids)
    assert explorer.shown[number].ids == [*ids, *written]
    assert explorer.shown[number].text == TEXT + tokens.decode(written)


def test_each_step_has_its_probability_and_others_that_were_likely() -> None:
    explorer, _, number = going_on(count=4)
    steps = explorer.shown[number].said()["generated"]["steps"]
    model, tokens = language_model()
    ids = explorer.shown[number].ids
    assert ids is not None
    with torch.no_grad():
        shares = model(torch.tensor([ids]))[0].softmax(-1)
    for step in steps:
        right = shares[step["position"] - 1]
        chosen = ids[step["position"]]
        assert step["text"] == tokens.texts([chosen])[0]
        assert step["probability"] == pytest.approx(float(right[chosen]), rel=1e-3)  # a cache sums in another order
        assert [name for name, _ in step["others"]] == tokens.texts(right.topk(5).indices.tolist())
        assert step["others"][0] == [step["text"], step["probability"]]


def test_every_row_of_the_longer_text_is_there_and_right() -> None:
    explorer, _, number = going_on(count=5)
    ids = explorer.shown[number].ids
    with torch.no_grad(), regard.record(language_model()[0]) as tape:
        language_model()[0](torch.tensor([ids]))
    assert ids is not None
    for layer in range(4):
        found = explorer.shown[number].head(layer, 3).weights(slice(None), slice(None))
        assert found.shape == (len(ids), len(ids))
        torch.testing.assert_close(found, tape[layer].weights[0, 3], atol=1e-4, rtol=1e-3)  # as above
    assert "heads" not in ask(explorer, "heads", {"shown": number}).values["rows"][0]


def test_a_seed_draws_the_same_tokens_again_and_another_draws_others() -> None:
    first, again, other = (
        explorer.shown[number].ids
        for explorer, _, number in (going_on(count=12, temperature=1.0, seed=seed) for seed in (1, 1, 2))
    )
    assert first == again
    assert first != other


def test_what_is_written_can_be_continued() -> None:
    explorer, _, number = going_on(count=2)
    values = ask(explorer, "generate", {"shown": number, "count": 3}).values
    assert len(explorer.shown[values["id"]].ids or []) == len(explorer.shown[0].ids or []) + 5


def test_a_recording_and_a_translator_cannot_go_on() -> None:
    with pytest.raises(SpecError, match="a text can be continued where its model writes; a recording does not"):
        ask(recorded(4, 4), "generate", {"shown": 0, "count": 1})
    with pytest.raises(SpecError, match="where its model writes; dates does not"):
        ask(Explorer(of_name("dates").shown("march the third nineteen oh five")), "generate", {"count": 1})


def test_too_many_tokens_are_refused_with_the_limit() -> None:
    with pytest.raises(SpecError, match="count must be a whole number from 1 to 256; got 257"):
        going_on(count=257)
