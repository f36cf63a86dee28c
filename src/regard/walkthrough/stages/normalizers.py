"""The stages of a normalizer: weights from scores. A fully masked query has weights of 0."""

import torch
from torch import Tensor

from regard.backends.shared.dense import normalizer_parameter
from regard.backends.shared.sinkhorn_support import check_allows_more_than_identity
from regard.stage_spec import PAIR_AXES, QUERY_AXES
from regard.walkthrough.expanded_call import ExpandedCall
from regard.walkthrough.stage import StageBuilder, StageTensor
from regard.walkthrough.stages.declared_stages import add_declared_stages
from regard.walkthrough.stages.templates import WEIGHT_TEMPLATES


def add_weight_stages(builder: StageBuilder, call: ExpandedCall, score: StageTensor, visible: Tensor) -> StageTensor:
    """Add the stages from scores, -inf where hidden, to weights; the last stage is named weights."""
    normalizer, spec = call.parsed_call.normalizer, call.parsed_call.spec
    if normalizer.iterations > 1:
        check_allows_more_than_identity(spec, call.inputs)
    stage_specs = normalizer.stage_specs
    if not stage_specs:
        return _add_custom_normalizer_stages(builder, call, score, visible)
    parameter = normalizer_parameter(spec, call.inputs, call.positions, torch.float64)
    fields = {**normalizer.fields, **({} if parameter is None else {"parameter": parameter.reshape(-1)})}
    return add_declared_stages(builder, stage_specs, {"scores": score}, fields, n_k=spec.n_k)


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
