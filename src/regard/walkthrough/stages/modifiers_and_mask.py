"""The stages of score modifiers and masks: modified scores, and which keys each query may attend to."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.expr.evaluate import Evaluator
from regard.expr.hidden_pairs import effective_mask
from regard.expr.ir import TRUE, Expr
from regard.expr.printing import to_latex, to_text
from regard.expr.score_modifier import ScoreModifier, as_score_modifier
from regard.expr.serialize import materialize
from regard.score import Score
from regard.stage_spec import PAIR_AXES
from regard.walkthrough.expanded_call import ExpandedCall
from regard.walkthrough.render.expr_code import has_few_operations, tensor_literal, torch_expression
from regard.walkthrough.stage import StageBuilder, StageTensor
from regard.walkthrough.stages.templates import MASK_TEMPLATES

VISIBLE_LATEX = r"s_{ij} > -\infty"
LONG_FORMULA = "f(s, b, h, i, j)"


def score_modifiers(score: Score) -> list[ScoreModifier]:
    """Return the modifiers of a score: one by one if it was built by `then`, else all of them in one."""
    if score.score_mod is None:
        return []
    constructor_call = score.constructor_call
    if constructor_call is None or constructor_call.constructor != "score.modified":
        return [score.score_mod]
    before, modifier = constructor_call.args
    return [*score_modifiers(materialize(before)), as_score_modifier(modifier)]


def add_modifier_stage(
    builder: StageBuilder, call: ExpandedCall, modifier: ScoreModifier, score: StageTensor
) -> StageTensor:
    """Add the stage of the modified scores."""
    stage, spec, query_offset = modifier.stage, call.parsed_call.spec, call.parsed_call.query_offset
    tensors = tuple(t.detach() for t in modifier.resolve_tensors(spec.score_shape, query_offset, call.q))
    evaluator = Evaluator(tensors, call.positions, score.tensor, torch.float64)
    modified = evaluator.score_value(modifier.expr).expand(call.positions.shape)
    evaluator.check_lookups_in_range(visible_pairs(call))
    has_formula = has_few_operations(modifier.expr)
    formulas = (
        (to_text(modifier.expr, modifier.tensor_names), to_latex(modifier.expr, modifier.tensor_names))
        if has_formula
        else (stage.formula or LONG_FORMULA, stage.latex or LONG_FORMULA)
    )
    return builder.add(
        MASK_TEMPLATES["modifier"],
        modified,
        PAIR_AXES,
        (lambda variable: _modifier_code(variable, modifier, tensors, score.variable))
        if has_formula and evaluator.out_of_range is None
        else "",
        name=stage.name,
        description=stage.description,
        formula=formulas[0],
        latex=formulas[1],
    )


def _modifier_code(variable: str, modifier: ScoreModifier, tensors: Sequence[Tensor], score: str) -> str:
    names = _captured_names(variable, modifier.tensor_names, tensors)
    captured = [f"{names[n]} = {tensor_literal(tensors[n])}" for n in sorted(modifier.expr.captured_slots)]
    return "\n".join([*captured, f"{variable} = {torch_expression(modifier.expr, names, score)}"])


def _captured_names(variable: str, names: Sequence[str], tensors: Sequence[Tensor]) -> list[str]:
    """Return the variable names of captured tensors; a tensor without a name gets its index."""
    return [f"{variable}_{names[n] if n < len(names) else n}" for n in range(len(tensors))]


def visible_pairs(call: ExpandedCall) -> Tensor:
    """Return the pairs hidden neither by the mask nor by a -inf of a score modifier, (batch, heads, n_q, n_k)."""
    evaluator = Evaluator(call.tensors, call.positions)
    visible = evaluator.mask_value(_visibility_condition(call)).expand(call.positions.shape)
    evaluator.check_lookups_in_range(visible)
    return visible


def _visibility_condition(call: ExpandedCall) -> Expr:
    spec = call.parsed_call.spec
    return effective_mask(spec.mask, spec.score_mod, call.tensors)


def add_mask_stages(
    builder: StageBuilder, call: ExpandedCall, score: StageTensor, hidden_score: float = -torch.inf
) -> tuple[StageTensor, Tensor]:
    """Add the stages of the mask, if it hides a pair; return the masked scores and the visible pairs.

    `hidden_score` is the score of a hidden pair.
    """
    by_mask = visible_pairs(call)
    visible = by_mask & (score.tensor != -torch.inf)
    condition, names = call.parsed_call.spec.mask, call.parsed_call.closed_expr.tensor_names
    if condition is TRUE and bool(visible.all()):
        return score, visible
    formulas = (
        (to_text(condition, names), to_latex(condition, names))
        if condition is not TRUE
        else ("s_ij > -∞", VISIBLE_LATEX)
    )
    code = (lambda variable: _visibility_code(call, variable)) if torch.equal(visible, by_mask) else ""
    mask = builder.add(MASK_TEMPLATES["visible"], visible, PAIR_AXES, code, formula=formulas[0], latex=formulas[1])
    masked = torch.where(visible, score.tensor, hidden_score)
    code = f"torch.where({mask.variable}, {score.variable}, {hidden_score})"
    name = "masked" if hidden_score else "masked products"
    return builder.add(MASK_TEMPLATES[name], masked, PAIR_AXES, code), visible


def _visibility_code(call: ExpandedCall, variable: str) -> str:
    """Return the code of the mask; empty if it is too long or indexes a tensor out of range."""
    condition = _visibility_condition(call)
    evaluator = Evaluator(call.tensors, call.positions)
    evaluator.mask_value(condition)
    if evaluator.out_of_range is not None or not has_few_operations(condition):
        return ""
    names = _captured_names("mask", call.parsed_call.closed_expr.tensor_names, call.tensors)
    captured = [f"{names[n]} = {tensor_literal(call.tensors[n])}" for n in sorted(condition.captured_slots)]
    shape = f"{call.parsed_call.spec.n_q}, {call.parsed_call.spec.n_k}"
    return "\n".join([*captured, f"{variable} = torch.as_tensor({torch_expression(condition, names)}).expand({shape})"])
