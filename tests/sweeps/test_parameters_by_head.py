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

PROBLEM = cases.Problem(batch=3, heads=4, key_heads=2, n_q=7, n_k=9, width=4, width_v=3, seed=5)


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
    drawn = {f"score {p.name}": (p, [], softmax) for p in scores}
    drawn |= {f"modifier {p.name}": (plain, [p], softmax) for p in modifiers}
    drawn |= {f"normalizer {p.name}": (plain, [], p) for p in normalizers}
    return {name: _call(*parts) for name, parts in drawn.items()}


def _call(score: Piece, modifiers: list[Piece], normalizer: Piece) -> Call:
    value = Piece("v", lambda: None, lambda: None)
    mask = cases.simple_masks(PROBLEM)[13]
    start = torch.tensor([0, 2, 5])
    return Call(
        0, PROBLEM, torch.float32, score, modifiers, mask, normalizer, value, 0.0, start, False, "4-D", 1.0
    )  # fmt: skip


@pytest.mark.parametrize("name", pieces())
def test_parameters_by_head_reach_every_slice_and_measure(name: str) -> None:
    call = pieces()[name]
    found = []
    for seed in range(2):  # the indices of weights are drawn from it
        call.seed = seed
        found += faults(call)

    assert not found, "\n".join(found)


def test_the_mask_of_these_calls_differs_by_head_and_batch_element() -> None:
    at = direct.places((3, 4, 7, 9))
    seen = cases.simple_masks(PROBLEM)[13][1](at)

    assert seen.shape == (3, 4, 7, 9) and not torch.equal(seen[0], seen[1]) and not torch.equal(seen[:, 0], seen[:, 1])
