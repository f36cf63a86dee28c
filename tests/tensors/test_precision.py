"""Half precision is expected in float32; other dtypes stay unchanged."""

import pytest
import torch

from regard.tensors.precision import upcast, upcast_like


@pytest.mark.parametrize(
    "dtype, expected",
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_half_precision_is_upcast_to_float32(dtype: torch.dtype, expected: torch.dtype) -> None:
    x = torch.ones(2, dtype=dtype)
    assert upcast(x).dtype == expected and upcast_like(torch.ones(2, dtype=torch.float64), x).dtype == expected
    assert (upcast(x) is x) == (dtype == expected)
