"""The result of `attention_with_weights`."""

from dataclasses import dataclass
from functools import cached_property
from typing import Generic

from regard.errors import ArgumentError
from regard.plan.choose import Plan
from regard.tensors.convert import Array
from regard.weights import AttentionWeights


@dataclass(frozen=True, eq=False)
class AttentionResult(Generic[Array]):
    """The output of a call with everything that can be derived from it.

    Attributes:
        output: The output of `attention`, of shape (..., num_heads, n_q, value_dim).
        weights: The attention matrix. Its entries are computed when they are indexed or measured.
        seed: The seed of the dropout.
        statistic: The row statistic (..., num_heads, n_q) that determines the weights, such as the log-sum-exp of
            softmax; None for a normalizer without one.

    >>> import regard, torch
    >>> x = torch.eye(3)
    >>> result = regard.attention_with_weights(x, x, x)
    >>> result.output.shape, result.weights.shape, result.lse.shape
    (torch.Size([3, 3]), (3, 3), torch.Size([3]))
    """

    output: Array
    weights: AttentionWeights
    seed: int
    statistic: Array | None

    @cached_property
    def plan(self) -> Plan:
        """The plan of the call, with the backend that ran and the nonempty tiles of the mask."""
        return self.weights.plan

    @property
    def lse(self) -> Array:
        """The log-sum-exp of each row's scores (..., num_heads, n_q), for `regard.merge_states`."""
        if self.weights.normalizer_iterations > 1:
            raise ArgumentError(
                "lse requires the softmax or sink normalizer; got sinkhorn, which has a log-sum-exp per row and per "
                "column."
            )
        normalizer = self.plan.spec.normalizer
        if normalizer.statistic != "lse" or self.statistic is None:
            reason = f"whose statistic is {normalizer.statistic}" if normalizer.statistic else "which has no statistic"
            raise ArgumentError(f"lse requires the softmax or sink normalizer; got {normalizer.name}, {reason}.")
        return self.statistic
