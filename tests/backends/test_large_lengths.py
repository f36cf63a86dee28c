"""Positions and addresses beyond 32 bits are computed exactly or raise an error. No test needs much memory."""

import pytest
import torch

from regard import attention, mask, score
from regard.backends.native.abi import MAX_LENGTH, core
from regard.backends.native.backend import NativeBackend, builds
from regard.backends.native.codegen.program_compiler import UnsupportedExpr
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.errors import BackendError

pytestmark = pytest.mark.skipif(not builds(), reason="the compiled core is not built")


def test_max_length_is_that_of_the_core() -> None:
    assert core is not None and core.abi()["constants"]["MAX_LENGTH"] == MAX_LENGTH


@pytest.mark.parametrize("n_k", [2**31 - 1, 2**31, 2**32 + 5])
def test_more_keys_than_max_length_raise_error(n_k: int) -> None:
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8).expand(1, 1, n_k, 8)

    with pytest.raises(
        BackendError, match=f"it supports at most {MAX_LENGTH} queries or keys, not n_q=1 and n_k={n_k}"
    ):
        attention(q, k, k, backend="native")


def test_fast_call_rejects_more_keys_than_max_length() -> None:
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 50, 8)
    call, backend = parse_call(AttentionCall(q, k, k)), NativeBackend(None)
    fast_call = backend.make_fast_call(call.spec, call.prepare_inputs(), backend.tiling(call.spec))
    longer = k[:, :, :1].expand(1, 1, 2**31, 8)

    assert fast_call is not None and fast_call(q, k, k) is not None
    assert fast_call(q, longer, longer) is None


def test_lookup_addresses_beyond_32_bits_fall_back() -> None:
    rows = torch.rand(4, 40) < 0.7
    # 3 GB of addresses; only four pages are written
    table = torch.empty(3 * 2**30 + 40, dtype=torch.bool).as_strided((4, 40), (2**30, 1)).copy_(rows)
    q = torch.randn(1, 1, 40, 8)
    call, backend = (
        parse_call(AttentionCall(q, q, q, mask=lambda b, h, i, j: table[(i * j) % 4, j])),
        NativeBackend(None),
    )

    with pytest.raises(UnsupportedExpr, match="it computes integers in 32 bits"):
        backend._pack_program(call.spec, call.prepare_inputs(), backend.tiling(call.spec), sample_only=False)
    output = attention(q, q, q, mask=lambda b, h, i, j: table[(i * j) % 4, j])

    expected = attention(q, q, q, mask=lambda b, h, i, j: rows[(i * j) % 4, j])
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("query_offset", [2**31 - 20, 2**31, 2**40, -(2**31) - 5])
@pytest.mark.parametrize("name", ["causal", "window", "alibi", "function"])
def test_query_offset_beyond_32_bits_agrees_with_tiled(query_offset: int, name: str) -> None:
    options = {
        "causal": dict(mask=mask.causal()),
        "window": dict(mask=mask.sliding_window(5)),
        "alibi": dict(score=score.alibi(), mask=mask.causal()),
        "function": dict(mask=lambda b, h, i, j: (i * 2**20 - j * 2**10) % 3 == 0),
    }[name]
    torch.manual_seed(1)
    q, k = torch.randn(2, 2, 30, 8), torch.randn(2, 2, 45, 8)

    output = attention(q, k, k, query_offset=query_offset, **options)

    torch.testing.assert_close(output, attention(q, k, k, query_offset=query_offset, backend="tiled", **options))
