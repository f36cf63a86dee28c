"""Precision of intermediate results: float16 and bfloat16 inputs are computed in float32."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(device: str) -> AbstractContextManager[object]:
    """Return a context in which autocast is disabled for the device type."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def upcast(x: Tensor) -> Tensor:
    """Return x in float32 if it is half precision, else x itself."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def upcast_like(parameter: Tensor, x: Tensor) -> Tensor:
    """Return a parameter in the dtype of `upcast(x)`."""
    return parameter.to(upcast(x).dtype)


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without the prefix "torch."."""
    return str(dtype).removeprefix("torch.")
