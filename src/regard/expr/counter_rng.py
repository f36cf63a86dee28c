"""Counter-based random numbers: a hash of the seed and the position, written as an expression without state.

The hash is the one of dropout (`backends/shared/dropout.py`) with the bits of the seed inverted, so that the two
sequences differ.
"""

from typing import Any

_UINT32_MASK = 0xFFFFFFFF


def position_uniform(seed: int, b: Any, h: Any, i: Any, j: Any) -> Any:
    """Return a uniform random number for each pair, one of 2^23 values strictly between 0 and 1."""
    low, high = ~seed & _UINT32_MASK, ~(seed >> 32) & _UINT32_MASK
    row = _mix((_mix(low) + high) & _UINT32_MASK)
    for index in (b, h, i):
        row = _mix((row + index) & _UINT32_MASK)
    stride = _mix(row ^ 0x9E3779B9) | 1
    word = _mix((j * stride + row) & _UINT32_MASK)
    return ((word >> 9) * 2 + 1) * 2.0**-24  # 24 bits are exact in float32


def _mix(x: Any) -> Any:
    """Mix the bits of a 32-bit word by a bijection. Products may wrap: their low 32 bits stay correct."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _UINT32_MASK
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _UINT32_MASK
    return x ^ (x >> 16)
