"""The stages of a weighing: how the scores of a row become weights. A query that sees nothing weighs nothing."""

import torch
from torch import Tensor

from regard.engine.dense import parameter_of
from regard.engine.sinkhorn_support import refuse_identity
from regard.spec.feature import Kernel
from regard.spec.normaliser import Relu, Sigmoid, Softmax
from regard.spec.threshold import Argmax, Entmax, Top
from regard.worked.call import Call
from regard.worked.levels import put_argmax, put_entmax, put_top
from regard.worked.rules import put_rule
from regard.worked.softmax import put_shares, put_sink, put_softmax
from regard.worked.stage import NUMBER, PAIRS, ROWS, Sheet, Written
from regard.worked.words import SCORES, WEIGHTS

RULE_NAMES = {"entmax": "multiplied", "sigmoid": "shifted", "gumbel": "noisy"}


def put_rule_of_weighing(sheet: Sheet, call: Call, score: Written) -> Written:
    """Writes down what a weighing does to the scores first, if anything."""
    weigh = call.question.weigh
    if isinstance(call.question.score, Kernel):
        return _nearby(sheet, call, call.question.score, score)
    if weigh.rule is None:
        return score
    maker = "" if weigh.named is None else weigh.named.maker.rpartition(".")[2]
    return put_rule(sheet, call, weigh.rule, score, RULE_NAMES.get(maker, "prepared"))


def _nearby(sheet: Sheet, call: Call, score: Kernel, products: Written) -> Written:
    """Products of features times what their distance makes of them, where it does."""
    if not score.features.weighs_distance:
        return products
    p, j = (torch.as_tensor(call.positions[name]) for name in "pj")
    by_distance = score.features.beside(p - j).double().expand(call.positions.shape)
    factor = sheet.put(SCORES["factor of distance"], by_distance, PAIRS)
    return sheet.put(SCORES["nearby"], products.whole * factor.whole, PAIRS, f"{products.name} * {factor.name}")


def put_weights(sheet: Sheet, call: Call, score: Written, seen: Tensor) -> Written:
    """Writes down how scores, -inf where hidden, become weights; the last stage is called weights."""
    weigh = call.question.weigh
    normaliser = weigh.normaliser
    if isinstance(call.question.score, Kernel):
        return put_shares(sheet, score)
    if weigh.iterations > 1:
        return _sinkhorn(sheet, call, score)
    if isinstance(normaliser, Softmax) and weigh.factor is None:
        return put_softmax(sheet, score)
    if isinstance(normaliser, Softmax) and (logit := getattr(weigh.factor, "logit", None)) is not None:
        return put_sink(sheet, score, logit)
    if isinstance(normaliser, Entmax):
        return put_entmax(sheet, call, normaliser, score)
    if isinstance(normaliser, Top):
        return put_top(sheet, normaliser, score)
    if isinstance(normaliser, Argmax):
        return put_argmax(sheet, normaliser, score)
    if isinstance(normaliser, Sigmoid) and weigh.factor is None:
        return sheet.put(WEIGHTS["sigmoid"], torch.sigmoid(score.whole), PAIRS, f"torch.sigmoid({score.name})")
    if isinstance(normaliser, Relu):
        return _relu(sheet, call, score)
    return _own(sheet, call, score, seen)


def _relu(sheet: Sheet, call: Call, score: Written) -> Written:
    positive = sheet.put(WEIGHTS["positive"], torch.relu(score.whole), PAIRS, f"torch.relu({score.name})")
    factor = call.question.weigh.factor
    share = torch.as_tensor(1.0 if factor is None else factor(None, call.question.spec.n_k), dtype=torch.float64)
    scale = sheet.put(WEIGHTS["factor"], share.detach().reshape(1, -1), NUMBER)
    whole = positive.whole * scale.whole[..., None, None]
    return sheet.put(WEIGHTS["relu"], whole, PAIRS, f"{positive.name} * {scale.name}")


def _sinkhorn(sheet: Sheet, call: Call, score: Written) -> Written:
    """Rows and columns in turn, rows first and last. Computed in logarithms, shown as weights."""
    refuse_identity(call.question.spec, call.inputs)
    log, top = score.whole, f"{score.name}.amax(-1, keepdim=True).clamp(min=-1e300)"  # -inf less itself is no number
    turns, found, source = call.question.weigh.iterations, score, f"torch.exp({score.name} - {top})"
    for turn in range(2 * turns - 1):
        said = "sinkhorn" if turn == 2 * turns - 2 else "columns" if turn % 2 else "rows"
        axis = -2 if turn % 2 else -1
        lse = torch.logsumexp(log, axis, keepdim=True)
        log = log - torch.where(lse == -torch.inf, 0.0, lse)
        code = _divided(source, axis)
        found = sheet.put(WEIGHTS[said], torch.exp(log), PAIRS, code, turn=turn // 2 + 1)
        source = found.name
    return found


def _divided(source: str, axis: int) -> str:
    """Code that divides rows or columns by their sums, and leaves those of zeros."""
    sums = f"({source}).sum({axis}, keepdim=True)" if "(" in source else f"{source}.sum({axis}, keepdim=True)"
    return f"{source} / torch.where({sums} == 0, 1.0, {sums})"


def _own(sheet: Sheet, call: Call, score: Written, seen: Tensor) -> Written:
    """A weighing of one's own: its statistic, if it has one, and its weights, number by number."""
    weigh, spec = call.question.weigh, call.question.spec
    normaliser = weigh.normaliser
    parameter = parameter_of(spec, call.inputs, call.positions, torch.float64)
    whole, statistic = normaliser.dense(score.whole) if parameter is None else normaliser.dense(score.whole, parameter)
    if statistic is not None:
        sheet.put(WEIGHTS["statistic"], statistic.detach(), ROWS, name=normaliser.statistic or "statistic")
    if weigh.factor is not None:
        share = torch.as_tensor(weigh.factor(statistic, spec.n_k), dtype=torch.float64)
        whole = whole * (share.unsqueeze(-1) if share.dim() else share)
    whole = torch.where(seen, whole, 0.0).detach()
    return sheet.put(WEIGHTS["own"], whole, PAIRS, name=normaliser.name, formula=weigh.formula)
