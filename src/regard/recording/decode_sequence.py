"""Consecutive calls that extend one key-value cache, as in decoding. Shared keys and values are stored once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.recording.recorded_call import RecordedCall


class DecodeSequence:
    """Calls in which the keys of each call begin with all keys, or only the latest keys, of the previous call.

    `k` and `v` hold the keys and values of all calls. The keys of call n begin at `key_offsets[n]`, which is 0 unless
    the cache has evicted keys. Buffers grow by a quarter, so that the cost of a step does not depend on the length.
    """

    def __init__(self, calls: Sequence[RecordedCall], offsets: Sequence[int], k: Tensor, v: Tensor) -> None:
        self.calls, self.key_offsets = list(calls), list(offsets)
        self._k, self._v, self._length = k, v, k.shape[2]
        self._update_views()

    @classmethod
    def from_call(cls, call: RecordedCall) -> "DecodeSequence":
        """Return a sequence of one call."""
        return cls([call], [0], call.k, call.v)

    @property
    def k(self) -> Tensor:
        return self._k[:, :, : self._length]

    @property
    def v(self) -> Tensor:
        return self._v[:, :, : self._length]

    def num_evicted_keys(self, call: RecordedCall) -> int | None:
        """Return how many keys of the last call are missing in `call`; None if `call` does not extend the sequence."""
        last = self.calls[-1]
        if call.k.shape[:2] != last.k.shape[:2] or call.k.shape[3] != last.k.shape[3]:
            return None
        last_n_k, n_k, n_q = last.k.shape[2], call.k.shape[2], call.q.shape[2]
        for num_shared in (last_n_k, n_k - n_q):  # all keys, or all except those of the new queries
            num_evicted = last_n_k - num_shared
            if 0 < num_shared <= min(last_n_k, n_k) and all(
                torch.equal(x[:, :, :num_shared], y[:, :, num_evicted:])
                for x, y in ((call.k, last.k), (call.v, last.v))
            ):
                return num_evicted
        return None

    def add(self, call: RecordedCall, num_evicted: int) -> int:
        """Add a call that extends the sequence and return the number of bytes that it takes."""
        old_bytes, offset = self._k.nbytes + self._v.nbytes, self.key_offsets[-1] + num_evicted
        length = offset + call.k.shape[2]
        if length > self._k.shape[2]:
            self._k, self._v = (_grow_buffer(x, max(length, self._length * 5 // 4)) for x in (self._k, self._v))
            self._update_views()
        for buffer, x in ((self._k, call.k), (self._v, call.v)):
            buffer[:, :, self._length : length] = x[:, :, self._length - offset :]
        self._length = length
        self.calls.append(call)
        self.key_offsets.append(offset)
        self._update_views(len(self.calls) - 1)
        return call.q.nbytes + self._k.nbytes + self._v.nbytes - old_bytes

    def _update_views(self, start_index: int = 0) -> None:
        """Make the k and v of the calls from `start_index` on views of the buffers."""
        for n in range(start_index, len(self.calls)):
            call, offset = self.calls[n], self.key_offsets[n]
            keys = slice(offset, offset + call.k.shape[2])
            call.k, call.v = self._k[:, :, keys], self._v[:, :, keys]


def _grow_buffer(x: Tensor, length: int) -> Tensor:
    buffer = x.new_empty(*x.shape[:2], length, x.shape[3])
    buffer[:, :, : x.shape[2]] = x
    return buffer
