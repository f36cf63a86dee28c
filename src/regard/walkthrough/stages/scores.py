"""The stages of a score: one number for each query and key, before any score modifier."""

import torch

from regard.stage_spec import PAIR_AXES
from regard.walkthrough.expanded_call import ExpandedCall
from regard.walkthrough.stage import StageBuilder, StageTensor
from regard.walkthrough.stages.declared_stages import add_declared_stages
from regard.walkthrough.stages.templates import StageTemplate

CUSTOM_SCORE = StageTemplate(
    "scores", "the score function of the call, for each pair", "s_ij = $formula", "s_{ij} = f(q_i, k_j)"
)


def add_score_stages(builder: StageBuilder, call: ExpandedCall, q: StageTensor, k: StageTensor) -> StageTensor:
    """Add the stages of the score and return the last one, the score of each pair."""
    score = call.parsed_call.score
    stage_specs = score.stage_specs()
    if not stage_specs:
        return _add_custom_score_stage(builder, call, q, k)
    positions = {name: torch.as_tensor(call.positions[name]) for name in "pj"}
    return add_declared_stages(
        builder, stage_specs, {"Q": q, "K": k}, {**vars(score), **positions}, head_dim=q.tensor.shape[-1]
    )


def _add_custom_score_stage(builder: StageBuilder, call: ExpandedCall, q: StageTensor, k: StageTensor) -> StageTensor:
    """Add the scores of a custom score function, without code."""
    parsed_call = call.parsed_call
    inputs = parsed_call.prepare_inputs(torch.float64)
    if inputs.score_function is not None:
        scores = inputs.score_function(q.tensor, k.tensor, *inputs.parameters)
    else:
        keys = inputs.k.double().repeat_interleave(q.tensor.shape[1] // inputs.k.shape[1], dim=1)
        scores = (inputs.q.double() * parsed_call.spec.scale) @ keys.mT
    return builder.add(CUSTOM_SCORE, scores.detach().double(), PAIR_AXES, formula=parsed_call.score.formula())
