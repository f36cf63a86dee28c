"""Dropout as a pure function of (seed, b, h, i, j).

All arithmetic is on 32-bit words, so that the C++ kernels compute the same numbers. With mix(x) as below,

    row   = mix(mix(mix(mix(mix(seed_low) + seed_high) + b) + h) + i),    stride = mix(row ^ 0x9E3779B9)
    word  = mix(j * (stride | 1) + row)

and the pair is dropped if word < round(p * 2**32). Each row has its own stride, so two rows have the same pattern only
if two 32-bit words are equal.
"""

import torch
from torch import Tensor

from regard.call.spec import DROPOUT_ORIGIN, DropoutOrigin
from regard.expr.evaluate import IndexGrid

_UINT32_MASK = 0xFFFFFFFF


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit words in which every input bit affects all output bits.

    The int64 products may overflow, but their low words are right. In place, since there is one word for each pair.
    """
    x ^= x >> 16
    x.mul_(0x7FEB352D).bitwise_and_(_UINT32_MASK)
    x ^= x >> 15
    x.mul_(0x846CA68B).bitwise_and_(_UINT32_MASK)
    x ^= x >> 16
    return x


def dropout_mask(seed: int, dropout: float, positions: IndexGrid, origin: DropoutOrigin = DROPOUT_ORIGIN) -> Tensor:
    """Which pairs are dropped: booleans with the shape of `positions`. `origin` is the position in a larger call."""
    b, h, i, j = (torch.as_tensor(positions[name]) for name in "bhij")
    if origin is not DROPOUT_ORIGIN:
        h, i, j = h + origin.head, origin.i + origin.i_step * i, origin.j + origin.j_step * j
    low = torch.tensor(seed & _UINT32_MASK, device=j.device)
    row = _mix((_mix(low) + ((seed >> 32) & _UINT32_MASK)).bitwise_and_(_UINT32_MASK))
    for index in (b, h, i):
        row = _mix((row + index).bitwise_and_(_UINT32_MASK))
    stride = _mix(row ^ 0x9E3779B9) | 1
    word = _mix((j * stride).add_(row).bitwise_and_(_UINT32_MASK))
    return word < round(dropout * 2**32)
