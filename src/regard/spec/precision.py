"""Half precision is enough for q, k and v, not for what is computed from them."""

import torch
from torch import Tensor


def fine(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def fine_as(parameter: Tensor, x: Tensor) -> Tensor:
    """A parameter in the precision in which x is computed with."""
    return parameter.to(fine(x).dtype)
