"""The calls of one module on a tape. Calls that go on where the last one ended, as in generation, are one matrix."""

from functools import cached_property

import torch

from regard.errors import SpecError
from regard.inside.joined import Apart, joined
from regard.inside.take import Take
from regard.result import Attended


class Layer:
    """A module that attends: its path in the model, its number among such modules, and what it was asked.

    `heads` are the numbers of those that were kept.
    """

    def __init__(self, path: str, number: int, heads: list[int] | None) -> None:
        self.path, self.number = path, number
        self.takes: list[Take] = []
        self._chosen = heads
        self._first = 0  # of the last calls that go on one from another

    @property
    def heads(self) -> list[int]:
        return list(range(self.takes[0].q.shape[1])) if self._chosen is None else self._chosen

    def add(self, take: Take) -> int:
        """Keeps a call. Keys and values that the last one had are kept once: the bytes that were saved."""
        self.__dict__.pop("take", None)
        last = self.takes[-1] if self.takes else None
        self.takes.append(take)
        if last is None or not _begins_with(take, last):
            self._first = len(self.takes) - 1
            return 0
        saved = last.k.nbytes + last.v.nbytes
        for earlier in self.takes[self._first : -1]:
            earlier.over(take.k, take.v)
        return saved

    @cached_property
    def take(self) -> Take:
        """All calls as one."""
        if len(self.takes) == 1:
            return self.takes[0]
        try:
            return joined(self.takes)
        except Apart:
            raise SpecError(
                f"the calls of a layer must go on where the last one ended, as in generation, to be one matrix; "
                f"{self.path} was called {len(self.takes)} times with other keys or rules. Take them one by one: "
                f"tape.calls({self.number})."
            ) from None

    @property
    def attended(self) -> Attended:
        """All calls as one, kept open."""
        return self.take.attended


def _begins_with(take: Take, last: Take) -> bool:
    n_k = last.k.shape[-2]
    if take.k.shape[:-2] != last.k.shape[:-2] or take.k.shape[-2] < n_k:
        return False
    return torch.equal(take.k[..., :n_k, :], last.k) and torch.equal(take.v[..., :n_k, :], last.v)
