"""How alike heads look: the Jensen-Shannon divergence of their rows, over some rows that are drawn.

0 if two heads look alike, log 2 if they look at nothing in common. All pairs of all heads over all rows would take as
long as the matrix is large, so rows are drawn by a seed, and the result says which.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.inside.flow import stacked
from regard.inside.layer import Layer


@dataclass(frozen=True, eq=False)
class Similarity:
    """The mean divergence of each pair of heads (heads, heads), the (layer, head) they are, and the rows it is over."""

    divergence: Tensor
    heads: list[tuple[int, int]]
    rows: list[int]

    def __repr__(self) -> str:
        n = len(self.heads)
        return f"Similarity of {n} heads over {len(self.rows)} drawn rows: Jensen-Shannon divergence, {n} x {n}"


def similarity(layers: Sequence[Layer], rows: int, seed: int) -> Similarity:
    layers = stacked(layers)
    n = layers[0].take.q.shape[2]
    drawn = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:rows].sort().values
    names = [(layer.number, head) for layer in layers for head in layer.heads]
    total = torch.zeros(len(names), len(names), dtype=torch.float64)
    for row in drawn.tolist():
        p = torch.cat([layer.attended.weights[:, :, row].double() for layer in layers], dim=1)
        for text in p:
            own = torch.special.entr(text).sum(-1)
            for place in range(len(names)):
                both = torch.special.entr((text[place] + text) / 2).sum(-1)
                total[place] += both - (own[place] + own) / 2
    return Similarity((total / (len(drawn) * len(p))).clamp(min=0).float(), names, drawn.tolist())
