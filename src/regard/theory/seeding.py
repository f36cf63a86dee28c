"""The seed of torch's global generator, for layers that initialize their parameters from it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_RNG_LOCK = threading.Lock()  # the generator is global: two threads would mix their seeds


@contextmanager
def fork_rng_with_seed(seed: int) -> Iterator[None]:
    """Seed torch's generator inside the block; restore its state afterwards.

    >>> with fork_rng_with_seed(3):
    ...     one = torch.rand(())
    >>> with fork_rng_with_seed(3):
    ...     bool(torch.rand(()) == one)
    True
    """
    with _RNG_LOCK, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
