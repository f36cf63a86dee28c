"""The steps of one weight and its code, compared with the weights of the recording."""

import math
from typing import Any

import pytest
import torch

import regard
from regard import mask, normalizer, score
from regard.explorer.api.registry import dispatch
from regard.explorer.explorer import Explorer
from regard.explorer.session_from_recording import session_from_recording
from regard.explorer.text_models.registry import load_text_model
from tests.explorer.recordings import make_recording, randn

CALLS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "causal": {"mask": mask.causal()},
    "sliding window": {"mask": mask.causal() & mask.sliding_window(3)},
    "explicit scale": {"score": score.scaled_dot(0.3)},
    "dot": {"score": score.dot()},
    "cosine": {"score": score.cosine(4.0)},
    "bilinear": {"score": score.bilinear(randn(8, 8, seed=4))},
    "gaussian": {"score": score.gaussian(2.0)},
    "additive": {"score": score.additive(randn(8, 5, seed=6), randn(8, 5, seed=7), randn(5, seed=8))},
    "alibi": {"score": score.alibi(), "mask": mask.causal()},
    "softcap": {"score": score.scaled_dot().then(score.softcap(2.0)), "mask": mask.causal()},
    "bias": {"score": randn(2, 7, 9, seed=9)},
    "sink": {"normalizer": normalizer.sink(torch.tensor([0.5, 2.0]))},
    "sigmoid": {"normalizer": normalizer.sigmoid(-1.0)},
    "relu": {"normalizer": normalizer.relu()},
    "sparsemax": {"normalizer": normalizer.sparsemax()},
    "entmax": {"normalizer": normalizer.entmax(torch.tensor([1.2, 1.7]))},
    "topk": {"normalizer": normalizer.topk(3)},
    "sinkhorn": {"normalizer": normalizer.sinkhorn(3)},
    "kernel": {"normalizer": normalizer.kernel()},
    "grouped": {"num_heads": 4, "num_kv_heads": 2, "mask": mask.causal()},
    "relative values": {"value": score.shaw_values(randn(5, 8, seed=3))},
}  # fmt: skip


def cells(options: dict[str, Any], indices: list[tuple[int, int, int]]) -> Any:
    recording = make_recording(7, 9, **options)
    explorer = Explorer(session_from_recording(recording))
    for head, query, key in indices:
        params = {"session": 0, "layer": 0, "head": head, "query": query, "key": key}
        yield recording, params, dispatch(explorer, "cell_steps", params).values


@pytest.mark.parametrize("name", CALLS)
def test_the_weight_and_the_output_equal_those_of_the_recording(name: str) -> None:
    for recording, params, steps in cells(CALLS[name], [(0, 0, 0), (1, 4, 2), (1, 6, 8), (0, 3, 8)]):
        head, query, key = (params[name] for name in ("head", "query", "key"))
        # the recording computes in float32, the cell in float64
        assert steps["weight"] == pytest.approx(float(recording[0].weights[0, head, query, key]), abs=2e-6)
        assert steps["output"] == pytest.approx(recording[0].output[0, head, query].tolist(), abs=1e-5)
        assert steps["weighted_value"] == pytest.approx([steps["weight"] * v for v in steps["v"]], abs=1e-12)


@pytest.mark.parametrize("name", ["softmax", "causal", "explicit scale", "dot", "cosine", "alibi", "softcap"])
def test_every_number_follows_from_earlier_numbers(name: str) -> None:
    for recording, params, steps in cells(CALLS[name], [(0, 5, 1), (1, 6, 4)]):
        assert steps["products"] == pytest.approx([a * b for a, b in zip(steps["q"], steps["k"], strict=True)])
        assert steps["dot"] == pytest.approx(math.fsum(steps["products"]))
        assert steps["scaled"] == pytest.approx(steps["dot"] * steps["scale"])
        score = steps["scaled"] if steps["modified_score"] is None else steps["modified_score"]
        assert steps["is_visible"]
        assert steps["score"] == pytest.approx(score)
        assert steps["exponent"] == pytest.approx(steps["score"] - steps["row_max"])
        assert steps["exp"] == pytest.approx(math.exp(steps["exponent"]))
        assert steps["weight"] == pytest.approx(steps["exp"] / steps["exp_sum"])
        assert steps["lse"] == pytest.approx(steps["row_max"] + math.log(steps["exp_sum"]))
        assert steps["lse"] == pytest.approx(float(recording[0].lse[0, params["head"], params["query"]]), abs=1e-5)
        assert steps["row_sum"] == pytest.approx(1.0)
        max_weight = float(recording[0].weights[0, params["head"], params["query"]].max())
        assert math.exp(steps["row_max"] - steps["lse"]) == pytest.approx(max_weight, abs=1e-5)


@pytest.mark.parametrize("name", CALLS)
def test_the_code_computes_the_same_weight(name: str) -> None:
    for recording, params, steps in cells(CALLS[name], [(1, 5, 3), (0, 6, 7)]):
        variables: dict[str, Any] = {"recording": recording}
        exec(steps["code"], variables)
        assert float(variables["weights"][params["key"]]) == pytest.approx(steps["weight"], abs=2e-6)
        if "weights @ v" in steps["code"]:
            assert (variables["weights"] @ variables["v"]).tolist() == pytest.approx(steps["output"], abs=1e-6)


@pytest.mark.parametrize(
    "name", ["softmax", "causal", "sliding window", "explicit scale", "cosine", "alibi", "softcap", "sigmoid"]
)
def test_the_code_of_a_short_formula_is_plain_torch(name: str) -> None:
    _, _, steps = next(cells(CALLS[name], [(1, 5, 3)]))
    assert "regard" not in steps["code"]


def test_a_hidden_key_has_score_minus_infinity_and_weight_zero() -> None:
    _, _, steps = next(cells({"mask": mask.causal()}, [(0, 1, 6)]))
    assert (steps["is_visible"], steps["score"], steps["weight"]) == (False, -math.inf, 0.0)
    assert steps["mask"] == {"text": "j <= p"}
    assert steps["num_visible_keys"] == 4


def test_a_fully_masked_query_has_weight_zero_and_output_zero() -> None:
    later_queries = mask.from_function(lambda b, h, i, j: i > 2)
    _, _, steps = next(cells({"mask": later_queries}, [(0, 1, 6)]))
    assert steps["weight"] == 0.0
    assert steps["output"] == [0.0] * 8
    assert "row_max" not in steps


def test_hidden_keys_are_part_of_the_mask_formula() -> None:
    recording = make_recording(7, 9, mask=mask.causal())
    explorer = Explorer(session_from_recording(recording))
    params = {"session": 0, "layer": 0, "head": 0, "query": 6, "key": 4, "hidden_keys": [0]}
    steps = dispatch(explorer, "cell_steps", params).values
    weights = recording[0].weights[0, 0, 6]
    assert steps["weight"] == pytest.approx(float(weights[4] / (1 - weights[0])), abs=1e-6)
    assert steps["mask"]["text"] == "j <= p and j != 0"
    variables: dict[str, Any] = {"recording": recording}
    exec(steps["code"], variables)
    assert float(variables["weights"][4]) == pytest.approx(steps["weight"], abs=1e-9)


def test_a_weight_of_the_bundled_model_equals_attention_with_weights() -> None:
    text = " The captain saw the white whale and the boats went down. The captain saw the white whale"
    session = load_text_model("language").record_text(text)
    steps = dispatch(Explorer(session), "cell_steps", {"layer": 1, "head": 5, "query": 16, "key": 5}).values
    call = session.layer(1).merged_call
    expected = regard.attention_with_weights(call.q.double(), call.k.double(), call.v.double(), **call.options)
    assert steps["weight"] == pytest.approx(float(expected.weights[0, 5, 16, 5]), rel=1e-9)
    assert steps["weight"] > 0.5
    assert steps["output"] == pytest.approx(expected.output[0, 5, 16].tolist(), rel=1e-9)


def test_the_code_of_one_text_of_a_batch_indexes_that_text() -> None:
    recording = make_recording(7, 9, batch_size=3)
    steps = dispatch(
        Explorer(session_from_recording(recording, batch_index=2)),
        "cell_steps",
        {"layer": 0, "head": 1, "query": 2, "key": 3},
    ).values
    variables: dict[str, Any] = {"recording": recording}
    exec(steps["code"], variables)
    assert float(variables["weights"][3]) == pytest.approx(float(recording[0].weights[2, 1, 2, 3]), abs=1e-6)
