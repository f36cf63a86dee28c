"""Blocks and stacks against torch's own, weights copied."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard import mask
from regard.errors import SpecError
from regard.nn import Decoder, Design, Encoder, FeedForward, Rotary, Transformer
from regard.nn.feedforward import hidden_width

CLOSE = dict(rtol=1e-3, atol=2e-5)  # float32 sums in another order, through several layers
SIZES = dict(width=32, heads=4, hidden=48)


def _same(ours: nn.Module, theirs: nn.Module, mine: Tensor, other: Tensor, *inputs: Tensor) -> None:
    """Outputs, and gradients of inputs and of every parameter, by name."""
    torch.testing.assert_close(mine, other, **CLOSE)
    weight = torch.randn(mine.shape, generator=torch.Generator().manual_seed(1))
    names = [name for name, _ in ours.named_parameters()]
    assert set(names) == {name for name, _ in theirs.named_parameters()}
    my_parameters, their_parameters = dict(ours.named_parameters()), dict(theirs.named_parameters())
    first = torch.autograd.grad((mine * weight).sum(), [*inputs, *(my_parameters[n] for n in names)])
    second = torch.autograd.grad((other * weight).sum(), [*inputs, *(their_parameters[n] for n in names)])
    for name, one, two in zip([*map(str, range(len(inputs))), *names], first, second, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=2e-4, msg=lambda m, name=name: f"{name}: {m}")


def _shaken(module: nn.Module) -> None:
    """Norms that do something, so that one in the wrong place shows."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_an_encoder_is_that_of_torch_with_gradients(norm_first: bool, activation: Any) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        32, 4, 48, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
    )
    theirs = nn.TransformerEncoder(layer, 3, norm=nn.LayerNorm(32), enable_nested_tensor=False)
    _shaken(theirs)
    ours = Encoder(Design(**SIZES, activation=activation, norm_first=norm_first), layers=3)
    ours.load_state_dict(theirs.state_dict())
    x, lengths = torch.randn(3, 7, 32, requires_grad=True), torch.tensor([7, 5, 2])
    mine = ours(x, mask=mask.padding(lengths))
    other = theirs(x, src_key_padding_mask=torch.arange(7) >= lengths[:, None])
    _same(ours, theirs, mine, other, x)


def test_an_encoder_without_a_last_norm_is_that_of_torch_and_loads_back() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    ours = Encoder(Design(**SIZES, activation="relu", norm_first=False), layers=2, norm=False)
    _shaken(ours)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 5, 32, requires_grad=True)
    _same(ours, theirs, ours(x), theirs(x), x)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_decoder_is_that_of_torch_with_gradients(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(32, 4, 48, dropout=0.0, batch_first=True, norm_first=norm_first)
    theirs = nn.TransformerDecoder(layer, 2, norm=nn.LayerNorm(32))
    _shaken(theirs)
    ours = Decoder(Design(**SIZES, activation="relu", norm_first=norm_first), layers=2, cross=True)
    ours.load_state_dict(theirs.state_dict())
    x, memory = torch.randn(2, 6, 32, requires_grad=True), torch.randn(2, 9, 32, requires_grad=True)
    causal = nn.Transformer.generate_square_subsequent_mask(6)
    _same(ours, theirs, ours(x, memory), theirs(x, memory, tgt_mask=causal, tgt_is_causal=True), x, memory)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_a_transformer_is_that_of_torch_with_gradients_and_loads_back(norm_first: bool, bias: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.Transformer(32, 4, 2, 2, 48, dropout=0.0, batch_first=True, norm_first=norm_first, bias=bias)
    _shaken(theirs)
    ours = Transformer(Design(**SIZES, activation="relu", norm_first=norm_first, bias=bias), layers=2)
    ours.load_state_dict(theirs.state_dict())
    source, target = torch.randn(2, 8, 32, requires_grad=True), torch.randn(2, 5, 32, requires_grad=True)
    lengths = torch.tensor([8, 3])
    hidden = torch.arange(8) >= lengths[:, None]
    mine = ours(source, target, source_mask=mask.padding(lengths))
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    options = dict(src_key_padding_mask=hidden, memory_key_padding_mask=hidden, tgt_mask=causal)
    _same(ours, theirs, mine, theirs(source, target, **options), source, target)
    again = nn.Transformer(32, 4, 2, 2, 48, dropout=0.0, batch_first=True, norm_first=norm_first, bias=bias)
    again.load_state_dict(ours.state_dict())


@pytest.mark.parametrize("activation, inner", [("swiglu", nn.functional.silu), ("geglu", nn.functional.gelu)])
def test_gated_feed_forward_is_its_formula(activation: str, inner: Any) -> None:
    torch.manual_seed(0)
    layer = FeedForward(16, 24, activation=activation, bias=False)
    gate, up = layer.linear1.weight.chunk(2)
    x = torch.randn(3, 16)
    torch.testing.assert_close(layer(x), (inner(x @ gate.mT) * (x @ up.mT)) @ layer.linear2.weight.mT)


def test_both_forms_of_gelu_are_there_and_differ() -> None:
    torch.manual_seed(0)
    exact, close = FeedForward(8, activation="gelu"), FeedForward(8, activation="gelu_tanh")
    close.load_state_dict(exact.state_dict())
    x = 3 * torch.randn(100, 8)
    h = x @ exact.linear1.weight.mT + exact.linear1.bias
    erf = h * 0.5 * (1 + torch.erf(h / 2**0.5))
    torch.testing.assert_close(exact(x), erf @ exact.linear2.weight.mT + exact.linear2.bias)
    assert not torch.equal(exact(x), close(x))
    torch.testing.assert_close(exact(x), close(x), rtol=0, atol=5e-3)


def test_gated_layers_cost_what_plain_ones_do_unless_told_otherwise() -> None:
    assert hidden_width(768, "gelu") == 3072
    assert hidden_width(768, "swiglu") == 2048
    assert hidden_width(256, "swiglu") == 688  # 682.67, by eights


def test_designs_take_turns() -> None:
    torch.manual_seed(0)
    near, far = Design(32, heads=4, window=3), Design(32, heads=4, positions=False)
    stack = Decoder((near, far), layers=4, position=Rotary(8), norm=False)
    x = torch.randn(1, 9, 32)
    y = x
    for place, block in enumerate(stack.layers):
        if place % 2 == 0:
            y = block(y, mask=mask.causal() & mask.window(3), position=Rotary(8), at=torch.arange(9))
        else:
            y = block(y, mask=mask.causal())
    torch.testing.assert_close(stack(x), y)


def test_a_stack_shows_where_each_layer_looks() -> None:
    torch.manual_seed(0)
    both = Transformer(Design(**SIZES), layers=2)
    source, target = torch.randn(1, 7, 32), torch.randn(1, 4, 32)
    memory = both.encoder(source)
    looks = both.decoder.attend(target, memory)
    assert len(looks) == 2
    assert looks[1].memory is not None
    assert looks[1].memory.weights[...].shape == (1, 4, 4, 7)
    assert bool((looks[1].own.weights[...].triu(1) == 0).all())
    # the same attention through the layer's own projections
    first = both.decoder.layers[0]
    x = first.norm1(target)
    torch.testing.assert_close(
        looks[0].own.weights[...], first.self_attn.attend(x, mask=mask.causal()).weights[...], rtol=1e-5, atol=1e-6
    )


def test_designs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SpecError, match="window must be a whole number from 1 to 2147483647; got 0"):
        Design(**SIZES, window=0)
    with pytest.raises(SpecError, match=r"a stack needs at least one design; got none"):
        Encoder((), layers=2)


def test_a_stack_that_needs_a_memory_says_so() -> None:
    with pytest.raises(SpecError, match=r"looks at a memory; got none. Give memory="):
        Decoder(Design(**SIZES), layers=1, cross=True)(torch.randn(1, 3, 32))


def test_a_stack_can_be_copied_and_compiled() -> None:
    torch.manual_seed(0)
    stack = Decoder(Design(**SIZES), layers=2, position=Rotary(8)).eval()
    x = torch.randn(2, 6, 32)
    torch.testing.assert_close(copy.deepcopy(stack)(x), stack(x), rtol=0, atol=0)
