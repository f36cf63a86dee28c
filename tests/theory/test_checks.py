"""The checks of layers: they pass what is right, find what is wrong, and say where."""

import pytest
import torch
from torch import nn

import regard
from regard import mask, weigh
from regard.errors import SpecError
from regard.nn import ALiBi, Decoder, Design, Encoder, MultiHeadAttention, Rotary
from regard.theory import (
    Finding,
    Place,
    check_causality,
    check_equivariance,
    check_independence,
    check_normalised,
    influence,
    planted,
)

WIDTH = 8
DESIGN = Design(width=WIDTH, heads=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layers_of_regard_and_torch_without_positions_are_equivariant(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layers = [
        MultiHeadAttention(WIDTH, 2),
        Encoder(DESIGN, 2),
        nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        nn.MultiheadAttention(WIDTH, 2),  # which has the batch second
        nn.TransformerEncoderLayer(WIDTH, 2, batch_first=True),
    ]
    for layer in layers:
        found = check_equivariance(layer.to(dtype).eval(), WIDTH)
        assert found.holds and found.places == (), f"{type(layer).__name__}\n{found}"
        assert check_independence(layer, WIDTH).holds


def test_torchs_layer_with_the_batch_second_is_fed_texts_and_not_positions() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(WIDTH, 2).double()
    assert check_independence(layer, WIDTH, lengths=(5,)).holds
    # fed wrongly it lets texts of a batch see each other, and the check says so
    assert not check_independence(lambda x: layer(x, x, x)[0], WIDTH, lengths=(5,)).holds


@pytest.mark.parametrize("position", [None, Rotary(4), ALiBi(2)], ids=["none", "rotary", "alibi"])
def test_decoders_are_causal_and_not_equivariant(position: nn.Module | None) -> None:
    torch.manual_seed(0)
    layer = Decoder(DESIGN, 2, position=position).double()
    assert check_causality(layer, WIDTH).holds
    assert not check_equivariance(layer, WIDTH).holds


def test_an_encoder_is_not_causal_and_every_later_input_is_named() -> None:
    found = check_causality(Encoder(DESIGN, 1).double(), WIDTH, lengths=(4,))
    assert not found.holds
    assert {(p.output, p.input) for p in found.places} == {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}
    assert found.error == max(place.error for place in found.places)


def test_the_largest_error_is_named_first() -> None:
    sees = torch.tensor([[1.0, 0.1, 0.5], [0.0, 1.0, 5.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    found = check_causality(lambda x: sees @ x, WIDTH, lengths=(3,))
    assert [(place.output, place.input) for place in found.places] == [(1, 2), (0, 2), (0, 1)]
    a = torch.tensor([[0.9, 0.0], [0.5, 0.0], [0.7, 0.0]])
    assert [place.output for place in check_normalised(a).places] == [(1,), (2,), (0,)]


def test_a_layer_of_hugging_face_is_checked_through_a_function() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=WIDTH, n_head=2, n_layer=1, n_positions=64, vocab_size=10)
    model = transformers.GPT2Model(config).double().eval()
    assert check_causality(lambda x: model(inputs_embeds=x)[0], WIDTH, lengths=(2, 5, 9)).holds
    assert not check_equivariance(lambda x: model(inputs_embeds=x)[0], WIDTH, lengths=(5,)).holds


@pytest.mark.parametrize("name", planted.leaks(16))
def test_every_leaking_mask_is_found(name: str) -> None:
    assert not check_causality(planted.leaks(16)[name], WIDTH).holds


def test_a_leak_at_one_pair_is_named_and_nothing_else() -> None:
    found = check_causality(planted.leaks(16)["one pair"], WIDTH)
    assert {(p.output, p.input) for p in found.places} == {(8, 9)}
    assert {p.length for p in found.places} == {15, 16, 17, 31, 32, 33}


def test_a_leak_at_one_length_is_found_by_the_lengths_that_are_tried_unless_told_otherwise() -> None:
    for length in (2, 8, 16, 17, 32):
        found = check_causality(planted.leaks(length)["only at one length"], WIDTH)
        assert {p.length for p in found.places} == {length}
    assert check_causality(planted.leaks(16)["only at one length"], WIDTH, lengths=(15, 17)).holds


def test_a_leak_of_a_small_weight_is_found() -> None:
    def leaking(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(1) + 1e-9 * x.roll(-1, 1)

    found = check_causality(leaking, WIDTH, lengths=(6,))
    assert not found.holds and found.error < 1e-8


@pytest.mark.parametrize("name", planted.order_dependent())
def test_every_dependence_on_order_is_found(name: str) -> None:
    assert not check_equivariance(planted.order_dependent()[name], WIDTH).holds


def test_poolings_that_do_not_care_about_order_pass() -> None:
    for pool in (lambda x: x.mean(1), lambda x: x.amax(1), lambda x: regard.attention(x, x, x).sum(1)):
        assert check_equivariance(pool, WIDTH).holds


def test_one_position_that_is_treated_otherwise_is_named() -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([2 * x[:, :1], x[:, 1:]], 1)

    found = check_equivariance(first, WIDTH, lengths=(5,))
    assert {p.output for p in found.places if p.error > 0.1} >= {0}
    assert not found.holds


@pytest.mark.parametrize("name", planted.mixing())
def test_every_way_from_one_text_to_another_is_found(name: str) -> None:
    found = check_independence(planted.mixing()[name], WIDTH)
    assert not found.holds and {(p.output, p.input) for p in found.places} == {(0, 1), (1, 0)}


def test_weights_of_the_library_are_normalised() -> None:
    q, k = torch.randn(2, 3, 7, 4), torch.randn(2, 3, 9, 4)
    for options in ({}, {"mask": mask.causal()}, {"weigh": weigh.sparsemax()}, {"weigh": weigh.sinkhorn(3)}):
        assert check_normalised(regard.attend(q, k, k, **options).weights).holds
    for options in ({"weigh": weigh.sink()}, {"weigh": weigh.sigmoid()}):
        assert not check_normalised(regard.attend(q, k, k, **options).weights).holds


@pytest.mark.parametrize("name", planted.unnormalised(torch.zeros(2, 2)))
def test_every_wrong_way_to_make_weights_is_found(name: str) -> None:
    torch.manual_seed(0)
    assert not check_normalised(planted.unnormalised(torch.randn(8, 8))[name]).holds


def test_the_row_that_does_not_sum_to_one_is_named() -> None:
    a = torch.full((2, 3, 4), 0.25)
    a[1, 2, 0] = 0.0
    found = check_normalised(a)
    assert [(p.output, round(p.error, 3)) for p in found.places] == [((1, 2), 0.25)]


def test_negative_weights_that_sum_to_one_and_numbers_that_are_none_are_found() -> None:
    assert check_normalised(torch.tensor([[1.5, -0.5]])).error == pytest.approx(0.5)
    assert not check_normalised(torch.tensor([[float("nan"), 1.0]])).holds


def test_what_a_mask_hides_must_weigh_exactly_nothing() -> None:
    seen = torch.tensor([[True, False], [False, False]])
    assert check_normalised(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), mask=seen).holds
    assert not check_normalised(torch.tensor([[1.0, 1e-20], [0.0, 0.0]]), mask=seen).holds
    assert not check_normalised(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), mask=seen).holds
    q = torch.randn(5, 4)
    weights = regard.attend(q, q, q, mask=mask.causal() & mask.window(2)).weights
    assert check_normalised(weights, mask=torch.ones(5, 5).tril().triu(-1) > 0).holds
    assert not check_normalised(weights, mask=torch.ones(5, 5).tril().triu(0) > 0).holds


def test_influence_is_what_changes() -> None:
    found = influence(lambda x: x.roll(1, 1), torch.randn(2, 4, WIDTH))
    assert torch.equal(found > 0, torch.eye(4).roll(1, 0) > 0)


def test_a_layer_that_makes_numbers_that_are_none_does_not_pass() -> None:
    found = check_causality(lambda x: x * float("nan"), WIDTH, lengths=(3,))
    assert not found.holds and found.error == float("inf")


def test_a_layer_that_answers_at_random_is_refused() -> None:
    layer = Encoder(Design(width=WIDTH, heads=2, dropout=0.5), 1)
    with pytest.raises(SpecError, match=r"the same answer twice to be checked; got answers [\d.]+ apart. Call .eval"):
        check_causality(layer, WIDTH)
    assert not check_causality(layer.eval(), WIDTH).holds


def test_coarse_numbers_are_refused_unless_it_is_said_what_is_allowed() -> None:
    layer = Decoder(DESIGN, 1).bfloat16()
    with pytest.raises(SpecError, match=r"float32 or float64.*got torch\.bfloat16"):
        check_causality(layer, WIDTH)
    assert check_causality(layer, WIDTH, within=0.0).holds


def test_what_is_no_layer_is_refused() -> None:
    with pytest.raises(SpecError, match=r"a tensor of 2 texts, as it got; got shape \(8,\)"):
        check_equivariance(lambda x: x.sum((0, 1)), WIDTH)
    with pytest.raises(SpecError, match=r"a tensor of 2 texts, as it got; got NoneType"):
        check_equivariance(lambda x: None, WIDTH)
    with pytest.raises(SpecError, match=r"must give back \(batch, 1, ...\); got shape \(2, 8\)"):
        check_causality(lambda x: x.sum(1), WIDTH)
    with pytest.raises(
        SpecError, match=r"weights must be \(..., n_q, n_k\) in floats; got torch\.int64 of shape \(2,\)"
    ):
        check_normalised(torch.tensor([1, 2]))


def test_a_finding_prints_the_first_places_and_how_many_more() -> None:
    places = tuple(Place(n, n + 1, 9, 0.5) for n in range(7))
    said = str(Finding("it is so", False, 0.5, 0.1, places)).splitlines()
    assert said[0] == "does not hold: it is so; off by 0.5, allowed 0.1"
    assert said[1] == "  output 0, input 1, of 9 positions: off by 0.5"
    assert len(said) == 7 and said[-1] == "  and 2 more"
    assert str(Finding("it is so", True, 0.0, 0.1)) == "holds: it is so; off by 0, allowed 0.1"
