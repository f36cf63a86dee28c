"""Runs of keys: what each panel of queries visits is what its mask leaves, no less and little more."""

import hypothesis.strategies as st
import numpy as np
import torch
from hypothesis import given

from regard import mask
from regard.engine.prepare import _runs
from regard.plan.blocks import Tiles, covering
from regard.spec.read import read

LANES, KEYS, VECTORS = 4, 4, 3


def runs_of(chosen: mask.Mask, n_q: int, n_k: int, heads: int) -> list[list[list[int]]]:
    """For each head and panel, the runs as [first key, end, partial, low vector, high vector]."""
    question = read(torch.zeros(1, heads, n_q, 2), *(torch.zeros(1, heads, n_k, 2),) * 2, mask=chosen, start=0)
    lengths = question.spec.lengths
    found = covering(question.spec.mask, question.captured(), lengths, 0, Tiles(LANES, KEYS, 64))
    (_, cover_heads, panels, _, _), (starts, runs) = _runs(found, lengths, VECTORS)
    lists = [runs[starts[n] : starts[n + 1]].tolist() for n in range(cover_heads * panels)]
    return [lists[h % cover_heads * panels : (h % cover_heads + 1) * panels] for h in range(heads)]


@given(
    n_q=st.integers(1, 30),
    n_k=st.integers(1, 40),
    heads=st.integers(1, 2),
    by_head=st.booleans(),
    density=st.sampled_from([0.0, 0.02, 0.3, 0.97, 1.0]),
    seed=st.integers(0, 1000),
)
def test_runs_hold_every_pair_that_is_seen(n_q, n_k, heads, by_head, density, seed):
    coins = np.random.default_rng(seed)
    blocks = coins.random((heads if by_head else 1, -(-n_q // 4), -(-n_k // 4))) < density
    seen = np.kron(blocks, np.ones((1, 4, 4), bool))[:, :n_q, :n_k] ^ (coins.random((1, n_q, n_k)) < 0.01)

    for h, panels in enumerate(runs_of(mask.tensor(torch.from_numpy(seen[None])), n_q, n_k, heads)):
        here = seen[h % len(seen)]
        for panel, runs in enumerate(panels):
            visited = np.zeros((VECTORS * LANES, n_k), bool)
            for first, last, partial, low, high in runs:
                assert 0 <= first < last <= n_k and 0 <= low < high <= VECTORS
                assert not visited[:, first:last].any(), "no key twice"
                visited[low * LANES : high * LANES, first:last] = True
                rows = here[panel * VECTORS * LANES :][low * LANES : high * LANES, first:last]
                assert partial or rows.all()
            ours = here[panel * VECTORS * LANES : (panel + 1) * VECTORS * LANES]
            assert not (ours & ~visited[: len(ours)]).any()
            assert runs == sorted(runs)


def test_vectors_that_see_nothing_are_left_out():
    ((panel,),) = runs_of(mask.causal(), n_q=12, n_k=12, heads=1)

    assert panel == [[0, 4, 1, 0, 3], [4, 8, 1, 1, 3], [8, 12, 1, 2, 3]]


def test_full_runs_are_marked():
    ((_, panel),) = runs_of(mask.causal(), n_q=24, n_k=24, heads=1)

    assert panel == [[0, 12, 0, 0, 3], [12, 16, 1, 0, 3], [16, 20, 1, 1, 3], [20, 24, 1, 2, 3]]
