"""Packs a mask and a score modifier for the kernels: the runs of keys of each panel of queries, and a program.

`abi.py` has the layout of the packed structs. Packed programs are cached, because every layer of a model has the same
mask.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from regard.backends.native import abi
from regard.backends.native.abi import ConflictScope
from regard.backends.native.codegen.program_compiler import (
    OPCODES,
    OPERAND_KINDS,
    Precomputed,
    Table,
    TableOffset,
    TileInstruction,
    TileProgram,
    UnsupportedExpr,
    compile_program,
)
from regard.cache import BoundedCache
from regard.expr.bounds import Array, BoundsEvaluator, IndexBoxes, depends_on_batch
from regard.expr.closed_expr import QueryOffset
from regard.expr.evaluate import Evaluator, IndexGrid
from regard.expr.ir import Expr, variable
from regard.expr.tile_coverage import ScoreShape, TileCoverage, tile_coverage
from regard.plan.tiling import Tiling
from regard.tensors.precision import dtype_name
from regard.tensors.storage import address

_INT32_LIMIT = 2**31


@dataclass(frozen=True, eq=False)
class PackedProgram:
    """Runs of keys and a packed program, without the addresses of the captured tensors that tiles read."""

    coverage_fields: tuple[int, ...]  # the coverage of AttentionParams
    program: TileProgram
    instructions: Array
    per_query: Array
    per_key: Array
    tables: tuple[Tensor | None, ...]  # None: a captured tensor
    conflict_scopes: tuple[ConflictScope, ...]
    keepalive: object  # the arrays whose addresses are packed

    def bind(self, tensors: Sequence[Tensor], gradient_sums: Sequence[Tensor] = ()) -> tuple[int, object]:
        """The address of the program for these tensors, and the objects that must outlive its use.

        `gradient_sums` receive the gradients of captured tensors, one for each slot of grad_slots.
        """
        if not gradient_sums and self._bound_without_captures is not None:
            return self._bound_without_captures
        return self._bind(tensors, gradient_sums)

    @cached_property
    def _bound_without_captures(self) -> tuple[int, object] | None:
        """The result of `bind` if tiles read no captured tensor."""
        return self._bind((), ()) if all(t.precomputed is not None for t in self.program.tables) else None

    def _bind(self, tensors: Sequence[Tensor], gradient_sums: Sequence[Tensor]) -> tuple[int, object]:
        program = self.program
        tables = [
            tensors[t.slot] if t.precomputed is None else x for t, x in zip(program.tables, self.tables, strict=True)
        ]
        addresses = np.array([address(x) for x in tables if x is not None], np.int64)
        sums = [
            _struct_row(abi.GradientSum, data=address(x), size=x.numel(), conflict_scope=scope)
            for x, scope in zip(gradient_sums, self.conflict_scopes, strict=True)
        ]
        packed_sums = np.array(sums, np.int64)
        fields = _struct_row(
            abi.Program,
            instructions=self.instructions.ctypes.data,
            score_mod_end=program.score_mod_end,
            mask_end=program.mask_end,
            derivative_end=program.derivative_end,
            end=len(program.instructions),
            num_registers=program.num_registers,
            per_query=self.per_query.ctypes.data,
            per_key=self.per_key.ctypes.data,
            tables=addresses.ctypes.data,
            num_sums=len(sums),
            gradient_sums=packed_sums.ctypes.data,
        )
        packed = np.array(fields, np.int64)
        return packed.ctypes.data, (packed, addresses, tables, packed_sums)


def pack_program(
    condition: Expr,
    score_mod: Expr | None,
    tensors: Sequence[Tensor],
    score_shape: ScoreShape,
    query_offset: QueryOffset,
    tiling: Tiling,
    vectors_per_panel: int,
    grad_slots: tuple[int, ...] = (),
) -> PackedProgram:
    """Pack a condition and a score modifier.

    A tile has the queries of one vector, and a panel has `vectors_per_panel` vectors. `grad_slots` are the captured
    tensors whose gradients are summed.
    """
    tensors = [t.detach() for t in tensors]
    sizes, strides = tuple(tuple(t.shape) for t in tensors), tuple(t.stride() for t in tensors)
    program = compile_program(condition, score_mod, sizes, strides, grad_slots)
    for table in program.tables:
        if table.precomputed is None and tensors[table.slot].dtype not in (torch.float32, torch.int32, torch.bool):
            raise UnsupportedExpr(
                f"it reads captured tensors of float32, int32 and bool, not {dtype_name(tensors[table.slot].dtype)}"
            )
    contents = [tensors[n] for n in sorted(condition.captured_slots | program.precomputed_slots)]
    offset = query_offset if isinstance(query_offset, int) else None
    if isinstance(query_offset, Tensor):
        contents.append(query_offset)
    key = (condition, score_mod, sizes, strides, grad_slots, score_shape, offset, tiling, vectors_per_panel)
    return _cache.get_or_create(
        key,
        lambda: _pack_uncached(condition, program, tensors, score_shape, query_offset, tiling, vectors_per_panel),
        contents,
    )


# layers of a model share one table: 32 heads and 200,000 keys take 26 MB
_cache: BoundedCache[PackedProgram] = BoundedCache("packed programs", max_bytes=2**25)


def _pack_uncached(
    condition: Expr,
    program: TileProgram,
    tensors: Sequence[Tensor],
    score_shape: ScoreShape,
    query_offset: QueryOffset,
    tiling: Tiling,
    vectors_per_panel: int,
) -> PackedProgram:
    coverage_fields, run_arrays = _panel_runs(
        tile_coverage(condition, tensors, score_shape, query_offset, (tiling.tile_queries, tiling.tile_keys)),
        score_shape,
        vectors_per_panel,
    )
    arrays = _PrecomputedArrays(program, tensors, score_shape, query_offset, tiling.tile_queries * vectors_per_panel)
    instructions = np.array([_instruction_fields(x) for x in program.instructions], dtype=np.int32)
    per_query, per_key = (
        np.array([_array_fields(x) for x in xs], dtype=np.int64) for xs in (arrays.per_query, arrays.per_key)
    )
    conflict_scopes = tuple(_conflict_scope(nodes, score_shape) for nodes in program.gradient_lookups)
    keepalive = (run_arrays, arrays.per_query, arrays.per_key)
    return PackedProgram(
        coverage_fields, program, instructions, per_query, per_key, tuple(arrays.tables), conflict_scopes, keepalive
    )


def _conflict_scope(nodes: Sequence[Expr], score_shape: ScoreShape) -> ConflictScope:
    """Which queries may add to the same element of a captured tensor's gradient, given the lookups that read it."""
    indices = [set(node.args) for node in nodes]
    differs_by_batch = all(variable("b") in x or score_shape[0] == 1 for x in indices)
    if not all(variable("i") in x or (differs_by_batch and variable("p") in x) for x in indices):
        return ConflictScope.ANY
    differs_by_head = all(variable("h") in x or score_shape[1] == 1 for x in indices)
    return ConflictScope.PANEL if differs_by_batch and differs_by_head else ConflictScope.HEADS


def _panel_runs(
    coverage: TileCoverage, score_shape: ScoreShape, vectors_per_panel: int
) -> tuple[tuple[int, ...], object]:
    """The coverage of AttentionParams, and its arrays. A run ends where the vectors that attend to its keys change."""
    panels, columns = -(-coverage.grid_shape[0] // vectors_per_panel), coverage.grid_shape[1] + 1
    # the first edge in the list of each panel
    begin = ((coverage.b * coverage.num_heads + coverage.h) * panels + coverage.row // vectors_per_panel) * columns
    edges = np.unique(np.concatenate([begin + coverage.col_start, begin + coverage.col_stop]))
    visible = np.zeros((len(edges), vectors_per_panel), bool)
    full = np.zeros_like(visible)
    for vector in range(vectors_per_panel):
        in_vector = coverage.row % vectors_per_panel == vector
        if in_vector.any():
            first, last = (begin + coverage.col_start)[in_vector], (begin + coverage.col_stop)[in_vector]
            run = np.maximum(np.searchsorted(first, edges, side="right") - 1, 0)
            visible[:, vector] = (first[run] <= edges) & (edges < last[run])
            full[:, vector] = visible[:, vector] & coverage.is_full[in_vector][run]
    low, high = np.argmax(visible, axis=1), vectors_per_panel - np.argmax(visible[:, ::-1], axis=1)
    inside = (np.arange(vectors_per_panel) >= low[:, None]) & (np.arange(vectors_per_panel) < high[:, None])
    partial = np.any(inside & ~full, axis=1)
    is_run = np.any(visible[:-1], axis=1)  # no run begins at the last edge
    lists, keys = edges // columns, edges % columns * coverage.tile_shape[1]
    fields = {
        "begin": keys[:-1],
        "end": np.minimum(keys[1:], score_shape[3]),
        "is_partial": partial[:-1],
        "vector_begin": low[:-1],
        "vector_end": high[:-1],
    }
    stacked = np.stack([fields[name] for name in abi.FIELD_NAMES[abi.KeyRun]], axis=1)
    runs = np.ascontiguousarray(stacked[is_run], dtype=np.int32)
    run_offsets = np.searchsorted(
        lists[:-1][is_run], np.arange(coverage.batch_size * coverage.num_heads * panels + 1)
    ).astype(np.int64)
    addresses = (run_offsets.ctypes.data, runs.ctypes.data)
    return (coverage.batch_size, coverage.num_heads, panels, *addresses), (run_offsets, runs)


class _PrecomputedArrays:
    """The precomputed expressions of a program, as arrays."""

    def __init__(
        self,
        program: TileProgram,
        tensors: Sequence[Tensor],
        score_shape: ScoreShape,
        query_offset: QueryOffset,
        panel_queries: int,
    ) -> None:
        self.program, self.tensors, self.score_shape, self.query_offset, self.panel_queries = (
            program,
            tensors,
            score_shape,
            query_offset,
            panel_queries,
        )
        self.tables = [None if t.precomputed is None else self._table(t, t.precomputed) for t in program.tables]
        self._check_ranges()
        self.per_query = [
            self._table_offsets(x) if isinstance(x, TableOffset) else self._array_along(x, "i")
            for x in program.per_query
        ]
        self.per_key = [self._array_along(x, "j") for x in program.per_key]

    def _check_ranges(self) -> None:
        """Check that integers fit into 32 bits and lookup indices are in range, at all positions."""
        if not self.program.int32_exprs and not self.program.lookup_indices:
            return
        all_pairs = IndexBoxes.all_pairs(self.score_shape)
        bounds = BoundsEvaluator(self.tensors, self.score_shape, self.query_offset)
        tables = zip(self.program.tables, self.tables, strict=True)
        values = {t.precomputed.expr: x for t, x in tables if t.precomputed is not None and x is not None}

        def value_range(expr: Expr) -> tuple[int, int]:
            if expr in values:
                return int(values[expr].min()), int(values[expr].max())
            low, high = bounds.bounds(expr, all_pairs)
            return low.min(), high.max()

        for expr in self.program.int32_exprs:
            low, high = value_range(expr)
            if low < -_INT32_LIMIT or high >= _INT32_LIMIT:
                raise UnsupportedExpr("it computes integers in 32 bits")
        for index, size in self.program.lookup_indices:
            low, high = value_range(index)
            if low < 0 or high >= size:
                raise UnsupportedExpr("a lookup index may be out of range")

    def _positions(
        self, variables: frozenset[str], i: range | Tensor, j: range | Tensor, query_offset: QueryOffset
    ) -> IndexGrid:
        batch, heads, n_q, n_k = self.score_shape
        b = range(batch if depends_on_batch(variables, query_offset) else 1)
        h = range(heads if "h" in variables else 1)
        return IndexGrid(b, h, i, j, query_offset=query_offset, n_q=n_q, n_k=n_k, device=torch.device("cpu"))

    def _evaluate(self, precomputed: Precomputed, positions: IndexGrid) -> Tensor:
        evaluator = Evaluator(self.tensors, positions, score_dtype=torch.float32)
        values = evaluator.value(precomputed.expr, precomputed.in_score_dtype)
        if evaluator.out_of_range is not None:
            raise UnsupportedExpr("a lookup index may be out of range")
        return values.expand(positions.shape)

    def _array_along(self, precomputed: Precomputed, axis: str) -> Tensor:
        """32-bit values of shape (batch or 1, heads or 1, queries or keys); queries are padded to a whole panel."""
        n_q, n_k = self.score_shape[2:]
        i, j = (range(n_q), range(1)) if axis == "i" else (range(1), range(n_k))
        values = self._evaluate(precomputed, self._positions(precomputed.expr.free_variables, i, j, self.query_offset))
        return _as_int32_words(self._pad_to_panel(values.flatten(2), axis))

    def _pad_to_panel(self, values: Tensor, axis: str) -> Tensor:
        missing = -values.shape[2] % self.panel_queries if axis == "i" else 0
        if not missing:
            return values
        return torch.cat([values, values[..., -1:].expand(-1, -1, missing)], dim=2)

    def _difference_range(self, table: Table) -> tuple[int, int]:
        """The smallest and largest difference of the positions of a query and a key."""
        n_q, n_k = self.score_shape[2:]
        offsets = (0, 0)
        if table.query_variable == "p":
            offsets = (
                (self.query_offset,) * 2
                if isinstance(self.query_offset, int)
                else (int(self.query_offset.min()), int(self.query_offset.max()))
            )
        return offsets[0] - (n_k - 1), offsets[1] + n_q - 1

    def _table(self, table: Table, precomputed: Precomputed) -> Tensor:
        smallest, largest = self._difference_range(table)
        differences = torch.arange(smallest, largest + 1)
        # at key 0, the position of a query is the difference itself
        values = self._evaluate(
            precomputed, self._positions(precomputed.expr.free_variables, differences, range(1), 0)
        ).flatten(2)
        return values.contiguous() if values.dtype == torch.bool else _as_int32_words(values)

    def _table_offsets(self, offset: TableOffset) -> Tensor:
        table, table_values = self.program.tables[offset.table], self.tables[offset.table]
        assert table.precomputed is not None and table_values is not None
        smallest = self._difference_range(table)[0]
        positions = self._positions(
            table.precomputed.expr.free_variables | offset.expr.free_variables,
            range(self.score_shape[2]),
            range(1),
            self.query_offset,
        )
        indices = self._evaluate(offset, positions).flatten(2) - smallest
        batch, heads, length = table_values.shape
        b, h = torch.arange(positions.shape[0]) % batch, torch.arange(positions.shape[1]) % heads
        begin = (b.view(-1, 1, 1) * heads + h.view(1, -1, 1)) * length
        return _as_int32_words(self._pad_to_panel(indices + begin, "i"))


def _struct_row(struct: type[ctypes.Structure], **values: int) -> tuple[int, ...]:
    """The values of a struct of integers in memory order, as a row of an array."""
    return tuple(values[name] for name in abi.FIELD_NAMES[struct])


def _instruction_fields(x: TileInstruction) -> tuple[int, ...]:
    operands: dict[str, int] = {}
    for name, operand in (("a", x.a), ("b", x.b), ("c", x.c)):
        operands |= {f"{name}_kind": OPERAND_KINDS.index(operand.kind), f"{name}_index": operand.index}
    return _struct_row(abi.Instruction, op=OPCODES.index(x.op), dest=x.dest, table=x.table, padding=0, **operands)


def _array_fields(x: Tensor) -> tuple[int, ...]:
    """The fields of a PositionArray: a stride is 0 if all batch elements or heads share the values."""
    batch_stride, head_stride = (x.stride(n) if x.shape[n] > 1 else 0 for n in (0, 1))
    return _struct_row(abi.PositionArray, data=address(x), batch_stride=batch_stride, head_stride=head_stride)


def _as_int32_words(values: Tensor) -> Tensor:
    """The values in 32 bits each: floats, integers, or booleans as 0 and -1."""
    if values.dtype == torch.bool:
        return -values.int().contiguous()
    if values.is_floating_point():
        if values.dtype == torch.float64:
            raise UnsupportedExpr("its masks compare in float32, and an operand is float64")
        return values.contiguous()
    if values.numel() and (int(values.min()) < -_INT32_LIMIT or int(values.max()) >= _INT32_LIMIT):
        raise UnsupportedExpr("it computes integers in 32 bits")
    return values.int().contiguous()
