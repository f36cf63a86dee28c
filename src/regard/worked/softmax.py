"""The stages of softmax, alone, with a sink, or as shares of what is never negative."""

import torch
from torch import Tensor

from regard.worked.stage import NUMBER, PAIRS, ROWS, Sheet, Written
from regard.worked.words import WEIGHTS


def put_softmax(sheet: Sheet, score: Written) -> Written:
    """exp of each score over the sum of its row. A row of -inf weighs nothing."""
    code = f"{score.name}.amax(-1)"
    most = sheet.put(WEIGHTS["row maximum"], score.whole.amax(-1), ROWS, code)
    powers = _powers(sheet, score, most)
    total = sheet.put(WEIGHTS["row sum"], powers.whole.sum(-1), ROWS, f"{powers.name}.sum(-1)")
    return _divided(sheet, "softmax", powers, total)


def put_sink(sheet: Sheet, score: Written, logit: Tensor) -> Written:
    """The same with one more key, whose value is zero."""
    sink = sheet.put(WEIGHTS["sink"], logit.detach().double().reshape(1, -1), NUMBER)
    level = sink.whole.unsqueeze(-1)
    top, code = torch.maximum(score.whole.amax(-1), level), f"torch.maximum({score.name}.amax(-1), {sink.name})"
    most = sheet.put(WEIGHTS["row maximum with a sink"], top, ROWS, code)
    powers = _powers(sheet, score, most)
    total = powers.whole.sum(-1) + torch.exp(level - top)
    code = f"{powers.name}.sum(-1) + torch.exp({sink.name} - {most.name})"
    put = sheet.put(WEIGHTS["row sum with a sink"], total, ROWS, code)
    return _divided(sheet, "softmax", powers, put)


def put_shares(sheet: Sheet, likeness: Written) -> Written:
    """Each number over the sum of its row."""
    total = sheet.put(WEIGHTS["sum of likeness"], likeness.whole.sum(-1), ROWS, f"{likeness.name}.sum(-1)")
    return _divided(sheet, "shares", likeness, total)


def _powers(sheet: Sheet, score: Written, most: Written) -> Written:
    """exp of the scores, measured from the largest of their row; 0 in a row that sees nothing."""
    nothing = most.whole == -torch.inf
    top, name = torch.where(nothing, 0.0, most.whole), most.name
    if bool(nothing.any()):
        name = f"torch.where({name} == -inf, 0.0, {name})"
    code = f"{score.name} - {name}[:, None]"
    below = sheet.put(WEIGHTS["below maximum"], score.whole - top.unsqueeze(-1), PAIRS, code)
    return sheet.put(WEIGHTS["exp"], torch.exp(below.whole), PAIRS, f"torch.exp({below.name})")


def _divided(sheet: Sheet, said: str, powers: Written, total: Written) -> Written:
    """Each number over the sum of its row; 0 in a row of zeros."""
    sums = total.whole.unsqueeze(-1)
    empty = sums == 0.0
    code = f"{powers.name} / {total.name}[:, None]"
    if bool(empty.any()):
        code = f"torch.where({total.name}[:, None] == 0, 0.0, {code})"
    whole = torch.where(empty, 0.0, powers.whole / torch.where(empty, 1.0, sums))
    return sheet.put(WEIGHTS[said], whole, PAIRS, code)
