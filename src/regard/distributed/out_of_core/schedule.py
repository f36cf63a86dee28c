"""Schedule: the order in which blocks of queries attend to parts of the keys, within a memory budget.

Each block of queries attends to its visible keys in one or more steps. Keys that are masked for the whole block are
left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from regard.backends.registry import BACKENDS
from regard.call.spec import BackendInputs, CallSpec, ParsedCall
from regard.call.subcall import StridedRange, make_subcall
from regard.errors import BackendError, BudgetError
from regard.expr.closed_expr import TensorFromQueries
from regard.plan.choose import Plan, choose_backend
from regard.plan.report import format_bytes
from regard.plan.tiling import Tiling, call_coverage, ranges

# queries or keys of a step; more rows save little, and the computation waits for all rows of the first step
MAX_STEP_ROWS = 2**13
MIN_STEP_ROWS = 16
MASK_TILE_KEYS = 128  # resolution, in keys, at which masked ranges are left out
NUM_PREPARED_COPIES = 3  # copies of the rows while they are prepared


@dataclass(frozen=True)
class ScheduleStep:
    """A range of queries that attends to a range of keys; `is_last` marks the last step of these queries."""

    queries: range
    keys: range
    is_last: bool

    @property
    def pairs(self) -> int:
        return len(self.queries) * max(len(self.keys), 1)


def needs_whole_rows(call: ParsedCall) -> bool:
    """Return whether the weights depend on their row of scores by more than its lse."""
    return call.spec.normalizer.statistic not in (None, "lse")


def build_schedule(call: ParsedCall, backend: str | None, budget: int) -> list[ScheduleStep]:
    """Return the steps of a call in order; raise `BudgetError` if the smallest step exceeds `budget` bytes."""
    n_q, n_k = call.spec.score_shape[2:]
    smallest = _step_spec(call, min(n_q, MIN_STEP_ROWS), min(n_k, MIN_STEP_ROWS))
    choose_backend(smallest, BACKENDS, backend)  # raises if the backend supports no step at all
    whole_rows = needs_whole_rows(call)
    block_queries, step_keys = min(n_q, MAX_STEP_ROWS), min(n_k, MAX_STEP_ROWS)
    while True:
        visible = _visible_key_ranges(call, block_queries, whole_rows)
        longest = max((len(keys) for key_ranges in visible for keys in key_ranges), default=0)
        step_keys = longest if whole_rows else min(step_keys, longest)
        required_bytes = _step_bytes(call, block_queries, step_keys, backend)
        if required_bytes is not None and required_bytes <= budget:
            break
        if block_queries <= MIN_STEP_ROWS and (whole_rows or step_keys <= MIN_STEP_ROWS):
            raise _budget_error(call, required_bytes, budget, step_keys)
        query_bytes, key_bytes = _row_bytes(call)
        queries_dominate = block_queries * query_bytes > step_keys * key_bytes and block_queries > MIN_STEP_ROWS
        if whole_rows or queries_dominate or step_keys <= MIN_STEP_ROWS:
            block_queries = max(MIN_STEP_ROWS, block_queries // 2)
        else:
            step_keys = max(MIN_STEP_ROWS, step_keys // 2)
    return [
        step
        for queries, key_ranges in zip(ranges(n_q, max(block_queries, 1)), visible, strict=True)
        for step in _split_keys(queries, key_ranges, step_keys)
    ]


def _split_keys(queries: range, key_ranges: Sequence[range], max_keys: int) -> Iterator[ScheduleStep]:
    parts = [
        range(keys.start + part.start, keys.start + part.stop)
        for keys in key_ranges
        for part in ranges(len(keys), max(max_keys, 1))
    ]
    for index, keys in enumerate(parts or [range(0)]):
        yield ScheduleStep(queries, keys, index + 1 >= len(parts))


def _visible_key_ranges(call: ParsedCall, block_queries: int, merge_ranges: bool) -> list[list[range]]:
    """Return the ranges of visible keys of each block of queries.

    With `merge_ranges` each block has a single range, which includes the masked keys between the visible ones.
    """
    if any(isinstance(t, TensorFromQueries) for t in call.closed_expr.tensors):
        call = replace(call, spec=replace(call.spec, score_mod=None))  # its -inf scores depend on queries not read yet
    spec = call.spec
    tiling = Tiling(max(block_queries, 1), MASK_TILE_KEYS, 0)
    coverage = call_coverage(spec, call.captured_tensors(), call.query_offset, tiling)
    visible: list[list[range]] = [[] for _ in ranges(spec.n_q, max(block_queries, 1))]
    tile_runs = zip(coverage.row.tolist(), coverage.col_start.tolist(), coverage.col_stop.tolist(), strict=True)
    for block_index, first, last in sorted(tile_runs):
        block_ranges = visible[block_index]
        keys = range(first * MASK_TILE_KEYS, min(last * MASK_TILE_KEYS, spec.n_k))
        if block_ranges and (merge_ranges or keys.start <= block_ranges[-1].stop):
            block_ranges[-1] = range(block_ranges[-1].start, max(block_ranges[-1].stop, keys.stop))
        else:
            block_ranges.append(keys)
    return visible


def _row_bytes(call: ParsedCall) -> tuple[int, int]:
    """Return the bytes that one query and one key take during a step, over all heads and batch elements.

    This counts the rows of the current and of the next step, prepared copies, and for a query its accumulated output
    and the output of the step.
    """
    spec, itemsize = call.spec, call.spec.dtype.itemsize
    score_itemsize = max(spec.score_dtype.itemsize, 4)
    prepared = (
        0
        if call.score.leaves_inputs_unchanged and itemsize == score_itemsize
        else NUM_PREPARED_COPIES * score_itemsize * spec.head_dim
    )
    upcast_values = 0 if itemsize == score_itemsize else score_itemsize * spec.value_dim
    query_bytes = 2 * itemsize * call.q.shape[-1] + prepared + 6 * score_itemsize * spec.value_dim
    key_bytes = 2 * itemsize * (call.k.shape[-1] + call.v.shape[-1]) + prepared + upcast_values
    return spec.batch_size * spec.num_heads * query_bytes, spec.batch_size * spec.num_kv_heads * key_bytes


def _step_bytes(call: ParsedCall, num_queries: int, num_keys: int, backend: str | None) -> int | None:
    """Return the bytes that a step of this size takes, or None if the backend does not support the size."""
    try:
        plan: Plan = choose_backend(_step_spec(call, num_queries, num_keys), BACKENDS, backend)
    except BackendError:
        return None
    query_bytes, key_bytes = _row_bytes(call)
    return num_queries * query_bytes + num_keys * key_bytes + plan.cost.extra_memory


def _step_spec(call: ParsedCall, num_queries: int, num_keys: int) -> CallSpec:
    """Return the spec of a step of this size."""
    spec = call.spec
    meta_q = torch.empty((spec.batch_size, spec.num_heads, 0, 0), device="meta")
    meta_k = torch.empty((spec.batch_size, spec.num_kv_heads, 0, 0), device="meta")
    inputs = BackendInputs(meta_q, meta_k, meta_k, call.captured_tensors(), (), None, call.query_offset, 0)
    step_spec, _ = make_subcall(call, inputs, StridedRange(0, num_queries), StridedRange(0, num_keys))
    return replace(step_spec, dtype=torch.promote_types(step_spec.dtype, torch.float32))


def _budget_error(call: ParsedCall, required_bytes: int | None, budget: int, num_keys: int) -> BudgetError:
    step = f"{MIN_STEP_ROWS} queries with {num_keys:,} keys each"
    size = (
        "more than the backend supports"
        if required_bytes is None
        else f"{format_bytes(required_bytes)} ({required_bytes:,} bytes)"
    )
    if needs_whole_rows(call):
        return BudgetError(
            f"{call.normalizer.formula} needs all keys of a query in memory at once: {step} take {size}, and the "
            f"budget is {budget:,} bytes. Use a larger budget, a narrower mask, or normalizer.softmax(), which "
            "processes the keys in parts."
        )
    return BudgetError(
        f"the budget must hold at least {step}, which take {size}; got {budget:,} bytes. Use a larger budget."
    )
