"""Positions and addresses beyond 32 bits: computed exactly, or refused with the numbers. Nothing here takes memory."""

import pytest
import torch

from regard import attention, mask, score
from regard.engine.native import MAX_LENGTH, Native, builds, core
from regard.errors import EngineError
from regard.spec.program import Untold
from regard.spec.read import read

pytestmark = pytest.mark.skipif(not builds(), reason="the compiled core is not built")


def test_the_limit_is_the_one_of_the_core() -> None:
    assert core is not None and core.MAX_LENGTH == MAX_LENGTH


@pytest.mark.parametrize("n_k", [2**31 - 1, 2**31, 2**32 + 5])
def test_more_keys_than_positions_have_bits_for_are_refused(n_k: int) -> None:
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8).expand(1, 1, n_k, 8)

    with pytest.raises(EngineError, match=f"n_k is {n_k}, and it supports at most {MAX_LENGTH} of either"):
        attention(q, k, k, engine="native")


def test_a_repeated_call_does_not_take_more_keys_than_the_first_could() -> None:
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 50, 8)
    call, engine = read(q, k, k), Native(None)
    again = engine.repeated(call.spec, call.inputs(), engine.tiles(call.spec))
    longer = k[:, :, :1].expand(1, 1, 2**31, 8)

    assert again is not None and again(q, k, k) is not None
    assert again(q, longer, longer) is None


def test_addresses_of_look_ups_beyond_32_bits_are_left_to_another_engine() -> None:
    rows = torch.rand(4, 40) < 0.7
    # 3 GB of addresses of which four pages are touched
    table = torch.empty(3 * 2**30 + 40, dtype=torch.bool).as_strided((4, 40), (2**30, 1)).copy_(rows)
    q = torch.randn(1, 1, 40, 8)
    call, engine = read(q, q, q, mask=lambda b, h, i, j: table[(i * j) % 4, j]), Native(None)

    with pytest.raises(Untold, match="its whole numbers have 32 bits"):
        engine._ready(call.spec, call.inputs(), engine.tiles(call.spec), glance=False)
    output = attention(q, q, q, mask=lambda b, h, i, j: table[(i * j) % 4, j])

    expected = attention(q, q, q, mask=lambda b, h, i, j: rows[(i * j) % 4, j])
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("start", [2**31 - 20, 2**31, 2**40, -(2**31) - 5])
@pytest.mark.parametrize("name", ["causal", "window", "alibi", "function"])
def test_a_start_beyond_32_bits_gives_the_same_as_tiles(start: int, name: str) -> None:
    options = {
        "causal": dict(mask=mask.causal()),
        "window": dict(mask=mask.window(5)),
        "alibi": dict(score=score.alibi(), mask=mask.causal()),
        "function": dict(mask=lambda b, h, i, j: (i * 2**20 - j * 2**10) % 3 == 0),
    }[name]
    torch.manual_seed(1)
    q, k = torch.randn(2, 2, 30, 8), torch.randn(2, 2, 45, 8)

    output = attention(q, k, k, start=start, **options)

    torch.testing.assert_close(output, attention(q, k, k, start=start, engine="tiled", **options))
