"""Prefetch: a thread reads the rows of the next step while the current step is computed.

All steps share two buffers for each source. Allocating new ones for every step would fragment the heap, and the process
would grow with the number of steps.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from regard.distributed.out_of_core.row_source import RowSource
from regard.distributed.out_of_core.schedule import ScheduleStep

NUM_BUFFERS = 2  # one for the current step, one for the next


def prefetch_rows(
    sources: Sequence[RowSource], steps: Sequence[ScheduleStep]
) -> Iterator[tuple[ScheduleStep, list[Tensor]]]:
    """Yield each step with its rows of q, k and v; the rows are valid until the next step is requested."""
    reader = StepReader(sources, steps)
    with ThreadPoolExecutor(1, "regard-reads") as thread:
        pending: Future[list[Tensor]] | None = thread.submit(reader.read_step, 0) if steps else None
        for index, step in enumerate(steps):
            assert pending is not None
            rows = pending.result()
            pending = thread.submit(reader.read_step, index + 1) if index + 1 < len(steps) else None
            yield step, rows


class StepReader:
    """Reads the rows of consecutive steps; queries shared by consecutive steps are read once."""

    def __init__(self, sources: Sequence[RowSource], steps: Sequence[ScheduleStep]) -> None:
        self._sources, self._steps = sources, steps
        max_queries = max((len(step.queries) for step in steps), default=0)
        max_keys = max((len(step.keys) for step in steps), default=0)
        self._buffers = [
            [torch.empty(source.nbytes(num_rows), dtype=torch.uint8) for _ in range(NUM_BUFFERS)]
            for source, num_rows in zip(sources, (max_queries, max_keys, max_keys), strict=True)
        ]
        self._num_query_blocks = 0
        self._query_rows: Tensor | None = None

    def read_step(self, step_index: int) -> list[Tensor]:
        step = self._steps[step_index]
        q, k, v = self._sources
        if self._query_rows is None or self._steps[step_index - 1].queries != step.queries:
            self._num_query_blocks += 1
            self._query_rows = q.read_rows(step.queries, self._buffers[0][self._num_query_blocks % NUM_BUFFERS])
        buffer_index = step_index % NUM_BUFFERS
        return [
            self._query_rows,
            k.read_rows(step.keys, self._buffers[1][buffer_index]),
            v.read_rows(step.keys, self._buffers[2][buffer_index]),
        ]
