"""Activation checkpointing: recomputation gives the same results, eagerly and in a graph."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tests.torch_ops.cases import CASES, close, inputs, output_and_gradients, reference_call, user_call

pytestmark = pytest.mark.usefixtures("reset_compiler")
NAMES = ["a window", "alibi", "sink", "dropout"]


def checkpointed(call: Callable[..., Tensor], use_reentrant: bool) -> Callable[..., Tensor]:
    return lambda *x: checkpoint(call, *x, use_reentrant=use_reentrant)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_eager_call_can_be_checkpointed(name, use_reentrant):
    case = CASES[name]
    x = [*inputs(), *case.parameters()]

    close(
        output_and_gradients(checkpointed(user_call(case), use_reentrant), *x),
        output_and_gradients(reference_call(case), *x),
    )


@pytest.mark.parametrize("name", NAMES)
def test_full_graph_can_be_checkpointed(name):
    case = CASES[name]
    x = [*inputs(), *case.parameters()]
    compiled = torch.compile(checkpointed(user_call(case), use_reentrant=False), backend="aot_eager", fullgraph=True)

    close(output_and_gradients(compiled, *x), output_and_gradients(reference_call(case), *x))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_compiled_call_can_be_checkpointed(use_reentrant):
    case = CASES["alibi"]
    x = [*inputs(), *case.parameters()]
    compiled = torch.compile(user_call(case), backend="aot_eager", fullgraph=True)

    close(
        output_and_gradients(checkpointed(compiled, use_reentrant), *x), output_and_gradients(reference_call(case), *x)
    )


def test_selective_checkpointing_can_save_attention():
    case = CASES["alibi"]
    x = [*inputs(), *case.parameters()]
    visited: list[str] = []

    def policy(context: object, operator: object, *args: object, **options: object) -> CheckpointPolicy:
        visited.append(str(operator))
        is_attention = operator is torch.ops.regard.attention.default
        return CheckpointPolicy.MUST_SAVE if is_attention else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)

    def call(*x: Tensor) -> Tensor:
        return checkpoint(user_call(case), *x, use_reentrant=False, context_fn=contexts)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)

    close(output_and_gradients(compiled, *x), output_and_gradients(reference_call(case), *x))
    assert "regard.attention.default" in visited
