"""Attention over packed sequences of different lengths (varlen): one call, no padding.

In the expressions of the mask and the score modifier, each position is replaced by the position in its own sequence,
and pairs of different sequences are hidden. So every backend supports packed sequences with all of its options.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.backends.execute import execute
from regard.backends.registry import BACKENDS
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.checks import describe, is_integer_tensor
from regard.errors import ArgumentError
from regard.expr.closed_expr import CapturedTensor, ClosedExpr, TensorFromQueries, TensorFromShape, trace_builtin
from regard.expr.ir import lookup, renumber_slots, slot_of, substitute, variable, walk
from regard.expr.score_modifier import ScoreModifier
from regard.expr.tile_coverage import ScoreShape
from regard.mask import Mask, MaskLike, as_mask
from regard.normalizer import NormalizerLike, as_normalizer
from regard.plan.choose import choose_backend
from regard.score import ScoreLike, ValueLike, as_score
from regard.tensors.convert import Array, as_tensor
from regard.torch_ops.compile_guard import disable_compile

__all__ = ["attention_varlen"]

IntArrayLike = Sequence[int] | Tensor | NDArray[np.integer[Any]]


@disable_compile
def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    lengths_q: IntArrayLike,
    lengths_k: IntArrayLike | None = None,
    *,
    score: ScoreLike | None = None,
    mask: MaskLike | None = None,
    normalizer: NormalizerLike | None = None,
    value: ValueLike | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    query_offset: int | IntArrayLike | None = None,
    backend: str | None = None,
) -> Array:
    """Compute attention for each of several sequences that are concatenated along the length, without padding.

    In masks and score modifiers, b is the index of the sequence, and i, j and the lengths are those of that sequence.

    Args:
        q: Queries of shape (num_heads, total_q, head_dim), or (total_q, head_dim) for one head.
        k: Keys of shape (num_kv_heads, total_k, head_dim), or (total_k, head_dim).
        v: Values of shape (num_kv_heads, total_k, value_dim), or (total_k, value_dim).
        lengths_q: The number of queries of each sequence, (batch,); they add up to total_q.
        lengths_k: The number of keys of each sequence, (batch,); they add up to total_k. Default: lengths_q.
        query_offset: The position of the first query among the keys of its sequence, one integer or one per sequence.
            Default: lengths_k - lengths_q.

    The other parameters are those of `attention`.

    Returns:
        The output of shape (num_heads, total_q, value_dim), or (total_q, value_dim).

    >>> from regard import attention, mask
    >>> x = torch.randn(5, 8)
    >>> output = attention_varlen(x, x, x, [2, 3], mask=mask.causal())
    >>> torch.allclose(output[2:], attention(x[2:], x[2:], x[2:], mask=mask.causal()), atol=1e-6)
    True
    """
    lengths_k = lengths_q if lengths_k is None else lengths_k
    parsed_lengths_q, parsed_lengths_k = _parse_lengths(lengths_q, "lengths_q"), _parse_lengths(lengths_k, "lengths_k")
    _check_rows(q, parsed_lengths_q, "q")
    _check_rows(k, parsed_lengths_k, "k")
    layout = _VarlenLayout(parsed_lengths_q, parsed_lengths_k, query_offset)
    num_heads = q.shape[0] if q.ndim == 3 else 1
    parsed_score, parsed_normalizer = as_score(score), as_normalizer(normalizer)
    if parsed_score.score_mod is not None:
        score_mod = layout.rebase(parsed_score.score_mod, num_heads, ScoreModifier)
        parsed_score = replace(parsed_score, score_mod=score_mod)
    if parsed_normalizer.score_mod is not None:
        score_mod = layout.rebase(parsed_normalizer.score_mod, num_heads, ScoreModifier)
        parsed_normalizer = replace(parsed_normalizer, score_mod=score_mod)
    packed_mask = layout.same_sequence_mask()
    if mask is not None:
        packed_mask = packed_mask & layout.rebase(as_mask(mask), num_heads, Mask)
    q4, k4, v4 = ((x[None] if q.ndim == 3 else x) for x in (q, k, v))
    options = (parsed_score, packed_mask, parsed_normalizer, value, dropout, seed)
    parsed = parse_call(AttentionCall(q4, k4, v4, *options, query_offset=0))
    plan = choose_backend(parsed.spec, BACKENDS, backend)
    execution = execute(parsed, plan, layout.num_keys_per_query(), (layout.p, layout.j))
    output = parsed.restore_shape(execution.output)
    result: Array = output[0] if q.ndim == 3 else output
    return result


class _VarlenLayout:
    """The sequence and the position of every packed row, and the rewriting of expressions to use them."""

    def __init__(self, lengths_q: Tensor, lengths_k: Tensor, query_offset: Any) -> None:
        if len(lengths_q) != len(lengths_k):
            raise ArgumentError(
                "lengths_q and lengths_k must have one entry per sequence; "
                f"got {len(lengths_q)} and {len(lengths_k)} entries."
            )
        self.lengths_q, self.lengths_k = lengths_q.long(), lengths_k.long()
        offsets = self.lengths_k - self.lengths_q if query_offset is None else as_tensor(query_offset, "query_offset")
        if offsets.dim() > 1 or offsets.numel() not in (1, len(lengths_q)) or not is_integer_tensor(offsets):
            raise ArgumentError(
                f"query_offset must be one integer, or one for each of {len(lengths_q)} sequences; "
                f"got {describe(offsets)}."
            )
        self.query_offsets = offsets.expand(len(lengths_q)).long()
        self.sequence_of_query, self.i = _sequence_and_position(self.lengths_q)
        self.sequence_of_key, self.j = _sequence_and_position(self.lengths_k)
        self.p = self.i + self.query_offsets[self.sequence_of_query]
        self._position_exprs = {
            name: trace_builtin(function, *variables, tensor_names=(tensor_name,))
            for name, function, variables, tensor_name in (
                ("b", lambda i: self.sequence_of_query[i], "i", "sequence"),
                ("i", lambda i: self.i[i], "i", "own_i"),
                ("j", lambda j: self.j[j], "j", "own_j"),
                ("p", lambda i: self.p[i], "i", "own_p"),
                ("n_q", lambda i: self.lengths_q[self.sequence_of_query][i], "i", "own_n_q"),
                ("n_k", lambda i: self.lengths_k[self.sequence_of_query][i], "i", "own_n_k"),
            )
        }

    def num_keys_per_query(self) -> Tensor:
        """Return the number of keys in the sequence of each query, (total_q,)."""
        return self.lengths_k[self.sequence_of_query]

    def same_sequence_mask(self) -> Mask:
        """Return the mask that hides pairs of different sequences."""
        traced = trace_builtin(
            lambda i, j: self.sequence_of_query[i] == self.sequence_of_key[j],
            "i",
            "j",
            tensor_names=("sequence_q", "sequence_k"),
        )
        return Mask(traced.expr, traced.tensors, traced.tensor_names)

    def rebase(self, expr: ClosedExpr, num_heads: int, cls: type[Any]) -> Any:
        """Rewrite an expression of the positions in one sequence as one of the packed positions."""
        max_shape: ScoreShape = (
            len(self.lengths_q),
            num_heads,
            _max_length(self.lengths_q),
            _max_length(self.lengths_k),
        )
        expr.check_shape(max_shape, self.query_offsets)
        tensors = [self._rebase_tensor(t, max_shape) for t in expr.tensors]
        names = list(expr.tensor_names)
        replacements = {}
        for name, position in self._position_exprs.items():
            if name in expr.expr.free_variables:
                (table,) = position.tensors
                tensors.append(table)
                names.append(position.tensor_names[0])
                replacements[variable(name)] = renumber_slots(position.expr, {0: len(tensors) - 1})
        packed = substitute(expr.expr, replacements)
        stacked_slots = [n for n, t in enumerate(expr.tensors) if isinstance(t, TensorFromShape)]
        if stacked_slots:  # `_rebase_tensor` stacked one tensor per sequence
            tensors.append(self.sequence_of_query)
            names.append("sequence")
            sequence = renumber_slots(self._position_exprs["b"].expr, {0: len(tensors) - 1})
            lookups = [node for node in walk(packed) if node.op == "lookup" and slot_of(node) in stacked_slots]
            packed = substitute(packed, {n: lookup(slot_of(n), (sequence, *n.args), n.kind) for n in lookups})
        return cls(packed, tuple(tensors), tuple(names))

    def _rebase_tensor(self, captured: CapturedTensor, max_shape: ScoreShape) -> CapturedTensor:
        if isinstance(captured, TensorFromShape):
            lengths = zip(self.lengths_q.tolist(), self.lengths_k.tolist(), strict=True)
            return _pad_and_stack([captured.make((1, max_shape[1], n_q, n_k)) for n_q, n_k in lengths])
        if isinstance(captured, TensorFromQueries):
            return TensorFromQueries(lambda q: self._pad_by_sequence(captured.make(q), max_shape))
        return captured

    def _pad_by_sequence(self, packed: Tensor, max_shape: ScoreShape) -> Tensor:
        """Turn (1, heads, total_q, dim) into (sequences, heads, max n_q, dim), padded with zeros."""
        padded = packed.new_zeros((max_shape[0], packed.shape[1], max_shape[2], packed.shape[-1])).transpose(1, 2)
        return padded.index_put((self.sequence_of_query, self.i), packed[0].transpose(0, 1)).transpose(1, 2)


def _check_rows(x: Any, lengths: Tensor, name: str) -> None:
    if not isinstance(x, (Tensor, np.ndarray)) or x.ndim not in (2, 3):
        raise ArgumentError(
            f"{name} must have shape (total, head_dim) or (num_heads, total, head_dim); got {describe(x)}."
        )
    shape, total = tuple(x.shape), sum(lengths.tolist())
    if shape[-2] != total:
        is_transposed = total == shape[0]
        fix = f" If it is (total, num_heads, head_dim), use {name}.transpose(0, 1)." if is_transposed else ""
        raise ArgumentError(f"lengths_{name} must add up to the {shape[-2]} rows of {name}; got {total}.{fix}")


def _parse_lengths(values: Any, name: str) -> Tensor:
    lengths = as_tensor(values, name)
    lengths = lengths.long() if lengths.numel() == 0 else lengths
    if lengths.dim() != 1 or not is_integer_tensor(lengths) or bool((lengths < 0).any()):
        raise ArgumentError(f"{name} must be a list of nonnegative integers; got {lengths.tolist()}.")
    return lengths


def _sequence_and_position(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sequence index and the position in that sequence of each packed row, both (total,)."""
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    starts = torch.cumsum(lengths, 0) - lengths
    return sequence, torch.arange(len(sequence)) - starts[sequence]


def _pad_and_stack(tensors: list[Tensor]) -> Tensor:
    """Stack tensors of different sizes along a new first dimension, padded with zeros."""
    sizes = [max(n, 1) for n in torch.tensor([list(t.shape) for t in tensors]).amax(0).tolist()]
    stacked = tensors[0].new_zeros((len(tensors), *sizes))
    for row, t in zip(stacked, tensors, strict=True):
        row[tuple(slice(0, n) for n in t.shape)] = t
    return stacked


def _max_length(lengths: Tensor) -> int:
    return int(lengths.max()) if len(lengths) else 0
