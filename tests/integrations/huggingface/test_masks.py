"""Masks for Hugging Face models: formulas that layers can modify like the masks of "eager"."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import masking_utils

import regard
from regard.integrations.huggingface import attention_interface
from regard.integrations.huggingface.masks import EagerMaskName, FormulaMask
from tests.integrations.architectures import tiny_model
from tests.integrations.decoding import (
    assert_checkpointed_gradients_match_eager,
    assert_decoding_matches_eager,
)
from tests.integrations.huggingface_models import padding_mask

WINDOW, LENGTH = 5, 12

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
    "causal without skip": dict(mask_function=masking_utils.causal_mask_function, allow_is_causal_skip=False),
}
SIZES = {
    "full": dict(q_length=LENGTH, kv_length=LENGTH),
    "second chunk": dict(q_length=4, kv_length=LENGTH, q_offset=LENGTH - 4),
    "single query": dict(q_length=1, kv_length=LENGTH, q_offset=LENGTH - 1),
    "single query in a window": dict(q_length=1, kv_length=WINDOW, q_offset=LENGTH - 1, kv_offset=LENGTH - WINDOW),
    "first query": dict(q_length=1, kv_length=1),
    "single query in a static cache": dict(q_length=1, kv_length=LENGTH, q_offset=torch.tensor(3)),
    "first query in a static cache": dict(q_length=1, kv_length=LENGTH, q_offset=torch.tensor(0)),
    "chunk in a static cache": dict(q_length=4, kv_length=LENGTH, q_offset=torch.tensor(0)),
}
PADDINGS = {
    "none": None,
    "no padding": torch.ones(2, LENGTH, dtype=torch.bool),
    "left": padding_mask("left").bool(),
    "right": padding_mask("right").bool(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("attn_implementation", ["regard", EagerMaskName("regard")], ids=["sdpa", "eager"])
def test_mask_is_none_only_if_the_eager_mask_is_none(name: str, attn_implementation: str) -> None:
    config = SimpleNamespace(_attn_implementation=attn_implementation)
    for sizes, padding in itertools.product(SIZES, PADDINGS):
        arguments = dict(batch_size=2, attention_mask=PADDINGS[padding], **SIZES[sizes], **FUNCTIONS[name])
        ours = attention_interface.regard_mask(config=config, **arguments)
        eager = masking_utils.eager_mask(**arguments)
        assert (ours is None) == (eager is None), (sizes, padding)
        if ours is not None:
            expected = eager if isinstance(attn_implementation, EagerMaskName) else eager == 0
            assert ours.shape == expected.shape and ours.dtype == expected.dtype, (sizes, padding)
            assert torch.equal(ours.clone(), expected), (sizes, padding)


@torch.no_grad()
def test_decoding_step_without_padding_runs_without_a_mask() -> None:
    for length in (1, WINDOW, LENGTH):
        row = attention_interface.regard_mask(batch_size=2, q_length=1, kv_length=length, q_offset=length - 1)
        q, k = torch.randn(2, 3, 1, 8), torch.randn(2, 3, length, 8)
        assert isinstance(row, FormulaMask)
        assert attention_interface.huggingface_to_attention_kwargs(nn.Module(), q, k, k, row)["mask"] is None
        assert row.source.tensor is None


def new_mask() -> FormulaMask:
    mask = attention_interface.regard_mask(
        batch_size=2, q_length=LENGTH, kv_length=LENGTH, attention_mask=padding_mask("left").bool()
    )
    assert isinstance(mask, FormulaMask)
    return mask


def test_mask_that_is_only_read_stays_a_formula() -> None:
    mask = new_mask()
    formula = mask.source.formula
    for result in (mask & True, mask[..., :3].float(), torch.cat([mask, mask], -1), mask.expand(-1, 4, -1, -1), ~mask):
        assert type(result) is Tensor
    assert mask.source.tensor is not None
    assert mask.formula_or_tensor() is formula


def write_directly(mask: Tensor) -> None:
    mask[:, :, :, 5] = False


def write_to_a_view(mask: Tensor) -> None:
    mask[:, :, 2:].masked_fill_(torch.arange(LENGTH) == 5, False)


def write_to_an_alias(mask: Tensor) -> None:
    mask.detach()[:, :, :, 5].fill_(False)


@pytest.mark.parametrize("write", [write_directly, write_to_a_view, write_to_an_alias])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_writes_to_a_mask_take_effect(write: Any, mode: Any) -> None:
    with mode():
        mask, expected = new_mask(), new_mask().clone()
        write(mask)
        write(expected)
        q = torch.randn(2, 3, LENGTH, 8)
        output, _ = attention_interface.regard_attention_forward(nn.Module(), q, q, q, mask)
        torch.testing.assert_close(output.transpose(1, 2), regard.attention(q, q, q, mask=expected))


def test_indexer_that_modifies_its_mask_decodes_as_on_eager() -> None:
    assert assert_decoding_matches_eager(tiny_model("DeepseekV4ForCausalLM")) > 0


def test_indexer_that_modifies_its_mask_trains_with_gradient_checkpointing() -> None:
    assert_checkpointed_gradients_match_eager(tiny_model("DeepseekV4ForCausalLM"))


def test_bias_added_to_a_mask_leaves_the_mask_causal() -> None:
    assert assert_decoding_matches_eager(tiny_model("DogeForCausalLM")) > 0
