"""The compiled engine: C++ kernels that keep scores in the nearest cache, with masks and rules as small programs.

Only this file knows the compiled module. It packs a question into numbers and pointers; `native/problem.h` says how.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from regard.engine.gradient import Engine, Saved
from regard.plan.blocks import Tiles, blocks
from regard.spec.bounds import Bounds, Regions
from regard.spec.evaluate import Evaluation, Positions
from regard.spec.finite import all_finite
from regard.spec.formula import Start
from regard.spec.hiding import visible
from regard.spec.normaliser import Softmax
from regard.spec.program import OPS, PLACES, Beforehand, Operand, Program, Table, TableOffset, Untold, program
from regard.spec.regions import Cover, Lengths, cover
from regard.spec.spec import Inputs, Spec
from regard.spec.term import TRUE, Term, slot_of, walk

core: ModuleType | None
try:
    from regard import _core as core
except ImportError:  # built without a compiler
    core = None

_WHOLE = 2**31


@dataclass(frozen=True)
class Build:
    """One build of the kernels: its number, the instruction set's name, queries a panel and keys a chunk."""

    number: int
    name: str
    panel: int
    chunk: int


def builds() -> tuple[Build, ...]:
    """The builds that this processor can run, the best first; none where the package was built without a compiler."""
    return () if core is None else tuple(Build(*entry) for entry in core.builds())


class Native:
    """Softmax attention in float32 on the CPU. What only the data tells to be beyond it goes to `otherwise`."""

    name = "native"
    linear_memory = True
    exact: torch.dtype | None = None

    def __init__(self, otherwise: Engine, build: Build | None = None) -> None:
        self.otherwise = otherwise
        self.build = build or next(iter(builds()), None)
        self.variant = self.build.name if self.build else ""

    def objections(self, spec: Spec) -> tuple[str, ...]:
        found = []
        if self.build is None:
            return ("the compiled core is missing: regard was installed without a C++ compiler",)
        if spec.device != "cpu":
            found.append(f"the tensors are on {spec.device}, and it runs on the CPU")
        if spec.dtype != torch.float32 or spec.precision != torch.float32:
            needed = spec.dtype if spec.dtype != torch.float32 else spec.precision
            found.append(f"the scores are computed in {needed}, and it knows float32".replace("torch.", ""))
        if spec.score != "dot":
            found.append(f"the score is {spec.score}, and it knows products")
        if not isinstance(spec.normaliser, Softmax):
            found.append(f"the weighing is {spec.normaliser.name}, and it knows softmax")
        try:
            _skeleton(spec.mask, spec.rule)
        except Untold as reason:
            found.append(str(reason))
        return tuple(found)

    def tiles(self, spec: Spec) -> Tiles:
        build = self.build
        return Tiles(48, 16, 2**16) if build is None else Tiles(build.panel, build.chunk, 2**16)

    def forward(self, spec: Spec, inputs: Inputs, tiles: Tiles) -> tuple[Tensor, Tensor | None]:
        packed = self._packed(spec, inputs, tiles)
        if packed is None:
            return self.otherwise.forward(spec, inputs, self.otherwise.tiles(spec))
        output = inputs.q.new_empty((spec.batch, spec.heads, spec.n_q, spec.value_width))
        lse = inputs.q.new_empty((spec.batch, spec.heads, spec.n_q))
        packed.run("forward", [output, lse])
        return output, lse

    def backward(self, spec: Spec, inputs: Inputs, tiles: Tiles, saved: Saved, needs: Sequence[bool]) -> list[Tensor]:
        tame = all_finite(inputs.q, inputs.k, inputs.v, saved.d_output)
        packed = self._packed(spec, inputs, tiles) if tame and not any(needs[3:]) else None
        if packed is None:
            return self.otherwise.backward(spec, inputs, self.otherwise.tiles(spec), saved, needs)
        level = (saved.d_output * saved.output).sum(-1) - saved.d_statistic
        sums = [torch.zeros(x.shape) for x in (inputs.q, inputs.k, inputs.v)]
        packed.run("backward", [saved.output, saved.statistic], _rows_together(saved.d_output), level, sums)
        return [total for total, needed in zip(sums, needs, strict=False) if needed]

    def _packed(self, spec: Spec, inputs: Inputs, tiles: Tiles) -> "_Packed | None":
        assert self.build is not None
        condition = visible(spec.mask, spec.rule, inputs.tensors)
        found: _Prepared | None = None
        pairs = spec.batch * spec.heads * spec.n_q * spec.n_k
        if pairs and (condition is not TRUE or spec.rule is not None):  # nobody's positions have no bounds
            try:
                found = _prepared(condition, spec, inputs, tiles, self.build)
            except Untold:
                return None
        return _Packed(self.build, spec, inputs, found)


def _rows_together(x: Tensor) -> Tensor:
    """The same numbers with the last dimension contiguous, as the kernels read them."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A mask and a rule, ready for the kernels: runs of keys and a packed program, and what keeps their memory."""

    runs: tuple[int, ...]  # the fields of a cover
    program: int
    kept: tuple[object, ...]


class _Packed:
    """One question as the kernels take it."""

    def __init__(self, build: Build, spec: Spec, inputs: Inputs, found: _Prepared | None) -> None:
        self.build, self.spec, self.found = build, spec, found
        self.seed = (inputs.seed + 2**63) % 2**64 - 2**63  # the same 64 bits, signed
        self.tensors = [_rows_together(x.detach()) for x in (inputs.q, inputs.k, inputs.v)]

    def run(
        self,
        kernel: str,
        answer: Sequence[Tensor],
        d_output: Tensor | None = None,
        level: Tensor | None = None,
        sums: Sequence[Tensor] = (),
    ) -> None:
        assert core is not None
        spec, found = self.spec, self.found
        shape = (spec.batch, spec.heads, spec.key_heads, spec.n_q, spec.n_k, spec.width, spec.value_width)
        words = [*shape, torch.get_num_threads(), spec.scale]
        for x in self.tensors:
            words += [x.data_ptr(), *x.stride()[:3]]
        words += [*(found.runs if found else (1, 1, 0, 0, 0)), found.program if found else 0]
        words += [self.seed, min(round(spec.dropout * 2**32), 2**32 - 1), 1.0 / (1.0 - spec.dropout)]
        answer = [x.contiguous() for x in answer]
        words += [x.data_ptr() for x in answer]
        if d_output is None or level is None:
            words += [0] * 8
        else:
            level = level.contiguous()
            words += [d_output.data_ptr(), *d_output.stride()[:3], level.data_ptr(), *(x.data_ptr() for x in sums)]
        getattr(core, kernel)(self.build.number, struct.pack("=8qd20qd10q", *words))


def _skeleton(mask: Term, rule: Term | None) -> Program | None:
    """The program for tensors of any size; raises `Untold` where there is none."""
    if mask is TRUE and rule is None:
        return None
    looked = [node for t in (mask, rule) if t is not None for node in walk(t) if node.op == "lookup"]
    ranks = [0] * (1 + max((slot_of(node) for node in looked), default=-1))
    for node in looked:
        ranks[slot_of(node)] = len(node.args)
    ones = tuple((1,) * rank for rank in ranks)
    return program(mask, rule, ones, ones)


def _prepared(condition: Term, spec: Spec, inputs: Inputs, tiles: Tiles, build: Build) -> _Prepared:
    start = inputs.start
    terms = [t for t in (condition, spec.rule) if t is not None]
    if isinstance(start, int) and not any(node.op == "lookup" for t in terms for node in walk(t)):
        return _prepared_without_data(condition, spec.rule, spec.lengths, start, tiles, build)
    found = blocks(spec, inputs.tensors, start, tiles)
    return _prepare(condition, spec.rule, inputs.tensors, spec.lengths, start, found, build)


@lru_cache(maxsize=64)
def _prepared_without_data(
    condition: Term, rule: Term | None, lengths: Lengths, start: int, tiles: Tiles, build: Build
) -> _Prepared:
    found = cover(condition, (), lengths, start, (tiles.queries, tiles.keys))
    return _prepare(condition, rule, (), lengths, start, found, build)


def _prepare(
    condition: Term,
    rule: Term | None,
    tensors: Sequence[Tensor],
    lengths: Lengths,
    start: Start,
    found: Cover,
    build: Build,
) -> _Prepared:
    tensors = [t.detach() for t in tensors]
    sizes, strides = tuple(tuple(t.shape) for t in tensors), tuple(t.stride() for t in tensors)
    told = program(condition, rule, sizes, strides)
    arrays = _Arrays(told, tensors, lengths, start, build)
    runs, kept_runs = _runs(found, lengths)
    packed, kept = arrays.packed()
    return _Prepared(runs, packed, (kept_runs, kept))


def _runs(found: Cover, lengths: Lengths) -> tuple[tuple[int, ...], object]:
    rows = found.grid[0]
    lists = (found.b * found.heads + found.h) * rows + found.row
    starts = np.searchsorted(lists, np.arange(found.batch * found.heads * rows + 1)).astype(np.int64)
    keys = found.tile[1]
    ends = np.minimum(found.last * keys, lengths[3])
    runs = np.ascontiguousarray(np.stack([found.first * keys, ends, ~found.full], axis=1), dtype=np.int32)
    fields = (found.batch, found.heads, rows, starts.ctypes.data, runs.ctypes.data)
    return fields, (starts, runs)


class _Arrays:
    """What a program needs beforehand, computed and packed."""

    def __init__(self, told: Program, tensors: Sequence[Tensor], lengths: Lengths, start: Start, build: Build) -> None:
        self.told, self.tensors, self.lengths, self.start, self.build = told, tensors, lengths, start, build
        self._check()
        self.tables = [self._table(t) for t in told.tables]
        self.lanes = [self._offsets(x) if isinstance(x, TableOffset) else self._along(x, "i") for x in told.lanes]
        self.keys = [self._along(x, "j") for x in told.keys]

    def _check(self) -> None:
        """Whole numbers must fit into 32 bits, and look-ups stay inside; the bounds of all positions tell."""
        batch, heads, n_q, n_k = self.lengths
        if not self.told.whole and not self.told.looked_up:
            return
        b, h = (x.ravel() for x in np.meshgrid(np.arange(batch), np.arange(heads), indexing="ij"))
        zero = np.zeros_like(b)
        everywhere = Regions(b, h, zero, zero + n_q - 1, zero, zero + n_k - 1)
        bounds = Bounds(self.tensors, self.lengths, self.start)
        for term in self.told.whole:
            low, high = bounds.of(term, everywhere)
            if low.min() < -_WHOLE or high.max() >= _WHOLE:
                raise Untold("its whole numbers have 32 bits")
        for term, size in self.told.looked_up:
            low, high = bounds.of(term, everywhere)
            if low.min() < 0 or high.max() >= size:
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
        missing = -values.shape[2] % self.build.panel if axis == "i" else 0
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

    def _table(self, table: Table) -> Tensor:
        if table.made is None:
            captured = self.tensors[table.slot]
            if captured.dtype not in (torch.float32, torch.int32, torch.bool):
                raise Untold(f"it looks up float32 and booleans, not {captured.dtype}")
            return captured
        least, most = self._differences(table)
        apart = torch.arange(least, most + 1)
        term = table.made.term
        # at key 0 a query's position is the difference itself
        values = self._values(table.made, self._positions(term.depends, apart, range(1), 0)).flatten(2)
        return values.contiguous() if values.dtype == torch.bool else _in_words(values)

    def _offsets(self, wanted: TableOffset) -> Tensor:
        table = self.told.tables[wanted.table]
        assert table.made is not None
        least = self._differences(table)[0]
        positions = self._positions(
            table.made.term.depends | wanted.term.depends, range(self.lengths[2]), range(1), self.start
        )
        places = self._values(wanted, positions).flatten(2) - least
        batch, heads, width = self.tables[wanted.table].shape
        b, h = torch.arange(positions.shape[0]) % batch, torch.arange(positions.shape[1]) % heads
        begin = (b.view(-1, 1, 1) * heads + h.view(1, -1, 1)) * width
        return _in_words(self._padded(places + begin, "i"))

    def packed(self) -> tuple[int, object]:
        """The address of the program, and what must live as long as it is used."""
        told = self.told
        code = np.array(
            [[OPS.index(x.op), x.into, x.table, 0, *_word(x.a), *_word(x.b), *_word(x.c)] for x in told.instructions],
            dtype=np.int32,
        ).reshape(-1, 10)
        lanes, keys = (
            np.array([_fields(x) for x in xs], dtype=np.int64).reshape(-1, 3) for xs in (self.lanes, self.keys)
        )
        tables = np.array([x.data_ptr() for x in self.tables], dtype=np.int64)
        counts = (told.rule, told.length, told.length, len(told.instructions), told.registers)
        pointers = (lanes.ctypes.data, keys.ctypes.data, tables.ctypes.data)
        whole = np.array([code.ctypes.data, *counts, *pointers], dtype=np.int64)
        return whole.ctypes.data, (whole, code, lanes, keys, tables, self.lanes, self.keys, self.tables)


def _word(x: Operand) -> tuple[int, int]:
    return PLACES.index(x.place), x.index


def _fields(x: Tensor) -> tuple[int, int, int]:
    """Where numbers begin, and their strides by batch element and head: 0 where they are the same for all."""
    return x.data_ptr(), x.stride(0) if x.shape[0] > 1 else 0, x.stride(1) if x.shape[1] > 1 else 0


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
