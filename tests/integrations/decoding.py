"""A model on regard against the same model on "eager": whole forward passes, cached decoding, and training."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import modeling_utils
from transformers.models.auto import modeling_auto

from regard.integrations import huggingface

BATCH, LENGTH, PADDING = 2, 24, 4
# The first step is longer than the padding: a step of padding alone leaves arbitrary numbers in recurrent states.
SCHEDULES: dict[str, list[int] | None] = {
    "whole": None,
    "one by one": [PADDING + 1] + [1] * (LENGTH - PADDING - 1),
    "in chunks": [9, 6] + [1] * (LENGTH - 15),
}


def tokens() -> Tensor:
    return torch.randint(3, 99, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))


def left_padding() -> Tensor:
    """The second text is shorter than the first."""
    real = torch.ones(BATCH, LENGTH, dtype=torch.long)
    real[1, :PADDING] = 0
    return real


def has_encoder(model: Any) -> bool:
    is_decoder = type(model).__name__ in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return bool(model.config.is_encoder_decoder) and not is_decoder


def inputs(model: Any, begin: int, end: int, real: Tensor | None) -> dict[str, Any]:
    """The arguments of a step, with the source text for a model that has an encoder."""
    if not has_encoder(model):
        options: dict[str, Any] = dict(input_ids=tokens()[:, begin:end])
        return options if real is None else options | dict(attention_mask=real[:, :end])
    source = tokens().flip(0)[:, :10]
    seen = torch.ones_like(source)
    seen[0, -3:] = 0
    options = dict(input_ids=source, attention_mask=seen, decoder_input_ids=tokens()[:, begin:end])
    return options if real is None else options | dict(decoder_attention_mask=real[:, :end])


@torch.no_grad()
def logits_of(model: Any, steps: list[int] | None, real: Tensor | None) -> Tensor:
    """Logits (n, vocabulary) of the tokens that are no padding: from one forward pass, or with a cache in steps."""
    past, parts, begin = None, [], 0
    for step in steps or [LENGTH]:
        options = inputs(model, begin, begin + step, real) | dict(use_cache=steps is not None)
        if past is not None:
            options["past_key_values"] = past
        output = model(**options)
        past, begin = getattr(output, "past_key_values", None), begin + step
        if steps is not None and past is None:
            raise NotImplementedError(f"{type(model).__name__} returns no cache")
        parts.append(output.logits)
    logits = torch.cat(parts, 1)
    return logits.flatten(0, 1) if real is None else logits[real.bool()]


@dataclass
class Outcome:
    """Logits by schedule and padding, and the exceptions of schedules that a model does not run."""

    logits: dict[tuple[str, bool], Tensor] = field(default_factory=dict)
    failures: dict[tuple[str, bool], Exception] = field(default_factory=dict)


def run(model: Any, backend: str) -> Outcome:
    model.set_attn_implementation(backend)
    outcome = Outcome()
    for name, steps in SCHEDULES.items():
        for real in (None, left_padding()):
            try:
                outcome.logits[name, real is not None] = logits_of(model, steps, real)
            except Exception as error:  # a model may not support a schedule, with whatever error
                outcome.failures[name, real is not None] = error
    return outcome


def largest(x: Tensor) -> float:
    return x.abs().max().item()


def assert_decoding_is_that_of_eager(model: Any) -> int:
    """Compares logits of every schedule; returns how often regard was called."""
    eager = run(model, "eager")
    assert ("whole", False) in eager.logits, eager.failures["whole", False]
    ours = Outcome()
    calls = count_calls(lambda: vars(ours).update(vars(run(model, "regard"))))
    failed = {key: type(error) for key, error in eager.failures.items()}
    assert {key: type(error) for key, error in ours.failures.items()} == failed, ours.failures
    for key, expected in eager.logits.items():
        tolerance = 1e-4 * (1 + largest(expected))  # float32 through a few layers, and numbers near 10
        difference = largest(ours.logits[key] - expected)
        assert difference <= tolerance, f"{key}: logits differ by {difference:.2g}"
        whole = "whole", key[1]
        if whole in eager.logits:
            own = largest(expected - eager.logits[whole])
            discrepancy = largest(ours.logits[key] - ours.logits[whole])
            assert discrepancy <= 4 * own + tolerance, f"{key}: {discrepancy:.2g} from the whole, eager {own:.2g}"
    return calls


def gradients(model: Any, backend: str) -> dict[str, Tensor]:
    """Gradients of a training step in which every layer is computed twice."""
    model.set_attn_implementation(backend)
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.zero_grad()
    torch.manual_seed(0)
    logits = model(**inputs(model, 0, LENGTH, left_padding()), use_cache=False).logits
    logits[left_padding().bool()].square().mean().backward()  # padding sees nothing, and its numbers are arbitrary
    model.gradient_checkpointing_disable()
    model.eval()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_checkpointed_gradients_are_those_of_eager(model: Any) -> None:
    expected = gradients(model, "eager")
    ours = gradients(model, "regard")
    assert set(ours) == set(expected)
    scale = max(largest(gradient) for gradient in expected.values())
    for name, gradient in expected.items():
        tolerance = 1e-3 * largest(gradient) + 1e-5 * scale  # float32 sums over all tokens
        assert largest(ours[name] - gradient) <= tolerance, name


def count_calls(execute: Callable[[], Any]) -> int:
    """How often regard's attention is called."""
    calls = 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return huggingface.answer(*args, **options)

    modeling_utils.AttentionInterface.register("regard", counted)
    try:
        execute()
    finally:
        huggingface.register()
    return calls
