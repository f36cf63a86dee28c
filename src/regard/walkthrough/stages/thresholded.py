"""The stages of normalizers with a threshold: scores below it have weights of 0."""

import torch
from torch import Tensor

from regard.backends.shared.dense import normalizer_parameter
from regard.normalizers.threshold import Entmax, Hardmax, TopK
from regard.walkthrough.expanded_call import ExpandedCall
from regard.walkthrough.stage import PAIR_AXES, QUERY_AXES, SCALAR_AXES, StageBuilder, StageTensor
from regard.walkthrough.stages.softmax import add_softmax_stages
from regard.walkthrough.stages.templates import WEIGHT_TEMPLATES


def add_entmax_stages(builder: StageBuilder, call: ExpandedCall, normalizer: Entmax, score: StageTensor) -> StageTensor:
    """Add the stages of sparsemax or entmax: the threshold, the scores above it minus it, and their power."""
    power = normalizer_parameter(call.parsed_call.spec, call.inputs, call.positions, torch.float64)
    assert power is not None
    weights, threshold = normalizer.normalize(score.tensor, power.detach())
    assert threshold is not None
    is_sparsemax = call.parsed_call.normalizer.formula == "sparsemax"
    by_sorting = is_sparsemax and bool(threshold.isfinite().all())
    tau = builder.add(
        WEIGHT_TEMPLATES["tau"],
        threshold,
        QUERY_AXES,
        (lambda variable: _sparsemax_threshold_code(variable, score)) if by_sorting else "",
    )
    above = score.tensor > threshold.unsqueeze(-1)
    support = builder.add(WEIGHT_TEMPLATES["support"], above, PAIR_AXES, f"{score.variable} > {tau.variable}[:, None]")
    finite = torch.where(threshold.isinf(), 0.0, threshold).unsqueeze(-1)  # inf in a fully masked row
    code = f"torch.where({support.variable}, {score.variable} - {tau.variable}[:, None], 0.0)"
    gap = builder.add(WEIGHT_TEMPLATES["above tau"], torch.where(above, score.tensor - finite, 0.0), PAIR_AXES, code)
    if is_sparsemax:
        return builder.add(
            WEIGHT_TEMPLATES["sparsemax"], weights.detach(), PAIR_AXES, _code_if_finite(weights, gap.variable)
        )
    p = builder.add(WEIGHT_TEMPLATES["exponent"], power.detach().reshape(1, -1), SCALAR_AXES)
    return builder.add(
        WEIGHT_TEMPLATES["entmax"],
        weights.detach(),
        PAIR_AXES,
        _code_if_finite(weights, f"{gap.variable} ** {p.variable}"),
    )


def _code_if_finite(weights: Tensor, code: str) -> str:
    """Return the code of weights; none if some are NaN, which a comparison with a threshold would lose."""
    return code if bool(weights.isfinite().all()) else ""


def _sparsemax_threshold_code(variable: str, score: StageTensor) -> str:
    """Return code that computes the threshold of sparsemax by sorting each row.

    The threshold is (sum of the c largest scores - 1) / c, for the largest c whose scores all exceed it. Thresholds of
    other normalizers have no such form, and a program contains them as numbers.
    """
    return "\n".join(
        [
            f"ordered = {score.variable}.sort(-1, descending=True).values",
            "sums = ordered.cumsum(-1)",
            f"count = (1.0 + torch.arange(1, {score.tensor.shape[-1] + 1}) * ordered > sums).sum(-1, keepdim=True)",
            f"{variable} = ((sums.gather(-1, count - 1) - 1.0) / count).squeeze(-1)",
        ]
    )


def add_topk_stages(builder: StageBuilder, normalizer: TopK, score: StageTensor) -> StageTensor:
    """Add the stages of top-k: softmax of the k largest scores of each row."""
    k = normalizer.k
    threshold = builder.add(
        WEIGHT_TEMPLATES["top-k threshold"], normalizer.threshold(score.tensor).squeeze(-1), QUERY_AXES, k=k
    )
    top_scores = torch.where(score.tensor < threshold.tensor.unsqueeze(-1), -torch.inf, score.tensor)
    code = f"torch.where({score.variable} < {threshold.variable}[:, None], -inf, {score.variable})"
    return add_softmax_stages(builder, builder.add(WEIGHT_TEMPLATES["top-k scores"], top_scores, PAIR_AXES, code, k=k))


def add_hardmax_stages(builder: StageBuilder, normalizer: Hardmax, score: StageTensor) -> StageTensor:
    """Add the stages of hardmax: all weight on the largest score, shared by keys that tie."""
    threshold = builder.add(
        WEIGHT_TEMPLATES["hardmax threshold"], normalizer.threshold(score.tensor).squeeze(-1), QUERY_AXES
    )
    is_largest = score.tensor >= threshold.tensor.unsqueeze(-1)
    largest = builder.add(
        WEIGHT_TEMPLATES["largest"], is_largest, PAIR_AXES, f"{score.variable} >= {threshold.variable}[:, None]"
    )
    weights, _ = normalizer.normalize(score.tensor)
    code = f"{largest.variable} / {largest.variable}.double().sum(-1).clamp(min=1.0)[:, None]"
    return builder.add(WEIGHT_TEMPLATES["hardmax"], weights.detach(), PAIR_AXES, _code_if_finite(weights, code))
