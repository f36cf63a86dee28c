"""Masks for Hugging Face's models: formulas that layers may change as they change the masks of "eager"."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import masking_utils

import regard
from regard.integrations import huggingface
from regard.integrations.huggingface import FormulaMask, MadeForEager
from tests.integrations.architectures import tiny_model
from tests.integrations.decoding import (
    assert_checkpointed_gradients_are_those_of_eager,
    assert_decoding_is_that_of_eager,
)
from tests.integrations.hugging_faces import padding

WINDOW, LENGTH = 5, 12


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    huggingface.register()


FUNCTIONS: dict[str, dict[str, Any]] = {
    "causal": dict(mask_function=masking_utils.causal_mask_function),
    "window": dict(
        mask_function=masking_utils.sliding_window_causal_mask_function(WINDOW),
        local_size=WINDOW,
    ),
    "bidirectional": dict(
        mask_function=masking_utils.bidirectional_mask_function,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=True,
    ),
    "always written": dict(mask_function=masking_utils.causal_mask_function, allow_is_causal_skip=False),
}
SIZES = {
    "whole": dict(q_length=LENGTH, kv_length=LENGTH),
    "second chunk": dict(q_length=4, kv_length=LENGTH, q_offset=LENGTH - 4),
    "single": dict(q_length=1, kv_length=LENGTH, q_offset=LENGTH - 1),
    "single in a window": dict(q_length=1, kv_length=WINDOW, q_offset=LENGTH - 1, kv_offset=LENGTH - WINDOW),
    "first of few": dict(q_length=1, kv_length=1),
    "single in a fixed cache": dict(q_length=1, kv_length=LENGTH, q_offset=torch.tensor(3)),
    "first in a fixed cache": dict(q_length=1, kv_length=LENGTH, q_offset=torch.tensor(0)),
    "chunk in a fixed cache": dict(q_length=4, kv_length=LENGTH, q_offset=torch.tensor(0)),
}
PADDINGS = {
    "none": None,
    "all real": torch.ones(2, LENGTH, dtype=torch.bool),
    "left": padding("left").bool(),
    "right": padding("right").bool(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("backend", ["regard", MadeForEager("regard")], ids=["sdpa", "eager"])
def test_a_mask_is_none_only_where_eager_has_none(name: str, backend: str) -> None:
    config = SimpleNamespace(_attn_implementation=backend)
    for place, side in itertools.product(SIZES, PADDINGS):
        question = dict(batch_size=2, attention_mask=PADDINGS[side], **SIZES[place], **FUNCTIONS[name])
        ours = huggingface.make_mask(config=config, **question)
        eager = masking_utils.eager_mask(**question)
        assert (ours is None) == (eager is None), (place, side)
        if ours is not None:
            expected = eager if isinstance(backend, MadeForEager) else eager == 0
            assert ours.shape == expected.shape and ours.dtype == expected.dtype, (place, side)
            assert torch.equal(ours.clone(), expected), (place, side)


@torch.no_grad()
def test_without_padding_a_step_of_decoding_runs_without_a_mask() -> None:
    for length in (1, WINDOW, LENGTH):
        row = huggingface.make_mask(batch_size=2, q_length=1, kv_length=length, q_offset=length - 1)
        q, k = torch.randn(2, 3, 1, 8), torch.randn(2, 3, length, 8)
        assert isinstance(row, FormulaMask)
        assert huggingface.question(nn.Module(), q, k, k, row)["mask"] is None
        assert row.source.tensor is None


def fresh() -> FormulaMask:
    made = huggingface.make_mask(batch_size=2, q_length=LENGTH, kv_length=LENGTH, attention_mask=padding("left").bool())
    assert isinstance(made, FormulaMask)
    return made


def test_a_mask_that_is_only_read_stays_a_formula() -> None:
    mask = fresh()
    formula = mask.source.formula
    for read in (mask & True, mask[..., :3].float(), torch.cat([mask, mask], -1), mask.expand(-1, 4, -1, -1), ~mask):
        assert type(read) is Tensor
    assert mask.source.tensor is not None
    assert mask.current() is formula


def write_directly(mask: Tensor) -> None:
    mask[:, :, :, 5] = False


def write_into_a_view(mask: Tensor) -> None:
    mask[:, :, 2:].masked_fill_(torch.arange(LENGTH) == 5, False)


def write_into_an_alias(mask: Tensor) -> None:
    mask.detach()[:, :, :, 5].fill_(False)


@pytest.mark.parametrize("write", [write_directly, write_into_a_view, write_into_an_alias])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_mask_that_was_written_into_is_what_was_written(write: Any, mode: Any) -> None:
    with mode():
        mask, expected = fresh(), fresh().clone()
        write(mask)
        write(expected)
        q = torch.randn(2, 3, LENGTH, 8)
        output, _ = huggingface.answer(nn.Module(), q, q, q, mask)
        torch.testing.assert_close(output.transpose(1, 2), regard.attention(q, q, q, mask=expected))


def test_an_indexer_that_changes_its_mask_decodes_as_on_eager() -> None:
    assert assert_decoding_is_that_of_eager(tiny_model("DeepseekV4ForCausalLM")) > 0


def test_an_indexer_that_changes_its_mask_trains_with_recomputed_layers() -> None:
    assert_checkpointed_gradients_are_those_of_eager(tiny_model("DeepseekV4ForCausalLM"))


def test_a_bias_that_is_added_to_a_mask_leaves_the_mask_causal() -> None:
    assert assert_decoding_is_that_of_eager(tiny_model("DogeForCausalLM")) > 0
