"""Build all stages of a call, from its inputs to its output."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.backends.shared.dropout import dropout_mask
from regard.feature_map import FeatureMapScore
from regard.normalizers.threshold import ThresholdNormalizer
from regard.score import RelativeValues
from regard.stage_spec import KEY_FEATURE_AXES, MATRIX_AXES, PAIR_AXES, QUERY_FEATURE_AXES
from regard.walkthrough.expanded_call import ExpandedCall
from regard.walkthrough.projection import add_token_stages
from regard.walkthrough.stage import Stage, StageBuilder, StageTensor
from regard.walkthrough.stages.modifiers_and_mask import add_mask_stages, add_modifier_stage, score_modifiers
from regard.walkthrough.stages.normalizers import add_weight_stages
from regard.walkthrough.stages.scores import add_score_stages
from regard.walkthrough.stages.templates import INPUT_TEMPLATES, OUTPUT_TEMPLATES


def build_stages(call: ExpandedCall, inputs: Mapping[str, Any], v: Tensor) -> list[Stage]:
    """Return the stages of a call.

    `inputs` maps Q, K and V to the arguments of `steps`. v is (batch, heads, n_k, v_head_dim), before the function
    `value` of the call is applied.
    """
    builder = StageBuilder()
    product_code = add_token_stages(builder, inputs)
    q, k, v_stage = (
        _add_input_stage(builder, letter, x, product_code) for letter, x in (("Q", call.q), ("K", call.k), ("V", v))
    )
    values = _add_value_stage(builder, call, v_stage)
    score = add_score_stages(builder, call, q, k)
    for modifier in score_modifiers(call.parsed_call.score):
        score = add_modifier_stage(builder, call, modifier, score)
    is_kernel = isinstance(call.parsed_call.score, FeatureMapScore)
    if call.parsed_call.normalizer.score_mod is not None and not is_kernel:  # a kernel has no logarithms of its scores
        score = add_modifier_stage(builder, call, call.parsed_call.normalizer.score_mod, score)
    score, visible = add_mask_stages(builder, call, score, 0.0 if is_kernel else -torch.inf)
    weights = add_weight_stages(builder, call, score, visible)
    dropped_out = _add_dropout_stages(builder, call, weights)
    weighted, code = _weighted_values(dropped_out, values, _contributing_pairs(call, weights, visible))
    _add_output_stages(builder, call, dropped_out, weighted, code)
    return builder.stages


def _add_input_stage(builder: StageBuilder, letter: str, x: Tensor, product_code: Mapping[str, str]) -> StageTensor:
    axes, code = (QUERY_FEATURE_AXES if letter == "Q" else KEY_FEATURE_AXES), product_code.get(letter, "")
    formula = f"{letter} = {code.replace(' @ ', ' ')}" if code else letter
    return builder.add(INPUT_TEMPLATES[letter], x, axes, code, product=formula)


def _add_value_stage(builder: StageBuilder, call: ExpandedCall, v: StageTensor) -> StageTensor:
    """Return the values; if the call transforms them, add the stage of the transformed values."""
    # NaN is not equal to itself
    if call.v.shape == v.tensor.shape and bool(torch.isclose(call.v, v.tensor, 0.0, 0.0, equal_nan=True).all()):
        return v
    return builder.add(INPUT_TEMPLATES["transformed values"], call.v, KEY_FEATURE_AXES)


def _add_dropout_stages(builder: StageBuilder, call: ExpandedCall, weights: StageTensor) -> StageTensor:
    dropout, seed = call.parsed_call.spec.dropout, call.parsed_call.seed
    if not dropout:
        return weights
    keep_probability = 1.0 - dropout
    keep = ~dropout_mask(seed, dropout, call.positions)
    mask = builder.add(OUTPUT_TEMPLATES["dropout mask"], keep, PAIR_AXES, dropout=f"{dropout:g}", seed=seed)
    scaled = torch.where(keep, weights.tensor / keep_probability, 0.0)
    code = f"torch.where({mask.variable}, {weights.variable} / {keep_probability!r}, 0.0)"
    template = OUTPUT_TEMPLATES["after dropout"]
    return builder.add(template, scaled, PAIR_AXES, code, keep_probability=f"{keep_probability:g}")


def _add_output_stages(
    builder: StageBuilder, call: ExpandedCall, weights: StageTensor, tensor: Tensor, code: str
) -> None:
    relative = call.parsed_call.relative_values
    if relative is None:
        builder.add(OUTPUT_TEMPLATES["output"], tensor, QUERY_FEATURE_AXES, code)
        return
    weighted = builder.add(OUTPUT_TEMPLATES["weighted values"], tensor, QUERY_FEATURE_AXES, code)
    added = _add_relative_value_stages(builder, call, relative, weights)
    code = f"{weighted.variable} + {added.variable}"
    template = OUTPUT_TEMPLATES["output with relative values"]
    builder.add(template, weighted.tensor + added.tensor, QUERY_FEATURE_AXES, code)


def _contributing_pairs(call: ExpandedCall, weights: StageTensor, visible: Tensor) -> StageTensor:
    """The pairs that contribute to the output: visible and, with a threshold or features, of nonzero weight."""
    parsed_call = call.parsed_call
    has_threshold = isinstance(parsed_call.normalizer.row_normalizer, ThresholdNormalizer)
    if has_threshold or isinstance(parsed_call.score, FeatureMapScore):
        return StageTensor(visible & (weights.tensor != 0.0), f"({weights.variable} != 0)")
    return StageTensor(visible, "visible")


def _weighted_values(weights: StageTensor, values: StageTensor, contributing: StageTensor) -> tuple[Tensor, str]:
    """Return weights times values and its code; a nonfinite value affects only the queries that attend to it."""
    if bool(values.tensor.isfinite().all()) or bool(contributing.tensor.all()):
        return weights.tensor @ values.tensor, f"{weights.variable} @ {values.variable}"
    pairs = weights.tensor.unsqueeze(-1) * values.tensor.unsqueeze(-3)
    product = f"{weights.variable}[..., None] * {values.variable}"
    code = f"torch.where({contributing.variable}[..., None], {product}, 0.0).sum(-2)"
    return torch.where(contributing.tensor.unsqueeze(-1), pairs, 0.0).sum(-2), code


def _add_relative_value_stages(
    builder: StageBuilder, call: ExpandedCall, relative: RelativeValues, weights: StageTensor
) -> StageTensor:
    """Add the stages of relative values, which depend on the distance of query and key."""
    table = builder.add(OUTPUT_TEMPLATES["relative value table"], relative.table.detach().double(), MATRIX_AXES)
    max_distance = relative.max_distance
    p, j = (torch.as_tensor(call.positions[name]) for name in "pj")
    rows = ((j - p).clamp(-max_distance, max_distance) + max_distance).expand(call.positions.shape)
    weighted = (weights.tensor.unsqueeze(-1) * table.tensor[0, 0][rows]).sum(-2)
    index = f"(j - p).clamp({-max_distance}, {max_distance}) + {max_distance}"
    code = f"({weights.variable}[..., None] * {table.variable}[{index}]).sum(-2)"
    return builder.add(OUTPUT_TEMPLATES["relative values"], weighted, QUERY_FEATURE_AXES, code)
