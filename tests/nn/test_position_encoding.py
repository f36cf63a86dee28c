"""Position encodings compared with Hugging Face's rotary embeddings and T5 buckets, and with published numbers."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from regard import attention_with_weights, mask, score
from regard.errors import ArgumentError
from regard.nn import (
    ALiBi,
    BlockConfig,
    Decoder,
    Encoder,
    LearnedPositionalEmbedding,
    LinearRopeScaling,
    Llama3RopeScaling,
    MultiHeadAttention,
    NTKRopeScaling,
    PositionEncoding,
    RotaryEmbedding,
    SinusoidalPositionalEmbedding,
    T5Bias,
    TokenEmbedding,
    YarnRopeScaling,
)

HEAD_DIM, MAX_LEN = 64, 512


def test_sinusoidal_embeddings_are_the_published_ones() -> None:
    embeddings = SinusoidalPositionalEmbedding(4).apply_to_embeddings(torch.zeros(1, 3, 4), torch.arange(3))[0]
    expected = [
        [0.0, 1.0, 0.0, 1.0],
        [0.841471, 0.540302, 0.00999983, 0.999950],
        [0.909297, -0.416147, 0.0199987, 0.9998],
    ]
    torch.testing.assert_close(embeddings, torch.tensor(expected), rtol=0, atol=1e-6)


def test_a_shift_of_sinusoidal_embeddings_is_a_rotation() -> None:
    sine, cosine = SinusoidalPositionalEmbedding(16).encode(torch.arange(50)).unflatten(-1, (8, 2)).unbind(-1)
    angle = 3 * 10000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    shifted_sine = sine * angle.cos() + cosine * angle.sin()
    shifted_cosine = cosine * angle.cos() - sine * angle.sin()
    torch.testing.assert_close(shifted_sine[:-3], sine[3:], rtol=0, atol=1e-12)
    torch.testing.assert_close(shifted_cosine[:-3], cosine[3:], rtol=0, atol=1e-12)


SCALINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "default": (None, {"rope_type": "default"}),
    "linear": (LinearRopeScaling(4.0), {"rope_type": "linear", "factor": 4.0}),
    "llama3": (
        Llama3RopeScaling(8.0, original_max_len=MAX_LEN),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": MAX_LEN,
        },
    ),
    "yarn": (
        YarnRopeScaling(4.0, original_max_len=MAX_LEN),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": MAX_LEN},
    ),
}


@pytest.mark.parametrize("kind", SCALINGS)
def test_rotary_embeddings_match_hugging_face(kind: str) -> None:
    scaling, rope_parameters = SCALINGS[kind]
    config = LlamaConfig(
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        max_position_embeddings=4 * MAX_LEN,
        rope_parameters={"rope_theta": 10000.0, **rope_parameters},
    )
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, 40, HEAD_DIM), torch.randn(1, 2, 40, HEAD_DIM)
    position_ids = torch.arange(700, 740)
    cosine, sine = LlamaRotaryEmbedding(config)(q, position_ids[None])
    expected = apply_rotary_pos_emb(q, k, cosine, sine)
    output = RotaryEmbedding(HEAD_DIM, scaling=scaling).apply_to_qk(q, k, position_ids)
    for rotated, expected_rotated in zip(output, expected, strict=True):
        # Hugging Face computes angles in float32
        torch.testing.assert_close(rotated, expected_rotated, rtol=0, atol=5e-4)


def test_ntk_scaling_lowers_all_but_the_highest_frequency() -> None:
    unscaled = RotaryEmbedding(HEAD_DIM).inv_freq
    scaled = RotaryEmbedding(HEAD_DIM, scaling=NTKRopeScaling(8.0)).inv_freq
    assert unscaled[0] == scaled[0]
    torch.testing.assert_close(unscaled[-1] / scaled[-1], torch.tensor(8.0, dtype=torch.float64))
    assert bool((unscaled[1:] > scaled[1:]).all())


def test_both_layouts_rotate_a_reference_vector() -> None:
    x, position_ids = torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]]), torch.tensor([1])
    output = {
        layout: RotaryEmbedding(4, layout=layout).apply_to_qk(x, x, position_ids)[0].flatten()
        for layout in ("interleaved", "half")
    }
    expected = {
        "interleaved": torch.tensor([-1.142640, 1.922076, 2.959851, 4.029800]),
        "half": torch.tensor([-1.984111, 1.959901, 2.462378, 4.019800]),
    }
    torch.testing.assert_close(output, expected, rtol=0, atol=2e-6)


def test_batch_elements_may_have_different_positions() -> None:
    q, k = torch.randn(2, 2, 4, 6, 8).unbind(0)
    position_ids = torch.stack((torch.arange(6), torch.arange(100, 106)))
    rotated_q, rotated_k = RotaryEmbedding(8).apply_to_qk(q, k, position_ids)
    for b in range(2):
        expected_q, expected_k = RotaryEmbedding(8).apply_to_qk(q[b : b + 1], k[b : b + 1], position_ids[b])
        torch.testing.assert_close(rotated_q[b : b + 1], expected_q)
        torch.testing.assert_close(rotated_k[b : b + 1], expected_k)


def test_cached_angles_are_used_only_for_the_same_positions() -> None:
    rotary, q = RotaryEmbedding(8), torch.randn(1, 1, 4, 8)
    first = rotary.apply_to_qk(q, q, torch.arange(4))[0]
    later = rotary.apply_to_qk(q, q, torch.arange(4) + 9)[0]
    assert not torch.allclose(first, later)
    torch.testing.assert_close(rotary.apply_to_qk(q, q, torch.arange(4))[0], first, rtol=0, atol=0)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_bias_matches_hugging_face(bidirectional: bool) -> None:
    torch.manual_seed(0)
    bias, n = T5Bias(3, bidirectional=bidirectional), 300
    distance = torch.arange(n)[None] - torch.arange(n)[:, None]
    buckets = T5Attention._relative_position_bucket(distance, bidirectional=bidirectional)
    zero = torch.zeros(1, 3, n, 4)
    weights = attention_with_weights(zero, zero, zero, score=bias.score_modifier()).weights[...]
    torch.testing.assert_close(weights, bias.weight[buckets].permute(2, 0, 1).softmax(-1)[None], rtol=1e-4, atol=1e-6)


def test_t5_bias_gets_gradients_and_uses_a_replaced_parameter() -> None:
    torch.manual_seed(0)
    bias, layer, x = T5Bias(4), MultiHeadAttention(32, 4), torch.randn(1, 9, 32)
    layer(x, position_encoding=bias).sum().backward()
    assert bias.weight.grad is not None and bool((bias.weight.grad != 0).any())
    before = layer(x, position_encoding=bias)
    bias.load_state_dict({"weight": torch.randn(32, 4)}, assign=True)
    assert not torch.allclose(layer(x, position_encoding=bias), before)


def test_alibi_slopes_are_the_published_ones() -> None:
    zero = torch.zeros(1, 8, 5, 4)
    result = attention_with_weights(zero, zero, zero, score=ALiBi(8).score_modifier(), mask=mask.causal())
    torch.testing.assert_close(result.weights[0, 0, 4], (-0.5 * torch.arange(4, -1, -1.0)).softmax(0))


def test_positions_beyond_a_learned_embedding_raise() -> None:
    with pytest.raises(ArgumentError, match="position_ids must be from 0 to 7; got 0 to 8"):
        LearnedPositionalEmbedding(8, 4).apply_to_embeddings(torch.zeros(1, 9, 4), torch.arange(9))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: SinusoidalPositionalEmbedding(5), "embed_dim of SinusoidalPositionalEmbedding must be even; got 5"),
        (lambda: RotaryEmbedding(5), "rope_dim of RotaryEmbedding must be even; got 5"),
        (lambda: RotaryEmbedding(4, layout="other"), "layout must be one of 'half', 'interleaved'; got 'other'"),
    ],
)
def test_odd_dimensions_and_unknown_layouts_raise(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_the_base_class_leaves_its_inputs_unchanged() -> None:
    x, q = torch.randn(1, 3, 4), torch.randn(1, 1, 3, 4)
    position, position_ids = PositionEncoding(), torch.arange(3)
    assert position.apply_to_embeddings(x, position_ids) is x
    assert position.apply_to_qk(q, q, position_ids) == (q, q)
    assert position.score_modifier() is None


def test_token_embedding_shares_its_matrix_with_the_logits() -> None:
    torch.manual_seed(0)
    embedding = TokenEmbedding(10, 16, scale_embedding=True)
    tokens = torch.tensor([[3, 7]])
    torch.testing.assert_close(embedding(tokens), 4.0 * embedding.weight[tokens])
    torch.testing.assert_close(embedding.logits(embedding(tokens)), embedding(tokens) @ embedding.weight.mT)
    embedding.logits(embedding(tokens)).sum().backward()
    assert len(list(embedding.parameters())) == 1


def test_a_model_can_be_trained_after_inference_mode() -> None:
    stack, x = (
        Decoder(BlockConfig(16, num_heads=4), num_layers=1, position_encoding=RotaryEmbedding(4)),
        torch.randn(1, 6, 16),
    )
    with torch.inference_mode():
        stack(x)
    stack(x).sum().backward()
    assert all(p.grad is not None for p in stack.parameters())


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotary_is_exact_in_float64(layout: str) -> None:
    q, k = torch.randn(2, 1, 2, 9, 8, dtype=torch.float64)
    position_ids, rotary = torch.arange(9) + 12_345, RotaryEmbedding(8, layout=layout)
    rotary.apply_to_qk(q.float(), k.float(), position_ids)  # caches float32 angles, which must not be reused
    output, expected = rotary.apply_to_qk(q, k, position_ids), score.rotary(q, k, position_ids, layout=layout)
    for rotated, expected_rotated in zip(output, expected, strict=True):
        torch.testing.assert_close(rotated, expected_rotated, rtol=0, atol=1e-15)


@pytest.mark.parametrize("head_dim", [8, 9])
def test_a_rope_dim_larger_than_the_head_dim_raises(head_dim: int) -> None:
    layer = MultiHeadAttention(16, num_heads=2, head_dim=head_dim)
    with pytest.raises(ArgumentError, match=rf"rope_dim must be at most .*; got rope_dim=16, head_dim={head_dim}"):
        layer(torch.randn(1, 3, 16), position_encoding=RotaryEmbedding(16))


@pytest.mark.parametrize("position", [ALiBi(4), T5Bias(4)], ids=["alibi", "t5"])
def test_score_modifiers_with_gaps_in_position_ids_raise(position: PositionEncoding) -> None:
    stack, x = Encoder(BlockConfig(16, num_heads=4), num_layers=1, position_encoding=position), torch.randn(1, 3, 16)
    torch.testing.assert_close(stack(x, position_ids=torch.arange(3) + 7), stack(x))
    for call in (stack, stack.attention_with_weights):
        with pytest.raises(ArgumentError, match=r"position_ids must be consecutive .* got \[0, 50, 90\]"):
            call(x, position_ids=torch.tensor([0, 50, 90]))


def test_ntk_scaling_of_a_single_pair_raises() -> None:
    with pytest.raises(ArgumentError, match=r"NTKRopeScaling needs a rope_dim of at least 4; got 2"):
        RotaryEmbedding(2, scaling=NTKRopeScaling(2.0))
