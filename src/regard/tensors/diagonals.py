"""Sums along the diagonals of matrices."""

import torch
from torch import Tensor


def diagonal_sums(x: Tensor) -> Tensor:
    """Sum x (..., m, n) along each diagonal j - i, from -(m - 1) to n - 1: (..., m + n - 1).

    >>> diagonal_sums(torch.tensor([[1, 2], [3, 4]]))
    tensor([3, 5, 2])
    """
    m, n = x.shape[-2:]
    # with the rows in reverse order and row r shifted right by r, diagonals become columns
    skewed = torch.nn.functional.pad(x.flip(-2), (0, m)).flatten(-2)[..., : m * (n + m - 1)]
    sums: Tensor = skewed.unflatten(-1, (m, n + m - 1)).sum(-2)
    return sums
