"""Half precision is enough for q, k and v, not for what is computed from them."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(device: str) -> AbstractContextManager[object]:
    """Numbers inside are computed in the precision they have."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def fine(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def fine_as(parameter: Tensor, x: Tensor) -> Tensor:
    """A parameter in the precision in which x is computed with."""
    return parameter.to(fine(x).dtype)
