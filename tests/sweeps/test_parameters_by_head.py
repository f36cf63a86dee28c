"""Each score, modifier and normalizer with parameters that differ by head or batch element.

Every form of weight slice and every measure must use the parameters of the heads and batch elements it selects.
"""

from __future__ import annotations

import random

import pytest
import torch

from tests.laws import cases, direct

from . import random_calls
from .random_calls import Call, Piece
from .test_random_calls import faults

PROBLEM = cases.Problem(batch_size=3, num_heads=4, num_kv_heads=2, n_q=7, n_k=9, head_dim=4, value_dim=3, seed=5)


class EachHead(random.Random):
    """Draws parameters that differ by head, and of several shapes the one at `shape`."""

    shape = 2  # (batch, heads, n_q, n_k)

    def random(self) -> float:
        return 0.0

    def choice(self, options):  # type: ignore[no-untyped-def]
        return options[self.shape]


def pieces() -> dict[str, Call]:
    r = EachHead()
    scores, modifiers = random_calls._scores(PROBLEM, r), random_calls._modifiers(PROBLEM, r)
    normalizers = random_calls._normalizers(PROBLEM, r)
    plain, softmax = scores[0], normalizers[0]
    calls = {f"score {p.name}": (p, [], softmax) for p in scores}
    calls |= {f"modifier {p.name}": (plain, [p], softmax) for p in modifiers}
    calls |= {f"normalizer {p.name}": (plain, [], p) for p in normalizers}
    return {name: _call(*parts) for name, parts in calls.items()}


def _call(score: Piece, modifiers: list[Piece], normalizer: Piece) -> Call:
    value = Piece("v", lambda: None, lambda: None)
    mask = cases.simple_masks(PROBLEM)[13]
    query_offset = torch.tensor([0, 2, 5])
    return Call(
        0, PROBLEM, torch.float32, score, modifiers, mask, normalizer, value, 0.0, query_offset, False, "4-D", 1.0
    )  # fmt: skip


@pytest.mark.parametrize("name", pieces())
def test_parameters_by_head_reach_every_slice_and_measure(name: str) -> None:
    call = pieces()[name]
    messages = []
    for seed in range(2):  # determines the indices of weights
        call.seed = seed
        messages += faults(call)

    assert not messages, "\n".join(messages)


def test_the_mask_of_these_calls_differs_by_head_and_batch_element() -> None:
    where = direct.positions((3, 4, 7, 9))
    visible = cases.simple_masks(PROBLEM)[13][1](where)

    assert visible.shape == (3, 4, 7, 9)
    assert not torch.equal(visible[0], visible[1]) and not torch.equal(visible[:, 0], visible[:, 1])
