"""Patched heads: the model's output is the one with the head's output replaced by a dense formula."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard import mask, score
from regard.errors import ArgumentError
from regard.integrations.huggingface import attention_interface
from regard.recording.patching import (
    HeadCall,
    HeadPatch,
    mean_ablate,
    override_options,
    replace_weights,
    shift_attention,
    uniform_attention,
    zero_ablate,
)
from tests.integrations.huggingface_models import DECODERS, token_ids

N, EMBED_DIM, NUM_HEADS = 12, 16, 4
CLOSE = dict(rtol=1e-4, atol=1e-5)  # float32 on both sides


class AttentionBlock(nn.Module):
    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.qkv, self.call = nn.Linear(EMBED_DIM, 3 * EMBED_DIM), call

    def project(self, x: Tensor) -> Tensor:
        return self.qkv(x).unflatten(-1, (3, NUM_HEADS, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(*self.project(x)).transpose(1, 2).flatten(2)


SLOPES = torch.tensor([0.1, 0.2, 0.4, 0.8])
CALLS: dict[str, Callable[..., Tensor]] = {
    "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "regard": lambda q, k, v: regard.attention(q, k, v, mask=mask.causal()),
    "alibi": lambda q, k, v: regard.attention(q, k, v, mask=mask.causal(), score=score.alibi(SLOPES)),
}


def dense_head_outputs(q: Tensor, k: Tensor, v: Tensor, name: str, head: int) -> dict[str, Tensor]:
    """Return the output (batch, n, head_dim) of a head for each patch."""
    q, k, v = q[:, head], k[:, head], v[:, head]
    i = torch.arange(N)
    s = q @ k.mT / q.shape[-1] ** 0.5 - (SLOPES[head] * (i[:, None] - i).abs() if name == "alibi" else 0.0)
    visible = torch.ones(N, N).tril().bool()
    weights = s.masked_fill(~visible, -torch.inf).softmax(-1)
    later, earlier = torch.zeros(N, N), torch.zeros(N, N)
    later[:-2, :] = torch.eye(N)[2:]
    earlier[3:, :] = torch.eye(N)[:-3]
    return {
        "zero": torch.zeros_like(v),
        "mean": (weights @ v).mean(-2, keepdim=True).expand_as(v),
        "uniform": visible / visible.sum(-1, keepdim=True) @ v,
        "shift later": weights @ later @ v,
        "shift earlier": weights @ earlier @ v,
        "mask": s.masked_fill(~visible | ((i[:, None] - i) >= 3), -torch.inf).softmax(-1) @ v,
        "weights": torch.eye(N) @ v,
    }


PATCHES: dict[str, HeadPatch] = {
    "zero": zero_ablate,
    "mean": mean_ablate,
    "uniform": uniform_attention,
    "shift later": shift_attention(2),
    "shift earlier": shift_attention(-3),
    "mask": override_options(mask=mask.causal() & mask.sliding_window(3)),
    "weights": replace_weights(torch.eye(N)),
}


@pytest.mark.parametrize("patch_name", PATCHES)
@pytest.mark.parametrize("name", CALLS)
@torch.no_grad()
def test_patched_heads_have_the_output_of_the_dense_formula(name: str, patch_name: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(AttentionBlock(CALLS[name]), AttentionBlock(CALLS[name])), torch.randn(2, N, EMBED_DIM)
    hidden_state = model[0](x)
    expected = model[1](hidden_state).unflatten(-1, (NUM_HEADS, -1)).clone()
    expected[:, :, 2] = dense_head_outputs(*model[1].project(hidden_state), name, 2)[patch_name]
    with regard.patch(model, {(1, 2): PATCHES[patch_name]}):
        output = model(x)
    torch.testing.assert_close(output, expected.flatten(2), **CLOSE)
    assert not torch.allclose(output, model(x), atol=1e-3)
    with regard.patch(model, {("1", 2): PATCHES[patch_name]}):
        torch.testing.assert_close(model(x), output)


@pytest.mark.parametrize("backend", ["sdpa", "eager", "regard"])
@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
@torch.no_grad()
def test_zero_ablation_equals_zeroing_the_output_projection(name: str, backend: str) -> None:
    attention_interface.register()
    model = DECODERS[name].build()
    model.set_attn_implementation(backend)
    ids = token_ids()
    with regard.patch(model, {(1, 3): zero_ablate, (0, 0): zero_ablate}):
        output = model(ids).logits
    for layer, head in ((1, 3), (0, 0)):
        if name == "GPT-2":
            model.transformer.h[layer].attn.c_proj.weight[8 * head : 8 * head + 8] = 0.0
        else:
            model.model.layers[layer].self_attn.o_proj.weight[:, 8 * head : 8 * head + 8] = 0.0
    torch.testing.assert_close(output, model(ids).logits, **CLOSE)


@torch.no_grad()
def test_transformer_encoder_is_patched_without_its_fused_kernel() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(EMBED_DIM, NUM_HEADS, 32, batch_first=True), 2).eval()
    x = torch.randn(2, N, EMBED_DIM)
    with regard.patch(model, {("layers.0", 1): zero_ablate}):
        output = model(x)
    model.layers[0].self_attn.out_proj.weight[:, 4:8] = 0.0
    torch.testing.assert_close(output, model(x), **CLOSE)


def test_gradients_flow_through_a_patched_model() -> None:
    model = nn.Sequential(AttentionBlock(CALLS["sdpa"]))
    x = torch.randn(1, N, EMBED_DIM, requires_grad=True)
    with regard.patch(model, {(0, 0): zero_ablate}):
        model(x)[..., :4].sum().backward()
    assert x.grad is not None
    assert not x.grad.any()  # these features depend only on the ablated head


ATTENTION_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    "regard": lambda q, k, v: regard.attention(q, k, v),
}


@pytest.mark.parametrize("inner", ATTENTION_FUNCTIONS)
@pytest.mark.parametrize("outer", ATTENTION_FUNCTIONS)
def test_a_patch_may_call_attention_itself(outer: str, inner: str) -> None:
    model, x = AttentionBlock(ATTENTION_FUNCTIONS[outer]), torch.randn(1, N, EMBED_DIM)
    calls: list[HeadCall] = []

    def double_values(head: HeadCall) -> Tensor:
        calls.append(head)
        return ATTENTION_FUNCTIONS[inner](head.call.q, head.call.k, 2 * head.call.v)

    with regard.patch(model, {(0, 1): double_values}):
        patched = model(x)
    assert len(calls) == 1
    factors = torch.tensor([1.0, 2.0, 1.0, 1.0]).repeat_interleave(EMBED_DIM // NUM_HEADS)
    torch.testing.assert_close(patched, model(x) * factors, **CLOSE)


@torch.no_grad()
def test_impossible_patches_raise() -> None:
    model, x = nn.Sequential(AttentionBlock(CALLS["sdpa"])), torch.randn(1, N, EMBED_DIM)
    with (
        pytest.raises(ArgumentError, match=r"among those that called attention: 0 \(0\); got 3\."),
        regard.patch(model, {(3, 0): zero_ablate}),
    ):
        model(x)
    with (
        pytest.raises(ArgumentError, match=r"heads of 0 must be from 0 to 3; got 9"),
        regard.patch(model, {(0, 9): zero_ablate}),
    ):
        model(x)
    layer: Any = nn.MultiheadAttention(EMBED_DIM, NUM_HEADS, batch_first=True)
    with (
        pytest.raises(ArgumentError, match=r"must return the output of each head.*need_weights=False"),
        regard.patch(layer, {(0, 0): zero_ablate}),
    ):
        layer(x, x, x)
