"""Rows, columns, largest weights, tiles and thumbnails, compared with the weights of the recording."""

import numpy as np
import pytest
import torch

from regard import mask, normalizer
from regard.errors import ArgumentError
from regard.explorer.api.registry import dispatch
from tests.explorer.recordings import make_explorer

LAYER_PARAMS = {"session": 0, "layer": 0}


def test_query_weights_are_mean_and_sum_over_queries() -> None:
    explorer = make_explorer(9, 9, mask=mask.causal())
    response = dispatch(explorer, "query_weights", {**LAYER_PARAMS, "heads": [1, 0], "queries": [2, 8, 5]})
    expected = explorer.sessions[0].recording[0].weights[0, [1, 0]][:, [2, 8, 5]]
    assert response.values["heads"] == [1, 0]
    assert np.allclose(response.arrays["sum"], expected.sum(1), atol=1e-6)
    assert np.allclose(response.arrays["mean"], expected.mean(1), atol=1e-6)


def test_key_weights_are_mean_and_sum_over_keys() -> None:
    explorer = make_explorer(9, 12)
    response = dispatch(explorer, "key_weights", {**LAYER_PARAMS, "heads": [1], "keys": [0, 11]})
    expected = explorer.sessions[0].recording[0].weights[0, [1]][:, :, [0, 11]]
    assert np.allclose(response.arrays["sum"], expected.sum(-1), atol=1e-6)
    assert np.allclose(response.arrays["mean"], expected.mean(-1), atol=1e-6)


def test_all_heads_are_the_default() -> None:
    explorer = make_explorer(4, 4, num_heads=4, num_kv_heads=2)
    assert dispatch(explorer, "query_weights", {**LAYER_PARAMS, "queries": [1]}).values["heads"] == [0, 1, 2, 3]


def test_top_weights_are_the_fewest_keys_with_the_mass() -> None:
    explorer = make_explorer(20, 20, mask=mask.causal())
    response = dispatch(
        explorer, "top_weights", {**LAYER_PARAMS, "heads": [0, 1], "query_start": 5, "query_end": 9, "mass": 0.7}
    )
    weights = explorer.sessions[0].recording[0].weights[0]
    for head in (0, 1):
        for query in range(5, 9):
            is_row = (response.arrays["query"] == query) & (response.arrays["head"] == head)
            keys = response.arrays["key"][is_row]
            row = weights[head, query]
            assert np.allclose(response.arrays["weight"][is_row], row[keys], atol=1e-6)
            assert float(row[keys].sum()) >= 0.7 - 1e-6
            assert float(row[keys].sum() - row[keys].min()) < 0.7
            assert float(row[keys].min()) >= float(row.sort(descending=True).values[len(keys) - 1]) - 1e-6
    assert set(response.arrays["query"]) == set(range(5, 9))


def test_top_weights_omit_hidden_keys() -> None:
    response = dispatch(
        make_explorer(300, 300, mask=mask.causal()), "top_weights", {**LAYER_PARAMS, "heads": [0], "mass": 1.0}
    )
    assert bool((response.arrays["key"] <= response.arrays["query"]).all())


def test_hiding_keys_renormalizes_the_other_weights() -> None:
    explorer = make_explorer(30, 30, mask=mask.causal())
    weights = explorer.sessions[0].recording[0].weights[0, 0]
    expected = weights.clone()
    expected[:, [0, 3]] = 0.0
    expected = torch.where(expected.sum(-1, keepdim=True) > 0, expected / expected.sum(-1, keepdim=True), 0.0)
    params = {**LAYER_PARAMS, "hidden_keys": [0, 3]}
    tile = dispatch(explorer, "tile", {**params, "head": 0, "level": 0, "row": 0, "column": 0})
    row = dispatch(explorer, "query_weights", {**params, "heads": [0], "queries": [20]})
    assert np.allclose(tile.arrays["mean"], expected, atol=2e-6)
    assert np.allclose(row.arrays["mean"][0], expected[20], atol=2e-6)
    plain = dispatch(explorer, "tile", {**LAYER_PARAMS, "head": 0, "level": 0, "row": 0, "column": 0})
    assert np.allclose(plain.arrays["mean"], weights, atol=2e-6)


def test_keys_can_be_hidden_only_with_softmax() -> None:
    explorer = make_explorer(6, 6, normalizer=normalizer.sparsemax())
    layer = dispatch(explorer, "state").values["sessions"][0]["layers"][0]
    assert (layer["can_hide_keys"], layer["normalizer"]) == (False, "sparsemax")
    with pytest.raises(ArgumentError, match="keys can be hidden only with the softmax normalizer"):
        dispatch(explorer, "query_weights", {**LAYER_PARAMS, "heads": [0], "queries": [1], "hidden_keys": [0]})


@pytest.mark.parametrize(
    "option",
    [normalizer.sparsemax(), normalizer.sigmoid(), normalizer.sink(torch.tensor([0.5, 1.0])), normalizer.sinkhorn(3)],
)
def test_other_normalizers_have_maps_too(option: object) -> None:
    explorer = make_explorer(1300, 1300, normalizer=option)
    tile = dispatch(explorer, "tile", {**LAYER_PARAMS, "head": 1, "level": 0, "row": 1, "column": 2}).arrays["mean"]
    coarse = dispatch(explorer, "tile", {**LAYER_PARAMS, "head": 1, "level": 3, "row": 0, "column": 0}).arrays["mean"]
    weights = explorer.sessions[0].recording[0].weights[0, 1]
    assert np.allclose(tile, weights[256:512, 512:768], atol=1e-6)
    assert np.allclose(coarse[:162, :162], weights[:1296, :1296].reshape(162, 8, 162, 8).mean((1, 3)), atol=1e-6)


def test_map_info_has_the_size_and_the_largest_values() -> None:
    explorer = make_explorer(1300, 1300, mask=mask.causal())
    values = dispatch(explorer, "map_info", {**LAYER_PARAMS, "head": 0}).values
    weights = explorer.sessions[0].recording[0].weights[0, 0]
    names = ("num_levels", "tile_size", "num_queries", "num_keys", "base_level")
    assert [values[name] for name in names] == [4, 256, 1300, 1300, 1]
    assert values["max_weight"] == pytest.approx(float(weights.max()), abs=1e-5)
    assert values["sink"]["mass"] == pytest.approx(float(weights[-64:].mean(0).max()), rel=0.5)


def test_thumbnails_show_every_head_and_report_sampled_rows() -> None:
    explorer = make_explorer(300, 300, mask=mask.causal(), num_heads=3, num_kv_heads=3)
    response = dispatch(explorer, "thumbnails", {**LAYER_PARAMS, "size": 32})
    assert response.arrays["mean"].shape == response.arrays["max"].shape == (3, 19, 19)  # cells of 16
    assert response.values["sampled_rows"] is None
    weights = explorer.sessions[0].recording[0].weights[0]
    expected = weights[:, :288, :288].reshape(3, 18, 16, 18, 16)
    assert np.allclose(response.arrays["mean"][:, :18, :18], expected.mean((2, 4)), atol=1e-6)
    long = make_explorer(4200, 4200, num_heads=1, num_kv_heads=1)
    assert dispatch(long, "thumbnails", {**LAYER_PARAMS, "size": 32}).values["sampled_rows"] == 4


TILE_PARAMS = {"layer": 0, "head": 0, "level": 0, "row": 0, "column": 0}


@pytest.mark.parametrize(
    "name, params, message",
    [
        ("tile", {"layer": 0}, r"head must be an integer from 0 to 1000000; got None\."),
        ("tile", {**TILE_PARAMS, "head": 7}, r"head must be one of 0, 1 of layer 0; got 7\."),
        ("tile", {**TILE_PARAMS, "layer": 3}, r"one of the recorded layers: 0 \(layer\.0\).* got 3"),
        ("tile", {**TILE_PARAMS, "level": "0"}, r"level must be an integer .* got '0'\."),
        ("tile", {**TILE_PARAMS, "level": True}, r"level must be an integer .* got True\."),
        ("tile", {"session": 4}, r"session must be the id of a session \(0\); got 4\."),
        ("query_weights", {"layer": 0, "queries": [9]}, r"queries must be an integer from 0 to 5; got 9\."),
        (
            "query_weights",
            {"layer": 0, "queries": []},
            r"queries must be a list of 1 to 4096 integers; got \[\]\.",
        ),
        ("query_weights", {"layer": 0, "queries": 3}, r"queries must be a list of 1 to 4096 integers; got 3\."),
        ("top_weights", {"layer": 0, "mass": 2}, r"mass must be a number from 0 to 1; got 2\."),
        (
            "top_weights",
            {"layer": 0, "query_start": 4, "query_end": 4},
            r"query_end must be an integer from 5 to 6; got 4\.",
        ),
        (
            "query_weights",
            {"layer": 0, "queries": [0], "hidden_keys": [77]},
            r"at most 8 keys from 0 to 5 can be hidden; got \[77\]\.",
        ),
        ("run_model", {"text": 5}, r"text must be a string; got 5\."),
        ("thumbnails", {"layer": 0, "size": 4000}, r"size must be an integer from 8 to 256; got 4000\."),
        (
            "difference_map",
            {**TILE_PARAMS, "session": 0, "other_session": 1},
            r"other_session must be the id of a session \(0\); got 1",
        ),
    ],
)
def test_invalid_parameters_raise(name: str, params: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        dispatch(make_explorer(6, 6), name, params)


def test_top_weights_of_too_many_pairs_raise() -> None:
    with pytest.raises(ArgumentError, match=r"over 40000 keys and 2 heads takes at most 838 queries; got 1000\."):
        dispatch(make_explorer(1000, 40_000), "top_weights", {**LAYER_PARAMS, "mass": 0.5})
