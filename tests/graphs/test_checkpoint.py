"""Activation checkpointing: what is computed again on the way back is the same, eagerly and in a graph."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tests.graphs.cases import CASES, answers, asked, close, defined, inputs

NAMES = ["a window", "alibi", "sink", "dropout"]


@pytest.fixture(autouse=True)
def _forget_what_was_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


def held(call: Callable[..., Tensor], use_reentrant: bool) -> Callable[..., Tensor]:
    return lambda *x: checkpoint(call, *x, use_reentrant=use_reentrant)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_an_eager_call_may_be_checkpointed(name, use_reentrant):
    case = CASES[name]
    x = [*inputs(), *case.parameters()]

    close(answers(held(asked(case), use_reentrant), *x), answers(defined(case), *x))


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_graph_may_be_checkpointed(name):
    case = CASES[name]
    x = [*inputs(), *case.parameters()]
    compiled = torch.compile(held(asked(case), use_reentrant=False), backend="aot_eager", fullgraph=True)

    close(answers(compiled, *x), answers(defined(case), *x))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_compiled_call_may_be_checkpointed(use_reentrant):
    case = CASES["alibi"]
    x = [*inputs(), *case.parameters()]
    compiled = torch.compile(asked(case), backend="aot_eager", fullgraph=True)

    close(answers(held(compiled, use_reentrant), *x), answers(defined(case), *x))


def test_a_graph_may_keep_attention_and_compute_the_rest_again():
    case = CASES["alibi"]
    x = [*inputs(), *case.parameters()]
    asked_for: list[str] = []

    def keep(context: object, operator: object, *args: object, **options: object) -> CheckpointPolicy:
        asked_for.append(str(operator))
        kept = operator is torch.ops.regard.attention.default
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, keep)

    def call(*x: Tensor) -> Tensor:
        return checkpoint(asked(case), *x, use_reentrant=False, context_fn=contexts)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)

    close(answers(compiled, *x), answers(defined(case), *x))
    assert "regard.attention.default" in asked_for
