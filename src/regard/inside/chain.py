"""Calls that go on one from another, as in generation: their keys and values are kept once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.inside.take import Take


class Chain:
    """Calls each of which looks at the keys of the one before, all or the latest of them, and maybe at new ones.

    `k` and `v` are all there were. The keys of call n begin at `offsets[n]` among them, which is 0 unless a cache has
    forgotten some. Memory grows by a quarter at a time, so that a step costs what it adds.
    """

    def __init__(self, takes: Sequence[Take], offsets: Sequence[int], k: Tensor, v: Tensor) -> None:
        self.takes, self.offsets = list(takes), list(offsets)
        self._k, self._v, self._length = k, v, k.shape[2]
        self._look()

    @classmethod
    def of(cls, take: Take) -> "Chain":
        """A call that goes on from none."""
        return cls([take], [0], take.k, take.v)

    @property
    def k(self) -> Tensor:
        return self._k[:, :, : self._length]

    @property
    def v(self) -> Tensor:
        return self._v[:, :, : self._length]

    def forgotten(self, take: Take) -> int | None:
        """How many keys of the last call are gone in one that goes on; None where it does not."""
        last = self.takes[-1]
        if take.k.shape[:2] != last.k.shape[:2] or take.k.shape[3] != last.k.shape[3]:
            return None
        before, n_k, n_q = last.k.shape[2], take.k.shape[2], take.q.shape[2]
        for kept in (before, n_k - n_q):  # all of them, or those that are not the queries' own
            gone = before - kept
            if 0 < kept <= min(before, n_k) and all(
                torch.equal(x[:, :, :kept], y[:, :, gone:]) for x, y in ((take.k, last.k), (take.v, last.v))
            ):
                return gone
        return None

    def add(self, take: Take, forgotten: int) -> int:
        """Keeps a call that goes on; the bytes that it takes."""
        held, offset = self._k.nbytes + self._v.nbytes, self.offsets[-1] + forgotten
        length = offset + take.k.shape[2]
        if length > self._k.shape[2]:
            self._k, self._v = (_wider(x, max(length, self._length * 5 // 4)) for x in (self._k, self._v))
            self._look()
        for buffer, x in ((self._k, take.k), (self._v, take.v)):
            buffer[:, :, self._length : length] = x[:, :, self._length - offset :]
        self._length = length
        self.takes.append(take)
        self.offsets.append(offset)
        self._look(len(self.takes) - 1)
        return take.q.nbytes + self._k.nbytes + self._v.nbytes - held

    def _look(self, first: int = 0) -> None:
        """Calls from number `first` on look at their part of the keys."""
        for n in range(first, len(self.takes)):
            take, offset = self.takes[n], self.offsets[n]
            part = slice(offset, offset + take.k.shape[2])
            take.k, take.v = self._k[:, :, part], self._v[:, :, part]


def _wider(x: Tensor, length: int) -> Tensor:
    found = x.new_empty(*x.shape[:2], length, x.shape[3])
    found[:, :, : x.shape[2]] = x
    return found
