"""The map of a head at every scale, compared with pooling all weights at once."""

import pytest
import torch
from torch import Tensor

from regard import mask
from regard.errors import ArgumentError
from regard.explorer import map_pyramid
from regard.explorer.map_pyramid import TILE_SIZE, MapCells, MapPyramid, choose_base_level, sampled_thumbnail
from tests.explorer.recordings import make_session


def pool(weights: Tensor, level: int) -> MapCells:
    """Return the mean and the maximum of cells of 2^level x 2^level weights."""
    row_means = torch.stack([band.mean(0) for band in weights.double().split(2**level)])
    row_maxima = torch.stack([band.amax(0) for band in weights.split(2**level)])
    mean = torch.stack([band.mean(1) for band in row_means.split(2**level, 1)], 1)
    return MapCells(mean.float(), torch.stack([band.amax(1) for band in row_maxima.split(2**level, 1)], 1))


def join_tiles(pyramid: MapPyramid, level: int) -> MapCells:
    """Return all cells of a level, joined from its tiles."""
    rows, columns = (-(-n // (TILE_SIZE * 2**level)) for n in pyramid.head_weights.shape)
    bands = [[pyramid.tile(level, r, c) for c in range(columns)] for r in range(rows)]
    return MapCells(*(torch.cat([torch.cat([t[n] for t in band], 1) for band in bands]) for n in (0, 1)))


@pytest.mark.parametrize(
    "n_q, n_k, options",
    [
        (5, 7, {}),
        (300, 300, {"mask": mask.causal()}),
        (700, 1, {}),
        (1, 1300, {}),
        (1500, 1500, {"mask": mask.causal()}),  # base cells of 2 x 2
        (40, 5000, {}),  # base cells of 4 x 4, and more keys than queries
        (17, 20_000, {}),  # base cells of 16 x 16, which do not divide 17 queries
        (2100, 2500, {"num_heads": 4, "num_kv_heads": 2, "mask": mask.causal() & mask.sliding_window(100)}),
    ],
)
def test_every_level_has_the_mean_and_the_maximum_of_its_weights(
    n_q: int, n_k: int, options: dict[str, object]
) -> None:
    session = make_session(n_q, n_k, **options)
    weights = session.recording[0].weights[0, 1].float()
    pyramid = session.map_pyramid(0, 1)
    assert pyramid.base_level == choose_base_level(max(n_q, n_k))
    for level in range(pyramid.num_levels):
        cells, expected = join_tiles(pyramid, level), pool(weights, level)
        # float32 sums of numbers up to 1, in another order
        torch.testing.assert_close(cells.mean, expected.mean, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(cells.max, expected.max, atol=1e-6, rtol=1e-5)
    assert max(-(-n // 2 ** (pyramid.num_levels - 1)) for n in (n_q, n_k)) <= TILE_SIZE


def test_level_zero_has_single_weights_and_the_last_level_fits_one_tile() -> None:
    session = make_session(1100, 1100, mask=mask.causal())
    tile = session.map_pyramid(0, 0).tile(0, 2, 1)
    expected = session.recording[0].weights[0, 0, 512:768, 256:512]
    torch.testing.assert_close(tile.mean, expected, atol=1e-6, rtol=1e-5)
    assert session.map_pyramid(0, 0).tile(session.map_pyramid(0, 0).num_levels - 1, 0, 0).mean.shape == (138, 138)


def test_a_hidden_region_is_empty_and_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    pyramid = make_session(1100, 1100, mask=mask.causal()).map_pyramid(0, 0)
    monkeypatch.setattr(type(pyramid.head_weights), "weights", None)
    assert not pyramid.tile(0, 0, 3).max.any()
    with pytest.raises(TypeError, match="NoneType"):
        pyramid.tile(0, 3, 0)


def test_a_fine_tile_computed_in_parts_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    session = make_session(2500, 2500)
    whole_tile = session.map_pyramid(0, 0).tile(1, 1, 2)
    monkeypatch.setattr(map_pyramid, "MAX_PAIRS_AT_ONCE", 2**12)
    split_tile = session.map_pyramid(0, 0).tile(1, 1, 2)
    torch.testing.assert_close(whole_tile.mean, split_tile.mean)
    torch.testing.assert_close(whole_tile.max, split_tile.max)


def test_a_tile_outside_of_the_map_raises() -> None:
    pyramid = make_session(300, 500).map_pyramid(0, 0)
    with pytest.raises(ArgumentError, match=r"has 2 levels and 300 x 500 cells at level 0; got row 2 and column 0"):
        pyramid.tile(0, 2, 0)
    with pytest.raises(ArgumentError, match=r"has 2 levels and .* at level 2"):
        pyramid.tile(2, 0, 0)


def test_a_sampled_thumbnail_is_close_to_the_exact_one() -> None:
    session = make_session(4096, 4096, mask=mask.causal(), num_heads=1, num_kv_heads=1)
    exact = session.map_pyramid(0, 0).thumbnail(64)
    sampled = sampled_thumbnail(session.head(0, 0), 64, 4)
    assert sampled.mean.shape == exact.mean.shape == (64, 64)
    assert bool((sampled.max <= exact.max + 1e-6).all())
    # the weights of each row sum to 1, so the rows of cells have almost equal sums
    torch.testing.assert_close(sampled.mean.sum(-1), exact.mean.sum(-1), rtol=1e-3, atol=1e-6)


def test_a_sampled_thumbnail_at_the_edge_counts_existing_pairs_only() -> None:
    session = make_session(100, 1000)
    sampled, exact = sampled_thumbnail(session.head(0, 0), 64, 16), session.map_pyramid(0, 0).thumbnail(64)
    assert sampled.mean.shape == exact.mean.shape == (7, 63)
    # all 16 rows of each cell are sampled
    torch.testing.assert_close(sampled.mean[:-1], exact.mean[:-1], rtol=1e-4, atol=1e-7)
