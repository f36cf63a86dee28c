"""Masks: which keys each query may attend to. True means that query i may attend to key j.

Query i is at position p = query_offset + i among the keys; `query_offset` defaults to n_k - n_q, so that the last query
is at the position of the last key. Built-in masks are conditions on p and j. A user function gets (b, h, i, j), as a
`mask_mod` of FlexAttention does.

Masks are formulas: only `tensor` stores n_q x n_k entries. Backends skip tiles without a visible pair.

>>> from regard import mask
>>> m = mask.causal() & mask.sliding_window(3)
>>> print(m)
j <= p and p - 3 < j and j < p + 3
>>> print(m.render_text(6))
█·····
██····
███···
·███··
··███·
···███
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.argument_types import MAX_INT_MAGNITUDE, UNCHECKED, check_types
from regard.cache import memoize, retained_bytes
from regard.checks import choice, describe, integer, is_integer_tensor
from regard.checks import tensor as checked_tensor
from regard.errors import ArgumentError, BudgetError, TraceError
from regard.expr.closed_expr import (
    CapturedTensor,
    ClosedExpr,
    QueryOffset,
    ShapeCheck,
    TensorFromShape,
    broadcast_lookup,
    check_closed_expr,
    merge_captures,
    trace_builtin,
)
from regard.expr.evaluate import Evaluator, IndexGrid
from regard.expr.ir import Expr, apply
from regard.expr.printing import to_latex, to_text
from regard.expr.serialize import example, materialize, serializable
from regard.expr.shape_checks import RequireNonnegativePositions, require_one_per
from regard.expr.tile_coverage import ScoreShape, TileCoverage, density, tile_coverage
from regard.expr.trace import MASK_VARIABLES, trace
from regard.tensors.convert import ArrayLike, as_tensor

__all__ = [
    "Mask",
    "MaskLike",
    "bigbird",
    "causal",
    "chunked",
    "dilated",
    "document",
    "fixed",
    "from_function",
    "global_tokens",
    "longformer",
    "padding",
    "prefix",
    "random_blocks",
    "sliding_window",
    "strided",
    "tensor",
]


def __dir__() -> list[str]:
    return sorted(__all__)


IntSequence = Sequence[int] | Tensor
_MAX_CACHED_TABLE_BYTES = 2**24 + 2**10  # of random blocks: enough for 262,144 positions in blocks of 64
_MAX_TABLE_NUMEL = 2**27  # of a table of tokens or blocks, one byte per entry
MAX_MASK_LENGTH = 2**28  # positions per axis for which tiles are counted
MAX_DENSE_NUMEL = 2**32  # of a mask that is converted to a tensor


@dataclass(frozen=True, eq=False)
class Mask(ClosedExpr):
    """A condition on batch element b, head h, query i and key j: True where the query may attend to the key.

    Masks combine with `&`, `|` and `~`. The other operand may also be a function (b, h, i, j) or a boolean tensor.
    `print(mask)` shows the formula.

    >>> print(causal() & (lambda b, h, i, j: j != 2) | ~sliding_window(4))
    j <= p and j != 2 or not (p - 4 < j and j < p + 4)
    """

    def __and__(self, other: "MaskLike") -> "Mask":
        return _logical_and(self, other)

    def __or__(self, other: "MaskLike") -> "Mask":
        return _logical_or(self, other)

    def __rand__(self, other: "MaskLike") -> "Mask":
        return _logical_and(other, self)

    def __ror__(self, other: "MaskLike") -> "Mask":
        return _logical_or(other, self)

    def __invert__(self) -> "Mask":
        return _logical_not(self)

    def __bool__(self) -> bool:
        raise ArgumentError(
            "a mask has no truth value; combine masks with &, | and ~ instead of `and`, `or` and `not`."
        )

    def __str__(self) -> str:
        return to_text(self.expr, self.tensor_names)

    def latex(self) -> str:
        """Return the condition as LaTeX source.

        >>> print(causal().latex())
        j \\leq p
        """
        return to_latex(self.expr, self.tensor_names)

    @check_types
    def density(
        self,
        n_q: int,
        n_k: int | None = None,
        *,
        batch_size: int = 1,
        num_heads: int = 1,
        query_offset: QueryOffset | None = None,
    ) -> float:
        """Return the exact fraction of (query, key) pairs that the mask allows, over all batch elements and heads.

        `n_q` and `n_k` are the numbers of queries and keys; `n_k` defaults to n_q. `batch_size` and `num_heads`
        (default 1) matter for masks that depend on b or h. `query_offset` defaults to n_k - n_q; a tensor holds one
        offset per batch element. Tiles that are provably full or empty are counted without evaluating their pairs.

        >>> causal().density(100)
        0.505
        """
        score_shape, query_offset = _parse_score_shape(n_q, n_k, batch_size, num_heads, query_offset)
        return density(self.expr, self.resolve_tensors(score_shape, query_offset), score_shape, query_offset)

    @check_types
    def tile_coverage(
        self,
        n_q: int,
        n_k: int | None = None,
        *,
        tile_size: int = 128,
        batch_size: int = 1,
        num_heads: int = 1,
        query_offset: QueryOffset | None = None,
    ) -> TileCoverage:
        """Return which tiles of `tile_size` x `tile_size` positions (default 128) are empty, partial or full.

        `n_q`, `n_k`, `batch_size`, `num_heads` and `query_offset` are those of `density`.

        >>> causal().tile_coverage(1024).tile_counts
        {'empty': 28, 'partial': 8, 'full': 28}
        """
        score_shape, query_offset = _parse_score_shape(n_q, n_k, batch_size, num_heads, query_offset)
        _check_min(1, tile_size=tile_size)
        return tile_coverage(
            self.expr,
            self.resolve_tensors(score_shape, query_offset),
            score_shape,
            query_offset,
            (tile_size, tile_size),
        )

    @check_types
    def to_dense(
        self,
        n_q: int,
        n_k: int | None = None,
        *,
        batch_size: int = 1,
        num_heads: int = 1,
        query_offset: QueryOffset | None = None,
    ) -> Tensor:
        """Return the mask as a boolean tensor of shape (batch_size, num_heads, n_q, n_k).

        The parameters are those of `density`. Attention itself never needs this tensor.

        >>> causal().to_dense(2, 4)[0, 0].int()
        tensor([[1, 1, 1, 0],
                [1, 1, 1, 1]], dtype=torch.int32)
        """
        score_shape, query_offset = _parse_score_shape(n_q, n_k, batch_size, num_heads, query_offset)
        if math.prod(score_shape) > MAX_DENSE_NUMEL:
            raise BudgetError(
                f"a dense mask must have at most {MAX_DENSE_NUMEL:,} entries; got shape {score_shape}. "
                "Use density or tile_coverage."
            )
        positions = IndexGrid(
            *(range(n) for n in score_shape),
            query_offset=query_offset,
            n_q=score_shape[2],
            n_k=score_shape[3],
            device=torch.device("cpu"),
        )
        visible = Evaluator(self.resolve_tensors(score_shape, query_offset), positions).mask_value(self.expr)
        return visible.expand(positions.shape).contiguous()

    @check_types
    def render_text(
        self, n_q: int, n_k: int | None = None, *, query_offset: QueryOffset | None = None, max_size: int = 64
    ) -> str:
        """Return the mask of the first batch element and head as text: █ is visible, · is hidden.

        `n_q`, `n_k` and `query_offset` are those of `density`. If n_q or n_k is larger than `max_size` (default 64),
        one character is a tile, and ▒ is a tile with both kinds of pairs.

        >>> print(causal().render_text(3))
        █··
        ██·
        ███
        """
        n_k = n_q if n_k is None else n_k
        _check_min(0, n_q=n_q, n_k=n_k)
        _check_min(1, max_size=max_size)
        if max(n_q, n_k) <= max_size:
            rows = self.to_dense(n_q, n_k, query_offset=query_offset)[0, 0].tolist()
            return "\n".join("".join("█" if visible else "·" for visible in row) for row in rows)
        cover = self.tile_coverage(n_q, n_k, tile_size=-(-max(n_q, n_k) // max_size), query_offset=query_offset)
        grid = [["·"] * cover.grid_shape[1] for _ in range(cover.grid_shape[0])]
        for row, start, stop, is_full in zip(cover.row, cover.col_start, cover.col_stop, cover.is_full, strict=True):
            grid[row][start:stop] = ("█" if is_full else "▒") * (stop - start)
        return "\n".join("".join(row) for row in grid)


MaskLike: TypeAlias = Annotated[Mask | Tensor | NDArray[np.bool_] | Callable[..., Any], UNCHECKED]
"""A mask, a boolean tensor or array (True = may attend), or a function (b, h, i, j) -> bool."""


def as_mask(value: Any) -> Mask:
    """Convert a mask, a boolean tensor or array, or a function (b, h, i, j) to a `Mask`."""
    if isinstance(value, Mask):
        return value
    value = materialize(value)
    if isinstance(value, Mask):
        return value
    if isinstance(value, (Tensor, np.ndarray)):
        return tensor(value)
    if callable(value):
        return materialize(from_function(value))
    raise ArgumentError(
        f"mask must be a mask, a boolean tensor or a function (b, h, i, j); got {type(value).__name__}. {_hint(value)}"
    )


def _hint(value: object) -> str:
    """Return what to pass instead of a value that is not a mask."""
    mask_mod = getattr(value, "mask_mod", None)  # of FlexAttention's BlockMask
    if not callable(mask_mod):
        return "See regard.mask for the built-in masks."
    if getattr(mask_mod, "__name__", "") == "noop_mask":
        return "It has blocks, but no function: pass the function or the boolean tensor that the blocks come from."
    return "Pass its function, .mask_mod."


@serializable
def _logical_and(left: Any, right: Any) -> Mask:
    return _combine("and", left, right)


@serializable
def _logical_or(left: Any, right: Any) -> Mask:
    return _combine("or", left, right)


@serializable
def _logical_not(mask: Any) -> Mask:
    mask = as_mask(mask)
    return Mask(apply("not", mask.expr), mask.tensors, mask.tensor_names, mask.shape_checks)


def _combine(op: str, *masks: Any) -> Mask:
    exprs, tensors, names, checks = merge_captures([as_mask(m) for m in masks])
    return Mask(apply(op, *exprs), tensors, names, checks)


def _parse_score_shape(
    n_q: int, n_k: int | None, batch_size: int, num_heads: int, query_offset: QueryOffset | None
) -> tuple[ScoreShape, QueryOffset]:
    n_k = n_q if n_k is None else n_k
    for name, length in (("n_q", n_q), ("n_k", n_k)):
        integer(length, name, at_least=0, at_most=MAX_MASK_LENGTH)
    for name, count in (("batch_size", batch_size), ("num_heads", num_heads)):
        integer(count, name, at_least=0, at_most=MAX_MASK_LENGTH)
    if isinstance(query_offset, Tensor):
        query_offset = checked_tensor(query_offset, "query_offset", dims=(0, 1), dtype_kind="integers").reshape(-1)
        if len(query_offset) not in (1, batch_size):
            raise ArgumentError(
                f"query_offset must be one integer, or one for each of {batch_size} batch elements; "
                f"got {len(query_offset)}."
            )
    return (batch_size, num_heads, n_q, n_k), n_k - n_q if query_offset is None else query_offset


def trace_builtin_mask(function: Callable[..., Any], *variables: str, **options: Any) -> Mask:
    traced = trace_builtin(function, *variables, **options)
    return Mask(traced.expr, traced.tensors, traced.tensor_names, traced.shape_checks)


@serializable
def from_function(function: Callable[..., Any]) -> Mask:
    """Return the mask that a function (b, h, i, j) -> bool defines, as FlexAttention's `mask_mod` does.

    The function is traced once into a formula. It may index tensors that it closes over. `i` counts queries from 0,
    without `query_offset`.

    >>> print(from_function(lambda b, h, i, j: (i - j) % 3 == 0))
    (i - j) % 3 == 0
    """
    traced = trace(function, MASK_VARIABLES)
    if traced.expr.kind != "bool":
        got = f"{traced.expr.kind} {to_text(traced.expr, traced.tensor_names)}"
        raise TraceError(
            f"a mask function must return a boolean; got the {got}. Compare it with a number, as in `!= 0`. "
            "To change scores, use score=."
        )
    return mask_from_expr(traced.expr, traced.tensors, traced.tensor_names)


@serializable
def mask_from_expr(expr: Expr, tensors: Sequence[CapturedTensor], tensor_names: Sequence[str]) -> Mask:
    """Return the mask of a boolean expression over captured tensors."""
    check_closed_expr(expr, tensors, tensor_names, "bool")
    return Mask(expr, tuple(tensors), tuple(tensor_names))


@serializable
def tensor(values: ArrayLike) -> Mask:
    """Return the mask of a boolean tensor or array; True means that the query may attend to the key.

    The shape of `values` must broadcast to (batch, heads, n_q, n_k).

    >>> print(tensor(torch.tensor([[True, False], [True, True]])).render_text(2))
    █·
    ██
    """
    values = as_tensor(values, "mask")
    if values.dtype != torch.bool:
        raise ArgumentError(
            f"a mask tensor must be boolean (True: may attend); got {values.dtype}. "
            "To add numbers to the scores, use score.bias(tensor)."
        )
    return Mask(*broadcast_lookup(values, "mask"))


_CAUSAL = trace_builtin_mask(lambda p, j: j <= p, "p", "j")


@example("causal")
def causal() -> Mask:
    """Return the causal mask: a query attends to its own position and earlier ones, j <= p.

    >>> print(causal().render_text(2, 4))
    ███·
    ████
    """
    return _CAUSAL


serializable(causal)()  # the shared mask records its constructor once, here


@example("sliding_window(2)")
@serializable
@check_types
def sliding_window(before: int, after: int | None = None) -> Mask:
    """Return a sliding window around the query's position: p - before < j < p + after.

    `after` defaults to `before`. With `causal() & sliding_window(w)` a query attends to w keys, its own position
    included; `sliding_window(1)` is the diagonal.

    >>> print((causal() & sliding_window(2)).render_text(4))
    █···
    ██··
    ·██·
    ··██
    """
    _check_min(1, before=before)
    after = before if after is None else after
    _check_min(1, after=after)
    return trace_builtin_mask(lambda p, j: (p - before < j) & (j < p + after), "p", "j")


@serializable
@check_types
def dilated(window_size: int, dilation: int) -> Mask:
    """Return a dilated sliding window: every `dilation`-th key, fewer than `window_size` steps away on either side.

    (p - j) % dilation == 0 and |p - j| < window_size * dilation. `dilated(w, 1)` is `sliding_window(w)`.

    >>> print(dilated(2, 2).render_text(5))
    █·█··
    ·█·█·
    █·█·█
    ·█·█·
    ··█·█
    """
    _check_min(1, window_size=window_size, dilation=dilation)
    return trace_builtin_mask(lambda p, j: ((p - j) % dilation == 0) & (abs(p - j) < window_size * dilation), "p", "j")


@serializable
@check_types
def chunked(chunk_size: int, look_back: int = 0) -> Mask:
    """Return chunked local attention: the chunk of the query and `look_back` chunks before it.

    0 <= p // chunk_size - j // chunk_size <= look_back. Add `causal()` to exclude later keys of the same chunk.

    >>> print(chunked(2).render_text(4))
    ██··
    ██··
    ··██
    ··██
    """
    _check_min(1, chunk_size=chunk_size)
    _check_min(0, look_back=look_back)
    if look_back == 0:
        return trace_builtin_mask(lambda p, j: p // chunk_size == j // chunk_size, "p", "j")
    return trace_builtin_mask(
        lambda p, j: (j // chunk_size <= p // chunk_size) & (p // chunk_size - j // chunk_size <= look_back), "p", "j"
    )


@serializable
@check_types
def strided(stride: int) -> Mask:
    """Return the strided pattern of the Sparse Transformer (Child et al., 2019).

    A query attends to its own position, the `stride` keys before it, and every `stride`-th key before those.

    >>> print(strided(2).render_text(6))
    █·····
    ██····
    ███···
    ·███··
    █·███·
    ·█·███
    """
    _check_min(1, stride=stride)
    return trace_builtin_mask(lambda p, j: (j <= p) & ((p - j <= stride) | ((p - j) % stride == 0)), "p", "j")


@serializable
@check_types
def fixed(stride: int, num_summary_keys: int = 1) -> Mask:
    """Return the fixed pattern of the Sparse Transformer (Child et al., 2019).

    A query attends to its own block of `stride` keys up to its position, and to the last `num_summary_keys` keys of
    every earlier block.

    >>> print(fixed(3).render_text(6))
    █·····
    ██····
    ███···
    ··██··
    ··███·
    ··████
    """
    _check_min(1, stride=stride, num_summary_keys=num_summary_keys)
    first = stride - num_summary_keys
    return trace_builtin_mask(lambda p, j: (j <= p) & ((j // stride == p // stride) | (j % stride >= first)), "p", "j")


@serializable
def padding(lengths: IntSequence, side: str = "right") -> Mask:
    """Return a mask that hides padding keys.

    Args:
        lengths: Number of real keys of each batch element, (batch,).
        side: "right" (default) keeps the first lengths[b] keys, "left" keeps the last ones.

    >>> padding([1, 3]).to_dense(1, 3, batch_size=2)[:, 0, 0].int()
    tensor([[1, 0, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    choice(side, "padding side", ("left", "right"))
    lengths = _as_int_tensor(lengths, "padding lengths")
    checks = (require_one_per("padding lengths", lengths, 0, "batch"),)
    options = {"tensor_names": ("lengths",), "shape_checks": checks}
    if side == "right":
        return trace_builtin_mask(lambda b, j: j < lengths[b], "b", "j", **options)
    return trace_builtin_mask(lambda b, j, n_k: j >= n_k - lengths[b], "b", "j", "n_k", **options)


@serializable
def document(document_ids: IntSequence, key_document_ids: IntSequence | None = None) -> Mask:
    """Return a mask that lets a query attend only to keys of its own document.

    Args:
        document_ids: Integer id of each position, (n_k,) or (batch, n_k). The query at p has document_ids[p].
        key_document_ids: Ids of the keys, for queries that are not positions of the keys (cross-attention);
            `document_ids` then has the ids of the queries, (n_q,) or (batch, n_q). Default: None.

    >>> print(document([0, 0, 1]).render_text(3))
    ██·
    ██·
    ··█
    """
    document_ids = _as_int_tensor(document_ids, "document ids")
    if key_document_ids is None:
        checks = (
            require_one_per("document ids", document_ids, -1, "n_k"),
            *_batch_checks(document_ids),
            RequireNonnegativePositions(),
        )
        same_document = (
            (lambda b, p, j: document_ids[b, p] == document_ids[b, j])
            if document_ids.dim() == 2
            else (lambda b, p, j: document_ids[p] == document_ids[j])
        )
        return trace_builtin_mask(same_document, "b", "p", "j", tensor_names=("documents",), shape_checks=checks)
    keys = _as_int_tensor(key_document_ids, "document ids of the keys")
    checks = (
        *(require_one_per("document ids of the queries", document_ids, -1, "n_q"), *_batch_checks(document_ids)),
        *(require_one_per("document ids of the keys", keys, -1, "n_k"), *_batch_checks(keys)),
    )
    options = {"tensor_names": ("documents_q", "documents_k"), "shape_checks": checks}
    if document_ids.dim() == 2:
        return trace_builtin_mask(
            lambda b, i, j: document_ids[b, i] == (keys[b, j] if keys.dim() == 2 else keys[j]),
            "b",
            "i",
            "j",
            **options,
        )
    return trace_builtin_mask(
        lambda b, i, j: document_ids[i] == (keys[b, j] if keys.dim() == 2 else keys[j]), "b", "i", "j", **options
    )


@serializable
def prefix(length: int | IntSequence) -> Mask:
    """Return a mask that lets every query attend to the first `length` keys.

    `length` is an integer, or one integer per batch element, (batch,). `causal() | prefix(n)` is the mask of a prefix
    language model.

    >>> print((causal() | prefix(2)).render_text(4))
    ██··
    ██··
    ███·
    ████
    """
    if isinstance(length, (int, np.integer)):
        num_keys = integer(length, "length", at_least=0)
        return trace_builtin_mask(lambda j: j < num_keys, "j")
    lengths = _as_int_tensor(length, "prefix lengths")
    checks = (require_one_per("prefix lengths", lengths, 0, "batch"),)
    return trace_builtin_mask(lambda b, j: j < lengths[b], "b", "j", tensor_names=("prefix",), shape_checks=checks)


@serializable
def global_tokens(indices: IntSequence) -> Mask:
    """Return a mask of global tokens: every query attends to them, and they attend to every key.

    `indices` has the positions of the global tokens, (count,).

    >>> print(global_tokens([0]).render_text(3))
    ███
    █··
    █··
    """
    positions = _as_int_tensor(indices, "token indices").flatten().tolist()
    if any(position < 0 for position in positions):
        raise ArgumentError(f"token indices must not be negative; got {min(positions)}.")
    end = max(positions, default=-1) + 1
    if end > _MAX_TABLE_NUMEL:
        raise ArgumentError(f"token indices must be less than {_MAX_TABLE_NUMEL}; got {end - 1}.")
    is_global = torch.zeros(end + 1, dtype=torch.bool)  # the last entry is for all positions from `end` on
    is_global[positions] = True

    def query_or_key_is_global(p: Any, j: Any) -> Any:
        query_index = torch.where(p < 0, end, torch.clamp(p, max=end))
        return is_global[torch.clamp(j, max=end)] | is_global[query_index]

    return trace_builtin_mask(query_or_key_is_global, "p", "j", tensor_names=("is_global",))


@serializable
@check_types
def random_blocks(block_size: int, num_blocks: int, seed: int = 0) -> Mask:
    """Return a mask that lets each block of queries attend to random blocks of keys.

    For each block of `block_size` queries, `num_blocks` blocks of `block_size` keys are drawn without replacement. The
    blocks depend only on `seed`, n_q and n_k; all batch elements and heads share them.

    >>> random_blocks(64, 3).density(1024)
    0.1875
    """
    _check_min(1, block_size=block_size)
    _check_min(0, num_blocks=num_blocks, seed=seed)
    placeholder = torch.zeros(1, 1, dtype=torch.bool)
    table = TensorFromShape(_RandomBlockSampler(block_size, num_blocks, seed))
    return trace_builtin_mask(
        lambda i, j: placeholder[i // block_size, j // block_size],
        *("i", "j"),
        tensor_names=("selected",),
        deferred_tensor=(placeholder, table),
    )


@dataclass(frozen=True)
class _RandomBlockSampler:
    """Computes the blocks of keys that each block of queries attends to, (query blocks, key blocks)."""

    block_size: int
    num_blocks: int
    seed: int

    def __call__(self, score_shape: ScoreShape) -> Tensor:
        rows, columns = -(-score_shape[2] // self.block_size), -(-score_shape[3] // self.block_size)
        if rows * columns > _MAX_TABLE_NUMEL:
            raise ArgumentError(
                f"random_blocks must have at most {_MAX_TABLE_NUMEL} pairs of blocks; got {rows} x {columns} blocks of "
                f"{self.block_size}. Use larger blocks."
            )
        return torch.from_numpy(_draw_blocks(rows, columns, min(self.num_blocks, columns), self.seed))


@memoize(2, max_bytes=_MAX_CACHED_TABLE_BYTES, sizeof=retained_bytes)  # the layers of a model share it
def _draw_blocks(rows: int, columns: int, num_blocks: int, seed: int) -> NDArray[np.bool_]:
    """Draw `num_blocks` columns per row by Floyd's algorithm: the last column of the range replaces a repeated one."""
    rng, row = np.random.default_rng(seed), np.arange(rows)
    selected = np.zeros((rows, columns), dtype=np.bool_)
    for last in range(columns - num_blocks, columns):
        column = rng.integers(last, endpoint=True, size=rows)
        selected[row, np.where(selected[row, column], last, column)] = True
    return selected


@serializable
@check_types
def longformer(attention_window: int, global_token_indices: IntSequence = ()) -> Mask:
    """Return the mask of Longformer (Beltagy et al., 2020): a sliding window and global tokens.

    A query attends to keys at most `attention_window` // 2 positions away, and to the global tokens, which attend to
    every key. `global_token_indices` has their positions, (count,); the default is none.

    >>> print(longformer(2, [0]).render_text(4))
    ████
    ███·
    ████
    █·██
    """
    _check_min(0, attention_window=attention_window)
    window = sliding_window(attention_window // 2 + 1)
    indices = _as_int_tensor(global_token_indices, "global tokens")
    return window | global_tokens(indices) if indices.numel() else window


@serializable
@check_types
def bigbird(
    block_size: int = 64,
    *,
    num_local_blocks: int = 3,
    num_global_blocks: int = 1,
    num_random_blocks: int = 3,
    seed: int = 0,
) -> Mask:
    """Return the mask of BigBird (Zaheer et al., 2020): local, global and random blocks of keys.

    Args:
        block_size: Positions per block. Default: 64.
        num_local_blocks: Blocks around the block of the query, itself included. Default: 3.
        num_global_blocks: Blocks at each end of the sequence that attend, and are attended to, everywhere. Default: 1.
        num_random_blocks: Random blocks of keys per block of queries. Default: 3.
        seed: Seed of the random blocks. Default: 0.

    >>> round(bigbird(64).density(4096), 3)
    0.148
    """
    _check_min(1, block_size=block_size, num_local_blocks=num_local_blocks)
    _check_min(0, num_global_blocks=num_global_blocks, num_random_blocks=num_random_blocks, seed=seed)

    def is_local(p: Any, j: Any) -> Any:
        return abs(p // block_size - j // block_size) <= num_local_blocks // 2

    def is_global(p: Any, j: Any, n_k: Any) -> Any:
        last = (n_k - 1) // block_size - num_global_blocks
        return (
            (p // block_size < num_global_blocks)
            | (j // block_size < num_global_blocks)
            | (p // block_size > last)
            | (j // block_size > last)
        )

    result = trace_builtin_mask(is_local, "p", "j")
    if num_global_blocks:
        result = result | trace_builtin_mask(is_global, "p", "j", "n_k")
    return result | random_blocks(block_size, num_random_blocks, seed) if num_random_blocks else result


def _check_min(min_value: int, **numbers: int) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or not min_value <= number < MAX_INT_MAGNITUDE:
            raise ArgumentError(f"{name} must be an integer of at least {min_value}; got {describe(number)}.")


def _as_int_tensor(values: IntSequence, name: str) -> Tensor:
    integers = as_tensor(values, name)
    if integers.numel() and not is_integer_tensor(integers):
        raise ArgumentError(f"{name} must be integers; got {integers.dtype}.")
    return integers.long()


def _batch_checks(document_ids: Tensor) -> tuple[ShapeCheck, ...]:
    return (require_one_per("document ids", document_ids, 0, "batch"),) if document_ids.dim() == 2 else ()
