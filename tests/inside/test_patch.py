"""Changed heads: what a model answers then is what it answers with that head's output written by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard import mask, score
from regard.errors import SpecError
from regard.inside.patch import Change, looking, mean, shifted, uniform, weights, zero
from regard.integrations import huggingface
from tests.integrations.hugging_faces import DECODERS, words

N, WIDTH, HEADS = 12, 16, 4
CLOSE = dict(rtol=1e-4, atol=1e-5)  # float32, two ways to the same


class Own(nn.Module):
    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.to_heads, self.call = nn.Linear(WIDTH, 3 * WIDTH), call

    def rows(self, x: Tensor) -> Tensor:
        return self.to_heads(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(*self.rows(x)).transpose(1, 2).flatten(2)


SLOPES = torch.tensor([0.1, 0.2, 0.4, 0.8])
CALLS: dict[str, Callable[..., Tensor]] = {
    "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "regard": lambda q, k, v: regard.attention(q, k, v, mask=mask.causal()),
    "alibi": lambda q, k, v: regard.attention(q, k, v, mask=mask.causal(), score=score.alibi(SLOPES)),
}


def by_hand(q: Tensor, k: Tensor, v: Tensor, name: str, head: int) -> dict[str, Tensor]:
    """A head's answer for each change, (batch, n, width)."""
    q, k, v = q[:, head], k[:, head], v[:, head]
    i = torch.arange(N)
    s = q @ k.mT / q.shape[-1] ** 0.5 - (SLOPES[head] * (i[:, None] - i).abs() if name == "alibi" else 0.0)
    seen = torch.ones(N, N).tril().bool()
    a = s.masked_fill(~seen, -torch.inf).softmax(-1)
    later, earlier = torch.zeros(N, N), torch.zeros(N, N)
    later[:-2, :] = torch.eye(N)[2:]
    earlier[3:, :] = torch.eye(N)[:-3]
    return {
        "zero": torch.zeros_like(v),
        "mean": (a @ v).mean(-2, keepdim=True).expand_as(v),
        "uniform": seen / seen.sum(-1, keepdim=True) @ v,
        "shifted on": a @ later @ v,
        "shifted back": a @ earlier @ v,
        "looking": s.masked_fill(~seen | ((i[:, None] - i) >= 3), -torch.inf).softmax(-1) @ v,
        "weights": torch.eye(N) @ v,
    }


CHANGES: dict[str, Change] = {
    "zero": zero,
    "mean": mean,
    "uniform": uniform,
    "shifted on": shifted(2),
    "shifted back": shifted(-3),
    "looking": looking(mask=mask.causal() & mask.window(3)),
    "weights": weights(torch.eye(N)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", CALLS)
@torch.no_grad()
def test_a_changed_head_answers_what_is_written_by_hand(name: str, change: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Own(CALLS[name]), Own(CALLS[name])), torch.randn(2, N, WIDTH)
    middle = model[0](x)
    right = model[1](middle).unflatten(-1, (HEADS, -1)).clone()
    right[:, :, 2] = by_hand(*model[1].rows(middle), name, 2)[change]
    with regard.patch(model, {(1, 2): CHANGES[change]}):
        found = model(x)
    torch.testing.assert_close(found, right.flatten(2), **CLOSE)
    assert not torch.allclose(found, model(x), atol=1e-3)
    with regard.patch(model, {("1", 2): CHANGES[change]}):
        torch.testing.assert_close(model(x), found)


@pytest.mark.parametrize("backend", ["sdpa", "eager", "regard"])
@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
@torch.no_grad()
def test_a_head_that_is_left_out_is_one_whose_way_out_is_closed(name: str, backend: str) -> None:
    huggingface.register()
    model = DECODERS[name].make()
    model.set_attn_implementation(backend)
    ids = words()
    with regard.patch(model, {(1, 3): zero, (0, 0): zero}):
        found = model(ids).logits
    for layer, head in ((1, 3), (0, 0)):
        if name == "GPT-2":
            model.transformer.h[layer].attn.c_proj.weight[8 * head : 8 * head + 8] = 0.0
        else:
            model.model.layers[layer].self_attn.o_proj.weight[:, 8 * head : 8 * head + 8] = 0.0
    torch.testing.assert_close(found, model(ids).logits, **CLOSE)


@torch.no_grad()
def test_torchs_encoder_can_be_changed_although_it_has_a_fused_kernel() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True), 2).eval()
    x = torch.randn(2, N, WIDTH)
    with regard.patch(model, {("layers.0", 1): zero}):
        found = model(x)
    model.layers[0].self_attn.out_proj.weight[:, 4:8] = 0.0
    torch.testing.assert_close(found, model(x), **CLOSE)


def test_gradients_go_through_a_changed_model() -> None:
    model = nn.Sequential(Own(CALLS["sdpa"]))
    x = torch.randn(1, N, WIDTH, requires_grad=True)
    with regard.patch(model, {(0, 0): zero}):
        model(x)[..., :4].sum().backward()
    assert x.grad is not None
    assert not x.grad.any()  # all that reaches these features came through the head


@torch.no_grad()
def test_what_cannot_be_changed_says_so() -> None:
    model, x = nn.Sequential(Own(CALLS["sdpa"])), torch.randn(1, N, WIDTH)
    with (
        pytest.raises(SpecError, match=r"among those that attended: 0 \(0\); got 3\."),
        regard.patch(model, {(3, 0): zero}),
    ):
        model(x)
    with pytest.raises(SpecError, match=r"heads of 0 must be from 0 to 3; got 9"), regard.patch(model, {(0, 9): zero}):
        model(x)
    layer: Any = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    with (
        pytest.raises(SpecError, match=r"must hand out its answer by head.*need_weights=False"),
        regard.patch(layer, {(0, 0): zero}),
    ):
        layer(x, x, x)
