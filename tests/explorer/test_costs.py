"""Costs: curves, where they cross, and time that is measured."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard import cost
from regard.errors import SpecError
from regard.explorer.costs import crossing
from regard.explorer.explorer import Explorer
from regard.explorer.prices import EVERY, WINDOW, named
from regard.explorer.questions import ask


def curves(**params: object) -> dict[str, object]:
    return ask(Explorer(), "cost", params).values


@pytest.mark.parametrize(
    "params, times",
    [
        ({}, {"softmax": 6, "causal": 12}),
        ({"gated": True}, {"softmax": 8, "causal": 16}),
        ({"gated": True, "width": 768, "feed_forward": 2048}, {"softmax": 6, "causal": 12}),  # F = 8 D / 3
        ({"feed_forward": 0}, {"softmax": 2, "causal": 4}),  # against the projections alone
        ({"width": 4096, "heads": 32}, {"softmax": 6, "causal": 12}),
    ],
)
def test_attention_costs_as_much_as_the_rest_where_the_mathematics_says(
    params: dict[str, object], times: dict[str, int]
) -> None:
    values = curves(mechanisms=["softmax", "causal"], **params)
    width = params.get("width", 768)
    found = {c["one"]: c["length"] for c in values["crossings"] if c["other"] == "the rest of the layer"}  # type: ignore[attr-defined]
    assert found == {name: n * width for name, n in times.items()}  # type: ignore[operator]
    assert f"= {times['softmax']} D" in values["crossings"][0]["text"]  # type: ignore[index]


def test_curves_are_those_of_the_library() -> None:
    values = curves(mechanisms=["all weights kept", "causal"], lengths=[512, 1024], width=768, heads=12, layers=12)
    kept, causal = values["curves"]  # type: ignore[misc]
    assert kept["flops"][1] == 12 * cost.attention(1024, 1024, 64, heads=12).total
    assert (
        causal["flops"][1] == 12 * cost.attention(1024, 1024, 64, heads=12, pairs=cost.causal_pairs(1024, 1024)).total
    )
    assert kept["bytes"][0] == 2 * cost.stored_weights(512, 512, heads=12, layers=12)  # scores and weights
    assert values["rest"]["flops"][1] == 12 * cost.layer(1024, 768, heads=12).rest  # type: ignore[index]


def test_a_window_counts_the_pairs_it_sees() -> None:
    window = named(f"window of {WINDOW}")
    for n in (3, WINDOW, WINDOW + 1, 1000):
        pairs = sum(min(i + 1, WINDOW) for i in range(n))
        assert window.flops(n, 64, 2) == 4 * pairs * 64 * 2


def test_all_weights_kept_is_what_a_counter_of_flops_counts() -> None:
    chosen = named("all weights kept")
    q, k, v = (torch.randn(1, 2, 100, 16) for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        chosen.call(q, k, v)
    assert counter.get_total_flops() == chosen.flops(100, 16, 2)


def test_the_crossing_of_two_is_the_first_length_at_which_one_is_cheaper_for_good() -> None:
    full, linear = named("softmax"), named("linear")
    assert crossing(full, linear, 64, 12) == crossing(linear, full, 64, 12) == 65
    assert full.flops(64, 64, 12) == linear.flops(64, 64, 12)
    assert full.flops(65, 64, 12) > linear.flops(65, 64, 12)
    assert crossing(full, named("causal"), 64, 12) is None, "it is cheaper from the start"
    assert crossing(full, named("all weights kept"), 64, 12) is None, "they cost the same"


@pytest.mark.parametrize("each", EVERY, ids=lambda each: each.name)
def test_every_mechanism_can_be_timed(each: object) -> None:
    name = each.name  # type: ignore[attr-defined]
    values = ask(Explorer(), "timing", {"mechanism": name, "n": 512, "heads": 2, "width": 32}).values
    assert values["seconds"] > 0
    assert values["runs"] >= 1
    assert (values["n"], values["mechanism"]) == (512, name)


@pytest.mark.parametrize(
    "name, params, said",
    [
        ("cost", {"mechanisms": ["wonder"]}, "a mechanism must be one of all weights kept, softmax, .*; got 'wonder'"),
        ("cost", {"mechanisms": "softmax"}, "mechanisms must be a list of at most 10 names; got softmax"),
        ("cost", {"width": 100, "heads": 3}, "width must be a multiple of heads; got width=100, heads=3"),
        ("timing", {"mechanism": "softmax", "n": 200_000}, "n must be a whole number from 1 to 131072; got 200000"),
        ("timing", {"mechanism": "softmax", "n": 131_072, "heads": 64}, r"at most 4e\+12 FLOPs; got 2.8e\+14 for"),
    ],
)
def test_what_cannot_be_priced_is_refused(name: str, params: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        ask(Explorer(), name, params)
