"""Dropout as a pure function of (seed, b, h, i, j): the hash, written down once.

All arithmetic is on 32-bit words, so that vector code computes the same numbers. With mix(x) as below,

    one   = mix(mix(mix(mix(seed_low) + seed_high) + b) + h) + i),    other = mix(one ^ 0x9E3779B9)
    word  = mix(j * (other | 1) + one)

and the pair is dropped where word < round(p * 2**32). A row's keys walk with a stride of their own, so that two rows
share a pattern only if two words of 32 bits agree.
"""

import torch
from torch import Tensor

from regard.spec.evaluate import Positions
from regard.spec.spec import ORIGIN, Origin

_WORD = 0xFFFFFFFF


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit words that spreads every bit over all; int64 products wrap, the low word stays right.

    In place: there is one word for each pair.
    """
    x ^= x >> 16
    x.mul_(0x7FEB352D).bitwise_and_(_WORD)
    x ^= x >> 15
    x.mul_(0x846CA68B).bitwise_and_(_WORD)
    x ^= x >> 16
    return x


def dropped(seed: int, dropout: float, positions: Positions, origin: Origin = ORIGIN) -> Tensor:
    """Which pairs are dropped: booleans of the positions' shape. A part of a larger call says where it begins there."""
    b, h, i, j = (torch.as_tensor(positions[name]) for name in "bhij")
    if origin is not ORIGIN:
        h, i, j = h + origin.head, origin.i + origin.i_step * i, origin.j + origin.j_step * j
    low = torch.tensor(seed & _WORD, device=j.device)
    row = _mix((_mix(low) + ((seed >> 32) & _WORD)).bitwise_and_(_WORD))
    for index in (b, h, i):
        row = _mix((row + index).bitwise_and_(_WORD))
    stride = _mix(row ^ 0x9E3779B9) | 1
    word = _mix((j * stride).add_(row).bitwise_and_(_WORD))
    return word < round(dropout * 2**32)
