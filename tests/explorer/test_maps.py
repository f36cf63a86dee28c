"""The map of a head at every scale, against all weights at once."""

import pytest
import torch
from torch import Tensor

from regard import mask
from regard.errors import SpecError
from regard.explorer import maps
from regard.explorer.maps import TILE, Cells, Pyramid, base_level, glimpsed
from tests.explorer.recordings import shown


def pooled(weights: Tensor, level: int) -> Cells:
    """Cells of 2^level a side, band by band."""
    means = torch.stack([band.mean(0) for band in weights.double().split(2**level)])
    tops = torch.stack([band.amax(0) for band in weights.split(2**level)])
    mean = torch.stack([band.mean(1) for band in means.split(2**level, 1)], 1)
    return Cells(mean.float(), torch.stack([band.amax(1) for band in tops.split(2**level, 1)], 1))


def whole(pyramid: Pyramid, level: int) -> Cells:
    """A level put together from its tiles."""
    rows, columns = (-(-n // (TILE * 2**level)) for n in pyramid.head.shape)
    bands = [[pyramid.tile(level, r, c) for c in range(columns)] for r in range(rows)]
    return Cells(*(torch.cat([torch.cat([t[n] for t in band], 1) for band in bands]) for n in (0, 1)))


@pytest.mark.parametrize(
    "n_q, n_k, options",
    [
        (5, 7, {}),
        (300, 300, {"mask": mask.causal()}),
        (700, 1, {}),
        (1, 1300, {}),
        (1500, 1500, {"mask": mask.causal()}),  # the base has cells of 2
        (40, 5000, {}),  # of 4 and more keys than queries
        (17, 20_000, {}),  # of 16, which 17 queries cannot be divided into
        (2100, 2500, {"heads": 4, "key_heads": 2, "mask": mask.causal() & mask.window(100)}),
    ],
)
def test_every_level_is_the_mean_and_the_maximum_of_all_weights(n_q: int, n_k: int, options: dict[str, object]) -> None:
    given = shown(n_q, n_k, **options)
    weights = given.tape[0].weights[0, 1].float()
    pyramid = given.map(0, 1)
    assert pyramid.base == base_level(max(n_q, n_k))
    for level in range(pyramid.levels):
        found, right = whole(pyramid, level), pooled(weights, level)
        # sums in float32 in another order, of numbers that are at most 1
        torch.testing.assert_close(found.mean, right.mean, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(found.max, right.max, atol=1e-6, rtol=1e-5)
    assert max(-(-n // 2 ** (pyramid.levels - 1)) for n in (n_q, n_k)) <= TILE


def test_level_zero_are_single_weights_and_the_last_level_fits_one_tile() -> None:
    given = shown(1100, 1100, mask=mask.causal())
    tile = given.map(0, 0).tile(0, 2, 1)
    right = given.tape[0].weights[0, 0, 512:768, 256:512]
    torch.testing.assert_close(tile.mean, right, atol=1e-6, rtol=1e-5)
    assert given.map(0, 0).tile(given.map(0, 0).levels - 1, 0, 0).mean.shape == (138, 138)


def test_a_part_that_is_hidden_is_empty_and_nothing_is_computed_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pyramid = shown(1100, 1100, mask=mask.causal()).map(0, 0)
    monkeypatch.setattr(type(pyramid.head), "weights", None)
    assert not pyramid.tile(0, 0, 3).max.any()
    with pytest.raises(TypeError, match="NoneType"):
        pyramid.tile(0, 3, 0)


def test_a_fine_tile_is_computed_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given = shown(2500, 2500)
    before = given.map(0, 0).tile(1, 1, 2)
    monkeypatch.setattr(maps, "PAIRS", 2**12)
    after = given.map(0, 0).tile(1, 1, 2)
    torch.testing.assert_close(before.mean, after.mean)
    torch.testing.assert_close(before.max, after.max)


def test_a_tile_outside_of_the_map_is_refused_with_its_size() -> None:
    pyramid = shown(300, 500).map(0, 0)
    with pytest.raises(
        SpecError, match=r"map of 2 levels, level 0 of which has 300 x 500 cells; got row 2 and column 0"
    ):
        pyramid.tile(0, 2, 0)
    with pytest.raises(SpecError, match=r"map of 2 levels, level 2"):
        pyramid.tile(2, 0, 0)


def test_a_small_map_of_a_long_text_is_near_the_exact_one() -> None:
    given = shown(4096, 4096, mask=mask.causal(), heads=1, key_heads=1)
    exact = given.map(0, 0).small(64)
    quick = glimpsed(given.head(0, 0), 64, 4)
    assert quick.mean.shape == exact.mean.shape == (64, 64)
    assert bool((quick.max <= exact.max + 1e-6).all())
    # each row's weights sum to 1, so rows of cells must agree in their sums: those of the first, short rows roughly
    torch.testing.assert_close(quick.mean.sum(-1), exact.mean.sum(-1), rtol=1e-3, atol=1e-6)


def test_a_small_map_at_the_edge_counts_only_pairs_that_are_there() -> None:
    given = shown(100, 1000)
    quick, exact = glimpsed(given.head(0, 0), 64, 16), given.map(0, 0).small(64)
    assert quick.mean.shape == exact.mean.shape == (7, 63)
    torch.testing.assert_close(quick.mean[:-1], exact.mean[:-1], rtol=1e-4, atol=1e-7)  # all 16 rows of each cell
