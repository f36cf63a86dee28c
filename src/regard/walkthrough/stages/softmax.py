"""The stages of softmax, alone or with a sink, and of dividing rows by their sums."""

import torch
from torch import Tensor

from regard.walkthrough.stage import PAIR_AXES, QUERY_AXES, SCALAR_AXES, StageBuilder, StageTensor
from regard.walkthrough.stages.templates import WEIGHT_TEMPLATES


def add_softmax_stages(builder: StageBuilder, score: StageTensor) -> StageTensor:
    """Add the stages of softmax: exp of each score over the sum of its row. A row of -inf gives weights of 0."""
    code = f"{score.variable}.amax(-1)"
    row_max = builder.add(WEIGHT_TEMPLATES["row maximum"], score.tensor.amax(-1), QUERY_AXES, code)
    exp = _add_exp_stages(builder, score, row_max)
    row_sum = builder.add(WEIGHT_TEMPLATES["row sum"], exp.tensor.sum(-1), QUERY_AXES, f"{exp.variable}.sum(-1)")
    return _add_division_stage(builder, "softmax", exp, row_sum)


def add_sink_stages(builder: StageBuilder, score: StageTensor, logit: Tensor) -> StageTensor:
    """Add the stages of softmax with a sink: one more key, whose value is zero."""
    sink = builder.add(WEIGHT_TEMPLATES["sink"], logit.detach().double().reshape(1, -1), SCALAR_AXES)
    sink_score = sink.tensor.unsqueeze(-1)
    maximum = torch.maximum(score.tensor.amax(-1), sink_score)
    code = f"torch.maximum({score.variable}.amax(-1), {sink.variable})"
    row_max = builder.add(WEIGHT_TEMPLATES["row maximum with a sink"], maximum, QUERY_AXES, code)
    exp = _add_exp_stages(builder, score, row_max)
    total = exp.tensor.sum(-1) + torch.exp(sink_score - maximum)
    code = f"{exp.variable}.sum(-1) + torch.exp({sink.variable} - {row_max.variable})"
    row_sum = builder.add(WEIGHT_TEMPLATES["row sum with a sink"], total, QUERY_AXES, code)
    return _add_division_stage(builder, "softmax", exp, row_sum)


def add_row_normalization_stages(builder: StageBuilder, kernel_products: StageTensor) -> StageTensor:
    """Add the stages that divide kernel products by the sums of their rows."""
    row_sum = builder.add(
        WEIGHT_TEMPLATES["sum of kernel products"],
        kernel_products.tensor.sum(-1),
        QUERY_AXES,
        f"{kernel_products.variable}.sum(-1)",
    )
    return _add_division_stage(builder, "row-normalized", kernel_products, row_sum)


def _add_exp_stages(builder: StageBuilder, score: StageTensor, row_max: StageTensor) -> StageTensor:
    """Add exp of the scores minus the maximum of their row; 0 in a fully masked row."""
    is_fully_masked = row_max.tensor == -torch.inf
    maximum, variable = torch.where(is_fully_masked, 0.0, row_max.tensor), row_max.variable
    if bool(is_fully_masked.any()):
        variable = f"torch.where({variable} == -inf, 0.0, {variable})"
    code = f"{score.variable} - {variable}[:, None]"
    shifted = builder.add(WEIGHT_TEMPLATES["minus maximum"], score.tensor - maximum.unsqueeze(-1), PAIR_AXES, code)
    return builder.add(WEIGHT_TEMPLATES["exp"], torch.exp(shifted.tensor), PAIR_AXES, f"torch.exp({shifted.variable})")


def _add_division_stage(
    builder: StageBuilder, template_name: str, numerators: StageTensor, row_sums: StageTensor
) -> StageTensor:
    """Add each number over the sum of its row; 0 in a row of zeros."""
    sums = row_sums.tensor.unsqueeze(-1)
    is_zero = sums == 0.0
    code = f"{numerators.variable} / {row_sums.variable}[:, None]"
    if bool(is_zero.any()):
        code = f"torch.where({row_sums.variable}[:, None] == 0, 0.0, {code})"
    weights = torch.where(is_zero, 0.0, numerators.tensor / torch.where(is_zero, 1.0, sums))
    return builder.add(WEIGHT_TEMPLATES[template_name], weights, PAIR_AXES, code)
