"""Captured tensors of narrow whole numbers wrap around as in torch, on every engine."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

import regard
from regard import mask
from regard.errors import TraceError

DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32]
N = 12


def edges(dtype: torch.dtype) -> torch.Tensor:
    """Numbers at both ends of a dtype, and some between."""
    least, greatest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    values = [least, least + 1, least + 2, 0, 1, 2, 3, 7, greatest // 2, greatest - 2, greatest - 1, greatest]
    return torch.tensor(values, dtype=dtype)


Rule = Callable[[torch.Tensor, Any, Any], Any]
RULES: dict[str, Rule] = {
    "difference": lambda x, i, j: (x[i] - x[j]) < 100,
    "difference with a number": lambda x, i, j: x[i] - 3 < x[j],
    "number first": lambda x, i, j: 3 - x[i] > x[j],
    "a number that does not fit, added": lambda x, i, j: x[i] + 70_000 > x[j],
    "sum": lambda x, i, j: (x[i] + x[j]) > 10,
    "product": lambda x, i, j: (x[i] * x[j]) > 10,
    "product of numbers": lambda x, i, j: (x[i] * 3 + x[j] * 5) > 10,
    "square": lambda x, i, j: (x[i] ** 2) > x[j],
    "negative": lambda x, i, j: -x[i] > x[j],
    "magnitude": lambda x, i, j: abs(x[i]) > x[j],
    "bits": lambda x, i, j: (~x[i] ^ x[j]) > 5,
    "shift": lambda x, i, j: (x[i] << 2) > (x[j] >> 1),
    "with a position": lambda x, i, j: (x[i] - j) < i - x[j],
    "a position beyond": lambda x, i, j: (x[i] + x[j]) < i * 300,
    "whole division": lambda x, i, j: (x[i] + x[j]) // 2 > 3,
    "remainder": lambda x, i, j: (x[i] - x[j]) % 7 < 3,
    "choice": lambda x, i, j: torch.where(i < j, x[i], x[j]) + x[i] > 4,
    "least": lambda x, i, j: torch.minimum(x[i] + x[j], x[i]) > 4,
    "converted": lambda x, i, j: (x[i].long() - x[j]) < 100,
    "converted to a byte": lambda x, i, j: (x[i] - x[j]).to(torch.uint8) < 100,
    "converted to eight bits": lambda x, i, j: ((i * 50).to(torch.int8) - x[j]) > 0,
    "a table of 64 bits": lambda x, i, j: (x[i] - x.long()[j]) < 100,
    "another narrow table": lambda x, i, j: (x[i] - x.to(torch.int8)[j]) < 100,
    "a single number": lambda x, i, j: (x[i] - x[3:4].reshape(()) - x[j]) < 100,
    "truth": lambda x, i, j: (x[i] - x[j]).bool(),
    "floats": lambda x, i, j: (x[i] - x[j]) * 0.5 < 20,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", RULES)
def test_arithmetic_is_torchs_own(name: str, dtype: torch.dtype) -> None:
    values = edges(dtype)

    def rule(b: Any, h: Any, i: Any, j: Any) -> Any:
        return RULES[name](values, i, j)

    assert torch.equal(mask.where(rule).dense(N)[0, 0], create_mask(rule, 1, 1, N, N, device="cpu")[0, 0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("engine", ["tiled", "native", "fused"])
def test_every_engine_sees_the_same_pairs(engine: str, dtype: torch.dtype) -> None:
    q, k, v = torch.randn(3, 1, 2, N, 8, generator=torch.Generator().manual_seed(0))
    values = edges(dtype)
    for name in RULES:

        def rule(b: Any, h: Any, i: Any, j: Any, name: str = name) -> Any:
            return RULES[name](values, i, j) | (i == j)

        expected = regard.attention(q, k, v, mask=create_mask(rule, 1, 1, N, N, device="cpu"), engine="reference")
        torch.testing.assert_close(regard.attention(q, k, v, mask=rule, engine=engine), expected, msg=name)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bounds_hold_numbers_that_wrap(dtype: torch.dtype) -> None:
    """A block that bounds call empty or full must be so: many blocks, none of which is all one number."""
    generator = torch.Generator().manual_seed(1)
    info = torch.iinfo(dtype)
    values = torch.randint(info.min, info.max + 1, (300,), generator=generator).to(dtype).sort().values

    def rule(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (values[i] - values[j]) < info.max // 3

    q, k, v = torch.randn(3, 1, 1, 300, 8, generator=generator)
    expected = regard.attention(q, k, v, mask=create_mask(rule, 1, 1, 300, 300, device="cpu"))
    torch.testing.assert_close(regard.attention(q, k, v, mask=rule), expected)
    torch.testing.assert_close(regard.attention(q, k, v, mask=rule, engine="tiled"), expected)


@pytest.mark.parametrize("compare", [lambda x: x < 300, lambda x: x != -1, lambda x: torch.clamp(x, max=300) > 2])
def test_numbers_that_torch_would_wrap_before_it_compares_are_refused(compare: Any) -> None:
    values = edges(torch.uint8)
    with pytest.raises(TraceError, match=r"of torch.uint8 and (300|-1): the number does not fit.*\.long\(\)"):
        mask.where(lambda b, h, i, j: compare(values[i]))


def test_a_table_beyond_63_bits_is_refused() -> None:
    values = edges(torch.uint8).to(torch.uint64)
    with pytest.raises(TraceError, match=r"torch.uint64 may hold numbers beyond 63 bits"):
        mask.where(lambda b, h, i, j: values[i] == values[j])


def test_a_stand_in_has_the_dtype_of_its_table() -> None:
    values = edges(torch.int16)
    dtypes = []

    def rule(b: Any, h: Any, i: Any, j: Any) -> Any:
        dtypes.append((values[i].dtype, (values[i] - 1).dtype, (values[i] - j).dtype, values[i].byte().dtype))
        return i == j

    mask.where(rule)

    assert dtypes[0] == (torch.int16, torch.int16, torch.int64, torch.uint8)
