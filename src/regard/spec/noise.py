"""Noise that is a function of the seed and the position alone, written as a formula: nothing of it is kept.

The hash is that of dropout (`engine/dropout.py`), for the seed with its bits turned over, so that the two are unlike.
"""

from typing import Any

_WORD = 0xFFFFFFFF


def uniform(seed: int, b: Any, h: Any, i: Any, j: Any) -> Any:
    """A number above 0 and below 1 for each pair: one of 2^23, all alike likely."""
    low, high = ~seed & _WORD, ~(seed >> 32) & _WORD
    row = _mix((_mix(low) + high) & _WORD)
    for index in (b, h, i):
        row = _mix((row + index) & _WORD)
    stride = _mix(row ^ 0x9E3779B9) | 1
    word = _mix((j * stride + row) & _WORD)
    return ((word >> 9) * 2 + 1) * 2.0**-24  # 24 bits: a float32 holds them


def _mix(x: Any) -> Any:
    """A bijection of 32-bit words that spreads every bit over all; of products that wrap, the low word stays right."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _WORD
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _WORD
    return x ^ (x >> 16)
