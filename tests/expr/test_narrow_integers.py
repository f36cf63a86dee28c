"""Captured tensors of narrow integer dtypes wrap around as in torch, on every backend."""

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


def edge_values(dtype: torch.dtype) -> torch.Tensor:
    """Return numbers at both ends of the range of a dtype, and some between."""
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    values = [low, low + 1, low + 2, 0, 1, 2, 3, 7, high // 2, high - 2, high - 1, high]
    return torch.tensor(values, dtype=dtype)


MaskFunction = Callable[[torch.Tensor, Any, Any], Any]
EXPRESSIONS: dict[str, MaskFunction] = {
    "difference": lambda x, i, j: (x[i] - x[j]) < 100,
    "difference with a number": lambda x, i, j: x[i] - 3 < x[j],
    "number on the left": lambda x, i, j: 3 - x[i] > x[j],
    "sum with a number that does not fit": lambda x, i, j: x[i] + 70_000 > x[j],
    "sum": lambda x, i, j: (x[i] + x[j]) > 10,
    "product": lambda x, i, j: (x[i] * x[j]) > 10,
    "product with numbers": lambda x, i, j: (x[i] * 3 + x[j] * 5) > 10,
    "square": lambda x, i, j: (x[i] ** 2) > x[j],
    "negative": lambda x, i, j: -x[i] > x[j],
    "magnitude": lambda x, i, j: abs(x[i]) > x[j],
    "bits": lambda x, i, j: (~x[i] ^ x[j]) > 5,
    "shift": lambda x, i, j: (x[i] << 2) > (x[j] >> 1),
    "with a position": lambda x, i, j: (x[i] - j) < i - x[j],
    "comparison with a large position": lambda x, i, j: (x[i] + x[j]) < i * 300,
    "integer division": lambda x, i, j: (x[i] + x[j]) // 2 > 3,
    "remainder": lambda x, i, j: (x[i] - x[j]) % 7 < 3,
    "where": lambda x, i, j: torch.where(i < j, x[i], x[j]) + x[i] > 4,
    "minimum": lambda x, i, j: torch.minimum(x[i] + x[j], x[i]) > 4,
    "converted": lambda x, i, j: (x[i].long() - x[j]) < 100,
    "converted to a byte": lambda x, i, j: (x[i] - x[j]).to(torch.uint8) < 100,
    "converted to eight bits": lambda x, i, j: ((i * 50).to(torch.int8) - x[j]) > 0,
    "a table of 64 bits": lambda x, i, j: (x[i] - x.long()[j]) < 100,
    "another narrow table": lambda x, i, j: (x[i] - x.to(torch.int8)[j]) < 100,
    "scalar tensor": lambda x, i, j: (x[i] - x[3:4].reshape(()) - x[j]) < 100,
    "cast to bool": lambda x, i, j: (x[i] - x[j]).bool(),
    "floats": lambda x, i, j: (x[i] - x[j]) * 0.5 < 20,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_arithmetic_wraps_around_as_in_torch(name: str, dtype: torch.dtype) -> None:
    values = edge_values(dtype)

    def function(b: Any, h: Any, i: Any, j: Any) -> Any:
        return EXPRESSIONS[name](values, i, j)

    assert torch.equal(
        mask.from_function(function).to_dense(N)[0, 0], create_mask(function, 1, 1, N, N, device="cpu")[0, 0]
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", ["tiled", "native", "flex"])
def test_every_backend_computes_the_same_mask(backend: str, dtype: torch.dtype) -> None:
    q, k, v = torch.randn(3, 1, 2, N, 8, generator=torch.Generator().manual_seed(0))
    values = edge_values(dtype)
    for name in EXPRESSIONS:

        def function(b: Any, h: Any, i: Any, j: Any, name: str = name) -> Any:
            return EXPRESSIONS[name](values, i, j) | (i == j)

        expected = regard.attention(q, k, v, mask=create_mask(function, 1, 1, N, N, device="cpu"), backend="reference")
        torch.testing.assert_close(regard.attention(q, k, v, mask=function, backend=backend), expected, msg=name)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bounds_hold_for_wrapped_integers(dtype: torch.dtype) -> None:
    """Blocks that the bounds decide to be empty or full must be so."""
    generator = torch.Generator().manual_seed(1)
    info = torch.iinfo(dtype)
    values = torch.randint(info.min, info.max + 1, (300,), generator=generator).to(dtype).sort().values

    def function(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (values[i] - values[j]) < info.max // 3

    q, k, v = torch.randn(3, 1, 1, 300, 8, generator=generator)
    expected = regard.attention(q, k, v, mask=create_mask(function, 1, 1, 300, 300, device="cpu"))
    torch.testing.assert_close(regard.attention(q, k, v, mask=function), expected)
    torch.testing.assert_close(regard.attention(q, k, v, mask=function, backend="tiled"), expected)


@pytest.mark.parametrize("compare", [lambda x: x < 300, lambda x: x != -1, lambda x: torch.clamp(x, max=300) > 2])
def test_number_that_torch_would_wrap_before_comparing_raises_error(compare: Any) -> None:
    values = edge_values(torch.uint8)
    with pytest.raises(TraceError, match=r"of torch.uint8 and (300|-1) would wrap .*\.long\(\)"):
        mask.from_function(lambda b, h, i, j: compare(values[i]))


def test_uint64_tensor_raises_error() -> None:
    values = edge_values(torch.uint8).to(torch.uint64)
    with pytest.raises(TraceError, match=r"torch.uint64 may hold values beyond 63 bits"):
        mask.from_function(lambda b, h, i, j: values[i] == values[j])


def test_symbol_has_the_dtype_of_its_tensor() -> None:
    values = edge_values(torch.int16)
    dtypes = []

    def function(b: Any, h: Any, i: Any, j: Any) -> Any:
        dtypes.append((values[i].dtype, (values[i] - 1).dtype, (values[i] - j).dtype, values[i].byte().dtype))
        return i == j

    mask.from_function(function)

    assert dtypes[0] == (torch.int16, torch.int16, torch.int64, torch.uint8)
