"""A call over ranks: the parsed call of the whole sequence, with this rank's rows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from regard.backends.protocol import Backend
from regard.backends.registry import BACKENDS, BACKENDS_BY_NAME
from regard.call.spec import BackendInputs, ParsedCall
from regard.call.subcall import StridedRange, make_subcall
from regard.distributed.partials import PartialOutput
from regard.distributed.ranks.communicator import Communicator
from regard.distributed.ranks.sharding import shard_positions
from regard.expr.closed_expr import TensorFromQueries
from regard.plan.choose import Plan, choose_backend
from regard.plan.tiling import Tiling, call_coverage

HALF_DTYPES = (torch.bfloat16, torch.float16)
NUM_MASK_REGIONS = 16  # a rank's queries and keys are split into this many regions to find those without visible pairs


@dataclass(frozen=True, eq=False)
class ShardedCall:
    """A call over n_q queries and n_k keys; this rank holds a part of each."""

    call: ParsedCall
    comm: Communicator
    layout: str
    backend: str | None

    def query_positions(self, rank: int) -> tuple[StridedRange, ...]:
        return shard_positions(self.layout, self.call.spec.n_q, self.comm.world_size, rank)

    def key_positions(self, rank: int) -> tuple[StridedRange, ...]:
        return shard_positions(self.layout, self.call.spec.n_k, self.comm.world_size, rank)

    @property
    def local_query_positions(self) -> tuple[StridedRange, ...]:
        return self.query_positions(self.comm.rank)

    def inputs(self) -> BackendInputs:
        """Return this rank's rows, prepared for the score; keys are prepared before they are sent."""
        return self.call.prepare_inputs(torch.float64 if self.backend == "reference" else None)

    def query_dependent_tensors(self) -> frozenset[int]:
        """Return the indices of the captured tensors that have one row per query."""
        captured = self.call.closed_expr.tensors
        return frozenset(index for index, tensor in enumerate(captured) if isinstance(tensor, TensorFromQueries))

    def slice_queries(self, inputs: BackendInputs, rows: slice) -> BackendInputs:
        """Return the inputs restricted to some of this rank's queries."""
        query_dependent = self.query_dependent_tensors()
        tensors = tuple(t[:, :, rows] if index in query_dependent else t for index, t in enumerate(inputs.tensors))
        return replace(inputs, q=inputs.q[:, :, rows], tensors=tensors)

    def plan_subcall(
        self,
        inputs: BackendInputs,
        queries: StridedRange,
        keys: StridedRange,
        dtype: torch.dtype | None = None,
        first_head: int = 0,
    ) -> tuple[Plan, BackendInputs, Backend]:
        """Plan the attention of some queries over some keys; return the plan, its inputs and its backend.

        `dtype` is the dtype of the computation; None takes that of the call.
        """
        spec, subcall_inputs = make_subcall(self.call, inputs, queries, keys, first_head)
        spec = spec if dtype is None else replace(spec, dtype=dtype)
        plan = choose_backend(spec, BACKENDS, self.backend)
        return plan, subcall_inputs, BACKENDS_BY_NAME[plan.backend]

    def empty_partial(self, inputs: BackendInputs, num_queries: int) -> PartialOutput:
        """Return the partial output of queries without visible keys: zeros, with lse -inf."""
        spec = self.call.spec
        rows = spec.batch_size, spec.num_heads, num_queries
        output_dtype = torch.promote_types(inputs.v.dtype, torch.float32)
        lse_dtype = torch.promote_types(spec.score_dtype, output_dtype)
        lse = inputs.q.new_full(rows, -torch.inf, dtype=lse_dtype) if spec.normalizer.statistic else None
        return inputs.v.new_zeros((*rows, spec.value_dim), dtype=output_dtype), lse

    def has_visible_keys(self, query_rank: int, key_rank: int) -> bool:
        """Return whether some query of `query_rank` may attend to some key of `key_rank`.

        Both ranks compute the answer from the mask, without communication.
        """
        return any(
            self._any_visible(queries, keys)
            for queries in self.query_positions(query_rank)
            for keys in self.key_positions(key_rank)
        )

    def _any_visible(self, queries: StridedRange, keys: StridedRange) -> bool:
        if not (queries.count and keys.count):
            return False
        call = self.call
        if self.query_dependent_tensors():  # only the rank of the queries has the tensors of this score_mod
            call = replace(call, spec=replace(call.spec, score_mod=None))
        spec = call.spec
        empty = torch.empty((spec.batch_size, 1, 0, 0), device="meta")
        inputs = BackendInputs(empty, empty, empty, call.captured_tensors(), (), None, call.query_offset, 0)
        subcall_spec, subcall_inputs = make_subcall(call, inputs, queries, keys)
        subcall_spec = replace(subcall_spec, num_heads=spec.num_heads, num_kv_heads=spec.num_kv_heads)
        tiling = Tiling(-(-queries.count // NUM_MASK_REGIONS), -(-keys.count // NUM_MASK_REGIONS), 0)
        coverage = call_coverage(subcall_spec, subcall_inputs.tensors, subcall_inputs.query_offset, tiling)
        return len(coverage.row) > 0


def local_slices(positions: tuple[StridedRange, ...]) -> Iterator[tuple[StridedRange, slice]]:
    """Yield each chunk of positions that a rank holds, with the slice of its rows."""
    start = 0
    for chunk in positions:
        yield chunk, slice(start, start + chunk.count)
        start += chunk.count
