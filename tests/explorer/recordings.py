"""Recordings of any shape, for tests."""

from typing import Any

import torch
from torch import Tensor

from regard.explorer.explorer import Explorer
from regard.explorer.recorded import of_tape
from regard.explorer.shown import Shown
from regard.inside.take import taken
from regard.inside.tape import Tape


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def a_tape(
    n_q: int, n_k: int, *, heads: int = 2, key_heads: int = 2, width: int = 8, batch: int = 1, **options: Any
) -> Tape:
    """One layer that was asked this."""
    tape = Tape()
    q = 2 * normal(batch, heads, n_q, width)
    k, v = normal(batch, key_heads, n_k, width, seed=1), normal(batch, key_heads, n_k, width, seed=2)
    asked = {"q": q, "k": k, "v": v, **options}
    tape.layer("layer.0", 0, None).add(taken(asked, None, lambda tensor: tensor, "test"))
    return tape


def shown(n_q: int, n_k: int, **options: Any) -> Shown:
    return of_tape(a_tape(n_q, n_k, **options))


def explorer(n_q: int, n_k: int, **options: Any) -> Explorer:
    return Explorer(shown(n_q, n_k, **options))
