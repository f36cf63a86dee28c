"""The part of the output that comes from Shaw's relative values, which depend on the distance of query and key.

The weights are recomputed from the row statistic in blocks of queries, and once more in the backward pass.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.backends.shared.autograd import row_blocks
from regard.backends.shared.dense import make_positions, normalizer_parameter, score_block
from regard.backends.shared.dropout import dropout_mask
from regard.backends.shared.weight_tiles import WeightInputs
from regard.normalizers.threshold import ThresholdNormalizer
from regard.score import RelativeValues
from regard.tensors.nonfinite import all_finite


def relative_output(
    weight_inputs: WeightInputs,
    values: RelativeValues,
    query_and_key_positions: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """sum_j a_ij table[clip(j - p)] for every query, (batch, heads, n_q, value_dim).

    `query_and_key_positions` are p and j, if they are not consecutive. `weight_inputs` has the normalizer of the call.
    A thresholded normalizer is applied to whole rows, with the gradient of its definition.
    """
    spec, inputs, statistic = weight_inputs.spec, weight_inputs.inputs, weight_inputs.statistic
    k = inputs.k.to(spec.score_dtype).repeat_interleave(spec.queries_per_kv_head, dim=1)

    def block_output(rows: range) -> Tensor:
        block = slice(rows.start, rows.stop)
        q = inputs.q[:, :, block].to(spec.score_dtype)
        positions = make_positions(spec, inputs, range(spec.batch_size), range(spec.num_heads), rows, range(spec.n_k))
        scores = score_block(spec, inputs, positions, q, k, all_finite(q, k)).scores
        if isinstance(spec.normalizer, ThresholdNormalizer):
            parameter = normalizer_parameter(spec, inputs, positions, spec.score_dtype)
            weights, _ = spec.normalizer.normalize(scores, parameter)
        else:
            weights = weight_inputs.weights(scores, None if statistic is None else statistic[:, :, block].unsqueeze(-1))
        if spec.dropout:
            dropped = dropout_mask(inputs.seed, spec.dropout, positions, inputs.dropout_origin)
            weights = weights.masked_fill(dropped, 0.0) / (1.0 - spec.dropout)
        p, j = (torch.as_tensor(positions[name]) for name in "pj")
        if query_and_key_positions is not None:
            p, j = query_and_key_positions[0][block].view(1, 1, -1, 1), query_and_key_positions[1].view(1, 1, 1, -1)
        bucket = (j - p).clamp(-values.max_distance, values.max_distance) + values.max_distance
        empty = weights.new_zeros((*weights.shape[:-1], values.table.shape[0]))
        by_distance = empty.scatter_add(-1, bucket.expand(weights.shape), weights)
        return by_distance @ values.table.to(weights.dtype)

    blocks = [checkpoint(block_output, rows, use_reentrant=False) for rows in row_blocks(spec)]
    empty = inputs.q.new_empty((spec.batch_size, spec.num_heads, 0, spec.value_dim))
    return torch.cat([empty.to(spec.dtype), *(x.to(spec.dtype) for x in blocks)], dim=2)
