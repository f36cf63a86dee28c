"""A call followed from its inputs to its output, stage by stage."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.engine.dropout import dropped
from regard.spec.feature import Kernel
from regard.spec.score import RelativeValues
from regard.spec.threshold import Thresholded
from regard.worked.call import Call
from regard.worked.projection import put_tokens
from regard.worked.rules import put_mask, put_rule, rules_of
from regard.worked.scores import put_score
from regard.worked.stage import KEYS, PAIRS, QUERIES, Sheet, Stage, Written
from regard.worked.weighings import put_rule_of_weighing, put_weights
from regard.worked.words import INPUTS, OUTPUTS


def follow(call: Call, given: Mapping[str, Any], v: Tensor) -> list[Stage]:
    """The stages of a call. `given` has what Q, K and V were made of; v is (batch, heads, n_k, width) as it came."""
    sheet = Sheet()
    made = put_tokens(sheet, given)
    q, k, v_given = (_put_input(sheet, letter, x, made) for letter, x in (("Q", call.q), ("K", call.k), ("V", v)))
    values = _put_values(sheet, call, v_given)
    score = put_score(sheet, call, q, k)
    for rule in rules_of(call.question.score):
        score = put_rule(sheet, call, rule, score)
    score = put_rule_of_weighing(sheet, call, score)
    is_kernel = isinstance(call.question.score, Kernel)
    score, seen = put_mask(sheet, call, score, 0.0 if is_kernel else -torch.inf)
    weights = put_weights(sheet, call, score, seen)
    left = _put_dropout(sheet, call, weights)
    mixed, code = _mixed(left, values, _counted(call, weights, seen))
    _put_output(sheet, call, left, mixed, code)
    return sheet.stages


def _put_input(sheet: Sheet, letter: str, x: Tensor, made: Mapping[str, str]) -> Written:
    axes, code = (QUERIES if letter == "Q" else KEYS), made.get(letter, "")
    formula = f"{letter} = {code.replace(' @ ', ' ')}" if code else letter
    return sheet.put(INPUTS[letter], x, axes, code, made=formula)


def _put_values(sheet: Sheet, call: Call, v: Written) -> Written:
    """The values that are mixed: those given, or what a function makes of them."""
    # NaN is not equal to itself
    if call.v.shape == v.whole.shape and bool(torch.isclose(call.v, v.whole, 0.0, 0.0, equal_nan=True).all()):
        return v
    return sheet.put(INPUTS["changed values"], call.v, KEYS)


def _put_dropout(sheet: Sheet, call: Call, weights: Written) -> Written:
    dropout, seed = call.question.spec.dropout, call.question.seed
    if not dropout:
        return weights
    rest = 1.0 - dropout
    stays = ~dropped(seed, dropout, call.positions)
    kept = sheet.put(OUTPUTS["left in"], stays, PAIRS, dropout=f"{dropout:g}", seed=seed)
    whole = torch.where(stays, weights.whole / rest, 0.0)
    code = f"torch.where({kept.name}, {weights.name} / {rest!r}, 0.0)"
    return sheet.put(OUTPUTS["after dropout"], whole, PAIRS, code, rest=f"{rest:g}")


def _put_output(sheet: Sheet, call: Call, weights: Written, whole: Tensor, code: str) -> None:
    relative = call.question.relative_values
    if relative is None:
        sheet.put(OUTPUTS["output"], whole, QUERIES, code)
        return
    mixed = sheet.put(OUTPUTS["mixed"], whole, QUERIES, code)
    added = _put_relative(sheet, call, relative, weights)
    code = f"{mixed.name} + {added.name}"
    sheet.put(OUTPUTS["output with a table"], mixed.whole + added.whole, QUERIES, code)


def _counted(call: Call, weights: Written, seen: Tensor) -> Written:
    """Which pairs count, and how code says so: those that are seen and, where a level or features hide some, weigh."""
    question = call.question
    if isinstance(question.weigh.normaliser, Thresholded) or isinstance(question.score, Kernel):
        return Written(seen & (weights.whole != 0.0), f"({weights.name} != 0)")
    return Written(seen, "seen")


def _mixed(weights: Written, values: Written, counted: Written) -> tuple[Tensor, str]:
    """Weights times values; a value that is not finite reaches only those for whom it counts."""
    if bool(values.whole.isfinite().all()) or bool(counted.whole.all()):
        return weights.whole @ values.whole, f"{weights.name} @ {values.name}"
    pairs = weights.whole.unsqueeze(-1) * values.whole.unsqueeze(-3)
    code = f"torch.where({counted.name}[..., None], {weights.name}[..., None] * {values.name}, 0.0).sum(-2)"
    return torch.where(counted.whole.unsqueeze(-1), pairs, 0.0).sum(-2), code


def _put_relative(sheet: Sheet, call: Call, relative: RelativeValues, weights: Written) -> Written:
    """What values that depend on the distance add."""
    table = sheet.put(OUTPUTS["table"], relative.table.detach().double(), ("row", "feature"))
    reach = relative.reach
    p, j = (torch.as_tensor(call.positions[name]) for name in "pj")
    rows = ((j - p).clamp(-reach, reach) + reach).expand(call.positions.shape)
    whole = (weights.whole.unsqueeze(-1) * table.whole[0, 0][rows]).sum(-2)
    place = f"(j - p).clamp({-reach}, {reach}) + {reach}"
    code = f"({weights.name}[..., None] * {table.name}[{place}]).sum(-2)"
    return sheet.put(OUTPUTS["by distance"], whole, QUERIES, code)
