"""`record`: recorded weights are those of the model, and its outputs do not change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex

import regard
from regard import mask, normalizer, score
from regard.errors import ArgumentError, BudgetError
from regard.integrations.huggingface import attention_interface
from regard.recording.recorder import record
from regard.recording.recording import load_recording
from tests.integrations.huggingface_models import ALL_MODELS, DECODERS, EncoderDecoderCase, ModelCase, token_ids

CLOSE = dict(rtol=1e-5, atol=1e-6)  # float32 on both sides, weights from 0 to 1


class AttentionBlock(nn.Module):
    """A typical attention block: a projection and one of several attention functions."""

    def __init__(self, call: Callable[..., Tensor], num_heads: int = 4, embed_dim: int = 32) -> None:
        super().__init__()
        self.num_heads, self.call = num_heads, call
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.call(q, k, v).transpose(1, 2).flatten(2)


class AttentionStack(nn.Module):
    def __init__(self, *calls: Callable[..., Tensor]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(AttentionBlock(call) for call in calls)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def dense_weights(block: AttentionBlock, x: Tensor, modify: Callable[[Tensor], Tensor] = lambda s: s) -> Tensor:
    q, k, _ = block.qkv(x).unflatten(-1, (3, block.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return modify(q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)


def causal(s: Tensor) -> Tensor:
    return s.masked_fill(torch.ones(s.shape[-2:]).triu(1).bool(), -torch.inf)


imported_sdpa = F.scaled_dot_product_attention  # as `from torch.nn.functional import ...` binds it


compiled_flex = torch.compile(flex.flex_attention, backend="eager")


def flex_causal_mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return j <= i


def call_compiled_flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    block = flex.create_block_mask(flex_causal_mask, None, None, 20, 20, device="cpu")
    return compiled_flex(q, k, v, block_mask=block)  # type: ignore[return-value]  # a tensor


def call_flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return flex.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s - 0.1 * (i - j).abs())


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 20, 32)


def distance(s: Tensor) -> Tensor:
    i = torch.arange(s.shape[-1])
    return s - 0.1 * (i[:, None] - i).abs()


ATTENTION_CALLS: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]] = {
    "sdpa": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), lambda s: s),
    "sdpa, imported by name": (lambda q, k, v: imported_sdpa(q, k, v), lambda s: s),
    "sdpa, causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), causal),
    "sdpa, a mask": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(20, 20).tril().bool()),
        causal,
    ),
    "sdpa, a bias": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=distance(torch.zeros(20, 20))),
        distance,
    ),
    "sdpa, a scale": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1.0), lambda s: s * 8**0.5),
    "flex": (call_flex, distance),
    "flex, compiled": (call_compiled_flex, causal),
    "regard": (lambda q, k, v: regard.attention(q, k, v, mask=mask.causal()), causal),
    "regard, with weights": (
        lambda q, k, v: regard.attention_with_weights(q, k, v, score=score.softcap(2.0)).output,
        lambda s: 2 * (s / 2).tanh(),
    ),
    "regard, a function": (
        lambda q, k, v: regard.attention(q, k, v, mask=lambda b, h, i, j: j <= i),
        causal,
    ),
}


@pytest.mark.parametrize("name", ATTENTION_CALLS)
@torch.no_grad()
def test_recorded_weights_are_the_models_and_its_output_is_unchanged(name: str, x: Tensor) -> None:
    call, modify = ATTENTION_CALLS[name]
    model = AttentionStack(call, call)
    expected = model(x)
    with record(model) as recording:
        output = model(x)
    assert torch.equal(output, expected)
    assert recording.layer_paths == ["blocks.0", "blocks.1"]
    assert not recording.dropped_calls
    torch.testing.assert_close(recording[0].weights[...], dense_weights(model.blocks[0], x, modify), **CLOSE)
    after = x + model.blocks[0](x)
    torch.testing.assert_close(
        recording["blocks.1"].weights[1, 3], dense_weights(model.blocks[1], after, modify)[1, 3], **CLOSE
    )


@pytest.mark.parametrize("backend", ["sdpa", "regard", "eager"])
@pytest.mark.parametrize("name", ALL_MODELS)
@torch.no_grad()
def test_recorded_weights_are_hugging_faces_own(name: str, backend: str) -> None:
    """Rows of padding queries are not compared, because they differ between backends."""
    if backend == "sdpa" and name in ("Gemma2", "GPT-OSS"):
        pytest.skip("transformers' own sdpa leaves out the softcap and the sinks of these models")
    attention_interface.register()
    case = ALL_MODELS[name]
    model = case.build()
    model.set_attn_implementation("eager")
    torch.manual_seed(0)
    inputs = case.inputs()
    eager = model(**inputs, output_attentions=True)
    model.set_attn_implementation(backend)
    expected_outputs = case.outputs(model(**inputs))
    with record(model) as recording:
        outputs = case.outputs(model(**inputs))
    assert all(torch.equal(a, b) for a, b in zip(outputs, expected_outputs, strict=True))
    assert len(recording) == case.num_calls and not recording.dropped_calls
    padding = inputs.get("attention_mask")
    for result, expected in zip(in_transformers_order(recording, case), transformers_weights(case, eager), strict=True):
        weights = result.weights[...]
        if padding is not None and expected.shape[0] == padding.shape[0] and expected.shape[2] == padding.shape[1]:
            weights, expected = (w.transpose(1, 2)[padding.bool()] for w in (weights, expected))
        torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)  # float32 through two layers


def transformers_weights(case: ModelCase, output: Any) -> list[Tensor]:
    if isinstance(case, EncoderDecoderCase):
        return [*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions]
    if hasattr(output, "text_model_output"):
        return [*output.text_model_output.attentions, *output.vision_model_output.attentions]
    return list(output.attentions)


def in_transformers_order(recording: Any, case: ModelCase) -> list[Any]:
    """Return the results of the layers in the order in which transformers returns their weights."""
    paths = recording.layer_paths
    if isinstance(case, EncoderDecoderCase):
        cross_paths = [p for p in paths if "encoder_attn" in p or "EncDecAttention" in p]
        self_paths = [p for p in paths if p not in cross_paths]
        encoder_paths = [p for p in self_paths if "encoder." in p]
        paths = [*encoder_paths, *(p for p in self_paths if p not in encoder_paths), *cross_paths]
    elif any("text_model" in p for p in paths):
        paths = sorted(paths, key=lambda p: "vision" in p)
    elif any("encoder.layers.0.blocks.1" in p for p in paths):  # Swin returns only the last block of a stage
        paths = paths[1::2]
    return [recording[p] for p in paths]


def encoder(**options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2).eval()


def encoder_weights(model: nn.TransformerEncoder, x: Tensor, padding_mask: Tensor | None = None) -> list[Tensor]:
    """Return the weights of each layer, computed by its attention module outside of the fused kernel."""
    weights = []
    for layer in model.layers:
        y = layer.norm1(x) if layer.norm_first else x
        weights.append(layer.self_attn(y, y, y, key_padding_mask=padding_mask, average_attn_weights=False)[1])
        x = layer(x, src_key_padding_mask=padding_mask)
    return weights


@pytest.mark.parametrize("norm_first", [False, True])
@torch.no_grad()
def test_transformer_encoder_is_recorded_on_its_fast_path(norm_first: bool, x: Tensor) -> None:
    model = encoder(norm_first=norm_first)
    expected = model(x)
    with record(model) as recording:
        output = model(x)
    assert torch.equal(output, expected)
    sources = {call.source for layer in recording.layers for call in layer.calls}
    assert sources == {"torch.nn.TransformerEncoderLayer, fused"}
    assert recording.layer_paths == ["layers.0.self_attn", "layers.1.self_attn"]
    for result, weights in zip(recording, encoder_weights(model, x), strict=True):
        torch.testing.assert_close(result.weights[...], weights, **CLOSE)


@torch.no_grad()
def test_transformer_encoder_is_recorded_with_padding_and_without_its_fast_path(x: Tensor) -> None:
    model = encoder()
    padding_mask = torch.zeros(2, 20, dtype=torch.bool)
    padding_mask[1, 12:] = True
    for is_fast in (True, False):
        torch.backends.mha.set_fastpath_enabled(is_fast)
        try:
            expected = model(x, src_key_padding_mask=padding_mask)
            with record(model) as recording:
                output = model(x, src_key_padding_mask=padding_mask)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        assert torch.equal(output, expected)
        assert ("fused" in recording.layers[0].calls[0].source) == is_fast
        for result, weights in zip(recording, encoder_weights(model, x, padding_mask), strict=True):
            torch.testing.assert_close(result.weights[0], weights[0], **CLOSE)
            torch.testing.assert_close(result.weights[1, :, :12], weights[1, :, :12], **CLOSE)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_multihead_attention_is_recorded_with_and_without_weights(need_weights: bool, grad: bool, x: Tensor) -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(32, 4, batch_first=True, add_bias_kv=True)
    memory = torch.randn(2, 7, 32)
    with torch.set_grad_enabled(grad):
        expected, weights = model(x, memory, memory, average_attn_weights=False)
        with record(model) as recording:
            output, _ = model(x, memory, memory, need_weights=need_weights)
    assert len(recording.layers[0].calls) == 1
    torch.testing.assert_close(output, expected, **CLOSE)
    torch.testing.assert_close(recording[0].weights[...], weights, **CLOSE)


@pytest.mark.parametrize(
    "name, backend",
    [
        *((name, "regard") for name in ("GPT-2", "Llama", "Mistral", "Gemma2", "Gemma3", "GPT-OSS")),
        *((name, "sdpa") for name in ("GPT-2", "Llama", "Mistral")),
        *((name, "eager") for name in ("Llama", "Gemma2", "GPT-OSS")),
    ],
)
@torch.no_grad()
def test_each_step_of_a_generation_is_a_row_of_one_matrix(name: str, backend: str) -> None:
    attention_interface.register()
    model = DECODERS[name].build()
    model.set_attn_implementation(backend)
    prompt = token_ids(1, 8)
    with record(model) as recording:
        generated = model.generate(prompt, max_new_tokens=6, do_sample=False)
    steps = recording.calls(0)
    assert [step.weights.shape[2] for step in steps] == [8, 1, 1, 1, 1, 1]
    model.set_attn_implementation("eager")
    for layer, expected in enumerate(model(generated[:, :-1], output_attentions=True).attentions):
        for n, step in enumerate(recording.calls(layer)[1:]):
            row, n_k = step.weights[0, :, 0], step.weights.shape[3]
            torch.testing.assert_close(row, expected[0, :, 8 + n, 9 + n - n_k : 9 + n], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(recording[layer].weights[...], expected, rtol=1e-3, atol=1e-5)
    if name in ("GPT-2", "Llama"):  # the caches of the others evict keys
        assert len({call.k.data_ptr() for call in recording.layers[0].calls}) == 1  # keys are stored once


@torch.no_grad()
def test_cross_attention_of_a_generation_is_one_matrix() -> None:
    from regard.models.bundled import date_translator
    from regard.models.tasks.dates import encode
    from regard.nn import generate

    model = date_translator()
    source, _ = encode(["the twenty first of march nineteen eighty four".split()], "source")
    with record(model) as recording:
        generate(model.encode_source(source), torch.tensor([[1]]), max_new_tokens=11)
    cross_layers = [layer for layer in recording.layers if layer.path.endswith("multihead_attn")]
    assert len(cross_layers) == 2
    for layer in cross_layers:
        assert layer.result.weights.shape == (1, 4, 11, source.shape[1])
        torch.testing.assert_close(
            layer.result.weights[...], torch.cat([call.result.weights[...] for call in layer.calls], 2), **CLOSE
        )


@torch.no_grad()
def test_consecutive_prompts_are_not_merged(x: Tensor) -> None:
    """Two prompts of equal length, and a decoding step of the second: the first keeps its keys."""
    model = CachedAttention()
    torch.manual_seed(1)
    a, b, step = torch.randn(1, 2, 8, 4), torch.randn(1, 2, 8, 4), torch.randn(1, 2, 1, 4)
    with record(model) as recording:
        model(a, a)
        model(b, b)
        model(step, torch.cat((b, step), 2))
    first, second, third = recording.calls(0)
    torch.testing.assert_close(first.weights[...], (a @ a.mT / 2).softmax(-1), **CLOSE)
    torch.testing.assert_close(second.weights[...], (b @ b.mT / 2).softmax(-1), **CLOSE)
    assert third.weights.shape == (1, 2, 1, 9)
    with pytest.raises(
        ArgumentError, match=r"CachedAttention was called 3 times with unrelated keys or different options"
    ):
        _ = recording[0]


class CachedAttention(nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k)


@torch.no_grad()
def test_only_selected_layers_and_heads_are_recorded(x: Tensor) -> None:
    slopes = torch.tensor([0.1, 0.2, 0.3, 0.4])
    head_mask = mask.from_function(lambda b, h, i, j: j <= i + h)
    model = AttentionStack(*[lambda q, k, v: regard.attention(q, k, v, score=score.alibi(slopes), mask=head_mask)] * 3)
    with record(model) as full:
        model(x)
    for layers in ([2], ["blocks.2"], "blocks.2", 2):
        with record(model, layers=layers, heads=[3, 1]) as recording:
            model(x)
        assert recording.layer_paths == ["blocks.2"] and recording.layers[0].head_indices == [3, 1]
        torch.testing.assert_close(recording[2].weights[...], full[2].weights[:, [3, 1]], **CLOSE)


@torch.no_grad()
def test_selected_query_heads_keep_their_kv_heads(x: Tensor) -> None:
    k = torch.randn(2, 2, 20, 8)
    model = AttentionBlock(lambda q, _, v: regard.attention(q, k, k))
    with record(model) as full, record(model, heads=[2]) as recording:
        model(x)
    torch.testing.assert_close(recording[0].weights[:, 0], full[0].weights[:, 2], **CLOSE)


@torch.no_grad()
def test_recorded_tensors_are_copies(x: Tensor) -> None:
    cache, visible = torch.randn(2, 4, 20, 8), torch.rand(20, 20) > 0.3
    visible |= torch.eye(20).bool()
    model = AttentionBlock(lambda q, k, v: F.scaled_dot_product_attention(q, cache, v, attn_mask=visible))
    with record(model) as recording:
        model(x)
        expected = recording[0].weights[...]
        cache.zero_()
        visible.fill_(True)
    recording.layers[0].calls[0].__dict__.pop("result")
    assert torch.equal(recording[0].weights[...], expected)


@torch.no_grad()
def test_a_mask_shared_by_layers_is_stored_once(x: Tensor) -> None:
    visible = torch.ones(20, 20, dtype=torch.bool).tril()
    model = AttentionStack(*[lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=visible)] * 2)
    with record(model) as recording:
        model(x)
    a, b = (layer.calls[0].serialized_options for layer in recording.layers)
    assert a is not None and b is not None
    assert a.tensors[0] is b.tensors[0]


@torch.no_grad()
def test_calls_beyond_the_budget_are_dropped_and_listed(x: Tensor) -> None:
    model = AttentionStack(*[lambda q, k, v: F.scaled_dot_product_attention(q, k, v)] * 3)
    layer_bytes = 3 * 2 * 20 * 32 * 4
    with record(model, budget=2 * layer_bytes) as recording:
        model(x)
    assert recording.layer_paths == ["blocks.0", "blocks.1"]
    (message,) = recording.dropped_calls
    assert message.startswith(
        f"layer 2, blocks.2: needs {layer_bytes:,} bytes, and {2 * layer_bytes:,} bytes of the budget of "
        f"{2 * layer_bytes} are used."
    )
    with pytest.raises(
        ArgumentError,
        match=r"must be one of the recorded layers: 0 \(blocks\.0\).*got 2.*Not recorded: layer 2, blocks\.2: needs",
    ):
        _ = recording[2]
    with (
        pytest.raises(BudgetError, match=r"a head of blocks\.0 needs 3,840 bytes; got budget=1KB\. Use budget=3840"),
        record(model, budget="1KB"),
    ):
        model(x)


@torch.no_grad()
def test_errors_of_record_suggest_a_fix(x: Tensor) -> None:
    model = AttentionStack(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
    with (
        pytest.raises(
            ArgumentError, match=r"AttentionStack must call attention .* no call was recorded\. Run the model inside"
        ),
        record(model),
    ):
        pass
    plain_softmax = AttentionBlock(lambda q, k, v: (q @ k.mT).softmax(-1) @ v)
    with pytest.raises(ArgumentError, match=r"computes softmax.* itself cannot be recorded"), record(plain_softmax):
        plain_softmax(x)
    message = r"layers must be among those that called attention: 0 \(blocks\.0\); got 5\."
    with pytest.raises(ArgumentError, match=message), record(model, layers=[0, 5]):
        model(x)
    with pytest.raises(ArgumentError, match=r"heads must be from 0 to 3; got \[7\]"), record(model, heads=[7]):
        model(x)
    with pytest.raises(ArgumentError, match=r"model must be a torch\.nn\.Module; got function"), record(causal):  # type: ignore[arg-type]
        pass
    sink_model = AttentionStack(lambda q, k, v: regard.attention(q, k, v, normalizer=normalizer.sink(torch.zeros(4))))
    with (
        pytest.raises(ArgumentError, match=r"another score, normalizer or value.*Leave out heads="),
        record(sink_model, heads=[0]),
    ):
        sink_model(x)
    with pytest.raises(ZeroDivisionError), record(model):  # errors inside the block are not replaced
        _ = 1 / 0


def test_torch_is_restored_after_a_recording(x: Tensor) -> None:
    before = (F.scaled_dot_product_attention, F.multi_head_attention_forward, flex.flex_attention)
    model = encoder()
    with pytest.raises(ZeroDivisionError), record(model):
        _ = model(x).shape[0] / 0
    after = (F.scaled_dot_product_attention, F.multi_head_attention_forward, flex.flex_attention)
    assert all(a is b for a, b in zip(before, after, strict=True))
    assert torch._C._len_torch_function_stack() == 0
    assert not nn.modules.module._global_forward_pre_hooks and not nn.modules.module._global_forward_hooks


@torch.no_grad()
def test_a_compiled_model_is_recorded(x: Tensor) -> None:
    model = AttentionStack(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    compiled: Any = torch.compile(model, backend="eager")
    compiled(x)
    with record(compiled) as recording:
        compiled(x)
    torch.testing.assert_close(recording[0].weights[...], dense_weights(model.blocks[0], x, causal), **CLOSE)  # type: ignore[arg-type]


def test_output_gradients_are_recorded(x: Tensor) -> None:
    for call in (ATTENTION_CALLS["sdpa, causal"][0], ATTENTION_CALLS["regard"][0]):
        model = AttentionStack(call, call)
        with record(model) as recording:
            y = model(x)
        y.square().sum().backward()
        d_output = recording.layers[1].calls[0].d_output
        assert d_output is not None
        torch.testing.assert_close(d_output.transpose(1, 2).flatten(2), 2 * y.detach(), rtol=1e-4, atol=1e-5)


def test_gradients_are_recorded_for_selected_heads(x: Tensor) -> None:
    model = AttentionBlock(ATTENTION_CALLS["regard"][0])
    with record(model) as full, record(model, heads=[3, 1]) as selected:
        y = model(x)
    y.square().sum().backward()
    d_full, d_selected = full.layers[0].calls[0].d_output, selected.layers[0].calls[0].d_output
    assert d_full is not None and d_selected is not None
    assert torch.equal(d_selected, d_full[:, [3, 1]])
    torch.testing.assert_close(selected.reversed_attention(0)[...], full.reversed_attention(0)[:, [3, 1]], **CLOSE)


def test_calls_with_numpy_arrays_and_without_heads_are_recorded(x: Tensor) -> None:
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            regard.attention(x.detach().numpy(), x.detach().numpy(), x.detach().numpy())
            return regard.attention(x, x, x, mask=torch.ones(2, 20, 20).tril().bool())

    model = Plain()
    x = x.clone().requires_grad_()
    with record(model) as recording:
        y = model(x)
    y.sum().backward()
    array_call, tensor_call = recording.layers[0].calls
    assert array_call.d_output is None
    assert tensor_call.d_output is not None and tensor_call.d_output.shape == (2, 1, 20, 32)
    expected = causal(x @ x.mT / 32**0.5).softmax(-1).detach()
    torch.testing.assert_close(recording.calls(0)[1].weights[:, 0], expected, **CLOSE)


@torch.no_grad()
def test_saved_recordings_are_loaded_unchanged(x: Tensor, tmp_path: Path) -> None:
    slopes = torch.tensor([0.1, 0.2, 0.3, 0.4])
    model = AttentionStack(
        lambda q, k, v: regard.attention(q, k, v, score=score.alibi(slopes), mask=lambda b, h, i, j: j <= i),
        lambda q, k, v: regard.attention(q, k, v, normalizer=normalizer.entmax(1.5), mask=mask.sliding_window(4)),
    )
    with record(model) as recording:
        model(x)
    recording.tokens = [f"t{n}" for n in range(20)]
    recording.save(tmp_path / "recording.safetensors")
    loaded = load_recording(tmp_path / "recording.safetensors")
    assert loaded.tokens == recording.tokens and loaded.layer_paths == recording.layer_paths
    for result, loaded_result in zip(recording, loaded, strict=True):
        assert torch.equal(result.weights[...], loaded_result.weights[...])
        assert torch.equal(result.output, loaded_result.output)


@torch.no_grad()
def test_saving_a_custom_score_raises(x: Tensor, tmp_path: Path) -> None:
    model = AttentionStack(
        lambda q, k, v: regard.attention(
            q, k, v, score=score.custom(lambda q, k: -(q[..., None, :] - k[..., None, :, :]).abs().sum(-1))
        )
    )
    with record(model) as recording:
        model(x)
    assert recording[0].weights[0, 0].shape == (20, 20)
    with pytest.raises(ArgumentError, match=r"a call of blocks\.0 has a custom function\. Record without"):
        recording.save(tmp_path / "recording.safetensors")
