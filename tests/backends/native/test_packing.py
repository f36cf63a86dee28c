"""Key runs: each panel of queries visits every visible key, and few others."""

import hypothesis.strategies as st
import numpy as np
import torch
from hypothesis import given

from regard import mask
from regard.backends.native.packing import _panel_runs
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.plan.tiling import Tiling, condition_coverage

LANES, KEYS, VECTORS = 4, 4, 3


def runs_of(mask_like: mask.Mask, n_q: int, n_k: int, heads: int) -> list[list[list[int]]]:
    """For each head and panel, the runs as [first key, end, partial, low vector, high vector]."""
    call = parse_call(
        AttentionCall(
            torch.zeros(1, heads, n_q, 2), *(torch.zeros(1, heads, n_k, 2),) * 2, mask=mask_like, query_offset=0
        )
    )
    lengths = call.spec.score_shape
    actual = condition_coverage(call.spec.mask, call.captured_tensors(), lengths, 0, Tiling(LANES, KEYS, 64))
    (_, cover_heads, panels, _, _), (query_offsets, runs) = _panel_runs(actual, lengths, VECTORS)
    lists = [runs[query_offsets[n] : query_offsets[n + 1]].tolist() for n in range(cover_heads * panels)]
    return [lists[h % cover_heads * panels : (h % cover_heads + 1) * panels] for h in range(heads)]


@given(
    n_q=st.integers(1, 30),
    n_k=st.integers(1, 40),
    heads=st.integers(1, 2),
    by_head=st.booleans(),
    density=st.sampled_from([0.0, 0.02, 0.3, 0.97, 1.0]),
    seed=st.integers(0, 1000),
)
def test_key_runs_cover_every_visible_pair(n_q, n_k, heads, by_head, density, seed):
    generator = np.random.default_rng(seed)
    blocks = generator.random((heads if by_head else 1, -(-n_q // 4), -(-n_k // 4))) < density
    visible = np.kron(blocks, np.ones((1, 4, 4), bool))[:, :n_q, :n_k] ^ (generator.random((1, n_q, n_k)) < 0.01)

    for h, panels in enumerate(runs_of(mask.tensor(torch.from_numpy(visible[None])), n_q, n_k, heads)):
        here = visible[h % len(visible)]
        for panel, runs in enumerate(panels):
            visited = np.zeros((VECTORS * LANES, n_k), bool)
            for first, last, partial, low, high in runs:
                assert 0 <= first < last <= n_k and 0 <= low < high <= VECTORS
                assert not visited[:, first:last].any(), "a key is visited twice"
                visited[low * LANES : high * LANES, first:last] = True
                rows = here[panel * VECTORS * LANES :][low * LANES : high * LANES, first:last]
                assert partial or rows.all()
            ours = here[panel * VECTORS * LANES : (panel + 1) * VECTORS * LANES]
            assert not (ours & ~visited[: len(ours)]).any()
            assert runs == sorted(runs)


def test_vectors_without_visible_keys_are_skipped():
    ((panel,),) = runs_of(mask.causal(), n_q=12, n_k=12, heads=1)

    assert panel == [[0, 4, 1, 0, 3], [4, 8, 1, 1, 3], [8, 12, 1, 2, 3]]


def test_full_runs_are_marked():
    ((_, panel),) = runs_of(mask.causal(), n_q=24, n_k=24, heads=1)

    assert panel == [[0, 12, 0, 0, 3], [12, 16, 1, 0, 3], [16, 20, 1, 1, 3], [20, 24, 1, 2, 3]]
