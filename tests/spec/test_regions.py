"""Covers against the mask itself: every built-in mask, odd sizes, more or fewer queries than keys, batch and heads."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from regard import mask
from regard.spec import regions
from regard.spec.bounds import Bounds
from regard.spec.regions import Cover, cover, density
from regard.spec.term import FALSE, TRUE, apply, constant, variable
from regard.spec.text import text

from .worlds import Writer, world

SIZES = [(1, 1), (1, 40), (40, 1), (37, 37), (24, 61), (61, 24), (64, 64), (5, 97)]
TILES = [(1, 1), (8, 8), (7, 5), (16, 4), (128, 128)]

# The share of empty and full tiles that stay in doubt, measured over the sizes and tiles above; all others have none.
# A stride that is larger than the tile, and tiles that only two conditions together fill. That of BigBird depends on
# which blocks are drawn: 0.0020 to 0.0031 for seeds from 0 to 9.
DOUBTFUL = {"dilated": 0.001, "fixed": 0.0001, "longformer": 0.0001, "bigbird": 0.0031}

Make = Callable[[int, int, int], mask.Mask]  # from batch, n_q, n_k


def sorted_documents(batch: int, n: int) -> torch.Tensor:
    return torch.randint(0, 4, (batch, n), generator=torch.Generator().manual_seed(n)).sort(-1).values


EVERY_MASK: dict[str, Make] = {
    "causal": lambda b, n, m: mask.causal(),
    "window": lambda b, n, m: mask.window(5),
    "window to one side": lambda b, n, m: mask.window(9, 2),
    "causal window": lambda b, n, m: mask.causal() & mask.window(6),
    "dilated": lambda b, n, m: mask.dilated(4, 3),
    "blocks": lambda b, n, m: mask.blocks(6),
    "blocks that look back": lambda b, n, m: mask.blocks(5, 2),
    "strided": lambda b, n, m: mask.strided(6),
    "fixed": lambda b, n, m: mask.fixed(6, 2),
    "padding": lambda b, n, m: mask.padding([m * (x + 1) // (b + 1) for x in range(b)]),
    "padding on the left": lambda b, n, m: mask.padding([m * (x + 1) // (b + 1) for x in range(b)], side="left"),
    "documents of queries and keys": lambda b, n, m: mask.documents(sorted_documents(b, n), sorted_documents(b, m)),
    "unsorted documents": lambda b, n, m: mask.documents(torch.arange(n) % 3, torch.arange(m) % 3),
    "prefix": lambda b, n, m: mask.prefix(7),
    "prefix language model": lambda b, n, m: mask.causal() | mask.prefix(list(range(1, b + 1))),
    "tokens": lambda b, n, m: mask.tokens([0, 3, 20]),
    "random blocks": lambda b, n, m: mask.random_blocks(4, 2, 1),
    "longformer": lambda b, n, m: mask.longformer(8, [0, 11]),
    "bigbird": lambda b, n, m: mask.bigbird(4, random=1),
    "tensor": lambda b, n, m: mask.tensor(torch.rand(b, 1, n, m, generator=torch.Generator().manual_seed(0)) < 0.1),
    "a function of the head": lambda b, n, m: mask.where(lambda b, h, i, j: (i - j) % (h + 2) == 0),
    "not causal": lambda b, n, m: ~mask.causal(),
    "nothing": lambda b, n, m: mask.where(lambda b, h, i, j: j < 0),
    "everything": lambda b, n, m: mask.where(lambda b, h, i, j: j >= 0),
}


def grid(dense: torch.Tensor, tile: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Which tiles have some pair, and which have all, (batch, heads, rows, columns), by looking at every pair."""
    some = every = dense.numpy()
    for axis, size in enumerate(tile, start=2):
        firsts = np.arange(0, dense.shape[axis], size)
        some, every = np.logical_or.reduceat(some, firsts, axis), np.logical_and.reduceat(every, firsts, axis)
    return some, every


def marked(found: Cover, batch: int, heads: int) -> tuple[np.ndarray, np.ndarray]:
    """The tiles of a cover as grids, spread over the batch elements and heads that it holds for."""
    some, every = np.zeros((2, found.batch, found.heads, *found.grid), bool)
    for b, h, row, column, full in zip(*found.tiles(), strict=True):
        assert not some[b, h, row, column], "a tile is counted twice"
        some[b, h, row, column], every[b, h, row, column] = True, full
    shape = (batch, heads, *found.grid)
    return np.broadcast_to(some, shape), np.broadcast_to(every, shape)


@pytest.mark.parametrize("name", EVERY_MASK)
def test_a_cover_is_what_looking_at_every_pair_finds(name: str) -> None:
    missed = truly = 0
    for number, (n_q, n_k) in enumerate(SIZES):
        batch, heads = 1 + number % 3, 1 + number % 2
        m = EVERY_MASK[name](batch, n_q, n_k)
        starts: list[Any] = [None, 0, 3, torch.arange(batch) * 2 - 1]
        for start in (starts[number % 4], starts[(number + 1) % 4]):
            lengths, begin = (batch, heads, n_q, n_k), n_k - n_q if start is None else start
            dense = m.dense(n_q, n_k, batch=batch, heads=heads, start=start)
            for tile in TILES:
                found = cover(m.term, m.resolved(lengths, begin), lengths, begin, tile)
                some, every = marked(found, batch, heads)
                some_true, every_true = grid(dense, tile)
                assert (some >= some_true).all(), f"{tile} tiles of {lengths} from {start}: a pair is lost"
                assert (every <= every_true).all(), f"{tile} tiles of {lengths} from {start}: a hidden pair is seen"
                if tile != (7, 5):  # such tiles lie across the cells of the tables, so that more of them stay in doubt
                    missed += int((some & ~some_true).sum() + (every_true & ~every).sum())
                    truly += int((~some_true).sum() + every_true.sum())
    assert missed <= DOUBTFUL.get(name, 0.0) * truly, f"{missed} of {truly} empty or full tiles stay in doubt"


@pytest.mark.parametrize("seed", range(4))
def test_a_cover_of_a_random_condition_loses_no_pair_and_adds_none(seed: int) -> None:
    where = world(300 + seed)
    writer = Writer(where, seed)
    for _ in range(40):
        term = writer.condition(3)
        values = where.values_or_none(term)
        if values is None:
            continue
        dense = torch.from_numpy(values.copy())
        found = cover(term, where.tensors, where.lengths, where.start, (4, 8))
        some, every = marked(found, *where.lengths[:2])
        some_true, every_true = grid(dense, (4, 8))
        assert (some >= some_true).all() and (every <= every_true).all(), text(term)


def realistic(batch: int, n: int) -> dict[str, mask.Mask]:
    documents = sorted_documents(batch, n)
    return {
        "causal": mask.causal(),
        "window": mask.window(20),
        "causal window": mask.causal() & mask.window(32),
        "prefix": mask.prefix(45),
        "prefix a batch element": mask.prefix(torch.arange(batch) * 31 + 5),
        "padding": mask.padding(torch.arange(batch) * 40 + 50),
        "padding on the left": mask.padding(torch.arange(batch) * 40 + 50, side="left"),
        "sorted documents": mask.documents(documents),
        "one list of sorted documents": mask.documents(documents[0]),
        "blocks": mask.blocks(24),
        "global tokens": mask.tokens([0, 1, 100]),
        "boolean tril": mask.tensor(torch.ones(n, n, dtype=torch.bool).tril()),
        "boolean padding": mask.tensor((torch.arange(n) < 77).view(1, 1, 1, n)),
        "a function: causal": mask.where(lambda b, h, i, j: i >= j),
        "a function: documents": mask.where(lambda b, h, i, j: documents[b, i] == documents[b, j]),
    }


@pytest.mark.parametrize("name", realistic(1, 128))
@pytest.mark.parametrize("size", [8, 16, 32])
def test_every_empty_and_every_full_tile_of_a_usual_mask_is_recognised(name: str, size: int) -> None:
    for n in (128, 203):
        m = realistic(3, n)[name]
        some_true, every_true = grid(m.dense(n, batch=3, heads=2), (size, size))
        some, every = marked(m.regions(n, size=size, batch=3, heads=2), 3, 2)
        assert (some == some_true).all() and (every == every_true).all()


def test_counts_add_up_to_the_grid() -> None:
    found = mask.documents([0] * 30 + [1] * 34).regions(64, size=8, batch=2, heads=3)
    assert found.grid == (8, 8) and (found.batch, found.heads) == (1, 1)
    # keys 24 to 31 hold the border of the two documents: a row and a column of tiles that are mixed
    assert found.counts == {"empty": 2 * 3 * 4, "partial": 15, "full": 3 * 3 + 4 * 4}
    assert found.counts["partial"] + found.counts["full"] == len(found.tiles().row) == 40


def test_a_mask_that_is_the_same_for_all_is_covered_once() -> None:
    assert [mask.causal().regions(32, size=8, batch=5, heads=7).batch, mask.causal().regions(32).heads] == [1, 1]
    by_head = mask.where(lambda b, h, i, j: j <= h).regions(32, size=8, batch=5, heads=7)
    assert (by_head.batch, by_head.heads) == (1, 7)
    by_batch = mask.padding([3, 4]).regions(32, size=8, batch=2, heads=7)
    assert (by_batch.batch, by_batch.heads) == (2, 1)


def test_a_start_a_batch_element_makes_the_cover_vary_only_where_the_mask_knows_positions() -> None:
    start = torch.tensor([0, 5])
    assert mask.causal().regions(32, size=8, batch=2, start=start).batch == 2
    assert mask.prefix(4).regions(32, size=8, batch=2, start=start).batch == 1


def test_tiles_are_sorted_by_batch_head_row_and_column() -> None:
    found = mask.where(lambda b, h, i, j: (i + j + h) % 5 <= b).regions(40, size=4, batch=3, heads=2)
    order = np.stack(found.tiles()[:4]).T.tolist()
    assert order == sorted(order) and len(order) == len({tuple(x) for x in order})
    assert (found.first < found.last).all() and (found.last <= found.grid[1]).all()


def test_a_large_full_region_is_a_run_a_row() -> None:
    """So that a mask with little edge takes memory for its edge, not for its area."""
    found = cover(TRUE, (), (1, 1, 8192, 8192), 0, (8, 8))
    assert len(found.row) == 1024 and found.counts == {"empty": 0, "partial": 0, "full": 1024**2}
    causal = mask.causal().regions(8192, size=8)
    assert len(causal.row) < 20 * 1024 and causal.counts["full"] == 1024 * 1023 // 2


@pytest.mark.parametrize("lengths", [(0, 2, 8, 8), (2, 0, 8, 8), (1, 1, 0, 8), (1, 1, 8, 0)])
def test_nothing_is_covered_where_there_is_nothing(lengths: tuple[int, int, int, int]) -> None:
    term = apply("le", variable("j"), apply("add", variable("p"), apply("add", variable("b"), variable("h"))))
    found = cover(term, (), lengths, 0, (4, 4))
    assert len(found.row) == 0 and found.counts == {"empty": 0, "partial": 0, "full": 0}


def test_constant_masks_are_covered_without_a_search() -> None:
    assert cover(FALSE, (), (1, 1, 64, 64), 0, (8, 8)).counts == {"empty": 64, "partial": 0, "full": 0}
    everything = cover(TRUE, (), (1, 1, 60, 64), 0, (8, 8))
    assert everything.counts == {"empty": 0, "partial": 0, "full": 64}


def test_a_search_asks_about_few_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    true_bounds = Bounds.of

    def counted(self: Bounds, term: Any, where: Any) -> Any:
        asked.append(len(where))
        return true_bounds(self, term, where)

    monkeypatch.setattr(regions.Bounds, "of", counted)
    n, size = 262144, 128
    found = (mask.causal() & mask.window(256)).regions(n, size=size)
    rows = n // size
    assert len(found.tiles().row) == 3 * rows - 3  # the diagonal and two tiles before it; 256 keys reach no further
    # of four million tiles; the edge is three tiles wide and each level above it half as long
    assert sum(asked) < 20 * rows


@pytest.mark.parametrize("name", EVERY_MASK)
def test_density_is_the_share_of_pairs_that_are_seen(name: str) -> None:
    for n_q, n_k, batch, heads in ((37, 37, 2, 1), (50, 23, 1, 2), (130, 140, 2, 2)):
        m = EVERY_MASK[name](batch, n_q, n_k)
        dense = m.dense(n_q, n_k, batch=batch, heads=heads)
        assert m.density(n_q, n_k, batch=batch, heads=heads) == pytest.approx(dense.double().mean().item(), abs=1e-12)


def test_density_does_not_depend_on_the_tile() -> None:
    m = mask.causal() & mask.dilated(5, 3)
    found = {density(m.term, (), (1, 1, 90, 90), 0, tile) for tile in (1, 16, 90, 128)}
    assert len(found) == 1


def test_density_of_the_usual_masks_is_known_by_hand() -> None:
    n = 1000
    assert mask.causal().density(n) == (n + 1) / (2 * n)
    assert (mask.causal() & mask.window(256)).density(n) == (256 * n - 256 * 255 / 2) / n**2
    assert mask.blocks(100).density(n) == 0.1
    assert mask.where(lambda b, h, i, j: j >= 0).density(n) == 1.0
    assert density(TRUE, (), (1, 1, n, n), 0) == 1.0 and density(FALSE, (), (1, 1, n, n), 0) == 0.0
    assert density(apply("lt", variable("j"), constant(0)), (), (1, 1, n, n), 0) == 0.0
