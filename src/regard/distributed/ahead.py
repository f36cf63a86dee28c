"""Rows for one step after another: while a step is worked on, a thread reads those of the next.

Rows come into the same two rooms again and again. Memory that is taken and given back for every step would scatter over
the heap, and the process would grow with the number of steps.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from regard.distributed.reading import Source
from regard.distributed.schedule import Step

ROOMS = 2  # for what is worked on, and for what is read meanwhile


def read_ahead(sources: Sequence[Source], todo: Sequence[Step]) -> Iterator[tuple[Step, list[Tensor]]]:
    """Each step with its rows of q, k and v, which are there until the next step is asked for."""
    reader = Reader(sources, todo)
    with ThreadPoolExecutor(1, "regard-reads") as thread:
        coming = deque(thread.submit(reader.rows, number) for number in range(len(todo[:1])))
        for number, step in enumerate(todo):
            rows = coming.popleft().result()
            coming.extend(thread.submit(reader.rows, after) for after in range(number + 1, len(todo[: number + 2])))
            yield step, rows


class Reader:
    """Reads the rows of the steps in their order; queries that stay for several steps are read once."""

    def __init__(self, sources: Sequence[Source], todo: Sequence[Step]) -> None:
        self._sources, self._todo = sources, todo
        sizes = [max((len(r) for r in rows), default=0) for rows in ([s.queries for s in todo], [s.keys for s in todo])]
        self._rooms = [
            [torch.empty(x.nbytes(n), dtype=torch.uint8) for _ in range(ROOMS)]
            for x, n in zip(sources, sizes + sizes[1:], strict=True)
        ]
        self._blocks = 0  # of queries, so far
        self._queries: Tensor | None = None

    def rows(self, number: int) -> list[Tensor]:
        step = self._todo[number]
        q, k, v = self._sources
        if self._queries is None or self._todo[number - 1].queries != step.queries:
            self._blocks += 1
            self._queries = q.rows(step.queries, self._rooms[0][self._blocks % ROOMS])
        turn = number % ROOMS
        return [self._queries, k.rows(step.keys, self._rooms[1][turn]), v.rows(step.keys, self._rooms[2][turn])]
