"""The attention layer against torch's own, weights copied in both directions."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import mask, score, weigh
from regard.errors import SpecError
from regard.nn import ALiBi, LayerCache, MultiHeadAttention, RelativeBias, Rotary

CLOSE = dict(rtol=1e-4, atol=1e-5)  # float32 sums in another order


def _pair(**options: Any) -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    torch.manual_seed(0)
    names = {"key_width": "kdim", "value_width": "vdim"}
    theirs = nn.MultiheadAttention(32, 4, batch_first=True, **{names.get(k, k): v for k, v in options.items()})
    ours = MultiHeadAttention(32, 4, **options)
    if theirs.in_proj_bias is not None:
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def _gradients(output: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    return torch.autograd.grad((output * weight).sum(), inputs)


@pytest.mark.parametrize("bias", [True, False])
def test_self_attention_is_that_of_torch_with_gradients(bias: bool) -> None:
    ours, theirs = _pair(bias=bias)
    x = torch.randn(3, 7, 32, requires_grad=True)
    hidden = ~torch.ones(7, 7, dtype=torch.bool).tril()
    mine, other = ours(x, mask=mask.causal()), theirs(x, x, x, attn_mask=hidden, need_weights=False)[0]
    torch.testing.assert_close(mine, other, **CLOSE)
    mine_too = _gradients(mine, x, *ours.parameters())
    others = _gradients(other, x, *theirs.parameters())
    for one, two in zip(mine_too, others, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("widths", [{}, {"key_width": 20, "value_width": 12}, {"key_width": 20, "value_width": 20}])
def test_cross_attention_is_that_of_torch(widths: dict[str, int]) -> None:
    ours, theirs = _pair(**widths)
    x = torch.randn(2, 5, 32)
    keys = torch.randn(2, 9, widths.get("key_width", 32))
    values = torch.randn(2, 9, widths.get("value_width", 32))
    lengths = torch.tensor([9, 4])
    mine = ours(x, keys, values, mask=mask.padding(lengths))
    other = theirs(x, keys, values, key_padding_mask=torch.arange(9) >= lengths[:, None])[0]
    torch.testing.assert_close(mine, other, **CLOSE)


def test_its_state_loads_back_into_torch() -> None:
    torch.manual_seed(0)
    ours = MultiHeadAttention(32, 4)
    theirs = nn.MultiheadAttention(32, 4, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 6, 32)
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0], **CLOSE)


@pytest.mark.parametrize("key_heads", [1, 2])
def test_grouped_heads_are_heads_with_the_same_keys(key_heads: int) -> None:
    torch.manual_seed(0)
    grouped, plain = MultiHeadAttention(32, 4, key_heads=key_heads), MultiHeadAttention(32, 4)
    state = grouped.state_dict()
    for kind in ("weight", "bias"):
        q, k, v = state[f"in_proj_{kind}"].split([32, 8 * key_heads, 8 * key_heads])
        again = [x.unflatten(0, (key_heads, 8)).repeat_interleave(4 // key_heads, 0).flatten(0, 1) for x in (k, v)]
        state[f"in_proj_{kind}"] = torch.cat((q, *again))
    plain.load_state_dict(state)
    x = torch.randn(2, 6, 32)
    torch.testing.assert_close(grouped(x, mask=mask.causal()), plain(x, mask=mask.causal()), **CLOSE)


def test_any_score_mask_and_weighing_reach_the_operator() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(
        32, 4, score=score.cosine(3.0), mask=mask.window(3), weigh=weigh.entmax(1.5), head_width=12
    )
    x = torch.randn(2, 9, 32)
    rows = nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias)
    q, k, v = rows.unflatten(-1, (3, 4, 12)).permute(2, 0, 3, 1, 4)
    seen = mask.window(3) & mask.causal()
    o = regard.attention(q, k, v, score=score.cosine(3.0), mask=seen, weigh=weigh.entmax(1.5), engine="reference")
    torch.testing.assert_close(layer(x, mask=mask.causal()), layer.out_proj(o.transpose(1, 2).flatten(2)), **CLOSE)


class _Sink(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(heads))

    def forward(self) -> Any:
        return weigh.sink(self.logits)


def test_a_module_in_the_place_of_a_weighing_learns() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(32, 4, weigh=_Sink(4))
    assert "weigh.logits" in dict(layer.named_parameters())
    before = layer(torch.ones(1, 5, 32))
    before.sum().backward()
    gradient = layer.weigh.logits.grad
    assert gradient is not None and bool((gradient != 0).all())
    with torch.no_grad():
        layer.weigh.logits += 50.0  # everything goes into the sink
    torch.testing.assert_close(layer(torch.ones(1, 5, 32)), layer.out_proj.bias.expand(1, 5, -1))


@pytest.mark.parametrize("position", [Rotary(8), ALiBi(4), RelativeBias(4)], ids=["rotary", "alibi", "t5"])
def test_weights_kept_open_are_those_of_the_call(position: Any) -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(32, 4)
    x = torch.randn(2, 6, 32)
    kept = layer.attend(x, mask=mask.causal(), position=position)
    whole = layer(x, mask=mask.causal(), position=position)
    torch.testing.assert_close(layer.out_proj(kept.output.transpose(1, 2).flatten(2)), whole, **CLOSE)
    torch.testing.assert_close(kept.weights[...].sum(-1), torch.ones(2, 4, 6))
    plain = layer(x, mask=mask.causal())
    assert not torch.allclose(plain, whole, atol=1e-3)


def test_dropout_is_for_training_only() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(32, 4, dropout=0.5)
    x = torch.randn(1, 6, 32)
    assert not torch.allclose(layer(x), layer(x))
    layer.eval()
    torch.testing.assert_close(layer(x), layer(x), rtol=0, atol=0)


def test_a_copy_is_independent_and_answers_the_same() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(32, 4, score=score.alibi(torch.rand(4)))
    twin = copy.deepcopy(layer)
    x = torch.randn(1, 6, 32)
    torch.testing.assert_close(twin(x), layer(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(width=32, heads=5), "heads must divide width, or give head_width; got width=32, heads=5"),
        (dict(width=32, heads=4, key_heads=3), "key_heads must divide heads; got heads=4, key_heads=3"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        MultiHeadAttention(**options)


def test_a_sequence_without_a_batch_is_refused() -> None:
    with pytest.raises(SpecError, match=r"x must have shape \(batch, n, 32\); got \(5, 32\)"):
        MultiHeadAttention(32, 4)(torch.randn(5, 32))


def test_values_alone_are_mixed_in_the_place_of_those_of_x() -> None:
    ours, theirs = _pair()
    x, values = torch.randn(2, 6, 32), torch.randn(2, 6, 32)
    torch.testing.assert_close(ours(x, None, values), theirs(x, x, values)[0], **CLOSE)


def test_functions_of_the_layer_and_of_the_call_are_both_obeyed() -> None:
    x, near = torch.randn(1, 6, 32), lambda b, h, i, j: i - j < 3
    for earlier in (lambda b, h, i, j: j <= i, torch.ones(6, 6).tril().bool()):
        layer, plain = MultiHeadAttention(32, 4, mask=earlier), MultiHeadAttention(32, 4)
        plain.load_state_dict(layer.state_dict())
        torch.testing.assert_close(layer(x, mask=near), plain(x, mask=mask.causal() & mask.window(3)))


def test_a_cache_of_what_is_looked_at_is_filled_once() -> None:
    layer, cache = MultiHeadAttention(32, 4), LayerCache()
    x, memory = torch.randn(1, 2, 32), torch.randn(1, 5, 32)
    with torch.no_grad():
        first = layer(x, memory, cache=cache)
        torch.testing.assert_close(layer(x, torch.full_like(memory, torch.nan), cache=cache), first)
    assert cache.length == 5
