"""Comparing two sessions: the table of head differences, and difference maps."""

import numpy as np
import pytest
import torch

import regard
from regard import mask
from regard.errors import ArgumentError
from regard.explorer.api.registry import dispatch
from regard.explorer.explorer import Explorer
from regard.explorer.session import Session
from regard.explorer.session_from_recording import session_from_recording
from regard.explorer.text_models.registry import load_text_model
from regard.nn import BlockConfig, Encoder
from tests.explorer.recordings import make_session

HEAD_PARAMS = {"session": 0, "other_session": 1, "layer": 0, "head": 1}


def test_maps_of_equal_size_are_subtracted_weight_by_weight() -> None:
    one, other = make_session(300, 300), make_session(300, 300, mask=mask.causal())
    explorer = Explorer(one, other)
    values = dispatch(explorer, "compare", {"session": 0, "other_session": 1}).values
    expected = one.recording.compare(other.recording).head_differences
    assert (values["has_equal_shapes"], values["reason"], values["heads"]) == (True, "", list(expected))
    tile = dispatch(explorer, "difference_tile", {**HEAD_PARAMS, "level": 0, "row": 1, "column": 0}).arrays
    difference = one.recording[0].weights[0, 1] - other.recording[0].weights[0, 1]
    assert np.allclose(tile["mean"], difference[256:300, :256], atol=1e-6)
    assert float(tile["mean"].min()) < 0
    coarse = dispatch(explorer, "difference_tile", {**HEAD_PARAMS, "level": 1, "row": 0, "column": 0}).arrays["mean"]
    assert np.allclose(coarse, difference.reshape(150, 2, 150, 2).mean((1, 3)), atol=1e-6)


def test_maps_of_different_sizes_are_compared_on_one_grid() -> None:
    explorer = Explorer(make_session(300, 300), make_session(200, 200))
    values = dispatch(explorer, "compare", {"session": 0, "other_session": 1}).values
    assert values["has_equal_shapes"] is False
    assert values["reason"] == (
        "the texts have 300 x 300 and 200 x 200 pairs, so single weights do not correspond; the maps are compared on "
        "grids of equal size, by the fraction of all weight in each cell."
    )
    assert len(values["heads"]) == 2
    with pytest.raises(
        ArgumentError, match=r"the same size to be subtracted; got 300 x 300 and 200 x 200\. Use difference_map"
    ):
        dispatch(explorer, "difference_tile", {**HEAD_PARAMS, "level": 0, "row": 0, "column": 0})
    difference = dispatch(explorer, "difference_map", {**HEAD_PARAMS, "grid_size": 32}).arrays["mean"]
    assert difference.shape == (32, 32)
    assert float(difference.sum()) == pytest.approx(0.0, abs=1e-6)
    assert float(np.abs(difference).sum()) > 0.1


def test_models_with_different_numbers_of_layers_are_compared_on_their_common_layers() -> None:
    shallow, deep = (encoder_session(num_layers) for num_layers in (1, 2))
    values = dispatch(Explorer(shallow, deep), "compare", {"session": 0, "other_session": 1}).values
    assert (values["has_equal_shapes"], values["reason"]) == (True, "")
    assert {row["layer"] for row in values["heads"]} == {0}


def encoder_session(num_layers: int) -> Session:
    model = Encoder(BlockConfig(embed_dim=16, num_heads=2), num_layers)
    with regard.record(model) as recording, torch.no_grad():
        model(torch.randn(1, 6, 16))
    return session_from_recording(recording)


def test_the_difference_of_a_session_and_itself_is_zero() -> None:
    params = {"session": 0, "other_session": 0, "layer": 0, "head": 1}
    assert not dispatch(Explorer(make_session(40, 50)), "difference_map", params).arrays["mean"].any()


def test_two_different_heads_can_be_compared() -> None:
    one, other = make_session(30, 30), make_session(30, 30, num_heads=4, num_kv_heads=4)
    explorer = Explorer(one, other)
    params = {**HEAD_PARAMS, "other_layer": 0, "other_head": 3, "level": 0, "row": 0, "column": 0}
    difference = dispatch(explorer, "difference_tile", params).arrays["mean"]
    assert np.allclose(difference, one.recording[0].weights[0, 1] - other.recording[0].weights[0, 3], atol=1e-6)


def test_models_with_different_heads_return_a_reason_and_no_table() -> None:
    dates = load_text_model("dates").record_text("march the third nineteen oh five")
    explorer = Explorer(load_text_model("language").record_text(" The whale"), dates)
    values = dispatch(explorer, "compare", {"session": 0, "other_session": 1}).values
    assert (values["has_equal_shapes"], values["heads"]) == (False, [])
    assert values["reason"].startswith("recordings must have the same heads and batch size to be compared; layer 0 has")
