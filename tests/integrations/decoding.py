"""Compare a model on regard with the same model on "eager": forward passes, cached decoding, and training."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import modeling_utils
from transformers.models.auto import modeling_auto

from regard.integrations.huggingface import attention_interface

BATCH_SIZE, LENGTH, PADDING = 2, 24, 4
# The first step is longer than the padding: a step of padding alone leaves arbitrary values in recurrent states.
SCHEDULES: dict[str, list[int] | None] = {
    "whole": None,
    "one by one": [PADDING + 1] + [1] * (LENGTH - PADDING - 1),
    "in chunks": [9, 6] + [1] * (LENGTH - 15),
}


def tokens() -> Tensor:
    return torch.randint(3, 99, (BATCH_SIZE, LENGTH), generator=torch.Generator().manual_seed(1))


def left_padding_mask() -> Tensor:
    """Return an attention mask in which the second sequence is left-padded."""
    mask = torch.ones(BATCH_SIZE, LENGTH, dtype=torch.long)
    mask[1, :PADDING] = 0
    return mask


def has_encoder(model: Any) -> bool:
    is_decoder = type(model).__name__ in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return bool(model.config.is_encoder_decoder) and not is_decoder


def inputs(model: Any, begin: int, end: int, mask: Tensor | None) -> dict[str, Any]:
    """Return the arguments of a step, with a source sequence if the model has an encoder."""
    if not has_encoder(model):
        options: dict[str, Any] = dict(input_ids=tokens()[:, begin:end])
        return options if mask is None else options | dict(attention_mask=mask[:, :end])
    source = tokens().flip(0)[:, :10]
    source_mask = torch.ones_like(source)
    source_mask[0, -3:] = 0
    options = dict(input_ids=source, attention_mask=source_mask, decoder_input_ids=tokens()[:, begin:end])
    return options if mask is None else options | dict(decoder_attention_mask=mask[:, :end])


@torch.no_grad()
def logits_of(model: Any, steps: list[int] | None, mask: Tensor | None) -> Tensor:
    """Return logits (n, vocab_size) of all tokens except padding, from one forward pass or in steps with a cache."""
    past, parts, begin = None, [], 0
    for step in steps or [LENGTH]:
        options = inputs(model, begin, begin + step, mask) | dict(use_cache=steps is not None)
        if past is not None:
            options["past_key_values"] = past
        output = model(**options)
        past, begin = getattr(output, "past_key_values", None), begin + step
        if steps is not None and past is None:
            raise NotImplementedError(f"{type(model).__name__} returns no cache")
        parts.append(output.logits)
    logits = torch.cat(parts, 1)
    return logits.flatten(0, 1) if mask is None else logits[mask.bool()]


@dataclass
class RunResults:
    """Logits by schedule and padding, and the exceptions of schedules that a model does not support."""

    logits: dict[tuple[str, bool], Tensor] = field(default_factory=dict)
    failures: dict[tuple[str, bool], Exception] = field(default_factory=dict)


def run(model: Any, attn_implementation: str) -> RunResults:
    model.set_attn_implementation(attn_implementation)
    results = RunResults()
    for name, steps in SCHEDULES.items():
        for mask in (None, left_padding_mask()):
            try:
                results.logits[name, mask is not None] = logits_of(model, steps, mask)
            except Exception as error:  # a model that does not support a schedule may raise any error
                results.failures[name, mask is not None] = error
    return results


def largest(x: Tensor) -> float:
    return x.abs().max().item()


def assert_decoding_matches_eager(model: Any) -> int:
    """Compare the logits of every schedule and return the number of calls of regard."""
    eager = run(model, "eager")
    assert ("whole", False) in eager.logits, eager.failures["whole", False]
    ours = RunResults()
    calls = count_calls(lambda: vars(ours).update(vars(run(model, "regard"))))
    failed = {key: type(error) for key, error in eager.failures.items()}
    assert {key: type(error) for key, error in ours.failures.items()} == failed, ours.failures
    for key, expected in eager.logits.items():
        tolerance = 1e-4 * (1 + largest(expected))  # float32 through a few layers, and numbers near 10
        difference = largest(ours.logits[key] - expected)
        assert difference <= tolerance, f"{key}: logits differ by {difference:.2g}"
        whole = "whole", key[1]
        if whole in eager.logits:
            eager_discrepancy = largest(expected - eager.logits[whole])
            discrepancy = largest(ours.logits[key] - ours.logits[whole])
            message = f"{key}: differs by {discrepancy:.2g} from one forward pass, eager by {eager_discrepancy:.2g}"
            assert discrepancy <= 4 * eager_discrepancy + tolerance, message
    return calls


def gradients(model: Any, attn_implementation: str) -> dict[str, Tensor]:
    """Return the gradients of a training step with gradient checkpointing."""
    model.set_attn_implementation(attn_implementation)
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.zero_grad()
    torch.manual_seed(0)
    logits = model(**inputs(model, 0, LENGTH, left_padding_mask()), use_cache=False).logits
    logits[left_padding_mask().bool()].square().mean().backward()  # outputs of padding are arbitrary
    model.gradient_checkpointing_disable()
    model.eval()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_checkpointed_gradients_match_eager(model: Any) -> None:
    expected = gradients(model, "eager")
    ours = gradients(model, "regard")
    assert set(ours) == set(expected)
    scale = max(largest(gradient) for gradient in expected.values())
    for name, gradient in expected.items():
        tolerance = 1e-3 * largest(gradient) + 1e-5 * scale  # float32 sums over all tokens
        assert largest(ours[name] - gradient) <= tolerance, name


def count_calls(execute: Callable[[], Any]) -> int:
    """Return the number of calls of regard's attention function during `execute`."""
    calls = 0

    def counting_forward(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return attention_interface.regard_attention_forward(*args, **options)

    modeling_utils.AttentionInterface.register("regard", counting_forward)
    try:
        execute()
    finally:
        attention_interface.register()
    return calls
