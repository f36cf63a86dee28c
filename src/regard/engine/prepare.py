"""A mask and a rule made ready for the kernels: which keys each panel of queries sees, and a program with its numbers.

`native/program.h` and `native/problem.h` say how they are laid out. What is ready is kept for a while: a model asks
with the same mask in every layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from regard.engine.address import address
from regard.plan.blocks import Tiles, covering
from regard.plan.recent import Recent
from regard.spec.bounds import Array, Bounds, Regions
from regard.spec.evaluate import Evaluation, Positions
from regard.spec.formula import Start
from regard.spec.program import OPS, PLACES, Beforehand, Operand, Program, Table, TableOffset, Untold, program
from regard.spec.regions import Cover, Lengths
from regard.spec.term import Term, variable

_WHOLE = 2**31


@dataclass(frozen=True, eq=False)
class Prepared:
    """Runs of keys and a packed program; only the captured tensors that tiles read themselves are still missing."""

    runs: tuple[int, ...]  # the fields of a cover
    told: Program
    code: Array
    lanes: Array
    keys: Array
    tables: tuple[Tensor | None, ...]  # None: a captured one
    meetings: tuple[int, ...]
    kept: object  # what must live as long as this

    def packed(self, tensors: Sequence[Tensor], sums: Sequence[Tensor] = ()) -> tuple[int, object]:
        """The address of the program for these tensors, and what must live while it is used.

        `sums` take the gradients of captured tensors, one for each that the program was told to differentiate in.
        """
        if not sums and self._alone is not None:
            return self._alone
        return self._packed(tensors, sums)

    @cached_property
    def _alone(self) -> tuple[int, object] | None:
        """The same once for all, where nothing captured is read."""
        return self._packed((), ()) if all(t.made is not None for t in self.told.tables) else None

    def _packed(self, tensors: Sequence[Tensor], sums: Sequence[Tensor]) -> tuple[int, object]:
        told = self.told
        found = [tensors[t.slot] if t.made is None else made for t, made in zip(told.tables, self.tables, strict=True)]
        addresses = np.array([address(x) for x in found if x is not None], np.int64)
        added = [(address(x), x.numel(), meeting) for x, meeting in zip(sums, self.meetings, strict=True)]
        into = np.array(added, np.int64)
        sections = (told.rule, told.hiding, told.slope, len(told.instructions), told.registers)
        places = (self.lanes.ctypes.data, self.keys.ctypes.data, addresses.ctypes.data)
        whole = np.array([self.code.ctypes.data, *sections, *places, len(added), into.ctypes.data], np.int64)
        return whole.ctypes.data, (whole, addresses, found, into)


def prepared(
    condition: Term,
    rule: Term | None,
    tensors: Sequence[Tensor],
    lengths: Lengths,
    start: Start,
    tiles: Tiles,
    vectors: int,
    wanted: tuple[int, ...] = (),
) -> Prepared:
    """A condition and a rule, ready. A tile has the queries of one vector, a panel so many `vectors`; `wanted` are the
    captured tensors whose gradients are summed."""
    tensors = [t.detach() for t in tensors]
    sizes, strides = tuple(tuple(t.shape) for t in tensors), tuple(t.stride() for t in tensors)
    told = program(condition, rule, sizes, strides, wanted)
    for table in told.tables:
        if table.made is None and tensors[table.slot].dtype not in (torch.float32, torch.int32, torch.bool):
            raise Untold(f"it looks up float32 and booleans, not {tensors[table.slot].dtype}")
    begin, begins = (start, []) if isinstance(start, int) else (None, [start])
    read = [tensors[n] for n in sorted(condition.reads | told.reads)] + begins
    key = (condition, rule, sizes, strides, wanted, lengths, begin, tiles, vectors)
    return _recent.get(key, read, lambda: _prepare(condition, told, tensors, lengths, start, tiles, vectors))


# layers of a model share one table: 32 heads and 200,000 keys take 26 MB
_recent: Recent[Prepared] = Recent(2**25)


def _prepare(
    condition: Term,
    told: Program,
    tensors: Sequence[Tensor],
    lengths: Lengths,
    start: Start,
    tiles: Tiles,
    vectors: int,
) -> Prepared:
    runs, kept_runs = _runs(covering(condition, tensors, lengths, start, tiles), lengths, vectors)
    made = _Arrays(told, tensors, lengths, start, tiles.queries * vectors)
    code = np.array(
        [[OPS.index(x.op), x.into, x.table, 0, *_word(x.a), *_word(x.b), *_word(x.c)] for x in told.instructions],
        dtype=np.int32,
    )
    lanes, keys = (np.array([_fields(x) for x in xs], dtype=np.int64) for xs in (made.lanes, made.keys))
    meetings = tuple(_meeting(nodes, lengths) for nodes in told.added)
    kept = (kept_runs, made.lanes, made.keys)
    return Prepared(runs, told, code, lanes, keys, tuple(made.tables), meetings, kept)


def _meeting(nodes: Sequence[Term], lengths: Lengths) -> int:
    """Which queries' gradients of a captured tensor may meet in one place: 0 only those that lie side by side, 1 also
    those of other batch elements and heads at the same places, 2 any."""
    indices = [set(node.args) for node in nodes]
    apart = all(variable("b") in x or lengths[0] == 1 for x in indices)
    if not all(variable("i") in x or (apart and variable("p") in x) for x in indices):
        return 2
    return 0 if apart and all(variable("h") in x or lengths[1] == 1 for x in indices) else 1


def _runs(found: Cover, lengths: Lengths, vectors: int) -> tuple[tuple[int, ...], object]:
    """The runs of keys that each panel sees: where the vectors that see something change, a new one begins."""
    panels, columns = -(-found.grid[0] // vectors), found.grid[1] + 1
    begin = ((found.b * found.heads + found.h) * panels + found.row // vectors) * columns  # of a panel's list
    edges = np.unique(np.concatenate([begin + found.first, begin + found.last]))
    seen = np.zeros((len(edges), vectors), bool)
    full = np.zeros_like(seen)
    for vector in range(vectors):
        own = found.row % vectors == vector
        if own.any():
            first, last = (begin + found.first)[own], (begin + found.last)[own]
            run = np.maximum(np.searchsorted(first, edges, side="right") - 1, 0)
            seen[:, vector] = (first[run] <= edges) & (edges < last[run])
            full[:, vector] = seen[:, vector] & found.full[own][run]
    low, high = np.argmax(seen, axis=1), vectors - np.argmax(seen[:, ::-1], axis=1)
    inside = (np.arange(vectors) >= low[:, None]) & (np.arange(vectors) < high[:, None])
    partial = np.any(inside & ~full, axis=1)
    sees = np.any(seen[:-1], axis=1)  # the last edge begins nothing
    lists, keys = edges // columns, edges % columns * found.tile[1]
    fields = [keys[:-1], np.minimum(keys[1:], lengths[3]), partial[:-1], low[:-1], high[:-1]]
    runs = np.ascontiguousarray(np.stack(fields, axis=1)[sees], dtype=np.int32)
    starts = np.searchsorted(lists[:-1][sees], np.arange(found.batch * found.heads * panels + 1)).astype(np.int64)
    return (found.batch, found.heads, panels, starts.ctypes.data, runs.ctypes.data), (starts, runs)


class _Arrays:
    """What a program needs beforehand, computed and packed."""

    def __init__(self, told: Program, tensors: Sequence[Tensor], lengths: Lengths, start: Start, panel: int) -> None:
        self.told, self.tensors, self.lengths, self.start, self.panel = told, tensors, lengths, start, panel
        self.tables = [None if t.made is None else self._table(t, t.made) for t in told.tables]
        self._check()
        self.lanes = [self._offsets(x) if isinstance(x, TableOffset) else self._along(x, "i") for x in told.lanes]
        self.keys = [self._along(x, "j") for x in told.keys]

    def _check(self) -> None:
        """Whole numbers must fit into 32 bits, and look-ups stay inside, at all positions."""
        if not self.told.whole and not self.told.looked_up:
            return
        batch, heads, n_q, n_k = self.lengths
        b, h = (x.ravel() for x in np.meshgrid(np.arange(batch), np.arange(heads), indexing="ij"))
        zero = np.zeros_like(b)
        everywhere = Regions(b, h, zero, zero + n_q - 1, zero, zero + n_k - 1)
        bounds = Bounds(self.tensors, self.lengths, self.start)
        made = zip(self.told.tables, self.tables, strict=True)
        known = {t.made.term: x for t, x in made if t.made is not None and x is not None}

        def extent(term: Term) -> tuple[int, int]:
            if term in known:
                return int(known[term].min()), int(known[term].max())
            low, high = bounds.of(term, everywhere)
            return low.min(), high.max()

        for term in self.told.whole:
            least, most = extent(term)
            if least < -_WHOLE or most >= _WHOLE:
                raise Untold("its whole numbers have 32 bits")
        for term, size in self.told.looked_up:
            least, most = extent(term)
            if least < 0 or most >= size:
                raise Untold("a look-up may leave its tensor")

    def _positions(self, depends: frozenset[str], i: range | Tensor, j: range | Tensor, start: Start) -> Positions:
        batch, heads, n_q, n_k = self.lengths
        by_batch = "b" in depends or ("p" in depends and not isinstance(start, int))
        b, h = range(batch if by_batch else 1), range(heads if "h" in depends else 1)
        return Positions(b, h, i, j, start=start, n_q=n_q, n_k=n_k, device=torch.device("cpu"))

    def _values(self, wanted: Beforehand, positions: Positions) -> Tensor:
        looked = Evaluation(self.tensors, positions, precision=torch.float32)
        values = looked.value(wanted.term, wanted.precise)
        if looked.out_of_range is not None:
            raise Untold("a look-up may leave its tensor")
        return values.expand(positions.shape)

    def _along(self, wanted: Beforehand, axis: str) -> Tensor:
        """(batch or 1, heads or 1, queries or keys), 32 bits each; queries go on up to a whole panel."""
        n_q, n_k = self.lengths[2:]
        i, j = (range(n_q), range(1)) if axis == "i" else (range(1), range(n_k))
        values = self._values(wanted, self._positions(wanted.term.depends, i, j, self.start))
        return _in_words(self._padded(values.flatten(2), axis))

    def _padded(self, values: Tensor, axis: str) -> Tensor:
        missing = -values.shape[2] % self.panel if axis == "i" else 0
        if not missing:
            return values
        return torch.cat([values, values[..., -1:].expand(-1, -1, missing)], dim=2)

    def _differences(self, table: Table) -> tuple[int, int]:
        """The least and greatest difference of the query's and the key's position."""
        n_q, n_k = self.lengths[2:]
        starts = (0, 0)
        if table.along == "p":
            starts = (
                (self.start,) * 2 if isinstance(self.start, int) else (int(self.start.min()), int(self.start.max()))
            )
        return starts[0] - (n_k - 1), starts[1] + n_q - 1

    def _table(self, table: Table, made: Beforehand) -> Tensor:
        least, most = self._differences(table)
        apart = torch.arange(least, most + 1)
        # at key 0 a query's position is the difference itself
        values = self._values(made, self._positions(made.term.depends, apart, range(1), 0)).flatten(2)
        return values.contiguous() if values.dtype == torch.bool else _in_words(values)

    def _offsets(self, wanted: TableOffset) -> Tensor:
        table, numbers = self.told.tables[wanted.table], self.tables[wanted.table]
        assert table.made is not None and numbers is not None
        least = self._differences(table)[0]
        positions = self._positions(
            table.made.term.depends | wanted.term.depends, range(self.lengths[2]), range(1), self.start
        )
        places = self._values(wanted, positions).flatten(2) - least
        batch, heads, width = numbers.shape
        b, h = torch.arange(positions.shape[0]) % batch, torch.arange(positions.shape[1]) % heads
        begin = (b.view(-1, 1, 1) * heads + h.view(1, -1, 1)) * width
        return _in_words(self._padded(places + begin, "i"))


def _word(x: Operand) -> tuple[int, int]:
    return PLACES.index(x.place), x.index


def _fields(x: Tensor) -> tuple[int, int, int]:
    """Where numbers begin, and their strides by batch element and head: 0 where they are the same for all."""
    return address(x), x.stride(0) if x.shape[0] > 1 else 0, x.stride(1) if x.shape[1] > 1 else 0


def _in_words(values: Tensor) -> Tensor:
    """As 32 bits each: floats, whole numbers, or conditions as 0 and -1."""
    if values.dtype == torch.bool:
        return -values.int().contiguous()
    if values.is_floating_point():
        if values.dtype == torch.float64:
            raise Untold("it decides in float32, and a number is float64")
        return values.contiguous()
    if values.numel() and (int(values.min()) < -_WHOLE or int(values.max()) >= _WHOLE):
        raise Untold("its whole numbers have 32 bits")
    return values.int().contiguous()
