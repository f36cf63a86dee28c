"""The questions that are asked inside graphs: what each learns, and how it is written."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, score, weigh

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 9, 8
EXACT = dict(rtol=2e-5, atol=5e-6)  # float32 against float64: sums of some ten terms, forward and backward

IDS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])
LENGTHS = torch.tensor([9, 5])
SEEN = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(1)
NOT_FAR = ~mask.dilated(2, 4)  # torch cannot read ~ of an object inside a graph
EVERY_THIRD = mask.where(lambda b, h, i, j: (i - j) % 3 != 1)
FALLING = torch.linspace(0.0, 1.0, LENGTH)
RULE = score.rule(lambda s, b, h, i, j: torch.where(i > j, s * 0.5, s - 0.1) + FALLING[j])


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
    "a window": Case(lambda: dict(mask=mask.causal() & mask.window(3))),
    "padding": Case(lambda: dict(mask=mask.padding(LENGTHS))),
    "padding in a list": Case(lambda: dict(mask=mask.padding([9, 5], side="left"))),
    "documents": Case(lambda: dict(mask=mask.documents(IDS) & mask.causal())),
    "a boolean tensor": Case(lambda: dict(mask=SEEN)),
    "joined masks": Case(lambda: dict(mask=(mask.causal() | mask.prefix(2)) & mask.tensor(SEEN) & NOT_FAR)),
    "bigbird": Case(lambda: dict(mask=mask.bigbird(2, near=1, random=1))),
    "a kept mask": Case(lambda: dict(mask=EVERY_THIRD & mask.window(6))),
    "a kept rule": Case(lambda: dict(score=score.scaled_dot(0.3).then(RULE))),
    "alibi": Case(lambda slopes: dict(score=score.alibi(slopes), mask=mask.causal()), ((HEADS,),)),
    "the standard alibi": Case(lambda: dict(score=score.alibi())),
    "softcap": Case(lambda: dict(score=score.dot().then(score.softcap(2.0)))),
    "bias": Case(lambda table: dict(score=score.bias(table)), ((HEADS, LENGTH, LENGTH),)),
    "a tensor as a score": Case(lambda table: dict(score=table), ((LENGTH, LENGTH),)),
    "relative": Case(lambda table: dict(score=score.relative(table, max_distance=8)), ((8, HEADS),)),
    "relative keys": Case(lambda table: dict(score=score.shaw_keys(table)), ((5, WIDTH),)),
    "relative values": Case(lambda table: dict(value=score.shaw_values(table)), ((5, WIDTH),)),
    "a learned scale": Case(lambda scale: dict(score=score.cosine(scale)), ((HEADS,),)),
    "a metric": Case(lambda sigma: dict(score=score.metric(sigma)), ((),)),
    "additive": Case(lambda w, u: dict(score=score.additive(w, w, u)), ((WIDTH, 5), (5,))),
    "sink": Case(lambda logit: dict(weigh=weigh.sink(logit), mask=mask.causal()), ((HEADS,),)),
    "sigmoid": Case(lambda bias: dict(weigh=weigh.sigmoid(bias)), ((),)),
    "relu": Case(lambda: dict(weigh=weigh.relu())),
    "a function of the values": Case(lambda w: dict(value=lambda v: v @ w), ((WIDTH, 3),)),
    "dropout": Case(lambda: dict(dropout=0.3, seed=11, mask=mask.causal())),
    "a start": Case(lambda: dict(start=torch.tensor([0, 2]), mask=mask.causal())),
}


QUICK = ("nothing", "causal", "a window", "padding", "documents", "joined masks", "a kept mask", "alibi", "softcap")
QUICK += ("bias", "relative", "relative values", "sink", "sigmoid", "a function of the values", "dropout")


def some(*quick: str, but: str = "") -> pytest.MarkDecorator:
    """These cases in every run, the others in the long one."""
    names = [name for name in CASES if name != but]
    return pytest.mark.parametrize(
        "name", [name if name in quick else pytest.param(name, marks=pytest.mark.long) for name in names]
    )


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(*lead: int, n: int = LENGTH, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    lead = lead or (BATCH, HEADS)
    return [normal(*lead, n, WIDTH, seed=seed, dtype=dtype) for seed in (1, 2, 3)]


def answers(call: Callable[..., Tensor], *x: Tensor) -> list[Tensor]:
    """What a call gives, and the gradients of all that it is given."""
    x = tuple(t.detach().clone().requires_grad_() for t in x)
    output = call(*x)
    output.double().sin().sum().backward()
    gradients = [t.grad for t in x]
    assert all(g is not None for g in gradients)
    return [output.detach(), *gradients]  # type: ignore[list-item]  # none of them is None


def defined(case: Case) -> Callable[..., Tensor]:
    """The call as the reference engine answers it, eagerly."""

    def call(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        return regard.attention(q * 1.5, k, v, engine="reference", **case.options(*learned)) + 1.0

    return call


def asked(case: Case) -> Callable[..., Tensor]:
    """The call as a caller writes it."""

    def call(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        return regard.attention(q * 1.5, k, v, **case.options(*learned)) + 1.0

    return call


def close(found: list[Tensor], expected: list[Tensor], **tolerance: float) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), **(tolerance or EXACT))
