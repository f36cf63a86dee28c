"""What the laws share: problems made by hypothesis, one way to ask an engine, one way to compare numbers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import regard
from regard import mask as masks

from . import direct

# These say that they refuse nothing (`reference`: nothing but size); any other engine may decline a problem.
NEVER_DECLINE = ("tiled", "reference")

# The finest dtype of an engine; laws about numbers run in it, so that only mistakes, not rounding, can show.
FINEST = {"native": torch.float32, "fused": torch.float32}

# Sums of some hundred terms of size about 1: rounding stays under 100 units of the last place (2e-16, 1e-7).
TOLERANCE = {torch.float64: 2e-12, torch.float32: 2e-5}


_answered: Counter[str] = Counter()
_refused: Counter[str] = Counter()


def examples(count: int) -> hypothesis.settings:
    """The same examples on every run and every machine; the clock never decides."""
    return hypothesis.settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
    )


def dtype_of(engine: str) -> torch.dtype:
    return FINEST.get(engine, torch.float64)


def attention(engine: str, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return _ask(regard.attention, engine, q, k, v, options)


def attend(engine: str, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return _ask(regard.attend, engine, q, k, v, options)


def _ask(call: Callable[..., Any], engine: str, q: Any, k: Any, v: Any, options: dict[str, Any]) -> Any:
    try:
        answer = call(q, k, v, engine=engine, **options)
        _answered[os.environ["PYTEST_CURRENT_TEST"]] += 1
        return answer
    except regard.errors.EngineError as refusal:
        if engine in NEVER_DECLINE:
            raise
        test = os.environ["PYTEST_CURRENT_TEST"]
        _refused[test] += 1
        if hypothesis.currently_in_test_context() and (_answered[test] or _refused[test] < 5):
            hypothesis.reject()  # other examples may suit the engine
        pytest.skip(str(refusal))


def close(actual: Tensor, expected: Tensor, engine: str, times: float = 1.0) -> None:
    """Equal up to rounding in the engine's finest dtype; NaN and inf must stand in the same places.

    `times` widens the tolerance where a derivative or a product of derivatives makes the numbers larger.
    """
    tolerance = times * TOLERANCE[dtype_of(engine)]
    torch.testing.assert_close(
        actual.detach().double(), expected.detach().double(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


def equal(actual: Tensor, expected: Tensor) -> None:
    """The same bits (NaN equals NaN)."""
    torch.testing.assert_close(actual.detach(), expected.detach(), rtol=0, atol=0, equal_nan=True)


@dataclass(frozen=True)
class Problem:
    """Sizes and a seed: everything about q, k, v."""

    batch: int
    heads: int
    key_heads: int
    n_q: int
    n_k: int
    width: int
    width_v: int
    seed: int

    def tensors(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v of shape (batch, heads, length, width), standard normal."""
        numbers = torch.Generator().manual_seed(self.seed)
        return (
            torch.randn(self.batch, self.heads, self.n_q, self.width, generator=numbers, dtype=dtype),
            torch.randn(self.batch, self.key_heads, self.n_k, self.width, generator=numbers, dtype=dtype),
            torch.randn(self.batch, self.key_heads, self.n_k, self.width_v, generator=numbers, dtype=dtype),
        )

    def normal(self, *shape: int, dtype: torch.dtype = torch.float64, salt: int = 1) -> Tensor:
        """More numbers of the same problem; another salt gives others."""
        return torch.randn(shape, generator=torch.Generator().manual_seed(self.seed + 7919 * salt), dtype=dtype)

    def coins(self, *shape: int, chance: float = 0.5, salt: int = 1) -> Tensor:
        """A boolean tensor, True with the given chance."""
        return torch.rand(shape, generator=torch.Generator().manual_seed(self.seed + 7919 * salt)) < chance


small = st.integers(1, 9)
short = st.sampled_from([0, 1, 2, 3, 5, 8, 13])
# Usual tiles have 128 or 256 rows and 128 or 512 columns; these lengths sit at and beside their borders.
borders = st.sampled_from([127, 128, 129, 255, 256, 257, 511, 512, 513])


@st.composite
def problems(
    draw: st.DrawFn,
    n_q: st.SearchStrategy[int] = small,
    n_k: st.SearchStrategy[int] | None = small,
    batch: st.SearchStrategy[int] = st.integers(1, 2),
    groups: st.SearchStrategy[int] = st.integers(1, 2),
    key_heads: st.SearchStrategy[int] = st.integers(1, 2),
    width: st.SearchStrategy[int] = st.integers(1, 5),
) -> Problem:
    """`n_k=None` gives as many keys as queries."""
    of_keys, rows = draw(key_heads), draw(n_q)
    return Problem(
        batch=draw(batch),
        heads=of_keys * draw(groups),
        key_heads=of_keys,
        n_q=rows,
        n_k=rows if n_k is None else draw(n_k),
        width=draw(width),
        width_v=draw(width),
        seed=draw(st.integers(0, 10_000)),
    )


def long_problems(**changes: Any) -> st.SearchStrategy[Problem]:
    """Problems that reach over the borders of tiles; few heads and narrow, so that they stay quick."""
    sizes: dict[str, Any] = dict(n_q=borders, n_k=borders, batch=st.just(1), groups=st.just(1), width=st.just(3))
    return problems(**(sizes | changes))


def gradients(outputs: Tensor, inputs: Sequence[Tensor], weights: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """d(sum of outputs * weights) / d(inputs); an input that the outputs never touch counts as 0."""
    found = torch.autograd.grad((outputs * weights).sum(), inputs, allow_unused=True, **options)
    return tuple(torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True))


def leaves(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.detach().clone().requires_grad_() for x in tensors)


@st.composite
def mask_pairs(draw: st.DrawFn, problem: Problem, depth: int = 2) -> tuple[Any, direct.Mask]:
    """A mask of the library and the predicate that it must mean, composed up to `depth` times."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(simple_masks(problem)))
    (left, means_left), (right, means_right) = (
        draw(mask_pairs(problem, depth - 1)),
        draw(mask_pairs(problem, depth - 1)),
    )
    how = draw(st.sampled_from(["and", "or", "not"]))
    if how == "and":
        return left & right, lambda where: means_left(where) & means_right(where)
    if how == "or":
        return left | right, lambda where: means_left(where) | means_right(where)
    return ~left, lambda where: ~means_left(where)


def simple_masks(problem: Problem) -> list[tuple[Any, direct.Mask]]:
    whole = problem.coins(problem.batch, problem.heads, problem.n_q, problem.n_k)
    keys = problem.coins(problem.batch, 1, 1, problem.n_k, salt=2)
    lengths = torch.arange(problem.batch) * 2 % (problem.n_k + 1)
    table = problem.coins(problem.n_k + 1, salt=3)
    size = 1 + problem.seed % 4
    return [
        (masks.causal(), direct.causal()),
        (masks.window(size), direct.window(size)),
        (masks.window(size, size + 1), direct.window(size, size + 1)),
        (masks.blocks(size), direct.blocks(size)),
        (masks.blocks(size, look_back=1), direct.blocks(size, 1)),
        (masks.strided(size), direct.strided(size)),
        (masks.fixed(size), direct.fixed(size)),
        (masks.padding(lengths), direct.padding(lengths)),
        (masks.padding(lengths, side="left"), direct.padding(lengths, "left")),
        (masks.tokens([0, 2]), direct.tokens([0, 2])),
        (masks.dilated(3, size), direct.dilated(3, size)),
        (masks.prefix(size), direct.prefix(size)),
        (masks.longformer(size, [1]), direct.longformer(size, [1])),
        (masks.tensor(whole), lambda where: whole),
        (masks.tensor(keys), lambda where: keys),
        (
            masks.where(lambda b, h, i, j: (i - j + h) % 3 == b),
            lambda where: (where.i - where.j + where.h) % 3 == where.b,
        ),
        (masks.where(lambda b, h, i, j: table[j] | (i == 0)), lambda where: table[where.j] | (where.i == 0)),
    ]
