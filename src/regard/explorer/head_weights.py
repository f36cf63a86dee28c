"""The weights of one head of a layer over one text."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard import mask
from regard.errors import ArgumentError
from regard.measure import Measure, Measurements
from regard.recording.recorded_call import RecordedCall, copy_call
from regard.result import AttentionResult


class HeadWeights:
    """The weights of one head, (n_q, n_k), computed on request; weights of `hidden_keys` are 0 and rows renormalized.

    `recorded_call` has only this head if heads can be separated, and all heads of the layer otherwise. `head_index`
    is the index of the head in `recorded_call`.
    """

    def __init__(self, recorded_call: RecordedCall, head_index: int, hidden_keys: Sequence[int] = ()) -> None:
        self.recorded_call, self.head_index = recorded_call, head_index
        if hidden_keys:
            self.recorded_call = hide_keys(recorded_call, hidden_keys)

    @classmethod
    def from_call(cls, recorded_call: RecordedCall, head_index: int, hidden_keys: Sequence[int] = ()) -> "HeadWeights":
        """Create the weights of the head `head_index` of a call."""
        try:
            arguments = {"q": recorded_call.q, "k": recorded_call.k, "v": recorded_call.v, **recorded_call.options}
            return cls(copy_call(arguments, [head_index], lambda tensor: tensor, recorded_call.source), 0, hidden_keys)
        except ArgumentError:  # a score or normalizer with parameters per head cannot be separated
            return cls(recorded_call, head_index, hidden_keys)

    @property
    def shape(self) -> tuple[int, int]:
        return self.recorded_call.q.shape[2], self.recorded_call.k.shape[2]

    @property
    def nbytes(self) -> int:
        """The approximate size of the tensors and the result."""
        return 2 * (self.recorded_call.q.nbytes + self.recorded_call.k.nbytes + self.recorded_call.v.nbytes)

    @property
    def result(self) -> AttentionResult[Tensor]:
        return self.recorded_call.result

    def weights(self, i: Any, j: Any) -> Tensor:
        """Return the weights of queries `i` and keys `j`, slices or lists of indices: (queries, keys)."""
        with torch.no_grad():
            weights: Tensor = self.result.weights[0, self.head_index, i, j].float()
        # rounding may give softmax weights above 1
        return weights.clamp(max=1.0) if can_hide_keys(self.recorded_call) else weights

    def measure(self, measure: Measure) -> Measurements:
        """Return a measure of all heads of `recorded_call`."""
        return self.result.weights.measure(measure)


def can_hide_keys(recorded_call: RecordedCall) -> bool:
    """Whether keys of a call can be hidden: only softmax merely renormalizes the other weights."""
    return recorded_call.options["normalizer"] is None


def hide_keys(recorded_call: RecordedCall, hidden_keys: Sequence[int]) -> RecordedCall:
    """Return the call with a mask that also hides these keys."""
    if not can_hide_keys(recorded_call):
        raise ArgumentError(
            "keys can be hidden only with the softmax normalizer; this layer has another normalizer. Show all keys of "
            "the layer."
        )
    visible = recorded_call.options["mask"]
    for key in hidden_keys:
        other_keys = mask.from_function(_key_is_not(key))
        visible = other_keys if visible is None else visible & other_keys
    return replace(recorded_call, options={**recorded_call.options, "mask": visible}, serialized_options=None)


def _key_is_not(key: int) -> Any:
    return lambda b, h, i, j: j != key
