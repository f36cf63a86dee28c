"""Recording: weights are the model's own, whoever computes them, and the model notices nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex

import regard
from regard import mask, score, weigh
from regard.errors import BudgetError, SpecError
from regard.inside.record import record
from regard.inside.tape import load_tape
from regard.integrations import huggingface
from tests.integrations.hugging_faces import ALL, DECODERS, Both, Sort, words

FINE = dict(rtol=1e-5, atol=1e-6)  # float32 on both sides, weights from 0 to 1


class Own(nn.Module):
    """A model as people write them: a projection and one of several ways to attend."""

    def __init__(self, call: Callable[..., Tensor], heads: int = 4, width: int = 32) -> None:
        super().__init__()
        self.heads, self.call = heads, call
        self.to_heads = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_heads(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.call(q, k, v).transpose(1, 2).flatten(2)


class Layers(nn.Module):
    def __init__(self, *calls: Callable[..., Tensor]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Own(call) for call in calls)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def weights_of(block: Own, x: Tensor, change: Callable[[Tensor], Tensor] = lambda s: s) -> Tensor:
    q, k, _ = block.to_heads(x).unflatten(-1, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
    return change(q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)


def causal(s: Tensor) -> Tensor:
    return s.masked_fill(torch.ones(s.shape[-2:]).triu(1).bool(), -torch.inf)


held = F.scaled_dot_product_attention  # as somebody has it who imported it by name


compiled_flex = torch.compile(flex.flex_attention, backend="eager")


def seen_by_flex(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return j <= i


def through_compiled_flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    block = flex.create_block_mask(seen_by_flex, None, None, 20, 20, device="cpu")
    return compiled_flex(q, k, v, block_mask=block)  # type: ignore[return-value]  # a tensor


def through_flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return flex.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s - 0.1 * (i - j).abs())


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 20, 32)


def distance(s: Tensor) -> Tensor:
    i = torch.arange(s.shape[-1])
    return s - 0.1 * (i[:, None] - i).abs()


WAYS: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]] = {
    "sdpa": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), lambda s: s),
    "sdpa, held": (lambda q, k, v: held(q, k, v), lambda s: s),
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
    "flex": (through_flex, distance),
    "flex, compiled": (through_compiled_flex, causal),
    "regard": (lambda q, k, v: regard.attention(q, k, v, mask=mask.causal()), causal),
    "regard, attend": (
        lambda q, k, v: regard.attend(q, k, v, score=score.softcap(2.0)).output,
        lambda s: 2 * (s / 2).tanh(),
    ),
    "regard, a function": (
        lambda q, k, v: regard.attention(q, k, v, mask=lambda b, h, i, j: j <= i),
        causal,
    ),
}


@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_a_model_that_calls_attention_gives_its_weights_and_the_same_output(way: str, x: Tensor) -> None:
    call, change = WAYS[way]
    model = Layers(call, call)
    plain = model(x)
    with record(model) as tape:
        found = model(x)
    assert torch.equal(found, plain)
    assert tape.paths == ["blocks.0", "blocks.1"]
    assert not tape.dropped
    torch.testing.assert_close(tape[0].weights[...], weights_of(model.blocks[0], x, change), **FINE)
    after = x + model.blocks[0](x)
    torch.testing.assert_close(tape["blocks.1"].weights[1, 3], weights_of(model.blocks[1], after, change)[1, 3], **FINE)


@pytest.mark.parametrize("backend", ["sdpa", "regard", "eager"])
@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_recorded_weights_are_hugging_faces_own(name: str, backend: str) -> None:
    """Rows of padding are left out: what is in them differs from backend to backend, and nobody reads it."""
    if backend == "sdpa" and name in ("Gemma2", "GPT-OSS"):
        pytest.skip("transformers' own sdpa leaves out the softcap and the sinks of these models")
    huggingface.register()
    sort = ALL[name]
    model = sort.make()
    model.set_attn_implementation("eager")
    torch.manual_seed(0)
    given = sort.given()
    eager = model(**given, output_attentions=True)
    model.set_attn_implementation(backend)
    plain = sort.answers(model(**given))
    with record(model) as tape:
        answers = sort.answers(model(**given))
    assert all(torch.equal(one, other) for one, other in zip(answers, plain, strict=True))
    assert len(tape) == sort.calls and not tape.dropped
    expected = own_weights(sort, eager)
    real = given.get("attention_mask")
    for found, right in zip(by_kind(tape, sort), expected, strict=True):
        rows = found.weights[...]
        if real is not None and right.shape[0] == real.shape[0] and right.shape[2] == real.shape[1]:
            rows, right = (w.transpose(1, 2)[real.bool()] for w in (rows, right))
        torch.testing.assert_close(rows, right, rtol=1e-4, atol=1e-5)  # float32 through two layers


def own_weights(sort: Sort, output: Any) -> list[Tensor]:
    if isinstance(sort, Both):
        return [*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions]
    if hasattr(output, "text_model_output"):
        return [*output.text_model_output.attentions, *output.vision_model_output.attentions]
    return list(output.attentions)


def by_kind(tape: Any, sort: Sort) -> list[Any]:
    """Layers in the order in which transformers hands out weights."""
    paths = tape.paths
    if isinstance(sort, Both):
        crossing = [p for p in paths if "encoder_attn" in p or "EncDecAttention" in p]
        own = [p for p in paths if p not in crossing]
        paths = [*(p for p in own if "encoder." in p), *(p for p in own if "encoder." not in p), *crossing]
    elif any("text_model" in p for p in paths):
        paths = sorted(paths, key=lambda p: "vision" in p)
    elif any("encoder.layers.0.blocks.1" in p for p in paths):  # Swin hands out those of the last block of a stage
        paths = paths[1::2]
    return [tape[p] for p in paths]


def encoder(**options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2).eval()


def by_hand(model: nn.TransformerEncoder, x: Tensor, hidden: Tensor | None = None) -> list[Tensor]:
    """The weights of each layer, asked of its own attention outside of the fused kernel."""
    found = []
    for layer in model.layers:
        y = layer.norm1(x) if layer.norm_first else x
        found.append(layer.self_attn(y, y, y, key_padding_mask=hidden, average_attn_weights=False)[1])
        x = layer(x, src_key_padding_mask=hidden)
    return found


@pytest.mark.parametrize("norm_first", [False, True])
@torch.no_grad()
def test_torchs_encoder_is_recorded_on_its_fast_path(norm_first: bool, x: Tensor) -> None:
    model = encoder(norm_first=norm_first)
    plain = model(x)
    with record(model) as tape:
        found = model(x)
    assert torch.equal(found, plain)
    assert {take.source for layer in tape.layers for take in layer.takes} == {"torch.nn.TransformerEncoderLayer, fused"}
    assert tape.paths == ["layers.0.self_attn", "layers.1.self_attn"]
    for attended, right in zip(tape, by_hand(model, x), strict=True):
        torch.testing.assert_close(attended.weights[...], right, **FINE)


@torch.no_grad()
def test_torchs_encoder_is_recorded_with_padding_and_without_its_fast_path(x: Tensor) -> None:
    model = encoder()
    hidden = torch.zeros(2, 20, dtype=torch.bool)
    hidden[1, 12:] = True
    for is_fast in (True, False):
        torch.backends.mha.set_fastpath_enabled(is_fast)
        try:
            plain = model(x, src_key_padding_mask=hidden)
            with record(model) as tape:
                found = model(x, src_key_padding_mask=hidden)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        assert torch.equal(found, plain)
        assert ("fused" in tape.layers[0].takes[0].source) == is_fast
        for attended, right in zip(tape, by_hand(model, x, hidden), strict=True):
            torch.testing.assert_close(attended.weights[0], right[0], **FINE)
            torch.testing.assert_close(attended.weights[1, :, :12], right[1, :, :12], **FINE)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_torchs_layer_is_recorded_however_it_is_called(need_weights: bool, grad: bool, x: Tensor) -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(32, 4, batch_first=True, add_bias_kv=True)
    memory = torch.randn(2, 7, 32)
    with torch.set_grad_enabled(grad):
        plain, right = model(x, memory, memory, average_attn_weights=False)
        with record(model) as tape:
            found, _ = model(x, memory, memory, need_weights=need_weights)
    assert len(tape.layers[0].takes) == 1
    torch.testing.assert_close(found, plain, **FINE)
    torch.testing.assert_close(tape[0].weights[...], right, **FINE)


@pytest.mark.parametrize(
    "name, backend",
    [
        *((name, "regard") for name in ("GPT-2", "Llama", "Mistral", "Gemma2", "Gemma3", "GPT-OSS")),
        *((name, "sdpa") for name in ("GPT-2", "Llama", "Mistral")),
        *((name, "eager") for name in ("Llama", "Gemma2", "GPT-OSS")),
    ],
)
@torch.no_grad()
def test_generation_is_one_matrix_in_which_each_step_is_a_row(name: str, backend: str) -> None:
    huggingface.register()
    model = DECODERS[name].make()
    model.set_attn_implementation(backend)
    prompt = words(1, 8)
    with record(model) as tape:
        written = model.generate(prompt, max_new_tokens=6, do_sample=False)
    steps = tape.calls(0)
    assert [step.weights.shape[2] for step in steps] == [8, 1, 1, 1, 1, 1]
    model.set_attn_implementation("eager")
    full = model(written[:, :-1], output_attentions=True).attentions
    for number, right in enumerate(full):
        for n, step in enumerate(tape.calls(number)[1:]):
            row, keys = step.weights[0, :, 0], step.weights.shape[3]
            torch.testing.assert_close(row, right[0, :, 8 + n, 9 + n - keys : 9 + n], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(tape[number].weights[...], right, rtol=1e-3, atol=1e-5)
    if name in ("GPT-2", "Llama"):  # caches of the others forget
        assert len({take.k.data_ptr() for take in tape.layers[0].takes}) == 1  # keys are kept once


@torch.no_grad()
def test_cross_attention_of_a_generation_is_one_matrix() -> None:
    from regard.models.shipped import translator
    from regard.models.tasks.dates import encode
    from regard.nn import generate

    model = translator()
    source, _ = encode(["the twenty first of march nineteen eighty four".split()], "source")
    with record(model) as tape:
        generate(model.reading(source), torch.tensor([[1]]), most=11)
    crossing = [layer for layer in tape.layers if layer.path.endswith("multihead_attn")]
    assert len(crossing) == 2
    for layer in crossing:
        assert layer.attended.weights.shape == (1, 4, 11, source.shape[1])
        torch.testing.assert_close(
            layer.attended.weights[...], torch.cat([take.attended.weights[...] for take in layer.takes], 2), **FINE
        )


@torch.no_grad()
def test_texts_that_come_one_after_another_are_not_taken_for_one(x: Tensor) -> None:
    """Two prompts of one length, and a step that goes on from the second: the first keeps its own keys."""
    model = Cached()
    torch.manual_seed(1)
    one, other, step = torch.randn(1, 2, 8, 4), torch.randn(1, 2, 8, 4), torch.randn(1, 2, 1, 4)
    with record(model) as tape:
        model(one, one)
        model(other, other)
        model(step, torch.cat((other, step), 2))
    first, second, third = tape.calls(0)
    torch.testing.assert_close(first.weights[...], (one @ one.mT / 2).softmax(-1), **FINE)
    torch.testing.assert_close(second.weights[...], (other @ other.mT / 2).softmax(-1), **FINE)
    assert third.weights.shape == (1, 2, 1, 9)
    with pytest.raises(SpecError, match=r"Cached was called 3 times with other keys or rules"):
        _ = tape[0]


class Cached(nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k)


@torch.no_grad()
def test_only_the_layers_and_heads_that_are_wanted_are_kept(x: Tensor) -> None:
    slopes = torch.tensor([0.1, 0.2, 0.3, 0.4])
    seen = mask.where(lambda b, h, i, j: j <= i + h)
    model = Layers(*[lambda q, k, v: regard.attention(q, k, v, score=score.alibi(slopes), mask=seen)] * 3)
    with record(model) as whole:
        model(x)
    for layers in ([2], ["blocks.2"], "blocks.2", 2):
        with record(model, layers=layers, heads=[3, 1]) as tape:
            model(x)
        assert tape.paths == ["blocks.2"] and tape.layers[0].heads == [3, 1]
        torch.testing.assert_close(tape[2].weights[...], whole[2].weights[:, [3, 1]], **FINE)


@torch.no_grad()
def test_grouped_heads_are_picked_with_their_keys(x: Tensor) -> None:
    k = torch.randn(2, 2, 20, 8)
    model = Own(lambda q, _, v: regard.attention(q, k, k))
    with record(model) as whole, record(model, heads=[2]) as tape:
        model(x)
    torch.testing.assert_close(tape[0].weights[:, 0], whole[0].weights[:, 2], **FINE)


@torch.no_grad()
def test_what_is_recorded_stays_when_the_model_writes_over_it(x: Tensor) -> None:
    cache, seen = torch.randn(2, 4, 20, 8), torch.rand(20, 20) > 0.3
    seen |= torch.eye(20).bool()
    model = Own(lambda q, k, v: F.scaled_dot_product_attention(q, cache, v, attn_mask=seen))
    with record(model) as tape:
        model(x)
        right = tape[0].weights[...]
        cache.zero_()
        seen.fill_(True)
    tape.layers[0].takes[0].__dict__.pop("attended")
    assert torch.equal(tape[0].weights[...], right)


@torch.no_grad()
def test_a_mask_that_layers_share_is_kept_once(x: Tensor) -> None:
    seen = torch.ones(20, 20, dtype=torch.bool).tril()
    model = Layers(*[lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=seen)] * 2)
    with record(model) as tape:
        model(x)
    one, other = (layer.takes[0].spelled for layer in tape.layers)
    assert one is not None and other is not None
    assert one.tensors[0] is other.tensors[0]


@torch.no_grad()
def test_what_does_not_fit_the_budget_is_left_out_and_said(x: Tensor) -> None:
    model = Layers(*[lambda q, k, v: F.scaled_dot_product_attention(q, k, v)] * 3)
    layer = 3 * 2 * 20 * 32 * 4
    with record(model, budget=2 * layer) as tape:
        model(x)
    assert tape.paths == ["blocks.0", "blocks.1"]
    (said,) = tape.dropped
    assert said.startswith(
        f"layer 2, blocks.2: {layer:,} bytes beyond the budget of {2 * layer}, of which {2 * layer:,}"
    )
    with pytest.raises(SpecError, match=r"must be one of those on the tape: 0 \(blocks\.0\).*got 2.*Not kept: layer 2"):
        _ = tape[2]
    with (
        pytest.raises(
            BudgetError, match=r"one of blocks\.0 takes 3,840 bytes, and the budget is 1KB\. Give budget=3840"
        ),
        record(model, budget="1KB"),
    ):
        model(x)


@torch.no_grad()
def test_errors_say_what_to_do(x: Tensor) -> None:
    model = Layers(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
    with (
        pytest.raises(SpecError, match=r"Layers must call attention .* no call was heard\. Run the model inside"),
        record(model),
    ):
        pass
    silent = Own(lambda q, k, v: (q @ k.mT).softmax(-1) @ v)
    with pytest.raises(SpecError, match=r"computes softmax.* itself cannot be heard"), record(silent):
        silent(x)
    missing = r"layers must be among those that attended: 0 \(blocks\.0\); got 5\."
    with pytest.raises(SpecError, match=missing), record(model, layers=[0, 5]):
        model(x)
    with pytest.raises(SpecError, match=r"heads must be from 0 to 3; got \[7\]"), record(model, heads=[7]):
        model(x)
    with pytest.raises(SpecError, match=r"must be given a torch\.nn\.Module; got function"), record(causal):  # type: ignore[arg-type]
        pass
    sunk = Layers(lambda q, k, v: regard.attention(q, k, v, weigh=weigh.sink(torch.zeros(4))))
    with pytest.raises(SpecError, match=r"another score, weighing or value.*Leave out heads="), record(sunk, heads=[0]):
        sunk(x)
    with pytest.raises(ZeroDivisionError), record(model):  # what goes wrong inside is what is heard of
        _ = 1 / 0


def test_after_a_recording_everything_is_as_it_was(x: Tensor) -> None:
    before = (F.scaled_dot_product_attention, F.multi_head_attention_forward, flex.flex_attention)
    model = encoder()
    with pytest.raises(ZeroDivisionError), record(model):
        _ = model(x).shape[0] / 0
    after = (F.scaled_dot_product_attention, F.multi_head_attention_forward, flex.flex_attention)
    assert all(one is other for one, other in zip(before, after, strict=True))
    assert torch._C._len_torch_function_stack() == 0
    assert not nn.modules.module._global_forward_pre_hooks and not nn.modules.module._global_forward_hooks


@torch.no_grad()
def test_a_compiled_model_is_recorded_too(x: Tensor) -> None:
    model = Layers(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    compiled: Any = torch.compile(model, backend="eager")
    compiled(x)
    with record(compiled) as tape:
        compiled(x)
    torch.testing.assert_close(tape[0].weights[...], weights_of(model.blocks[0], x, causal), **FINE)  # type: ignore[arg-type]


def test_gradients_of_the_answers_are_kept(x: Tensor) -> None:
    for call in (WAYS["sdpa, causal"][0], WAYS["regard"][0]):
        model = Layers(call, call)
        with record(model) as tape:
            y = model(x)
        y.square().sum().backward()
        gradient = tape.layers[1].takes[0].gradient
        assert gradient is not None
        torch.testing.assert_close(gradient.transpose(1, 2).flatten(2), 2 * y.detach(), rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_the_heads_that_were_kept(x: Tensor) -> None:
    model = Own(WAYS["regard"][0])
    with record(model) as whole, record(model, heads=[3, 1]) as some:
        y = model(x)
    y.square().sum().backward()
    one, other = whole.layers[0].takes[0].gradient, some.layers[0].takes[0].gradient
    assert one is not None and other is not None
    assert torch.equal(other, one[:, [3, 1]])
    torch.testing.assert_close(some.reversed(0)[...], whole.reversed(0)[:, [3, 1]], **FINE)


def test_calls_without_heads_and_of_arrays_are_recorded(x: Tensor) -> None:
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            regard.attention(x.detach().numpy(), x.detach().numpy(), x.detach().numpy())
            return regard.attention(x, x, x, mask=torch.ones(2, 20, 20).tril().bool())

    model = Plain()
    x = x.clone().requires_grad_()
    with record(model) as tape:
        y = model(x)
    y.sum().backward()
    array, tensor = tape.layers[0].takes
    assert array.gradient is None
    assert tensor.gradient is not None and tensor.gradient.shape == (2, 1, 20, 32)
    right = causal(x @ x.mT / 32**0.5).softmax(-1).detach()
    torch.testing.assert_close(tape.calls(0)[1].weights[:, 0], right, **FINE)


@torch.no_grad()
def test_a_tape_comes_back_from_its_file(x: Tensor, tmp_path: Path) -> None:
    slopes = torch.tensor([0.1, 0.2, 0.3, 0.4])
    model = Layers(
        lambda q, k, v: regard.attention(q, k, v, score=score.alibi(slopes), mask=lambda b, h, i, j: j <= i),
        lambda q, k, v: regard.attention(q, k, v, weigh=weigh.entmax(1.5), mask=mask.window(4)),
    )
    with record(model) as tape:
        model(x)
    tape.tokens = [f"t{n}" for n in range(20)]
    tape.save(tmp_path / "tape.safetensors")
    again = load_tape(tmp_path / "tape.safetensors")
    assert again.tokens == tape.tokens and again.paths == tape.paths
    for one, other in zip(tape, again, strict=True):
        assert torch.equal(one.weights[...], other.weights[...])
        assert torch.equal(one.output, other.output)


@torch.no_grad()
def test_what_cannot_be_saved_says_so(x: Tensor, tmp_path: Path) -> None:
    model = Layers(
        lambda q, k, v: regard.attention(
            q, k, v, score=score.custom(lambda q, k: -(q[..., None, :] - k[..., None, :, :]).abs().sum(-1))
        )
    )
    with record(model) as tape:
        model(x)
    assert tape[0].weights[0, 0].shape == (20, 20)
    with pytest.raises(SpecError, match=r"a call of blocks\.0 has a function of its own\. Record without"):
        tape.save(tmp_path / "tape.safetensors")
