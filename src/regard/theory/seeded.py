"""Random numbers of torch's own generator, for layers that draw their parameters from it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_ONE_AT_A_TIME = threading.Lock()  # the generator is the whole program's: two threads would draw from each other's seed


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What is drawn here depends on the seed alone; afterwards the generator goes on as if nothing had been drawn.

    >>> with seeded(3):
    ...     one = torch.rand(())
    >>> with seeded(3):
    ...     bool(torch.rand(()) == one)
    True
    """
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
