"""Rows, columns, lines, tiles and small maps as answers, against the weights of the tape."""

import numpy as np
import pytest
import torch

from regard import mask, weigh
from regard.errors import SpecError
from regard.explorer.questions import ask
from tests.explorer.recordings import explorer

ABOUT = {"shown": 0, "layer": 0}


def test_rows_are_the_mean_and_the_sum_over_the_queries() -> None:
    given = explorer(9, 9, mask=mask.causal())
    found = ask(given, "row", {**ABOUT, "heads": [1, 0], "queries": [2, 8, 5]})
    right = given.shown[0].tape[0].weights[0, [1, 0]][:, [2, 8, 5]]
    assert found.values["heads"] == [1, 0]
    assert np.allclose(found.arrays["sum"], right.sum(1), atol=1e-6)
    assert np.allclose(found.arrays["mean"], right.mean(1), atol=1e-6)


def test_columns_are_the_sum_and_the_mean_over_the_keys() -> None:
    given = explorer(9, 12)
    found = ask(given, "column", {**ABOUT, "heads": [1], "keys": [0, 11]})
    right = given.shown[0].tape[0].weights[0, [1]][:, :, [0, 11]]
    assert np.allclose(found.arrays["sum"], right.sum(-1), atol=1e-6)
    assert np.allclose(found.arrays["mean"], right.mean(-1), atol=1e-6)


def test_all_heads_are_meant_where_none_is_named() -> None:
    assert ask(explorer(4, 4, heads=4, key_heads=2), "row", {**ABOUT, "queries": [1]}).values["heads"] == [0, 1, 2, 3]


def test_lines_are_the_fewest_keys_of_a_row_that_have_the_mass() -> None:
    given = explorer(20, 20, mask=mask.causal())
    found = ask(given, "lines", {**ABOUT, "heads": [0, 1], "from": 5, "to": 9, "mass": 0.7})
    weights = given.shown[0].tape[0].weights[0]
    for head in (0, 1):
        for query in range(5, 9):
            here = (found.arrays["query"] == query) & (found.arrays["head"] == head)
            keys = found.arrays["key"][here]
            row = weights[head, query]
            assert np.allclose(found.arrays["weight"][here], row[keys], atol=1e-6)
            assert float(row[keys].sum()) >= 0.7 - 1e-6
            assert float(row[keys].sum() - row[keys].min()) < 0.7
            assert float(row[keys].min()) >= float(row.sort(descending=True).values[len(keys) - 1]) - 1e-6
    assert set(found.arrays["query"]) == set(range(5, 9))


def test_no_line_goes_to_a_key_that_is_not_seen() -> None:
    found = ask(explorer(300, 300, mask=mask.causal()), "lines", {**ABOUT, "heads": [0], "mass": 1.0})
    assert bool((found.arrays["key"] <= found.arrays["query"]).all())


def test_hidden_keys_leave_their_weight_to_the_others_in_proportion() -> None:
    given = explorer(30, 30, mask=mask.causal())
    weights = given.shown[0].tape[0].weights[0, 0]
    right = weights.clone()
    right[:, [0, 3]] = 0.0
    right = torch.where(right.sum(-1, keepdim=True) > 0, right / right.sum(-1, keepdim=True), 0.0)
    about = {**ABOUT, "hide": [0, 3]}
    tile = ask(given, "tile", {**about, "head": 0, "level": 0, "row": 0, "column": 0})
    row = ask(given, "row", {**about, "heads": [0], "queries": [20]})
    assert np.allclose(tile.arrays["mean"], right, atol=2e-6)
    assert np.allclose(row.arrays["mean"][0], right[20], atol=2e-6)
    plain = ask(given, "tile", {**ABOUT, "head": 0, "level": 0, "row": 0, "column": 0})
    assert np.allclose(plain.arrays["mean"], weights, atol=2e-6)


def test_keys_of_another_weighing_than_softmax_cannot_be_hidden() -> None:
    given = explorer(6, 6, weigh=weigh.sparsemax())
    layer = ask(given, "state").values["shown"][0]["layers"][0]
    assert (layer["can_hide"], layer["weighing"]) == (False, "sparsemax")
    with pytest.raises(SpecError, match="keys can be hidden where softmax weighs"):
        ask(given, "row", {**ABOUT, "heads": [0], "queries": [1], "hide": [0]})


@pytest.mark.parametrize(
    "weighing", [weigh.sparsemax(), weigh.sigmoid(), weigh.sink(torch.tensor([0.5, 1.0])), weigh.sinkhorn(3)]
)
def test_other_weighings_have_maps_and_rows_as_well(weighing: object) -> None:
    given = explorer(1300, 1300, weigh=weighing)
    tile = ask(given, "tile", {**ABOUT, "head": 1, "level": 0, "row": 1, "column": 2}).arrays["mean"]
    coarse = ask(given, "tile", {**ABOUT, "head": 1, "level": 3, "row": 0, "column": 0}).arrays["mean"]
    weights = given.shown[0].tape[0].weights[0, 1]
    assert np.allclose(tile, weights[256:512, 512:768], atol=1e-6)
    assert np.allclose(coarse[:162, :162], weights[:1296, :1296].reshape(162, 8, 162, 8).mean((1, 3)), atol=1e-6)


def test_levels_say_how_large_the_map_is_and_its_largest_numbers() -> None:
    given = explorer(1300, 1300, mask=mask.causal())
    values = ask(given, "levels", {**ABOUT, "head": 0}).values
    weights = given.shown[0].tape[0].weights[0, 0]
    assert (values["levels"], values["tile"], values["queries"], values["keys"], values["base"]) == (
        4,
        256,
        1300,
        1300,
        1,
    )
    assert values["largest"] == pytest.approx(float(weights.max()), abs=1e-5)
    assert values["sink"]["share"] == pytest.approx(float(weights[-64:].mean(0).max()), rel=0.5)


def test_thumbnails_are_small_maps_of_every_head_and_say_if_rows_were_left_out() -> None:
    given = explorer(300, 300, mask=mask.causal(), heads=3, key_heads=3)
    found = ask(given, "thumbnails", {**ABOUT, "size": 32})
    assert found.arrays["mean"].shape == found.arrays["max"].shape == (3, 19, 19)  # cells of 16
    assert found.values["rows"] is None
    weights = given.shown[0].tape[0].weights[0]
    right = weights[:, :288, :288].reshape(3, 18, 16, 18, 16)
    assert np.allclose(found.arrays["mean"][:, :18, :18], right.mean((2, 4)), atol=1e-6)
    long = explorer(4200, 4200, heads=1, key_heads=1)
    assert ask(long, "thumbnails", {**ABOUT, "size": 32}).values["rows"] == 4


PLACE = {"layer": 0, "head": 0, "level": 0, "row": 0, "column": 0}


@pytest.mark.parametrize(
    "name, params, said",
    [
        ("tile", {"layer": 0}, r"head must be a whole number from 0 to 1000000; got None\."),
        ("tile", {**PLACE, "head": 7}, r"head must be one of 0, 1 of layer 0; got 7\."),
        ("tile", {**PLACE, "layer": 3}, r"one of those on the tape: 0 \(layer\.0\); got 3"),
        ("tile", {**PLACE, "level": "0"}, r"level must be a whole number .* got '0'\."),
        ("tile", {**PLACE, "level": True}, r"level must be a whole number .* got True\."),
        ("tile", {"shown": 4}, r"shown must be the number of something that is shown, 0; got 4\."),
        ("row", {"layer": 0, "queries": [9]}, r"queries must be a whole number from 0 to 5; got 9\."),
        ("row", {"layer": 0, "queries": []}, r"queries must be a list of 1 to 4096 whole numbers; got \[\]\."),
        ("row", {"layer": 0, "queries": 3}, r"queries must be a list of 1 to 4096 whole numbers; got 3\."),
        ("lines", {"layer": 0, "mass": 2}, r"mass must be a number from 0 to 1; got 2\."),
        ("lines", {"layer": 0, "from": 4, "to": 4}, r"to must be a whole number from 5 to 6; got 4\."),
        ("row", {"layer": 0, "queries": [0], "hide": [77]}, r"at most 8 keys from 0 to 5 can be hidden; got \[77\]\."),
        ("run", {"text": 5}, r"text must be a text; got 5\."),
        ("thumbnails", {"layer": 0, "size": 4000}, r"size must be a whole number from 8 to 256; got 4000\."),
        ("difference_map", {**PLACE, "one": 0, "other": 1}, r"other must be the number of something .* 0; got 1"),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused_with_what_was_got(
    name: str, params: dict[str, object], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        ask(explorer(6, 6), name, params)


def test_lines_of_too_many_pairs_are_refused_with_what_would_do() -> None:
    with pytest.raises(
        SpecError, match=r"over 40000 keys and 2 heads must be asked for at most 838 queries .* got 1000\."
    ):
        ask(explorer(1000, 40_000), "lines", {**ABOUT, "mass": 0.5})
