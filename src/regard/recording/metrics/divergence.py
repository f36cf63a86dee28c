"""The similarity of heads: the Jensen-Shannon divergence of their rows, over randomly chosen queries.

The divergence is 0 for equal rows and log 2 for disjoint ones. Comparing all rows would cost as much as computing the
matrices, so only a few randomly chosen queries are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.recording.attribution.attention_flow import check_layer_stack
from regard.recording.recorded_layer import RecordedLayer


@dataclass(frozen=True, eq=False)
class HeadDivergence:
    """The mean divergence (heads, heads) of each pair of heads over `query_indices`.

    `heads` has the (layer, head) of each row and column.
    """

    divergence: Tensor
    heads: list[tuple[int, int]]
    query_indices: list[int]

    def __repr__(self) -> str:
        n = len(self.heads)
        return f"HeadDivergence: Jensen-Shannon divergence, {n} x {n} heads, over {len(self.query_indices)} queries"


def head_divergence(layers: Sequence[RecordedLayer], num_queries: int, seed: int) -> HeadDivergence:
    """Compute the divergence of all pairs of heads over `num_queries` queries chosen by a seed."""
    layers = check_layer_stack(layers)
    n_q = layers[0].merged_call.q.shape[2]
    queries = torch.randperm(n_q, generator=torch.Generator().manual_seed(seed))[:num_queries].sort().values
    heads = [(layer.index, head) for layer in layers for head in layer.head_indices]
    total = torch.zeros(len(heads), len(heads), dtype=torch.float64)
    for query in queries.tolist():
        batch = torch.cat([layer.result.weights[:, :, query].double() for layer in layers], dim=1)
        for rows in batch:
            entropies = torch.special.entr(rows).sum(-1)
            for n in range(len(heads)):
                mixture_entropies = torch.special.entr((rows[n] + rows) / 2).sum(-1)
                total[n] += mixture_entropies - (entropies[n] + entropies) / 2
    return HeadDivergence((total / (len(queries) * len(batch))).clamp(min=0).float(), heads, queries.tolist())
