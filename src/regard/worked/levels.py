"""The stages of weighings with a level: what lies below it weighs nothing."""

import torch
from torch import Tensor

from regard.engine.dense import parameter_of
from regard.spec.threshold import Argmax, Entmax, Top
from regard.worked.call import Call
from regard.worked.softmax import put_softmax
from regard.worked.stage import NUMBER, PAIRS, ROWS, Sheet, Written
from regard.worked.words import WEIGHTS


def put_entmax(sheet: Sheet, call: Call, normaliser: Entmax, score: Written) -> Written:
    """Sparsemax and entmax: the threshold, what lies above it, and that to a power."""
    power = parameter_of(call.question.spec, call.inputs, call.positions, torch.float64)
    assert power is not None
    weights, level = normaliser.dense(score.whole, power.detach())
    assert level is not None
    is_sparsemax = call.question.weigh.formula == "sparsemax"
    by_sorting = is_sparsemax and bool(level.isfinite().all())
    tau = sheet.put(WEIGHTS["tau"], level, ROWS, (lambda own: _sorted(own, score)) if by_sorting else "")
    above = score.whole > level.unsqueeze(-1)
    support = sheet.put(WEIGHTS["support"], above, PAIRS, f"{score.name} > {tau.name}[:, None]")
    finite = torch.where(level.isinf(), 0.0, level).unsqueeze(-1)  # inf: a row that sees nothing
    code = f"torch.where({support.name}, {score.name} - {tau.name}[:, None], 0.0)"
    gap = sheet.put(WEIGHTS["above tau"], torch.where(above, score.whole - finite, 0.0), PAIRS, code)
    if is_sparsemax:
        return sheet.put(WEIGHTS["sparsemax"], weights.detach(), PAIRS, _if_finite(weights, gap.name))
    p = sheet.put(WEIGHTS["power"], power.detach().reshape(1, -1), NUMBER)
    return sheet.put(WEIGHTS["entmax"], weights.detach(), PAIRS, _if_finite(weights, f"{gap.name} ** {p.name}"))


def _if_finite(weights: Tensor, code: str) -> str:
    """The code of weights; none where some are no numbers, which a comparison with a level does not tell."""
    return code if bool(weights.isfinite().all()) else ""


def _sorted(own: str, score: Written) -> str:
    """Code for the threshold of sparsemax: the largest scores of a row, as many as stay above (their sum - 1) / number.

    Other thresholds have no such form, and are written down as numbers.
    """
    return "\n".join(
        [
            f"ordered = {score.name}.sort(-1, descending=True).values",
            "sums = ordered.cumsum(-1)",
            f"count = (1.0 + torch.arange(1, {score.whole.shape[-1] + 1}) * ordered > sums).sum(-1, keepdim=True)",
            f"{own} = ((sums.gather(-1, count - 1) - 1.0) / count).squeeze(-1)",
        ]
    )


def put_top(sheet: Sheet, normaliser: Top, score: Written) -> Written:
    """Softmax of the largest scores."""
    k = normaliser.k
    level = sheet.put(WEIGHTS["level of top"], normaliser.level(score.whole).squeeze(-1), ROWS, k=k)
    whole = torch.where(score.whole < level.whole.unsqueeze(-1), -torch.inf, score.whole)
    code = f"torch.where({score.name} < {level.name}[:, None], -inf, {score.name})"
    return put_softmax(sheet, sheet.put(WEIGHTS["kept"], whole, PAIRS, code, k=k))


def put_argmax(sheet: Sheet, normaliser: Argmax, score: Written) -> Written:
    """All weight on the largest score, shared by those that tie."""
    level = sheet.put(WEIGHTS["level of argmax"], normaliser.level(score.whole).squeeze(-1), ROWS)
    most = score.whole >= level.whole.unsqueeze(-1)
    largest = sheet.put(WEIGHTS["largest"], most, PAIRS, f"{score.name} >= {level.name}[:, None]")
    weights, _ = normaliser.dense(score.whole)
    code = f"{largest.name} / {largest.name}.double().sum(-1).clamp(min=1.0)[:, None]"
    return sheet.put(WEIGHTS["argmax"], weights.detach(), PAIRS, _if_finite(weights, code))
