"""MultiHeadAttention compared with torch.nn.MultiheadAttention, with the same weights."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import mask, normalizer, score
from regard.errors import ArgumentError
from regard.nn import ALiBi, LayerCache, MultiHeadAttention, RotaryEmbedding, T5Bias

CLOSE = dict(rtol=1e-4, atol=1e-5)  # float32 sums in a different order


def _layer_pair(**options: Any) -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    """Return a layer and torch's layer with the same parameters."""
    torch.manual_seed(0)
    torch_layer = nn.MultiheadAttention(32, 4, batch_first=True, **options)
    layer = MultiHeadAttention(32, 4, **options)
    if torch_layer.in_proj_bias is not None:
        nn.init.normal_(torch_layer.in_proj_bias)
        nn.init.normal_(torch_layer.out_proj.bias)
    layer.load_state_dict(torch_layer.state_dict())
    return layer, torch_layer


def _gradients(output: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    return torch.autograd.grad((output * weight).sum(), inputs)


@pytest.mark.parametrize("bias", [True, False])
def test_self_attention_and_its_gradients_match_torch(bias: bool) -> None:
    layer, torch_layer = _layer_pair(bias=bias)
    x = torch.randn(3, 7, 32, requires_grad=True)
    hidden = ~torch.ones(7, 7, dtype=torch.bool).tril()
    output = layer(x, mask=mask.causal())
    expected = torch_layer(x, x, x, attn_mask=hidden, need_weights=False)[0]
    torch.testing.assert_close(output, expected, **CLOSE)
    gradients = _gradients(output, x, *layer.parameters())
    expected_gradients = _gradients(expected, x, *torch_layer.parameters())
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dims", [{}, {"kdim": 20, "vdim": 12}, {"kdim": 20, "vdim": 20}])
def test_cross_attention_matches_torch(dims: dict[str, int]) -> None:
    layer, torch_layer = _layer_pair(**dims)
    query = torch.randn(2, 5, 32)
    key = torch.randn(2, 9, dims.get("kdim", 32))
    value = torch.randn(2, 9, dims.get("vdim", 32))
    lengths = torch.tensor([9, 4])
    output = layer(query, key, value, mask=mask.padding(lengths))
    expected = torch_layer(query, key, value, key_padding_mask=torch.arange(9) >= lengths[:, None])[0]
    torch.testing.assert_close(output, expected, **CLOSE)


def test_state_dict_loads_into_torch() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(32, 4)
    torch_layer = nn.MultiheadAttention(32, 4, batch_first=True)
    torch_layer.load_state_dict(layer.state_dict())
    x = torch.randn(2, 6, 32)
    torch.testing.assert_close(layer(x), torch_layer(x, x, x)[0], **CLOSE)


@pytest.mark.parametrize("num_kv_heads", [1, 2])
def test_grouped_heads_equal_heads_with_repeated_keys_and_values(num_kv_heads: int) -> None:
    torch.manual_seed(0)
    grouped, plain = MultiHeadAttention(32, 4, num_kv_heads=num_kv_heads), MultiHeadAttention(32, 4)
    state = grouped.state_dict()
    for kind in ("weight", "bias"):
        q, k, v = state[f"in_proj_{kind}"].split([32, 8 * num_kv_heads, 8 * num_kv_heads])
        repeated = [
            x.unflatten(0, (num_kv_heads, 8)).repeat_interleave(4 // num_kv_heads, 0).flatten(0, 1) for x in (k, v)
        ]
        state[f"in_proj_{kind}"] = torch.cat((q, *repeated))
    plain.load_state_dict(state)
    x = torch.randn(2, 6, 32)
    torch.testing.assert_close(grouped(x, mask=mask.causal()), plain(x, mask=mask.causal()), **CLOSE)


def test_score_mask_and_normalizer_are_passed_to_attention() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(
        32, 4, score=score.cosine(3.0), mask=mask.sliding_window(3), normalizer=normalizer.entmax(1.5), head_dim=12
    )
    x = torch.randn(2, 9, 32)
    projected = nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias)
    q, k, v = projected.unflatten(-1, (3, 4, 12)).permute(2, 0, 3, 1, 4)
    combined = mask.sliding_window(3) & mask.causal()
    o = regard.attention(
        q, k, v, score=score.cosine(3.0), mask=combined, normalizer=normalizer.entmax(1.5), backend="reference"
    )
    torch.testing.assert_close(layer(x, mask=mask.causal()), layer.out_proj(o.transpose(1, 2).flatten(2)), **CLOSE)


class _Sink(nn.Module):
    """A normalizer with a learned sink per head."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(num_heads))

    def forward(self) -> Any:
        return normalizer.sink(self.logits)


def test_a_normalizer_module_gets_gradients() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(32, 4, normalizer=_Sink(4))
    assert "normalizer.logits" in dict(layer.named_parameters())
    layer(torch.ones(1, 5, 32)).sum().backward()
    gradient = layer.normalizer.logits.grad
    assert gradient is not None and bool((gradient != 0).all())
    with torch.no_grad():
        layer.normalizer.logits += 50.0  # the sink takes all weight
    torch.testing.assert_close(layer(torch.ones(1, 5, 32)), layer.out_proj.bias.expand(1, 5, -1))


@pytest.mark.parametrize("position", [RotaryEmbedding(8), ALiBi(4), T5Bias(4)], ids=["rotary", "alibi", "t5"])
def test_attention_with_weights_matches_the_forward_pass(position: Any) -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(32, 4)
    x = torch.randn(2, 6, 32)
    result = layer.attention_with_weights(x, mask=mask.causal(), position_encoding=position)
    output = layer(x, mask=mask.causal(), position_encoding=position)
    torch.testing.assert_close(layer.out_proj(result.output.transpose(1, 2).flatten(2)), output, **CLOSE)
    torch.testing.assert_close(result.weights[...].sum(-1), torch.ones(2, 4, 6))
    output_without_positions = layer(x, mask=mask.causal())
    assert not torch.allclose(output_without_positions, output, atol=1e-3)


def test_dropout_applies_only_in_training() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(32, 4, dropout=0.5)
    x = torch.randn(1, 6, 32)
    assert not torch.allclose(layer(x), layer(x))
    layer.eval()
    torch.testing.assert_close(layer(x), layer(x), rtol=0, atol=0)


def test_a_deep_copy_computes_the_same() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(32, 4, score=score.alibi(torch.rand(4)))
    layer_copy = copy.deepcopy(layer)
    x = torch.randn(1, 6, 32)
    torch.testing.assert_close(layer_copy(x), layer(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            dict(embed_dim=32, num_heads=5),
            "num_heads must divide embed_dim; got embed_dim=32, num_heads=5. Choose a divisor, or set head_dim",
        ),
        (
            dict(embed_dim=32, num_heads=4, num_kv_heads=3),
            "num_kv_heads must divide num_heads; got num_heads=4, num_kv_heads=3",
        ),
    ],
)
def test_inconsistent_head_counts_raise(options: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        MultiHeadAttention(**options)


def test_input_without_a_batch_dimension_raises() -> None:
    with pytest.raises(ArgumentError, match=r"query must have shape \(batch, n, 32\); got \(5, 32\)"):
        MultiHeadAttention(32, 4)(torch.randn(5, 32))


def test_value_without_key_matches_torch() -> None:
    layer, torch_layer = _layer_pair()
    x, value = torch.randn(2, 6, 32), torch.randn(2, 6, 32)
    torch.testing.assert_close(layer(x, None, value), torch_layer(x, x, value)[0], **CLOSE)


def test_masks_of_the_layer_and_of_the_call_are_combined() -> None:
    x, window = torch.randn(1, 6, 32), lambda b, h, i, j: i - j < 3
    for causal in (lambda b, h, i, j: j <= i, torch.ones(6, 6).tril().bool()):
        layer, unmasked = MultiHeadAttention(32, 4, mask=causal), MultiHeadAttention(32, 4)
        unmasked.load_state_dict(layer.state_dict())
        torch.testing.assert_close(layer(x, mask=window), unmasked(x, mask=mask.causal() & mask.sliding_window(3)))


def test_a_cross_attention_cache_is_filled_once() -> None:
    layer, cache = MultiHeadAttention(32, 4), LayerCache()
    x, memory = torch.randn(1, 2, 32), torch.randn(1, 5, 32)
    with torch.no_grad():
        first = layer(x, memory, cache=cache)
        torch.testing.assert_close(layer(x, torch.full_like(memory, torch.nan), cache=cache), first)
    assert cache.length == 5
