"""One thing that is shown less another."""

import numpy as np
import pytest

from regard import mask
from regard.errors import SpecError
from regard.explorer.explorer import Explorer
from regard.explorer.questions import ask
from regard.explorer.sources import of_name
from tests.explorer.recordings import shown

PLACE = {"one": 0, "other": 1, "layer": 0, "head": 1}


def test_texts_of_one_length_are_subtracted_weight_by_weight() -> None:
    one, other = shown(300, 300), shown(300, 300, mask=mask.causal())
    explorer = Explorer(one, other)
    values = ask(explorer, "compare", {"one": 0, "other": 1}).values
    right = one.tape.compare(other.tape).heads
    assert (values["fits"], values["why"], values["heads"]) == (True, "", list(right))
    found = ask(explorer, "difference_tile", {**PLACE, "level": 0, "row": 1, "column": 0}).arrays
    difference = one.tape[0].weights[0, 1] - other.tape[0].weights[0, 1]
    assert np.allclose(found["mean"], difference[256:300, :256], atol=1e-6)
    assert float(found["mean"].min()) < 0
    coarse = ask(explorer, "difference_tile", {**PLACE, "level": 1, "row": 0, "column": 0}).arrays["mean"]
    assert np.allclose(coarse, difference.reshape(150, 2, 150, 2).mean((1, 3)), atol=1e-6)


def test_texts_of_different_lengths_say_what_is_compared_instead() -> None:
    explorer = Explorer(shown(300, 300), shown(200, 200))
    values = ask(explorer, "compare", {"one": 0, "other": 1}).values
    assert values["fits"] is False
    assert values["why"] == (
        "the texts have 300 x 300 and 200 x 200 pairs, so single weights do not correspond; maps of as many cells are "
        "compared, each cell with its share of all weight."
    )
    assert len(values["heads"]) == 2
    with pytest.raises(
        SpecError, match=r"of one size to be subtracted; got 300 x 300 and 200 x 200\. Use difference_map"
    ):
        ask(explorer, "difference_tile", {**PLACE, "level": 0, "row": 0, "column": 0})
    found = ask(explorer, "difference_map", {**PLACE, "cells": 32}).arrays["mean"]
    assert found.shape == (32, 32)
    assert float(found.sum()) == pytest.approx(0.0, abs=1e-6)
    assert float(np.abs(found).sum()) > 0.1


def test_a_thing_does_not_differ_from_itself() -> None:
    explorer = Explorer(shown(40, 50))
    found = ask(explorer, "difference_map", {"one": 0, "other": 0, "layer": 0, "head": 1}).arrays["mean"]
    assert not found.any()


def test_any_head_can_be_compared_with_any_other() -> None:
    one, other = shown(30, 30), shown(30, 30, heads=4, key_heads=4)
    explorer = Explorer(one, other)
    about = {**PLACE, "other_layer": 0, "other_head": 3, "level": 0, "row": 0, "column": 0}
    found = ask(explorer, "difference_tile", about).arrays["mean"]
    assert np.allclose(found, one.tape[0].weights[0, 1] - other.tape[0].weights[0, 3], atol=1e-6)


def test_models_with_other_heads_have_no_table_and_say_why() -> None:
    dates = of_name("dates").shown("march the third nineteen oh five")
    explorer = Explorer(of_name("language").shown(" The whale"), dates)
    values = ask(explorer, "compare", {"one": 0, "other": 1}).values
    assert (values["fits"], values["heads"]) == (False, [])
    assert values["why"].startswith("recordings must have the same heads and as many texts to be compared; layer 0 has")
