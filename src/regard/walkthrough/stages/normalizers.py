"""The stages of a normalizer: weights from scores. A fully masked query has weights of 0."""

import torch
from torch import Tensor

from regard.backends.shared.dense import normalizer_parameter
from regard.backends.shared.sinkhorn_support import refuse_identity
from regard.feature_map import FeatureMapScore
from regard.normalizers.streaming import Relu, Sigmoid, Softmax
from regard.normalizers.threshold import Entmax, Hardmax, TopK
from regard.walkthrough.expanded_call import ExpandedCall
from regard.walkthrough.stage import PAIR_AXES, QUERY_AXES, SCALAR_AXES, StageBuilder, StageTensor
from regard.walkthrough.stages.modifiers_and_mask import add_modifier_stage
from regard.walkthrough.stages.softmax import add_row_normalization_stages, add_sink_stages, add_softmax_stages
from regard.walkthrough.stages.templates import SCORE_TEMPLATES, WEIGHT_TEMPLATES
from regard.walkthrough.stages.thresholded import add_entmax_stages, add_hardmax_stages, add_topk_stages

MODIFIER_STAGE_NAMES = {"entmax": "times alpha minus 1", "sigmoid": "plus bias", "gumbel": "with gumbel noise"}


def add_normalizer_modifier_stage(builder: StageBuilder, call: ExpandedCall, score: StageTensor) -> StageTensor:
    """Add the stage of the normalizer's own score modifier, if it has one."""
    normalizer = call.parsed_call.normalizer
    if isinstance(call.parsed_call.score, FeatureMapScore):
        return _add_distance_factor_stages(builder, call, call.parsed_call.score, score)
    if normalizer.score_mod is None:
        return score
    constructor_call = normalizer.constructor_call
    constructor = "" if constructor_call is None else constructor_call.constructor.rpartition(".")[2]
    name = MODIFIER_STAGE_NAMES.get(constructor, "prepared scores")
    return add_modifier_stage(builder, call, normalizer.score_mod, score, name)


def _add_distance_factor_stages(
    builder: StageBuilder, call: ExpandedCall, score: FeatureMapScore, products: StageTensor
) -> StageTensor:
    """Add the products of features times a factor of the distance, if the feature map has one."""
    if not score.feature_map.depends_on_distance:
        return products
    p, j = (torch.as_tensor(call.positions[name]) for name in "pj")
    by_distance = score.feature_map.distance_factor(p - j).double().expand(call.positions.shape)
    factor = builder.add(SCORE_TEMPLATES["distance factor"], by_distance, PAIR_AXES)
    return builder.add(
        SCORE_TEMPLATES["distance-weighted products"],
        products.tensor * factor.tensor,
        PAIR_AXES,
        f"{products.variable} * {factor.variable}",
    )


def add_weight_stages(builder: StageBuilder, call: ExpandedCall, score: StageTensor, visible: Tensor) -> StageTensor:
    """Add the stages from scores, -inf where hidden, to weights; the last stage is named weights."""
    normalizer = call.parsed_call.normalizer
    row_normalizer = normalizer.row_normalizer
    if isinstance(call.parsed_call.score, FeatureMapScore):
        return add_row_normalization_stages(builder, score)
    if normalizer.iterations > 1:
        return _add_sinkhorn_stages(builder, call, score)
    if isinstance(row_normalizer, Softmax) and normalizer.factor is None:
        return add_softmax_stages(builder, score)
    if isinstance(row_normalizer, Softmax) and (logit := getattr(normalizer.factor, "logit", None)) is not None:
        return add_sink_stages(builder, score, logit)
    if isinstance(row_normalizer, Entmax):
        return add_entmax_stages(builder, call, row_normalizer, score)
    if isinstance(row_normalizer, TopK):
        return add_topk_stages(builder, row_normalizer, score)
    if isinstance(row_normalizer, Hardmax):
        return add_hardmax_stages(builder, row_normalizer, score)
    if isinstance(row_normalizer, Sigmoid) and normalizer.factor is None:
        return builder.add(
            WEIGHT_TEMPLATES["sigmoid"], torch.sigmoid(score.tensor), PAIR_AXES, f"torch.sigmoid({score.variable})"
        )
    if isinstance(row_normalizer, Relu):
        return _add_relu_stages(builder, call, score)
    return _add_custom_normalizer_stages(builder, call, score, visible)


def _add_relu_stages(builder: StageBuilder, call: ExpandedCall, score: StageTensor) -> StageTensor:
    positive = builder.add(
        WEIGHT_TEMPLATES["positive"], torch.relu(score.tensor), PAIR_AXES, f"torch.relu({score.variable})"
    )
    factor = call.parsed_call.normalizer.factor
    value = torch.as_tensor(1.0 if factor is None else factor(None, call.parsed_call.spec.n_k), dtype=torch.float64)
    scale = builder.add(WEIGHT_TEMPLATES["factor"], value.detach().reshape(1, -1), SCALAR_AXES)
    weights = positive.tensor * scale.tensor[..., None, None]
    return builder.add(WEIGHT_TEMPLATES["relu"], weights, PAIR_AXES, f"{positive.variable} * {scale.variable}")


def _add_sinkhorn_stages(builder: StageBuilder, call: ExpandedCall, score: StageTensor) -> StageTensor:
    """Add the stages that normalize rows and columns in turn, rows first and last; computed in logarithms."""
    refuse_identity(call.parsed_call.spec, call.inputs)
    iterations, log, scaled = call.parsed_call.normalizer.iterations, score.tensor, score
    row_max = f"{score.variable}.amax(-1, keepdim=True).clamp(min=-1e300)"  # -inf - -inf would be nan
    source = f"torch.exp({score.variable} - {row_max})"
    for half in range(2 * iterations - 1):
        template = "sinkhorn" if half == 2 * iterations - 2 else "columns" if half % 2 else "rows"
        axis = -2 if half % 2 else -1
        lse = torch.logsumexp(log, axis, keepdim=True)
        log = log - torch.where(lse == -torch.inf, 0.0, lse)
        code = _normalize_code(source, axis)
        scaled = builder.add(WEIGHT_TEMPLATES[template], torch.exp(log), PAIR_AXES, code, iteration=half // 2 + 1)
        source = scaled.variable
    return scaled


def _normalize_code(expression: str, axis: int) -> str:
    """Return code that divides rows or columns by their sums, except those of zeros."""
    sums = (
        f"({expression}).sum({axis}, keepdim=True)" if "(" in expression else f"{expression}.sum({axis}, keepdim=True)"
    )
    return f"{expression} / torch.where({sums} == 0, 1.0, {sums})"


def _add_custom_normalizer_stages(
    builder: StageBuilder, call: ExpandedCall, score: StageTensor, visible: Tensor
) -> StageTensor:
    """Add the statistic of a custom normalizer, if it has one, and its weights, both without code."""
    normalizer, spec = call.parsed_call.normalizer, call.parsed_call.spec
    row_normalizer = normalizer.row_normalizer
    parameter = normalizer_parameter(spec, call.inputs, call.positions, torch.float64)
    weights, statistic = (
        row_normalizer.normalize(score.tensor)
        if parameter is None
        else row_normalizer.normalize(score.tensor, parameter)
    )
    if statistic is not None:
        builder.add(
            WEIGHT_TEMPLATES["statistic"], statistic.detach(), QUERY_AXES, name=row_normalizer.statistic or "statistic"
        )
    if normalizer.factor is not None:
        factor = torch.as_tensor(normalizer.factor(statistic, spec.n_k), dtype=torch.float64)
        weights = weights * (factor.unsqueeze(-1) if factor.dim() else factor)
    weights = torch.where(visible, weights, 0.0).detach()
    template = WEIGHT_TEMPLATES["custom normalizer"]
    return builder.add(template, weights, PAIR_AXES, name=row_normalizer.name, formula=normalizer.formula)
