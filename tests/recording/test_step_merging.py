"""Merged decoding steps: each row has the mask and the scores of its own call."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import mask, normalizer, score
from regard.errors import ArgumentError
from regard.files.tensors_with_metadata import load_tensors_and_metadata
from regard.recording.recording import Recording
from tests.integrations.huggingface_models import ENCODER_DECODERS, token_ids

NUM_HEADS, HEAD_DIM, PROMPT_LEN, NUM_STEPS = 4, 8, 6, 5
CLOSE = dict(rtol=1e-5, atol=1e-6)  # the same numbers, summed in another order


class Decoding(nn.Module):
    """A prompt, then one token at a time, over the last `cache_size` keys."""

    def __init__(self, cache_size: int = 1000, **options: Any) -> None:
        super().__init__()
        self.cache_size, self.options = cache_size, options

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        prompt_mask = self.options.pop("mask", mask.causal())
        regard.attention(
            q[:, :, :PROMPT_LEN], k[:, :, :PROMPT_LEN], v[:, :, :PROMPT_LEN], mask=prompt_mask, **self.options
        )
        for n in range(PROMPT_LEN, PROMPT_LEN + NUM_STEPS):
            keys = slice(max(0, n + 1 - self.cache_size), n + 1)
            regard.attention(q[:, :, n : n + 1], k[:, :, keys], v[:, :, keys], **self.step_options(n, keys))

    def step_options(self, n: int, keys: slice) -> dict[str, Any]:
        return self.options


class BiasedDecoding(Decoding):
    """Decoding with a bias for each pair; each step adds its row of the bias."""

    def __init__(self, bias: Tensor, capped: bool, **options: Any) -> None:
        self.bias, self.score = (
            bias,
            score.scaled_dot(0.5).then(score.softcap(3.0)) if capped else score.scaled_dot(0.5),
        )
        super().__init__(score=self.score.then(score.bias(bias[:, :PROMPT_LEN, :PROMPT_LEN])), **options)

    def step_options(self, n: int, keys: slice) -> dict[str, Any]:
        return {"score": self.score.then(score.bias(self.bias[:, n : n + 1, keys]))}


def run_and_record(model: nn.Module) -> tuple[Recording, tuple[Tensor, ...]]:
    qkv = torch.randn(
        3, 2, NUM_HEADS, PROMPT_LEN + NUM_STEPS, HEAD_DIM, generator=torch.Generator().manual_seed(0)
    ).unbind()
    with regard.record(model) as recording:
        model(*qkv)
    return recording, qkv


CACHE_SIZES = {"all keys": 1000, "the last four keys": 4}


@pytest.mark.parametrize("cache_size", CACHE_SIZES.values(), ids=CACHE_SIZES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalizer": normalizer.sink(torch.arange(4.0))},
        {"normalizer": normalizer.entmax(1.5), "score": score.cosine(3.0)},
        {"score": score.scaled_dot(0.3).then(score.softcap(2.0))},
    ],
    ids=["softmax", "sink", "entmax of cosines", "softcap"],
)
def test_merged_steps_are_the_rows_of_one_matrix(options: dict[str, Any], cache_size: int) -> None:
    recording, (q, k, v) = run_and_record(Decoding(cache_size, **options))
    n = PROMPT_LEN + NUM_STEPS
    visible = mask.from_function(lambda b, h, i, j: (j <= i) & ((i < PROMPT_LEN) | (i - j < cache_size)))
    expected = regard.attention_with_weights(q, k, v, mask=visible, **options)
    result = recording[0]
    assert result.weights.shape == (2, NUM_HEADS, n, n)
    torch.testing.assert_close(result.weights[...], expected.weights[...], **CLOSE)
    torch.testing.assert_close(result.output, expected.output, **CLOSE)
    assert len(recording.head_table()) == NUM_HEADS


@pytest.mark.parametrize("cache_size", CACHE_SIZES.values(), ids=CACHE_SIZES)
@pytest.mark.parametrize("capped", [False, True])
def test_biases_of_the_steps_are_concatenated(capped: bool, cache_size: int) -> None:
    n = PROMPT_LEN + NUM_STEPS
    bias = torch.randn(NUM_HEADS, n, n, generator=torch.Generator().manual_seed(1))
    recording, (q, k, v) = run_and_record(model := BiasedDecoding(bias, capped, cache_size=cache_size))
    visible = mask.from_function(lambda b, h, i, j: (j <= i) & ((i < PROMPT_LEN) | (i - j < cache_size)))
    expected = regard.attention_with_weights(q, k, v, mask=visible, score=model.score.then(score.bias(bias)))
    torch.testing.assert_close(recording[0].weights[...], expected.weights[...], **CLOSE)


@pytest.mark.parametrize("cache_size", CACHE_SIZES.values(), ids=CACHE_SIZES)
def test_shared_keys_are_stored_and_saved_once(cache_size: int, tmp_path: Path) -> None:
    recording, (_, k, _) = run_and_record(Decoding(cache_size))
    (sequence,) = recording.layers[0].sequences
    torch.testing.assert_close(sequence.k, k, rtol=0, atol=0)
    storage = sequence.k.untyped_storage()
    assert {call.k.untyped_storage().data_ptr() for call in sequence.calls} == {storage.data_ptr()}
    assert storage.nbytes() <= k.nbytes * 1.25 + k.nbytes // k.shape[2]
    recording.save(tmp_path / "recording.safetensors")
    tensors, _ = load_tensors_and_metadata(tmp_path / "recording.safetensors")
    assert sum(t.shape[2] for name, t in tensors.items() if name.endswith(".k")) == PROMPT_LEN + NUM_STEPS
    loaded = regard.load_recording(tmp_path / "recording.safetensors")
    torch.testing.assert_close(loaded[0].weights[...], recording[0].weights[...], rtol=0, atol=0)
    for loaded_step, step in zip(loaded.calls(0), recording.calls(0), strict=True):
        torch.testing.assert_close(loaded_step.weights[...], step.weights[...], rtol=0, atol=0)


def test_steps_recorded_after_a_layer_was_read_are_merged() -> None:
    q, k, v = torch.randn(3, 1, 1, 5, HEAD_DIM, generator=torch.Generator().manual_seed(0)).unbind()
    step = nn.Module()
    step.forward = lambda n: regard.attention(q[:, :, n : n + 1], k[:, :, : n + 1], v[:, :, : n + 1])  # type: ignore[method-assign]
    with regard.record(step) as recording:
        for n in range(5):
            step(n)
            assert recording[0].weights.shape == (1, 1, n + 1, n + 1)


def test_the_budget_counts_shared_keys_once() -> None:
    """The keys fit, with a buffer that grows by a quarter. The keys of all steps would be fifty times as many."""
    q, k, v = torch.randn(3, 1, 1, 102, HEAD_DIM, generator=torch.Generator().manual_seed(0)).unbind()
    step = nn.Module()
    step.forward = lambda n: regard.attention(q[:, :, n : n + 1], k[:, :, : n + 1], v[:, :, : n + 1])  # type: ignore[method-assign]
    with regard.record(step, budget=6 * k.nbytes) as recording:
        for n in range(102):
            step(n)
    assert not recording.dropped_calls
    assert recording[0].weights.shape == (1, 1, 102, 102)


def test_score_modifiers_of_distances_are_merged() -> None:
    recording, (q, k, v) = run_and_record(Decoding(score=score.alibi()))
    expected = regard.attention_with_weights(q, k, v, mask=mask.causal(), score=score.alibi())
    torch.testing.assert_close(recording[0].weights[...], expected.weights[...], **CLOSE)


def test_masks_that_depend_on_the_head_are_merged() -> None:
    recording, _ = run_and_record(Decoding(mask=mask.from_function(lambda b, h, i, j: j <= i - h * (i > 3))))
    weights = recording[0].weights[...]
    for step, rows in zip(recording.calls(0), weights.split([PROMPT_LEN] + [1] * NUM_STEPS, dim=2), strict=True):
        torch.testing.assert_close(rows[..., : step.weights.shape[3]], step.weights[...], **CLOSE)


class ConstantKeys(Decoding):
    """One query at a time over constant keys, as in cross-attention."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        for n in range(PROMPT_LEN):
            regard.attention(q[:, :, n : n + 1], k, v, **self.options)


def test_steps_over_constant_keys_are_merged(tmp_path: Path) -> None:
    options = {"score": score.scaled_dot(0.5).then(lambda s, b, h, i, j: s - 0.1 * j)}
    recording, (q, k, v) = run_and_record(ConstantKeys(**options))
    expected = regard.attention_with_weights(q[:, :, :PROMPT_LEN], k, v, **options)
    recording.save(tmp_path / "recording.safetensors")
    for source in (recording, regard.load_recording(tmp_path / "recording.safetensors")):
        torch.testing.assert_close(source[0].weights[...], expected.weights[...], **CLOSE)


@pytest.mark.parametrize(
    "model",
    [
        Decoding(4, score=score.alibi()),
        ConstantKeys(score=score.alibi()),
        Decoding(score=lambda s, b, h, i, j: s + 0.1 * i),
    ],
    ids=["positions with a cache that evicts", "positions with constant keys", "query indices"],
)
def test_score_modifiers_that_merging_would_change_are_not_merged(model: nn.Module) -> None:
    recording, _ = run_and_record(model)
    with pytest.raises(
        ArgumentError,
        match=r"called 6 times with unrelated keys .*\. Use recording\.calls\(0\) for each call",
    ):
        _ = recording[0]


def test_unrelated_calls_are_not_merged() -> None:
    class TwoPrompts(Decoding):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> None:
            for keys in (slice(0, 5), slice(5, 10)):
                regard.attention(q[:, :, keys], k[:, :, keys], v[:, :, keys])

    recording, _ = run_and_record(TwoPrompts())
    with pytest.raises(ArgumentError, match="called 2 times with unrelated keys or different options"):
        _ = recording[0]


@torch.no_grad()
def test_the_steps_of_t5_are_one_matrix_per_layer() -> None:
    """T5 adds a relative position bias; each step has one row of it."""
    model = ENCODER_DECODERS["T5"].build()
    source = token_ids(1, 8)
    with regard.record(model) as recording:
        generated = model.generate(source, max_new_tokens=6, min_new_tokens=6, do_sample=False)[:, :-1]
    model.set_attn_implementation("eager")
    outputs = model(input_ids=source, decoder_input_ids=generated, output_attentions=True)
    weights = {path: recording[path].weights[...] for path in recording.layer_paths}
    for n, (self_weights, cross_weights) in enumerate(
        zip(outputs.decoder_attentions, outputs.cross_attentions, strict=True)
    ):
        base = f"decoder.block.{n}.layer"
        torch.testing.assert_close(weights[f"{base}.0.SelfAttention"], self_weights, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(weights[f"{base}.1.EncDecAttention"], cross_weights, rtol=1e-3, atol=1e-5)
