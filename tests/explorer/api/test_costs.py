"""The cost endpoints: curves, crossovers and timings."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard import cost
from regard.errors import ArgumentError
from regard.explorer.api.costs import mechanism_crossover
from regard.explorer.api.registry import dispatch
from regard.explorer.cost_models import COST_MODELS, WINDOW_SIZE, CostModel, get_cost_model
from regard.explorer.explorer import Explorer


def request_costs(**params: object) -> dict[str, object]:
    return dispatch(Explorer(), "cost", params).values


@pytest.mark.parametrize(
    "params, multiples",
    [
        ({}, {"softmax": 6, "causal": 12}),
        ({"gated": True}, {"softmax": 8, "causal": 16}),
        ({"gated": True, "embed_dim": 768, "ffn_dim": 2048}, {"softmax": 6, "causal": 12}),  # F = 8 D / 3
        ({"ffn_dim": 0}, {"softmax": 2, "causal": 4}),  # against the projections alone
        ({"embed_dim": 4096, "num_heads": 32}, {"softmax": 6, "causal": 12}),
    ],
)
def test_attention_costs_as_much_as_the_rest_of_the_layer_at_this_length(
    params: dict[str, object], multiples: dict[str, int]
) -> None:
    values = request_costs(mechanisms=["softmax", "causal"], **params)
    embed_dim = params.get("embed_dim", 768)
    crossovers = {c["first"]: c["seq_len"] for c in values["crossovers"] if c["second"] == "the rest of the layer"}  # type: ignore[attr-defined]
    assert crossovers == {name: n * embed_dim for name, n in multiples.items()}  # type: ignore[operator]
    assert f"= {multiples['softmax']} D" in values["crossovers"][0]["text"]  # type: ignore[index]


def test_curves_equal_the_formulas_of_the_cost_module() -> None:
    values = request_costs(
        mechanisms=["dense softmax", "causal"], seq_lens=[512, 1024], embed_dim=768, num_heads=12, num_layers=12
    )
    dense, causal = values["curves"]  # type: ignore[misc]
    assert dense["flops"][1] == 12 * cost.attention(1024, 1024, 64, num_heads=12).total
    pairs = cost.causal_pairs(1024, 1024)
    assert causal["flops"][1] == 12 * cost.attention(1024, 1024, 64, num_heads=12, pairs=pairs).total
    # scores and weights are both in memory
    assert dense["bytes"][0] == 2 * cost.attention_weights_bytes(512, 512, num_heads=12, num_layers=12)
    assert values["non_attention"]["flops"][1] == 12 * cost.layer(1024, 768, num_heads=12).non_attention  # type: ignore[index]


def test_a_sliding_window_counts_its_visible_pairs() -> None:
    window = get_cost_model(f"sliding window of {WINDOW_SIZE}")
    for n in (3, WINDOW_SIZE, WINDOW_SIZE + 1, 1000):
        pairs = sum(min(i + 1, WINDOW_SIZE) for i in range(n))
        assert window.flops(n, 64, 2) == 4 * pairs * 64 * 2


def test_dense_softmax_takes_the_flops_that_torch_counts() -> None:
    cost_model = get_cost_model("dense softmax")
    q, k, v = (torch.randn(1, 2, 100, 16) for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        cost_model.call(q, k, v)
    assert counter.get_total_flops() == cost_model.flops(100, 16, 2)


def test_the_crossover_is_the_first_length_at_which_the_other_mechanism_stays_cheaper() -> None:
    full, linear = get_cost_model("softmax"), get_cost_model("linear")
    assert mechanism_crossover(full, linear, 64, 12) == mechanism_crossover(linear, full, 64, 12) == 65
    assert full.flops(64, 64, 12) == linear.flops(64, 64, 12)
    assert full.flops(65, 64, 12) > linear.flops(65, 64, 12)
    assert mechanism_crossover(full, get_cost_model("causal"), 64, 12) is None, "it is cheaper from the start"
    assert mechanism_crossover(full, get_cost_model("dense softmax"), 64, 12) is None, "they cost the same"


@pytest.mark.parametrize("cost_model", COST_MODELS, ids=lambda cost_model: cost_model.name)
def test_every_mechanism_can_be_timed(cost_model: CostModel) -> None:
    name = cost_model.name
    values = dispatch(Explorer(), "timing", {"mechanism": name, "seq_len": 512, "num_heads": 2, "head_dim": 32}).values
    assert values["seconds"] > 0
    assert values["num_runs"] >= 1
    assert (values["seq_len"], values["mechanism"]) == (512, name)


@pytest.mark.parametrize(
    "name, params, message",
    [
        ("cost", {"mechanisms": ["wonder"]}, "a mechanism must be one of dense softmax, softmax, .*; got 'wonder'"),
        ("cost", {"mechanisms": "softmax"}, "mechanisms must be a list of at most 10 names; got softmax"),
        (
            "cost",
            {"embed_dim": 100, "num_heads": 3},
            "num_heads must divide embed_dim; got num_heads=3 and embed_dim=100",
        ),
        (
            "timing",
            {"mechanism": "softmax", "seq_len": 200_000},
            "seq_len must be an integer from 1 to 131072; got 200000",
        ),
        (
            "timing",
            {"mechanism": "softmax", "seq_len": 131_072, "num_heads": 64},
            r"at most 4e\+12 FLOPs; got 2.8e\+14 for",
        ),
    ],
)
def test_invalid_cost_requests_raise(name: str, params: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        dispatch(Explorer(), name, params)
