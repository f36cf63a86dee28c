"""Which tiles an engine visits: the mask's cover, in strips of queries that share their keys."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from regard.plan.recent import Recent
from regard.spec.formula import Start
from regard.spec.hiding import visible
from regard.spec.regions import Cover, Lengths, cover
from regard.spec.spec import Spec
from regard.spec.term import Term


@dataclass(frozen=True)
class Tiles:
    """How many queries and keys a tile has, and how many numbers a tile of several heads may hold.

    Full tiles side by side are taken together up to `row` keys, since each costs some calls whatever its size.
    `sharing` tiles of queries read the same keys one after another, while they are near.
    """

    queries: int
    keys: int
    numbers: int
    row: int = 0
    sharing: int = 1


@dataclass(frozen=True, eq=False)
class Strip:
    """Some queries of some batch elements and heads, with the ranges of keys they see; `full` hides nothing.

    `h` counts query heads: whole groups of them, or a single one where the mask tells heads apart.
    """

    b: range
    h: range
    i: range
    keys: tuple[tuple[range, bool], ...]


def blocks(spec: Spec, tensors: Sequence[Tensor], start: Start, tiles: Tiles) -> Cover:
    """The tiles in which some pair may be seen."""
    return covering(visible(spec.mask, spec.rule, tensors), tensors, spec.lengths, start, tiles)


def covering(term: Term, tensors: Sequence[Tensor], lengths: Lengths, start: Start, tiles: Tiles) -> Cover:
    """The tiles in which a condition may hold; kept for a while."""
    size = (tiles.queries, tiles.keys)
    read = [tensors[n] for n in sorted(term.reads)]
    if isinstance(start, int):
        key: tuple[object, ...] = (term, lengths, size, start)
    else:
        key, read = (term, lengths, size), [*read, start]
    return _recent.get(key, read, lambda: cover(term, tensors, lengths, start, size))


def blocks_without_data(spec: Spec, tiles: Tiles) -> Cover | None:
    """The same from the spec alone; None where the mask or the rule looks something up."""
    if spec.start is None or spec.mask.reads or (spec.rule is not None and spec.rule.reads):
        return None
    return blocks(spec, (), spec.start, tiles)


_recent: Recent[Cover] = Recent()


def strips(spec: Spec, found: Cover, tiles: Tiles) -> Iterator[Strip]:
    """All queries once, in an order given by the shape alone; heads that see the same keys go together."""
    if not spec.batch * spec.heads * spec.n_q:
        return
    numbers_a_head = max(1, min(tiles.queries, spec.n_q) * min(max(tiles.keys, tiles.row), spec.n_k))
    groups = max(1, tiles.numbers // (numbers_a_head * spec.group))
    heads_together = 1 if found.heads > 1 else spec.group * min(groups, spec.key_heads)
    batch_together = 1 if found.batch > 1 or heads_together < spec.heads else max(1, groups // spec.key_heads)
    lists = (found.b * found.heads + found.h) * found.grid[0] + found.row
    ends = np.searchsorted(lists, np.arange(found.batch * found.heads * found.grid[0] + 1)).tolist()
    runs = list(zip(found.first.tolist(), found.last.tolist(), found.full.tolist(), strict=True))
    pieces = [_pieces(run, tiles, spec.n_k) for run in runs]
    for b in ranges(spec.batch, batch_together):
        for h in ranges(spec.heads, heads_together):
            first = (b.start % found.batch * found.heads + h.start % found.heads) * found.grid[0]
            for row, i in enumerate(ranges(spec.n_q, tiles.queries)):
                here = pieces[ends[first + row] : ends[first + row + 1]]
                yield Strip(b, h, i, tuple(piece for run in here for piece in run))


def _pieces(run: tuple[int, int, bool], tiles: Tiles, n_k: int) -> list[tuple[range, bool]]:
    """A run of tiles as ranges of keys: partial tiles one by one, full ones together."""
    first, last, full = run
    step = max(1, tiles.row // tiles.keys) if full else 1
    stops = [min(c + step, last) for c in range(first, last, step)]
    return [
        (range(c * tiles.keys, min(stop * tiles.keys, n_k)), full)
        for c, stop in zip(range(first, last, step), stops, strict=True)
    ]


def ranges(length: int, step: int) -> list[range]:
    """The consecutive ranges of at most `step` that make up a length."""
    return [range(first, min(first + step, length)) for first in range(0, length, step)]
