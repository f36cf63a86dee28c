"""Half precision is computed with in float32; everything else stays what it is."""

import pytest
import torch

from regard.spec.precision import fine, fine_as


@pytest.mark.parametrize(
    "dtype, computed",
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_computing_is_done_in_float32_at_least(dtype: torch.dtype, computed: torch.dtype) -> None:
    x = torch.ones(2, dtype=dtype)
    assert fine(x).dtype == computed and fine_as(torch.ones(2, dtype=torch.float64), x).dtype == computed
    assert (fine(x) is x) == (dtype == computed)
