"""The stages of rules and masks: scores changed by position, and who may look at whom."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.spec.evaluate import Evaluation
from regard.spec.formula import Formula
from regard.spec.hiding import visible
from regard.spec.named import unnamed
from regard.spec.rule import as_rule
from regard.spec.score import Score
from regard.spec.term import TRUE, Term
from regard.spec.text import latex, text
from regard.worked.call import Call
from regard.worked.lines import is_short, line, numbers
from regard.worked.stage import PAIRS, Sheet, Written
from regard.worked.words import MASKS, RULES, SHORTENED

NOT_HIDDEN = r"s_{ij} > -\infty"


def rules_of(score: Score) -> list[Formula]:
    """The rules of a score one by one, where it still knows them; else all of them in one."""
    if score.rule is None:
        return []
    made = score.named
    if made is None or made.maker != "score.changed":
        return [score.rule]
    before, rule = made.given
    return [*rules_of(unnamed(before)), as_rule(rule)]


def put_rule(sheet: Sheet, call: Call, rule: Formula, score: Written, name: str = "") -> Written:
    """Writes down what a rule makes of the scores, under its own name or another."""
    maker = "" if rule.named is None else rule.named.maker.rpartition(".")[2]
    name = name or (maker if maker in RULES else "rule")
    spec, question = call.question.spec, call.question
    tensors = tuple(t.detach() for t in rule.resolved(spec.lengths, question.start, call.q))
    changed = Evaluation(tensors, call.positions, score.whole, torch.float64)
    whole = changed.number(rule.term).expand(call.positions.shape)
    changed.check_range(seen_by(call))
    short = is_short(rule.term)
    said = (
        (text(rule.term, rule.names), latex(rule.term, rule.names)) if short else SHORTENED.get(name, SHORTENED["rule"])
    )
    return sheet.put(
        MASKS["rule"],
        whole,
        PAIRS,
        (lambda own: _code(own, rule, tensors, score.name)) if short and changed.out_of_range is None else "",
        name=name,
        words=RULES[name],
        formula=said[0],
        latex=said[1],
    )


def _code(own: str, rule: Formula, tensors: Sequence[Tensor], score: str) -> str:
    names = _names(own, rule.names, tensors)
    captured = [f"{names[n]} = {numbers(tensors[n])}" for n in sorted(rule.term.reads)]
    return "\n".join([*captured, f"{own} = {line(rule.term, names, score)}"])


def _names(own: str, names: Sequence[str], tensors: Sequence[Tensor]) -> list[str]:
    """What code calls the tensors of a formula; some of them may have no name."""
    return [f"{own}_{names[n] if n < len(names) else n}" for n in range(len(tensors))]


def seen_by(call: Call) -> Tensor:
    """Which pairs the mask lets see, (batch, heads, n_q, n_k); less those that a rule hides by adding -inf."""
    looked = Evaluation(call.tensors, call.positions)
    seen = looked.condition(_condition(call)).expand(call.positions.shape)
    looked.check_range(seen)
    return seen


def _condition(call: Call) -> Term:
    spec = call.question.spec
    return visible(spec.mask, spec.rule, call.tensors)


def put_mask(sheet: Sheet, call: Call, score: Written, nothing: float = -torch.inf) -> tuple[Written, Tensor]:
    """Writes down who sees whom and the scores that are left, if anything is hidden; and which pairs are seen.

    `nothing` is what a hidden pair scores.
    """
    by_mask = seen_by(call)
    seen = by_mask & (score.whole != -torch.inf)
    condition, names = call.question.spec.mask, call.question.formula.names
    if condition is TRUE and bool(seen.all()):
        return score, seen
    said = (text(condition, names), latex(condition, names)) if condition is not TRUE else ("s_ij > -∞", NOT_HIDDEN)
    code = (lambda own: _seen_code(call, own)) if torch.equal(seen, by_mask) else ""
    there = sheet.put(MASKS["seen"], seen, PAIRS, code, formula=said[0], latex=said[1])
    whole = torch.where(seen, score.whole, nothing)
    code = f"torch.where({there.name}, {score.name}, {nothing})"
    return sheet.put(MASKS["masked" if nothing else "counted"], whole, PAIRS, code), seen


def _seen_code(call: Call, own: str) -> str:
    """The condition over index tensors; nothing where it is too long, or looks beyond the end of a tensor."""
    condition = _condition(call)
    looked = Evaluation(call.tensors, call.positions)
    looked.condition(condition)
    if looked.out_of_range is not None or not is_short(condition):
        return ""
    names = _names("mask", call.question.formula.names, call.tensors)
    captured = [f"{names[n]} = {numbers(call.tensors[n])}" for n in sorted(condition.reads)]
    shape = f"{call.question.spec.n_q}, {call.question.spec.n_k}"
    return "\n".join([*captured, f"{own} = torch.as_tensor({line(condition, names)}).expand({shape})"])
