"""The calls that are tested in graphs: their options, and the shapes of their learned tensors."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, normalizer, score
from tests.random_tensors import normal

BATCH, HEADS, LENGTH, HEAD_DIM = 2, 4, 9, 8
EMBED_DIM = 8  # of a module with two heads
EXACT = dict(rtol=2e-5, atol=5e-6)  # float32 against float64: sums of about ten terms, forward and backward

IDS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])
LENGTHS = torch.tensor([9, 5])
VISIBLE = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(1)
NOT_FAR = ~mask.dilated(2, 4)  # torch cannot trace ~ of an object inside a graph
EVERY_THIRD = mask.from_function(lambda b, h, i, j: (i - j) % 3 != 1)
FALLING = torch.linspace(0.0, 1.0, LENGTH)
RULE = score.modifier(lambda s, b, h, i, j: torch.where(i > j, s * 0.5, s - 0.1) + FALLING[j])


@dataclass(frozen=True)
class Case:
    """`options` makes the arguments of a call from the tensors whose shapes are `learned`."""

    options: Callable[..., dict[str, Any]]
    learned: tuple[tuple[int, ...], ...] = field(default=())

    def parameters(self, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        return [normal(*shape, seed=7 + n, dtype=dtype).abs().add(0.2) for n, shape in enumerate(self.learned)]


CASES: dict[str, Case] = {
    "nothing": Case(dict),
    "causal": Case(lambda: dict(mask=mask.causal())),
    "a window": Case(lambda: dict(mask=mask.causal() & mask.sliding_window(3))),
    "padding": Case(lambda: dict(mask=mask.padding(LENGTHS))),
    "padding in a list": Case(lambda: dict(mask=mask.padding([9, 5], side="left"))),
    "documents": Case(lambda: dict(mask=mask.document(IDS) & mask.causal())),
    "a boolean tensor": Case(lambda: dict(mask=VISIBLE)),
    "combined masks": Case(lambda: dict(mask=(mask.causal() | mask.prefix(2)) & mask.tensor(VISIBLE) & NOT_FAR)),
    "bigbird": Case(lambda: dict(mask=mask.bigbird(2, num_local_blocks=1, num_random_blocks=1))),
    "a stored mask": Case(lambda: dict(mask=EVERY_THIRD & mask.sliding_window(6))),
    "a stored score modifier": Case(lambda: dict(score=score.scaled_dot(0.3).then(RULE))),
    "alibi": Case(lambda slopes: dict(score=score.alibi(slopes), mask=mask.causal()), ((HEADS,),)),
    "the standard alibi": Case(lambda: dict(score=score.alibi())),
    "softcap": Case(lambda: dict(score=score.dot().then(score.softcap(2.0)))),
    "bias": Case(lambda table: dict(score=score.bias(table)), ((HEADS, LENGTH, LENGTH),)),
    "a tensor as a score": Case(lambda table: dict(score=table), ((LENGTH, LENGTH),)),
    "t5 bias": Case(lambda table: dict(score=score.t5_bias(table, max_distance=8)), ((8, HEADS),)),
    "relative keys": Case(lambda table: dict(score=score.shaw_keys(table)), ((5, HEAD_DIM),)),
    "relative values": Case(lambda table: dict(value=score.shaw_values(table)), ((5, HEAD_DIM),)),
    "a learned scale": Case(lambda scale: dict(score=score.cosine(scale)), ((HEADS,),)),
    "gaussian": Case(lambda sigma: dict(score=score.gaussian(sigma)), ((),)),
    "additive": Case(lambda w, u: dict(score=score.additive(w, w, u)), ((HEAD_DIM, 5), (5,))),
    "sink": Case(lambda logit: dict(normalizer=normalizer.sink(logit), mask=mask.causal()), ((HEADS,),)),
    "sigmoid": Case(lambda bias: dict(normalizer=normalizer.sigmoid(bias)), ((),)),
    "relu": Case(lambda: dict(normalizer=normalizer.relu())),
    "a function of the values": Case(lambda w: dict(value=lambda v: v @ w), ((HEAD_DIM, 3),)),
    "dropout": Case(lambda: dict(dropout=0.3, seed=11, mask=mask.causal())),
    "a query offset": Case(lambda: dict(query_offset=torch.tensor([0, 2]), mask=mask.causal())),
}


QUICK = ("nothing", "causal", "a window", "padding", "documents", "combined masks", "a stored mask", "alibi", "softcap")
QUICK += ("bias", "t5 bias", "relative values", "sink", "sigmoid", "a function of the values", "dropout")


def parametrize_cases(*quick: str, except_for: str = "") -> pytest.MarkDecorator:
    """Parametrize `name`: these cases in every run, the others in long runs only."""
    names = [name for name in CASES if name != except_for]
    return pytest.mark.parametrize(
        "name", [name if name in quick else pytest.param(name, marks=pytest.mark.long) for name in names]
    )


def inputs(*lead: int, n: int = LENGTH, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    lead = lead or (BATCH, HEADS)
    return [normal(*lead, n, HEAD_DIM, seed=seed, dtype=dtype) for seed in (1, 2, 3)]


def output_and_gradients(call: Callable[..., Tensor], *x: Tensor) -> list[Tensor]:
    """The output of a call, and the gradients of all its arguments."""
    x = tuple(t.detach().clone().requires_grad_() for t in x)
    output = call(*x)
    output.double().sin().sum().backward()
    gradients = [t.grad for t in x]
    assert all(g is not None for g in gradients)
    return [output.detach(), *gradients]  # type: ignore[list-item]  # none of them is None


def reference_call(case: Case) -> Callable[..., Tensor]:
    """The call on the reference backend, eagerly."""

    def call(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        return regard.attention(q * 1.5, k, v, backend="reference", **case.options(*learned)) + 1.0

    return call


def user_call(case: Case) -> Callable[..., Tensor]:
    """The call on the default backend."""

    def call(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        return regard.attention(q * 1.5, k, v, **case.options(*learned)) + 1.0

    return call


def close(actual: list[Tensor], expected: list[Tensor], **tolerance: float) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), **(tolerance or EXACT))
