"""Blocks and stacks compared with torch's, with the same weights."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard import mask
from regard.errors import ArgumentError
from regard.nn import BlockConfig, Decoder, Encoder, FeedForward, RotaryEmbedding, Transformer
from regard.nn.feed_forward import default_ffn_dim

CLOSE = dict(rtol=1e-3, atol=2e-5)  # float32 sums in a different order, through several layers
SIZES = dict(embed_dim=32, num_heads=4, ffn_dim=48)


def _assert_same_outputs_and_gradients(
    model: nn.Module, torch_model: nn.Module, output: Tensor, expected: Tensor, *inputs: Tensor
) -> None:
    """Compare the outputs, and the gradients of the inputs and of every parameter by name."""
    torch.testing.assert_close(output, expected, **CLOSE)
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    parameters, torch_parameters = dict(model.named_parameters()), dict(torch_model.named_parameters())
    assert set(parameters) == set(torch_parameters)
    gradients = torch.autograd.grad((output * weight).sum(), [*inputs, *parameters.values()])
    expected_gradients = torch.autograd.grad(
        (expected * weight).sum(), [*inputs, *(torch_parameters[name] for name in parameters)]
    )
    names = [*map(str, range(len(inputs))), *parameters]
    for name, gradient, expected_gradient in zip(names, gradients, expected_gradients, strict=True):
        torch.testing.assert_close(
            gradient, expected_gradient, rtol=1e-3, atol=2e-4, msg=lambda m, name=name: f"{name}: {m}"
        )


def _perturb_parameters(module: nn.Module) -> None:
    """Make norms differ from the identity, so that a norm in the wrong place changes the output."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_and_its_gradients_match_torch(norm_first: bool, activation: Any) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        32, 4, 48, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
    )
    torch_model = nn.TransformerEncoder(layer, 3, norm=nn.LayerNorm(32), enable_nested_tensor=False)
    _perturb_parameters(torch_model)
    model = Encoder(BlockConfig(**SIZES, activation=activation, norm_first=norm_first), num_layers=3)
    model.load_state_dict(torch_model.state_dict())
    x, lengths = torch.randn(3, 7, 32, requires_grad=True), torch.tensor([7, 5, 2])
    output = model(x, mask=mask.padding(lengths))
    expected = torch_model(x, src_key_padding_mask=torch.arange(7) >= lengths[:, None])
    _assert_same_outputs_and_gradients(model, torch_model, output, expected, x)


def test_encoder_without_final_norm_loads_into_torch() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
    torch_model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = Encoder(BlockConfig(**SIZES, activation="relu", norm_first=False), num_layers=2, final_norm=False)
    _perturb_parameters(model)
    torch_model.load_state_dict(model.state_dict())
    x = torch.randn(2, 5, 32, requires_grad=True)
    _assert_same_outputs_and_gradients(model, torch_model, model(x), torch_model(x), x)


@pytest.mark.parametrize("norm_first", [True, False])
def test_decoder_and_its_gradients_match_torch(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(32, 4, 48, dropout=0.0, batch_first=True, norm_first=norm_first)
    torch_model = nn.TransformerDecoder(layer, 2, norm=nn.LayerNorm(32))
    _perturb_parameters(torch_model)
    model = Decoder(
        BlockConfig(**SIZES, activation="relu", norm_first=norm_first), num_layers=2, add_cross_attention=True
    )
    model.load_state_dict(torch_model.state_dict())
    x, memory = torch.randn(2, 6, 32, requires_grad=True), torch.randn(2, 9, 32, requires_grad=True)
    causal = nn.Transformer.generate_square_subsequent_mask(6)
    _assert_same_outputs_and_gradients(
        model, torch_model, model(x, memory), torch_model(x, memory, tgt_mask=causal, tgt_is_causal=True), x, memory
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_and_its_gradients_match_torch(norm_first: bool, bias: bool) -> None:
    torch.manual_seed(0)
    torch_model = nn.Transformer(32, 4, 2, 2, 48, dropout=0.0, batch_first=True, norm_first=norm_first, bias=bias)
    _perturb_parameters(torch_model)
    model = Transformer(BlockConfig(**SIZES, activation="relu", norm_first=norm_first, bias=bias), num_layers=2)
    model.load_state_dict(torch_model.state_dict())
    source, target = torch.randn(2, 8, 32, requires_grad=True), torch.randn(2, 5, 32, requires_grad=True)
    lengths = torch.tensor([8, 3])
    hidden = torch.arange(8) >= lengths[:, None]
    output = model(source, target, src_mask=mask.padding(lengths))
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    options = dict(src_key_padding_mask=hidden, memory_key_padding_mask=hidden, tgt_mask=causal)
    _assert_same_outputs_and_gradients(
        model, torch_model, output, torch_model(source, target, **options), source, target
    )
    new_torch_model = nn.Transformer(32, 4, 2, 2, 48, dropout=0.0, batch_first=True, norm_first=norm_first, bias=bias)
    new_torch_model.load_state_dict(model.state_dict())


@pytest.mark.parametrize("activation, function", [("swiglu", nn.functional.silu), ("geglu", nn.functional.gelu)])
def test_gated_feed_forward_follows_its_formula(activation: str, function: Any) -> None:
    torch.manual_seed(0)
    layer = FeedForward(16, 24, activation=activation, bias=False)
    gate, up = layer.linear1.weight.chunk(2)
    x = torch.randn(3, 16)
    torch.testing.assert_close(layer(x), (function(x @ gate.mT) * (x @ up.mT)) @ layer.linear2.weight.mT)


def test_gelu_and_its_tanh_approximation_differ() -> None:
    torch.manual_seed(0)
    exact, approximate = FeedForward(8, activation="gelu"), FeedForward(8, activation="gelu_tanh")
    approximate.load_state_dict(exact.state_dict())
    x = 3 * torch.randn(100, 8)
    h = x @ exact.linear1.weight.mT + exact.linear1.bias
    erf = h * 0.5 * (1 + torch.erf(h / 2**0.5))
    torch.testing.assert_close(exact(x), erf @ exact.linear2.weight.mT + exact.linear2.bias)
    assert not torch.equal(exact(x), approximate(x))
    torch.testing.assert_close(exact(x), approximate(x), rtol=0, atol=5e-3)


def test_default_ffn_dim_of_gated_activations_costs_the_same() -> None:
    assert default_ffn_dim(768, "gelu") == 3072
    assert default_ffn_dim(768, "swiglu") == 2048
    assert default_ffn_dim(256, "swiglu") == 688  # 682.67, rounded up to a multiple of 8


def test_block_configs_alternate() -> None:
    torch.manual_seed(0)
    local, full = (
        BlockConfig(32, num_heads=4, sliding_window=3),
        BlockConfig(32, num_heads=4, has_position_encoding=False),
    )
    stack = Decoder((local, full), num_layers=4, position_encoding=RotaryEmbedding(8), final_norm=False)
    x = torch.randn(1, 9, 32)
    y = x
    for layer, block in enumerate(stack.layers):
        if layer % 2 == 0:
            y = block(
                y,
                mask=mask.causal() & mask.sliding_window(3),
                position_encoding=RotaryEmbedding(8),
                position_ids=torch.arange(9),
            )
        else:
            y = block(y, mask=mask.causal())
    torch.testing.assert_close(stack(x), y)


def test_a_stack_returns_the_weights_of_each_layer() -> None:
    torch.manual_seed(0)
    transformer = Transformer(BlockConfig(**SIZES), num_layers=2)
    source, target = torch.randn(1, 7, 32), torch.randn(1, 4, 32)
    memory = transformer.encoder(source)
    results = transformer.decoder.attention_with_weights(target, memory)
    assert len(results) == 2
    assert results[1].cross_attention is not None
    assert results[1].cross_attention.weights[...].shape == (1, 4, 4, 7)
    assert bool((results[1].self_attention.weights[...].triu(1) == 0).all())
    first = transformer.decoder.layers[0]
    x = first.norm1(target)
    torch.testing.assert_close(
        results[0].self_attention.weights[...],
        first.self_attn.attention_with_weights(x, mask=mask.causal()).weights[...],
        rtol=1e-5,
        atol=1e-6,
    )


def test_invalid_block_configs_raise() -> None:
    with pytest.raises(ArgumentError, match="sliding_window must be an integer from 1 to 2147483647; got 0"):
        BlockConfig(**SIZES, sliding_window=0)
    with pytest.raises(ArgumentError, match=r"block_config must hold at least one BlockConfig; got an empty sequence"):
        Encoder((), num_layers=2)


def test_cross_attention_without_a_memory_raises() -> None:
    with pytest.raises(ArgumentError, match=r"needs a memory; got None. Pass memory="):
        Decoder(BlockConfig(**SIZES), num_layers=1, add_cross_attention=True)(torch.randn(1, 3, 32))


def test_a_deep_copy_of_a_stack_computes_the_same() -> None:
    torch.manual_seed(0)
    stack = Decoder(BlockConfig(**SIZES), num_layers=2, position_encoding=RotaryEmbedding(8)).eval()
    x = torch.randn(2, 6, 32)
    torch.testing.assert_close(copy.deepcopy(stack)(x), stack(x), rtol=0, atol=0)
