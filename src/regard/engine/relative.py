"""Values that depend on the distance: what Shaw's relative values add to an output.

The weights are made again from the row statistic, a block of queries at a time, and once more for the backward pass.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.engine.dense import block, parameter_of, positions_of
from regard.engine.dropout import dropped
from regard.engine.gradient import row_blocks
from regard.engine.parts import Matrix
from regard.spec.finite import all_finite
from regard.spec.score import RelativeValues
from regard.spec.threshold import Thresholded


def relative_output(
    matrix: Matrix,
    values: RelativeValues,
    places: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """sum_j a_ij table[clip(j - p)] of every query, (batch, heads, n_q, width); `places` are p and j if given.

    A normalizer that needs whole rows gets them here, with the gradient of its definition; `matrix` holds it as it is.
    """
    spec, inputs, statistic = matrix.spec, matrix.inputs, matrix.statistic
    k = inputs.k.to(spec.precision).repeat_interleave(spec.group, dim=1)

    def part(rows: range) -> Tensor:
        at = slice(rows.start, rows.stop)
        q = inputs.q[:, :, at].to(spec.precision)
        positions = positions_of(spec, inputs, range(spec.batch), range(spec.heads), rows, range(spec.n_k))
        found = block(spec, inputs, positions, q, k, all_finite(q, k))
        if isinstance(spec.normaliser, Thresholded):
            parameter = parameter_of(spec, inputs, positions, spec.precision)
            weights, _ = spec.normaliser.dense(found.scores, parameter)
        else:
            weights = matrix.weights(found.scores, None if statistic is None else statistic[:, :, at].unsqueeze(-1))
        if spec.dropout:
            gone = dropped(inputs.seed, spec.dropout, positions, inputs.origin)
            weights = weights.masked_fill(gone, 0.0) / (1.0 - spec.dropout)
        p, j = (torch.as_tensor(positions[name]) for name in "pj")
        if places is not None:
            p, j = places[0][at].view(1, 1, -1, 1), places[1].view(1, 1, 1, -1)
        bucket = (j - p).clamp(-values.reach, values.reach) + values.reach
        empty = weights.new_zeros((*weights.shape[:-1], values.table.shape[0]))
        by_distance = empty.scatter_add(-1, bucket.expand(weights.shape), weights)
        return by_distance @ values.table.to(weights.dtype)

    parts = [checkpoint(part, rows, use_reentrant=False) for rows in row_blocks(spec)]
    empty = inputs.q.new_empty((spec.batch, spec.heads, 0, spec.value_width))
    return torch.cat([empty.to(spec.dtype), *(x.to(spec.dtype) for x in parts)], dim=2)
