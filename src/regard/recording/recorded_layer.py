"""The recorded calls of one module. Consecutive decoding steps are merged into one call."""

from functools import cached_property

from torch import Tensor

from regard.errors import ArgumentError
from regard.recording.decode_sequence import DecodeSequence
from regard.recording.recorded_call import RecordedCall
from regard.recording.step_merging import NotMergeable, merge_steps
from regard.result import AttentionResult


class RecordedLayer:
    """A module that called attention, with its recorded calls.

    `path` is the path of the module in the model and `index` its index among the modules that called attention.
    `head_indices` are the indices of the recorded heads in the model.
    """

    def __init__(self, path: str, index: int, head_indices: list[int] | None) -> None:
        self.path, self.index = path, index
        self.sequences: list[DecodeSequence] = []
        self._selected_heads = head_indices

    @property
    def calls(self) -> list[RecordedCall]:
        """All calls, in the order in which they were made."""
        return [call for sequence in self.sequences for call in sequence.calls]

    @property
    def head_indices(self) -> list[int]:
        return (
            list(range(self.sequences[0].calls[0].q.shape[1])) if self._selected_heads is None else self._selected_heads
        )

    def add(self, call: RecordedCall) -> int:
        """Add a call and return the number of bytes that it takes. Keys shared with the last call are stored once."""
        self.__dict__.pop("merged_call", None)
        num_evicted = self.sequences[-1].num_evicted_keys(call) if self.sequences else None
        if num_evicted is not None:
            return self.sequences[-1].add(call, num_evicted)
        self.sequences.append(DecodeSequence.from_call(call))
        return call.q.nbytes + call.k.nbytes + call.v.nbytes

    @cached_property
    def merged_call(self) -> RecordedCall:
        """All calls as one call, with the queries of all steps. Raises `ArgumentError` if they cannot be merged."""
        if len(self.calls) == 1:
            return self.calls[0]
        try:
            return merge_steps(self.sequences)
        except NotMergeable:
            raise ArgumentError(
                f"the calls of a layer must be consecutive decoding steps to form one matrix; {self.path} was called "
                f"{len(self.calls)} times with unrelated keys or different options. Use "
                f"recording.calls({self.index}) for each call."
            ) from None

    @property
    def result(self) -> AttentionResult[Tensor]:
        """The output and the weights of all calls as one call."""
        return self.merged_call.result
