"""Positions against what others publish: Hugging Face's rotary embeddings and T5 buckets, and numbers by hand."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from regard import mask, score
from regard.errors import SpecError
from regard.nn import (
    ALiBi,
    Decoder,
    Design,
    Encoder,
    Learned,
    LinearScaling,
    Llama3Scaling,
    MultiHeadAttention,
    NTKScaling,
    Position,
    RelativeBias,
    Rotary,
    Sinusoidal,
    TokenEmbedding,
    YarnScaling,
)

WIDTH, LONGEST = 64, 512


def test_sinusoidal_positions_are_the_published_ones() -> None:
    found = Sinusoidal(4).added(torch.zeros(1, 3, 4), torch.arange(3))[0]
    expected = [
        [0.0, 1.0, 0.0, 1.0],
        [0.841471, 0.540302, 0.00999983, 0.999950],
        [0.909297, -0.416147, 0.0199987, 0.9998],
    ]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=1e-6)


def test_a_step_on_is_the_same_turn_everywhere() -> None:
    table = Sinusoidal(16).table(torch.arange(50))
    turn = torch.linalg.lstsq(table[:-3], table[3:]).solution
    torch.testing.assert_close(table[:-3] @ turn, table[3:], rtol=0, atol=1e-9)


SCALINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "default": (None, {"rope_type": "default"}),
    "linear": (LinearScaling(4.0), {"rope_type": "linear", "factor": 4.0}),
    "llama3": (
        Llama3Scaling(8.0, longest=LONGEST),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": LONGEST,
        },
    ),
    "yarn": (
        YarnScaling(4.0, longest=LONGEST),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": LONGEST},
    ),
}


@pytest.mark.parametrize("kind", SCALINGS)
def test_rotary_positions_are_those_of_hugging_face(kind: str) -> None:
    scaling, words = SCALINGS[kind]
    config = LlamaConfig(
        hidden_size=2 * WIDTH,
        num_attention_heads=2,
        max_position_embeddings=4 * LONGEST,
        rope_parameters={"rope_theta": 10000.0, **words},
    )
    torch.manual_seed(0)
    q, k, at = torch.randn(1, 2, 40, WIDTH), torch.randn(1, 2, 40, WIDTH), torch.arange(700, 740)
    cosine, sine = LlamaRotaryEmbedding(config)(q, at[None])
    expected = apply_rotary_pos_emb(q, k, cosine, sine)
    found = Rotary(WIDTH, scaling=scaling).turned(q, k, at)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=5e-4)  # theirs turns by float32 angles


def test_a_larger_base_slows_all_but_the_fastest_features() -> None:
    plain, slowed = Rotary(WIDTH).speed, Rotary(WIDTH, scaling=NTKScaling(8.0)).speed
    assert plain[0] == slowed[0]
    torch.testing.assert_close(plain[-1] / slowed[-1], torch.tensor(8.0, dtype=torch.float64))
    assert bool((plain[1:] > slowed[1:]).all())


def test_both_layouts_turn_the_reference_vector() -> None:
    x, at = torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]]), torch.tensor([1])
    found = {kind: Rotary(4, layout=kind).turned(x, x, at)[0].flatten() for kind in ("interleaved", "half")}
    expected = {
        "interleaved": torch.tensor([-1.142640, 1.922076, 2.959851, 4.029800]),
        "half": torch.tensor([-1.984111, 1.959901, 2.462378, 4.019800]),
    }
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_each_batch_element_may_stand_elsewhere() -> None:
    q, k = torch.randn(2, 2, 4, 6, 8).unbind(0)
    at = torch.stack((torch.arange(6), torch.arange(100, 106)))
    both = Rotary(8).turned(q, k, at)
    for b in range(2):
        alone = Rotary(8).turned(q[b : b + 1], k[b : b + 1], at[b])
        torch.testing.assert_close(both[0][b : b + 1], alone[0])
        torch.testing.assert_close(both[1][b : b + 1], alone[1])


def test_angles_are_kept_only_for_the_same_positions() -> None:
    rotary, q = Rotary(8), torch.randn(1, 1, 4, 8)
    first = rotary.turned(q, q, torch.arange(4))[0]
    later = rotary.turned(q, q, torch.arange(4) + 9)[0]
    assert not torch.allclose(first, later)
    torch.testing.assert_close(rotary.turned(q, q, torch.arange(4))[0], first, rtol=0, atol=0)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_bias_is_that_of_t5(bidirectional: bool) -> None:
    torch.manual_seed(0)
    bias, n = RelativeBias(3, bidirectional=bidirectional), 300
    distance = torch.arange(n)[None] - torch.arange(n)[:, None]
    buckets = T5Attention._relative_position_bucket(distance, bidirectional=bidirectional)
    zero = torch.zeros(1, 3, n, 4)
    from regard import attend

    found = attend(zero, zero, zero, score=bias.rule()).weights[...]
    torch.testing.assert_close(found, bias.weight[buckets].permute(2, 0, 1).softmax(-1)[None], rtol=1e-4, atol=1e-6)


def test_a_learned_bias_gets_gradients_and_follows_a_new_table() -> None:
    torch.manual_seed(0)
    bias, layer, x = RelativeBias(4), MultiHeadAttention(32, 4), torch.randn(1, 9, 32)
    layer(x, position=bias).sum().backward()
    assert bias.weight.grad is not None and bool((bias.weight.grad != 0).any())
    before = layer(x, position=bias)
    bias.load_state_dict({"weight": torch.randn(32, 4)}, assign=True)
    assert not torch.allclose(layer(x, position=bias), before)


def test_alibi_slopes_are_the_published_ones() -> None:
    from regard import attend

    zero = torch.zeros(1, 8, 5, 4)
    found = attend(zero, zero, zero, score=ALiBi(8).rule(), mask=mask.causal()).weights[0, 0, 4]
    torch.testing.assert_close(found, (-0.5 * torch.arange(4, -1, -1.0)).softmax(0))


def test_learned_positions_end() -> None:
    with pytest.raises(SpecError, match="learned positions end at 7; got a token at 8"):
        Learned(8, 4).added(torch.zeros(1, 9, 4), torch.arange(9))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Sinusoidal(5), "an even width; got 5"),
        (lambda: Rotary(5), "an even width; got 5"),
        (lambda: Rotary(4, layout="other"), "layout must be one of 'half', 'interleaved'; got 'other'"),
    ],
)
def test_widths_and_layouts_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()


def test_a_position_that_says_nothing_changes_nothing() -> None:
    x, q = torch.randn(1, 3, 4), torch.randn(1, 1, 3, 4)
    position, at = Position(), torch.arange(3)
    assert position.added(x, at) is x
    assert position.turned(q, q, at) == (q, q)
    assert position.rule() is None


def test_one_table_reads_and_writes_tokens() -> None:
    torch.manual_seed(0)
    table = TokenEmbedding(10, 16, scaled=True)
    tokens = torch.tensor([[3, 7]])
    torch.testing.assert_close(table(tokens), 4.0 * table.weight[tokens])
    torch.testing.assert_close(table.logits(table(tokens)), table(tokens) @ table.weight.mT)
    (table.logits(table(tokens))).sum().backward()
    assert len(list(table.parameters())) == 1


def test_a_model_that_was_tried_in_inference_mode_can_be_trained() -> None:
    stack, x = Decoder(Design(16, heads=4), layers=1, position=Rotary(4)), torch.randn(1, 6, 16)
    with torch.inference_mode():
        stack(x)
    stack(x).sum().backward()
    assert all(p.grad is not None for p in stack.parameters())


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotary_is_exact_in_float64(layout: str) -> None:
    q, k = torch.randn(2, 1, 2, 9, 8, dtype=torch.float64)
    at, rotary = torch.arange(9) + 12_345, Rotary(8, layout=layout)
    rotary.turned(q.float(), k.float(), at)  # what is kept of that is not enough
    for found, expected in zip(rotary.turned(q, k, at), score.rotary(q, k, at, layout=layout), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("head_width", [8, 9])
def test_rotary_wider_than_what_it_turns_is_refused(head_width: int) -> None:
    layer = MultiHeadAttention(16, heads=2, head_width=head_width)
    with pytest.raises(SpecError, match=rf"no wider than what it turns; got a width of 16 for {head_width}"):
        layer(torch.randn(1, 3, 16), position=Rotary(16))


@pytest.mark.parametrize("position", [ALiBi(4), RelativeBias(4)], ids=["alibi", "t5"])
def test_rules_refuse_places_that_leave_some_out(position: Position) -> None:
    stack, x = Encoder(Design(16, heads=4), layers=1, position=position), torch.randn(1, 3, 16)
    torch.testing.assert_close(stack(x, at=torch.arange(3) + 7), stack(x))
    for call in (stack, stack.attend):
        with pytest.raises(SpecError, match=r"`at` must leave none out; got \[0, 50, 90\]"):
            call(x, at=torch.tensor([0, 50, 90]))


def test_one_pair_of_features_cannot_be_told_apart() -> None:
    with pytest.raises(SpecError, match=r"NTKScaling tells slow features from fast ones; got a width of 2"):
        Rotary(2, scaling=NTKScaling(2.0))
